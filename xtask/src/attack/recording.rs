//! Checks of recordings; receivers whose messages nothing reads, and two with the same output.

use std::fs;

use anyhow::{Context, Result};

use super::Attack;
use super::datagrams::some_stream;
use super::program::{Ended, Messages, Program, count, tail};
use super::relay::{Script, Sent, Stream};
use super::scene::Scene;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "stderr-closed",
        target: "recv udp",
        what: "standard error is closed (2>&-) while a stream is recorded",
        expects: "file = stream, lost 0, status 0, the result is printed",
        run: |scene| muted(scene, Messages::Closed),
    },
    Attack {
        name: "stderr-unread",
        target: "recv udp",
        what: "the reader of standard error takes a line and goes away (| head -1)",
        expects: "file = stream, lost 0, status 0, the result is printed",
        run: |scene| muted(scene, Messages::Unread),
    },
    Attack {
        name: "same-name",
        target: "recv udp, twice",
        what: "a second receiver records to the file of the first one",
        expects: "the second ends with status 1 and names the file; file = stream",
        run: same_name,
    },
];

/// Maximum memory of a receiver with a ring of 64 MiB, in MiB.
pub const MEMORY: u64 = 512;

/// Starts a receiver.
pub fn start(scene: &Scene, scheme: &str, out: &str, messages: Messages) -> Result<Program> {
    let from = format!("{scheme}://127.0.0.1:0");
    let recv = ["recv", &from, "--to", out, "--ring", "64MiB", "--json"];
    scene.start_with(&recv, messages)
}

/// Records a stream together with a script's datagrams, which must not harm it.
pub fn attacked(
    scene: &mut Scene,
    scheme: &str,
    stream: &Stream,
    script: Script,
    messages: Messages,
) -> Result<(Sent, Ended)> {
    attacked_with(scene, scheme, stream, script, messages, &[0])
}

/// Records like [`attacked`], with exit statuses other than 0.
pub fn attacked_with(
    scene: &mut Scene,
    scheme: &str,
    stream: &Stream,
    script: Script,
    messages: Messages,
    statuses: &[i32],
) -> Result<(Sent, Ended)> {
    let out = scene.room.path("out.vdif");
    let mut recv = start(scene, scheme, &out, messages)?;
    let sent = scene.relay(&mut recv, scheme, stream, script)?;
    scene.memory(&recv, MEMORY);
    let ended = recv.terminate()?;
    judge(scene, &ended, stream, &sent, statuses, true)?;
    Ok((sent, ended))
}

/// Expects that the stream is complete and, if `is_counted`, that everything else is counted as foreign. Only drops that the kernel
/// reports may be missing.
pub fn judge(
    scene: &mut Scene,
    ended: &Ended,
    stream: &Stream,
    sent: &Sent,
    statuses: &[i32],
    is_counted: bool,
) -> Result<()> {
    let said = tail(&ended.stderr);
    let status = ended.status;
    let is_expected = status.code().is_some_and(|code| statuses.contains(&code));
    scene.expect(
        is_expected && ended.is_orderly(),
        format!("{status}, expected one of {statuses:?}: {said}"),
    );
    let result = ended.json()?;
    let of = |name| count(&result, name);
    let host = &result["host"];
    let dropped = of("socket_drops")?
        + count(host, "softnet_dropped")?
        + count(&host["udp"], "receive_buffer_errors")?;
    let unique = of("unique")?;
    let missing = sent.stream.saturating_sub(unique);
    scene.expect(
        unique <= sent.stream && missing <= dropped,
        format!(
            "unique: {unique} of {}, the kernel dropped {dropped}",
            sent.stream
        ),
    );
    scene.expect(
        of("lost")? <= missing,
        format!("lost: {}, missing {missing}", of("lost")?),
    );
    for name in ["late", "restarts", "ring_full", "unwritten_bytes"] {
        scene.same(name, of(name)?, 0);
    }
    let counted = of("received")? + of("foreign")?;
    if is_counted {
        scene.expect(
            counted <= sent.all() && counted + dropped >= sent.all(),
            format!(
                "received and foreign: {counted} of {}, the kernel dropped {dropped}",
                sent.all()
            ),
        );
    }
    let out = result["to"].as_str().context("no name of the file")?;
    let recorded = fs::read(out).with_context(|| out.to_owned())?;
    if missing == 0 {
        scene.expect(
            recorded == stream.frames,
            format!(
                "the file ({} bytes) is not the stream ({})",
                recorded.len(),
                stream.frames.len()
            ),
        );
    } else {
        scene.expect(
            recorded.len() <= stream.frames.len(),
            format!(
                "the file has {} bytes, the stream {}",
                recorded.len(),
                stream.frames.len()
            ),
        );
        scene.note(format!("missing {missing}: the kernel dropped {dropped}"));
    }
    scene.note(format!("unique {unique}, foreign {}", of("foreign")?));
    Ok(())
}

fn muted(scene: &mut Scene, messages: Messages) -> Result<()> {
    let stream = some_stream(scene)?;
    attacked(scene, "udp", &stream, Script::new(), messages)?;
    Ok(())
}

fn same_name(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let out = scene.room.path("out.vdif");
    let mut first = start(scene, "udp", &out, Messages::Kept)?;
    first.address()?;
    let second = start(scene, "udp", &out, Messages::Kept)?;
    let sent = scene.relay(&mut first, "udp", &stream, Script::new())?;
    let second = second.end(super::scene::LIMIT)?;
    scene.expect(
        second.status.code() == Some(1) && second.stderr.contains(&out),
        format!("the second: {} {}", second.status, tail(&second.stderr)),
    );
    let first = first.terminate()?;
    judge(scene, &first, &stream, &sent, &[0], true)
}

//! `recv udp://` under hostile datagrams before, within and after a stream.

use std::time::Duration;

use anyhow::Result;
use evlbi_testkit::damage::{bytes, damage, pick};
use nix::sys::signal::Signal;
use rand::{Rng, RngExt};

use super::program::{END, Messages, tail};
use super::relay::{FRAME, FRAMES, Script, Sent, Step, Stream, numbered};
use super::scene::Scene;
use super::{Attack, recording};

const ALL: &str = "file = stream, lost 0, all else counted as foreign, status 0";

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "udp-tiny-before",
        target: "recv udp",
        what: "eight datagrams of a byte each, numbered, before the stream",
        expects: ALL,
        run: |scene| whole(scene, tiny_before),
    },
    Attack {
        name: "udp-few-per-second",
        target: "recv udp",
        what: "four datagrams a second of the stream's size without frames, before and within it",
        expects: ALL,
        run: |scene| whole(scene, few_per_second),
    },
    Attack {
        name: "udp-pair-far-ahead",
        target: "recv udp",
        what: "two datagrams from the stream's address, numbered 2^24 ahead, within it",
        expects: ALL,
        run: |scene| whole(scene, |random, stream| jumps(random, stream, 1, 1 << 24)),
    },
    Attack {
        name: "udp-twelve-jumps",
        target: "recv udp",
        what: "twelve such pairs, each further ahead",
        expects: ALL,
        run: |scene| whole(scene, |random, stream| jumps(random, stream, 12, 1 << 24)),
    },
    Attack {
        name: "udp-forged-pair",
        target: "recv udp",
        what: "two datagrams from the stream's address, numbered 500,000 ahead",
        expects: ALL,
        run: |scene| whole(scene, |random, stream| jumps(random, stream, 1, 500_000)),
    },
    Attack {
        name: "udp-random",
        target: "recv udp",
        what: "random bytes of random lengths, 0 to 65,507, before, within and after the stream",
        expects: ALL,
        run: |scene| whole(scene, random_bytes),
    },
    Attack {
        name: "udp-damaged-copies",
        target: "recv udp",
        what: "copies of the stream's datagrams, cut and changed, from another address",
        expects: "file = stream, lost 0, all else counted as foreign, status 0 or 1",
        run: damaged_copies,
    },
    Attack {
        name: "udp-after-the-end",
        target: "recv udp",
        what: "numbered datagrams without frames after the stream has ended",
        expects: ALL,
        run: |scene| whole(scene, after_the_end),
    },
    Attack {
        name: "udp-second-sender",
        target: "recv udp",
        what: "another sender with valid frames within the stream",
        expects: "file = stream; the sender is refused, counted, named with --source; status 1",
        run: second_sender,
    },
    Attack {
        name: "udp-end-in-a-flood",
        target: "recv udp",
        what: "SIGTERM while random datagrams and far numbers arrive",
        expects: "it ends within 10 s; file = stream, lost 0",
        run: end_in_a_flood,
    },
];

/// Sends a stream with a script's datagrams, which must not harm it.
fn whole<R: FnOnce(&mut rand_chacha::ChaCha8Rng, &Stream) -> Script>(
    scene: &mut Scene,
    script: R,
) -> Result<()> {
    let stream = some_stream(scene)?;
    let script = script(&mut scene.random, &stream);
    recording::attacked(scene, "udp", &stream, script, Messages::Kept)?;
    Ok(())
}

/// Returns a stream with any first number; some pass the highest number.
pub fn some_stream(scene: &mut Scene) -> Result<Stream> {
    let any = scene.random.random::<u64>() >> scene.random.random_range(0..64);
    let base = *pick(&mut scene.random, &[0, any, u64::MAX - FRAMES as u64 / 2]);
    Stream::new(base)
}

fn tiny_before(_: &mut impl Rng, _: &Stream) -> Script {
    let tiny = (0..8).map(|number| (0, Step::Send(numbered(number, b"x"))));
    tiny.collect()
}

fn few_per_second(random: &mut impl Rng, _: &Stream) -> Script {
    let mut script = Script::new();
    for number in 0..12 {
        // Four before the stream, 0.25 s apart; the others are equally rare among its datagrams.
        let at = (number as usize).saturating_sub(3) * FRAMES / 9;
        script.push((at, Step::Send(numbered(number, &bytes(random, FRAME)))));
        if at == 0 {
            script.push((at, Step::Wait(Duration::from_millis(250))));
        }
    }
    script
}

fn jumps(random: &mut impl Rng, stream: &Stream, times: usize, far: u64) -> Script {
    let mut script = Script::new();
    for time in 1..=times {
        let at = time * FRAMES / (times + 1);
        let ahead = far * time as u64 - random.random_range(2..10);
        for frame in [0, 1] {
            script.push((at, Step::Forge(stream.ahead(at + frame, ahead))));
        }
    }
    script
}

fn random_bytes(random: &mut impl Rng, _: &Stream) -> Script {
    let mut at: Vec<usize> = (0..60).map(|_| random.random_range(0..=FRAMES)).collect();
    at.sort_unstable();
    let mut script: Script = [0, 1, 7, 8, 9, FRAME, FRAME + 8, 65507]
        .map(|length| (0, Step::Send(bytes(random, length))))
        .into();
    script.extend(at.into_iter().map(|at| {
        let length = random.random_range(0..2000);
        (at, Step::Send(bytes(random, length)))
    }));
    script
}

fn damaged_copies(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let mut script = Script::new();
    for at in (10..FRAMES).step_by(3) {
        let copy = stream.ahead(at, 0);
        script.push((at, Step::Send(damage(&mut scene.random, &copy))));
    }
    script.push((FRAMES, Step::Silence));
    recording::attacked_with(scene, "udp", &stream, script, Messages::Kept, &[0, 1])?;
    Ok(())
}

fn after_the_end(random: &mut impl Rng, stream: &Stream) -> Script {
    let mut script = vec![(FRAMES, Step::Silence)];
    for number in 0..20 {
        let length = *pick(random, &[1, FRAME - 1, FRAME]);
        let next = stream.base.wrapping_add(FRAMES as u64 + number);
        script.push((FRAMES, Step::Send(numbered(next, &bytes(random, length)))));
    }
    script
}

fn second_sender(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let ahead = scene.random.random_range(1 << 30..1 << 40);
    // Each directly after one of the stream, so that the stream is never silent while they arrive.
    let frames = FRAMES / 3..FRAMES / 3 * 2;
    let count = frames.len() as u64;
    let script = frames.map(|at| (at, Step::Send(stream.ahead(at, ahead))));
    // They do not replace the stream after its end, either.
    let script = script.chain([(FRAMES, Step::Silence)]).collect();
    let (sent, ended) =
        recording::attacked_with(scene, "udp", &stream, script, Messages::Kept, &[1])?;
    let Sent {
        other: Some(other), ..
    } = sent
    else {
        return Ok(());
    };
    let refused = &ended.json()?["refused"];
    let named = refused.as_array().into_iter().flatten();
    let mut named = named.filter(|refused| refused["sender"] == other.to_string());
    scene.expect(
        named.any(|refused| refused["datagrams"] == count && refused["frames"] == true),
        format!("refused: {refused}, expected {other} with {count}"),
    );
    let said = &ended.stderr;
    scene.expect(
        said.contains("--source") && said.contains(&other.to_string()),
        format!("it does not name {other} and --source: {}", tail(said)),
    );
    Ok(())
}

/// Checks that the receiver ends while a flood continues.
fn end_in_a_flood(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let out = scene.room.path("out.vdif");
    let mut recv = recording::start(scene, "udp", &out, Messages::Kept)?;
    let to = recv.address()?;
    let sent = scene.relay(&mut recv, "udp", &stream, Script::new())?;
    let flood: Vec<Vec<u8>> = (0..64)
        .map(|number| match number % 2 {
            0 => stream.ahead(number, scene.random.random_range(1 << 20..1 << 50)),
            _ => {
                let length = scene.random.random_range(0..2000);
                bytes(&mut scene.random, length)
            }
        })
        .collect();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0") else {
                return;
            };
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for datagram in &flood {
                    // At the end nothing listens.
                    let _ = socket.send_to(datagram, to);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let already = recv.arrived(0);
        let arriving = super::scene::wait_for("the flood arrives", super::scene::LIMIT, || {
            (recv.arrived(0) > already + 100).then_some(())
        });
        scene.memory(&recv, recording::MEMORY);
        recv.signal(Signal::SIGTERM);
        let ended = recv.end(END);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        arriving.and(ended)
    })?;
    // Single frames of the flood may count as frames of a sender.
    recording::judge(scene, &ended, &stream, &sent, &[0, 1], false)
}

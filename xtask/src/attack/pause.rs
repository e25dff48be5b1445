//! Streams that pause while others send, and streams without sequence numbers.

use anyhow::Result;
use evlbi_testkit::damage::bytes;
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::Header;
use rand::RngExt;

use super::Attack;
use super::datagrams::some_stream;
use super::program::Messages;
use super::recording::{attacked, attacked_with};
use super::relay::{FRAME, FRAMES, Script, Step, numbered};
use super::scene::Scene;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "udp-stranger-in-pause",
        target: "recv udp",
        what: "the stream pauses, and another sender numbers eight datagrams of its size without frames",
        expects: "file = stream, lost 0, all else counted as foreign, status 0",
        run: in_pause,
    },
    Attack {
        name: "pudp-stranger-in-pause",
        target: "recv pudp",
        what: "the stream pauses, and another sender sends eight datagrams of its size without frames",
        expects: "file = stream, lost 0, all else counted as foreign, status 0",
        run: without_numbers,
    },
    Attack {
        name: "pudp-jump-of-500-s",
        target: "recv pudp",
        what: "two frames from the stream's address whose time is 500 s ahead",
        expects: "file = stream, lost 0, both counted as foreign, status 0 or 1",
        run: time_jump,
    },
];

fn in_pause(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let at = scene.random.random_range(20..FRAMES - 20);
    let first = scene.random.random::<u64>();
    let mut script = vec![(at, Step::Silence)];
    for number in 0..8 {
        let data = bytes(&mut scene.random, FRAME);
        let datagram = numbered(first.wrapping_add(number), &data);
        script.push((at, Step::Send(datagram)));
    }
    attacked(scene, "udp", &stream, script, Messages::Kept)?;
    Ok(())
}

fn without_numbers(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let at = scene.random.random_range(100..FRAMES - 20);
    let mut script = vec![(at, Step::Silence)];
    for _ in 0..8 {
        script.push((at, Step::Send(bytes(&mut scene.random, FRAME))));
    }
    attacked(scene, "pudp", &stream, script, Messages::Kept)?;
    Ok(())
}

fn time_jump(scene: &mut Scene) -> Result<()> {
    let stream = some_stream(scene)?;
    let at = scene.random.random_range(100..FRAMES - 20);
    let mut script = Script::new();
    for frame in [at, at + 1] {
        let mut bytes = stream.frame(frame).to_vec();
        let mut header = Header::parse(&bytes)?;
        let FrameTime { second, frame } = header.time();
        header.set_time(FrameTime {
            second: second + 500,
            frame,
        })?;
        header.emit(&mut bytes);
        script.push((at, Step::Forge(bytes)));
    }
    attacked_with(scene, "pudp", &stream, script, Messages::Kept, &[0, 1])?;
    Ok(())
}

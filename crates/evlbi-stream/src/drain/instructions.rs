//! Counts the instructions for the ring's spans through the deframer, without a sink.

use evlbi_net::ring::Reserve;
use evlbi_testkit::instructions::{Frames, measured, units};

use super::*;
use crate::sink::Null;

const FRAME: usize = 8032;
const ROUND: u64 = 64;
/// Bytes per read.
const READ: usize = 64 << 10;

fn drain<'d>(
    slot: usize,
    deframer: &'d mut Deframer,
    sink: &'d mut dyn Sink,
    run: &'d Run,
) -> Drain<'d> {
    Drain {
        slot,
        deframer,
        sink,
        holes: Holes::new(),
        taken: 0,
        gaps: VecDeque::new(),
        run,
    }
}

#[test]
fn deframe() {
    let reserve = Reserve::new(4 << 20).expect("memory");
    let (mut producer, mut consumer) = reserve.ring(FRAME, 16).expect("a ring");
    let (mut deframer, mut sink, run) = (Deframer::new(Settings::default()), Null, Run::silent());
    let mut drain = drain(FRAME, &mut deframer, &mut sink, &run);
    let mut frames = Frames::new(&[b"Ef"], 4, FRAME, 4000);
    let rounds = units(4 * ROUND) / ROUND;
    for round in 0..rounds {
        for position in round * ROUND..(round + 1) * ROUND {
            producer.place(position, frames.make()).expect("room");
        }
        producer.publish((round + 1) * ROUND);
        measured(|| drain.step(&mut consumer, false));
    }
    drop(producer);
    while drain.step(&mut consumer, true).is_some() {}
    assert_eq!(deframer.counts().whole, rounds * ROUND);
}

/// A byte stream from the reads of a connection to the deframer.
#[test]
fn bytes() {
    let reserve = Reserve::new(4 << 20).expect("memory");
    let (mut producer, mut consumer) = reserve.stream(16);
    let (mut deframer, mut sink, run) = (Deframer::new(Settings::default()), Null, Run::silent());
    let mut drain = drain(1, &mut deframer, &mut sink, &run);
    let mut frames = Frames::new(&[b"Ef"], 4, FRAME, 4000);
    let mut coming = Vec::new();
    let reads = units(16 * READ as u64) / READ as u64;
    for _ in 0..reads {
        while coming.len() < READ {
            coming.extend_from_slice(frames.make());
        }
        producer.room()[..READ].copy_from_slice(&coming[..READ]);
        coming.drain(..READ);
        measured(|| {
            let handed = producer.published() + READ as u64;
            producer.publish(handed);
            drain.step(&mut consumer, false);
        });
    }
    drop(producer);
    while drain.step(&mut consumer, true).is_some() {}
    let whole = deframer.counts().whole;
    assert_eq!(whole, reads * READ as u64 / FRAME as u64);
}

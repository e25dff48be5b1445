//! The ring's spans through the deframer, with no sink behind it.

use evlbi_net::ring::Reserve;
use evlbi_testkit::instructions::{Frames, measured, units};

use super::*;

const FRAME: usize = 8032;
const ROUND: u64 = 64;

#[test]
fn deframe() {
    let reserve = Reserve::new(4 << 20).expect("memory");
    let (mut producer, mut consumer) = reserve.ring(FRAME, 16).expect("a ring");
    let mut deframer = Deframer::new(Settings::default());
    let mut sink = Sink::Null;
    let mut drain = Drain {
        slot: FRAME,
        deframer: &mut deframer,
        sink: &mut sink,
        holes: Holes::new(),
        taken: 0,
        gaps: VecDeque::new(),
        interrupt: Arc::default(),
    };
    let mut frames = Frames::new(&[b"Ef"], 4, FRAME, 4000);
    let rounds = units(4 * ROUND) / ROUND;
    for round in 0..rounds {
        for position in round * ROUND..(round + 1) * ROUND {
            producer.place(position, frames.make()).expect("room");
        }
        producer.publish((round + 1) * ROUND);
        measured(|| drain.step(&mut consumer, false));
    }
    while drain.step(&mut consumer, true).is_some() {}
    assert_eq!(deframer.counts().whole, rounds * ROUND);
}

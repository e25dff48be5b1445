//! Any datagrams from any senders: each is counted once, and no place is assigned twice.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use evlbi_core::admission::{Admission, Arrival, Begins, Numbers, Settings};
use evlbi_core::deframe::Wanted;
use evlbi_core::peer::Peer;
use evlbi_core::time::Nanos;
use evlbi_wire::{pattern, vtp};

const FRAME: usize = 72;

/// A receiver whose ring is freed at once.
struct Receiver {
    admission: Admission,
    now: Nanos,
    placed: HashSet<u64>,
}

impl Receiver {
    /// Starts the stream that was chosen. Its pending datagrams may show another one, which takes over.
    fn begin(&mut self) {
        let mut left = self.admission.undecided();
        while let Some(begins) = self.admission.beginning() {
            self.begin_with(&begins);
            let undecided = self.admission.undecided();
            assert!(undecided < left, "the start of a stream decided nothing");
            left = undecided;
        }
    }

    fn begin_with(&mut self, begins: &Begins) {
        while self.admission.next_event().is_some() {}
        if begins.resized {
            self.admission.close();
            self.placed.clear();
        }
        let freed = self.admission.advance(self.now);
        let placed = &mut self.placed;
        let mut place = |position, data: &[u8]| {
            assert_eq!(data.len(), begins.data);
            assert!(placed.insert(position), "a place given out twice");
        };
        self.admission.begin(64, freed, &mut place);
    }

    fn take(&mut self, arrival: &Arrival<'_>) {
        let freed = self.admission.advance(self.now);
        let placed = &mut self.placed;
        let mut place = |position, _: &[u8]| {
            assert!(placed.insert(position), "a place given out twice");
        };
        self.admission.take(arrival, self.now, freed, &mut place);
        self.begin();
    }
}

pub fn run(data: &[u8]) {
    let settings = Settings {
        only: None,
        ports: 2,
        window: 16 * FRAME as u64,
        hold: Nanos(1000),
        kept: 64 << 10,
        wanted: Wanted::default(),
    };
    let mut receiver = Receiver {
        admission: Admission::new(settings, Box::new(Numbers)),
        now: Nanos(1),
        placed: HashSet::new(),
    };
    let frames = pattern::frames(FRAME, 0, pattern::frame_rate(64), 256).expect("frames");
    let (mut offered, mut number) = (0u64, 0u64);
    for step in data.chunks(4) {
        let [kind, amount, who, shape] = [0, 1, 2, 3].map(|place| *step.get(place).unwrap_or(&0));
        number = match kind % 8 {
            0..=3 => number.wrapping_add(1),
            4 => number.wrapping_add(u64::from(amount)),
            5 => number.wrapping_sub(u64::from(amount)),
            6 => number.wrapping_add(u64::from(amount) << (kind >> 3)),
            _ => u64::from(amount).wrapping_mul(0x0101_0101_0101_0101),
        };
        let frame = &frames[usize::from(amount) * FRAME..][..FRAME];
        let length = match shape % 4 {
            0 | 1 => FRAME,
            2 => usize::from(shape),
            _ => 8,
        };
        let body = match shape % 8 {
            0..=3 => frame[..length.min(FRAME)].to_vec(),
            _ => vec![shape; length],
        };
        let bytes = [&vtp::header(number), &body[..]].concat();
        // A series of datagrams, so that streams start.
        for further in 0..u64::from(who >> 4) {
            let next = number.wrapping_add(further);
            let bytes = [&vtp::header(next), &bytes[8..]].concat();
            receiver.take(&Arrival {
                bytes: &bytes,
                source: Peer::Socket(SocketAddr::from((
                    [10, 0, 0, who & 1],
                    u16::from(who & 3) + 1,
                ))),
                port: usize::from(who >> 2 & 1),
                stamp: (kind & 0x40 != 0).then(|| Duration::from_millis(u64::from(amount))),
            });
            offered += 1;
        }
        if kind & 0x80 != 0 {
            receiver.now = receiver.now.plus(Nanos(u64::from(amount) * 4_000_000));
            receiver.admission.tick(receiver.now);
            receiver.begin();
        }
    }
    receiver.admission.end(receiver.now);
    receiver.begin();
    receiver.admission.finish(0, &mut |_, _| {});
    let counters = receiver.admission.counters();
    let admission = &receiver.admission;
    let refused =
        admission.foreign_size() + admission.foreign_source() + admission.foreign_header();
    assert_eq!(admission.undecided(), 0);
    assert_eq!(
        counters.received + counters.foreign_sequence + refused,
        offered
    );
    assert_eq!(counters.expected, counters.unique + counters.lost);
}

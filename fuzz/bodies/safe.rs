//! Any messages, authentic ones too, and any progress: neither end of SafeUDP panics, and no order exceeds what may be sent.

use evlbi_core::time::Nanos;
use evlbi_proto::safe::message::{self, Beat, Header, Received, Report, Run};
use evlbi_proto::safe::{
    Arrivals, Key, Order, Output, Progress, Receiver, Sender, Set, Settings, State, Step,
};

/// Numbers of the input, one after the other.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number of any size: small ones are near each other.
    fn number(&mut self) -> u64 {
        let length = self.byte();
        let bytes = (0..length % 9).fold(0, |all, _| all << 8 | u64::from(self.byte()));
        if length >= 128 { !bytes } else { bytes }
    }
}

pub fn run(bytes: &[u8]) {
    let key = Key::new(&[1; 32]);
    let _ = message::read(bytes, &key);
    let mut input = Input(bytes);
    let settings = Settings {
        rate: 1_000_000 + input.number() % 1_000_000_000,
        size: 1000,
        least: Step::at_least(f64::from(input.byte()) / 255.0),
        first: input.number(),
        flow: 1,
        rearm: input.byte() & 1 == 1,
        ..Settings::default()
    };
    let mut now = Nanos(1_000_000_000);
    let mut sender = Sender::new(settings, key.clone(), now);
    let mut receiver = Receiver::new(key.clone(), 2);
    let mut progress = Progress::default();
    while !input.0.is_empty() {
        match input.byte() % 9 {
            0 => now = now.plus(Nanos(input.number() % 10_000_000_000)),
            1 => {
                let length = usize::from(input.byte()).min(input.0.len());
                let (some, rest) = input.0.split_at(length);
                input.0 = rest;
                let _ = sender.handle(some, now);
                let _ = receiver.handle(some, from(), now);
            }
            2 => {
                let report = report(&mut input);
                let _ = sender.handle(&report.write(&key), now);
            }
            3 => {
                let beat = beat(&mut input);
                let _ = receiver.handle(&beat.write(&key), from(), now);
            }
            4 => {
                receiver.missing(input.number(), input.number());
                receiver.next_shed();
            }
            5 => receiver.dropped(
                input.number(),
                input.number(),
                input.number(),
                input.number(),
            ),
            6 => receiver.observe(
                &Arrivals {
                    counters: received(&mut input),
                    heard: Some(input.number()),
                    end: Some(input.number()),
                    released: Some(input.number()),
                    emptied: now,
                },
                now,
            ),
            7 => {
                let (sent, shed) = (input.number() % 10_000, input.number() % 10_000);
                let from = progress.next + sent;
                sender.shed(from, from + shed);
                progress.next = from + shed;
                progress.shed += shed;
                sender.progress(progress, now);
            }
            _ => {
                // Messages reach the other end.
                while let Some(output) = sender.poll(now) {
                    if let Output::Message(bytes) = output {
                        let _ = receiver.handle(&bytes, from(), now);
                    }
                }
                while let Some((report, _)) = receiver.poll(now) {
                    let _ = sender.handle(&report, now);
                }
            }
        }
        if let Order::Send(step) = sender.order() {
            assert!((1..=16).contains(&step.sixteenths()));
        }
        let kept = sender.status().kept;
        assert!((0.0..=1.0).contains(&kept));
        let _ = (sender.next_at(), receiver.next_at(), receiver.accounts());
    }
    sender.end(now);
    let _ = sender.accounts();
}

fn from() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 9).into()
}

fn header(input: &mut Input<'_>) -> Header {
    Header {
        flags: u32::from(input.byte()),
        flow: u64::from(input.byte() % 4),
        number: input.number(),
        departure: Nanos(input.number()),
    }
}

fn received(input: &mut Input<'_>) -> Received {
    Received {
        received: input.number(),
        unique: input.number(),
        marked: input.number(),
        ..Received::default()
    }
}

fn report(input: &mut Input<'_>) -> Report {
    Report {
        header: header(input),
        instance: u64::from(input.byte() % 4),
        beat: input.number(),
        beat_departure: Nanos(input.number()),
        beat_arrival: Nanos(input.number()),
        held: Nanos(input.number()),
        covered: input.number(),
        missed: input.number(),
        host: input.number(),
        unattributed: input.number(),
        shed: input.number(),
        highest: input.number(),
        arrivals: received(input),
        probe_highest: input.number(),
        probes: input.number(),
        runs: (0..input.byte() % 8)
            .map(|_| Run {
                first: input.number(),
                length: input.number() as u32,
            })
            .collect(),
    }
}

fn beat(input: &mut Input<'_>) -> Beat {
    Beat {
        header: header(input),
        instance: u64::from(input.byte() % 4),
        first: input.number(),
        next: input.number(),
        declared: input.number(),
        shed: input.number(),
        not_sent: input.number(),
        probes: input.number(),
        rate: input.number(),
        round_trip: Nanos(input.number()),
        kept: input.number() as u32,
        size: 1000,
        state: State::from_byte(input.byte() % 10).unwrap_or_default(),
        sets: (0..input.byte() % 8)
            .map(|_| Set {
                first: input.number(),
                end: input.number(),
                stride: input.number() as u32,
                length: input.number() as u32,
            })
            .collect(),
    }
}

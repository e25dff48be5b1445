//! Lowers its rate when SafeUDP asks for it, so that nothing is shed: `cargo run --example lower_rate`.
//!
//! A flow of 8 Mbit/s meets a path that carries only 7.6 Mbit/s after 10 s. The sender gives the notice `congested` with a rate and a
//! deadline, and the application sends at that rate from then on. All of it is in virtual time, without sockets: a program of its own
//! would send and receive where `Path` is used here, and wait until the next of the times.

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;

use evlbi_core::time::Nanos;
use evlbi_proto::safe::{
    Arrivals, HOLD, Key, Kind, Order, Output, Progress, Receiver, Sender, Settings,
};

/// Bits of data per second, and bytes of data per datagram.
const RATE: u64 = 8_000_000;
const SIZE: u16 = 1000;
/// Delay of the path in each direction, and the time that its queue can take.
const DELAY: Nanos = Nanos(20_000_000);
const QUEUE: Nanos = Nanos(30_000_000);
/// Rate of the path after its change, and when that is.
const CAPACITY: u64 = 7_600_000;
const CHANGE: Nanos = Nanos(10_000_000_000);
const END: Nanos = Nanos(60_000_000_000);
const STEP: Nanos = Nanos(100_000);

/// Returns the time of a datagram at this rate.
fn span(rate: u64) -> Nanos {
    Nanos(u64::from(SIZE) * 8 * 1_000_000_000 / rate)
}

/// Messages or datagrams in flight, and when each arrives, in this order.
struct Line<T>(VecDeque<(Nanos, T)>);

impl<T> Line<T> {
    fn receive(&mut self, now: Nanos) -> Option<T> {
        let arrived = self.0.pop_front_if(|(at, _)| *at <= now);
        arrived.map(|(_, it)| it)
    }
}

/// Path with a queue, which is free from a time on.
struct Path {
    line: Line<u64>,
    free: Nanos,
}

impl Path {
    fn send(&mut self, number: u64, now: Nanos) {
        let start = self.free.max(now);
        if start.since(now) > QUEUE {
            return;
        }
        if now >= CHANGE {
            self.free = start.plus(span(CAPACITY));
        }
        self.line.0.push_back((start.plus(DELAY), number));
    }
}

/// Data that have arrived, on a path that does not reorder.
#[derive(Default)]
struct Arrived {
    arrivals: Arrivals,
    /// Gaps, each with its end and the time when it is due.
    gaps: VecDeque<(u64, u64, Nanos)>,
}

impl Arrived {
    fn take(&mut self, number: u64, now: Nanos) {
        let next = self.arrivals.end.unwrap_or(0);
        if number > next {
            self.gaps.push_back((next, number, now.plus(HOLD)));
        }
        self.arrivals.end = Some(number + 1);
        self.arrivals.heard = self.arrivals.end;
        self.arrivals.counters.received += 1;
        self.arrivals.counters.unique += 1;
    }

    fn report(&mut self, receiver: &mut Receiver, now: Nanos) {
        while let Some((first, end, _)) = self.gaps.pop_front_if(|(_, _, due)| *due <= now) {
            receiver.missing(first, end);
        }
        let open = self.gaps.front().map(|(first, ..)| *first);
        self.arrivals.released = open.or(self.arrivals.end);
        receiver.observe(&self.arrivals, now);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let key = Key::new(&[7; 32]);
    let settings = Settings {
        rate: RATE,
        size: SIZE,
        flow: 1,
        ..Settings::default()
    };
    let mut sender = Sender::new(settings, key.clone(), Nanos(0));
    let mut receiver = Receiver::new(key, 2);
    let address = SocketAddr::from(([127, 0, 0, 1], 2631));
    let mut path = Path {
        line: Line(VecDeque::new()),
        free: Nanos(0),
    };
    let mut arrived = Arrived::default();
    // Messages find no queue here.
    let [mut beats, mut reports] = [const { Line(VecDeque::<(Nanos, Vec<u8>)>::new()) }; 2];
    let (mut rate, mut due, mut progress) = (RATE, Nanos(0), Progress::default());
    let mut now = Nanos(0);
    while !sender.is_complete(now) {
        now = now.plus(STEP);
        // The receiving host.
        while let Some(number) = path.line.receive(now) {
            arrived.take(number, now);
        }
        while let Some(message) = beats.receive(now) {
            // What is not a valid message is counted, and has no other effect.
            let _ = receiver.handle(&message, address, now);
        }
        arrived.report(&mut receiver, now);
        while let Some((report, _)) = receiver.poll(now) {
            reports.0.push_back((now.plus(DELAY), report));
        }
        // The sending host.
        while let Some(message) = reports.receive(now) {
            let _ = sender.handle(&message, now);
        }
        while let Some(output) = sender.poll(now) {
            match output {
                Output::Message(message) => beats.0.push_back((now.plus(DELAY), message)),
                Output::Notice(notice) => {
                    println!("{:.1} s: {notice}", now.as_secs_f64());
                    if let Kind::Congested { limit, deadline } = notice.kind
                        && now < deadline
                    {
                        // An encoder with fewer bits, a narrower band: what an application can do.
                        rate = limit;
                        sender.set_rate(rate, now);
                        println!("{:.1} s: the application sends less", now.as_secs_f64());
                    }
                }
            }
        }
        match sender.order() {
            Order::Wait => due = now,
            Order::Send(step) if now < END => {
                while due <= now {
                    due = due.plus(span(rate));
                    // An application that ignores the notice sheds what `step` does not keep.
                    assert_eq!(step.sixteenths(), 16);
                    path.send(progress.next, now);
                    progress.next += 1;
                    sender.progress(progress, now);
                }
            }
            Order::Send(_) => sender.end(now),
            Order::Stop | Order::Fail => return Err("no data are sent any more".into()),
        }
    }
    let accounts = sender.accounts().ok_or("no last report")?;
    assert_eq!(receiver.accounts(), Some(accounts));
    println!("sent {}", accounts.sent);
    println!("shed {}", accounts.shed);
    println!("lost {}", accounts.lost);
    Ok(())
}

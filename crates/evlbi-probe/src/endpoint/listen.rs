//! Takes up what comes: data into the account, requests to be answered, replies as round trips.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Events, Place};
use evlbi_net::cpu::{self, Waiting};
use evlbi_net::receive::rest;
use evlbi_net::socket::GrantedBuffer;
use evlbi_net::transport::{Batch, Head, Incoming, Pieces};
use evlbi_wire::probe::{Kind, Probe, REPLY_LEN};
use serde::{Deserialize, Serialize};

use super::Test;
use super::port::{Departing, read};
use crate::measure::{Exchange, Record, Tallied, Tally, Windows};

/// Requests that are no part of what is measured, but tell how the clocks lie, have numbers from here on.
pub const CLOCK_FROM: u64 = 1 << 62;
/// Round trips that are kept.
const MAX_ROUND_TRIPS: usize = 1 << 20;
/// Maximum wait for missing datagrams after a stop.
const HASTE: Nanos = Nanos(300_000_000);
/// When all have come, what else may come is waited for so long.
const LINGER: Nanos = Nanos(20_000_000);
/// Time whose replies may leave at once, where their rate is bounded; and one that is as long as can be always may.
const REPLIES_AT_ONCE: Nanos = Nanos(100_000_000);
const MAX_REPLY: f64 = 65_535.0;

/// What a listener hears, for others to look at; and what they tell it.
#[derive(Default)]
pub struct Heard {
    /// Distinct datagrams of the stream so far.
    pub unique: AtomicU64,
    /// The number after the highest that has arrived.
    pub reached: AtomicU64,
    /// Replies so far, to requests that are measured.
    pub replies: AtomicU64,
    /// Replies so far to those that tell of the clock: from [`CLOCK_FROM`] on.
    pub clock: AtomicU64,
    used: AtomicU64,
    /// One more than all; 0 as long as nobody has said how many that is.
    sent: AtomicU64,
    is_in_haste: AtomicBool,
    stop: AtomicBool,
    /// Where a simulated listener hears that it was told something.
    places: [Arc<Place>; 1],
}

impl Heard {
    /// The other end says that it has sent so many: when these are there, or have been waited for, listening ends.
    pub fn sent(&self, count: u64) {
        self.sent.store(count.saturating_add(1), Ordering::Release);
        self.places[0].happens(Nanos(0));
    }

    fn all_sent(&self) -> Option<u64> {
        self.sent.load(Ordering::Acquire).checked_sub(1)
    }

    /// The other end says that it has sent so many so far.
    pub fn used(&self, count: u64) {
        self.used.fetch_max(count, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }

    /// Limits the wait for missing datagrams to 0.3 s.
    pub fn make_haste(&self) {
        self.is_in_haste.store(true, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }

    /// Whether listening has ended, or is to.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Listening ends at once.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }
}

/// What is listened to.
#[derive(Clone, Debug)]
pub(super) struct ListenOptions {
    /// The test.
    pub test: Test,
    /// The key of its datagrams.
    pub key: u64,
    /// Datagrams of the stream that there may be; 0 of none.
    pub count: u64,
    /// Most bits per second of replies.
    pub reply_rate: Option<BitRate>,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Its number.
    pub sequence: u64,
    /// Its times.
    pub times: Exchange,
}

/// A window of a stream that is settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its number, from 0 on.
    pub number: u64,
    /// Of its datagrams.
    pub tallied: Tallied,
    /// Messages that the socket dropped since the window before it was settled.
    pub socket_drops: u64,
    /// Most datagrams that came as one message since then.
    pub most_joined: u64,
}

/// What a listener knows at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listened {
    /// Of the stream, or of the last of its windows; of what is not there, nothing.
    pub tallied: Tallied,
    /// Messages that the socket dropped, as the kernel counts: joined datagrams count once.
    pub socket_drops: u64,
    /// Most datagrams that came as one message.
    pub most_joined: u64,
    /// Datagrams that are no part of this test.
    pub strangers: u64,
    /// What the socket was granted.
    pub buffer: Option<GrantedBuffer>,
    /// What was kept one by one.
    pub records: Vec<Record>,
    /// Replies, each number once.
    #[serde(skip)]
    pub round_trips: Vec<RoundTrip>,
    /// Replies to a number that had been replied to.
    pub repeated_replies: u64,
    /// Processor time of the listening thread in seconds.
    pub cpu_seconds: f64,
}

/// Listens until the stream is complete, or has been waited for after the other end said how much it sent, or until it is
/// stopped. Takes the current thread.
///
/// # Errors
/// What the kernel says of the socket.
pub(super) fn listen(
    incoming: &mut dyn Incoming,
    replies: Option<Departing>,
    options: &ListenOptions,
    heard: &Heard,
    settled: &mpsc::Sender<Window>,
    clock: &Clock,
) -> io::Result<Listened> {
    cpu::sharpen_timers()?;
    let cpu_before = clock.thread_time();
    let test = &options.test;
    let mut listener = Listener {
        options,
        windows: Windows::new(options.count, test.window, test.patience, test.bin_width),
        seen: 0,
        found: Listened::default(),
        replies_measured: 0,
        replied: HashSet::new(),
        replies,
        reply_rate: options.reply_rate.map(|rate| rate.get() as f64 / 8e9),
        allowance: 0.0,
        allowed_at: clock.now(),
        clock,
    };
    let (mut most_joined, mut last) = (0, clock.now());
    let mut settling = Settling::default();
    let mut told: Option<Nanos> = None;
    loop {
        heard.places[0].clear();
        // Looked at before the socket: what was there when it was set is taken up first.
        let stop = heard.stop.load(Ordering::Relaxed);
        let sent = heard.all_sent();
        let batch = incoming.receive(clock.now())?;
        let now = clock.now();
        let is_empty = batch.is_empty();
        if !is_empty {
            last = now;
            most_joined = most_joined.max(batch.max_joined());
            listener.take(batch)?;
            let show = |place: &AtomicU64, value| place.store(value, Ordering::Relaxed);
            show(&heard.unique, listener.windows.unique());
            show(&heard.reached, listener.windows.reached());
            let measured = listener.replies_measured;
            show(&heard.replies, measured);
            let all = listener.found.round_trips.len() as u64;
            show(&heard.clock, all - measured);
            settling.look(listener.windows.next(), || drops(incoming));
        }
        let used = heard.used.load(Ordering::Relaxed);
        if let Some(used) = settling.settled(used, now, test.patience) {
            while !stop && let Some((number, tallied)) = listener.windows.close(used) {
                let most_joined = std::mem::take(&mut most_joined);
                let drops = drops(incoming);
                let _ = settled.send(settling.window(number, tallied, drops, most_joined));
            }
        }
        if let Some(sent) = sent {
            let since = *told.get_or_insert(now);
            // Of the last ones a second copy may still come.
            let is_complete = listener.windows.unique() >= sent && now.since(last) >= LINGER;
            let patience = match heard.is_in_haste.load(Ordering::Relaxed) {
                true => test.patience.min(HASTE),
                false => test.patience,
            };
            // What the socket still holds has arrived in time.
            let is_over = is_empty && now.since(since) >= patience;
            if is_complete || is_over {
                break;
            }
        }
        if stop {
            break;
        }
        if is_empty && clock.is_real() {
            rest(&[incoming], clock, last);
        } else if is_empty {
            let due = [
                settling.next(test.patience),
                told.map(|_| last.plus(LINGER)),
                told.map(|since| since.plus(test.patience.min(HASTE))),
                told.map(|since| since.plus(test.patience)),
            ];
            let due = due.into_iter().flatten().filter(|due| *due > now).min();
            let until = due.unwrap_or(Nanos(u64::MAX));
            let events = [incoming.events(), Events::at(&heard.places)];
            clock.wait(&events, until, Waiting::Sleep);
        }
    }
    let all_drops = drops(incoming);
    let rest = listener.windows.finish(heard.all_sent().unwrap_or(0));
    let last = rest.last().map(|(_, tallied)| tallied.clone());
    for (number, tallied) in rest {
        if test.window.is_some() {
            let _ = settled.send(settling.window(number, tallied, all_drops, most_joined));
        }
    }
    // Whoever looks at it.
    heard.stop();
    Ok(Listened {
        tallied: last.unwrap_or_else(|| Tally::new(0, test.patience, None).finish(0)),
        socket_drops: all_drops,
        most_joined,
        buffer: incoming.buffer().cloned(),
        cpu_seconds: clock.thread_time().since(cpu_before).as_secs_f64(),
        ..listener.found
    })
}

/// Numbers that the sender had used some time ago.
#[derive(Default)]
struct Settling {
    /// Numbers used, and since when that is known.
    told: VecDeque<(u64, Nanos)>,
    /// Messages that the socket had dropped when a window's first datagram came.
    marks: VecDeque<(u64, u64)>,
    /// Messages that the socket had dropped at the end of the last window that was settled.
    drops: u64,
}

/// Messages that the socket has dropped.
fn drops(incoming: &mut dyn Incoming) -> u64 {
    let known = incoming.drops_reported();
    incoming.drops().unwrap_or(known)
}

impl Settling {
    /// The windows before this one have begun; what the socket had dropped by then is theirs.
    fn look(&mut self, next: u64, drops: impl FnOnce() -> u64) {
        if self.marks.back().is_none_or(|(last, _)| *last < next) {
            self.marks.push_back((next, drops()));
        }
    }

    /// A window. What the socket dropped from its first datagram to that of the next, if that has come, is its; it has dropped
    /// so much in all.
    fn window(&mut self, number: u64, tallied: Tallied, drops: u64, most_joined: u64) -> Window {
        // The mark of window n is made when n + 1 is the next.
        let is_past = |(next, _): &mut (u64, u64)| *next <= number + 1;
        while self.marks.pop_front_if(is_past).is_some() {}
        let end = self.marks.front().map_or(drops, |(_, drops)| *drops);
        let since = std::mem::replace(&mut self.drops, end);
        Window {
            number,
            tallied,
            socket_drops: end.saturating_sub(since),
            most_joined,
        }
    }

    /// When something is settled next.
    fn next(&self, patience: Nanos) -> Option<Nanos> {
        self.told.front().map(|(_, at)| at.plus(patience))
    }

    /// How many were used so long ago that none of them is waited for any more, if that is news.
    fn settled(&mut self, used: u64, now: Nanos, patience: Nanos) -> Option<u64> {
        if self.told.back().is_none_or(|(last, _)| *last < used) {
            self.told.push_back((used, now));
        }
        let is_old = |told: &&(u64, Nanos)| now.since(told.1) >= patience;
        let old = self.told.iter().take_while(is_old).count();
        self.told.drain(..old).next_back().map(|(used, _)| used)
    }
}

struct Listener<'a> {
    options: &'a ListenOptions,
    clock: &'a Clock,
    windows: Windows,
    /// Datagrams of the stream, in the order of their arrival.
    seen: u64,
    /// What is counted and kept one by one.
    found: Listened,
    replies_measured: u64,
    replied: HashSet<u64>,
    /// None where there is no way back.
    replies: Option<Departing>,
    /// Bytes of replies per nanosecond, where they are bounded, and how many may be sent now.
    reply_rate: Option<f64>,
    allowance: f64,
    allowed_at: Nanos,
}

impl Listener<'_> {
    fn take(&mut self, batch: Batch<'_>) -> io::Result<()> {
        let mut requests: Vec<(Probe, u64, &[u8])> = Vec::new();
        for datagram in batch.datagrams() {
            let Some((probe, arrived)) = read(&datagram, self.options.key, self.clock) else {
                self.found.strangers += 1;
                continue;
            };
            match probe.kind {
                Kind::Data => self.take_data(&probe, arrived),
                Kind::Request => match datagram.bytes.get(REPLY_LEN..) {
                    Some(rest) => requests.push((probe, arrived, rest)),
                    // Its reply would be longer.
                    None => self.found.strangers += 1,
                },
                Kind::Reply {
                    arrived: there,
                    replied,
                } => {
                    let times = Exchange {
                        departed: probe.departed,
                        arrived: there,
                        replied,
                        returned: arrived,
                    };
                    self.take_reply(probe.sequence, times);
                }
            }
        }
        self.answer(&requests)
    }

    #[inline]
    fn take_data(&mut self, probe: &Probe, arrived: u64) {
        self.windows
            .arrived(probe.sequence, probe.departed, arrived);
        let records = &mut self.found.records;
        if let Some(keep) = &self.options.test.keep
            && self.seen >= keep.skip
            && (records.len() as u64) < keep.limit
        {
            records.push(Record(probe.sequence, probe.departed, arrived));
        }
        self.seen += 1;
    }

    fn take_reply(&mut self, sequence: u64, times: Exchange) {
        let round_trips = &mut self.found.round_trips;
        if round_trips.len() >= MAX_ROUND_TRIPS || !self.replied.insert(sequence) {
            self.found.repeated_replies += 1;
        } else {
            round_trips.push(RoundTrip { sequence, times });
            self.replies_measured += u64::from(sequence < CLOCK_FROM);
        }
    }

    /// A reply is as long as its request, so that no more goes back than came, and no more than may.
    fn answer(&mut self, requests: &[(Probe, u64, &[u8])]) -> io::Result<()> {
        let Some(replies) = &mut self.replies else {
            return Ok(());
        };
        let mut pieces = Pieces::default();
        for (request, arrived, rest) in requests {
            if let Some(rate) = self.reply_rate {
                let now = self.clock.now();
                let since = now.since(std::mem::replace(&mut self.allowed_at, now)).0 as f64;
                let most = rate * REPLIES_AT_ONCE.0 as f64;
                self.allowance = (self.allowance + rate * since).min(most.max(MAX_REPLY));
                let length = (REPLY_LEN + rest.len()) as f64;
                if self.allowance < length {
                    continue;
                }
                self.allowance -= length;
            }
            let reply = Probe {
                kind: Kind::Reply {
                    arrived: *arrived,
                    replied: self.clock.utc(),
                },
                ..*request
            };
            let mut train = pieces.begin();
            train.push(Head::from(&reply.to_bytes()[..]), rest);
            replies.send(&train, self.clock.now())?;
        }
        Ok(())
    }
}

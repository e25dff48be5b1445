//! Processing of received datagrams: data is counted, requests are answered, replies become round trips.

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

/// First number of clock requests, which are not part of the measurement.
pub const CLOCK_FROM: u64 = 1 << 62;
/// Maximum number of round trips that are kept.
const MAX_ROUND_TRIPS: usize = 1 << 20;
/// Maximum wait for missing datagrams after a stop.
const HASTE: Nanos = Nanos(300_000_000);
/// Wait for duplicates after the stream is complete.
const LINGER: Nanos = Nanos(20_000_000);
/// Limited replies may be sent ahead by this time. A reply of the maximum length is always allowed.
const REPLIES_AT_ONCE: Nanos = Nanos(100_000_000);
const MAX_REPLY: f64 = 65_535.0;

/// Progress of a listener, for other threads; and their requests to it.
#[derive(Default)]
pub struct Heard {
    /// Distinct datagrams of the stream so far.
    pub unique: AtomicU64,
    /// The number after the highest that has arrived.
    pub reached: AtomicU64,
    /// Replies to measured requests so far.
    pub replies: AtomicU64,
    /// Replies to clock requests so far: from [`CLOCK_FROM`] on.
    pub clock: AtomicU64,
    used: AtomicU64,
    /// Total number, plus one; 0 as long as it is unknown.
    sent: AtomicU64,
    is_in_haste: AtomicBool,
    stop: AtomicBool,
    /// Event that wakes a simulated listener.
    places: [Arc<Place>; 1],
}

impl Heard {
    /// Sets the total number that the other endpoint has sent: listening ends when these have arrived, or at the loss timeout.
    pub fn sent(&self, count: u64) {
        self.sent.store(count.saturating_add(1), Ordering::Release);
        self.places[0].happens(Nanos(0));
    }

    fn all_sent(&self) -> Option<u64> {
        self.sent.load(Ordering::Acquire).checked_sub(1)
    }

    /// Notes the number that the other endpoint has sent so far.
    pub fn used(&self, count: u64) {
        self.used.fetch_max(count, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }

    /// Limits the wait for missing datagrams to 0.3 s.
    pub fn make_haste(&self) {
        self.is_in_haste.store(true, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }

    /// Returns whether listening has ended, or is about to.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Stops listening at once.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.places[0].happens(Nanos(0));
    }
}

/// Options of a listener.
#[derive(Clone, Debug)]
pub(super) struct ListenOptions {
    /// The test.
    pub test: Test,
    /// The key of its datagrams.
    pub key: u64,
    /// Maximum number of datagrams of the stream; 0 for no stream.
    pub count: u64,
    /// Maximum rate of replies, in bits per second.
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

/// A settled window of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its number, from 0 on.
    pub number: u64,
    /// Counts of its datagrams.
    pub tallied: Tallied,
    /// Messages that the socket dropped since the previous window was settled.
    pub socket_drops: u64,
    /// Maximum number of datagrams in one message since then.
    pub most_joined: u64,
}

/// Final report of a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listened {
    /// Counts of the stream, or of its last window; empty without a stream.
    pub tallied: Tallied,
    /// Messages that the socket dropped, as the kernel counts: joined datagrams count once.
    pub socket_drops: u64,
    /// Maximum number of datagrams in one message.
    pub most_joined: u64,
    /// Datagrams that do not belong to this test.
    pub strangers: u64,
    /// Granted receive buffer of the socket.
    pub buffer: Option<GrantedBuffer>,
    /// Datagrams that were kept one by one.
    pub records: Vec<Record>,
    /// Replies, one per number.
    #[serde(skip)]
    pub round_trips: Vec<RoundTrip>,
    /// Further replies to the same number.
    pub repeated_replies: u64,
    /// CPU time of the listening thread, in seconds.
    pub cpu_seconds: f64,
}

/// Listens until the stream is complete, until the loss timeout after its size was set, or until it is stopped. Uses the current thread.
///
/// # Errors
/// The system's error at the socket.
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
        windows: Windows::new(options.count, test.window, test.timeout, test.bin_width),
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
        // Checked before the socket: what arrived before the stop is read first.
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
            settling.mark(listener.windows.next(), || drops(incoming));
        }
        let used = heard.used.load(Ordering::Relaxed);
        if let Some(used) = settling.settled(used, now, test.timeout) {
            while !stop && let Some((number, tallied)) = listener.windows.close(used) {
                let most_joined = std::mem::take(&mut most_joined);
                let drops = drops(incoming);
                let _ = settled.send(settling.window(number, tallied, drops, most_joined));
            }
        }
        if let Some(sent) = sent {
            let since = *told.get_or_insert(now);
            // The last datagrams may be duplicated.
            let is_complete = listener.windows.unique() >= sent && now.since(last) >= LINGER;
            let timeout = match heard.is_in_haste.load(Ordering::Relaxed) {
                true => test.timeout.min(HASTE),
                false => test.timeout,
            };
            // What the socket still holds arrived in time.
            let is_over = is_empty && now.since(since) >= timeout;
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
                settling.next(test.timeout),
                told.map(|_| last.plus(LINGER)),
                told.map(|since| since.plus(test.timeout.min(HASTE))),
                told.map(|since| since.plus(test.timeout)),
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
    // For other threads.
    heard.stop();
    Ok(Listened {
        tallied: last.unwrap_or_else(|| Tally::new(0, test.timeout, None).finish(0)),
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
    /// Numbers used, and the time at which that became known.
    told: VecDeque<(u64, Nanos)>,
    /// Drops of the socket when the first datagram of a window arrived.
    marks: VecDeque<(u64, u64)>,
    /// Drops of the socket at the end of the last settled window.
    drops: u64,
}

/// Returns the messages that the socket has dropped.
fn drops(incoming: &mut dyn Incoming) -> u64 {
    let known = incoming.drops_reported();
    incoming.drops().unwrap_or(known)
}

impl Settling {
    /// Notes that the windows before this one have started; the socket's drops until then are theirs.
    fn mark(&mut self, next: u64, drops: impl FnOnce() -> u64) {
        if self.marks.back().is_none_or(|(last, _)| *last < next) {
            self.marks.push_back((next, drops()));
        }
    }

    /// Returns a window with the socket's drops from its first datagram to that of the next, if that has arrived. `drops` is their total so
    /// far.
    fn window(&mut self, number: u64, tallied: Tallied, drops: u64, most_joined: u64) -> Window {
        // The mark of window n is set when n + 1 is the next.
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

    /// Returns the time at which the next numbers are settled.
    fn next(&self, timeout: Nanos) -> Option<Nanos> {
        self.told.front().map(|(_, at)| at.plus(timeout))
    }

    /// Returns how many numbers have passed the loss timeout, if that has changed.
    fn settled(&mut self, used: u64, now: Nanos, timeout: Nanos) -> Option<u64> {
        if self.told.back().is_none_or(|(last, _)| *last < used) {
            self.told.push_back((used, now));
        }
        let is_old = |told: &&(u64, Nanos)| now.since(told.1) >= timeout;
        let old = self.told.iter().take_while(is_old).count();
        self.told.drain(..old).next_back().map(|(used, _)| used)
    }
}

struct Listener<'a> {
    options: &'a ListenOptions,
    clock: &'a Clock,
    windows: Windows,
    /// Datagrams of the stream, in the order of arrival.
    seen: u64,
    /// Counts, and datagrams kept one by one.
    found: Listened,
    replies_measured: u64,
    replied: HashSet<u64>,
    /// `None` if there is no return direction.
    replies: Option<Departing>,
    /// Maximum rate of replies in bytes per nanosecond, and the bytes that may be sent now.
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

    /// Answers requests. A reply is as long as its request, so that no more is returned than was received, or is allowed.
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

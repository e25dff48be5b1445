//! Sending of a test's streams and requests.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evlbi_core::account::{Distribution, Summary};
use evlbi_core::pace::{CatchUp, Pacer, Slips};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::cpu::{self, Waiting};
use evlbi_net::transport::{Head, Pieces};
use evlbi_net::udp::SendCounts;
use evlbi_wire::fill;
use evlbi_wire::probe::{HEADER_LEN, Kind, Probe};
use serde::{Deserialize, Serialize};

use super::port::Departing;
use super::{Requests, Test};
use crate::measure::{Spacing, Stream};

/// Datagrams per burst if they leave as fast as the host can.
const AT_ONCE: u32 = 64;
/// Maximum delay that is caught up if a rate is requested.
const MAX_LAG: Nanos = Nanos(10_000_000);
/// Maximum excess of the rate over the requested one, in per cent: less than the step between rates that are tested in turn.
const PERCENT: u32 = 2;
/// Time from now to the first departure, so that it is not late.
const READY: Nanos = Nanos(1_000_000);

/// Progress of a sender, for other threads.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// Numbers of the stream used so far.
    pub used: AtomicU64,
    /// Numbers of these that were not sent because the kernel refused the datagrams.
    pub not_sent: AtomicU64,
    /// Requests that left, of the last batch.
    pub asked: AtomicU64,
    /// Set by any thread to end it.
    pub stop: AtomicBool,
}

/// Final report of a stream's sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Departed {
    /// Numbers used: datagrams that left, and those that the kernel refused.
    pub used: u64,
    /// Results of the sends.
    pub counts: SendCounts,
    /// From the first departure to the end of the last one's interval, in seconds.
    pub seconds: f64,
    /// Times between departures, or between bursts, in nanoseconds.
    pub spacing: Option<Summary>,
    /// Delay of the schedule because this host fell behind.
    pub slips: Slips,
    /// CPU time of the sending thread, in seconds.
    pub cpu_seconds: f64,
    /// Reason for an early end.
    pub stopped: Option<String>,
}

/// Sends a stream of a test, each datagram or burst at its time, at most 2 % faster than requested. With a requested spacing, a delay above
/// this shifts all later ones; with a requested rate, up to 10 ms are caught up.
///
/// # Errors
/// The system's error if nothing can be sent at all.
pub(super) fn transmit(
    sender: &mut Departing,
    key: u64,
    stream: &Stream,
    test: &Test,
    departures: &Departures,
    clock: &Clock,
) -> io::Result<Departed> {
    cpu::sharpen_timers()?;
    let cpu_before = clock.thread_time();
    let mut body = vec![0; stream.size - HEADER_LEN];
    fill::make(&mut body);
    let spaced = stream.rate().is_some();
    let burst = if spaced { stream.burst } else { AT_ONCE };
    let span = stream.due(u64::from(stream.burst));
    let start = clock.now().plus(READY).plus(test.delay);
    let end = start.plus(test.max_time);
    let max_lag = match stream.spacing {
        Spacing::Nanoseconds(_) => span,
        Spacing::BitsPerSecond(_) => MAX_LAG.max(span),
    };
    let catch_up = CatchUp {
        max_lag,
        percent: PERCENT,
    };
    let mut pacer = Pacer::new(start, catch_up);
    let mut spacing = Distribution::new(test.bin_width);
    let (mut used, mut first, mut last) = (0, None, Nanos(0));
    let before = sender.counts();
    let mut pieces = Pieces::default();
    while used < stream.count && !departures.stop.load(Ordering::Relaxed) {
        let due = stream.due(used);
        let moment = spaced.then(|| pacer.departure(due));
        let now = wait(moment.unwrap_or_default(), &departures.stop, clock);
        if now >= end {
            break;
        }
        let departed = clock.utc();
        let mut train = pieces.begin();
        for sequence in used..stream.count.min(used + u64::from(burst)) {
            let probe = Probe {
                kind: Kind::Data,
                key,
                sequence,
                departed,
            };
            train.push(Head::from(&probe.to_bytes()[..HEADER_LEN]), &body);
        }
        used += train.len() as u64;
        sender.send(&train, clock.now())?;
        pacer.left(now, due, span);
        match first {
            None => first = Some(now),
            Some(_) => spacing.add(i64::try_from(now.since(last).0).unwrap_or(i64::MAX)),
        }
        last = now;
        departures.used.store(used, Ordering::Relaxed);
        let not_sent = sender.counts().not_sent() - before.not_sent();
        departures.not_sent.store(not_sent, Ordering::Relaxed);
    }
    let has_been_stopped = departures.stop.load(Ordering::Relaxed);
    let end = last.plus(span).max(clock.now());
    Ok(Departed {
        used,
        counts: sender.counts().since(&before),
        seconds: end.since(first.unwrap_or(end)).as_secs_f64(),
        spacing: spacing.summary(),
        slips: pacer.slips(),
        cpu_seconds: clock.thread_time().since(cpu_before).as_secs_f64(),
        stopped: (used < stream.count && (stream.count < u64::MAX || has_been_stopped))
            .then(|| format!("sending ended after {used} datagrams")),
    })
}

/// Waits for a time, in steps so that a stop is noticed; returns the time then.
fn wait(moment: Nanos, stop: &AtomicBool, clock: &Clock) -> Nanos {
    const PIECE: Nanos = Nanos(50_000_000);
    loop {
        let now = clock.now();
        if now.plus(PIECE) >= moment || stop.load(Ordering::Relaxed) {
            return clock.wait_until(moment.min(now.plus(PIECE)), Waiting::SleepThenSpin);
        }
        clock.wait_until(now.plus(PIECE), Waiting::Sleep);
    }
}

/// Sends requests, numbered from `first`; replies arrive at the listener.
///
/// # Errors
/// The system's error if nothing can be sent at all.
pub(super) fn ping(
    sender: &mut Departing,
    key: u64,
    first: u64,
    requests: &Requests,
    departures: &Departures,
    clock: &Clock,
) -> io::Result<()> {
    cpu::sharpen_timers()?;
    let mut body = vec![0; requests.size.saturating_sub(HEADER_LEN)];
    fill::make(&mut body);
    let mut moment = clock.now();
    let mut pieces = Pieces::default();
    departures.asked.store(0, Ordering::Relaxed);
    for sequence in first..first.saturating_add(requests.count) {
        if departures.stop.load(Ordering::Relaxed) {
            break;
        }
        wait(moment, &departures.stop, clock);
        let probe = Probe {
            kind: Kind::Request,
            key,
            sequence,
            departed: clock.utc(),
        };
        let mut train = pieces.begin();
        train.push(Head::from(&probe.to_bytes()[..HEADER_LEN]), &body);
        sender.send(&train, clock.now())?;
        departures.asked.fetch_add(1, Ordering::Relaxed);
        moment = moment.plus(requests.apart);
    }
    Ok(())
}

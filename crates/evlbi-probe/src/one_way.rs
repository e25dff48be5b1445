//! Tests of a path without a return direction: both endpoints are started by hand with the same plan, without negotiation.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use evlbi_core::pace::Slips;
use evlbi_core::time::Nanos;
use evlbi_net::responder;
use evlbi_net::run::Run;
use evlbi_net::udp::{OpenError, SendCounts};

use super::session::{POLL_INTERVAL, Progress, Target, TestReport};
use crate::endpoint::{Departed, EndpointReport, Listened, Port, Test, Work, WorkError};
use crate::measure::{Stream, Token};

/// Silence after the calculated end of a stream, after which the receiver ends it.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Timeout for a later point of a sweep, in addition to its length.
const LATE: Duration = Duration::from_secs(15);

/// Reason why an endpoint of a one-way test fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OneWayError {
    /// The address to send to, or to receive at, is unknown.
    #[error("cannot find the address `{target}`")]
    Unknown {
        /// Address as given by the user.
        target: String,
        /// The system's error.
        source: io::Error,
    },
    /// The name has no address.
    #[error("`{0}` has no address")]
    NoAddress(String),
    /// The test has no stream to receive.
    #[error("nothing to receive")]
    NoStream,
    /// There is no socket.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// This endpoint failed.
    #[error("{0}")]
    Work(#[from] WorkError),
}

/// Returns the key that both endpoints derive from the token and the plan.
fn key(token: &Token, stream: &Stream) -> u64 {
    token.key(&format!("{stream:?}"))
}

fn address_of(target: &str) -> Result<SocketAddr, OneWayError> {
    let name = || target.to_owned();
    let found = responder::look_up(target).map_err(|source| OneWayError::Unknown {
        target: name(),
        source,
    })?;
    found
        .first()
        .copied()
        .ok_or_else(|| OneWayError::NoAddress(name()))
}

/// Sends a stream; returns the local report.
pub fn send(
    target: &Target,
    test: &Test,
    stream: &Stream,
    run: &Run,
    show: &mut dyn FnMut(&Progress),
) -> Result<EndpointReport, OneWayError> {
    let to = address_of(&target.address)?;
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let local = SocketAddr::new(target.bind.unwrap_or(any), 0);
    let port = Port::open(local, test, target.device.clone(), run)?;
    let key = key(&target.token, stream);
    let mut work = Work::begin(port, Some(to), key, None, test, None, run)?;
    work.observe()?;
    work.send(*stream, test)?;
    let clock = run.clock();
    let begun = clock.now();
    while !work.has_sent()? {
        if run.is_stopped() {
            work.stop_sending();
        }
        show(&Progress {
            used: work.used(),
            seconds: clock.now().since(begun).as_secs_f64(),
            ..Progress::default()
        });
        clock.sleep(POLL_INTERVAL);
    }
    Ok(work.finish()?)
}

/// Receives a stream, whose length is known only from the plan. Returns the reports of both endpoints, as if there were a responder; the
/// sender's is calculated from the plan.
pub fn receive(
    target: &Target,
    test: &Test,
    is_first: bool,
    run: &Run,
    show: &mut dyn FnMut(&Progress),
) -> Result<TestReport, OneWayError> {
    let stream = test.there.as_ref().ok_or(OneWayError::NoStream)?;
    let peer = address_of(&target.address)?;
    let port = Port::open(peer, test, target.device.clone(), run)?;
    let here = port.local_address();
    let key = key(&target.token, stream);
    let mut work = Work::begin(port, None, key, Some(stream), test, None, run)?;
    work.observe()?;
    if is_first {
        run.listens(&here);
    }
    let clock = run.clock();
    let listening = clock.now();
    let length = Nanos(stream.duration().0.saturating_add(test.timeout.0));
    let (mut heard, mut begun, mut last) = (0, None, listening);
    while !work.has_heard() {
        let unique = work.heard().unique.load(Ordering::Relaxed);
        let now = clock.now();
        if unique > heard {
            (heard, last) = (unique, now);
            begun.get_or_insert(last);
        }
        let is_over = match begun {
            Some(begun) => now.since(begun) > length && now.since(last) > SILENCE.into(),
            // The first may start at any time; a later one may not arrive at all.
            None => !is_first && now.since(listening) > length.plus(LATE.into()),
        };
        if unique >= stream.count || is_over {
            work.heard().sent(stream.count);
        } else if run.is_stopped() {
            work.make_haste();
            // Later datagrams have an unknown fate.
            work.heard()
                .sent(work.heard().reached.load(Ordering::Relaxed));
        }
        show(&Progress {
            arrived_here: unique,
            seconds: begun.map_or(0.0, |begun| now.since(begun).as_secs_f64()),
            ..Progress::default()
        });
        clock.sleep(POLL_INTERVAL);
    }
    let there = work.finish()?;
    Ok(TestReport {
        here: planned(stream, &there),
        there,
        peer,
        clock: Vec::new(),
        requests: 0,
        stopped: run.is_stopped().then(|| "interrupted".to_owned()),
    })
}

/// Returns the report of a sender that has followed its plan.
fn planned(stream: &Stream, receiver: &EndpointReport) -> EndpointReport {
    let count = receiver.listened.tallied.sent;
    let departed = receiver.listened.tallied.departed;
    let of_stream = departed.filter(|[first, last]| last.0 > first.0);
    let seconds = of_stream.map(|[first, last]| {
        let apart = (last.1.saturating_sub(first.1)) as f64 / (last.0 - first.0) as f64;
        apart * count as f64 * 1e-9
    });
    EndpointReport {
        departed: Some(Departed {
            used: count,
            counts: SendCounts {
                sent: count,
                messages: count.div_ceil(u64::from(stream.burst)),
                bytes: count.saturating_mul(stream.size as u64),
                ..SendCounts::default()
            },
            seconds: seconds.unwrap_or_else(|| stream.duration().as_secs_f64()),
            spacing: None,
            slips: Slips::default(),
            cpu_seconds: 0.0,
            stopped: None,
        }),
        listened: Listened {
            records: Vec::new(),
            round_trips: Vec::new(),
            ..receiver.listened.clone()
        },
        ..EndpointReport::default()
    }
}

//! Publishes the status of a live correlation.

use std::convert::Infallible;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evlbi_net::clock::Clock;
use evlbi_net::receive;
use evlbi_net::run::Run;
use evlbi_stream::control_socket::{Baseline, Rate, Receiving, Status};
use parking_lot::Mutex;

use super::feed::Feed;
use super::stream::Stream;

/// Poll interval of the streams.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The streams of a live correlation and its last results, for watching threads.
pub struct Watch {
    streams: Vec<Watched>,
    clock: Clock,
    /// Names of the stations, once known; `None` of a stream that is left out.
    pub(super) names: OnceLock<Vec<Option<String>>>,
    /// The last integration of each baseline.
    pub(super) baselines: Mutex<Vec<Baseline>>,
}

struct Watched {
    watch: Arc<receive::Watch>,
    feed: Arc<Feed>,
    rate: Mutex<Rate>,
}

impl Watch {
    pub(super) fn new(streams: &[Stream], clock: &Clock) -> Watch {
        let watched = streams.iter().map(|stream| Watched {
            watch: Arc::clone(&stream.watch),
            feed: Arc::clone(&stream.feed),
            rate: Mutex::new(Rate::from(clock.now())),
        });
        Watch {
            streams: watched.collect(),
            clock: clock.clone(),
            names: OnceLock::new(),
            baselines: Mutex::default(),
        }
    }

    /// Makes the receivers publish their counters, so that those of [`tell`](Watch::tell) are current.
    pub fn refresh(&self) {
        let watches = self.streams.iter().map(|stream| &stream.watch);
        receive::Watch::refresh(watches, &self.clock);
    }

    /// Writes the state of the streams and baselines into `status`; counters are at most 100 ms old.
    pub fn tell(&self, status: &mut Status) {
        let newest: Vec<Option<f64>> = self.streams.iter().map(|s| s.feed.newest()).collect();
        let front = front(&newest);
        let of = |(number, stream): (usize, &Watched)| Receiving {
            station: self.names.get().and_then(|names| names[number].clone()),
            skew_s: newest[number].map(|newest| front - newest),
            ..Receiving::of(stream.watch.last(), stream.rate.lock().last())
        };
        status.receiving = self.streams.iter().enumerate().map(of).collect();
        self.baselines.lock().clone_into(&mut status.baselines);
    }

    /// Polls the streams once a second until `over` is dropped, even by a panic.
    pub(super) fn poll_until(&self, over: &mpsc::Receiver<Infallible>, run: &Run) {
        let next = || self.clock.now().plus(POLL_INTERVAL.into());
        while let Err(RecvTimeoutError::Timeout) = self.clock.receive_by(over, next()) {
            self.poll(run, false);
        }
    }

    /// Polls the streams; `have_ended` marks the last time.
    pub(super) fn poll(&self, run: &Run, have_ended: bool) {
        let time = self.clock.now();
        for (number, stream) in self.streams.iter().enumerate() {
            if have_ended {
                *stream.rate.lock() = Rate::from(time);
            } else {
                stream.rate.lock().of(stream.watch.last().bytes, time);
            }
            let late = stream.feed.state().late();
            let (host, now) = (stream.feed.host(), stream.feed.now());
            let report = stream.feed.clocks().report(number, late, host, now);
            if let Some(report) = report {
                match self.names.get().and_then(|names| names[number].as_ref()) {
                    Some(name) => run.say(format_args!("{name}: {report}")),
                    None => run.say(format_args!("stream {}: {report}", number + 1)),
                }
            }
        }
    }
}

/// Returns the newest time of all.
pub(super) fn front(newest: &[Option<f64>]) -> f64 {
    let times = newest.iter().flatten().copied();
    times.fold(f64::NEG_INFINITY, f64::max)
}

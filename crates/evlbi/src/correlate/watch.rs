//! How the streams of a live correlation are, for those who watch it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use evlbi_net::receive;
use evlbi_net::run::Run;
use parking_lot::Mutex;

use super::feed::{Feed, now};
use super::live::Stream;
use crate::steer::{Baseline, Receiving, Status};

/// How often the streams are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The streams of a live correlation and what it found last, for threads that watch it.
pub struct Watch {
    streams: Vec<Watched>,
    /// The stations' names, when they are known.
    pub(super) names: OnceLock<Vec<String>>,
    /// The last integration of each baseline.
    pub(super) baselines: Mutex<Vec<Baseline>>,
    /// Bits of data a second of each stream.
    rates: Mutex<Vec<f64>>,
}

struct Watched {
    watch: Arc<receive::Watch>,
    feed: Arc<Feed>,
}

impl Watch {
    pub(super) fn new(streams: &[Stream]) -> Watch {
        let watched = streams.iter().map(|stream| Watched {
            watch: stream.receiving.watch(),
            feed: Arc::clone(&stream.feed),
        });
        Watch {
            streams: watched.collect(),
            names: OnceLock::new(),
            baselines: Mutex::default(),
            rates: Mutex::new(vec![0.0; streams.len()]),
        }
    }

    /// Has the receivers write their counters down: those of [`tell`](Watch::tell) are then of this moment.
    pub fn refresh(&self) {
        receive::Watch::refresh(self.streams.iter().map(|stream| &*stream.watch));
    }

    /// Writes down how the streams and the baselines are; counters are at most 100 ms old.
    pub fn tell(&self, status: &mut Status) {
        let newest: Vec<Option<f64>> = self.streams.iter().map(|s| s.feed.newest()).collect();
        let front = front(&newest);
        let of = |((number, stream), rate): ((usize, &Watched), &f64)| Receiving {
            station: self.names.get().map(|names| names[number].clone()),
            skew_s: newest[number].map(|newest| front - newest),
            ..Receiving::of(stream.watch.last(), *rate)
        };
        let streams = self.streams.iter().enumerate();
        let rates = self.rates.lock().clone();
        status.receiving = streams.zip(&rates).map(of).collect();
        self.baselines.lock().clone_into(&mut status.baselines);
    }

    /// Looks at the streams once a second, and a last time when it is over.
    fn look(&self, run: &Run, is_over: &AtomicBool) {
        let mut before = Instant::now();
        let mut bytes = vec![0; self.streams.len()];
        loop {
            let has_ended = is_over.load(Ordering::Relaxed);
            let elapsed = before.elapsed();
            if elapsed < LOOK && !has_ended {
                std::thread::park_timeout(LOOK.saturating_sub(elapsed));
                continue;
            }
            before = Instant::now();
            for (number, stream) in self.streams.iter().enumerate() {
                let now_has = stream.watch.last().bytes;
                let came = now_has.saturating_sub(std::mem::replace(&mut bytes[number], now_has));
                self.rates.lock()[number] = match has_ended {
                    true => 0.0,
                    false => came as f64 * 8.0 / elapsed.as_secs_f64(),
                };
                let host = evlbi_net::cpu::utc() as f64 * 1e-9 - stream.feed.epoch();
                let late = stream.feed.state().late();
                let report = stream.feed.clocks().report(number, late, host, now());
                if let Some(report) = report {
                    let name = self
                        .names
                        .get()
                        .and_then(|names| names.get(number).cloned());
                    let name = name.unwrap_or_else(|| format!("stream {}", number + 1));
                    run.say(format_args!("{name}: {report}"));
                }
            }
            if has_ended {
                return;
            }
        }
    }
}

/// The newest time of all.
pub(super) fn front(newest: &[Option<f64>]) -> f64 {
    let times = newest.iter().flatten().copied();
    times.fold(f64::NEG_INFINITY, f64::max)
}

/// Looks at the streams, whatever the correlator waits for, until it is dropped.
pub(super) struct Looking {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looking {
    pub(super) fn start(watch: &Arc<Watch>, run: &Run) -> Result<Looking> {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("status".into()).spawn({
            let (watch, run, is_over) = (Arc::clone(watch), run.clone(), Arc::clone(&is_over));
            move || watch.look(&run, &is_over)
        })?;
        Ok(Looking {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to say but what it has told.
            let _ = thread.join();
        }
    }
}

//! Writes down how the streams of a live run are while the correlator waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use evlbi_net::receive;

use super::feed::{Feed, now};
use super::live::Stream;
use crate::steer;

/// How often it is told how the streams are.
const LOOK: Duration = Duration::from_secs(1);

/// Writes down once a second how the streams are, whatever the correlator waits for; and once more at the end.
pub(super) struct Teller {
    /// The stations' names, when they are known.
    pub(super) names: Arc<OnceLock<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    pub(super) fn start(streams: &[Stream]) -> Result<Teller> {
        let names = Arc::new(OnceLock::new());
        let is_over = Arc::new(AtomicBool::new(false));
        let watched: Vec<Watched> = streams
            .iter()
            .map(|stream| Watched {
                watch: stream.receiving.watch(),
                feed: Arc::clone(&stream.feed),
                bytes: 0,
            })
            .collect();
        steer::on_status({
            let (watched, names) = (watched.clone(), Arc::clone(&names));
            move || {
                receive::Watch::refresh(watched.iter().map(|stream| &*stream.watch));
                tell_streams(&watched, &names, |_, _, before| before);
            }
        });
        let thread = std::thread::Builder::new().name("status".into()).spawn({
            let (names, is_over) = (Arc::clone(&names), Arc::clone(&is_over));
            move || watch(watched, &names, &is_over)
        })?;
        Ok(Teller {
            names,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to say but what it has told.
            let _ = thread.join();
        }
    }
}

/// A stream, and the bytes that it had when it was looked at last.
#[derive(Clone)]
struct Watched {
    watch: Arc<receive::Watch>,
    feed: Arc<Feed>,
    bytes: u64,
}

fn watch(mut streams: Vec<Watched>, names: &OnceLock<Vec<String>>, is_over: &AtomicBool) {
    let mut before = Instant::now();
    loop {
        let has_ended = is_over.load(Ordering::Relaxed);
        let elapsed = before.elapsed();
        if elapsed < LOOK && !has_ended {
            std::thread::park_timeout(LOOK.saturating_sub(elapsed));
            continue;
        }
        before = Instant::now();
        let rate = |stream: &Watched, live: &receive::Live, _| match has_ended {
            true => 0.0,
            false => live.bytes.saturating_sub(stream.bytes) as f64 * 8.0 / elapsed.as_secs_f64(),
        };
        let bytes = tell_streams(&streams, names, rate);
        for (number, stream) in streams.iter().enumerate() {
            let host = evlbi_net::cpu::utc() as f64 * 1e-9 - stream.feed.epoch();
            let late = stream.feed.state().late();
            let report = stream.feed.clocks().report(number, late, host, now());
            if let Some(report) = report {
                let name = names.get().and_then(|names| names.get(number).cloned());
                let name = name.unwrap_or_else(|| format!("stream {}", number + 1));
                say!("evlbi: {name}: {report}");
            }
        }
        if has_ended {
            return;
        }
        for (stream, bytes) in streams.iter_mut().zip(bytes) {
            stream.bytes = bytes;
        }
    }
}

/// Writes down how the streams are; `rate` is given the rate of before. Returns the bytes of each.
fn tell_streams(
    streams: &[Watched],
    names: &OnceLock<Vec<String>>,
    rate: impl Fn(&Watched, &receive::Live, f64) -> f64,
) -> Vec<u64> {
    let newest: Vec<Option<f64>> = streams.iter().map(|s| s.feed.newest()).collect();
    let front = newest
        .iter()
        .flatten()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max);
    let mut bytes = Vec::new();
    steer::tell(|status| {
        // Read here, so that no older counters take the place of newer ones.
        let lives: Vec<receive::Live> = streams.iter().map(|stream| stream.watch.last()).collect();
        bytes.extend(lives.iter().map(|live| live.bytes));
        let of = |number: usize| {
            let (stream, live) = (&streams[number], &lives[number]);
            let before = status.receiving.get(number);
            let before = before.map_or(0.0, |before| before.rate_bps);
            steer::Receiving {
                station: names.get().map(|names| names[number].clone()),
                skew_s: newest[number].map(|newest| front - newest),
                ..steer::Receiving::of(live, rate(stream, live, before))
            }
        };
        status.receiving = (0..streams.len()).map(of).collect();
    });
    bytes
}

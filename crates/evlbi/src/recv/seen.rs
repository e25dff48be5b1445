//! What is seen of a receiver while it lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evlbi_core::time::Nanos;
use evlbi_net::receive::{Live, Watch};
use evlbi_net::run::Run;
use parking_lot::Mutex;

use super::RecvOptions;
use crate::steer::{self, Rate, Receiving as Status, Watched};
use crate::units::{show_count, show_rate};
use crate::url::Scheme;

/// A receiver for those that watch it.
pub struct Seen {
    counts: Counts,
    options: RecvOptions,
    run: Run,
    begun: Nanos,
    rate: Mutex<Rate>,
}

enum Counts {
    Datagrams(Arc<Watch>),
    Bytes(Arc<Bytes>),
}

/// What has come over TCP.
#[derive(Default)]
pub struct Bytes {
    pub count: AtomicU64,
    pub has_ended: AtomicBool,
}

impl Seen {
    /// Of a stream of datagrams.
    pub fn datagrams(watch: Arc<Watch>, options: RecvOptions, run: &Run) -> Seen {
        Seen::new(Counts::Datagrams(watch), options, run)
    }

    /// Of a stream of bytes.
    pub fn bytes(bytes: Arc<Bytes>, options: RecvOptions, run: &Run) -> Seen {
        Seen::new(Counts::Bytes(bytes), options, run)
    }

    fn new(counts: Counts, options: RecvOptions, run: &Run) -> Seen {
        let begun = run.clock().now();
        Seen {
            counts,
            options,
            run: run.clone(),
            begun,
            rate: Mutex::new(Rate::from(begun)),
        }
    }

    /// How the receiver is.
    pub fn status(&self) -> Status {
        match &self.counts {
            Counts::Datagrams(watch) => {
                let has_ended = watch.has_ended();
                let live = watch.last();
                Status::of(&live, self.rate(live.bytes, has_ended))
            }
            Counts::Bytes(bytes) => {
                let count = bytes.count.load(Ordering::Relaxed);
                let rate_bps = match bytes.has_ended.load(Ordering::Relaxed) {
                    true => 0.0,
                    false => self.rate(count, false),
                };
                Status {
                    is_streaming: rate_bps > 0.0,
                    rate_bps,
                    bytes: count,
                    ..Status::default()
                }
            }
        }
    }

    /// Bits of data a second, as last measured if it has ended.
    fn rate(&self, bytes: u64, has_ended: bool) -> f64 {
        let mut rate = self.rate.lock();
        match has_ended {
            true => rate.last(),
            false => rate.of(bytes, self.run.clock().now()),
        }
    }

    fn line_of(&self, live: &Live) -> String {
        let counters = &live.counters;
        if counters.received == 0 {
            return match nothing_but(live.foreign + live.undecided, &self.options) {
                Some(others) => format!("waiting for a stream: {others}"),
                None => "waiting for a stream".into(),
            };
        }
        let share = counters.lost as f64 * 100.0 / counters.expected.max(1) as f64;
        format!(
            "{}  lost {} ({share:.3} %)  ring {:.0} %{}",
            show_rate(self.rate.lock().last()),
            show_count(counters.lost),
            live.ring_fill * 100.0,
            if live.streaming { "" } else { "  silent" },
        )
    }
}

impl Watched for Seen {
    fn refresh(&self) {
        if let Counts::Datagrams(watch) = &self.counts {
            Watch::refresh([&**watch]);
        }
    }

    fn tell(&self, status: &mut steer::Status) {
        status.receiving = vec![self.status()];
    }

    fn progress(&self) -> (u64, Option<u64>) {
        let millis = |span: Nanos| span.0 / 1_000_000;
        let total = self.options.duration.map(Nanos::from).map(millis);
        (millis(self.run.clock().now().since(self.begun)), total)
    }

    fn line(&self) -> String {
        match &self.counts {
            Counts::Datagrams(watch) => self.line_of(&watch.last()),
            Counts::Bytes(bytes) if bytes.count.load(Ordering::Relaxed) == 0 => {
                "waiting for a stream".into()
            }
            Counts::Bytes(_) => show_rate(self.rate.lock().last()),
        }
    }
}

/// What came where no stream did, and what may be the cause.
pub fn nothing_but(datagrams: u64, options: &RecvOptions) -> Option<String> {
    let count = show_count(datagrams);
    match options.from.scheme {
        _ if datagrams == 0 => None,
        _ if options.source.is_some() => Some(format!(
            "{count} datagrams arrived, but they are not from --source, or no stream of it"
        )),
        Scheme::Pudp => Some(format!(
            "{count} datagrams arrived, but none is a whole VDIF frame: send each frame in one datagram, or use udp:// for datagrams \
             with sequence numbers"
        )),
        _ => Some(format!(
            "{count} datagrams arrived, but none begins a stream: send at least 8 consecutive sequence numbers with VDIF or Mark 5B \
             frames, or 64 without frames"
        )),
    }
}

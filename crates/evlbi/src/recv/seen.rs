//! What is seen of a receiver while it lasts.

use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_net::receive::Watch;
use evlbi_net::run::Run;
use evlbi_net::transport::Numbers;
use parking_lot::Mutex;

use super::RecvOptions;
use crate::steer::{self, Rate, Receiving as Status, Watched};
use crate::units::{show_count, show_rate};

/// A receiver for those that watch it.
pub struct Seen {
    watch: Arc<Watch>,
    options: RecvOptions,
    run: Run,
    begun: Nanos,
    rate: Mutex<Rate>,
}

impl Seen {
    pub fn new(watch: Arc<Watch>, options: RecvOptions, run: &Run) -> Seen {
        let begun = run.clock().now();
        Seen {
            watch,
            options,
            run: run.clone(),
            begun,
            rate: Mutex::new(Rate::from(begun)),
        }
    }

    /// How the receiver is.
    pub fn status(&self) -> Status {
        let has_ended = self.watch.has_ended();
        let live = self.watch.last();
        let rate_bps = self.rate(live.bytes, has_ended);
        Status::of(live, rate_bps)
    }

    /// Bits of data a second, as last measured if it has ended.
    fn rate(&self, bytes: u64, has_ended: bool) -> f64 {
        let mut rate = self.rate.lock();
        match has_ended {
            true => rate.last(),
            false => rate.of(bytes, self.run.clock().now()),
        }
    }
}

impl Watched for Seen {
    fn refresh(&self) {
        Watch::refresh([&*self.watch]);
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
        let live = self.watch.last();
        let counters = &live.counters;
        if live.bytes == 0 && counters.received == 0 {
            return match nothing_but(live.foreign() + live.undecided, &self.options) {
                Some(others) => format!("waiting for a stream: {others}"),
                None => "waiting for a stream".into(),
            };
        }
        let lost = match self.options.from.transport().service().reliable {
            true => String::new(),
            false => {
                let share = counters.lost as f64 * 100.0 / counters.expected.max(1) as f64;
                format!("  lost {} ({share:.3} %)", show_count(counters.lost))
            }
        };
        format!(
            "{}{lost}  ring {:.0} %{}",
            show_rate(self.rate.lock().last()),
            live.ring_fill * 100.0,
            if live.streaming { "" } else { "  silent" },
        )
    }
}

/// What came where no stream did, and what may be the cause.
pub fn nothing_but(datagrams: u64, options: &RecvOptions) -> Option<String> {
    let count = show_count(datagrams);
    match options.from.transport().service().numbers {
        _ if datagrams == 0 => None,
        _ if options.source.is_some() => Some(format!(
            "{count} datagrams arrived, but they are not from --source, or no stream of it"
        )),
        Numbers::FromFrames => Some(format!(
            "{count} datagrams arrived, but none is a whole VDIF frame: send each frame in one datagram, or use udp:// for datagrams \
             with sequence numbers"
        )),
        _ => Some(format!(
            "{count} datagrams arrived, but none begins a stream: send at least 8 consecutive sequence numbers with VDIF or Mark 5B \
             frames, or 64 without frames"
        )),
    }
}

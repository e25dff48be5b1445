//! Status of a running receiver.

use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_net::receive::Watch;
use evlbi_net::run::Run;
use evlbi_net::transport::{Local, Numbers};
use parking_lot::Mutex;

use super::RecvOptions;
use crate::control_socket::{self, Rate, Receiving as Status, Watched};
use evlbi_wire::units::{show_count, show_rate};

/// A running receiver for its watchers.
pub struct Seen {
    watch: Arc<Watch>,
    options: RecvOptions,
    /// Local addresses, including port numbers chosen by the kernel.
    pub local: Vec<Local>,
    run: Run,
    begun: Nanos,
    rate: Mutex<Rate>,
}

impl Seen {
    /// Creates the view of a receiver that listens on `local`, with port numbers chosen by the kernel.
    pub fn new(watch: Arc<Watch>, options: RecvOptions, local: Vec<Local>, run: &Run) -> Seen {
        let begun = run.clock().now();
        Seen {
            watch,
            options,
            local,
            run: run.clone(),
            begun,
            rate: Mutex::new(Rate::from(begun)),
        }
    }

    /// Returns the status of the receiver; its counts are at most 100 ms old.
    pub fn status(&self) -> Status {
        let has_ended = self.watch.has_ended();
        let live = self.watch.last();
        let mut rate = self.rate.lock();
        let rate_bps = match has_ended {
            true => rate.last(),
            false => rate.of(live.bytes, self.run.clock().now()),
        };
        Status::of(live, rate_bps)
    }
}

impl Watched for Seen {
    fn refresh(&self) {
        Watch::refresh([&self.watch], self.run.clock());
    }

    fn tell(&self, status: &mut control_socket::Status) {
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
            let others = nothing_but(live.foreign() + live.undecided, &self.options);
            let others = others.map(|others| format!(": {others}"));
            return format!("waiting for a stream{}", others.unwrap_or_default());
        }
        let reliable = self.options.from.transport().service().reliable;
        let lost = match reliable && counters.lost == 0 {
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

/// Returns a line about arrived datagrams that did not form a stream, with the likely cause.
pub fn nothing_but(datagrams: u64, options: &RecvOptions) -> Option<String> {
    let why = match options.from.transport().service().numbers {
        _ if datagrams == 0 => return None,
        _ if options.source.is_some() => {
            "they are not from the requested source, or not a stream of it"
        }
        Numbers::FromFrames => {
            "none is a whole VDIF frame: send each frame in one datagram, or use udp:// for datagrams with sequence numbers"
        }
        _ => {
            "none begins a stream: send at least 8 consecutive sequence numbers with VDIF, Mark 5B or Mark 4 frames, or 64 without frames"
        }
    };
    let count = show_count(datagrams);
    Some(format!("{count} datagrams arrived, but {why}"))
}

//! Receivers and senders that run in this process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evlbi_host::host::HostOptions;
use evlbi_net::run::{Note, Notes, Run};
use evlbi_net::transport::{Local, Url};
use evlbi_stream::control_socket::Watched;
use evlbi_stream::counters::Counts;
use evlbi_stream::recv::{Receiving, RecvOptions, receive};
use evlbi_stream::send::{self, Pace, SendOptions};
use evlbi_testkit::result::checked;
use evlbi_testkit::{processor, until};
use serde_json::Value;

/// Default address of receivers.
pub const HERE: &str = "udp://127.0.0.1:0";

/// A seed with which `every:N` starts with number N - 1 of the test pattern, at second 1,700,000,000 and for N up to 100.
pub const SEED_OF_WHOLE_RUNS: u64 = 240;

/// A running receiver.
pub struct Recv {
    receiving: Receiving,
    from: Url,
    said: Arc<Said>,
}

/// Its notes so far.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Notes for Said {
    fn take(&self, note: &Note<'_>) {
        if let Note::Said(what) | Note::Warned(what) = note {
            self.0.lock().unwrap().push(what.to_string());
        }
    }
}

/// Records what arrives from `from` to `to`.
pub fn recording(from: &str, to: impl Into<String>) -> RecvOptions {
    let from: Url = from.parse().unwrap();
    let holds = from.transport().service().honours.hold;
    RecvOptions {
        from,
        to: to.into(),
        // Touching the default 256 MiB would take most of a short test's time.
        ring: Some(64 << 20),
        // A stalled relay makes nothing late.
        hold: holds.then_some(Duration::from_mins(10)),
        ..RecvOptions::default()
    }
}

impl Recv {
    /// Records what arrives from `from` to `to`.
    #[track_caller]
    pub fn start(from: &str, to: impl Into<String>) -> Recv {
        Recv::with(&recording(from, to))
    }

    /// Starts a receiver.
    #[track_caller]
    pub fn with(options: &RecvOptions) -> Recv {
        let said = Arc::new(Said::default());
        let run = Run::new(Arc::<Said>::clone(&said));
        Recv {
            receiving: receive(options, &run).unwrap(),
            from: options.from.clone(),
            said,
        }
    }

    /// Returns the local address.
    pub fn address(&self) -> SocketAddr {
        match &self.receiving.seen.local[0] {
            Local::Socket(address) => *address,
            other => panic!("{other} is not an address"),
        }
    }

    /// Returns the URL to send to.
    pub fn url(&self) -> String {
        format!("{}://{}", self.from.scheme(), self.receiving.seen.local[0])
    }

    /// Returns its counters so far.
    pub fn counts(&self) -> Counts {
        self.receiving.seen.refresh();
        self.receiving.seen.status().counts
    }

    /// Returns the number of datagrams that have arrived, including foreign ones.
    pub fn arrived(&self) -> u64 {
        let counts = self.counts();
        let names = ["received", "foreign", "undecided"];
        names.map(|name| counts.count(name)).iter().sum()
    }

    /// Waits until this number of datagrams has arrived. Those without room in the socket never do.
    #[track_caller]
    pub fn until_arrived(&self, datagrams: u64) {
        let what = format!("{datagrams} datagrams arrive");
        until(&what, || self.arrived() >= datagrams);
    }

    /// Returns its status as a line of text.
    pub fn line(&self) -> String {
        self.receiving.seen.line()
    }

    /// Stops it.
    pub fn stop(&self) {
        self.receiving.stop();
    }

    /// Waits for the end, successful or not.
    #[track_caller]
    pub fn end(self) -> Value {
        checked(serde_json::to_value(self.receiving.join()).unwrap())
    }

    /// The same, with its notes.
    #[track_caller]
    pub fn end_with_notes(self) -> (Value, Vec<String>) {
        let said = Arc::clone(&self.said);
        let result = self.end();
        let said = std::mem::take(&mut *said.0.lock().unwrap());
        (result, said)
    }

    /// Waits for the end, which must be successful.
    #[track_caller]
    pub fn finish(self) -> Value {
        let result = self.end();
        for error in ["error", "write_error"] {
            assert!(result[error].is_null(), "{}", result[error]);
        }
        for refused in result["refused"].as_array().unwrap() {
            assert_eq!(refused["frames"], false, "{refused}");
        }
        let check = &result["check"];
        assert!(check.is_null() || check["corrupted"] == 0, "{check}");
        result
    }

    /// Stops it once this number of datagrams has arrived, and waits for the end, which must be successful.
    #[track_caller]
    pub fn finish_after(self, datagrams: u64) -> Value {
        self.until_arrived(datagrams);
        self.stop();
        self.finish()
    }

    /// The same, successful or not.
    #[track_caller]
    pub fn end_after(self, datagrams: u64) -> Value {
        self.until_arrived(datagrams);
        self.stop();
        self.end()
    }
}

/// Sends `source` at maximum speed.
pub fn sending(source: &str, to: &str) -> SendOptions {
    SendOptions {
        source: source.to_owned(),
        to: to.parse().unwrap(),
        pace: Pace::Max,
        host: HostOptions {
            cpu: Some(processor::number()),
            ..HostOptions::default()
        },
        ..SendOptions::default()
    }
}

/// Sends, and waits for the end, which must be successful.
#[track_caller]
pub fn send(options: &SendOptions) -> Value {
    let sending = send::send(options, &Run::silent()).unwrap();
    let result = checked(serde_json::to_value(sending.join().unwrap()).unwrap());
    assert!(result["error"].is_null(), "{}", result["error"]);
    result
}

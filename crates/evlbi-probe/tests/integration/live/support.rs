//! Probes and responders that run in this process.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use evlbi_net::run::{Note, Notes, Run, explain};
use evlbi_plot::Figure;
use evlbi_probe::measure::Token;
use evlbi_probe::respond::{RespondOptions, Responding, respond};
use evlbi_probe::sweep::Sizes;
use evlbi_probe::udp::{self, ProbeUdp, ProbeUdpError, ProbeUdpOptions};
use evlbi_probe::{Measured, Point, Target};
use evlbi_testkit::netns::Pair;

pub const TOKEN: &str = "a token of tests";

/// Returns options of a responder that allows everything but extra load.
pub fn open() -> RespondOptions {
    RespondOptions {
        bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        token: Token::from(TOKEN),
        ..RespondOptions::default()
    }
}

/// Starts a responder on loopback.
pub fn respond_here(options: &RespondOptions) -> Responding {
    respond(options, &Run::silent()).unwrap()
}

/// Starts a responder at this address of the remote namespace.
pub fn respond_at(pair: &Pair, address: impl Into<IpAddr>, options: &RespondOptions) -> Responding {
    let options = RespondOptions {
        bind: SocketAddr::new(address.into(), 0),
        ..options.clone()
    };
    let far = &pair.far.namespace;
    far.run(|| respond_here(&options)).unwrap()
}

/// Starts a responder in the remote namespace.
pub fn respond_far(pair: &Pair, options: &RespondOptions) -> Responding {
    respond_at(pair, pair.far.v4, options)
}

/// Stops a responder, and asserts that no session panicked.
#[track_caller]
pub fn end(responder: Responding) {
    responder.stop();
    responder.join().unwrap();
}

/// Returns the target for a client of the responder.
pub fn target(responder: &Responding) -> Target {
    Target {
        address: responder.addresses()[0].to_string(),
        token: Token::from(TOKEN),
        ..Target::default()
    }
}

/// Returns a stream of `count` datagrams of this size.
pub fn stream(rate: &str, size: usize, count: usize) -> ProbeUdpOptions {
    ProbeUdpOptions {
        rate: Some(rate.parse().unwrap()),
        size: Sizes(vec![size]),
        count: Some(count as u64),
        ..ProbeUdpOptions::default()
    }
}

/// Returns the measured result, after checking that its file, if any, was written.
#[track_caller]
pub fn kept<R, E>(measured: Result<Measured<R>, E>) -> R
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let measured = measured.unwrap_or_else(|error| panic!("{}", explain(&*error.into())));
    measured.written.unwrap();
    measured.result
}

/// Returns the result of a probe that completes.
#[track_caller]
pub fn whole(measured: Result<Measured<ProbeUdp>, ProbeUdpError>) -> ProbeUdp {
    let result = kept(measured);
    assert_eq!(result.stopped, None);
    result
}

/// Returns the result of a probe with these options.
#[track_caller]
pub fn udp(responder: &Responding, options: ProbeUdpOptions) -> ProbeUdp {
    let target = target(responder);
    whole(udp::probe(
        &ProbeUdpOptions { target, ..options },
        &Run::silent(),
    ))
}

/// Returns the result of a probe from the local namespace, with a responder of its own in the remote one.
#[track_caller]
pub fn once(pair: &Pair, options: ProbeUdpOptions) -> ProbeUdp {
    let responder = respond_far(pair, &open());
    let near = &pair.near.namespace;
    let result = near.run(|| udp(&responder, options)).unwrap();
    end(responder);
    result
}

/// Returns its points.
#[track_caller]
pub fn between(pair: &Pair, options: ProbeUdpOptions) -> Vec<Point> {
    once(pair, options).points
}

/// Asserts the sums that hold for any measurement.
#[track_caller]
pub fn assert_sums(point: &Point) {
    let Point {
        sent,
        received,
        unique,
        lost,
        ..
    } = point;
    assert_eq!(*sent, unique + lost);
    assert_eq!(*received, unique + point.duplicates);
    let parts = point.network_lost + point.host_lost + point.unattributed;
    assert_eq!(*lost, parts, "{:?}", point.attribution);
    let runs = point.loss_runs.iter();
    let in_runs: u64 = runs.map(|(length, count)| length * count).sum();
    assert_eq!(*lost, in_runs, "{:?}", point.loss_runs);
}

/// A running probe.
pub struct Probing<T> {
    run: Run,
    working: Option<JoinHandle<T>>,
    lines: Arc<Lines>,
}

/// Progress lines of a run.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Notes for Lines {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Line(line) => self.0.lock().unwrap().push(line.to_string()),
            Note::Progress { line, .. } => self.0.lock().unwrap().push((*line).to_owned()),
            _ => {}
        }
    }
}

impl<T: Send + 'static> Probing<T> {
    /// Starts it on this host.
    pub fn begin(work: impl FnOnce(&Run) -> T + Send + 'static) -> Probing<T> {
        let lines = Arc::new(Lines::default());
        let run = Run::new(Arc::<Lines>::clone(&lines));
        let own = run.clone();
        let working = thread::spawn(move || work(&own));
        Probing {
            run,
            working: Some(working),
            lines,
        }
    }

    /// Starts it in the local namespace.
    pub fn begin_near(pair: &Pair, work: impl FnOnce(&Run) -> T + Send + 'static) -> Probing<T> {
        let near = &pair.near.namespace;
        near.run(|| Probing::begin(work)).unwrap()
    }

    /// Returns whether it has printed this.
    pub fn has_said(&self, what: &str) -> bool {
        let lines = self.lines.0.lock().unwrap();
        lines.iter().any(|line| line.contains(what))
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> T {
        let ended = self.working.take().unwrap().join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Interrupts it.
    #[track_caller]
    pub fn interrupt(self) -> T {
        self.run.stop();
        self.end()
    }
}

impl<T> Drop for Probing<T> {
    fn drop(&mut self) {
        self.run.stop();
    }
}

/// Returns a plot as shown by a terminal that is wide enough for all of its words.
pub fn drawn(figure: &Figure) -> String {
    figure.text(400, 60)
}

//! Probes and responders at work in this process.

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

/// Of a responder that allows whatever is asked for, but load.
pub fn open() -> RespondOptions {
    RespondOptions {
        bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        token: Token::from(TOKEN),
        ..RespondOptions::default()
    }
}

/// A responder on loopback.
pub fn respond_here(options: &RespondOptions) -> Responding {
    respond(options, &Run::silent()).unwrap()
}

/// A responder at this address of the far namespace.
pub fn respond_at(pair: &Pair, address: impl Into<IpAddr>, options: &RespondOptions) -> Responding {
    let options = RespondOptions {
        bind: SocketAddr::new(address.into(), 0),
        ..options.clone()
    };
    let far = &pair.far.namespace;
    far.run(|| respond_here(&options)).unwrap()
}

/// A responder in the far namespace.
pub fn respond_far(pair: &Pair, options: &RespondOptions) -> Responding {
    respond_at(pair, pair.far.v4, options)
}

/// Ends a responder, of which no session may have panicked.
#[track_caller]
pub fn end(responder: Responding) {
    responder.stop();
    responder.join().unwrap();
}

/// A responder as a client is told of it.
pub fn target(responder: &Responding) -> Target {
    Target {
        address: responder.addresses()[0].to_string(),
        token: Token::from(TOKEN),
        ..Target::default()
    }
}

/// A stream of so many datagrams of this size.
pub fn stream(rate: &str, size: usize, count: usize) -> ProbeUdpOptions {
    ProbeUdpOptions {
        rate: Some(rate.parse().unwrap()),
        size: Sizes(vec![size]),
        count: Some(count as u64),
        ..ProbeUdpOptions::default()
    }
}

/// What was measured, and is in its file if one was asked for.
#[track_caller]
pub fn kept<R, E>(measured: Result<Measured<R>, E>) -> R
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let measured = measured.unwrap_or_else(|error| panic!("{}", explain(&*error.into())));
    measured.written.unwrap();
    measured.result
}

/// The result of a probe that ends well.
#[track_caller]
pub fn whole(measured: Result<Measured<ProbeUdp>, ProbeUdpError>) -> ProbeUdp {
    let result = kept(measured);
    assert_eq!(result.stopped, None);
    result
}

/// The result of a probe with these options.
#[track_caller]
pub fn udp(responder: &Responding, options: ProbeUdpOptions) -> ProbeUdp {
    let target = target(responder);
    whole(udp::probe(
        &ProbeUdpOptions { target, ..options },
        &Run::silent(),
    ))
}

/// The result of one from the near namespace, with a responder of its own in the far one.
#[track_caller]
pub fn once(pair: &Pair, options: ProbeUdpOptions) -> ProbeUdp {
    let responder = respond_far(pair, &open());
    let near = &pair.near.namespace;
    let result = near.run(|| udp(&responder, options)).unwrap();
    end(responder);
    result
}

/// Its points.
#[track_caller]
pub fn between(pair: &Pair, options: ProbeUdpOptions) -> Vec<Point> {
    once(pair, options).points
}

/// Whatever was measured, the sums hold.
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

/// A probe at work.
pub struct Probing<T> {
    run: Run,
    working: Option<JoinHandle<T>>,
    lines: Arc<Lines>,
}

/// What a run says that it does.
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
    /// Begins it on this host.
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

    /// Begins it in the near namespace.
    pub fn begin_near(pair: &Pair, work: impl FnOnce(&Run) -> T + Send + 'static) -> Probing<T> {
        let near = &pair.near.namespace;
        near.run(|| Probing::begin(work)).unwrap()
    }

    /// Whether it has said this.
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

    /// Has it end before its time.
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

/// A picture as a terminal shows it, wide enough for all of its words.
pub fn drawn(figure: &Figure) -> String {
    figure.text(400, 60)
}

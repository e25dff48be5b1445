//! Senders, receivers and the network between them fail at any moment: every run ends, its counts add up, and the recordings lose no
//! more than the faults cost.
//!
//! A failed case can be replayed as [`evlbi_testkit::faults`] describes, with places as in `EVLBI_FAULTS='1.2s s1 restarts 300ms'`: `s1` to
//! `s3` are senders, `r1` to `r3` their receivers, `there` and `back` directions of the network.
//!
//! Add a new kind of fault in `fault`, and its cost in `account`.

mod account;
mod fault;

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::time::Nanos;
use evlbi_host::host::HostOptions;
use evlbi_net::clock::{Clock, Signal};
use evlbi_net::cpu::Waiting;
use evlbi_net::file::Durability;
use evlbi_net::run::Run;
use evlbi_net::sim::{Direction, Host, Network};
use evlbi_testkit::Room;
use evlbi_testkit::faults::{Faults, config};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::{Header, StationId, StreamKey};
use evlbi_wire::{pattern, vtp};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use parking_lot::Mutex;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use self::fault::{Fault, Kind, Place, What, any};
use super::super::{Receiving, RecvResult};
use super::{FRAME, MIN_RING, RecvOptions, SendOptions, receive, send};
use crate::counters::Counts;
use crate::send::Sending;

/// Default number of cases, and of those that are played twice.
const CASES: u32 = 60;
const CASES_TWICE: u32 = 10;
/// Start of each case: 2027-01-15T08:00:00Z.
const BEGINNING: i64 = 1_800_000_000;
/// Number of frames of each sender.
const FRAMES: usize = 500;
const FRAME_RATE: u32 = 125;
/// From one frame to the next.
const SPACING: Nanos = Nanos(8_000_000);
/// From the start of a sender to its first frame.
const LEAD: Nanos = Nanos(20_000_000);
/// From sender to receiver. Nothing arrives at the moment of a fault.
const DELAY: Nanos = Nanos(10_300_000);
/// A case is over by then.
const MAX: Nanos = Nanos(60_000_000_000);
/// By then, the last frame sent has arrived and is recorded.
const REST: Nanos = Nanos(1_000_000_000);

/// Whether this receiver accepts every host, and not its sender alone.
fn is_open(number: usize) -> bool {
    number == 2
}

/// Size of a receiver's socket buffer; the first one's holds everything.
fn buffer(number: usize) -> Option<u64> {
    [None, Some(32 << 10), Some(64 << 10)][number]
}

fn frame_rate() -> FrameRate {
    pattern::frame_rate(FRAME_RATE.into())
}

/// The frames of each station, one after the other.
static STREAMS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    [b"S1", b"S2", b"S3"].map(|code| {
        let stream = pattern::frames(FRAME, BEGINNING, frame_rate(), FRAMES as u32);
        let mut stream = stream.expect("a length of frames");
        for frame in stream.chunks_exact_mut(FRAME) {
            let mut header = Header::parse(frame).expect("a header");
            let station = StationId::from_code(*code);
            header.set_key(StreamKey { station, thread: 0 });
            header.emit(frame);
        }
        stream
    })
});

/// A frame of a station.
fn frame(number: usize, index: usize) -> &'static [u8] {
    &STREAMS[number][index * FRAME..(index + 1) * FRAME]
}

/// The first frame that a sender started now sends at its time.
fn due(now: Nanos) -> usize {
    usize::try_from(now.0.div_ceil(SPACING.0)).unwrap_or(usize::MAX)
}

/// From one moment to another.
type Span = [Nanos; 2];

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It had nothing left to send.
    Done,
    Stopped,
    Killed,
}

/// Run of a sender between two restarts.
struct Sent {
    /// Its first frame.
    first: usize,
    /// From its start until its end was requested.
    span: Span,
    end: End,
    counts: Counts,
}

impl Sent {
    /// The frame after its last.
    fn next(&self) -> usize {
        self.first + self.counts.count("sent") as usize
    }
}

/// Run of a receiver between two restarts.
struct Received {
    /// Until its end was requested.
    span: Span,
    /// Time at which it had ended: it listens until then at the latest.
    ended: Nanos,
    end: End,
    /// None if it was killed.
    result: Option<RecvResult>,
    recorded: Vec<u8>,
    /// Time at which its disk was full.
    full: Option<Nanos>,
}

/// All runs of a sender or of a receiver.
struct Life<T> {
    runs: Vec<T>,
    stalls: Vec<Span>,
}

/// Outcome of a case.
struct Played {
    sent: Vec<Life<Sent>>,
    received: Vec<Life<Received>>,
    dropped: u64,
    log: String,
}

/// The clock, network and hosts of a case.
struct Scene {
    clock: Clock,
    network: Network,
    faults: Faults<Fault>,
    room: Room,
    /// Everything has been sent.
    over: Signal,
    /// Number of faults that cut each direction now.
    cuts: Mutex<[u32; 2]>,
}

impl Scene {
    fn play(faults: &Faults<Fault>) -> Played {
        let clock = Clock::simulated(BEGINNING as u64 * Nanos::SECOND.0);
        clock.keep_log();
        let delay = Law::Delay {
            delay: DELAY,
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        };
        let scene = Arc::new(Scene {
            network: Network::new(&clock, &[loss(0.0), delay], 1500, 1),
            clock,
            faults: faults.clone(),
            room: Room::on_disk(),
            over: Signal::default(),
            cuts: Mutex::default(),
        });
        let clock = &scene.clock;
        let (sent, received) = clock.simulate(|| {
            let receivers = [0, 1, 2].map(|number| {
                let own = Arc::clone(&scene);
                clock.spawn("receiver", move || own.receiver(number))
            });
            let senders = [0, 1, 2].map(|number| {
                let own = Arc::clone(&scene);
                clock.spawn("sender", move || own.sender(number))
            });
            let others = (0..faults.0.len()).map(|place| {
                let own = Arc::clone(&scene);
                clock.spawn("fault", move || own.strike(place))
            });
            let others: Vec<_> = others.collect();
            let sent = senders.map(|it| it.unwrap().join());
            others.into_iter().for_each(|it| it.unwrap().join());
            scene.over.give();
            (sent, receivers.map(|it| it.unwrap().join()))
        });
        Played {
            sent: sent.into(),
            received: received.into(),
            dropped: scene.network.truth(Direction::There, 0).dropped,
            log: clock.take_log(),
        }
    }

    fn wait_until(&self, moment: Nanos) {
        self.clock.wait_until(moment, Waiting::Sleep);
    }

    /// The faults of a place.
    fn of(&self, place: Place) -> impl Iterator<Item = &Fault> {
        let faults = self.faults.0.iter();
        faults.filter(move |fault| fault.place == place)
    }

    /// Applies a fault that any host can have.
    fn befall(&self, host: &Host, what: What, stalls: &mut Vec<Span>) {
        match what {
            What::Stalls(span) => {
                host.clock().stall(span);
                let now = self.clock.now();
                stalls.push([now, now.plus(span.into())]);
            }
            What::Steps(by) => host.clock().step(by * 1_000_000),
            _ => {}
        }
    }

    /// A sender through all of its faults.
    fn sender(&self, number: usize) -> Life<Sent> {
        let host = self.network.near(number as u8 + 1);
        let (mut runs, mut stalls) = (Vec::new(), Vec::new());
        let mut running = self.start(number, &runs);
        for fault in self.of(Place::Sender(number)) {
            self.wait_until(fault.at.into());
            let (end, pause) = match fault.what {
                What::Restarts(pause) => (End::Stopped, pause),
                What::Dies(pause) => (End::Killed, pause),
                what => {
                    self.befall(&host, what, &mut stalls);
                    continue;
                }
            };
            if let Some(it) = running.take() {
                runs.push(self.end_sender(&host, it, end));
            }
            self.clock.sleep(pause);
            running = self.start(number, &runs);
        }
        if let Some(it) = running {
            runs.push(self.end_sender(&host, it, End::Done));
        }
        Life { runs, stalls }
    }

    /// Starts a sender with the frames due from then on, unless nothing is left.
    fn start(&self, number: usize, before: &[Sent]) -> Option<(usize, Nanos, Sending)> {
        let sent = before.last().map_or(0, Sent::next);
        let first = due(self.clock.now()).max(sent);
        let left = STREAMS[number].get(first * FRAME..)?;
        if left.is_empty() {
            return None;
        }
        let host = self.network.near(number as u8 + 1);
        let name = format!("s{number}-{}.vdif", before.len());
        let options = SendOptions {
            source: self.room.write(&name, left),
            to: self.network.to(port(number)),
            frame_rate: Some(frame_rate()),
            ..SendOptions::default()
        };
        let sending = send(&options, &Run::silent().on(&host)).unwrap();
        Some((first, self.clock.now(), sending))
    }

    fn end_sender(
        &self,
        host: &Host,
        (first, begun, sending): (usize, Nanos, Sending),
        end: End,
    ) -> Sent {
        let end = match sending.is_finished() {
            true => End::Done,
            false => end,
        };
        let span = [begun, self.clock.now()];
        let seen = Arc::clone(&sending.seen);
        if end == End::Killed {
            host.kill();
        } else {
            if end == End::Stopped {
                sending.stop();
            }
            ends(&self.clock, || sending.is_finished());
            let report = sending.join().unwrap().report;
            assert_eq!(report.error, None);
        }
        Sent {
            first,
            span,
            end,
            counts: seen.status().counts,
        }
    }

    /// A receiver through all of its faults.
    fn receiver(&self, number: usize) -> Life<Received> {
        let host = self.network.far(number as u8 + 1);
        let (mut runs, mut stalls) = (Vec::new(), Vec::new());
        let mut full = None;
        let mut running = self.record(number, 0, full);
        for fault in self.of(Place::Receiver(number)) {
            self.wait_until(fault.at.into());
            match fault.what {
                What::IsFull if full.is_none() => {
                    full = Some(self.clock.now());
                    running.full = full;
                    running.disk.fill();
                }
                What::Restarts(pause) | What::Dies(pause) => {
                    let end = match fault.what {
                        What::Dies(_) => End::Killed,
                        _ => End::Stopped,
                    };
                    let next = self.clock.now().plus(pause.into());
                    runs.push(running.finish(&host, end, &self.clock));
                    self.wait_until(next);
                    running = self.record(number, runs.len(), full);
                }
                what => self.befall(&host, what, &mut stalls),
            }
        }
        self.over.wait(&self.clock, MAX);
        let stalled = stalls.iter().map(|[_, end]| *end).max();
        let last = self.clock.now().max(stalled.unwrap_or_default());
        self.wait_until(last.plus(REST));
        runs.push(running.finish(&host, End::Stopped, &self.clock));
        Life { runs, stalls }
    }

    /// Starts a receiver.
    fn record(&self, number: usize, run: usize, full: Option<Nanos>) -> Recording {
        let host = self.network.far(number as u8 + 1);
        let mut faults = self.of(Place::Receiver(number));
        let path = self.room.path(&format!("r{number}-{run}.vdif"));
        let disk = match full {
            Some(_) => Disk::Full,
            None if faults.any(|it| it.what == What::IsFull) => Disk::pipe(&path),
            None => Disk::File(path.clone()),
        };
        let options = RecvOptions {
            from: self.network.to(port(number)),
            to: match disk {
                Disk::Full => "/dev/full".to_owned(),
                _ => path,
            },
            ring: Some(MIN_RING),
            source: (!is_open(number)).then(|| sender(number)),
            durability: Durability::Kernel,
            host: HostOptions {
                buffer: buffer(number),
                ..HostOptions::default()
            },
            ..RecvOptions::default()
        };
        Recording {
            begun: self.clock.now(),
            receiving: receive(&options, &Run::silent().on(&host)).unwrap(),
            full,
            disk,
        }
    }

    /// Applies the faults of the network and of unknown senders.
    fn strike(&self, place: usize) {
        let fault = &self.faults.0[place];
        match (fault.place, fault.what) {
            (Place::Network(way), What::IsCut(span)) => {
                self.wait_until(fault.at.into());
                self.cut(way, 1);
                self.clock.sleep(span);
                self.cut(way, -1);
            }
            (Place::Receiver(number), What::Hears(count, kind)) => {
                self.wait_until(fault.at.into());
                let socket = self.network.near(100 + place as u8).socket(0, None);
                for turn in 0..count {
                    let now = self.clock.now();
                    let seed = format!("{fault} {turn}");
                    let datagram = strange(kind, number, now, seed.as_bytes());
                    socket.send_to(port(number), datagram, now);
                    self.clock.sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
    }

    /// Another fault cuts a direction, or one is over.
    fn cut(&self, way: Direction, by: i32) {
        let cuts = &mut self.cuts.lock()[way as usize];
        *cuts = cuts.saturating_add_signed(by);
        let lost = if *cuts > 0 { 1.0 } else { 0.0 };
        self.network.change(way, 0, loss(lost));
    }
}

fn loss(fraction: f64) -> Law {
    Law::Loss(Loss::Random { fraction })
}

/// Waits for the end of a run.
fn ends(clock: &Clock, has_ended: impl FnMut() -> bool) {
    assert!(
        clock.wait_for(MAX, Duration::ZERO, has_ended),
        "a run does not end"
    );
}

/// The address on which a receiver listens.
fn port(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8 + 1], 2630))
}

/// The host of its sender.
fn sender(number: usize) -> IpAddr {
    IpAddr::from([10, 255, 0, number as u8 + 1])
}

/// Returns a datagram of an unknown sender, which guesses what the sender sends now.
fn strange(kind: Kind, number: usize, now: Nanos, seed: &[u8]) -> Vec<u8> {
    let random = Sha256::digest(seed);
    let index = due(now).min(FRAMES - 1);
    let far = u64::from(random[0]) << 40;
    let sequence = index as u64 + if kind == Kind::Far { far } else { 0 };
    let copy = [&vtp::header(sequence)[..], frame(number, index)].concat();
    let length = usize::from(random[1]) * copy.len() / 256;
    match kind {
        Kind::Noise => random.iter().copied().cycle().take(length).collect(),
        Kind::Pieces => copy[..length].to_vec(),
        Kind::Far | Kind::Copies => copy,
    }
}

/// Output of a receiver.
enum Disk {
    File(String),
    /// A disk that can become full: the bytes read from a pipe, which takes all that is recorded, and breaks.
    Pipe(Option<File>, Vec<u8>),
    Full,
}

impl Disk {
    fn pipe(path: &str) -> Disk {
        mkfifo(path, Mode::S_IRWXU).unwrap();
        let mut options = File::options();
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let pipe = options.open(path).unwrap();
        fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        Disk::Pipe(Some(pipe), Vec::new())
    }

    /// The disk becomes full.
    fn fill(&mut self) {
        if let Disk::Pipe(pipe, bytes) = self
            && let Some(mut pipe) = pipe.take()
        {
            // Reading an empty pipe is an error, which does not matter here.
            let _ = pipe.read_to_end(bytes);
        }
    }

    /// Returns its contents. The space of a file is then free, although a killed receiver does not close it.
    fn read(mut self) -> Vec<u8> {
        self.fill();
        match self {
            Disk::File(path) if Path::new(&path).exists() => {
                let bytes = std::fs::read(&path).unwrap();
                File::create(&path).unwrap();
                bytes
            }
            Disk::Pipe(_, bytes) => bytes,
            Disk::File(_) | Disk::Full => Vec::new(),
        }
    }
}

/// A receiver at work.
struct Recording {
    begun: Nanos,
    receiving: Receiving,
    disk: Disk,
    full: Option<Nanos>,
}

impl Recording {
    /// Stops it, or kills it with its host.
    fn finish(self, host: &Host, end: End, clock: &Clock) -> Received {
        let span = [self.begun, clock.now()];
        let receiving = self.receiving;
        if end == End::Killed {
            host.kill();
        }
        let result = (end == End::Stopped).then(|| {
            receiving.stop();
            ends(clock, || receiving.is_finished());
            receiving.join()
        });
        Received {
            span,
            ended: clock.now(),
            end,
            result,
            recorded: self.disk.read(),
            full: self.full,
        }
    }
}

/// Returns a hash of everything that happens in a case.
fn sum(faults: &Faults<Fault>) -> [u8; 32] {
    Sha256::digest(Scene::play(faults).log.as_bytes()).into()
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn streams_outlive_faults(faults in any()) {
        account::check(&faults, &Scene::play(&faults));
    }
}

proptest! {
    #![proptest_config(config(CASES_TWICE))]

    #[test]
    fn faults_of_streams_happen_twice_alike(faults in any()) {
        prop_assert_eq!(sum(&faults), sum(&faults));
    }
}

/// Without faults, no frame is lost.
#[test]
fn streams_without_faults_are_recorded_whole() {
    let played = Scene::play(&Faults(Vec::new()));
    for (number, life) in played.received.iter().enumerate() {
        assert_eq!(life.runs.len(), 1);
        assert!(life.runs[0].recorded == STREAMS[number], "{number}");
    }
    assert_eq!(played.dropped, 0);
    account::check(&Faults(Vec::new()), &played);
}

/// Cases that once failed.
#[test]
fn streams_outlive_faults_that_once_failed() {
    let cases = [
        // A sequence starts within 300 ms of the one before, alone or between two others.
        "2.597s s1 restarts 0ns; 2.821s s1 dies 0ns",
        "2s s1 restarts 0ns; 2.2s s1 restarts 0ns",
        // Three sequences that wait at a receiver are accepted together.
        "2.373s r1 stalls 863ms; 2.613s s1 restarts 0ns; 2.905s s1 dies 0ns",
        // A sequence is interrupted in its first frames.
        "149ms s1 restarts 0ns; 169ms there cut 184ms; 361ms there cut 1.616s",
        "21ms there cut 976ms; 1.053s s1 restarts 0ns",
        "21ms there cut 488ms; 573ms there cut 1.16s; 1.583s r1 dies 0ns",
    ];
    for case in cases {
        let faults: Faults<Fault> = case.parse().unwrap();
        account::check(&faults, &Scene::play(&faults));
    }
}

//! The far end of probes: grants tests to who knows the token, within limits, and does its part of them.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Signal, Thread};
use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use evlbi_net::tcp::{Door, Listener, Stream as Connection, TcpError};
use evlbi_net::udp::OpenError;
use evlbi_wire::units::show_rate;
use parking_lot::Mutex;
use smart_default::SmartDefault;

use crate::control::{Control, ControlError, nonce};
use crate::endpoint::{
    Files, FromClient, FromResponder, Limits, Port, Test, TestError, VERSION, Work, WorkError,
};
use crate::measure::{Channel, Role, Stream, Token};
use crate::session::{ALIVE, GONE, Gone, LOOK, Link, SLOW_LOOK, draining, look, plain};

/// Connections that have not shown yet that they know the token; of more, the oldest are closed.
const MOST_STRANGERS: usize = 64;
/// Sessions at once of those who know it.
const MOST_SESSIONS: usize = 64;
/// A stranger has so long to show it.
const PROVING: Duration = Duration::from_secs(5);
/// A session without a test ends after this time.
const IDLE: Duration = Duration::from_secs(120);
/// Longest time that a client waits for others' tests.
const MOST_QUEUE: Nanos = Nanos(600_000_000_000);
/// A test may take so much longer than its streams: finding each other, round trips, results.
const AROUND: Duration = Duration::from_secs(30);
/// A client's first datagram is waited for so long.
const CALLING: Duration = Duration::from_secs(3);

/// Address, token and limits of a responder.
#[derive(Clone, Debug, SmartDefault)]
pub struct RespondOptions {
    /// Address for control connections (TCP); port 0 for a free one.
    #[default(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 8620))]
    pub bind: SocketAddr,
    /// Shared secret of the clients; not empty.
    #[default(Token::from(""))]
    pub token: Token,
    /// UDP and TCP ports for tests; `None` for any free one.
    pub ports: Option<RangeInclusive<u16>>,
    /// Limits of all tests together.
    #[default(Limits {
        rate: None,
        duration: Nanos(3600 * Nanos::SECOND.0),
        tests: 8,
        burdens: false,
    })]
    pub limits: Limits,
    /// Directory in which clients may read and create files.
    pub files: Option<PathBuf>,
}

/// Why a responder cannot start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The token is empty.
    #[error("an empty token keeps nobody out")]
    NoToken,
    /// The folder for clients' files does not exist.
    #[error("{}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    /// The address for control connections cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused something else.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A session panicked.
    #[error("a session of the responder panicked")]
    Panicked,
}

/// Why a responder did not serve a client, or not to the end. A client that is refused a test is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It has not shown that it knows the token.
    #[error("{0}")]
    Stranger(String),
    /// Its connection ended before it showed that.
    #[error("closed before it showed that it knows the token")]
    Unproven(#[source] ControlError),
    /// Too many sessions are open.
    #[error("{0} sessions are open, which are the most")]
    Full(usize),
    /// The test cannot be, or is more than the responder allows.
    #[error("{0}")]
    Test(#[from] TestError),
    /// Other tests leave it no room, for as long as the client waits.
    #[error("{0}; try again later, or wait longer")]
    Busy(String),
    /// All ports for tests are in use.
    #[error("all ports from {from} to {to}, which tests may listen on here, are in use")]
    NoPort {
        /// The first of the ports.
        from: u16,
        /// The last of them.
        to: u16,
    },
    /// Nothing comes by UDP.
    #[error(
        "nothing came by UDP from {from} to port {to} here: something on the way, such as a firewall, drops it"
    )]
    Blocked {
        /// The client's address.
        from: IpAddr,
        /// The port here.
        to: u16,
    },
    /// The test is of a file, and there is no folder for such.
    #[error("this responder gives and takes no files")]
    NoFiles,
    /// The file would not be in the folder itself.
    #[error("`{0}` is no name of a file in the responder's folder")]
    FileName(String),
    /// The file cannot be sent.
    #[error("the responder cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file cannot be received: often it exists.
    #[error("the responder cannot make {}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The control connection does not go on.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// The client has gone silent in a test.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// The client has gone silent while it waits for others' tests.
    #[error("the client has said nothing for {0} s")]
    GoneWaiting(u64),
    /// The client does not begin its test.
    #[error("the client does not go on")]
    Stuck,
    /// The test lasts longer than it was to.
    #[error("the test takes longer than it was to take, and was ended")]
    TooLong,
    /// The responder is stopped.
    #[error("the responder is being ended")]
    Ending,
    /// There is no socket for datagrams.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// There are no connections to test.
    #[error("{0}")]
    Tcp(#[from] TcpError),
    /// This end could not do its part.
    #[error("{0}")]
    Work(#[from] WorkError),
    /// The kernel refused something else.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ServeError {
    /// Whether an address is in use.
    fn is_in_use(&self) -> bool {
        let first: &(dyn Error + 'static) = self;
        let mut chain = iter::successors(Some(first), |&cause| cause.source());
        chain.any(|cause| {
            let io = cause.downcast_ref::<io::Error>();
            io.is_some_and(|io| io.kind() == ErrorKind::AddrInUse)
        })
    }
}

type Served<T = ()> = Result<T, ServeError>;

/// Starts a responder, which grants tests until it is stopped.
///
/// # Errors
/// [`RespondError`] if the token is empty, the folder does not exist, or the address is in use.
pub fn respond(options: &RespondOptions, run: &Run) -> Result<Responding, RespondError> {
    let RespondOptions { bind, files, .. } = options;
    if options.token.is_empty() {
        return Err(RespondError::NoToken);
    }
    if let Some(folder) = files.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(RespondError::NoFolder(folder.clone()));
    }
    let run = run.part();
    let listener = Listener::bind(*bind, &run);
    let listener = listener.map_err(|source| RespondError::Listen {
        address: *bind,
        source,
    })?;
    let address = listener.local_addr()?;
    let responder = Arc::new(Responder::new(options, &run));
    let thread = (run.clock()).spawn("respond", move || responder.accept(&listener))?;
    let responding = Responding {
        run,
        address,
        thread: Some(thread),
    };
    for address in responding.addresses() {
        responding.run.listens(address);
    }
    Ok(responding)
}

/// Running responder. Dropping it stops it and all its tests.
pub struct Responding {
    run: Run,
    address: SocketAddr,
    thread: Option<Thread<()>>,
}

impl Responding {
    /// Returns the addresses for control connections.
    pub fn addresses(&self) -> &[SocketAddr] {
        std::slice::from_ref(&self.address)
    }

    /// Stops it and all its tests.
    pub fn stop(&self) {
        self.run.stop();
    }

    /// Waits until it has been stopped.
    ///
    /// # Errors
    /// [`RespondError`] if a session panicked.
    pub fn join(mut self) -> Result<(), RespondError> {
        let ended = self.thread.take().map_or(Ok(()), Thread::wait);
        ended.map_err(|_| RespondError::Panicked)
    }
}

impl Drop for Responding {
    fn drop(&mut self) {
        self.stop();
        self.thread.take().map(Thread::wait);
    }
}

struct Responder {
    options: RespondOptions,
    room: Mutex<Room>,
    peers: Mutex<Peers>,
    /// When one was last told, and how many were not since.
    refusals: Mutex<(Nanos, u64)>,
    run: Run,
}

/// What the tests and sessions of this moment take.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    tests: u32,
    sessions: usize,
    /// Bits per second on the wire: to this host, and from it.
    rates: [f64; 2],
}

/// What is taken, and who waits for more, in the order in which it was asked for.
#[derive(Default)]
struct Room {
    taken: Taken,
    waiting: VecDeque<(Arc<Signal>, Taken)>,
}

impl Room {
    /// Takes so much more, if it is there.
    fn take(&mut self, more: Taken, limits: &Limits) -> bool {
        let rates = [0, 1].map(|at| self.taken.rates[at] + more.rates[at]);
        let all = Taken {
            tests: self.taken.tests + more.tests,
            sessions: self.taken.sessions + more.sessions,
            rates,
        };
        let most = limits.rate.map_or(f64::INFINITY, |most| most.get() as f64);
        // Sums and differences of rates leave a trace of rounding.
        let fits = rates.iter().all(|rate| *rate <= most * (1.0 + 1e-9));
        let has_room = all.tests <= limits.tests && all.sessions <= MOST_SESSIONS && fits;
        if has_room {
            self.taken = all;
        }
        has_room
    }

    /// Gives so much back.
    fn give_back(&mut self, less: Taken, limits: &Limits) {
        let all = &mut self.taken;
        all.tests -= less.tests;
        all.sessions -= less.sessions;
        for (all, less) in all.rates.iter_mut().zip(less.rates) {
            *all -= less;
        }
        if all.tests == 0 {
            all.rates = [0.0; 2];
        }
        self.serve(limits);
    }

    /// Gives those who wait what they asked for, one after the other, until one does not fit: nobody is overtaken.
    fn serve(&mut self, limits: &Limits) {
        while let Some((_, more)) = self.waiting.front()
            && self.take(*more, limits)
        {
            let served = self.waiting.pop_front();
            served.inspect(|(is_there, _)| is_there.give());
        }
    }
}

/// Connected clients.
#[derive(Default)]
struct Peers {
    next: u64,
    /// In the order in which they came.
    all: Vec<Peer>,
}

struct Peer {
    number: u64,
    stream: Connection,
    /// Whether it is authenticated.
    is_known: bool,
}

impl Responder {
    fn new(options: &RespondOptions, run: &Run) -> Responder {
        Responder {
            options: options.clone(),
            room: Mutex::default(),
            peers: Mutex::default(),
            refusals: Mutex::default(),
            run: run.clone(),
        }
    }

    /// Serves all that come, until the run is stopped; then all sessions end.
    fn accept(self: &Arc<Responder>, listener: &Listener) {
        let clock = self.run.clock();
        let mut sessions: Vec<Thread<()>> = Vec::new();
        let mut ended = Vec::new();
        while !self.run.is_stopped() {
            let over = sessions.extract_if(.., |session| session.is_finished());
            ended.extend(over.map(Thread::wait).filter(Result::is_err));
            match listener.accept() {
                Ok((stream, peer)) => {
                    let own = Arc::clone(self);
                    let serving = clock.spawn("session", move || {
                        if let Err(error) = own.serve(stream, peer) {
                            own.tell_of_refusal(peer, &error);
                        }
                    });
                    match serving {
                        Ok(session) => sessions.push(session),
                        Err(error) => tracing::warn!("{peer} is not served: {error}"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    listener.wait(clock, clock.now().plus(SLOW_LOOK.into()));
                }
                // Of one connection that broke off, or of too many open files: others go on.
                Err(error) => {
                    tracing::warn!("a connection could not be taken: {error}");
                    clock.sleep(Duration::from_millis(50));
                }
            }
        }
        // Sessions end at once.
        for peer in &self.peers.lock().all {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
        for (wakes, _) in &self.room.lock().waiting {
            wakes.give();
        }
        ended.extend(sessions.into_iter().map(Thread::wait));
        if let Some(Err(panic)) = ended.into_iter().find(Result::is_err) {
            std::panic::resume_unwind(panic);
        }
    }

    /// Says that somebody was refused; a second later at most, how many more were.
    fn tell_of_refusal(&self, peer: SocketAddr, error: &ServeError) {
        if self.run.is_stopped() {
            return;
        }
        let mut refusals = self.refusals.lock();
        let now = self.run.clock().now();
        if refusals.1 > 0 && now.since(refusals.0) < Nanos::SECOND {
            refusals.1 += 1;
            return;
        }
        let more = match refusals.1 {
            0 | 1 => String::new(),
            more => format!(" (and {} others before)", more - 1),
        };
        *refusals = (now, 1);
        tracing::warn!("{peer}: {}{more}", self.run.explain(error));
    }

    fn serve(&self, stream: Connection, peer: SocketAddr) -> Served {
        let number = self.let_in(&stream)?;
        let served = self.serve_peer(stream, peer, number);
        self.peers.lock().all.retain(|peer| peer.number != number);
        served
    }

    fn serve_peer(&self, stream: Connection, peer: SocketAddr, number: u64) -> Served {
        let mut control = Control::new(stream, Role::Responder, self.run.clock());
        self.is_known(&mut control)?;
        for peer in &mut self.peers.lock().all {
            peer.is_known |= peer.number == number;
        }
        let session = Taken {
            sessions: 1,
            ..Taken::default()
        };
        let Some(_place) = self.place(session) else {
            let full = ServeError::Full(MOST_SESSIONS);
            let reason = full.to_string();
            control.send(&FromResponder::Refused { reason })?;
            return Err(full);
        };
        let limits = self.options.limits;
        control.send(&FromResponder::Welcome { limits })?;
        tracing::info!("{peer} begins a session");
        self.session(&mut control, peer)
    }

    /// One more stranger; the oldest go where there are too many.
    fn let_in(&self, stream: &Connection) -> Served<u64> {
        let mut peers = self.peers.lock();
        // Nobody would end it.
        self.go_on()?;
        peers.next += 1;
        let number = peers.next;
        peers.all.push(Peer {
            number,
            stream: stream.try_clone()?,
            is_known: false,
        });
        let strangers = peers.all.iter().filter(|peer| !peer.is_known);
        if strangers.count() > MOST_STRANGERS
            && let Some(oldest) = peers.all.iter().position(|peer| !peer.is_known)
        {
            let _ = peers.all.remove(oldest).stream.shutdown(Shutdown::Both);
        }
        Ok(number)
    }

    /// Has a stranger show that it knows the token.
    fn is_known(&self, control: &mut Control) -> Served {
        let ours = nonce(self.run.clock());
        control.send(&FromResponder::Hello {
            version: VERSION,
            nonce: ours,
        })?;
        let refuse = |control: &mut Control, reason: &str| {
            let reason = reason.to_owned();
            let _ = control.send(&FromResponder::Refused { reason });
        };
        let stranger = |why: String| Err(ServeError::Stranger(why));
        match control.receive(PROVING) {
            Ok(Some(FromClient::Proof { version, .. })) if version != VERSION => {
                refuse(control, &format!("this responder speaks version {VERSION}"));
                stranger(format!("refused: it speaks version {version}"))
            }
            Ok(Some(FromClient::Proof { nonce, proof, .. })) => {
                if !Channel::is_proof(&self.options.token, [&ours, &nonce], &proof) {
                    refuse(control, "wrong token");
                    return stranger("refused: wrong token".to_owned());
                }
                control.secure(&self.options.token, [&ours, &nonce]);
                Ok(())
            }
            Ok(Some(_)) => stranger("refused: it does not show that it knows the token".to_owned()),
            Ok(None) => stranger(format!(
                "closed: it said nothing for {} s",
                PROVING.as_secs()
            )),
            Err(error) => Err(ServeError::Unproven(error)),
        }
    }

    /// Tests, one after the other.
    fn session(&self, control: &mut Control, peer: SocketAddr) -> Served {
        let clock = self.run.clock();
        let mut last = clock.now();
        while clock.now().since(last) < IDLE.into() && !self.run.is_stopped() {
            let message = match control.receive(LOOK * 5) {
                Ok(message) => message,
                Err(error @ ControlError::Channel(_)) => return Err(error.into()),
                // Its way to say that it wants no more.
                Err(_) => return Ok(()),
            };
            // Anything else is of a test that has ended meanwhile.
            if let Some(FromClient::Open(test)) = message {
                if let Err(error) = self.test(control, &test, peer) {
                    self.go_on()?;
                    let reason = self.run.explain(&error);
                    tracing::warn!("{peer}: {reason}");
                    control.send(&FromResponder::Refused { reason })?;
                }
                last = clock.now();
            }
        }
        Ok(())
    }

    fn test(&self, control: &mut Control, test: &Test, peer: SocketAddr) -> Served {
        self.options.limits.allow(test)?;
        let _room = self.make_room(control, test)?;
        let mut local = control.stream().local_addr()?;
        local.set_port(0);
        let local = plain(local);
        let mut port =
            self.at_a_port(local, |local| Ok(Port::open(local, test, None, &self.run)?))?;
        let key = self.run.clock().random();
        let number = port.local_address().port();
        let interface = port.interface();
        let flows = test.flows.as_ref();
        let door = flows
            .map(|flows| {
                self.at_a_port(local, |local| Ok(flows.door(local, test.dscp, &self.run)?))
            })
            .transpose()?;
        control.send(&FromResponder::Opened {
            key,
            port: number,
            door: door.as_ref().map(Door::port),
            interface,
        })?;
        let theirs = self.until(control, |message| match message {
            FromClient::Start { port } => Some(port),
            _ => None,
        })?;
        let caller = port.caller(peer.ip(), key, CALLING, &self.run)?;
        self.go_on()?;
        if caller.is_none() && test.back.is_some() {
            return Err(ServeError::Blocked {
                from: peer.ip(),
                to: number,
            });
        }
        let other = caller.unwrap_or_else(|| plain(SocketAddr::new(peer.ip(), theirs)));
        let connections = match (flows, door) {
            (Some(flows), Some(door)) => flows.take(door, key, &self.run)?,
            _ => Vec::new(),
        };
        // A test that cannot begin makes no file.
        let files = self.files(test)?;
        let most = Some(test.reply_rate());
        let stream = test.there.as_ref();
        let mut work = Work::begin(port, Some(other), key, stream, test, most, &self.run)?;
        // Before anything comes that may be dropped.
        work.observe()?;
        control.send(&FromResponder::Started)?;
        self.until(control, |message| {
            matches!(message, FromClient::Go).then_some(())
        })?;
        tracing::info!("{peer}: {}", describe(test));
        if let Some(stream) = test.back {
            work.send(stream, test)?;
        }
        if let Some(flows) = flows {
            work.begin_flows(connections, flows, files, false, test.most_time)?;
        }
        self.watch(control, &mut work, test)?;
        let end = work.finish()?;
        Ok(control.send(&FromResponder::Done(Box::new(end)))?)
    }

    /// Opens something at one of the ports that tests may listen on, which nobody else has.
    fn at_a_port<T>(&self, local: SocketAddr, open: impl Fn(SocketAddr) -> Served<T>) -> Served<T> {
        let Some(ports) = &self.options.ports else {
            return open(local);
        };
        let (from, to) = (*ports.start(), *ports.end());
        let all = u32::from(to - from) + 1;
        // Two tests that begin at once seldom try the same.
        let first = (self.run.clock().random() % u64::from(all)) as u32;
        for offset in 0..all {
            let port = from + ((first + offset) % all) as u16;
            match open(SocketAddr::new(local.ip(), port)) {
                Err(error) if error.is_in_use() => {}
                opened => return opened,
            }
        }
        Err(ServeError::NoPort { from, to })
    }

    /// The files of a test that are this end's.
    fn files(&self, test: &Test) -> Served<Files> {
        let Some(flows) = &test.flows else {
            return Ok(Files::default());
        };
        let path = |name: &String| -> Served<PathBuf> {
            let folder = self.options.files.as_ref();
            let folder = folder.ok_or(ServeError::NoFiles)?;
            let mut parts = Path::new(name).components();
            match (parts.next(), parts.next()) {
                (Some(Component::Normal(_)), None) => Ok(folder.join(name)),
                _ => Err(ServeError::FileName(name.clone())),
            }
        };
        let gives = !flows.back.is_empty();
        let mut files = Files::default();
        if let Some(name) = flows.source.as_ref().filter(|_| gives) {
            let path = path(name)?;
            let opened = File::open(&path);
            files.source = Some(opened.map_err(|source| ServeError::Read { path, source })?);
        }
        if let Some(name) = flows.sink.as_ref().filter(|_| !gives) {
            let path = path(name)?;
            let made = File::create_new(&path);
            files.sink = Some(made.map_err(|source| ServeError::Make { path, source })?);
        }
        Ok(files)
    }

    /// While the streams last.
    fn watch(&self, control: &mut Control, work: &mut Work, test: &Test) -> Served {
        // A sender that cannot keep its rate takes longer than it should, but no longer than a test may.
        // What waits on TCP is waited for as long as it comes at all.
        let longest = match test.flows {
            Some(_) => self.options.limits.duration,
            None => test.most_time.min(self.options.limits.duration),
        };
        let most = Nanos(longest.0.saturating_add(test.patience.0)).plus(AROUND.into());
        let clock = self.run.clock();
        let begun = clock.now();
        let mut link = Link::new(test, begun);
        let (mut is_over, mut in_haste, mut has_told) = (false, false, test.back.is_none());
        // What came by TCP so far, and when that was so first.
        let mut come = (0, begun);
        let counters = self.run.counters().unwrap_or_default();
        loop {
            let message = control.receive::<FromClient>(look(test, in_haste))?;
            let now = clock.now();
            link.check(control, now)?;
            let mut is_due = link.is_due(now);
            match message {
                Some(FromClient::Alive { unique, used }) => {
                    link.arrived(unique, now);
                    work.told_used(used, false);
                }
                Some(FromClient::Over { used, is_in_haste }) => {
                    work.told_used(used, true);
                    work.stop_sending();
                    if is_in_haste {
                        work.make_haste();
                    }
                    // It asks whether somebody is there.
                    is_due |= is_in_haste;
                    (is_over, in_haste) = (true, is_in_haste);
                }
                _ => {}
            }
            if is_due {
                let is_settled_there = test.back.is_some() && test.window.is_some();
                control.send(&FromResponder::Alive {
                    unique: work.arrived(),
                    used: work.used(),
                    not_sent: work.not_sent(),
                    host: is_settled_there.then(|| Box::new(self.since(&counters))),
                })?;
            }
            self.tell_windows(control, work, &counters)?;
            let has_sent = work.has_sent()?;
            if !has_sent && link.is_broken(now) {
                tracing::warn!("{}", link.broken());
                work.give_up();
            }
            if has_sent
                && !has_told
                && let Some(departed) = work.departed()
            {
                control.send(&FromResponder::Sent(Box::new(departed.clone())))?;
                has_told = true;
            }
            if is_over && has_sent && work.has_heard() {
                return Ok(self.tell_windows(control, work, &counters)?);
            }
            if work.arrived() > come.0 || !is_over {
                come = (work.arrived(), now);
            }
            if now.since(come.1) > draining(in_haste).into() {
                work.give_up();
            }
            if now.since(begun) > most {
                return Err(ServeError::TooLong);
            }
            self.go_on()?;
        }
    }

    /// Tells of windows that are settled, and what this host has counted since the beginning.
    fn tell_windows(
        &self,
        control: &mut Control,
        work: &Work,
        begin: &Counters,
    ) -> Result<(), ControlError> {
        while let Some(window) = work.window() {
            control.send(&FromResponder::Window {
                window: Box::new(window),
                host: Box::new(self.since(begin)),
            })?;
        }
        Ok(())
    }

    fn since(&self, begin: &Counters) -> Counters {
        self.run.counters().unwrap_or_default().since(begin)
    }

    /// Waits for a message.
    fn until<T>(
        &self,
        control: &mut Control,
        mut is_it: impl FnMut(FromClient) -> Option<T>,
    ) -> Served<T> {
        let clock = self.run.clock();
        let end = clock.now().plus(GONE.into());
        while clock.now() < end {
            let message = control.receive(LOOK)?;
            if let Some(found) = message.and_then(&mut is_it) {
                return Ok(found);
            }
            self.go_on()?;
        }
        Err(ServeError::Stuck)
    }

    fn go_on(&self) -> Served {
        match self.run.is_stopped() {
            true => Err(ServeError::Ending),
            false => Ok(()),
        }
    }

    /// Waits until all that were asked for before have room, and the test fits in beside the others.
    fn make_room(&self, control: &mut Control, test: &Test) -> Served<Place<'_>> {
        let more = Taken {
            tests: 1,
            sessions: 0,
            // What is as fast as its host can is allowed only where any rate is.
            rates: test.wire_rates().map(|rate| rate.unwrap_or(0.0)),
        };
        let place = self.ask(more);
        let clock = self.run.clock();
        let end = clock.now().plus(test.queue.min(MOST_QUEUE));
        let (mut until, mut heard) = (clock.now(), None);
        while !place.is_there.wait(clock, until) {
            let (now, reason) = (clock.now(), self.why_not(place.waits_behind()));
            if now >= end {
                return Err(ServeError::Busy(reason));
            }
            control.send(&FromResponder::Waiting { reason })?;
            // A client that is gone holds up nobody behind it. Older ones say nothing while they wait.
            while control.receive::<FromClient>(Duration::ZERO)?.is_some() {
                heard = Some(now);
            }
            if heard.is_some_and(|heard| now.since(heard) >= GONE.into()) {
                return Err(ServeError::GoneWaiting(GONE.as_secs()));
            }
            self.go_on()?;
            until = end.min(now.plus(ALIVE.into()));
        }
        self.go_on()?;
        Ok(place)
    }

    /// Takes so much more, or waits for it behind those who asked before.
    fn ask(&self, more: Taken) -> Place<'_> {
        let is_there = Arc::<Signal>::default();
        let mut room = self.room.lock();
        room.waiting.push_back((Arc::clone(&is_there), more));
        room.serve(&self.options.limits);
        Place {
            responder: self,
            taken: more,
            is_there,
        }
    }

    /// Takes so much more, if it is there; for sessions, which do not wait.
    fn place(&self, more: Taken) -> Option<Place<'_>> {
        let is_taken = self.room.lock().take(more, &self.options.limits);
        is_taken.then(|| Place {
            responder: self,
            taken: more,
            is_there: Arc::default(),
        })
    }

    /// Why a test has no room, where so many wait before it.
    fn why_not(&self, before: usize) -> String {
        let taken = self.room.lock().taken;
        let before = match before {
            0 => String::new(),
            1 => ", and 1 test waits before this one".to_owned(),
            more => format!(", and {more} tests wait before this one"),
        };
        format!(
            "{} tests run now, which take {} to this host and {} from it{before}; it allows {} tests and {}",
            taken.tests,
            show_rate(taken.rates[0]),
            show_rate(taken.rates[1]),
            self.options.limits.tests,
            rate_or_any(self.options.limits.rate.map(|rate| rate.get() as f64))
        )
    }
}

/// What a test or a session takes, or waits for, until it is dropped.
struct Place<'a> {
    responder: &'a Responder,
    taken: Taken,
    is_there: Arc<Signal>,
}

impl Place<'_> {
    /// Its number among those that wait, if it does.
    fn of_waiting(&self, room: &Room) -> Option<usize> {
        let of_this = |(waiting, _): &(Arc<Signal>, _)| Arc::ptr_eq(waiting, &self.is_there);
        room.waiting.iter().position(of_this)
    }

    /// How many wait before it.
    fn waits_behind(&self) -> usize {
        let room = self.responder.room.lock();
        self.of_waiting(&room).unwrap_or(0)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let limits = &self.responder.options.limits;
        let mut room = self.responder.room.lock();
        match self.of_waiting(&room) {
            // Those behind it may fit where it did not.
            Some(waits) => {
                room.waiting.remove(waits);
                room.serve(limits);
            }
            None => room.give_back(self.taken, limits),
        }
    }
}

fn rate_or_any(rate: Option<f64>) -> String {
    rate.map_or("any rate".to_owned(), show_rate)
}

fn describe(test: &Test) -> String {
    let way = |name: &str, stream: &Option<Stream>| {
        stream.as_ref().map(|stream| {
            let rate = rate_or_any(stream.rate());
            format!("{} bytes at {rate} {name}", stream.size)
        })
    };
    let ways = [way("to here", &test.there), way("from here", &test.back)];
    let flows = test.flows.as_ref().map(|flows| {
        let [there, back] = [&flows.there, &flows.back].map(Vec::len);
        format!("{there} TCP connections to here, {back} from here")
    });
    let ways: Vec<String> = ways.into_iter().chain([flows]).flatten().collect();
    match ways.as_slice() {
        [] => "requests".to_owned(),
        some => some.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use evlbi_core::rate::BitRate;

    use super::*;

    fn responder(tests: u32, rate: u64) -> Responder {
        let options = RespondOptions {
            limits: Limits {
                rate: BitRate::new(rate),
                tests,
                ..RespondOptions::default().limits
            },
            ..RespondOptions::default()
        };
        Responder::new(&options, &Run::silent())
    }

    fn test(rates: [f64; 2]) -> Taken {
        Taken {
            tests: 1,
            sessions: 0,
            rates,
        }
    }

    #[test]
    fn tests_fit_in_or_wait() {
        let responder = responder(3, 70_000_000);
        let place = |rates| responder.place(test(rates));
        let [first, second] = [0; 2].map(|_| place([30e6, 0.0]).expect("room"));
        assert!(place([30e6, 0.0]).is_none());
        assert_eq!(
            responder.why_not(0),
            "2 tests run now, which take 60.000 Mbit/s to this host and 0.000 bit/s from it; it allows 3 tests and 70.000 Mbit/s"
        );
        // In the other direction there is room; but then there are three.
        let back = place([0.0, 70e6]).expect("room");
        assert!(place([0.0, 0.0]).is_none());
        // What ends leaves its room to others, all of it.
        drop(first);
        drop(back);
        let third = place([40e6, 70e6]).expect("room");
        assert!(place([0.0, 1.0]).is_none());
        drop((second, third));
        assert_eq!(responder.room.lock().taken.rates, [0.0; 2]);
        assert_eq!(responder.room.lock().taken.tests, 0);
    }

    /// Sums and differences of rates leave a trace of rounding, which keeps nobody out.
    #[test]
    fn rounding_keeps_nobody_out() {
        let responder = responder(100, 1_000_000);
        let place = || responder.place(test([1e5, 1e6 / 3.0]));
        for _ in 0..1000 {
            let all = [0; 3].map(|_| place().expect("room"));
            assert!(place().is_none());
            drop(all);
        }
    }

    #[test]
    fn sessions_have_a_limit_of_their_own() {
        let responder = responder(1, 1_000_000);
        let session = Taken {
            sessions: 1,
            ..Taken::default()
        };
        let all: Vec<Place<'_>> = (0..MOST_SESSIONS)
            .map(|_| responder.place(session).expect("room"))
            .collect();
        assert!(responder.place(session).is_none());
        assert!(responder.place(test([0.0; 2])).is_some());
        drop(all);
        assert!(responder.place(session).is_some());
    }
}

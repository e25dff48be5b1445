//! A client's session with a responder: who it is, and tests one after the other.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use evlbi_net::tcp::{Stream, TcpError, Unconnected};
use evlbi_net::udp::OpenError;
use evlbi_trace::tcp::Reading;
use serde::Serialize;
use smart_default::SmartDefault;

use super::control::{Control, ControlError, nonce};
use super::direction::Direction;
use crate::endpoint::{
    CLOCK_FROM, EndpointReport, Files, FromClient, FromResponder, Limits, Port, Requests,
    RoundTrip, Test, TestError, VERSION, Window, Work, WorkError,
};
use crate::measure::{Channel, Role, Token};

/// So long the far host may take to answer.
const CONNECTING: Duration = Duration::from_secs(10);
/// Each end says as often that it is there.
pub const ALIVE: Duration = Duration::from_secs(1);
/// An end that has not been heard for so long is gone.
pub const GONE: Duration = Duration::from_secs(8);
/// And a responder that has not been heard for so long since the run was stopped.
const STOPPING: Duration = Duration::from_millis(700);
/// A sender of whose stream nothing arrives for so long stops (RFC 8084, a circuit breaker); or for several spacings.
const BREAKER: Duration = Duration::from_secs(5);
const SPACINGS: u64 = 5;
/// Both are so long where a path is watched, so that its outages are measured.
const WATCHED: Duration = Duration::from_secs(60);
/// And where TCP itself waits for a path to come back.
const STALLED: Duration = Duration::from_secs(30);
/// But not that it never was there.
const NOTHING: Duration = Duration::from_secs(10);
/// What connections hold when a test is stopped has so long to leave.
const DRAINING: Duration = Duration::from_secs(5);
/// And so long when the run is stopped.
const DRAINING_AT_STOP: Duration = Duration::from_millis(300);
/// Time between looks at what comes.
pub const LOOK: Duration = Duration::from_millis(20);
/// The same of what lasts: a test that is told window by window, for hours, or a responder.
pub const SLOW_LOOK: Duration = Duration::from_millis(200);
/// Round trips before the streams and after them, which tell how the clocks lie.
const ROUND_TRIPS: u64 = 10;
/// Time between these.
const APART: Nanos = Nanos(2_000_000);
/// Length of such a request in bytes.
const REQUEST: usize = 64;
/// What the socket still holds when a stream is over is taken up in this time.
const TAKING_UP: Duration = Duration::from_secs(30);
/// Longest wait for their replies.
const REPLIES: Duration = Duration::from_millis(500);
const REPLIES_AT_STOP: Duration = Duration::from_millis(200);
/// They are asked for so often at most, where none replies.
const CLOCK_TRIES: usize = 3;

/// Address of a responder, and how to reach it.
#[derive(Clone, Debug, SmartDefault)]
pub struct Target {
    /// HOST:PORT.
    pub address: String,
    /// Secret that the responder was started with.
    #[default(Token::from(""))]
    pub token: Token,
    /// Local address.
    pub bind: Option<IpAddr>,
    /// The only interface to use.
    pub device: Option<String>,
    /// Class of service of the datagrams (RFC 2474), 0 to 63.
    pub dscp: Option<u8>,
    /// Time to wait for other clients' tests.
    #[default(Duration::from_secs(30))]
    pub wait: Duration,
}

impl Target {
    /// What all tests with it have in common.
    pub fn test(&self) -> Test {
        Test {
            dscp: self.dscp,
            patience: Nanos::SECOND,
            queue: self.wait.into(),
            ..Test::default()
        }
    }
}

/// Why a responder cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Its name has none of the addresses that may be used.
    #[error("`{0}` has no address of the family that is asked for")]
    NoAddress(String),
    /// The interface cannot be used.
    #[error("cannot use the interface {device}")]
    Device {
        /// Name of the interface.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The local address cannot be used.
    #[error("cannot send from {address}")]
    Bind {
        /// The local address.
        address: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no connection.
    #[error("{0}")]
    Connect(#[from] io::Error),
}

/// Why there is no session with a responder, or why a test in it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The responder's name is unknown.
    #[error("`{address}` is no HOST:PORT that can be found")]
    Unknown {
        /// What was looked up.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No connection to it came about.
    #[error("cannot reach {address}")]
    Unreachable {
        /// What was to be reached.
        address: String,
        /// Why the last of its addresses could not be.
        source: ConnectError,
    },
    /// What is there does not speak as a responder does.
    #[error("{address} is no responder")]
    NoResponder {
        /// What was reached.
        address: String,
        /// What is wrong with what it said.
        source: ControlError,
    },
    /// What is there says nothing.
    #[error("{address} says nothing: it is no responder")]
    Silent {
        /// What was reached.
        address: String,
    },
    /// The responder is of another version.
    #[error(
        "{address} speaks version {theirs} of the messages, this program {ours}: use the same version of evlbi at both ends"
    )]
    Version {
        /// The responder.
        address: String,
        /// Its version of the messages.
        theirs: u32,
        /// The version here.
        ours: u32,
    },
    /// The responder takes nobody.
    #[error("{address}: {reason}")]
    TurnedAway {
        /// The responder.
        address: String,
        /// Why, in its words.
        reason: String,
    },
    /// The responder does not go on once it was shown the token.
    #[error("{address} refused: is the token the one that it was given?")]
    Token {
        /// The responder.
        address: String,
        /// What became of the connection; none where it said something else.
        source: Option<ControlError>,
    },
    /// The responder takes nobody with this token.
    #[error("{address} refuses: {reason}")]
    Denied {
        /// The responder.
        address: String,
        /// Why, in its words.
        reason: String,
    },
    /// The responder does not do the test that it is asked for.
    #[error("the responder refuses: {0}")]
    Refused(String),
    /// The responder says what does not belong there.
    #[error("the responder said what makes no sense here")]
    Unexpected,
    /// The responder says nothing.
    #[error("the responder does not answer")]
    NoAnswer,
    /// The responder has gone silent.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// The run was stopped.
    #[error("interrupted")]
    Interrupted,
    /// The test cannot be.
    #[error("{0}")]
    Test(#[from] TestError),
    /// The control connection does not go on.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// There is no socket for datagrams.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// There are no connections to test.
    #[error("{0}")]
    Tcp(#[from] TcpError),
    /// This end could not do its part.
    #[error("{0}")]
    Work(#[from] WorkError),
    /// Whoever is told of the test's course cannot go on.
    #[error("{0}")]
    Told(#[source] Box<dyn Error + Send + Sync>),
    /// The kernel refused something else.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The other end is silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end has said nothing for {0} s")]
pub struct Gone(u64);

type Result<T, E = SessionError> = std::result::Result<T, E>;

/// A session with a responder that knows the token.
pub struct Session {
    control: Control,
    limits: Limits,
    device: Option<String>,
    /// Of the next test of TCP.
    pub files: Files,
}

/// Takes what happens during a test.
type Show<'a> = dyn FnMut(&Event<'_>) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// What both ends know of a test.
#[derive(Debug)]
pub struct TestReport {
    pub here: EndpointReport,
    pub there: EndpointReport,
    /// What the responder's address is.
    pub peer: SocketAddr,
    /// Round trips before and after the streams.
    pub clock: Vec<RoundTrip>,
    /// Requests that left, of those that were measured.
    pub requests: u64,
    /// Why it ended before its time.
    pub stopped: Option<String>,
}

/// What happens during a test.
pub enum Event<'a> {
    /// It goes on.
    Progress(&'a Progress),
    /// A window of a stream is settled.
    Settled(&'a Settled<'a>),
}

/// A window of a stream, and what the hosts have counted since the last window but one: counters are read when a window is
/// settled, which is somewhat after its end.
pub struct Settled<'a> {
    pub direction: Direction,
    pub window: &'a Window,
    /// Datagrams of all windows so far that the sending kernel refused.
    pub not_sent: u64,
    pub sender: Side<'a>,
    pub receiver: Side<'a>,
}

/// What a host has counted, and the interface that it uses.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub counters: &'a Counters,
    pub interface: Option<&'a str>,
}

/// How far a test is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Progress {
    /// Datagrams that left here, or bytes that were given to connections.
    pub used: u64,
    /// Of these, arrived there.
    pub arrived_there: u64,
    /// Arrived here.
    pub arrived_here: u64,
    /// Seconds since the streams began.
    pub seconds: f64,
    /// What the kernel here says of connections.
    pub connections: Vec<Reading>,
}

impl Session {
    /// Reaches a responder and shows that both know the token.
    pub fn begin(target: &Target, run: &Run) -> Result<Session> {
        let Target { address, token, .. } = target;
        let stream = connect(target, run)?;
        let mut control = Control::new(stream, Role::Client, run.clock());
        let hello = first(&mut control, run);
        let address = || address.clone();
        let hello = hello.map_err(|source| SessionError::NoResponder {
            address: address(),
            source,
        })?;
        go_on(run)?;
        let theirs = match hello {
            Some(FromResponder::Hello { version, nonce }) if version == VERSION => nonce,
            Some(FromResponder::Hello { version, .. }) => {
                return Err(SessionError::Version {
                    address: address(),
                    theirs: version,
                    ours: VERSION,
                });
            }
            Some(FromResponder::Refused { reason }) => {
                let address = address();
                return Err(SessionError::TurnedAway { address, reason });
            }
            _ => return Err(SessionError::Silent { address: address() }),
        };
        let ours = nonce(run.clock());
        control.send(&FromClient::Proof {
            version: VERSION,
            nonce: ours,
            proof: Channel::proof(token, [&theirs, &ours]),
        })?;
        control.secure(token, [&theirs, &ours]);
        let refused = |source| SessionError::Token {
            address: address(),
            source,
        };
        let welcome = first(&mut control, run).map_err(|error| refused(Some(error)))?;
        go_on(run)?;
        match welcome {
            Some(FromResponder::Welcome { limits }) => Ok(Session {
                control,
                limits,
                device: target.device.clone(),
                files: Files::default(),
            }),
            Some(FromResponder::Refused { reason }) => {
                let address = address();
                Err(SessionError::Denied { address, reason })
            }
            _ => Err(refused(None)),
        }
    }

    /// Round trip to the responder in seconds, as the kernel knows it of the control connection.
    pub fn round_trip(&self) -> f64 {
        let info = self.control.stream().info();
        info.map_or(0.0, |info| f64::from(info.shortest_round_trip) * 1e-6)
    }

    /// Whether it is over IPv6.
    pub fn is_v6(&self) -> bool {
        let peer = self.control.stream().peer_addr();
        peer.is_ok_and(|peer| peer.ip().to_canonical().is_ipv6())
    }

    /// What the responder allows.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Runs a test: its streams, or requests.
    pub fn run(&mut self, test: &Test, run: &Run, show: &mut Show<'_>) -> Result<TestReport> {
        self.limits.allow(test)?;
        self.control
            .send(&FromClient::Open(Box::new(test.clone())))?;
        let (key, port, door, interface) = self.opened(run)?;
        let mut peer = self.control.stream().peer_addr()?;
        let mut local = self.control.stream().local_addr()?;
        peer.set_port(port);
        local.set_port(0);
        let [peer, local] = [peer, local].map(plain);
        let port = Port::open(local, test, self.device.clone(), run)?;
        let local = port.local_address();
        let interfaces = [port.interface(), interface];
        let work = Work::begin(port, Some(peer), key, test.back.as_ref(), test, None, run)?;
        let connections = match (&test.flows, door) {
            (Some(flows), Some(door)) => {
                let mut to = peer;
                to.set_port(door);
                flows.connect(to, local, self.device.as_deref(), test.dscp, key, run)?
            }
            _ => Vec::new(),
        };
        let mut testing = Testing {
            control: &mut self.control,
            work,
            hosts: Hosts {
                interfaces,
                ..Hosts::default()
            },
            clock: CLOCK_FROM,
            test,
            run,
            show,
        };
        testing.be_found(local.port())?;
        testing.look_at_clock()?;
        testing.work.observe()?;
        testing.control.send(&FromClient::Go)?;
        match (test.there, test.requests) {
            (Some(stream), _) => testing.work.send(stream, test)?,
            (None, Some(requests)) => testing.work.ask(0, requests)?,
            (None, None) => {}
        }
        if let Some(flows) = &test.flows {
            let files = std::mem::take(&mut self.files);
            let work = &mut testing.work;
            work.begin_flows(connections, flows, files, true, test.most_time)?;
        }
        testing.hosts.begin = run.counters().unwrap_or_default();
        let (stopped, requests, there) = match testing.both() {
            // What was measured here is kept.
            Err(error) if test.flows.is_some() => {
                (Some(run.explain(&error)), 0, EndpointReport::default())
            }
            both => both?,
        };
        let mut here = testing.work.finish()?;
        let departed = here.departed.as_ref();
        let stopped = stopped.or_else(|| departed?.stopped.clone());
        let trips = here.listened.round_trips.into_iter();
        let (clock, measured) = trips.partition(|trip| trip.sequence >= CLOCK_FROM);
        here.listened.round_trips = measured;
        Ok(TestReport {
            here,
            there,
            peer,
            clock,
            requests,
            stopped,
        })
    }

    /// Waits for the responder's socket: the test's key, the ports of the socket and of the door to connections, and the
    /// interface.
    fn opened(&mut self, run: &Run) -> Result<(u64, u16, Option<u16>, Option<String>)> {
        let mut told = false;
        let clock = run.clock();
        let mut heard = clock.now();
        loop {
            go_on(run)?;
            match self.control.receive(LOOK * 5)? {
                Some(FromResponder::Opened {
                    key,
                    port,
                    door,
                    interface,
                }) => return Ok((key, port, door, interface)),
                Some(FromResponder::Waiting { reason }) => {
                    if !told {
                        run.line(format_args!("waiting: {reason}"));
                    }
                    told = true;
                    heard = clock.now();
                    // It waits still.
                    self.control
                        .send(&FromClient::Alive { unique: 0, used: 0 })?;
                }
                None if clock.now().since(heard) < GONE.into() => {}
                other => return Err(unexpected(other)),
            }
        }
    }
}

/// A test under way.
struct Testing<'a, 'b> {
    control: &'a mut Control,
    work: Work,
    hosts: Hosts,
    /// Number of the next request that tells how the clocks lie.
    clock: u64,
    test: &'a Test,
    run: &'a Run,
    show: &'a mut Show<'b>,
}

impl Testing<'_, '_> {
    /// Until both ends have done their part: why it ended before its time, requests that left, and what the responder knows.
    fn both(&mut self) -> Result<(Option<String>, u64, EndpointReport)> {
        let stopped = self.watch()?;
        let requests = self.test.requests.map_or(0, |_| self.work.asked());
        // While the listener still takes up replies.
        self.look_at_clock()?;
        if let Some(used) = self.hosts.used_there {
            self.work.told_used(used, true);
        }
        Ok((stopped, requests, self.done()?))
    }

    /// Has the responder find this end's socket.
    fn be_found(&mut self, port: u16) -> Result<()> {
        go_on(self.run)?;
        let clock = self.run.clock();
        let asked = clock.now();
        self.ask_clock(1)?;
        self.control.send(&FromClient::Start { port })?;
        loop {
            match self.control.receive(LOOK)? {
                Some(FromResponder::Started) => return Ok(()),
                None if clock.now().since(asked) < GONE.into() => {}
                other => return Err(unexpected(other)),
            }
            go_on(self.run)?;
            self.ask_clock(1)?;
        }
    }

    /// Some round trips, while nothing else is under way; again where nothing comes back.
    fn look_at_clock(&mut self) -> Result<()> {
        let replies = |work: &Work| work.heard().clock.load(Ordering::Relaxed);
        let before = replies(&self.work);
        for _ in 0..CLOCK_TRIES {
            self.ask_clock(ROUND_TRIPS)?;
            let clock = self.run.clock();
            let asked = clock.now();
            let replies = || replies(&self.work) - before;
            let patience = || match self.run.is_stopped() {
                true => Nanos::from(REPLIES_AT_STOP),
                false => REPLIES.into(),
            };
            while replies() < ROUND_TRIPS && clock.now().since(asked) < patience() {
                clock.sleep(Duration::from_millis(1));
            }
            if replies() > 0 || self.run.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Sends requests that tell how the clocks lie.
    fn ask_clock(&mut self, count: u64) -> Result<()> {
        let requests = Requests {
            count,
            size: REQUEST,
            apart: APART,
        };
        self.work.ask(self.clock, requests)?;
        self.clock += count;
        Ok(())
    }

    /// While the streams last. Says why they ended before their time.
    fn watch(&mut self) -> Result<Option<String>> {
        let (test, run, clock) = (self.test, self.run, self.run.clock());
        let begun = clock.now();
        let mut link = Link::new(test, begun);
        let (mut stopped, mut has_all) = (None, test.back.is_none());
        let (mut sent_at, mut stopped_at) = (None, None::<Nanos>);
        loop {
            match self.hear(&mut link)? {
                Some(FromResponder::Sent(departed)) => {
                    self.hosts.used_there = Some(departed.used);
                    stopped = stopped.or(departed.stopped);
                    has_all = true;
                }
                None => {}
                other => return Err(unexpected(other)),
            }
            let now = clock.now();
            let work = &mut self.work;
            if link.is_due(now) {
                say_alive(self.control, work)?;
                let shown = (self.show)(&Event::Progress(&Progress {
                    used: work.used().max(work.asked()).max(work.given()),
                    arrived_there: link.arrived,
                    arrived_here: work.arrived(),
                    seconds: now.since(begun).as_secs_f64(),
                    connections: work.readings(),
                }));
                shown.map_err(SessionError::Told)?;
            }
            let has_sent = work.has_sent()?;
            if !has_sent && stopped.is_none() {
                if run.is_stopped() {
                    stopped = Some("interrupted".to_owned());
                } else if test.gives() && link.is_broken(now) {
                    stopped = Some(link.broken());
                    work.give_up();
                }
                if stopped.is_some() {
                    work.stop_sending();
                    stopped_at = Some(now);
                }
            }
            let most = Nanos::from(draining(run.is_stopped()));
            if stopped_at.is_some_and(|at| now.since(at) > most) {
                work.give_up();
            }
            let has_all = has_all && work.has_taken();
            if run.is_stopped() && has_sent && !has_all {
                // The responder stops when this end says that it is over.
                return Ok(Some("interrupted".to_owned()));
            }
            // Replies are under way.
            let since = has_sent.then(|| *sent_at.get_or_insert(now));
            let has_replies = test.requests.is_none_or(|all| {
                let replies = work.heard().replies.load(Ordering::Relaxed);
                let is_over = since.is_some_and(|since| now.since(since) >= test.patience);
                replies >= all.count || is_over || run.is_stopped()
            });
            if has_sent && has_all && has_replies {
                return Ok(stopped);
            }
        }
    }

    /// Takes up what the responder says, and what is settled here; what is neither is for the caller.
    fn hear(&mut self, link: &mut Link) -> Result<Option<FromResponder>> {
        let message = self
            .control
            .receive::<FromResponder>(look(self.test, self.run.is_stopped()))?;
        let now = self.run.clock().now();
        link.check(self.control, now)?;
        let rest = match message {
            Some(FromResponder::Alive {
                unique,
                used,
                not_sent,
                host,
            }) => {
                link.arrived(unique, now);
                self.work.told_used(used, false);
                self.hosts.not_sent_there = not_sent;
                if let Some(host) = host {
                    self.hosts.there = *host;
                }
                None
            }
            Some(FromResponder::Window { window, host }) => {
                self.hosts.there = *host;
                self.settled(Direction::There, &window, self.work.not_sent())?;
                None
            }
            other => other,
        };
        self.tell_windows()?;
        Ok(rest)
    }

    /// Tells the responder that all was sent. After a stop neither host waits for missing datagrams: returns when that was.
    fn say_over(&mut self) -> Result<Option<Nanos>> {
        let is_in_haste = self.run.is_stopped();
        if is_in_haste {
            self.work.make_haste();
        }
        let used = self.work.used();
        self.control.send(&FromClient::Over { used, is_in_haste })?;
        Ok(is_in_haste.then(|| self.run.clock().now()))
    }

    /// What the responder knows of the test; and what there is still to hear.
    fn done(&mut self) -> Result<EndpointReport> {
        let (test, run, clock) = (self.test, self.run, self.run.clock());
        let mut link = Link::new(test, clock.now());
        let mut stopped_at = self.say_over()?;
        let end = loop {
            match self.hear(&mut link)? {
                Some(FromResponder::Done(end)) => break *end,
                Some(FromResponder::Sent(departed)) => self.work.told_used(departed.used, true),
                None => {}
                other => return Err(unexpected(other)),
            }
            let now = clock.now();
            if link.is_due(now) {
                say_alive(self.control, &self.work)?;
            }
            if run.is_stopped() && stopped_at.is_none() {
                stopped_at = self.say_over()?;
            }
            let is_silent =
                |at: Nanos| self.control.heard() < at && now.since(at) > STOPPING.into();
            if stopped_at.is_some_and(is_silent) {
                return Err(SessionError::Interrupted);
            }
        };
        if test.back.is_some() {
            let begun = clock.now();
            let patience = || match run.is_stopped() {
                true => Nanos::from(STOPPING),
                false => test.patience.plus(TAKING_UP.into()),
            };
            while !self.work.has_heard() && clock.now().since(begun) < patience() {
                if run.is_stopped() {
                    self.work.make_haste();
                }
                clock.sleep(Duration::from_millis(1));
            }
            self.tell_windows()?;
        }
        Ok(end)
    }

    /// Tells of the windows that are settled here.
    fn tell_windows(&mut self) -> Result<()> {
        while let Some(window) = self.work.window() {
            self.settled(Direction::Back, &window, self.hosts.not_sent_there)?;
        }
        Ok(())
    }

    /// Tells of a window.
    fn settled(&mut self, direction: Direction, window: &Window, not_sent: u64) -> Result<()> {
        let hosts = &mut self.hosts;
        let here = self.run.counters().unwrap_or_default().since(&hosts.begin);
        let now = [here, hosts.there.clone()];
        // A window is settled after the loss timeout; messages that say what has left, and bring the counters, come once a second.
        let stream = match direction {
            Direction::There => &self.test.there,
            Direction::Back => &self.test.back,
        };
        let length = stream.as_ref().zip(self.test.window);
        let length = length.map_or(Nanos(0), |(stream, count)| stream.due(count));
        let since = length.plus(self.test.patience).plus((4 * ALIVE).into());
        let told = self.run.clock().now();
        let past = &mut hosts.past[direction as usize];
        let is_before = |(at, _): &(Nanos, [Counters; 2])| told.since(*at) >= since;
        while past.get(1).is_some_and(is_before) {
            past.pop_front();
        }
        let before = past.front().filter(|it| is_before(it));
        let before = before
            .map(|(_, counted)| counted.clone())
            .unwrap_or_default();
        let changes = [0, 1].map(|end| now[end].since(&before[end]));
        if past
            .back()
            .is_none_or(|(at, _)| told.since(*at) >= SLOW_LOOK.into())
        {
            past.push_back((told, now));
        }
        let [here, there] = [0, 1].map(|end| Side {
            counters: &changes[end],
            interface: hosts.interfaces[end].as_deref(),
        });
        let (sender, receiver) = direction.ends(here, there);
        (self.show)(&Event::Settled(&Settled {
            direction,
            window,
            not_sent,
            sender,
            receiver,
        }))
        .map_err(SessionError::Told)
    }
}

fn say_alive(control: &mut Control, work: &Work) -> Result<(), ControlError> {
    let (unique, used) = (work.arrived(), work.used());
    control.send(&FromClient::Alive { unique, used })
}

/// What both hosts have counted since the beginning, from window to window of either way.
#[derive(Default)]
struct Hosts {
    begin: Counters,
    there: Counters,
    not_sent_there: u64,
    /// Numbers of its stream that the responder has used in all, once it has said so.
    used_there: Option<u64>,
    /// Here and there.
    interfaces: [Option<String>; 2],
    /// Of each way: here and there, when windows were told; back to before the next one that is told can have begun.
    past: [VecDeque<(Nanos, [Counters; 2])>; 2],
}

/// Who is there, and how far it is.
pub struct Link {
    gone: Duration,
    breaker: Duration,
    /// The same before anything has arrived.
    first: Duration,
    said: Nanos,
    arrived: u64,
    arrived_at: Nanos,
}

impl Link {
    pub fn new(test: &Test, now: Nanos) -> Link {
        let streams = test.there.iter().chain(&test.back);
        let spacings = streams.map(|stream| stream.due(SPACINGS * u64::from(stream.burst)));
        let spacings = Duration::from_nanos(spacings.max().unwrap_or_default().0);
        let of = |usual: Duration| match &test.flows {
            _ if test.window.is_some() => WATCHED,
            Some(_) => STALLED,
            None => usual,
        };
        let breaker = of(BREAKER).max(spacings);
        Link {
            gone: of(GONE),
            breaker,
            first: test.flows.as_ref().map_or(breaker, |_| NOTHING),
            said: now,
            arrived: 0,
            arrived_at: now,
        }
    }

    /// Whether the other end is still there.
    pub fn check(&self, control: &Control, now: Nanos) -> Result<(), Gone> {
        match now.since(control.heard()) > self.gone.into() {
            true => Err(Gone(self.gone.as_secs())),
            false => Ok(()),
        }
    }

    /// So much of the stream has arrived there.
    pub fn arrived(&mut self, unique: u64, now: Nanos) {
        if unique > self.arrived {
            self.arrived = unique;
            self.arrived_at = now;
        }
    }

    /// Whether nothing has arrived for too long.
    pub fn is_broken(&self, now: Nanos) -> bool {
        now.since(self.arrived_at) > self.patience().into()
    }

    fn patience(&self) -> Duration {
        match self.arrived {
            0 => self.first,
            _ => self.breaker,
        }
    }

    /// What is said when a stream is stopped because nothing of it arrives.
    pub fn broken(&self) -> String {
        format!(
            "nothing arrived at the other end for {} s, so sending was stopped (circuit breaker, RFC 8084)",
            self.patience().as_secs()
        )
    }

    /// Whether it is time to say something.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let due = now.since(self.said) >= ALIVE.into();
        if due {
            self.said = now;
        }
        due
    }
}

/// Time between looks at what comes of a test.
pub fn look(test: &Test, is_in_haste: bool) -> Duration {
    match test.window {
        Some(_) if !is_in_haste => SLOW_LOOK,
        _ => LOOK,
    }
}

/// How long what connections hold has to leave.
pub fn draining(is_in_haste: bool) -> Duration {
    match is_in_haste {
        true => DRAINING_AT_STOP,
        false => DRAINING,
    }
}

/// IPv4 as such, where a socket of both families tells it as IPv6.
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn unexpected(message: Option<FromResponder>) -> SessionError {
    match message {
        Some(FromResponder::Refused { reason }) => SessionError::Refused(reason),
        Some(_) => SessionError::Unexpected,
        None => SessionError::NoAnswer,
    }
}

/// Returns an error once the run is stopped.
fn go_on(run: &Run) -> Result<()> {
    match run.is_stopped() {
        true => Err(SessionError::Interrupted),
        false => Ok(()),
    }
}

/// Receives a message of the handshake; `None` after a timeout, or when the run is stopped.
fn first(control: &mut Control, run: &Run) -> Result<Option<FromResponder>, ControlError> {
    let clock = run.clock();
    let end = clock.now().plus(CONNECTING.into());
    loop {
        let message = control.receive(LOOK * 5)?;
        if message.is_some() || clock.now() > end || run.is_stopped() {
            return Ok(message);
        }
    }
}

/// Resolves HOST:PORT, in a separate thread because a look-up cannot be cancelled.
fn resolve(address: &str, run: &Run) -> Result<Vec<SocketAddr>> {
    let (tell, told) = mpsc::channel();
    let name = address.to_owned();
    let clock = run.clock();
    let look_up = move || tell.send(name.to_socket_addrs().map(Vec::from_iter));
    clock.spawn("look up", look_up)?;
    loop {
        match clock.receive_by(&told, clock.now().plus(LOOK.into())) {
            Err(RecvTimeoutError::Timeout) => go_on(run)?,
            found => {
                let found = found.map_err(io::Error::other)?;
                return found.map_err(|source| SessionError::Unknown {
                    address: address.to_owned(),
                    source,
                });
            }
        }
    }
}

fn connect(target: &Target, run: &Run) -> Result<Stream> {
    let Target { address, .. } = target;
    let mut refused = ConnectError::NoAddress(address.clone());
    let bind = target.bind;
    let fits = |to: &SocketAddr| bind.is_none_or(|bind| bind.is_ipv4() == to.is_ipv4());
    for to in resolve(address, run)?.into_iter().filter(fits) {
        go_on(run)?;
        match connect_to(to, target, run) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    go_on(run)?;
    Err(SessionError::Unreachable {
        address: address.clone(),
        source: refused,
    })
}

fn connect_to(to: SocketAddr, target: &Target, run: &Run) -> Result<Stream, ConnectError> {
    let unconnected = Unconnected::new(to, run, |socket| {
        socket.set_tcp_nodelay(true)?;
        if let Some(device) = &target.device {
            let bound = socket.bind_device(Some(device.as_bytes()));
            bound.map_err(|source| ConnectError::Device {
                device: device.clone(),
                source,
            })?;
        }
        if let Some(address) = target.bind {
            let bound = socket.bind(&SocketAddr::new(address, 0).into());
            bound.map_err(|source| ConnectError::Bind { address, source })?;
        }
        Ok::<(), ConnectError>(())
    })?;
    Ok(unconnected.connect(to, CONNECTING, run)?)
}

#[cfg(test)]
mod tests {
    use crate::endpoint::Flows;
    use crate::measure::{Spacing, Stream};

    use super::*;

    /// Seconds after which the other end is gone, and after which a sender of whose stream nothing has arrived, or nothing more
    /// arrives, stops.
    fn patience(test: &Test) -> [f64; 3] {
        let mut link = Link::new(test, Nanos(0));
        let first = link.patience();
        link.arrived(1, Nanos(0));
        [link.gone, first, link.patience()].map(|time| time.as_secs_f64())
    }

    #[test]
    fn a_sender_stops_when_nothing_arrives() {
        let of = |spacing: u64, burst: u32| Test {
            there: Some(Stream {
                size: 1000,
                spacing: Spacing::Nanoseconds(spacing),
                burst,
                count: 10,
            }),
            ..Test::default()
        };
        let stream = of(1000, 1);
        assert_eq!(patience(&stream), [8.0, 5.0, 5.0]);
        // One every three seconds, and trains every three: five of them.
        for burst in [1, 10] {
            assert_eq!(patience(&of(3_000_000_000, burst)), [8.0, 15.0, 15.0]);
        }
        // Of the slower way.
        let both = Test {
            back: of(3_000_000_000, 1).there,
            ..stream.clone()
        };
        assert_eq!(patience(&both), [8.0, 15.0, 15.0]);
        // Outages of a path that is watched are measured.
        let watched = Test {
            window: Some(1000),
            ..stream
        };
        assert_eq!(patience(&watched), [60.0, 60.0, 60.0]);
        // TCP itself waits for a path to come back, but not for one that never was.
        let flows = Test {
            flows: Some(Flows::default()),
            ..Test::default()
        };
        assert_eq!(patience(&flows), [30.0, 10.0, 30.0]);
    }

    #[test]
    fn what_arrived_counts_once() {
        let mut link = Link::new(&Test::default(), Nanos(0));
        let late = Nanos::from(BREAKER * 2);
        link.arrived(0, late);
        assert!(link.is_broken(late));
        link.arrived(5, late);
        assert!(!link.is_broken(late));
        // A count that was reported before, or an older one, is not an arrival.
        let later = late.plus(late);
        link.arrived(5, later);
        link.arrived(4, later);
        assert_eq!((link.arrived_at, link.arrived), (late, 5));
        assert!(link.is_broken(later));
        assert!(link.broken().contains("for 5 s") && link.broken().contains("RFC 8084"));
    }
}

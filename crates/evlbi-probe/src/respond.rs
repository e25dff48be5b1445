//! Responder for probes: grants tests to clients that hold the token, within limits, and performs its part of them.
//!
//! Limits, isolation of clients and cleaning up belong here. The tests themselves are in [`endpoint`](crate::endpoint).

mod room;
mod running;

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Thread;
use evlbi_net::responder;
use evlbi_net::run::Run;
use evlbi_net::tcp::{Listener, Stream as Connection, TcpError};
use evlbi_net::udp::OpenError;
use evlbi_wire::units::show_rate;
use parking_lot::Mutex;
use smart_default::SmartDefault;

use self::room::{Room, Taken};
use crate::control::{Control, ControlError, nonce};
use crate::endpoint::{FromClient, FromResponder, Limits, TestError, VERSION, WorkError};
use crate::measure::{Channel, Role, Token};
use crate::session::{Gone, POLL_INTERVAL, SLOW_POLL_INTERVAL};

/// Maximum number of unauthenticated connections; above it, the oldest are closed.
const MAX_STRANGERS: usize = 64;
/// Maximum number of authenticated sessions.
const MAX_SESSIONS: usize = 64;
/// Timeout for authentication.
const PROVING: Duration = Duration::from_secs(5);
/// Timeout of a session without a test.
const IDLE: Duration = Duration::from_secs(120);

/// Address, token and limits of a responder.
#[derive(Clone, Debug, SmartDefault)]
pub struct RespondOptions {
    /// Address for control connections (TCP); port 0 for a free one.
    #[default(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), responder::PORT))]
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

/// Reason why a responder cannot start, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The token is empty.
    #[error("empty token: anyone could use the responder")]
    NoToken,
    /// The directory for clients' files does not exist.
    #[error("{} is not a directory", .0.display())]
    NoFolder(PathBuf),
    /// The address for control connections cannot be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Another error of the system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A session panicked.
    #[error("a session of the responder panicked")]
    Panicked,
}

/// Reason why a responder did not serve a client, or not to the end. A client whose test is refused receives it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It did not authenticate.
    #[error("{0}")]
    Stranger(String),
    /// Its connection ended before it authenticated.
    #[error("connection closed before authentication")]
    Unproven(#[source] ControlError),
    /// Too many sessions are open.
    #[error("too many sessions: {0} are open")]
    Full(usize),
    /// The test is invalid, or exceeds the limits.
    #[error("{0}")]
    Test(#[from] TestError),
    /// Other tests left no room for it as long as the client waited.
    #[error("{0}")]
    Busy(String),
    /// All ports for tests are in use.
    #[error("all ports for tests ({from} to {to}) are in use")]
    NoPort {
        /// The first of the ports.
        from: u16,
        /// The last of the ports.
        to: u16,
    },
    /// Nothing arrives by UDP.
    #[error(
        "no UDP datagram arrived from {from} at port {to} here: a firewall or another device on the path drops them"
    )]
    Blocked {
        /// The client's address.
        from: IpAddr,
        /// The local port.
        to: u16,
    },
    /// The test is of a file, and there is no directory for files.
    #[error("this responder does not transfer files")]
    NoFiles,
    /// The file would not be in the directory itself.
    #[error("invalid file name `{0}`: it must be in the responder's directory itself")]
    FileName(String),
    /// The file cannot be sent.
    #[error("the responder cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be created: often it exists.
    #[error("the responder cannot create {}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The control connection failed.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// The client fell silent in a test.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// The client fell silent while it waited for others' tests.
    #[error("no message from the client for {0} s")]
    GoneWaiting(u64),
    /// The client does not start its test.
    #[error("the client does not start its test")]
    Stuck,
    /// The test takes longer than it may.
    #[error("the test exceeded its time limit and was stopped")]
    TooLong,
    /// The responder is stopped.
    #[error("the responder is stopping")]
    Ending,
    /// There is no UDP socket.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// There are no TCP connections to test.
    #[error("{0}")]
    Tcp(#[from] TcpError),
    /// This endpoint failed.
    #[error("{0}")]
    Work(#[from] WorkError),
    /// Another error of the system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ServeError {
    /// Returns whether an address is in use.
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

/// Starts a responder that grants tests until it is stopped.
///
/// # Errors
/// [`RespondError`] if the token is empty, the directory does not exist, or the address is in use.
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
    /// Time of the last note about a refusal, and number of refusals since.
    refusals: Mutex<(Nanos, u64)>,
    run: Run,
}

/// Connected clients.
#[derive(Default)]
struct Peers {
    next: u64,
    /// Clients in the order of their connections.
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

    /// Serves all clients until the run is stopped; then all sessions end.
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
                    listener.wait(clock, clock.now().plus(SLOW_POLL_INTERVAL.into()));
                }
                // From one aborted connection, or too many open files: others continue.
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
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

    /// Reports a refused client, and at most a second later the number of further ones.
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
            let full = ServeError::Full(MAX_SESSIONS);
            let reason = full.to_string();
            control.send(&FromResponder::Refused { reason })?;
            return Err(full);
        };
        let limits = self.options.limits;
        control.send(&FromResponder::Welcome { limits })?;
        tracing::info!("{peer} starts a session");
        self.session(&mut control, peer)
    }

    /// Admits another unauthenticated client; closes the oldest if there are too many.
    fn let_in(&self, stream: &Connection) -> Served<u64> {
        let mut peers = self.peers.lock();
        // Otherwise nothing would end it.
        self.ensure_running()?;
        peers.next += 1;
        let number = peers.next;
        peers.all.push(Peer {
            number,
            stream: stream.try_clone()?,
            is_known: false,
        });
        let strangers = peers.all.iter().filter(|peer| !peer.is_known);
        if strangers.count() > MAX_STRANGERS
            && let Some(oldest) = peers.all.iter().position(|peer| !peer.is_known)
        {
            let _ = peers.all.remove(oldest).stream.shutdown(Shutdown::Both);
        }
        Ok(number)
    }

    /// Authenticates a client.
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
                refuse(control, &format!("this responder has version {VERSION}"));
                stranger(format!("refused: its version is {version}"))
            }
            Ok(Some(FromClient::Proof { nonce, proof, .. })) => {
                if !Channel::is_proof(&self.options.token, [&ours, &nonce], &proof) {
                    refuse(control, "wrong token");
                    return stranger("refused: wrong token".to_owned());
                }
                control.secure(&self.options.token, [&ours, &nonce]);
                Ok(())
            }
            Ok(Some(_)) => stranger("refused: it does not authenticate".to_owned()),
            Ok(None) => stranger(format!("closed: no message for {} s", PROVING.as_secs())),
            Err(error) => Err(ServeError::Unproven(error)),
        }
    }

    /// Performs tests, one after another.
    fn session(&self, control: &mut Control, peer: SocketAddr) -> Served {
        let clock = self.run.clock();
        let mut last = clock.now();
        while clock.now().since(last) < IDLE.into() && !self.run.is_stopped() {
            let message = match control.receive(POLL_INTERVAL * 5) {
                Ok(message) => message,
                Err(error @ ControlError::Channel(_)) => return Err(error.into()),
                // The client ends the session like this.
                Err(_) => return Ok(()),
            };
            // Anything else belongs to a test that has just ended.
            if let Some(FromClient::Open(test)) = message {
                if let Err(error) = self.test(control, &test, peer) {
                    self.ensure_running()?;
                    let reason = self.run.explain(&error);
                    tracing::warn!("{peer}: {reason}");
                    control.send(&FromResponder::Refused { reason })?;
                }
                last = clock.now();
            }
        }
        Ok(())
    }

    fn ensure_running(&self) -> Served {
        match self.run.is_stopped() {
            true => Err(ServeError::Ending),
            false => Ok(()),
        }
    }
}

fn rate_or_any(rate: Option<f64>) -> String {
    rate.map_or("any rate".to_owned(), show_rate)
}

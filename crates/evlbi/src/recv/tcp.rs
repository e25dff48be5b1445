//! The raw stream over TCP: nothing is lost or out of order on the way.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use evlbi_core::account;
use evlbi_core::deframe::{self, Deframer};
use evlbi_net::file::Over;
use evlbi_net::receive::{Ended, ReceiveReport, Refused};

use super::open_sink;
use super::result::{Beside, RecvResult, finish};
use crate::cli::RecvArgs;
use crate::drain::{self, Shown, Straight};
use crate::progress::{Progress, interrupt};
use crate::steer::{self, Receiving as Status};
use crate::units::show_rate;

/// Bytes read from a stream at a time.
const BLOCK: usize = 1 << 20;
/// A connection that brought so many bytes without frames carries the stream, if no other brought frames.
const ENOUGH: usize = 16 << 10;
/// Connections that are kept of which that is not known yet.
const MOST_WAITING: usize = 64;
/// Refused connections that are named.
const MOST_SAID: u64 = 10;

/// Receives a stream over TCP, which goes straight to the sink.
pub fn receive(args: &RecvArgs, settings: deframe::Settings) -> Result<RecvResult> {
    let address = args.from.addresses().map_err(|error| anyhow!(error))?[0];
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let (start, duration, interrupted) = (Instant::now(), args.duration, interrupt());
    let over = Over::new(move || {
        let is_time_over = duration.is_some_and(|duration| start.elapsed() >= duration);
        interrupted.load(Ordering::Relaxed) || is_time_over
    });
    let sink = open_sink(args, over.clone())?;
    steer::say_listening(listener.local_addr()?);
    let mut waiting = Waiting {
        only: args.source,
        settings: settings.clone(),
        callers: Vec::new(),
        refused: 0,
        others: Vec::new(),
    };
    let mut straight = Straight::new(settings, sink);
    let mut stream = Tcp::default();
    steer::on_status({
        let bytes = Arc::clone(&stream.bytes);
        move || tell_bytes(&bytes, None)
    });
    let mut progress = Progress::new(args.duration.map(|duration| duration.as_millis() as u64));
    stream
        .beside
        .write(args, Status::default(), &Shown::default());
    let caller = loop {
        if let Some(caller) = waiting.next(&listener) {
            break Some(caller);
        }
        if over.is_over() {
            break None;
        }
        if progress.is_due() {
            progress.show(start.elapsed().as_millis() as u64, "waiting for a stream");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Another sender learns that nobody takes its stream.
    drop(listener);
    waiting.refuse_all();
    let read = match caller {
        Some(caller) => stream.read(caller, args, start, &over, &mut straight, &mut progress),
        None => Ok(None),
    };
    progress.finish();
    let (ended, error) = match read {
        Err(error) => (
            Ended::Failed,
            Some(format!("the connection failed: {error}; what came is kept")),
        ),
        Ok(Some(ended)) => (ended, None),
        Ok(None) if interrupt().load(Ordering::Relaxed) => (Ended::Stopped, None),
        Ok(None) => (Ended::Duration, None),
    };
    let report = ReceiveReport {
        account: account::Report::default(),
        attribution: account::attribute(0, 0, 0, 1),
        foreign_size: 0,
        foreign_source: 0,
        foreign_header: 0,
        refused: waiting.others,
        sender: None,
        datagram_data: None,
        bytes: stream.bytes.load(Ordering::Relaxed),
        seconds: stream.seconds,
        first_arrival: None,
        last_arrival: None,
        socket_drops: 0,
        socket_drops_within: 0,
        most_joined: 0,
        buffer: None,
        ring_slots: 0,
        cpu_seconds: 0.0,
        ended,
        error,
    };
    let mut result = finish(args, report, straight.finish(), None, None)?;
    result.sender = stream.sender;
    result.refused_connections = waiting.refused;
    Ok(result)
}

/// Connections of which it is not known yet whether they carry the stream. One that only connects, or says something else, neither
/// ends the wait for the sender nor keeps it out.
struct Waiting {
    only: Option<IpAddr>,
    settings: deframe::Settings,
    callers: Vec<Caller>,
    /// Connections that brought something that is no stream.
    refused: u64,
    /// Those that brought frames beside the stream.
    others: Vec<Refused>,
}

/// A connection and what has come from it.
struct Caller {
    connection: TcpStream,
    sender: SocketAddr,
    heard: Vec<u8>,
    has_frames: bool,
    is_closed: bool,
}

impl Waiting {
    /// Accepts connections; returns the one that carries the stream: the first that brought frames, else the first that brought much.
    fn next(&mut self, listener: &TcpListener) -> Option<Caller> {
        for _ in 0..MOST_WAITING {
            // Whatever the error is, the next connection may be the sender's.
            let Ok((connection, sender)) = listener.accept() else {
                break;
            };
            let ip = sender.ip().to_canonical();
            let is_wanted = self.only.is_none_or(|only| only.to_canonical() == ip);
            if is_wanted && connection.set_nonblocking(true).is_ok() {
                self.make_room();
                self.callers.push(Caller {
                    connection,
                    sender,
                    heard: Vec::new(),
                    has_frames: false,
                    is_closed: false,
                });
            }
        }
        for caller in &mut self.callers {
            caller.hear(&self.settings);
        }
        let first = |is: fn(&Caller) -> bool| self.callers.iter().position(is);
        let found = first(|caller| caller.has_frames)
            .or_else(|| first(|caller| caller.heard.len() >= ENOUGH))
            .map(|place| self.callers.remove(place));
        let (closed, open) = std::mem::take(&mut self.callers)
            .into_iter()
            .partition(|caller| caller.is_closed);
        self.callers = closed;
        self.refuse_all();
        self.callers = open;
        found
    }

    /// No more connections than are to be kept: the oldest goes of the host that has most.
    fn make_room(&mut self) {
        if self.callers.len() < MOST_WAITING {
            return;
        }
        let of = |ip: IpAddr| {
            self.callers
                .iter()
                .filter(|it| it.sender.ip() == ip)
                .count()
        };
        let most = self.callers.iter().map(|it| of(it.sender.ip())).max();
        let oldest = self
            .callers
            .iter()
            .position(|it| Some(of(it.sender.ip())) == most);
        if let Some(oldest) = oldest {
            self.callers.remove(oldest);
        }
    }

    /// None of these carries the stream.
    fn refuse_all(&mut self) {
        for caller in std::mem::take(&mut self.callers) {
            let bytes = caller.heard.len();
            if caller.has_frames && self.others.len() < MOST_WAITING {
                self.others.push(Refused {
                    sender: caller.sender,
                    datagrams: 0,
                    frames: true,
                });
            } else if bytes > 0 {
                self.refused += 1;
                if self.refused <= MOST_SAID {
                    say!(
                        "evlbi: {} brought {bytes} bytes without frames and no stream: recv ignores them",
                        caller.sender
                    );
                }
            }
        }
    }
}

impl Caller {
    /// Takes what has come, as far as it is needed to know what it is.
    fn hear(&mut self, settings: &deframe::Settings) {
        let before = self.heard.len();
        while self.heard.len() < ENOUGH {
            let start = self.heard.len();
            self.heard.resize(ENOUGH, 0);
            let read = self.connection.read(&mut self.heard[start..]);
            self.heard.truncate(start + read.as_ref().unwrap_or(&0));
            match read {
                Ok(count) if count > 0 => {}
                Err(error) if is_wait(&error) => break,
                _ => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        if self.heard.len() > before {
            let mut deframer = Deframer::new(settings.clone());
            deframer.walk(&self.heard, true, &mut |_| {});
            self.has_frames = deframer.layout().is_some();
        }
    }
}

/// A stream of bytes on its way from a connection to a sink.
#[derive(Default)]
struct Tcp {
    sender: Option<String>,
    buffer: Vec<u8>,
    filled: usize,
    bytes: Arc<AtomicU64>,
    seconds: f64,
    beside: Beside,
}

impl Tcp {
    /// Reads until the sender closes the connection, it is silent for too long, or it is `over`. Says which of
    /// the first two it was.
    fn read(
        &mut self,
        caller: Caller,
        args: &RecvArgs,
        begun: Instant,
        over: &Over,
        straight: &mut Straight,
        progress: &mut Progress,
    ) -> std::io::Result<Option<Ended>> {
        let mut connection = caller.connection;
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(Duration::from_millis(100)))?;
        self.sender = Some(caller.sender.to_string());
        self.filled = caller.heard.len();
        self.bytes.store(self.filled as u64, Ordering::Relaxed);
        self.buffer = caller.heard;
        self.pass_on(straight, false);
        let start = Instant::now();
        let mut last = start;
        let mut before = 0;
        let mut flushed = start;
        let mut shown = Shown::default();
        let ended = loop {
            if self.buffer.len() < self.filled + BLOCK {
                self.buffer.resize(self.filled + BLOCK, 0);
            }
            match connection.read(&mut self.buffer[self.filled..]) {
                Ok(0) => break Ok(Some(Ended::Closed)),
                Ok(count) => {
                    last = Instant::now();
                    self.filled += count;
                    self.bytes.fetch_add(count as u64, Ordering::Relaxed);
                    self.pass_on(straight, false);
                }
                Err(error) if is_wait(&error) => {}
                Err(error) => break Err(error),
            }
            if over.is_over() {
                break Ok(None);
            }
            if args.idle.is_some_and(|idle| last.elapsed() >= idle) {
                break Ok(Some(Ended::Idle));
            }
            if flushed.elapsed() >= drain::SHOW {
                flushed = Instant::now();
                straight.flush();
            }
            if progress.is_due() {
                let bytes = self.bytes.load(Ordering::Relaxed);
                let rate = (bytes - before) as f64 * 8.0;
                before = bytes;
                tell_bytes(&self.bytes, Some(rate));
                straight.show(&mut shown);
                self.beside.write(args, status_of(bytes, rate), &shown);
                progress.show(begun.elapsed().as_millis() as u64, &show_rate(rate));
            }
        };
        self.seconds = last.duration_since(start).as_secs_f64();
        self.pass_on(straight, true);
        tell_bytes(&self.bytes, Some(0.0));
        ended
    }

    fn pass_on(&mut self, straight: &mut Straight, ended: bool) {
        let taken = straight.take(&self.buffer[..self.filled], ended);
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
    }
}

/// Writes down how many bytes have come, at the rate of before if none is given.
fn tell_bytes(bytes: &AtomicU64, rate: Option<f64>) {
    steer::tell(|status| {
        let before = status.receiving.first();
        let rate_bps = rate.unwrap_or(before.map_or(0.0, |before| before.rate_bps));
        status.receiving = vec![status_of(bytes.load(Ordering::Relaxed), rate_bps)];
    });
}

fn status_of(bytes: u64, rate_bps: f64) -> Status {
    Status {
        is_streaming: rate_bps > 0.0,
        rate_bps,
        bytes,
        ..Status::default()
    }
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::TimedOut
            | std::io::ErrorKind::Interrupted
    )
}

//! The raw stream over TCP: nothing is lost or out of order on the way.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use evlbi_core::account;
use evlbi_core::deframe::{self, Deframer};
use evlbi_net::receive::{Ended, ReceiveReport, Refused};
use evlbi_net::run::Run;

use super::result::{Beside, RecvResult, finish};
use super::seen::{Bytes, Seen};
use super::{INTERVAL, Receiving, RecvOptions, open_sink, written};
use crate::drain::{self, Shown, Straight};
use crate::sink::Sink;

/// Bytes read from a stream at a time.
const BLOCK: usize = 1 << 20;
/// A connection that brought so many bytes without frames carries the stream, if no other brought frames.
const ENOUGH: usize = 16 << 10;
/// Connections that are kept of which that is not known yet.
const MOST_WAITING: usize = 64;
/// Refused connections that are named.
const MOST_SAID: u64 = 10;

/// Receives a stream over TCP, which goes straight to the sink.
pub fn receive(
    options: &RecvOptions,
    settings: deframe::Settings,
    run: Run,
    left: Option<PathBuf>,
) -> Result<Receiving> {
    let address = options.from.addresses().map_err(|error| anyhow!(error))?[0];
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let addresses = vec![listener.local_addr()?];
    let bytes = Arc::new(Bytes::default());
    let seen = Arc::new(Seen::bytes(Arc::clone(&bytes), options.clone(), &run));
    let end = End {
        begun: Instant::now(),
        duration: options.duration,
        run: run.part(),
    };
    let over = end.run.clone();
    let mut stream = Tcp {
        options: options.clone(),
        run: run.clone(),
        end,
        seen: Arc::clone(&seen),
        sender: None,
        buffer: Vec::new(),
        filled: 0,
        bytes,
        seconds: 0.0,
        beside: Beside::default(),
    };
    // It looks at the time too while the reader of a named pipe is waited for.
    let (to_worker, sinks) = mpsc::channel();
    let worker = std::thread::Builder::new()
        .name("receive".into())
        .spawn(move || {
            let result = stream.receive(listener, settings, &sinks)?;
            Ok(written(&stream.options, result, left))
        })?;
    let receiving = Receiving {
        run,
        addresses,
        seen,
        worker: Some(worker),
    };
    // Dropped before the receiver, whose end waits for a sink.
    let to_worker = to_worker;
    let sink = open_sink(options, &over)?;
    Beside::default().write(options, receiving.status(), &Shown::default());
    for address in receiving.addresses() {
        receiving.run.listens(*address);
    }
    // What ended already needs none.
    let _ = to_worker.send(sink);
    Ok(receiving)
}

/// When it is over, whatever comes.
struct End {
    begun: Instant,
    duration: Option<Duration>,
    /// Stopped when it is.
    run: Run,
}

impl End {
    fn is_over(&self) -> bool {
        if self
            .duration
            .is_some_and(|span| self.begun.elapsed() >= span)
        {
            self.run.stop();
        }
        self.run.is_stopped()
    }
}

/// Connections of which it is not known yet whether they carry the stream. One that only connects, or says something else, neither
/// ends the wait for the sender nor keeps it out.
struct Waiting {
    run: Run,
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
                    self.run.say(format_args!(
                        "{} brought {bytes} bytes without frames and no stream: recv ignores them",
                        caller.sender
                    ));
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
struct Tcp {
    options: RecvOptions,
    run: Run,
    end: End,
    seen: Arc<Seen>,
    sender: Option<String>,
    buffer: Vec<u8>,
    filled: usize,
    bytes: Arc<Bytes>,
    seconds: f64,
    beside: Beside,
}

impl Tcp {
    /// Waits for a connection that carries a stream, and takes it.
    fn receive(
        &mut self,
        listener: TcpListener,
        settings: deframe::Settings,
        sinks: &mpsc::Receiver<Box<dyn Sink>>,
    ) -> Result<RecvResult> {
        let mut waiting = Waiting {
            run: self.run.clone(),
            only: self.options.source,
            settings: settings.clone(),
            callers: Vec::new(),
            refused: 0,
            others: Vec::new(),
        };
        let caller = loop {
            if let Some(caller) = waiting.next(&listener) {
                break Some(caller);
            }
            if self.end.is_over() {
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // Another sender learns that nobody takes its stream.
        drop(listener);
        waiting.refuse_all();
        let sink = loop {
            match sinks.recv_timeout(Duration::from_millis(10)) {
                Err(mpsc::RecvTimeoutError::Timeout) => self.end.is_over(),
                sink => break sink.context("there is nothing to record to")?,
            };
        };
        let mut straight = Straight::new(settings, sink);
        let read = match caller {
            Some(caller) => self.read(caller, &mut straight),
            None => Ok(None),
        };
        self.bytes.has_ended.store(true, Ordering::Relaxed);
        let (ended, error) = match read {
            Err(error) => (
                Ended::Failed,
                Some(format!("the connection failed: {error}; what came is kept")),
            ),
            Ok(Some(ended)) => (ended, None),
            Ok(None) if self.run.is_stopped() => (Ended::Stopped, None),
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
            bytes: self.bytes.count.load(Ordering::Relaxed),
            seconds: self.seconds,
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
        let mut result = finish(&self.options, report, straight.finish(), None, None);
        result.sender = self.sender.take();
        result.refused_connections = waiting.refused;
        Ok(result)
    }

    /// Reads until the sender closes the connection, it is silent for too long, or it is over. Says which of
    /// the first two it was.
    fn read(&mut self, caller: Caller, straight: &mut Straight) -> std::io::Result<Option<Ended>> {
        let mut connection = caller.connection;
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(Duration::from_millis(100)))?;
        self.sender = Some(caller.sender.to_string());
        self.filled = caller.heard.len();
        self.bytes
            .count
            .store(self.filled as u64, Ordering::Relaxed);
        self.buffer = caller.heard;
        self.pass_on(straight, false);
        let start = Instant::now();
        let (mut last, mut flushed, mut noted) = (start, start, None::<Instant>);
        let mut shown = Shown::default();
        let ended = loop {
            self.make_room();
            match connection.read(&mut self.buffer[self.filled..]) {
                Ok(0) => break Ok(Some(Ended::Closed)),
                Ok(count) => {
                    last = Instant::now();
                    self.filled += count;
                    self.bytes.count.fetch_add(count as u64, Ordering::Relaxed);
                    self.pass_on(straight, false);
                }
                Err(error) if is_wait(&error) => {}
                Err(error) => break Err(error),
            }
            if self.end.is_over() {
                break Ok(None);
            }
            if self.options.idle.is_some_and(|idle| last.elapsed() >= idle) {
                break Ok(Some(Ended::Idle));
            }
            if flushed.elapsed() >= drain::SHOW {
                flushed = Instant::now();
                straight.flush();
            }
            if noted.is_none_or(|noted| noted.elapsed() >= INTERVAL) {
                noted = Some(Instant::now());
                straight.show(&mut shown);
                self.beside.write(&self.options, self.seen.status(), &shown);
            }
        };
        self.seconds = last.duration_since(start).as_secs_f64();
        self.pass_on(straight, true);
        ended
    }

    fn make_room(&mut self) {
        if self.buffer.len() < self.filled + BLOCK {
            self.buffer.resize(self.filled + BLOCK, 0);
        }
    }

    fn pass_on(&mut self, straight: &mut Straight, ended: bool) {
        let taken = straight.take(&self.buffer[..self.filled], ended);
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
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

#[cfg(test)]
mod instructions;

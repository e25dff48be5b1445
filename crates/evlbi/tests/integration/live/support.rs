//! The program under test: receivers and senders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use evlbi_testkit::result::read;
use evlbi_testkit::until::WATCHDOG;
use evlbi_testkit::{Room, Running, command, processor, until};
use serde_json::Value;

use crate::result::number;

/// The program.
pub fn evlbi() -> Command {
    command(env!("CARGO_BIN_EXE_evlbi"))
}

/// A receiver that listens.
pub struct Recv {
    pub child: Running,
    pub addresses: Vec<SocketAddr>,
    /// The control socket, for status and stop.
    control: String,
    /// Directory of that socket, unless the caller named one.
    _folder: Option<Room>,
    stdout: Said,
    stderr: Said,
}

/// Its standard output or standard error.
struct Said {
    so_far: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

/// A receiver that has ended.
pub struct Received {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Recv {
    /// `evlbi recv FROM --to TO --json ...`.
    pub fn start(from: &str, to: &Path, more: &[&str]) -> Recv {
        let mut command = evlbi();
        command.args(["recv", from, "--json", "--to"]).arg(to);
        if !more.contains(&"--ring") {
            // Touching the default 256 MiB would take most of a short test's time.
            command.args(["--ring", "64MiB"]);
        }
        if !more.contains(&"--hold") && from.contains("udp://") {
            // A stalled relay makes nothing late. Reports do not wait as long.
            let hold = if more.contains(&"--safe") {
                "1s"
            } else {
                "10min"
            };
            command.args(["--hold", hold]);
        }
        Recv::listening(command.args(more), 1)
    }

    /// Runs a command of the program and waits until it listens on `paths` paths.
    pub fn listening_on_paths(command: &mut Command, paths: usize) -> Recv {
        let mut recv = Recv::listening(command, 0);
        let lines = |recv: &Recv| recv.stderr().matches("listening on /").count();
        until("it listens, or has ended", || {
            lines(&recv) >= paths || !matches!(recv.child.0.try_wait(), Ok(None))
        });
        recv
    }

    /// Runs a command of the program and waits until it listens on `ports` ports.
    pub fn listening(command: &mut Command, ports: usize) -> Recv {
        let folder = Room::new();
        let mut recv = Recv::controlled(command, ports, folder.path("socket"));
        recv._folder = Some(folder);
        recv
    }

    /// The same, with its control socket at this path.
    pub fn controlled(command: &mut Command, ports: usize, control: String) -> Recv {
        let mut child = command
            .args(["--control", &control])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the receiver starts");
        let (heard, addresses) = mpsc::channel();
        let stderr = Said::read(child.stderr.take().unwrap(), move |line| {
            let address = line.strip_prefix("listening on ");
            if let Some(Ok(address)) = address.map(|it| it.trim_end().parse()) {
                let _ = heard.send(address);
            }
        });
        let stdout = Said::read(child.stdout.take().unwrap(), |_| {});
        let next = || addresses.recv_timeout(WATCHDOG).ok();
        let addresses: Vec<SocketAddr> = std::iter::from_fn(next).take(ports).collect();
        if addresses.len() < ports {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the receiver does not listen: {}", stderr.all());
        }
        Recv {
            child: Running(child),
            addresses,
            control,
            _folder: None,
            stdout,
            stderr,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The URL to send to.
    pub fn url(&self) -> String {
        format!("udp://{}", self.address())
    }

    /// Sends a signal to the receiver: `INT`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        self.child.signal(format!("SIG{name}").parse().unwrap());
    }

    /// Returns its answer to a request over its control socket.
    #[track_caller]
    pub fn ask(&self, request: &str) -> Value {
        ask(&self.control, request)
    }

    /// Its present status.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.ask(r#"{"do":"status"}"#)["status"].take()
    }

    /// The number of datagrams that have arrived at this stream, including those of other senders.
    #[track_caller]
    pub fn arrived(&self, stream: usize) -> u64 {
        let status = self.status();
        match &status["receiving"][stream] {
            Value::Null => 0,
            counts => ["received", "foreign", "undecided"]
                .map(|name| number(counts, name))
                .iter()
                .sum(),
        }
    }

    /// Waits until this number of datagrams has arrived. Those without room never do.
    #[track_caller]
    pub fn until_arrived(&self, datagrams: u64) {
        let what = format!("{datagrams} datagrams arrive");
        until(&what, || self.arrived(0) >= datagrams);
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.so_far.lock().unwrap().clone()
    }

    /// Stops it once this number of datagrams has arrived, and waits for its end.
    #[track_caller]
    pub fn end_after(self, datagrams: u64) -> Received {
        self.until_arrived(datagrams);
        self.stop()
    }

    /// The same, and returns the result.
    #[track_caller]
    pub fn finish_after(self, datagrams: u64) -> Value {
        self.until_arrived(datagrams);
        let received = self.stop();
        assert!(received.status.success(), "{}", received.stderr);
        received.result()
    }

    /// Stops it, and waits for its end.
    #[track_caller]
    pub fn stop(self) -> Received {
        assert_eq!(self.ask(r#"{"do":"stop"}"#), "done");
        self.end()
    }

    /// Waits for the end, whatever its status.
    #[track_caller]
    pub fn end(mut self) -> Received {
        Received {
            status: self.child.wait(),
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
        }
    }

    /// Waits for the end and returns the result.
    #[track_caller]
    pub fn finish(self) -> Value {
        let received = self.end();
        assert!(received.status.success(), "{}", received.stderr);
        received.result()
    }
}

impl Received {
    pub fn result(&self) -> Value {
        assert!(!self.stdout.is_empty(), "{}", self.stderr);
        read(&self.stdout)
    }
}

impl Said {
    fn read(pipe: impl Read + Send + 'static, heard: impl Fn(&str) + Send + 'static) -> Said {
        let so_far = Arc::new(Mutex::new(String::new()));
        let told = Arc::clone(&so_far);
        let reading = std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = String::new();
            while pipe.read_line(&mut line).expect("text") > 0 {
                heard(&line);
                told.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Said { so_far, reading }
    }

    fn all(self) -> String {
        self.reading.join().unwrap();
        self.so_far.lock().unwrap().clone()
    }
}

/// Returns a run's answer to a request over its control socket.
#[track_caller]
pub fn ask(control: &str, request: &str) -> Value {
    let mut stream = UnixStream::connect(control).expect("a control socket");
    stream
        .write_all(format!("{request}\n").as_bytes())
        .expect("it listens");
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .expect("it answers");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// `evlbi send SOURCE --to TO --json ...`, as fast as it can unless `more` sets a rate.
#[track_caller]
pub fn send(source: &str, to: &str, more: &[&str]) -> Value {
    let output = try_send(source, to, more);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {stderr}");
    read(output.stdout)
}

pub fn try_send(source: &str, to: &str, more: &[&str]) -> Output {
    let mut command = evlbi();
    let core = processor::number().to_string();
    command.args(["send", source, "--to", to, "--json", "--cpu", &core]);
    let paced = ["--rate", "--realtime", "--max"];
    if !more.iter().any(|arg| paced.contains(arg)) {
        command.arg("--max");
    }
    command.args(more).output().expect("the sender starts")
}

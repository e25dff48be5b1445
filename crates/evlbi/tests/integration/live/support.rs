//! The program under test at work: receivers, senders, relays that know the truth, and recordings to carry.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use evlbi_core::path::{Impairment, Path as Lossy};
use evlbi_net::udp::{Batch, Listen, Receiver, ReceiverOptions};
use evlbi_testkit::python::python;
use evlbi_testkit::{Running, command, need};
use serde_json::Value;

use crate::result::{brief, number};
use crate::stalls::Stalls;

/// The program.
pub fn evlbi() -> Command {
    command(env!("CARGO_BIN_EXE_evlbi"))
}

/// A receiver that listens.
pub struct Recv {
    pub child: Running,
    pub addresses: Vec<SocketAddr>,
    /// It goes on until it is told to end.
    pub is_told: bool,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// A receiver that has ended.
pub struct Received {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Recv {
    /// `evlbi recv FROM --to TO --json ...`. Where neither `more` nor a connection ends it, it is told to end once all has been
    /// sent: no time without a datagram does, because a busy machine may hold up a sender for any time.
    pub fn start(from: &str, to: &Path, more: &[&str]) -> Recv {
        Recv::start_ports(from, to, more, 1)
    }

    /// The same, where so many ports are listened on.
    pub fn start_ports(from: &str, to: &Path, more: &[&str], ports: usize) -> Recv {
        let mut command = evlbi();
        command.args(["recv", from, "--json", "--to"]).arg(to);
        if !more.contains(&"--ring") {
            // Touching the usual 256 MiB would take most of a short test's time.
            command.args(["--ring", "64MiB"]);
        }
        if !more.contains(&"--hold") {
            // A relay that is held up makes nothing late.
            command.args(["--hold", "60s"]);
        }
        let ends = ["--idle", "--duration"]
            .iter()
            .any(|end| more.contains(end));
        Recv {
            is_told: !ends && !from.starts_with("tcp:"),
            ..Recv::listening(command.args(more), ports)
        }
    }

    /// Runs a command and waits until it listens on so many ports.
    pub fn listening(command: &mut Command, ports: usize) -> Recv {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the receiver starts");
        let (heard, addresses) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let stderr = std::thread::spawn(move || {
            let mut all = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on ") {
                    let _ = heard.send(address.parse().expect("an address"));
                }
                all += &line;
                all.push('\n');
            }
            all
        });
        let stdout = read_all(child.stdout.take().unwrap());
        let addresses: Vec<SocketAddr> = addresses.iter().take(ports).collect();
        if addresses.len() < ports {
            let _ = child.wait();
            panic!("the receiver does not listen: {}", stderr.join().unwrap());
        }
        Recv {
            child: Running(child),
            addresses,
            stdout,
            stderr,
            is_told: false,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Where to send to.
    pub fn url(&self) -> String {
        format!("udp://{}", self.address())
    }

    /// Sends a signal to the receiver: `INT`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.0.id().to_string()])
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    /// Waits for the end, whatever it is.
    pub fn end(mut self) -> Received {
        if self.is_told {
            // The kernel may still be passing on what was sent.
            std::thread::sleep(Duration::from_millis(500));
            self.signal("INT");
        }
        Received {
            status: self.child.0.wait().unwrap(),
            stdout: self.stdout.join().unwrap(),
            stderr: self.stderr.join().unwrap(),
        }
    }

    /// Waits for the end and takes the result.
    pub fn finish(self) -> Value {
        let received = self.end();
        assert!(received.status.success(), "{}", received.stderr);
        received.result()
    }
}

impl Received {
    pub fn result(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("text");
        text
    })
}

/// `evlbi send SOURCE --to TO --json ...`, at 100 Mbit/s unless `more` says otherwise.
pub fn send(source: &str, to: &str, more: &[&str]) -> Value {
    let output = try_send(source, to, more);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {stderr}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

pub fn try_send(source: &str, to: &str, more: &[&str]) -> Output {
    let mut command = evlbi();
    command.args(["send", source, "--to", to, "--json"]);
    let paced = ["--rate", "--realtime", "--max"];
    if !more.iter().any(|arg| paced.contains(arg)) {
        command.args(["--rate", "100M"]);
    }
    command.args(more).output().expect("the sender starts")
}

/// Whether this host stood still for more than this, all in all, which is said: what was measured meanwhile is not the program's
/// alone.
pub fn stood_still(stalls: Stalls, limit: Duration) -> bool {
    let seconds = stalls.seconds_since(UNIX_EPOCH);
    let is_more = seconds > limit.as_secs_f64();
    if is_more {
        eprintln!("skipped in part: this host stood still for {seconds:.2} s");
    }
    is_more
}

/// Asserts the numbers of a result, all at once so that a failure shows every one.
#[track_caller]
pub fn assert_numbers(result: &Value, expected: &[(&str, u64)]) {
    let found: Vec<(&str, u64)> = expected
        .iter()
        .map(|(name, _)| (*name, number(result, name)))
        .collect();
    assert_eq!(found, expected, "in {}", brief(result));
}

/// What a relay did: the numbers in the order in which they left, second copies included.
#[derive(Debug, Default)]
pub struct Passed {
    pub numbers: Vec<u64>,
}

/// The truth that a receiver is held against.
#[derive(Debug, PartialEq, Eq)]
pub struct Truth {
    pub first: u64,
    pub last: u64,
    pub received: u64,
    pub unique: u64,
    pub lost: u64,
    pub duplicates: u64,
    pub reordered: u64,
    pub runs: Vec<(u64, u64)>,
    pub missing: Vec<u64>,
}

impl Passed {
    pub fn truth(&self) -> Truth {
        let mut seen = std::collections::BTreeSet::new();
        let (mut duplicates, mut reordered) = (0, 0);
        for &number in &self.numbers {
            let behind = seen.last().is_some_and(|last| number < *last);
            if !seen.insert(number) {
                duplicates += 1;
            } else if behind {
                reordered += 1;
            }
        }
        let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
        let missing: Vec<u64> = (first..=last).filter(|n| !seen.contains(n)).collect();
        let mut runs = std::collections::BTreeMap::new();
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            *runs.entry(run.len() as u64).or_default() += 1;
        }
        Truth {
            first,
            last,
            received: self.numbers.len() as u64,
            unique: seen.len() as u64,
            lost: missing.len() as u64,
            duplicates,
            reordered,
            runs: runs.into_iter().collect(),
            missing,
        }
    }
}

impl Truth {
    /// Every number of the receiver's result equals the truth, and nothing was lost in this host.
    #[track_caller]
    pub fn agrees_with(&self, result: &Value) {
        assert_numbers(
            result,
            &[
                ("first_seq", self.first),
                ("last_seq", self.last),
                ("expected", self.unique + self.lost),
                ("received", self.received),
                ("unique", self.unique),
                ("lost", self.lost),
                ("duplicates", self.duplicates),
                ("reordered", self.reordered),
                ("foreign", 0),
                ("restarts", 0),
                ("late", 0),
                ("host_lost", 0),
                ("network_lost", self.lost),
                ("unattributed", 0),
                ("ring_full", 0),
            ],
        );
        let runs: Vec<(u64, u64)> = result["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| (number(run, "length"), number(run, "count")))
            .collect();
        assert_eq!(runs, self.runs);
        let intervals: Vec<u64> = result["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|gap| number(gap, "first")..=number(gap, "last"))
            .collect();
        assert_eq!(intervals, self.missing);
    }
}

/// A relay at work between a sender and a receiver.
pub struct Relay {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    handle: JoinHandle<Passed>,
}

impl Relay {
    /// Passes numbered datagrams on to `to`, harmed as `impairment` says. The first and the last number are
    /// spared, so that the truth has no lost head or tail: `last` is the last.
    pub fn start(to: SocketAddr, impairment: Impairment, seed: u64, last: u64) -> Relay {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = Listen::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        // Its large buffer bridges the times in which a busy machine does not let the relay run.
        let mut receiver = Receiver::bind(&[here], &ReceiverOptions::default()).unwrap();
        let address = receiver.local_addresses().next().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let handle = std::thread::spawn(move || {
            let mut path = Lossy::new(impairment, seed);
            let mut passed = Passed::default();
            let mut pass = |packet: &[u8]| {
                passed.numbers.push(sequence(packet));
                socket.send_to(packet, to).unwrap();
            };
            let mut batch = Batch::new();
            loop {
                // Told to end, and then what was sent before that has been read.
                let is_told = told.load(Ordering::Relaxed);
                if !receiver.wait(Duration::from_millis(50)).unwrap() {
                    if is_told {
                        break;
                    }
                    continue;
                }
                receiver.receive(&mut batch).unwrap();
                for datagram in batch.datagrams() {
                    let number = sequence(datagram.bytes);
                    if number == 0 || number == last {
                        path.flush(&mut pass);
                        pass(datagram.bytes);
                    } else {
                        path.push(number, datagram.bytes, &mut pass);
                    }
                }
            }
            passed
        });
        Relay {
            address,
            stop,
            handle,
        }
    }

    pub fn url(&self) -> String {
        format!("udp://{}", self.address)
    }

    /// The sender has ended; what was it?
    pub fn finish(self) -> Passed {
        self.stop.store(true, Ordering::Relaxed);
        self.handle.join().unwrap()
    }
}

fn sequence(packet: &[u8]) -> u64 {
    u64::from_le_bytes(packet[..8].try_into().unwrap())
}

/// All recordings there are to carry: `baseband`'s samples and those of EVLBI_REFERENCE_DATA.
pub fn recordings() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(python) = python("baseband") {
        let output = Command::new(python)
            .args(["-c", "import baseband.data as d; print(d.__path__[0])"])
            .output()
            .unwrap();
        let folder = String::from_utf8(output.stdout).unwrap();
        gather(Path::new(folder.trim()), &mut found);
    }
    if let Some(folder) = need::recordings() {
        gather(&folder, &mut found);
    }
    found.sort();
    found
}

fn gather(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let known = ["vdif", "m5b", "m4", "dada", "raw"];
        if path.is_dir() {
            gather(&path, found);
        } else if path
            .extension()
            .is_some_and(|ext| known.iter().any(|known| ext == *known))
        {
            found.push(path);
        }
    }
}

/// Runs `work` on each item, a few at a time; a panic is one of the whole.
pub fn each<T: Sync + std::fmt::Debug>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let work = std::panic::AssertUnwindSafe(|| work(item));
                    if std::panic::catch_unwind(work).is_err() {
                        eprintln!("failed: {item:?}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "of {} failed", items.len());
}

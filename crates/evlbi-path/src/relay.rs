//! The relay: threads that take frames from hosts, send them through a network of cells, and deliver them on time.
//!
//! This module handles real packets; the network of cells decides what happens to them.

mod frames;
mod turns;
mod worker;

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evlbi_core::path::{CellTruth, Law, Logged};
use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::path::Tap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::worker::Worker;
use super::plan::{Direction, Plan};

/// Timeout for a thread to publish its state; after that its last state is used.
const TIMEOUT: Nanos = Nanos(5_000_000_000);
/// Maximum entries of each cell's log that wait to be taken.
const LOGGED: usize = 1 << 16;

/// Returns the hardware address of a host.
pub fn address(host: usize) -> [u8; 6] {
    let number = (host as u16 + 1).to_be_bytes();
    [0x02, 0x65, 0x76, 0x6c, number[0], number[1]]
}

/// Counters of the relay so far.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counters of each cell.
    pub cells: Vec<CellSnapshot>,
    /// Counters of each host.
    pub hosts: Vec<HostSnapshot>,
    /// Delays of frames against their times.
    pub lateness: Vec<Lateness>,
}

/// Place of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CellPlace {
    /// Its link.
    pub link: String,
    /// Start and end, e.g. `jive>manchester`.
    pub direction: String,
    /// Its name.
    pub cell: String,
}

/// Ground truth of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CellSnapshot {
    /// The cell.
    #[serde(flatten)]
    pub place: CellPlace,
    /// Its counters.
    #[serde(flatten)]
    pub truth: CellTruth,
    /// Packets that it passed.
    pub passed: u64,
}

/// Counters of a host, in packets as the network sees them (segments).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostSnapshot {
    /// Packets from it.
    pub sent: u64,
    /// Packets to it.
    pub received: u64,
    /// Packets that it did not accept.
    pub refused: u64,
    /// Packets from it for which the relay had no memory: the relay is too slow, or the delay too long for the rate.
    pub overrun: u64,
    /// Packets to an address that is not on the path.
    pub astray: u64,
}

/// Delay between the planned and the actual time of frames that a thread delivered after it had read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lateness {
    /// Number of frames.
    pub frames: u64,
    /// Mean in seconds.
    pub mean_s: f64,
    /// Maximum in seconds.
    pub max_s: f64,
    /// Memory of all buffers, in bytes.
    pub memory: u64,
    /// Fraction of the time in which the thread had priority over all others.
    pub first_of_all: f64,
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// The cell.
    pub place: CellPlace,
    /// The event.
    pub logged: Logged,
}

/// State shared by a thread and its observers.
#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<(Direction, usize, Law)>>,
    snapshot: Mutex<Part>,
    log: Mutex<Vec<(Place, Logged)>>,
    /// Number of requests for its state, and the last one that it has answered.
    asked: AtomicU64,
    answered: AtomicU64,
}

/// Direction and number of a cell: forwarding threads do not format names.
type Place = (Direction, usize);

/// State of one thread.
#[derive(Clone, Default)]
struct Part {
    cells: Vec<(Place, CellTruth)>,
    hosts: Vec<HostSnapshot>,
    lateness: Lateness,
    error: Option<String>,
}

/// A running relay.
pub struct Relay {
    plan: Arc<Plan>,
    workers: Vec<Arc<Shared>>,
    handles: Mutex<Vec<Thread<()>>>,
    stop: Arc<AtomicBool>,
    /// Keeps CPUs from deep sleep states, from which waking up takes long.
    _awake: Option<File>,
}

impl Relay {
    /// Starts the threads: one for all directions that share a line.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(plan: Arc<Plan>, taps: Vec<Tap>, logs: bool) -> io::Result<Relay> {
        let stop = Arc::new(AtomicBool::new(false));
        let taps = Arc::new(taps);
        let (mut workers, mut handles) = (Vec::new(), Vec::new());
        for group in plan.groups() {
            let shared = Arc::new(Shared::default());
            let (plan, taps) = (Arc::clone(&plan), Arc::clone(&taps));
            let (told, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            handles.push(Clock::real().spawn("path", move || {
                let mut worker = Worker::new(&plan, &taps, &group, &told, logs);
                if let Err(error) = worker.run(&stop) {
                    told.snapshot.lock().error = Some(error.to_string());
                }
                told.answered.store(u64::MAX, Ordering::Release);
            })?);
            workers.push(shared);
        }
        Ok(Relay {
            plan,
            workers,
            handles: Mutex::new(handles),
            stop,
            _awake: stay_awake(),
        })
    }

    /// Changes the law of a cell now.
    pub fn change(&self, direction: Direction, cell: usize, law: &Law) {
        for shared in &self.workers {
            shared.changes.lock().push((direction, cell, law.clone()));
        }
    }

    /// Returns what was done so far; of changed cells, including what they did before.
    pub fn snapshot(&self) -> Snapshot {
        let ask = |shared: &Arc<Shared>| shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let turns: Vec<u64> = self.workers.iter().map(ask).collect();
        let waits =
            |(shared, turn): (&Arc<Shared>, &u64)| shared.answered.load(Ordering::Acquire) < *turn;
        // A thread checks the request whenever it wakes.
        let clock = Clock::real();
        let patience = clock.now().plus(TIMEOUT);
        while self.workers.iter().zip(&turns).any(waits) && clock.now() < patience {
            clock.sleep(Duration::from_millis(1));
        }
        self.collect()
    }

    fn collect(&self) -> Snapshot {
        let mut all = Snapshot {
            hosts: vec![HostSnapshot::default(); self.plan.hosts().count()],
            ..Snapshot::default()
        };
        let mut cells = Vec::new();
        for shared in &self.workers {
            let part = shared.snapshot.lock().clone();
            cells.extend(part.cells);
            for (sum, counts) in all.hosts.iter_mut().zip(part.hosts) {
                sum.sent += counts.sent;
                sum.received += counts.received;
                sum.refused += counts.refused;
                sum.overrun += counts.overrun;
                sum.astray += counts.astray;
            }
            all.lateness.push(part.lateness);
        }
        cells.sort_by_key(|(place, _)| *place);
        let shown = cells.into_iter().map(|(place, truth)| CellSnapshot {
            place: self.name(place),
            passed: truth.passed(),
            truth,
        });
        all.cells = shown.collect();
        all
    }

    fn name(&self, (direction, cell): Place) -> CellPlace {
        CellPlace {
            link: self.plan.links[direction.link].name.clone(),
            direction: self.plan.show(direction),
            cell: self.plan.cells(direction)[cell].name.clone(),
        }
    }

    /// Returns the log of the cells since the last call.
    pub fn take_log(&self) -> Vec<LogLine> {
        let logs = self.workers.iter();
        logs.flat_map(|shared| std::mem::take(&mut *shared.log.lock()))
            .map(|(place, logged)| LogLine {
                place: self.name(place),
                logged,
            })
            .collect()
    }

    /// Returns the error of a thread, if any.
    pub fn error(&self) -> Option<String> {
        let mut parts = self.workers.iter();
        parts.find_map(|shared| shared.snapshot.lock().error.clone())
    }

    /// Ends the relay; packets in flight are lost.
    pub fn stop(&self) -> Snapshot {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
        self.collect()
    }

    /// Waits until all threads have ended.
    pub fn wait(&self) {
        self.handles.lock().drain(..).for_each(Thread::join);
    }
}

/// Asks the kernel for CPUs that wake up at once, as long as the file is open; `None` if that is not allowed.
fn stay_awake() -> Option<File> {
    let mut file = File::options()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    file.write_all(&0i32.to_ne_bytes()).ok()?;
    Some(file)
}

//! The relay: threads that take frames from hosts, send them through a network of cells, and hand them to hosts
//! when their time has come.
//!
//! Here belongs what is done to real packets beside what a network of cells decides.

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

/// A thread that does not say within this time what it knows is not waited for: what it said last holds.
const TIMEOUT: Nanos = Nanos(5_000_000_000);
/// Entries of each cell's log that wait to be taken.
const LOGGED: usize = 1 << 16;

/// Hardware address of a host.
pub fn address(host: usize) -> [u8; 6] {
    let number = (host as u16 + 1).to_be_bytes();
    [0x02, 0x65, 0x76, 0x6c, number[0], number[1]]
}

/// What the relay has done so far.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// What each cell did.
    pub cells: Vec<CellSnapshot>,
    /// What came from and went to each host.
    pub hosts: Vec<HostSnapshot>,
    /// How late frames were handed over.
    pub lateness: Vec<Lateness>,
}

/// Which cell something is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellPlace {
    /// Its link.
    pub link: String,
    /// From where to where, as `jive>manchester`.
    pub direction: String,
    /// Its name.
    pub cell: String,
}

/// A cell's truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellSnapshot {
    /// The cell.
    #[serde(flatten)]
    pub place: CellPlace,
    /// What it did.
    #[serde(flatten)]
    pub truth: CellTruth,
    /// What it let pass.
    pub passed: u64,
}

/// What came from and went to a host, in packets as the network sees them (segments).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSnapshot {
    /// Packets from it.
    pub sent: u64,
    /// Packets to it.
    pub received: u64,
    /// Packets that it did not take.
    pub refused: u64,
    /// Packets from it that found no memory here: the relay is too slow, or the delay too long for the rate.
    pub overrun: u64,
    /// Packets to nobody on the path.
    pub astray: u64,
}

/// How much later than planned frames were handed over by a thread, after it had read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Frames.
    pub frames: u64,
    /// Mean in seconds.
    pub mean_s: f64,
    /// Most in seconds.
    pub max_s: f64,
    /// Buffers that were made, in bytes.
    pub memory: u64,
    /// Fraction of the time in which the thread ran before all others.
    pub first_of_all: f64,
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// The cell.
    pub place: CellPlace,
    /// What happened.
    pub logged: Logged,
}

/// Shared by a thread and who looks at it.
#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<(Direction, usize, Law)>>,
    snapshot: Mutex<Part>,
    log: Mutex<Vec<(Place, Logged)>>,
    /// How often it was asked what it knows, and up to which of these it has said so.
    asked: AtomicU64,
    answered: AtomicU64,
}

/// A cell by its direction and its number in it: threads that forward make no names.
type Place = (Direction, usize);

/// What one thread knows.
#[derive(Clone, Default)]
struct Part {
    cells: Vec<(Place, CellTruth)>,
    hosts: Vec<HostSnapshot>,
    lateness: Lateness,
    error: Option<String>,
}

/// A relay at work.
pub struct Relay {
    plan: Arc<Plan>,
    workers: Vec<Arc<Shared>>,
    handles: Mutex<Vec<Thread<()>>>,
    stop: Arc<AtomicBool>,
    /// Keeps the processors from sleeping so deeply that waking up takes long.
    _awake: Option<File>,
}

impl Relay {
    /// Starts the threads: one for all directions that share a line.
    ///
    /// # Errors
    /// When no thread can be started.
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

    /// Gives a cell another law, now.
    pub fn change(&self, direction: Direction, cell: usize, law: &Law) {
        for shared in &self.workers {
            shared.changes.lock().push((direction, cell, law.clone()));
        }
    }

    /// What was done so far, by cells as they were changed before.
    pub fn snapshot(&self) -> Snapshot {
        let ask = |shared: &Arc<Shared>| shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let turns: Vec<u64> = self.workers.iter().map(ask).collect();
        let waits =
            |(shared, turn): (&Arc<Shared>, &u64)| shared.answered.load(Ordering::Acquire) < *turn;
        // A thread looks at it whenever it wakes.
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

    /// What the cells noted since it was asked last.
    pub fn take_log(&self) -> Vec<LogLine> {
        let logs = self.workers.iter();
        logs.flat_map(|shared| std::mem::take(&mut *shared.log.lock()))
            .map(|(place, logged)| LogLine {
                place: self.name(place),
                logged,
            })
            .collect()
    }

    /// What went wrong with a thread, if anything.
    pub fn error(&self) -> Option<String> {
        let mut parts = self.workers.iter();
        parts.find_map(|shared| shared.snapshot.lock().error.clone())
    }

    /// Ends; what is under way is gone.
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

/// Asks the kernel for processors that wake up at once, as long as the file is open; none where that is not allowed.
fn stay_awake() -> Option<File> {
    let mut file = File::options()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    file.write_all(&0i32.to_ne_bytes()).ok()?;
    Some(file)
}

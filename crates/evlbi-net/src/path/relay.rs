//! The relay: threads that take frames from hosts, send them through a network of cells, and hand them to hosts
//! when their time has come.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evlbi_core::path::{
    CellId, CellTruth, Identity, Law, Line, Logged, Marks, Network, Output, Piece, Train,
};
use evlbi_core::time::Nanos;
use serde::{Deserialize, Serialize};

use super::frame::{Frame, LONGEST, VNET};
use super::plan::{Direction, Plan};
use super::tap::{self, Tap};
use crate::cpu;

/// Frames that are taken from a host before others are looked after.
const AT_ONCE: usize = 64;
/// Lengths of buffers: for frames of 1500 bytes, of 9000, and for the long ones that are to be segmented.
const BUFFERS: [usize; 3] = [2048, 10_240, LONGEST];
/// A thread wakes up at least so often.
const NAP: Nanos = Nanos(50_000_000);
/// Segments of a packet that leave at times closer than this are handed over together: no host could tell.
const TOGETHER: Nanos = Nanos(4_000);
/// Entries of each cell's log that wait to be taken.
const LOGGED: usize = 1 << 16;
/// Share of the memory that is free at first for frames under way in one direction; beyond that they are dropped, and
/// counted as overrun.
const MEMORY_SHARE: u64 = 4;
/// A thread that is woken later than this was held up by something else.
const MOST_LATE: Nanos = Nanos(150_000);
/// Spins so long between looks at the hosts,
const SPIN_STEP: Nanos = Nanos(2_000);
/// and no more than one part in so many
const SPIN_SHARE: u64 = 4;
/// of this time.
const WINDOW: Nanos = Nanos(10_000_000);
/// A thread that was at work for more than so many percent of that time takes turns with the hosts' own threads, which
/// would starve behind it, until it is less than the second. Not where a cell has a rate, which is to be kept.
const MUCH_WORK: u64 = 40;
const LITTLE_WORK: u64 = 25;
/// A thread works so long at most without a break
const AT_A_STRETCH: Nanos = Nanos(1_000_000);
/// of this length.
const BREAK: Duration = Duration::from_micros(50);
/// Priority among real-time threads.
const PRIORITY: u8 = 10;

/// Hardware address of a host.
pub fn address(host: usize) -> [u8; 6] {
    let number = (host as u16 + 1).to_be_bytes();
    [0x02, 0x65, 0x76, 0x6c, number[0], number[1]]
}

fn host_of(address: [u8; 6]) -> Option<usize> {
    let number = usize::from(u16::from_be_bytes([address[4], address[5]]));
    (address[..4] == [0x02, 0x65, 0x76, 0x6c] && number > 0).then(|| number - 1)
}

/// Number of a direction among all.
fn place(direction: Direction) -> usize {
    2 * direction.link + usize::from(direction.backward)
}

/// A frame that is under way; its memory goes back when the last part of it has arrived.
struct Packet {
    buffer: Vec<u8>,
    length: usize,
    train: Train,
    link_header: u32,
    to: [u8; 6],
    pool: Rc<RefCell<Pool>>,
}

impl Drop for Packet {
    fn drop(&mut self) {
        self.pool
            .borrow_mut()
            .give(std::mem::take(&mut self.buffer));
    }
}

impl Packet {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

#[derive(Clone)]
struct Handle(Rc<Packet>);

impl Identity for Handle {
    fn identity(&self, segment: u16) -> u64 {
        Frame::new(self.0.bytes()).map_or(0, |frame| frame.identity(segment))
    }

    fn may_be_marked(&self) -> bool {
        Frame::new(self.0.bytes()).is_some_and(|frame| frame.may_be_marked())
    }
}

/// Buffers that are free, the one that was used last first: it is still in the cache.
#[derive(Default)]
struct Pool {
    free: [Vec<Vec<u8>>; BUFFERS.len()],
    made: u64,
    /// Of frames that are under way.
    used: u64,
}

impl Pool {
    /// A buffer for a frame of this length. When that makes more than `most`, free ones of other lengths go.
    fn take(&mut self, frame: usize, most: u64) -> Vec<u8> {
        let size = Pool::size(frame);
        self.used += BUFFERS[size] as u64;
        if let Some(buffer) = self.free[size].pop() {
            return buffer;
        }
        for free in &mut self.free {
            while self.made + BUFFERS[size] as u64 > most
                && let Some(other) = free.pop()
            {
                self.made -= other.len() as u64;
            }
        }
        self.made += BUFFERS[size] as u64;
        vec![0; BUFFERS[size]]
    }

    fn size(frame: usize) -> usize {
        let fits = BUFFERS.iter().position(|length| frame <= *length);
        fits.unwrap_or(BUFFERS.len() - 1)
    }

    fn give(&mut self, buffer: Vec<u8>) {
        self.used = self.used.saturating_sub(buffer.len() as u64);
        let size = BUFFERS.iter().position(|length| buffer.len() == *length);
        if let Some(size) = size {
            self.free[size].push(buffer);
        }
    }
}

/// What the relay has done so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// What each cell did.
    pub cells: Vec<CellSnapshot>,
    /// What came from and went to each host.
    pub hosts: Vec<HostSnapshot>,
    /// How late frames were handed over.
    pub lateness: Vec<Lateness>,
}

/// A cell's truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellSnapshot {
    /// Its link.
    pub link: String,
    /// From where to where, as `jive>manchester`.
    pub direction: String,
    /// Its name.
    pub cell: String,
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
#[derive(Clone, Debug, Serialize)]
pub struct LogLine {
    /// The link.
    pub link: String,
    /// From where to where.
    pub direction: String,
    /// The cell.
    pub cell: String,
    /// What happened.
    #[serde(flatten)]
    pub logged: Logged,
}

/// Shared by a thread and who looks at it.
#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<(Direction, usize, Law)>>,
    snapshot: Mutex<Part>,
    log: Mutex<Vec<LogLine>>,
    is_asked: AtomicBool,
}

/// What one thread knows.
#[derive(Clone, Default)]
struct Part {
    cells: Vec<(Direction, usize, CellTruth)>,
    hosts: Vec<HostSnapshot>,
    lateness: Lateness,
    error: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A relay at work.
pub struct Relay {
    plan: Arc<Plan>,
    workers: Vec<Arc<Shared>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
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
            let handle = std::thread::Builder::new()
                .name("path".into())
                .spawn(move || {
                    let mut worker = Worker::new(&plan, &taps, &group, &told, logs);
                    if let Err(error) = worker.run(&stop) {
                        lock(&told.snapshot).error = Some(error.to_string());
                    }
                })?;
            workers.push(shared);
            handles.push(handle);
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
            lock(&shared.changes).push((direction, cell, law.clone()));
        }
    }

    /// What was done so far.
    pub fn snapshot(&self) -> Snapshot {
        for shared in &self.workers {
            shared.is_asked.store(true, Ordering::Release);
        }
        // A thread looks at it whenever it wakes.
        let patience = cpu::now().plus(Nanos(4 * NAP.0));
        let waits = |shared: &Arc<Shared>| shared.is_asked.load(Ordering::Acquire);
        while self.workers.iter().any(waits) && cpu::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
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
            let part = lock(&shared.snapshot).clone();
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
        cells.sort_by_key(|(direction, cell, _)| (direction.link, direction.backward, *cell));
        for (direction, cell, truth) in cells {
            all.cells.push(CellSnapshot {
                link: self.plan.links[direction.link].name.clone(),
                direction: self.plan.show(direction),
                cell: self.plan.cells(direction)[cell].name.clone(),
                passed: truth.passed(),
                truth,
            });
        }
        all
    }

    /// What the cells noted since it was asked last.
    pub fn take_log(&self) -> Vec<LogLine> {
        let logs = self.workers.iter();
        logs.flat_map(|shared| std::mem::take(&mut *lock(&shared.log)))
            .collect()
    }

    /// What went wrong with a thread, if anything.
    pub fn error(&self) -> Option<String> {
        let parts = self.workers.iter();
        parts
            .filter_map(|shared| lock(&shared.snapshot).error.clone())
            .next()
    }

    /// Ends; what is under way is gone.
    pub fn stop(&self) -> Snapshot {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
        self.collect()
    }

    /// Waits until all threads have ended.
    pub fn wait(&self) {
        let mut handles = lock(&self.handles);
        for handle in handles.drain(..) {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Memory that is free, in bytes; 4 GiB where nobody tells.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(4 << 30, |kilobytes| kilobytes << 10)
}

/// What waking up costs.
#[derive(Default)]
struct Wakes {
    /// How late it is as a rule, and how far from that.
    late: Nanos,
    scatter: Nanos,
    /// Time spun and slept since.
    spun: Nanos,
    asleep: Nanos,
    since: Nanos,
    /// When it slept last.
    slept: Nanos,
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

/// One thread.
struct Worker<'a> {
    plan: &'a Plan,
    taps: &'a [Tap],
    shared: &'a Shared,
    /// The hosts whose frames it takes.
    hosts: Vec<usize>,
    network: Network<Handle>,
    /// The direction of each route, and its line.
    routes: Vec<(Direction, Line)>,
    /// The route over each direction, by [`place`]; none where another thread serves it.
    route_of: Vec<Option<usize>>,
    pool: Rc<RefCell<Pool>>,
    scratch: Vec<u8>,
    /// Where a packet that is read lies at first.
    reading: Vec<u8>,
    /// Of all hosts.
    counts: Vec<HostSnapshot>,
    late: (u64, u128, u64),
    wakes: Wakes,
    most_memory: u64,
    start: Nanos,
    has_rate: bool,
    /// Whether it may run before all other threads, and whether it does.
    may_be_first: bool,
    is_first: bool,
    /// Time in which it did, of all that has been looked at.
    was_first: Nanos,
    turns: Nanos,
    logs: bool,
}

impl<'a> Worker<'a> {
    fn new(
        plan: &'a Plan,
        taps: &'a [Tap],
        group: &[Direction],
        shared: &'a Shared,
        logs: bool,
    ) -> Worker<'a> {
        let mut network = Network::new();
        let mut routes = Vec::new();
        let mut route_of = vec![None; 2 * plan.links.len()];
        for direction in group {
            let cells = plan.cells(*direction);
            let laws = cells.iter().map(|cell| cell.law.clone());
            let line = network.line(laws, plan.seed_of(*direction));
            for (id, cell) in line.cells.iter().zip(cells) {
                for (at, law) in &cell.changes {
                    network.cell_mut(*id).change_at(*at, law.clone());
                }
                if logs {
                    network.cell_mut(*id).log(LOGGED);
                }
            }
            route_of[place(*direction)] = Some(network.route(&[&line]));
            routes.push((*direction, line));
        }
        let starts = |node: usize| group.iter().any(|direction| plan.from(*direction) == node);
        let hosts = (0..plan.nodes.len()).filter(|node| starts(*node));
        Worker {
            plan,
            taps,
            shared,
            hosts: hosts.filter_map(|node| plan.host_at(node)).collect(),
            network,
            routes,
            route_of,
            pool: Rc::default(),
            scratch: Vec::with_capacity(LONGEST),
            reading: vec![0; LONGEST],
            counts: vec![HostSnapshot::default(); taps.len()],
            late: (0, 0, 0),
            wakes: Wakes::default(),
            most_memory: free_memory() / MEMORY_SHARE,
            start: cpu::now(),
            has_rate: (group.iter())
                .flat_map(|direction| plan.cells(*direction))
                .any(|cell| matches!(cell.law, Law::Rate { .. })),
            may_be_first: false,
            is_first: false,
            was_first: Nanos(0),
            turns: Nanos(0),
            logs,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(cpu::now().since(self.start).0)
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        if let Err(error) = cpu::sharpen_timers() {
            tracing::debug!("cannot set the timer slack: {error}");
        }
        // It sleeps whenever it can, so that the kernel's limit on real-time threads is far.
        self.may_be_first = cpu::set_real_time(PRIORITY, cpu::Waiting::Sleep).is_ok();
        self.is_first = self.may_be_first;
        let polled = self.hosts.iter().map(|host| libc::pollfd {
            fd: self.taps[*host].fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        let mut polled: Vec<libc::pollfd> = polled.collect();
        let mut outputs = Vec::new();
        let mut woken = Nanos(0);
        while !stop.load(Ordering::Relaxed) {
            let mut moved = false;
            for place in 0..self.hosts.len() {
                moved |= self.take_from(self.hosts[place], &mut woken)?;
            }
            woken = Nanos(0);
            // What falls due while others are handed over waits until hosts have been looked at.
            let now = self.now();
            loop {
                self.network.advance(now, |output| outputs.push(output));
                if outputs.is_empty() {
                    break;
                }
                moved = true;
                self.deliver(&mut outputs);
            }
            self.look_after();
            if !moved {
                woken = self.nap(&mut polled);
            } else if self.is_first && self.now().since(self.wakes.slept) > AT_A_STRETCH {
                // Others need the processor too, and the kernel stops real-time threads that leave them nothing.
                std::thread::sleep(BREAK);
                self.wakes.slept = self.now();
            }
            self.take_turns();
        }
        self.publish();
        Ok(())
    }

    /// Is the first of all threads only while there is time for the others.
    fn take_turns(&mut self) {
        let now = self.now();
        let Wakes {
            spun,
            asleep,
            since,
            ..
        } = &mut self.wakes;
        let window = now.since(*since);
        if window < WINDOW {
            return;
        }
        self.turns = self.turns.plus(window);
        if self.is_first {
            self.was_first = self.was_first.plus(window);
        }
        let work = 100 * window.since(spun.plus(*asleep)).0 / window.0;
        (*spun, *asleep, *since) = (Nanos(0), Nanos(0), now);
        if self.is_first && !self.has_rate && work > MUCH_WORK {
            self.is_first = cpu::set_ordinary().is_err();
        } else if self.may_be_first && !self.is_first && work < LITTLE_WORK {
            self.is_first = cpu::set_real_time(PRIORITY, cpu::Waiting::Sleep).is_ok();
        }
    }

    /// Sleeps until something is to be done. Waking up takes its time, which is learnt: it sleeps so much less, and spins
    /// the rest as long as that does not become a habit. Gives how long a frame that woke it has waited.
    fn nap(&mut self, polled: &mut [libc::pollfd]) -> Nanos {
        let before = self.now();
        let until = self.network.next().map_or(NAP, |next| next.since(before));
        let until = Nanos(until.0.min(NAP.0));
        let Wakes {
            late,
            scatter,
            spun,
            ..
        } = &self.wakes;
        let may_spin = spun.0 < WINDOW.0 / SPIN_SHARE;
        let lead = if may_spin {
            Nanos(late.0 + 2 * scatter.0)
        } else {
            Nanos(0)
        };
        if until <= lead {
            // Not long, and frames are looked for meanwhile.
            let end = self.now().plus(SPIN_STEP);
            while self.now() < end {}
            self.wakes.spun = self.wakes.spun.plus(SPIN_STEP);
            return Nanos(0);
        }
        let asleep = Nanos(until.0 - lead.0);
        let is_ready = tap::wait(polled, asleep.0);
        self.wakes.slept = self.now();
        let slept = self.wakes.slept.since(before);
        self.wakes.asleep = self.wakes.asleep.plus(slept);
        if is_ready {
            return Nanos(self.wakes.late.0.min(slept.0));
        }
        // Far too late is the machine's doing, not the price of waking up.
        let over = slept.since(asleep).0.min(MOST_LATE.0);
        let Wakes { late, scatter, .. } = &mut self.wakes;
        scatter.0 = (15 * scatter.0 + over.abs_diff(late.0)) / 16;
        late.0 = (15 * late.0 + over) / 16;
        Nanos(0)
    }

    /// Takes the frames that a host has sent. The first of them has `waited` while this thread woke up.
    fn take_from(&mut self, host: usize, waited: &mut Nanos) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..AT_ONCE {
            let Some(length) = self.taps[host].read(&mut self.reading)? else {
                break;
            };
            moved = true;
            let at = Nanos(self.now().since(std::mem::take(waited)).0);
            let Some(frame) = Frame::new(&self.reading[..length]) else {
                continue;
            };
            let (train, link_header) = (frame.train(), frame.link_header());
            let to = frame.destination();
            let counts = &mut self.counts[host];
            counts.sent += u64::from(train.count);
            if self.pool.borrow().used > self.most_memory {
                counts.overrun += u64::from(train.count);
                continue;
            }
            let mut buffer = self.pool.borrow_mut().take(length, self.most_memory);
            if buffer.len() == self.reading.len() {
                std::mem::swap(&mut buffer, &mut self.reading);
            } else {
                buffer[..length].copy_from_slice(&self.reading[..length]);
            }
            let packet = Handle(Rc::new(Packet {
                buffer,
                length,
                train,
                link_header,
                to,
                pool: Rc::clone(&self.pool),
            }));
            let piece = Piece::whole(at, &train);
            self.forward(self.plan.node_of(host), None, &packet, piece);
        }
        Ok(moved)
    }

    /// Sends a packet on from a node.
    fn forward(&mut self, node: usize, from: Option<usize>, packet: &Handle, piece: Piece) {
        let to = packet.0.to;
        let host = host_of(to).filter(|host| *host < self.taps.len());
        match host {
            Some(host) => {
                let target = self.plan.node_of(host);
                match self.plan.next(node, target) {
                    Some(direction) => self.offer(direction, packet, piece),
                    None => self.counts[host].astray += u64::from(piece.count),
                }
            }
            // To all.
            None if to[0] & 1 == 1 => {
                for direction in self.plan.leaving(node) {
                    if Some(direction.link) != from {
                        self.offer(direction, packet, piece);
                    }
                }
            }
            None => {
                let host = self.plan.host_at(node).unwrap_or(0);
                self.counts[host].astray += u64::from(piece.count);
            }
        }
    }

    fn offer(&mut self, direction: Direction, packet: &Handle, piece: Piece) {
        let Some(route) = self.route_of[place(direction)] else {
            return;
        };
        let Packet {
            train, link_header, ..
        } = *packet.0;
        self.network
            .offer(route, packet.clone(), train, piece, link_header);
    }

    /// Hands over what has arrived, or sends it on.
    fn deliver(&mut self, outputs: &mut Vec<Output<Handle>>) {
        let mut waiting: Option<(usize, Handle, Piece)> = None;
        for output in outputs.drain(..) {
            match output {
                Output::Delivered {
                    route,
                    packet,
                    piece,
                } => {
                    let direction = self.routes[route].0;
                    let node = self.plan.to(direction);
                    let to = packet.0.to;
                    let here = self.plan.host_at(node);
                    if here.is_none() || host_of(to) != here {
                        self.forward(node, Some(direction.link), &packet, piece);
                    }
                    let Some(host) =
                        here.filter(|host| to[0] & 1 == 1 || host_of(to) == Some(*host))
                    else {
                        continue;
                    };
                    // Segments of one packet, one right behind the other.
                    if let Some((at, before, joined)) = &mut waiting
                        && *at == host
                        && Rc::ptr_eq(&before.0, &packet.0)
                        && joined.first + joined.count == piece.first
                        && joined.marks == Marks::default()
                        && piece.marks == Marks::default()
                        && piece.at.since(joined.at) < TOGETHER
                    {
                        joined.count += piece.count;
                        joined.at = piece.at;
                        continue;
                    }
                    if let Some((host, packet, piece)) = waiting.replace((host, packet, piece)) {
                        self.hand_over(host, &packet, &piece);
                    }
                }
                Output::TooLong { packet, longest } => self.tell(&packet, longest),
            }
        }
        if let Some((host, packet, piece)) = waiting {
            self.hand_over(host, &packet, &piece);
        }
    }

    fn hand_over(&mut self, host: usize, packet: &Handle, piece: &Piece) {
        let is_whole = piece.count == packet.0.train.count && piece.marks == Marks::default();
        let taken = if is_whole {
            self.taps[host].write(packet.0.bytes())
        } else {
            let Some(frame) = Frame::new(packet.0.bytes()) else {
                return;
            };
            frame.cut(piece, &mut self.scratch);
            self.taps[host].write(&self.scratch)
        };
        let counts = &mut self.counts[host];
        if taken {
            counts.received += u64::from(piece.count);
        } else {
            counts.refused += u64::from(piece.count);
        }
        let late = self.now().since(piece.at).0;
        let (frames, sum, most) = &mut self.late;
        *frames += 1;
        *sum += u128::from(late);
        *most = (*most).max(late);
    }

    /// Tells the sender of a packet that was too long. The message comes from where the packet was going, at once.
    fn tell(&mut self, packet: &Handle, longest: u32) {
        let message = Frame::new(packet.0.bytes()).and_then(|frame| frame.too_long(longest));
        let Some(message) = message else {
            return;
        };
        let to = Frame::new(&message).and_then(|frame| host_of(frame.destination()));
        if let Some(host) = to.filter(|host| *host < self.taps.len()) {
            self.taps[host].write(&message);
        }
    }

    /// Changes that were asked for, and what is to be shown.
    fn look_after(&mut self) {
        for (direction, cell, law) in std::mem::take(&mut *lock(&self.shared.changes)) {
            if let Some(id) = self.cell(direction, cell) {
                let now = self.now();
                self.network.cell_mut(id).change(now, law);
            }
        }
        if self.shared.is_asked.load(Ordering::Acquire) || self.has_much_to_log() {
            self.publish();
            self.shared.is_asked.store(false, Ordering::Release);
        }
    }

    fn has_much_to_log(&self) -> bool {
        let mut cells = self.routes.iter().flat_map(|(_, line)| &line.cells);
        self.logs && cells.any(|id| self.network.cell(*id).logged() > LOGGED / 2)
    }

    fn cell(&self, direction: Direction, cell: usize) -> Option<CellId> {
        let route = self.route_of[place(direction)]?;
        self.routes[route].1.cells.get(cell).copied()
    }

    fn publish(&mut self) {
        let mut part = Part {
            hosts: self.counts.clone(),
            ..Part::default()
        };
        let mut lines = Vec::new();
        for (direction, line) in &self.routes {
            for (number, id) in line.cells.iter().enumerate() {
                part.cells
                    .push((*direction, number, self.network.truth(*id).clone()));
                if self.logs {
                    let log = self.network.take_log(*id);
                    lines.extend(log.into_iter().map(|logged| LogLine {
                        link: self.plan.links[direction.link].name.clone(),
                        direction: self.plan.show(*direction),
                        cell: self.plan.cells(*direction)[number].name.clone(),
                        logged,
                    }));
                }
            }
        }
        let (frames, sum, most) = self.late;
        part.lateness = Lateness {
            frames,
            mean_s: sum as f64 * 1e-9 / frames.max(1) as f64,
            max_s: most as f64 * 1e-9,
            memory: self.pool.borrow().made,
            first_of_all: self.was_first.as_secs_f64() / self.turns.as_secs_f64().max(1e-9),
        };
        lock(&self.shared.log).extend(lines);
        *lock(&self.shared.snapshot) = part;
    }
}

const _: () = assert!(VNET + 14 < BUFFERS[0]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_one_length_serves_another() {
        let mut pool = Pool::default();
        let most = 1 << 20;
        for frame in [1514, 9014, LONGEST, 60] {
            let mut taken = Vec::new();
            while pool.used <= most {
                taken.push(pool.take(frame, most));
            }
            assert!(pool.made <= most + 2 * LONGEST as u64, "{}", pool.made);
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert_eq!(pool.used, 0);
        }
    }
}

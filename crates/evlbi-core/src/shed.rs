//! Shedding: dropping data on purpose before sending, so that the rest fits the link or so that the effect of loss can be studied
//! (VLBI_UDP, EXPReS report sections 3.3.4 and 3.6).
//!
//! A decision is about one *unit*: a whole frame, or a packet. Fractions are exact in integers: the remainder of each decision is
//! carried to the next.
//!
//! New policies, and new kinds of replacement, belong here.

mod keep;
mod policy;

use evlbi_wire::fill;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{StationId, StreamKey};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use self::keep::Keep;
use crate::packetise::{Family, TCP_HEADER, UDP_HEADER};
use crate::rate::BitRate;
pub use policy::{Fraction, Policy, PolicyError, Replace};

/// Maximum length of a `bunch:`, in units (report, section 3.3.4).
const MAX_BUNCH: u64 = 10;

/// Properties of the stream that a policy needs.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Bit rate of the data before shedding; `None` if sent as fast as the host can.
    pub rate: Option<BitRate>,
    /// Length of a unit, in bytes.
    pub unit_bytes: u64,
    /// Bytes of a unit on the wire, including all headers and gaps ([`wire_bytes`]).
    pub wire_bytes: u64,
    /// Threads of the stream, in any order and any number of times; empty for raw data.
    pub threads: Vec<u16>,
    /// Frames per second of a thread, if known.
    pub frame_rate: Option<FrameRate>,
}

/// Returns the bytes that a datagram with `data` bytes (transport header included) takes of an Ethernet: IP and UDP headers,
/// padding to the minimum frame of 64 bytes, Ethernet header and check sequence (18), preamble (8) and gap (12).
pub fn wire_bytes(data: usize, family: Family) -> u64 {
    let frame = (data as u64).saturating_add((UDP_HEADER + family.ip_header() + 18) as u64);
    frame.max(64).saturating_add(8 + 12)
}

/// Returns the bytes that a TCP segment with `data` bytes takes of an Ethernet, as [`wire_bytes`] counts them.
pub fn wire_bytes_of_segment(data: usize, family: Family) -> u64 {
    wire_bytes(data.saturating_add(TCP_HEADER - UDP_HEADER), family)
}

/// Unit to decide about.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Station and thread.
    pub key: StreamKey,
    /// Time of the frame; `None` for raw data.
    pub time: Option<FrameTime>,
    /// Eight bytes of its data if it names no station, which distinguish two streams; else 0.
    data: u64,
}

impl Unit {
    /// Makes the unit of `bytes`, a frame or a piece of raw data.
    pub fn new(key: StreamKey, time: Option<FrameTime>, bytes: &[u8]) -> Unit {
        let word = bytes.get(bytes.len() / 2..).and_then(<[u8]>::first_chunk);
        let data = match key.station {
            StationId(0) => word.map_or(0, |word| u64::from_le_bytes(*word)),
            _ => 0,
        };
        Unit { key, time, data }
    }

    /// Returns a seed that no other frame has: stations with the same `seed` share no random choice, or noise would correlate.
    fn seed(&self, seed: u64) -> u64 {
        let key = u64::from(self.key.station.0) << 16 | u64::from(self.key.thread);
        let (second, frame) = self.time.map_or((0, 0), |time| (time.second, time.frame));
        let seed = mixed(mixed(seed, 1 + key), self.data);
        mixed(mixed(seed, second as u64), 1 + u64::from(frame))
    }

    /// Fills `bytes` with the random bytes that replace this unit; `part` numbers the pieces of a frame.
    pub fn fill_random(&self, seed: u64, part: u64, bytes: &mut [u8]) {
        let seed = mixed(self.seed(seed), u64::MAX - part);
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(bytes);
    }

    /// Writes the replacement of part `part`, which was at `offset` in the frame.
    pub fn replace(&self, by: Replace, seed: u64, part: u64, offset: usize, bytes: &mut [u8]) {
        match by {
            Replace::Random => self.fill_random(seed, part, bytes),
            _ => fill::make_from(bytes, offset),
        }
    }

    /// Returns one of `among` places at random, for a piece of this unit.
    pub fn place(&self, part: u64, among: usize) -> usize {
        (mixed(self.seed(part), part) % among.max(1) as u64) as usize
    }
}

/// Reason why a policy does not work for a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShedError {
    /// `fit:` without a rate.
    #[error("fit: needs the rate of the stream, which is unknown")]
    NoRate,
    /// `common:` by blocks of time without times.
    #[error("common: needs the frame rate to calculate the time of each frame")]
    NoFrameRate,
    /// `keep:` without times and without a rate.
    #[error(
        "keep: needs the frame rate, or the rate of data without times, to know the blocks of time"
    )]
    NoBlocks,
    /// `threads:` for raw data.
    #[error(
        "threads: needs frames with a thread number, and this stream has none; choose another policy"
    )]
    NoThreads,
    /// `threads:` with threads that the stream does not have.
    #[error("threads: the stream has none of these; it has {0}")]
    NoSuchThread(String),
}

/// Lists the threads, each once.
fn list(threads: &[u16]) -> String {
    let once: std::collections::BTreeSet<u16> = threads.iter().copied().collect();
    let names: Vec<String> = once.iter().map(u16::to_string).collect();
    names.join(", ")
}

/// Policy in use.
#[derive(Clone, Debug)]
pub struct Shed {
    policy: Policy,
    seed: u64,
    state: State,
    /// Whether it has started at a place that follows from the station, thread and time of the first unit.
    has_begun: bool,
    offered: u64,
    shed: u64,
}

/// State that a policy keeps from unit to unit.
#[derive(Clone, Debug)]
enum State {
    None,
    Every {
        n: u64,
        count: u64,
    },
    Bunch {
        fraction: Fraction,
        random: ChaCha8Rng,
        to_shed: u64,
        to_keep: u64,
        carried: u64,
    },
    Random(Fraction, ChaCha8Rng),
    Burst(Burst),
    Threads(Vec<u16>),
    CommonThreads {
        fraction: Fraction,
        threads: Vec<u16>,
        rotation: Rotation,
    },
    CommonBlocks {
        fraction: Fraction,
        block: u64,
        rate: FrameRate,
    },
    Keep {
        fraction: Fraction,
        keep: Keep,
    },
    Fit(Spread),
}

impl Shed {
    /// Prepares `policy` for `stream`. All choices except those of `common:`, `keep:` and `threads:` follow from `seed` and from
    /// the station, thread and time of the first unit; those of `common:` and `keep:` follow from `seed` alone.
    pub fn new(policy: Policy, seed: u64, stream: &Stream) -> Result<Shed, ShedError> {
        let random = ChaCha8Rng::seed_from_u64(seed);
        let state = match &policy {
            Policy::None => State::None,
            Policy::Every(n) => State::Every { n: *n, count: 0 },
            Policy::Bunch(fraction) => State::Bunch {
                fraction: *fraction,
                random,
                to_shed: 0,
                to_keep: 0,
                carried: 0,
            },
            Policy::Random(fraction) => State::Random(*fraction, random),
            Policy::Burst { fraction, length } => State::Burst(Burst {
                bad: false,
                random,
                // The long-run fraction of the bad state is to_bad / (to_bad + to_good) = f.
                to_bad: fraction.get() / (1.0 - fraction.get()) / length,
                to_good: 1.0 / length,
            }),
            Policy::Threads(_) if stream.threads.is_empty() => return Err(ShedError::NoThreads),
            Policy::Threads(threads) if !threads.iter().any(|t| stream.threads.contains(t)) => {
                return Err(ShedError::NoSuchThread(list(&stream.threads)));
            }
            Policy::Threads(threads) => State::Threads(threads.clone()),
            Policy::Common { fraction, block } => common(*fraction, block.as_nanos(), stream)?,
            Policy::Keep { kept, block } => State::Keep {
                fraction: *kept,
                keep: Keep::new(*kept, block.as_nanos(), seed, stream)?,
            },
            Policy::Fit(link) => State::Fit(fit(*link, stream)?),
        };
        Ok(Shed {
            policy,
            seed,
            state,
            has_begun: false,
            offered: 0,
            shed: 0,
        })
    }

    /// Returns whether to shed the next unit.
    #[inline]
    pub fn decide(&mut self, unit: &Unit) -> bool {
        if !self.has_begun {
            self.has_begun = true;
            self.state.begin(unit.seed(self.seed));
        }
        let shed = self.state.decide(self.seed, unit);
        self.offered += 1;
        self.shed += u64::from(shed);
        shed
    }

    /// Returns the long-run fraction that the policy sheds, if that is a fixed number.
    pub fn fraction(&self) -> Option<f64> {
        match &self.state {
            State::None => Some(0.0),
            State::Every { n, .. } => Some(1.0 / *n as f64),
            State::Bunch { fraction, .. }
            | State::Random(fraction, _)
            | State::CommonThreads { fraction, .. }
            | State::CommonBlocks { fraction, .. } => Some(fraction.get()),
            State::Burst(burst) => Some(burst.share()),
            State::Threads(_) => None,
            State::Keep { fraction, .. } => Some(1.0 - fraction.get()),
            State::Fit(spread) => Some(spread.part as f64 / spread.whole as f64),
        }
    }

    /// Returns what was asked for and what was done.
    pub fn report(&self) -> ShedReport {
        ShedReport {
            policy: self.policy.to_string(),
            seed: self.seed,
            fraction_planned: self.fraction(),
            offered: self.offered,
            shed: self.shed,
            fraction: self.shed as f64 / self.offered.max(1) as f64,
        }
    }
}

/// Result of a policy, in units.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShedReport {
    /// Policy as text.
    pub policy: String,
    /// Seed of its random choices.
    pub seed: u64,
    /// Planned long-run fraction; `None` for a choice of threads.
    pub fraction_planned: Option<f64>,
    /// Units decided about.
    pub offered: u64,
    /// Units shed.
    pub shed: u64,
    /// Fraction shed.
    pub fraction: f64,
}

impl ShedReport {
    /// Adds what the same policy did at another time.
    pub fn add(&mut self, other: &ShedReport) {
        self.offered += other.offered;
        self.shed += other.shed;
        self.fraction = self.shed as f64 / self.offered.max(1) as f64;
    }
}

impl State {
    /// Starts at a place that `seed` selects, so that stations do not shed the same units.
    fn begin(&mut self, seed: u64) {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        match self {
            State::Every { n, count } => *count = chance.random_range(0..*n),
            State::Fit(spread) => spread.carried = chance.random_range(0..spread.whole),
            State::Bunch { random, .. } | State::Random(_, random) => *random = chance,
            State::Burst(burst) => burst.begin(chance),
            // These start alike everywhere.
            _ => {}
        }
    }

    fn decide(&mut self, seed: u64, unit: &Unit) -> bool {
        match self {
            State::None => false,
            State::Every { n, count } => {
                *count = (*count + 1) % *n;
                *count == 0
            }
            State::Bunch {
                fraction,
                random,
                to_shed,
                to_keep,
                carried,
            } => {
                if *to_shed == 0 && *to_keep == 0 {
                    *to_shed = random.random_range(1..=MAX_BUNCH);
                    (*to_keep, *carried) = fraction.kept_after(*to_shed, *carried);
                }
                let shed = *to_shed > 0;
                *(if shed { to_shed } else { to_keep }) -= 1;
                shed
            }
            State::Random(fraction, random) => random.random_range(0..Fraction::ONE) < fraction.0,
            State::Burst(burst) => burst.next(),
            State::Threads(threads) => threads.contains(&unit.key.thread),
            State::CommonThreads {
                fraction,
                threads,
                rotation,
            } => unit.time.is_some_and(|time| {
                let rank = threads.iter().position(|of| *of == unit.key.thread);
                let rank = rank.unwrap_or(usize::from(unit.key.thread));
                let count = threads.len() as u64;
                let turn = (rank as u64 + rotation.at(seed, time.second)) % count;
                let cell = i128::from(time.second) * i128::from(count) + i128::from(turn);
                fraction.falls_on(seed, cell)
            }),
            State::CommonBlocks {
                fraction,
                block,
                rate,
            } => unit.time.is_some_and(|time| {
                fraction.falls_on(seed, time.nanos(*rate).div_euclid(i128::from(*block)))
            }),
            State::Keep { keep, .. } => keep.decide(unit),
            State::Fit(spread) => spread.next(),
        }
    }
}

/// Gilbert-Elliott channel: units are shed in its bad state.
#[derive(Clone, Debug)]
struct Burst {
    random: ChaCha8Rng,
    bad: bool,
    /// Probabilities of leaving the good and the bad state.
    to_bad: f64,
    to_good: f64,
}

impl Burst {
    /// Returns the long-run fraction of the bad state.
    fn share(&self) -> f64 {
        self.to_bad / (self.to_bad + self.to_good)
    }

    fn begin(&mut self, mut random: ChaCha8Rng) {
        self.bad = random.random_bool(self.share());
        self.random = random;
    }

    fn next(&mut self) -> bool {
        let leave = if self.bad { self.to_good } else { self.to_bad };
        self.bad ^= self.random.random_bool(leave.min(1.0));
        self.bad
    }
}

/// Makes the same choice at every station: from the seed, the time of the data and the thread's rank among the stream's threads,
/// so stations must have the same threads. One wavefront arrives at two stations up to tens of milliseconds apart, so the cells
/// are much longer: a thread for a second if there are several threads, else blocks of time.
fn common(fraction: Fraction, block_nanos: u128, stream: &Stream) -> Result<State, ShedError> {
    let mut threads = stream.threads.clone();
    threads.sort_unstable();
    threads.dedup();
    if threads.len() > 1 {
        return Ok(State::CommonThreads {
            fraction,
            rotation: Rotation {
                cycle: None,
                begins: vec![0; threads.len()],
            },
            threads,
        });
    }
    Ok(State::CommonBlocks {
        fraction,
        block: u64::try_from(block_nanos).unwrap_or(u64::MAX),
        rate: stream.frame_rate.ok_or(ShedError::NoFrameRate)?,
    })
}

/// Choice of the thread with which each second's turns start. In as many seconds as there are threads each starts once, in an
/// order that changes from cycle to cycle, so that no fraction synchronises with it.
#[derive(Clone, Debug)]
struct Rotation {
    cycle: Option<i64>,
    begins: Vec<u64>,
}

impl Rotation {
    fn at(&mut self, seed: u64, second: i64) -> u64 {
        let length = self.begins.len() as i64;
        let cycle = second.div_euclid(length);
        if self.cycle != Some(cycle) {
            self.cycle = Some(cycle);
            self.shuffle(mixed(seed, cycle as u64));
        }
        self.begins[second.rem_euclid(length) as usize]
    }

    /// Fisher-Yates shuffle. Not that of `rand`, which may change from version to version: stations of different versions must
    /// agree.
    fn shuffle(&mut self, seed: u64) {
        for (begin, rank) in self.begins.iter_mut().zip(0..) {
            *begin = rank;
        }
        for last in (1..self.begins.len()).rev() {
            let other = mixed(seed, last as u64) % (last as u64 + 1);
            self.begins.swap(last, other as usize);
        }
    }
}

/// Sheds exactly as much as does not fit `link`.
fn fit(link: BitRate, stream: &Stream) -> Result<Spread, ShedError> {
    let rate = stream.rate.ok_or(ShedError::NoRate)?;
    let needed = u128::from(rate.get()) * u128::from(stream.wire_bytes);
    let there = u128::from(link.get()) * u128::from(stream.unit_bytes);
    Ok(Spread {
        part: needed.saturating_sub(there),
        whole: needed.max(1),
        carried: 0,
    })
}

/// Selection of `part` of every `whole` units, spread as evenly as possible.
#[derive(Clone, Debug)]
struct Spread {
    part: u128,
    whole: u128,
    carried: u128,
}

impl Spread {
    fn next(&mut self) -> bool {
        self.carried += self.part;
        let due = self.carried >= self.whole;
        if due {
            self.carried -= self.whole;
        }
        due
    }
}

/// Returns a pseudo-random number that follows from its arguments (the finaliser of SplitMix64).
fn mixed(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;

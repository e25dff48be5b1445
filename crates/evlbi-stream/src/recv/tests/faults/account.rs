//! Conditions that must hold after a case, checked against the log of each datagram.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use evlbi_core::admission::{ENOUGH, FORGOTTEN, SILENCE};
use evlbi_core::time::Nanos;
use evlbi_testkit::faults::Faults;
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::Header;

use super::{
    BEGINNING, DELAY, Direction, End, FRAME, FRAMES, Fault, LEAD, Life, Place, Played, Received,
    RecvResult, SPACING, Sent, Span, What, buffer, frame, frame_rate, is_open, sender,
};

/// Time by which arrived data are on the disk, if their receiver runs: a new stream waits until the one before has been silent for
/// 300 ms, a gap stays open for 100 ms, and data are written within 500 ms.
const LAG: Nanos = Nanos(1_000_000_000);
/// Maximum interval at which a receiver checks a stream for silence.
const POLL_INTERVAL: Nanos = Nanos(20_000_000);
/// Maximum time in which arrivals are read.
const SOON: Nanos = Nanos(1_000_000);

/// Outcome of a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// It was dropped in flight, or nothing read it from its socket.
    Lost,
    /// Nothing listened where it arrived.
    Unheard(Nanos),
    /// Its socket was full when it arrived.
    NoRoom(Nanos),
    /// The receiver read it.
    Taken(Nanos),
}

/// A datagram in flight.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    number: u64,
    sent: Nanos,
    fate: Fate,
}

/// All datagrams, of each socket in the order in which they were sent.
#[derive(Default)]
struct Journal(BTreeMap<SocketAddr, Vec<Datagram>>);

impl Journal {
    fn read(log: &str) -> Journal {
        let mut journal = Journal::default();
        for line in log.lines().filter(|line| !line.ends_with(": on")) {
            let Some((head, what)) = line.split_once(": ") else {
                continue;
            };
            let at = head.split(' ').next().unwrap_or_default();
            let at = Nanos(at.parse().expect("a time"));
            let words = what.split_whitespace();
            let words: Vec<&str> = words.map(|word| word.trim_end_matches(',')).collect();
            let (number, from, fate) = match words[..] {
                [from, "sends", number, ..] => {
                    let datagram = Datagram {
                        number: number.parse().expect("a number"),
                        sent: at,
                        fate: Fate::Lost,
                    };
                    let from = from.parse().expect("an address");
                    journal.0.entry(from).or_default().push(datagram);
                    continue;
                }
                [_, "receives", number, _, _, "from", from, ..] => (number, from, Fate::Taken(at)),
                ["nobody", "listens", "at", _, "for", number, "from", from] => {
                    (number, from, Fate::Unheard(at))
                }
                [_, "has", "no", "room", "for", number, "from", from] => {
                    (number, from, Fate::NoRoom(at))
                }
                _ => continue,
            };
            let from: SocketAddr = from.parse().expect("an address");
            let number: u64 = number.parse().expect("a number");
            journal.find(from, number).fate = fate;
        }
        journal
    }

    /// Finds a datagram whose fate is not known yet.
    fn find(&mut self, from: SocketAddr, number: u64) -> &mut Datagram {
        let all = self.0.get_mut(&from).expect("a sent datagram");
        let is_it = |it: &Datagram| it.number == number && it.fate == Fate::Lost;
        // Senders number from 0; unknown senders repeat themselves.
        let likely = usize::try_from(number).unwrap_or(usize::MAX);
        let place = match all.get(likely).is_some_and(is_it) {
            true => likely,
            false => all.iter().position(is_it).expect("a sent datagram"),
        };
        &mut all[place]
    }

    /// Returns the datagrams of a sender, by its sockets in the order in which it opened them.
    fn of(&self, number: usize) -> impl Iterator<Item = &[Datagram]> {
        let sockets = self.0.iter();
        let own = sockets.filter(move |(from, _)| from.ip() == sender(number));
        own.map(|(_, datagrams)| &datagrams[..])
    }

    fn all(&self) -> impl Iterator<Item = &Datagram> {
        self.0.values().flatten()
    }
}

/// Checks all conditions.
pub fn check(faults: &Faults<Fault>, played: &Played) {
    let journal = Journal::read(&played.log);
    let cuts = faults.0.iter().filter_map(|fault| match fault.what {
        What::IsCut(span) if fault.place == Place::Network(Direction::There) => {
            let begin = Nanos::from(fault.at);
            Some([begin, begin.plus(span.into())])
        }
        _ => None,
    });
    let cuts: Vec<Span> = cuts.collect();
    for (number, (sent, received)) in played.sent.iter().zip(&played.received).enumerate() {
        let place = Place::Receiver(number);
        let mut at = faults.0.iter().filter(|fault| fault.place == place);
        let flow = Flow {
            number,
            cuts: &cuts,
            is_alone: at.all(|fault| !matches!(fault.what, What::Hears(..))),
            senders: senders(number, sent, &journal),
            receivers: received,
        };
        flow.check();
    }
    let mut received = played.received.iter().flat_map(|life| &life.runs);
    if received.all(|run| run.end != End::Killed) {
        let lost = journal.all().filter(|it| it.fate == Fate::Lost).count();
        assert_eq!(lost as u64, played.dropped, "dropped in the network");
    }
}

/// Returns the runs of a sender that sent anything, with their datagrams: all that were due.
fn senders<'p>(
    number: usize,
    life: &'p Life<Sent>,
    journal: &'p Journal,
) -> Vec<(&'p Sent, &'p [Datagram])> {
    for run in &life.runs {
        let [offered, sent, not_sent, shed] =
            ["offered", "sent", "not_sent", "shed"].map(|name| run.counts.count(name));
        assert_eq!((offered, not_sent, shed), (sent, 0, 0));
        let [begin, end] = run.span;
        let due = end.since(begin.plus(LEAD)).0 / SPACING.0;
        match run.end {
            End::Done => assert_eq!(run.next(), FRAMES, "a sender sends everything"),
            _ if overlap(&life.stalls, run.span) > Nanos(0) => {}
            _ => assert!(sent >= due, "{sent} of {due} frames were sent"),
        }
    }
    let runs = life.runs.iter().filter(|run| run.counts.count("sent") > 0);
    let runs: Vec<&Sent> = runs.collect();
    let datagrams: Vec<&[Datagram]> = journal.of(number).collect();
    assert_eq!(runs.len(), datagrams.len());
    for (run, datagrams) in runs.iter().zip(&datagrams) {
        let numbers = datagrams.iter().map(|it| it.number);
        assert!(
            numbers.eq(0..run.counts.count("sent")),
            "numbers without a gap"
        );
    }
    runs.into_iter().zip(datagrams).collect()
}

/// A sender and its receiver, with their replacements.
struct Flow<'p> {
    number: usize,
    cuts: &'p [Span],
    /// No unknown sender sends anything to the receiver.
    is_alone: bool,
    senders: Vec<(&'p Sent, &'p [Datagram])>,
    receivers: &'p Life<Received>,
}

/// Frames that a receiver took: by the runs of their sender, with the times.
type Taken = BTreeMap<usize, BTreeMap<usize, Nanos>>;

impl Flow<'_> {
    fn check(&self) {
        let taken = self.taken();
        for (run, taken) in self.receivers.runs.iter().zip(&taken) {
            let is_long = taken.values().any(|frames| frames.len() >= ENOUGH);
            // Frames too few for a stream may not be the sender's.
            if !is_long && is_open(self.number) {
                continue;
            }
            let recorded = self.recorded(run);
            self.check_recorded(run, &recorded, taken);
            if let Some(result) = &run.result {
                self.check_counters(run, result, &recorded, taken);
            }
        }
    }

    /// Returns the frames that each run of the receiver took, and checks that the faults explain the others.
    fn taken(&self) -> Vec<Taken> {
        let receivers = &self.receivers.runs;
        let mut all: Vec<Taken> = receivers.iter().map(|_| Taken::new()).collect();
        for (place, (run, datagrams)) in self.senders.iter().enumerate() {
            for datagram in *datagrams {
                let index = run.first + datagram.number as usize;
                let name = format!("frame {index} of s{}: {datagram:?}", self.number + 1);
                match datagram.fate {
                    Fate::Taken(at) => {
                        let run = self.heard_by(at).expect("a receiver that runs");
                        all[run].entry(place).or_default().insert(index, at);
                    }
                    Fate::NoRoom(at) => {
                        let mut stalls = self.receivers.stalls.iter();
                        let is_stalled = stalls.any(|stall| holds(stall, at));
                        assert!(buffer(self.number).is_some() && is_stalled, "{name}");
                    }
                    Fate::Unheard(at) => {
                        // At the moment in which a receiver starts or stops it may listen or not.
                        let listens = |run: &Received| run.span[0] < at && at < run.span[1];
                        assert!(!self.receivers.runs.iter().any(listens), "{name}");
                    }
                    Fate::Lost => {
                        let is_cut = self.cuts.iter().any(|cut| holds(cut, datagram.sent));
                        assert!(
                            is_cut || self.dies_with(datagram.sent.plus(DELAY)),
                            "{name}"
                        );
                    }
                }
            }
        }
        all
    }

    /// The run of the receiver that may listen at this moment.
    fn heard_by(&self, at: Nanos) -> Option<usize> {
        let mut runs = self.receivers.runs.iter();
        runs.position(|run| holds(&[run.span[0], run.ended], at))
    }

    /// Whether a datagram that arrived at this moment waited at a receiver that did not run again before it was killed.
    fn dies_with(&self, arrived: Nanos) -> bool {
        let mut killed = self
            .receivers
            .runs
            .iter()
            .filter(|run| run.end == End::Killed);
        killed.any(|run| holds(&run.span, arrived) && self.runs_for(arrived, run.span[1]) <= SOON)
    }

    /// How long the receiver's host did not stall between two moments.
    fn runs_for(&self, begin: Nanos, end: Nanos) -> Nanos {
        end.since(begin)
            .since(overlap(&self.receivers.stalls, [begin, end]))
    }

    /// Frames in a recording, and whether each is valid: one for each time, each valid one as it was sent.
    fn recorded(&self, run: &Received) -> BTreeMap<usize, bool> {
        let (frames, rest) = run.recorded.as_chunks::<FRAME>();
        assert!(rest.is_empty() || run.end == End::Killed, "whole frames");
        let mut recorded = BTreeMap::new();
        for bytes in frames {
            let header = Header::parse(bytes).expect("a header");
            let begin = FrameTime {
                second: BEGINNING,
                frame: 0,
            };
            let index = header.time().index(frame_rate()) - begin.index(frame_rate());
            let index = usize::try_from(index).expect("a time of the stream");
            assert!(index < FRAMES, "a frame after the end: {index}");
            let is_valid = !header.is_invalid();
            let before = recorded.insert(index, is_valid);
            assert_eq!(before, None, "frame {index} is recorded twice ({is_valid})");
            assert!(
                !is_valid || bytes == frame(self.number, index),
                "frame {index} is another"
            );
        }
        recorded
    }

    /// Checks that all accepted frames are in the recording, except for those that its end cost, and nothing else.
    fn check_recorded(&self, run: &Received, recorded: &BTreeMap<usize, bool>, taken: &Taken) {
        let name = format!("r{} from {:?}", self.number + 1, run.span);
        let frames: BTreeSet<usize> = taken.values().flat_map(|it| it.keys().copied()).collect();
        let valid = recorded.iter().filter(|(_, is_valid)| **is_valid);
        for (index, _) in valid {
            assert!(
                frames.contains(index),
                "{name}: frame {index} was not received"
            );
        }
        let killed = (run.end == End::Killed).then_some(run.span[1]);
        let last = killed.into_iter().chain(run.full).min();
        let is_lost = |at: Nanos| last.is_some_and(|last| self.runs_for(at, last) < LAG);
        for (frames, may_be_refused) in sequences(run, taken) {
            if may_be_refused {
                continue;
            }
            // Recording starts with enough frames for a stream: consecutive ones, as nothing is known yet of what a gap joins.
            let all: Vec<(&usize, &Nanos)> = frames.iter().collect();
            let is_whole = |part: &[(&usize, &Nanos)]| part[ENOUGH - 1].0 - part[0].0 < ENOUGH;
            let Some(first) = all.windows(ENOUGH).position(is_whole) else {
                continue;
            };
            let begun = all[first + ENOUGH - 1].1;
            for (index, at) in &all[first..] {
                let is_there = recorded.get(*index) == Some(&true);
                assert!(
                    is_there || is_lost(*(*at).max(begun)),
                    "{name}: frame {index}, which arrived at {at:?}, is missing"
                );
            }
        }
    }

    /// The counters of a receiver that was not killed: they add up, and match the events.
    fn check_counters(
        &self,
        run: &Received,
        result: &RecvResult,
        recorded: &BTreeMap<usize, bool>,
        taken: &Taken,
    ) {
        let name = format!("r{} from {:?}", self.number + 1, run.span);
        let (counted, lost) = (&result.live.counters, &result.live.attribution);
        assert_eq!(counted.expected, counted.unique + counted.lost, "{name}");
        let received = counted.unique + counted.duplicates + counted.ring_full;
        assert_eq!(counted.received, received, "{name}");
        let attributed = lost.host_lost + lost.network_lost + lost.unattributed;
        assert_eq!(counted.lost, attributed, "{name}");
        let odd = [
            counted.duplicates,
            counted.ring_full,
            counted.late,
            counted.reordered,
        ];
        assert_eq!(odd, [0; 4], "{name}");
        let ends = |frames: &[usize]| {
            let [first, last] = [frames.first(), frames.last()];
            Some((frames.len() as u64, (last? - first? + 1) as u64))
        };
        let parts = sequences(run, taken).flat_map(|(frames, may_be_refused)| {
            let (forgotten, rest) = remembered(frames);
            let parts = [ends(&forgotten), ends(&rest)].into_iter().flatten();
            parts.map(move |ends| (ends, may_be_refused))
        });
        // Those that are recorded for certain, and the others.
        let (long, short): (Vec<_>, Vec<_>) = parts
            .partition(|((unique, _), may_be_refused)| *unique >= ENOUGH as u64 && !may_be_refused);
        let sum = |all: &[((u64, u64), bool)]| {
            all.iter()
                .fold((0, 0), |sum, (it, _)| (sum.0 + it.0, sum.1 + it.1))
        };
        let (unique, expected) = sum(&long);
        let (more, _) = sum(&short);
        assert!(
            (unique..=unique + more).contains(&counted.unique),
            "{name}: {counted:?}, not {unique}"
        );
        if counted.unique == unique {
            assert_eq!(counted.expected, expected, "{name}");
        }
        let no_room = self.no_room(run);
        let (drops, within) = (result.live.socket_drops, result.live.socket_drops_within);
        if self.is_alone {
            assert_eq!(drops, no_room, "{name}: what found no room");
        }
        assert!(within <= drops && lost.host_lost <= within, "{name}");
        self.check_sink(run, result, recorded);
    }

    /// Datagrams that found no room while this run listened.
    fn no_room(&self, run: &Received) -> u64 {
        let datagrams = self.senders.iter().flat_map(|(_, datagrams)| *datagrams);
        let is_here = |at: Nanos| {
            self.heard_by(at)
                .map(|place| &self.receivers.runs[place].span)
        };
        let lost = datagrams.filter(|it| match it.fate {
            Fate::NoRoom(at) => is_here(at) == Some(&run.span),
            _ => false,
        });
        lost.count() as u64
    }

    /// Checks the counters of written data.
    fn check_sink(&self, run: &Received, result: &RecvResult, recorded: &BTreeMap<usize, bool>) {
        let name = format!("r{} from {:?}", self.number + 1, run.span);
        let value = serde_json::to_value(result).expect("a result");
        let count = |name: &str| value[name].as_u64().unwrap_or_default();
        let unwritten = result.sink.unwritten_bytes;
        let written = run.recorded.len() as u64;
        assert_eq!(
            count("frames") * FRAME as u64,
            written + unwritten,
            "{name}"
        );
        if run.full.is_none() {
            assert_eq!((unwritten, &result.sink.write_error), (0, &None), "{name}");
            let invalid = recorded.values().filter(|is_valid| !**is_valid).count();
            assert_eq!(count("invalid"), invalid as u64, "{name}");
        }
    }
}

/// Returns the frames that a run took of each sequence, and whether it may have refused them: it was stopped before the previous
/// sequence had been silent for long enough.
fn sequences<'t>(
    run: &Received,
    taken: &'t Taken,
) -> impl Iterator<Item = (&'t BTreeMap<usize, Nanos>, bool)> {
    let is_stopped = run.end == End::Stopped;
    let enough = run.ended.0.saturating_sub(SILENCE.plus(POLL_INTERVAL).0);
    let mut last = None;
    taken.values().map(move |frames| {
        let before = std::mem::replace(&mut last, frames.values().max().copied());
        let is_soon = before.is_some_and(|before| before.0 > enough);
        (frames, is_stopped && is_soon)
    })
}

/// Frames of a run, and before them those that may be forgotten, since they are too few for a stream and none followed for long.
fn remembered(frames: &BTreeMap<usize, Nanos>) -> (Vec<usize>, Vec<usize>) {
    let all: Vec<(usize, Nanos)> = frames.iter().map(|(index, at)| (*index, *at)).collect();
    let mut first = 0;
    for (next, [(_, before), (_, at)]) in (1..).zip(all.array_windows()) {
        if next - first < ENOUGH && at.since(*before) >= FORGOTTEN {
            first = next;
        }
    }
    let mut frames: Vec<usize> = frames.keys().copied().collect();
    let rest = frames.split_off(first);
    (frames, rest)
}

/// Returns whether a moment is within a span, its ends included.
fn holds([begin, end]: &Span, moment: Nanos) -> bool {
    (*begin..=*end).contains(&moment)
}

/// Returns how much of a span is within the others, which start one after the other.
fn overlap(spans: &[Span], [begin, end]: Span) -> Nanos {
    let mut covered = begin;
    let mut sum = Nanos(0);
    for [from, to] in spans {
        let (from, to) = ((*from).max(covered), (*to).min(end));
        sum = sum.plus(to.since(from));
        covered = covered.max(to);
    }
    sum
}

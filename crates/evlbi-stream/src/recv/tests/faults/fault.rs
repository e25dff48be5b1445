//! Faults of senders, receivers and the network: generated at random, printed, and parsed as printed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evlbi_core::admission::ENOUGH;
use evlbi_net::sim::Direction;
use evlbi_testkit::faults::{self, Faults, faults};
use proptest::prelude::*;

use super::is_open;

/// Maximum number of faults in a case.
const MAX: usize = 8;

/// Kind, place and time of a fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) place: Place,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Sender(usize),
    Receiver(usize),
    Network(Direction),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// The threads of a host stall for this time.
    Stalls(Duration),
    /// A sender or receiver is stopped, and another started after this time.
    Restarts(Duration),
    /// A sender or receiver is killed, and another started after this time.
    Dies(Duration),
    /// A direction drops everything for this time.
    IsCut(Duration),
    /// The disk of a receiver becomes full.
    IsFull,
    /// The UTC of a host is set forward or back, by this many milliseconds.
    Steps(i64),
    /// An unknown sender sends a receiver this many datagrams.
    Hears(u32, Kind),
}

/// Datagrams of an unknown sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Random bytes.
    Noise,
    /// The starts of datagrams of the stream.
    Pieces,
    /// Frames of the stream with numbers far ahead.
    Far,
    /// Datagrams of the stream.
    Copies,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Noise, "noise"),
    (Kind::Pieces, "pieces"),
    (Kind::Far, "far"),
    (Kind::Copies, "copies"),
];

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Sender(number) => write!(f, "s{}", number + 1),
            Place::Receiver(number) => write!(f, "r{}", number + 1),
            Place::Network(Direction::There) => f.write_str("there"),
            Place::Network(Direction::Back) => f.write_str("back"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ", self.at, self.place)?;
        match self.what {
            What::Stalls(span) => write!(f, "stalls {span:?}"),
            What::Restarts(pause) => write!(f, "restarts {pause:?}"),
            What::Dies(pause) => write!(f, "dies {pause:?}"),
            What::IsCut(span) => write!(f, "cut {span:?}"),
            What::IsFull => f.write_str("full"),
            What::Steps(by) => {
                let sign = if by < 0 { "-" } else { "" };
                let span = Duration::from_millis(by.unsigned_abs());
                write!(f, "steps {sign}{span:?}")
            }
            What::Hears(count, kind) => {
                let name = KINDS.iter().find(|(it, _)| *it == kind);
                write!(f, "hears {count} {}", name.map_or("", |(_, name)| name))
            }
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let odd = || format!("`{text}` is not a fault");
        let words: Vec<&str> = text.split_whitespace().collect();
        let (&[at, place, what], rest) = words.split_first_chunk::<3>().ok_or_else(odd)?;
        let span = || -> Result<Duration, String> {
            Ok(evlbi_wire::units::duration(rest.first().ok_or_else(odd)?)?)
        };
        let all = [0, 1, 2].into_iter();
        let hosts = all.flat_map(|number| [Place::Sender(number), Place::Receiver(number)]);
        let ways = [Direction::There, Direction::Back].map(Place::Network);
        let mut places = hosts.chain(ways);
        Ok(Fault {
            at: evlbi_wire::units::duration(at)?,
            place: places.find(|it| it.to_string() == place).ok_or_else(odd)?,
            what: match what {
                "stalls" => What::Stalls(span()?),
                "restarts" => What::Restarts(span()?),
                "dies" => What::Dies(span()?),
                "cut" => What::IsCut(span()?),
                "full" => What::IsFull,
                "steps" => {
                    let by = rest.first().ok_or_else(odd)?;
                    let (sign, by) = by.strip_prefix('-').map_or((1, *by), |by| (-1, by));
                    What::Steps(sign * evlbi_wire::units::duration(by)?.as_millis() as i64)
                }
                "hears" => {
                    let &[count, name] = rest else {
                        return Err(odd());
                    };
                    let kind = KINDS.iter().find(|(_, it)| *it == name).ok_or_else(odd)?;
                    What::Hears(count.parse().map_err(|_| odd())?, kind.0)
                }
                _ => return Err(odd()),
            },
        })
    }
}

impl faults::Fault for Fault {
    fn at(&self) -> Duration {
        self.at
    }
}

/// Faults during streams of four seconds.
pub(super) fn any() -> BoxedStrategy<Faults<Fault>> {
    let span = || (1..2_000u64).prop_map(Duration::from_millis);
    let pause = || prop_oneof![1 => Just(0), 3 => 0..2_000u64].prop_map(Duration::from_millis);
    let number = || 0..3usize;
    let sender = || number().prop_map(Place::Sender);
    let receiver = || number().prop_map(Place::Receiver);
    let host = || prop_oneof![sender(), receiver()];
    let way = prop_oneof![3 => Just(Direction::There), 1 => Just(Direction::Back)];
    let kind = prop::sample::select(&KINDS[..]);
    let noise = (number(), 1..40u32, kind).prop_map(|(number, count, (kind, _))| {
        // At most as many as are too few for a stream.
        let is_stream = matches!(kind, Kind::Far | Kind::Copies);
        let most = match is_open(number) && is_stream {
            true => ENOUGH as u32 - 1,
            false => count,
        };
        let what = What::Hears(count.min(most), kind);
        (Place::Receiver(number), what)
    });
    let one = prop_oneof![
        4 => (host(), span().prop_map(What::Stalls)),
        4 => (host(), pause().prop_map(What::Restarts)),
        4 => (host(), pause().prop_map(What::Dies)),
        4 => (way.prop_map(Place::Network), span().prop_map(What::IsCut)),
        1 => (receiver(), Just(What::IsFull)),
        2 => (host(), (-3_600_000..3_600_000i64).prop_map(What::Steps)),
        3 => noise,
    ];
    let one = (0..4_000u64, one).prop_map(|(at, (place, what))| Fault {
        at: Duration::from_millis(at),
        place,
        what,
    });
    faults(one, MAX + 1)
}

/// A printed failure can be replayed.
#[test]
fn faults_of_streams_are_read_as_they_are_printed() {
    let text = "500ms s1 stalls 1.2s; 1s s2 restarts 0ns; 1.5s r3 dies 20ms; 2s there cut 1ms; 2s back cut 2s; 3s r1 full; \
        3s s3 steps -3600s; 3s r2 steps 1.5s; 4s r1 hears 7 copies";
    let faults: Faults<Fault> = text.parse().unwrap();
    assert_eq!(format!("{faults:?}"), format!("EVLBI_FAULTS='{text}'"));
    assert!("5s r4 dies 1s".parse::<Fault>().is_err());
}

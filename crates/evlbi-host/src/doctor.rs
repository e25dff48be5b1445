//! Checks whether this host is fit for a data rate, and says what to change and why (`evlbi doctor`). Nothing is changed, and
//! nothing is said of what was not seen.
//!
//! Here belongs a further check, in the file of the part of the host that it looks at. Texts for people name commands of this system
//! and options of `evlbi`, since that is what they change.

mod card;
mod clock;
mod disk;
mod interfaces;
mod interrupts;
mod item;
mod kernel;
mod path;
mod processor;
mod rights;
mod root;

use std::io;
use std::path::PathBuf;

use evlbi_core::rate::BitRate;
use evlbi_net::run::Run;
use serde::Serialize;
use thiserror::Error;

pub use self::disk::{FreeError, free_bytes};
use self::item::{Item, Verdict};
use self::path::Route;
use self::root::Root;
use evlbi_wire::units::{show_count, show_rate, show_seconds};

/// How long data may wait in a socket where no round trip is known.
const DEFAULT_SECONDS: f64 = 0.1;

/// Why a host cannot be examined as asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoctorError {
    /// There is no network interface of that name.
    #[error("no network interface is called `{name}`; there are: {there}")]
    NoInterface {
        /// The name.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// There is no folder whose disk could be tried.
    #[error(
        "{}: there is no such folder; name the one that recordings are written to",
        .0.display()
    )]
    NoFolder(PathBuf),
    /// The name of the other host is empty.
    #[error("no host is named; write HOST or HOST:PORT")]
    NoHost,
    /// The other host is named in another form.
    #[error("`{0}` is no HOST or HOST:PORT")]
    NotAHost(String),
    /// The name of the other host cannot be looked up.
    #[error("cannot look up `{host}`")]
    LookUp {
        /// The name.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// Nothing is known under the name of the other host.
    #[error("host `{0}` has no address")]
    NoAddress(String),
}

/// What to check.
#[derive(Clone, Debug, Default)]
pub struct DoctorOptions {
    /// Network interfaces; empty for all that are up, without loopback.
    pub interface: Vec<String>,
    /// HOST or HOST:PORT whose route to check; buffers follow from its round-trip time.
    pub to: Option<String>,
    /// Data rate that the host must sustain; `None` for the speed of its fastest interface, or 1 Gbit/s.
    pub rate: Option<BitRate>,
    /// Directory whose write rate to measure.
    pub disk: Option<PathBuf>,
}

/// What was found on this host.
#[derive(Debug, Serialize)]
pub struct Examination {
    schema: &'static str,
    host: String,
    #[serde(flatten)]
    aim: Aim,
    /// Bytes that come in the time that data may wait.
    buffer_bytes: u64,
    /// Items that are to be changed.
    pub changes: usize,
    items: Vec<Item>,
}

/// What the host is to be good for.
#[derive(Debug, Serialize)]
struct Aim {
    /// Data rate, and why that.
    rate: BitRate,
    rate_from: String,
    /// How long data may wait in a socket, in seconds, and why so long.
    #[serde(rename = "buffer_seconds")]
    seconds: f64,
    #[serde(rename = "buffer_seconds_from")]
    seconds_from: String,
}

impl Aim {
    fn new(root: &Root, rate: Option<BitRate>, cards: &[String], route: Option<&Route>) -> Aim {
        let (rate, rate_from) = match (rate, interfaces::fastest(root, cards)) {
            (Some(rate), _) => (rate, "as --rate says".to_owned()),
            (None, Some((name, speed))) => (speed, format!("the speed of {name}; else --rate")),
            (None, None) => (
                interfaces::GIGABIT,
                "no card tells its speed; else --rate".to_owned(),
            ),
        };
        let (seconds, seconds_from) = match route.and_then(Route::round_trip) {
            Some(seconds) => (seconds, "the round trip"),
            None => (DEFAULT_SECONDS, "usual; --to measures a round trip"),
        };
        Aim {
            rate,
            rate_from,
            seconds,
            seconds_from: seconds_from.to_owned(),
        }
    }

    /// Bytes that come in the time that data may wait.
    fn bytes(&self) -> u64 {
        (self.rate.get() as f64 * self.seconds / 8.0).ceil() as u64
    }

    /// How [`Aim::bytes`] comes about.
    fn arithmetic(&self) -> String {
        format!(
            "{}bit/s x {} = {} bytes",
            self.rate,
            brief_seconds(self.seconds),
            show_count(self.bytes())
        )
    }
}

/// `0.1 s`, `27.31 ms`.
fn brief_seconds(seconds: f64) -> String {
    match seconds {
        usual if usual == DEFAULT_SECONDS => format!("{usual} s"),
        other => show_seconds(other),
    }
}

/// Checks this host. If the run is stopped, the test of the disk is shorter.
///
/// # Errors
/// If an interface, the directory or the host does not exist.
pub fn examine(options: &DoctorOptions, run: &Run) -> Result<Examination, DoctorError> {
    let root = Root(PathBuf::from("/"));
    let cards = interfaces::chosen(&root, &options.interface)?;
    let disk = options.disk.as_deref();
    disk.map_or(Ok(()), disk::check)?;
    let route = options.to.as_ref().map(|to| path::look(&root, to));
    let route = route.transpose()?;
    let aim = Aim::new(&root, options.rate, &cards, route.as_ref());
    let mut items = kernel::items(&root, &aim);
    items.extend(rights::items(&root));
    items.extend(processor::items(&root));
    for name in &cards {
        items.extend(card::items(&root, name, &card::told(name), &aim));
    }
    items.extend(clock::items(&root));
    items.extend(path::items(route.as_ref()));
    items.push(disk::item(disk, &aim, run));
    Ok(summary(aim, items))
}

fn summary(aim: Aim, items: Vec<Item>) -> Examination {
    let changes = items.iter().filter(|item| item.verdict == Verdict::Change);
    Examination {
        schema: "evlbi.doctor/1",
        host: evlbi_net::host::name(),
        buffer_bytes: aim.bytes(),
        aim,
        changes: changes.count(),
        items,
    }
}

/// Formats it for people.
pub fn text(result: &Examination) -> String {
    let aim = &result.aim;
    let mut lines = vec![format!(
        "{}, for {} ({}); {} bytes come in {} ({})",
        result.host,
        show_rate(aim.rate.get() as f64),
        aim.rate_from,
        show_count(result.buffer_bytes),
        brief_seconds(aim.seconds),
        aim.seconds_from
    )];
    let width = result.items.iter().map(|item| item.name.chars().count());
    let width = width.max().unwrap_or(0);
    let mut group = "";
    for item in &result.items {
        if item.group != group {
            group = &item.group;
            lines.extend([String::new(), group.to_owned()]);
        }
        lines.extend(item_lines(item, width));
    }
    lines.push(String::new());
    lines.push(match result.changes {
        0 => "nothing to change of what was seen".to_owned(),
        changes => format!("{} to change (most of it as root)", counted(changes)),
    });
    lines.join("\n")
}

/// One line, and under what is to be changed or known the reason and the command.
fn item_lines(item: &Item, width: usize) -> Vec<String> {
    let mark = match item.verdict {
        Verdict::Good => "ok",
        Verdict::Change => "CHANGE",
        Verdict::Note => "note",
        Verdict::Unknown => "?",
    };
    let (name, found) = (&item.name, &item.found);
    let mut lines = vec![format!("  {mark:<6}  {name:<width$}  {found}")];
    if matches!(item.verdict, Verdict::Change | Verdict::Note) {
        if let Some(wanted) = &item.wanted {
            lines[0] += &format!("; wanted: {wanted}");
        }
        let indent = " ".repeat(12);
        lines.push(format!("{indent}{}", item.why));
        let commands = item.command.iter().chain(&item.permanent);
        lines.extend(commands.map(|command| format!("{indent}$ {command}")));
    }
    lines
}

/// Formats a number of things.
pub fn counted(changes: usize) -> String {
    match changes {
        1 => "1 thing".to_owned(),
        more => format!("{more} things"),
    }
}

#[cfg(test)]
mod tests {
    use super::item::{change, good, note};
    use super::*;

    /// For 10 Gbit/s and 0.1 s.
    pub(super) fn aim() -> Aim {
        Aim {
            rate: BitRate::new(10_000_000_000).unwrap(),
            rate_from: "the test".to_owned(),
            seconds: DEFAULT_SECONDS,
            seconds_from: "the test".to_owned(),
        }
    }

    /// The item of that name.
    #[track_caller]
    pub fn named<'a>(items: &'a [Item], name: &str) -> &'a Item {
        let found = items.iter().find(|item| item.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {items:#?}"))
    }

    #[test]
    fn buffers_follow_from_rate_and_time() {
        assert_eq!(aim().bytes(), 125_000_000);
        assert_eq!(aim().arithmetic(), "10Gbit/s x 0.1 s = 125,000,000 bytes");
    }

    #[test]
    fn what_is_to_be_changed_is_shown_with_reason_and_command() {
        let kernel = |name, found| Item::new("kernel", name, "data would be lost", found);
        let items = vec![
            kernel("a", Ok(good("5"))),
            kernel("longer", Ok(change("1", "2").by("do it"))),
            kernel("c", Err("nobody says".into())),
            Item::new("clock", "d", "because", Ok(note("so so"))),
        ];
        let shown = text(&summary(aim(), items));
        let expected = "
kernel
  ok      a       5
  CHANGE  longer  1; wanted: 2
            data would be lost
            $ do it
  ?       c       not known here: nobody says

clock
  note    d       so so
            because

1 thing to change (most of it as root)";
        assert_eq!(shown.split_once('\n').unwrap().1, expected);
    }
}

//! Checks whether this host can sustain a data rate. For each setting that falls short it reports the reason and the command that fixes
//! it (`evlbi doctor`). It changes nothing, and reports what it could not check as unknown.
//!
//! Add a further check to the file of the part of the host that it concerns. Texts for people name commands of the system and options
//! of `evlbi`, since those are what they change.

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
mod script;

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
pub use self::script::script;
use evlbi_wire::units::{show_count, show_rate, show_seconds};

/// Default time for which a socket must buffer data, in seconds, if no RTT is known.
const DEFAULT_SECONDS: f64 = 0.1;

/// Reason why a host cannot be checked as requested.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoctorError {
    /// No network interface has that name.
    #[error("no network interface `{name}`; available: {there}")]
    NoInterface {
        /// The name.
        name: String,
        /// The available names.
        there: String,
    },
    /// The directory for the disk test does not exist.
    #[error(
        "{}: no such directory; give the one that recordings are written to",
        .0.display()
    )]
    NoFolder(PathBuf),
    /// The name of the remote host is empty.
    #[error("empty host: give HOST or HOST:PORT")]
    NoHost,
    /// The name of the remote host has another form.
    #[error("invalid host `{0}`: give HOST or HOST:PORT")]
    NotAHost(String),
    /// The name of the remote host cannot be resolved.
    #[error("cannot look up `{host}`")]
    LookUp {
        /// The name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The name of the remote host has no address.
    #[error("host `{0}` has no address")]
    NoAddress(String),
}

/// Options of the checks.
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

/// Results for this host.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Examination {
    schema: &'static str,
    host: String,
    #[serde(flatten)]
    aim: Aim,
    /// Bytes that arrive in the time for which a socket must buffer data.
    buffer_bytes: u64,
    /// Number of items to change.
    pub changes: usize,
    items: Vec<Item>,
}

/// Requirements that the host must meet.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Aim {
    /// Data rate, and its origin.
    rate: BitRate,
    rate_from: String,
    /// Time for which a socket must buffer data, in seconds, and its origin.
    #[serde(rename = "buffer_seconds")]
    seconds: f64,
    #[serde(rename = "buffer_seconds_from")]
    seconds_from: String,
}

impl Aim {
    fn new(root: &Root, rate: Option<BitRate>, cards: &[String], route: Option<&Route>) -> Aim {
        let (rate, rate_from) = match (rate, interfaces::fastest(root, cards)) {
            (Some(rate), _) => (rate, "set by --rate".to_owned()),
            (None, Some((name, speed))) => {
                (speed, format!("the speed of {name}; --rate sets another"))
            }
            (None, None) => (
                interfaces::GIGABIT,
                "default, no NIC reports its speed; --rate sets another".to_owned(),
            ),
        };
        let (seconds, seconds_from) = match route.and_then(Route::round_trip) {
            Some(seconds) => (seconds, "the RTT"),
            None => (DEFAULT_SECONDS, "default; --to HOST measures the RTT"),
        };
        Aim {
            rate,
            rate_from,
            seconds,
            seconds_from: seconds_from.to_owned(),
        }
    }

    /// Returns the bytes that arrive in the time for which a socket must buffer data.
    fn bytes(&self) -> u64 {
        (self.rate.get() as f64 * self.seconds / 8.0).ceil() as u64
    }

    /// Returns the calculation of [`Aim::bytes`] as text.
    fn arithmetic(&self) -> String {
        format!(
            "{}bit/s x {} = {} bytes",
            self.rate,
            brief_seconds(self.seconds),
            show_count(self.bytes())
        )
    }
}

/// Returns e.g. `0.1 s`, `27.31 ms`.
fn brief_seconds(seconds: f64) -> String {
    match seconds {
        usual if usual == DEFAULT_SECONDS => format!("{usual} s"),
        other => show_seconds(other),
    }
}

/// Checks this host. If the run is stopped, the test of the disk is shorter.
///
/// # Errors
/// Returns an error if an interface, the directory or the host does not exist.
pub fn examine(options: &DoctorOptions, run: &Run) -> Result<Examination, DoctorError> {
    let root = Root(PathBuf::from("/"));
    let cards = interfaces::chosen(&root, &options.interface)?;
    let disk = options.disk.as_deref();
    disk.map_or(Ok(()), disk::check)?;
    let route = options.to.as_ref().map(|to| path::find(&root, to));
    let route = route.transpose()?;
    let aim = Aim::new(&root, options.rate, &cards, route.as_ref());
    let mut items = kernel::items(&root, &aim);
    items.extend(rights::items(&root));
    items.extend(processor::items(&root));
    for name in &cards {
        items.extend(card::items(&root, name, &card::reported(name), &aim));
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

/// Returns the results as text for people.
pub fn text(result: &Examination) -> String {
    let aim = &result.aim;
    let mut lines = vec![format!(
        "{}, for {} ({}); {} bytes arrive in {} ({})",
        result.host,
        show_rate(aim.rate.get() as f64),
        aim.rate_from,
        show_count(result.buffer_bytes),
        brief_seconds(aim.seconds),
        aim.seconds_from
    )];
    let width = result.items.iter().map(|item| item.label().chars().count());
    let width = width.max().unwrap_or(0);
    let mut group = "";
    for item in &result.items {
        if item.group != group {
            group = &item.group;
            lines.extend([String::new(), item.heading().into_owned()]);
        }
        lines.extend(item_lines(item, width));
    }
    lines.push(String::new());
    lines.push(match result.changes {
        0 => "nothing to change in what was checked".to_owned(),
        changes => format!("{} to change (most of it as root)", counted(changes)),
    });
    lines.join("\n")
}

/// Returns the lines of an item: one, followed by the reason and the commands if it is to be changed or noted.
fn item_lines(item: &Item, width: usize) -> Vec<String> {
    let mark = match item.verdict {
        Verdict::Good => "ok",
        Verdict::Change => "CHANGE",
        Verdict::Note => "note",
        Verdict::Unknown => "?",
    };
    let (name, found) = (item.label(), &item.found);
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

/// Returns a number of things as text.
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

    /// Returns the aim for 10 Gbit/s and 0.1 s.
    pub(super) fn aim() -> Aim {
        Aim {
            rate: BitRate::new(10_000_000_000).unwrap(),
            rate_from: "the test".to_owned(),
            seconds: DEFAULT_SECONDS,
            seconds_from: "the test".to_owned(),
        }
    }

    /// Returns the item of that name.
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
    fn settings_to_change_are_shown_with_reason_and_command() {
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
  ?       c       unknown: nobody says

clock
  note    d       so so
            because

1 thing to change (most of it as root)";
        assert_eq!(shown.split_once('\n').unwrap().1, expected);
    }

    #[test]
    fn text_has_its_own_words_for_groups_and_names_that_json_keeps() {
        let item = |group, name| Item::new(group, name, "", Ok(good("on")));
        let items = vec![
            item("kernel", "soft interrupts"),
            item("processor", "irqbalance"),
            item("card eth0", "UDP segmentation in the card"),
        ];
        let result = summary(aim(), items);
        let expected = "
kernel
  ok      softirqs                  on

CPU
  ok      irqbalance                on

NIC eth0
  ok      UDP segmentation offload  on
";
        let shown = text(&result);
        assert!(shown.contains(expected), "{shown}");
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["items"][2]["group"], "card eth0");
        assert_eq!(json["items"][0]["name"], "soft interrupts");
    }
}

//! Synchronisation of the host's clock to UTC: whether, how well, and by which program.

use std::time::Duration;

use evlbi_net::host::clock::Clock;

use super::item::{Found, Item, change, good, note};
use super::root::Root;
use evlbi_wire::units::show_seconds;

/// Maximum error of a well-kept clock.
const LARGEST: Duration = Duration::from_millis(100);
/// Programs that discipline clocks, with their names as truncated by the kernel.
const KEEPERS: [&str; 7] = [
    "chronyd",
    "ntpd",
    "ntpsec",
    "systemd-timesyn",
    "ptp4l",
    "phc2sys",
    "openntpd",
];
const CHRONY: &str =
    "systemctl enable --now chrony || systemctl enable --now chronyd  # package chrony";
const TIMESYNCD: &str = "systemd-timesyn";

/// Programs that discipline the clock, or the reason why they are unknown.
type Keepers = Result<Vec<String>, String>;

pub fn items(root: &Root) -> Vec<Item> {
    let clock = Clock::read().map_err(|error| format!("not reported by the kernel: {error}"));
    let keepers = keepers(root);
    let item = |name, why, found| Item::new("clock", name, why, found);
    vec![
        item(
            "synchronised",
            "this clock starts and ends recordings, aligns live streams and measures one-way delays; a scan that is one second \
             off does not correlate",
            synchronised(clock.as_ref(), &keepers),
        ),
        item(
            "kept by",
            "without a program that disciplines it, a clock drifts by seconds a week; two such programs work against each other",
            kept(clock.as_ref(), &keepers),
        ),
    ]
}

/// Returns the programs that discipline the clock.
fn keepers(root: &Root) -> Keepers {
    let mut programs = root.programs()?;
    programs.retain(|name| KEEPERS.contains(&name.as_str()));
    programs.sort();
    programs.dedup();
    Ok(programs)
}

fn synchronised(clock: Result<&Clock, &String>, keepers: &Keepers) -> Found {
    let clock = clock?;
    if clock.synchronised {
        let found = format!(
            "yes; estimated error {}, maximum {}; frequency corrected by {:.3} ppm",
            show_seconds(clock.estimated_error.as_secs_f64()),
            show_seconds(clock.max_error.as_secs_f64()),
            clock.frequency_ppm
        );
        return Ok(match clock.max_error <= LARGEST {
            true => good(found),
            false => {
                note(found).wanting(format!("at most {}", show_seconds(LARGEST.as_secs_f64())))
            }
        });
    }
    // The kernel's error then only grows with time.
    let found = "no program has reported it to the kernel; the error is unknown";
    Ok(match keepers {
        Ok(keepers) if keepers.is_empty() => change(found, "yes").by(CHRONY),
        // chronyd reports to the kernel only if configured to (rtcsync).
        Ok(keepers) => note(format!(
            "{found}; {} is running, query it",
            keepers.join(", ")
        ))
        .by(match keepers.iter().any(|name| name == "chronyd") {
            true => "chronyc tracking",
            false => "timedatectl",
        }),
        Err(_) => note(found).by("timedatectl"),
    })
}

fn kept(clock: Result<&Clock, &String>, keepers: &Keepers) -> Found {
    let keepers = keepers.as_ref()?;
    // ptp4l disciplines the NIC's clock, phc2sys the system clock by it.
    let of_system = keepers.iter().filter(|name| *name != "ptp4l").count();
    let names = keepers.join(", ");
    Ok(match of_system {
        0 if keepers.is_empty() && clock.is_ok_and(|clock| clock.synchronised) => {
            note("no known program, but one has reported to the kernel that it does")
        }
        0 if keepers.is_empty() => change("no known program", "chronyd").by(CHRONY),
        0 => note(format!(
            "{names} disciplines the NIC's clock, but nothing the system clock (phc2sys)"
        )),
        1 if names == TIMESYNCD => {
            note("systemd-timesyncd: an accuracy of some milliseconds, from one server")
                .wanting("chronyd, if one-way delays matter")
                .by(CHRONY)
        }
        1 => good(names),
        _ => note(names).wanting("one of them"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::root::tree::Tree;
    use super::*;

    fn clock(synchronised: bool, micros: u64) -> Clock {
        Clock {
            synchronised,
            estimated_error: Duration::ZERO,
            max_error: Duration::from_micros(micros),
            frequency_ppm: 12.5,
        }
    }

    fn run(clock: &Clock, keepers: &[&str]) -> (Item, Item) {
        let keepers: Vec<String> = keepers.iter().map(|name| (*name).to_owned()).collect();
        let keepers = Ok(keepers);
        (
            synchronised(Ok(clock), &keepers).unwrap(),
            kept(Ok(clock), &keepers).unwrap(),
        )
    }

    #[test]
    fn a_clock_without_a_daemon_needs_one() {
        let (synchronised, kept) = run(&clock(false, 16_000_000), &[]);
        assert_eq!(synchronised.verdict, Verdict::Change);
        assert_eq!(kept.verdict, Verdict::Change);
        assert!(synchronised.command.unwrap().contains("chrony"));
        assert!(synchronised.found.contains("is unknown"));
        let (synchronised, _) = run(&clock(true, 900), &["chronyd"]);
        assert!(synchronised.found.contains("maximum 900.0000 us"));
    }

    #[test]
    fn a_clock_that_is_kept_is_good_if_it_is_near() {
        let (synchronised, kept) = run(&clock(true, 900), &["chronyd"]);
        assert_eq!(
            (synchronised.verdict, kept.verdict),
            (Verdict::Good, Verdict::Good)
        );
        assert_eq!(
            run(&clock(true, 900_000), &["ntpd"]).0.verdict,
            Verdict::Note
        );
        // chronyd without rtcsync.
        let (synchronised, _) = run(&clock(false, 16_000_000), &["chronyd"]);
        assert_eq!(synchronised.verdict, Verdict::Note);
        assert_eq!(synchronised.command.as_deref(), Some("chronyc tracking"));
    }

    #[test]
    fn daemons_are_distinguished() {
        let kept = |names: &[&str]| run(&clock(true, 1), names).1.verdict;
        assert_eq!(kept(&["ptp4l", "phc2sys"]), Verdict::Good);
        assert_eq!(kept(&["ptp4l"]), Verdict::Note);
        assert_eq!(kept(&[]), Verdict::Note);
        assert_eq!(kept(&["chronyd", "ntpd"]), Verdict::Note);
        assert_eq!(kept(&[TIMESYNCD]), Verdict::Note);
    }

    #[test]
    fn in_a_container_nobody_is_seen() {
        let tree = Tree::new(&[("proc/5/comm", "chronyd")]);
        let hidden = keepers(&tree.root());
        assert!(kept(Ok(&clock(true, 1)), &hidden).is_err());
        let item = synchronised(Ok(&clock(false, 1)), &hidden).unwrap();
        assert_eq!(item.verdict, Verdict::Note);
        tree.write("proc/2/comm", "kthreadd");
        assert_eq!(keepers(&tree.root()).unwrap(), ["chronyd"]);
    }
}

//! The processors: how fast they wake up and run, and whether others take them away.

use std::collections::BTreeMap;
use std::time::Duration;

use super::item::{Check, Item};
use super::root::Root;

const GROUP: &str = "processor";
/// How long stolen time is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Stolen time that does no harm, as a part.
const HARMLESS: f64 = 0.001;
/// Waking up may take so long, in microseconds: `recv` naps for 50.
const WAKE: u64 = 50;
const CPUS: &str = "sys/devices/system/cpu";
const CLOCKS: &str = "sys/devices/system/clocksource/clocksource0";

pub fn items(root: &Root) -> Vec<Item> {
    let before = root.read("proc/stat");
    std::thread::sleep(LOOK);
    let after = root.read("proc/stat");
    vec![
        governor(root),
        idle(root),
        virtual_machine(root),
        stolen(before, after),
        clock_source(root),
        balancing(root),
    ]
}

fn governor(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "frequency governor",
        "a processor that is slow until it has had much to do is late for the first packets of each burst, and they are lost",
    );
    let governors = match of_each(root, "cpufreq/scaling_governor") {
        Ok(governors) => governors,
        Err(reason) => return check.unknown(reason),
    };
    let found = counted(&governors);
    match governors.iter().all(|governor| governor == "performance") {
        true => check.good(found),
        false => check
            .change(
                found,
                "performance",
                "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > $f; done",
            )
            .kept_by("tuned-adm profile network-latency  # where tuned is installed; else at each start"),
    }
}

/// What a file says of each processor that has it.
fn of_each(root: &Root, file: &str) -> Result<Vec<String>, String> {
    let names = root.names(CPUS)?;
    let is_processor = |name: &&String| {
        let number = name.strip_prefix("cpu").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let processors = names.iter().filter(is_processor);
    let found: Vec<String> = processors
        .filter_map(|name| root.read(&format!("{CPUS}/{name}/{file}")).ok())
        .collect();
    match found.is_empty() {
        true => Err(format!(
            "no processor has {file} (a virtual machine, or no driver for it)"
        )),
        false => Ok(found),
    }
}

/// `performance on 7, powersave on 1`.
fn counted(texts: &[String]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    let counts = counts
        .iter()
        .map(|(text, count)| format!("{text} on {count}"));
    counts.collect::<Vec<String>>().join(", ")
}

/// How long the first processor takes to wake up from the deepest sleep that it may take.
fn idle(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "idle states",
        "waking up from a deep sleep takes its time, in which packets wait in the card's ring; what is found holds for cpu0",
    );
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let Ok(states) = root.names(&folder) else {
        return check
            .unknown("the kernel tells no idle states (a virtual machine, or no driver for it)");
    };
    let enabled = states.iter().filter_map(|state| {
        let read = |file: &str| root.read(&format!("{folder}/{state}/{file}"));
        let disabled = read("disable").is_ok_and(|disabled| disabled != "0");
        let latency: u64 = read("latency").ok()?.parse().ok()?;
        (!disabled).then(|| (latency, read("name").unwrap_or_else(|_| state.clone())))
    });
    match enabled.max() {
        None => check.unknown("the kernel tells no idle states"),
        Some((latency, name)) => {
            let found = format!("down to {name}, {latency} us to wake up");
            match latency > WAKE {
                true => check
                    .note(found)
                    .wanting(format!(
                        "{WAKE} us at most, where packets are lost in the card"
                    ))
                    .by(format!("cpupower idle-set -D {WAKE}")),
                false => check.good(found),
            }
        }
    }
}

fn virtual_machine(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "virtual machine",
        "the host beneath decides when this one runs; its cards, drops and other guests are not seen from here",
    );
    let text = match root.read("proc/cpuinfo") {
        Ok(text) => text,
        Err(reason) => return check.unknown(reason),
    };
    let flags = text.lines().find(|line| line.starts_with("flags"));
    match flags.map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")) {
        Some(true) => check.note("yes"),
        Some(false) => check.good("no"),
        None => check.unknown("this kind of processor does not tell"),
    }
}

fn stolen(before: Result<String, String>, after: Result<String, String>) -> Item {
    let check = Check::new(
        GROUP,
        "stolen time",
        "other virtual machines had the processor meanwhile, and packets waited: use a real host, or have processors of its own \
         given to this one",
    );
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(reason), _) | (_, Err(reason)) => return check.unknown(reason),
    };
    let (Some(before), Some(after)) = (ticks(&before), ticks(&after)) else {
        return check.unknown("/proc/stat tells no times of processors");
    };
    let all = after.all.saturating_sub(before.all);
    if all == 0 {
        return check.unknown("no time passed on the processors' clocks");
    }
    let share = after.stolen.saturating_sub(before.stolen) as f64 / all as f64;
    let found = format!("{:.1} % of {} s", share * 100.0, LOOK.as_secs());
    match share > HARMLESS {
        true => check.note(found).wanting("none"),
        false => check.good(found),
    }
}

/// What all processors have spent, in ticks.
struct Ticks {
    all: u64,
    stolen: u64,
}

fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // Guests' time, behind these, is a part of the first two.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    Some(Ticks {
        all: ticks
            .iter()
            .fold(0, |sum, ticks| sum.saturating_add(*ticks)),
        stolen: *ticks.get(7)?,
    })
}

/// Clocks that take a system call, or a slow bus, for each look.
const SLOW: [&str; 5] = ["hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"];

fn clock_source(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "clock source",
        "sender and receiver look at the clock for each packet or batch; a slow clock takes the time of many packets",
    );
    let found = match root.read(&format!("{CLOCKS}/current_clocksource")) {
        Ok(found) => found,
        Err(reason) => return check.unknown(reason),
    };
    let available = root
        .read(&format!("{CLOCKS}/available_clocksource"))
        .unwrap_or_default();
    let has_tsc = available.split_whitespace().any(|name| name == "tsc");
    match found.as_str() {
        "tsc" | "arch_sys_counter" => check.good(found),
        slow if SLOW.contains(&slow) && has_tsc => check.change(
            found,
            "tsc",
            format!("echo tsc > /{CLOCKS}/current_clocksource"),
        ),
        slow if SLOW.contains(&slow) => check.note(format!(
            "{found}; the kernel offers no tsc: it found it unsteady, or there is none (dmesg)"
        )),
        _ => check.note(found),
    }
}

fn balancing(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "irqbalance",
        "it moves the interrupts of cards between processors while data flows, and undoes what is set by hand",
    );
    match root.programs() {
        Ok(programs) if programs.iter().any(|name| name == "irqbalance") => check
            .note("runs")
            .wanting("not, where interrupts are placed by hand")
            .by("systemctl disable --now irqbalance"),
        Ok(_) => check.good("does not run"),
        Err(reason) => check.unknown(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::root::tree::Tree;
    use super::*;

    #[test]
    fn each_governor_counts() {
        let cpu = |number: u32| format!("{CPUS}/cpu{number}/cpufreq/scaling_governor");
        let tree = Tree::new(&[(&cpu(0), "performance"), (&cpu(1), "powersave")]);
        // What is no processor.
        tree.write(&format!("{CPUS}/cpufreq/cpufreq/scaling_governor"), "x");
        let item = governor(&tree.root());
        assert_eq!(item.found, "performance on 1, powersave on 1");
        assert_eq!(item.verdict, Verdict::Change);
        assert!(item.command.unwrap().contains("echo performance"));
        tree.write(&cpu(1), "performance");
        assert_eq!(governor(&tree.root()).verdict, Verdict::Good);
        assert_eq!(governor(&Tree::new(&[]).root()).verdict, Verdict::Unknown);
    }

    #[test]
    fn the_deepest_sleep_that_is_allowed_counts() {
        let state = |number: u32, file: &str| format!("{CPUS}/cpu0/cpuidle/state{number}/{file}");
        let tree = Tree::new(&[
            (&state(0, "name"), "POLL"),
            (&state(0, "latency"), "0"),
            (&state(1, "name"), "C6"),
            (&state(1, "latency"), "133"),
            (&state(1, "disable"), "0"),
        ]);
        let item = idle(&tree.root());
        assert_eq!(item.found, "down to C6, 133 us to wake up");
        assert_eq!(item.verdict, Verdict::Note);
        tree.write(&state(1, "disable"), "1");
        assert_eq!(idle(&tree.root()).verdict, Verdict::Good);
    }

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let at = |text: &str| Ok(text.to_owned());
        let before = "cpu  100 0 0 800 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1";
        let item = stolen(at(before), at("cpu  150 0 0 840 0 0 0 10 50 0"));
        assert_eq!(
            (item.found.as_str(), item.verdict),
            ("10.0 % of 1 s", Verdict::Note)
        );
        let item = stolen(at(before), at("cpu  150 0 0 850 0 0 0 0 0 0"));
        assert_eq!(item.verdict, Verdict::Good);
        assert_eq!(stolen(at(before), at(before)).verdict, Verdict::Unknown);
        assert_eq!(stolen(at("cpu  1 2"), at("")).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_slow_clock_is_changed_where_there_is_a_fast_one() {
        let tree = Tree::new(&[
            (&format!("{CLOCKS}/current_clocksource"), "hpet"),
            (&format!("{CLOCKS}/available_clocksource"), "hpet acpi_pm"),
        ]);
        assert_eq!(clock_source(&tree.root()).verdict, Verdict::Note);
        tree.write(&format!("{CLOCKS}/available_clocksource"), "tsc hpet");
        let item = clock_source(&tree.root());
        assert_eq!(
            item.command.as_deref(),
            Some("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource")
        );
        tree.write(&format!("{CLOCKS}/current_clocksource"), "tsc");
        assert_eq!(clock_source(&tree.root()).verdict, Verdict::Good);
    }

    #[test]
    fn a_hypervisor_shows_in_the_flags() {
        let tree = Tree::new(&[(
            "proc/cpuinfo",
            "processor : 0\nflags\t\t: fpu hypervisor sse",
        )]);
        assert_eq!(virtual_machine(&tree.root()).found, "yes");
        tree.write("proc/cpuinfo", "flags\t\t: fpu sse");
        assert_eq!(virtual_machine(&tree.root()).verdict, Verdict::Good);
        tree.write("proc/cpuinfo", "Features : fp asimd");
        assert_eq!(virtual_machine(&tree.root()).verdict, Verdict::Unknown);
    }

    #[test]
    fn irqbalance_is_seen_where_programs_are() {
        let tree = Tree::new(&[("proc/9/comm", "irqbalance")]);
        assert_eq!(balancing(&tree.root()).verdict, Verdict::Unknown);
        tree.write("proc/2/comm", "kthreadd");
        assert_eq!(balancing(&tree.root()).found, "runs");
    }
}

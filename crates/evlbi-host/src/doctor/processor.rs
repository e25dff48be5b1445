//! The CPUs: their speed, wake-up time, and time lost to other virtual machines.

use std::collections::BTreeMap;
use std::time::Duration;

use evlbi_net::clock::Clock;

use super::item::{Found, Item, change, good, note};
use super::root::Root;

/// Duration of the measurement of stolen time.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum harmless fraction of stolen time.
const HARMLESS: f64 = 0.001;
/// Maximum wake-up time in microseconds: `recv` naps for 50.
const WAKE: u64 = 50;
const CPUS: &str = "sys/devices/system/cpu";
const CLOCKS: &str = "sys/devices/system/clocksource/clocksource0";

pub fn items(root: &Root) -> Vec<Item> {
    let before = root.read("proc/stat");
    Clock::real().sleep(POLL_INTERVAL);
    let after = root.read("proc/stat");
    let item = |name, why, found| Item::new("processor", name, why, found);
    vec![
        item(
            "frequency governor",
            "a CPU that speeds up only under load is late for the first packets of each burst, and they are lost",
            governor(root),
        ),
        item(
            "idle states",
            "while a CPU wakes up from a deep sleep, packets wait in the NIC's ring; the value is that of cpu0",
            idle(root),
        ),
        item(
            "virtual machine",
            "the physical host decides when this one runs; its NICs, drops and other guests are not visible here",
            virtual_machine(root),
        ),
        item(
            "stolen time",
            "packets waited while other virtual machines had the CPU: use a physical host, or dedicate CPUs to this one",
            stolen(before, after),
        ),
        item(
            "clock source",
            "sender and receiver read the clock for each packet or batch; a slow clock takes the time of many packets",
            clock_source(root),
        ),
        item(
            "irqbalance",
            "it moves the interrupts of NICs between CPUs while data flows, and overrides manual settings",
            balancing(root),
        ),
    ]
}

fn governor(root: &Root) -> Found {
    let governors = of_each(root, "cpufreq/scaling_governor")?;
    let found = counted(&governors);
    Ok(match governors.iter().all(|governor| governor == "performance") {
        true => good(found),
        false => change(found, "performance")
            .by("for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > $f; done")
            .kept_by("tuned-adm profile network-latency  # if tuned is installed; otherwise after each boot"),
    })
}

/// Returns the text of a file for each CPU that has it.
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
            "no CPU has {file} (a virtual machine, or no driver for it)"
        )),
        false => Ok(found),
    }
}

/// Returns e.g. `performance on 7, powersave on 1`.
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

/// Checks how long the first CPU takes to wake up from its deepest enabled sleep.
fn idle(root: &Root) -> Found {
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let states = root
        .names(&folder)
        .map_err(|_| "no idle states reported (a virtual machine, or no driver for it)")?;
    let enabled = states.iter().filter_map(|state| {
        let read = |file: &str| root.read(&format!("{folder}/{state}/{file}"));
        let disabled = read("disable").is_ok_and(|disabled| disabled != "0");
        let latency: u64 = read("latency").ok()?.parse().ok()?;
        (!disabled).then(|| (latency, read("name").unwrap_or_else(|_| state.clone())))
    });
    let (latency, name) = enabled.max().ok_or("no idle states reported")?;
    let found = format!("deepest: {name}, {latency} us to wake up");
    Ok(match latency > WAKE {
        true => note(found)
            .wanting(format!("at most {WAKE} us, if the NIC drops packets"))
            .by(format!("cpupower idle-set -D {WAKE}")),
        false => good(found),
    })
}

fn virtual_machine(root: &Root) -> Found {
    let text = root.read("proc/cpuinfo")?;
    let flags = text.lines().find(|line| line.starts_with("flags"));
    let flags = flags.ok_or("not reported by this type of CPU")?;
    Ok(
        match flags.split_whitespace().any(|flag| flag == "hypervisor") {
            true => note("yes"),
            false => good("no"),
        },
    )
}

fn stolen(before: Result<String, String>, after: Result<String, String>) -> Found {
    let (before, after) = (before?, after?);
    let ((all_before, stolen_before), (all_after, stolen_after)) = ticks(&before)
        .zip(ticks(&after))
        .ok_or("/proc/stat has no CPU times")?;
    let all = all_after.saturating_sub(all_before);
    if all == 0 {
        return Err("the CPU times did not advance".to_owned());
    }
    let share = stolen_after.saturating_sub(stolen_before) as f64 / all as f64;
    let found = format!("{:.1} % of {} s", share * 100.0, POLL_INTERVAL.as_secs());
    Ok(match share > HARMLESS {
        true => note(found).wanting("none"),
        false => good(found),
    })
}

/// Returns the total time of all CPUs and the stolen part, in ticks.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // Guest times, in further columns, are included in the first two.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    let all = ticks.iter().copied().fold(0, u64::saturating_add);
    Some((all, *ticks.get(7)?))
}

/// Clock sources that need a system call, or a slow bus, per read.
const SLOW: [&str; 5] = ["hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"];

fn clock_source(root: &Root) -> Found {
    let found = root.read(&format!("{CLOCKS}/current_clocksource"))?;
    let available = root
        .read(&format!("{CLOCKS}/available_clocksource"))
        .unwrap_or_default();
    let has_tsc = available.split_whitespace().any(|name| name == "tsc");
    Ok(match found.as_str() {
        "tsc" | "arch_sys_counter" => good(found),
        slow if SLOW.contains(&slow) && has_tsc => {
            change(found, "tsc").by(format!("echo tsc > /{CLOCKS}/current_clocksource"))
        }
        slow if SLOW.contains(&slow) => note(format!(
            "{found}; the kernel offers no tsc: it is unstable or missing (dmesg)"
        )),
        _ => note(found),
    })
}

fn balancing(root: &Root) -> Found {
    let programs = root.programs()?;
    Ok(match programs.iter().any(|name| name == "irqbalance") {
        true => note("running")
            .wanting("not running, if interrupts are assigned manually")
            .by("systemctl disable --now irqbalance"),
        false => good("not running"),
    })
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
        // Not a CPU.
        tree.write(&format!("{CPUS}/cpufreq/cpufreq/scaling_governor"), "x");
        let item = governor(&tree.root()).unwrap();
        assert_eq!(item.found, "performance on 1, powersave on 1");
        assert_eq!(item.verdict, Verdict::Change);
        assert!(item.command.unwrap().contains("echo performance"));
        tree.write(&cpu(1), "performance");
        assert_eq!(governor(&tree.root()).unwrap().verdict, Verdict::Good);
        assert!(governor(&Tree::new(&[]).root()).is_err());
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
        let item = idle(&tree.root()).unwrap();
        assert_eq!(item.found, "deepest: C6, 133 us to wake up");
        assert_eq!(item.verdict, Verdict::Note);
        tree.write(&state(1, "disable"), "1");
        assert_eq!(idle(&tree.root()).unwrap().verdict, Verdict::Good);
    }

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let at = |text: &str| Ok(text.to_owned());
        let before = "cpu  100 0 0 800 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1";
        let item = stolen(at(before), at("cpu  150 0 0 840 0 0 0 10 50 0")).unwrap();
        assert_eq!(
            (item.found.as_str(), item.verdict),
            ("10.0 % of 1 s", Verdict::Note)
        );
        let item = stolen(at(before), at("cpu  150 0 0 850 0 0 0 0 0 0")).unwrap();
        assert_eq!(item.verdict, Verdict::Good);
        assert!(stolen(at(before), at(before)).is_err());
        assert!(stolen(at("cpu  1 2"), at("")).is_err());
    }

    #[test]
    fn a_slow_clock_is_changed_where_there_is_a_fast_one() {
        let tree = Tree::new(&[
            (&format!("{CLOCKS}/current_clocksource"), "hpet"),
            (&format!("{CLOCKS}/available_clocksource"), "hpet acpi_pm"),
        ]);
        assert_eq!(clock_source(&tree.root()).unwrap().verdict, Verdict::Note);
        tree.write(&format!("{CLOCKS}/available_clocksource"), "tsc hpet");
        let item = clock_source(&tree.root()).unwrap();
        assert_eq!(
            item.command.as_deref(),
            Some("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource")
        );
        tree.write(&format!("{CLOCKS}/current_clocksource"), "tsc");
        assert_eq!(clock_source(&tree.root()).unwrap().verdict, Verdict::Good);
    }

    #[test]
    fn a_hypervisor_shows_in_the_flags() {
        let tree = Tree::new(&[(
            "proc/cpuinfo",
            "processor : 0\nflags\t\t: fpu hypervisor sse",
        )]);
        assert_eq!(virtual_machine(&tree.root()).unwrap().found, "yes");
        tree.write("proc/cpuinfo", "flags\t\t: fpu sse");
        assert_eq!(
            virtual_machine(&tree.root()).unwrap().verdict,
            Verdict::Good
        );
        tree.write("proc/cpuinfo", "Features : fp asimd");
        assert!(virtual_machine(&tree.root()).is_err());
    }

    #[test]
    fn irqbalance_is_seen_where_programs_are() {
        let tree = Tree::new(&[("proc/9/comm", "irqbalance")]);
        assert!(balancing(&tree.root()).is_err());
        tree.write("proc/2/comm", "kthreadd");
        assert_eq!(balancing(&tree.root()).unwrap().found, "running");
    }
}

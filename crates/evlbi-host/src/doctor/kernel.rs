//! The kernel's settings (sysctl) for buffers, queues and TCP.

use super::Aim;
use super::item::{Found, Item, change, good, note};
use super::root::Root;
use super::script::SETTINGS;
use evlbi_wire::units::{show_count, show_size};

/// Default buffer requests of receivers and senders, in bytes.
const RECV_ASKS: u64 = 64 << 20;
const SEND_ASKS: u64 = 4 << 20;
/// Maximum socket buffer that Linux grants, in bytes (half of an int's range).
const MAX_OF_SOCKET: u64 = (i32::MAX / 2) as u64;
/// Maximum value of a setting that is an int.
const MAX_OF_INT: u64 = i32::MAX as u64;
/// Bytes of a 1500-byte packet on the wire.
const ON_WIRE: f64 = 1538.0;
/// Time for which a CPU may be busy elsewhere while packets queue up for it, in seconds.
const ELSEWHERE: f64 = 0.1;
/// Maximum useful backlog, in packets; a longer one only takes memory.
const MAX_BACKLOG: u64 = 250_000;
/// Rate in bits per second from which on settings for a gigabit are insufficient.
const FAST: u64 = 10_000_000_000;
/// Minimum free memory, in kB: it ended allocation failures at 1 Gbit/s in the EXPReS report.
const MIN_FREE: u64 = 65_536;
/// Divisor of the memory for the maximum that is kept free.
const MAX_FREE: u64 = 20;
/// Names of settings.
const QUEUEING: &str = "net.core.default_qdisc";
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";
const REAL_TIME: &str = "kernel.sched_rt_runtime_us";

pub fn items(root: &Root, aim: &Aim) -> Vec<Item> {
    let mut items = vec![
        socket_buffer(root, aim, "net.core.rmem_max", "recv", RECV_ASKS),
        socket_buffer(root, aim, "net.core.wmem_max", "send", SEND_ASKS),
        tcp_buffer(root, aim, "net.ipv4.tcp_rmem"),
        tcp_buffer(root, aim, "net.ipv4.tcp_wmem"),
        udp_memory(root, aim),
        backlog(root, aim),
        budget(root, aim),
        item(
            "soft interrupts",
            "dropped: netdev_max_backlog was full; squeezed: netdev_budget or its time was used up before all packets were \
             processed",
            soft_interrupts(root),
        ),
        free_memory(root, aim),
        item(
            QUEUEING,
            "some queueing disciplines drop waiting packets before they have left this host",
            queueing(root),
        ),
        item(
            CONGESTION_CONTROL,
            "after one loss on a long path, reno needs minutes to return to the rate (`evlbi plan tcp` calculates it); others \
             need seconds",
            congestion_control(root),
        ),
    ];
    items.extend(TCP_OPTIONS.map(|(name, why)| item(name, why, tcp_option(root, name))));
    items.push(item(
        REAL_TIME,
        "the kernel stops spinning threads of real-time priority (--priority) for the rest of each period, without a break",
        real_time(root),
    ));
    items
}

fn item(name: &str, why: &str, found: Found) -> Item {
    Item::new("kernel", name, why, found)
}

fn socket_buffer(root: &Root, aim: &Aim, name: &str, command: &str, asks: u64) -> Item {
    let wanted = aim.bytes().clamp(asks, MAX_OF_SOCKET);
    let otherwise = match command {
        "recv" => {
            "while a program stalls, data that does not fit into its buffer is lost (UDP) or stalls the sender (TCP)"
        }
        _ => {
            "with less, TCP with a buffer of its own (--buffer) has less in flight than the rate needs"
        }
    };
    let capped = match aim.bytes() > MAX_OF_SOCKET {
        true => "; Linux grants at most 1 GiB: share the rate among several sockets",
        false => "",
    };
    let why = format!(
        "{}, and `{command}` requests {}: {otherwise}{capped}",
        aim.arithmetic(),
        show_size(asks)
    );
    at_least(root, name, wanted, show_size, &why)
}

fn tcp_buffer(root: &Root, aim: &Aim, name: &str) -> Item {
    let wanted = (2 * aim.bytes()).clamp(SEND_ASKS, MAX_OF_INT);
    let why = format!(
        "twice {}, because Linux includes its bookkeeping, and at least 4 MiB: with less, TCP cannot sustain the rate at this \
         RTT or catch up after a loss",
        aim.arithmetic()
    );
    // The last of three numbers is the maximum buffer of a connection.
    last_of_three(root, name, wanted, show_size, &why)
}

const UDP_MEMORY: &str = "above this limit, datagrams of all sockets are dropped (MemErrors)";

/// Checks the memory for all UDP sockets, in pages.
fn udp_memory(root: &Root, aim: &Aim) -> Item {
    let name = "net.ipv4.udp_mem";
    let buffer = aim.bytes().clamp(RECV_ASKS, MAX_OF_SOCKET);
    let page = match page_bytes(root) {
        Ok(page) => page,
        Err(reason) => return item(name, UDP_MEMORY, Err(reason)),
    };
    let why = format!(
        "in pages of {}: one full receive buffer of {} takes twice its size, including bookkeeping; {UDP_MEMORY}",
        show_size(page),
        show_size(buffer)
    );
    let pages = (2 * buffer).div_ceil(page);
    let shown = |pages: u64| format!("{} pages", show_count(pages));
    last_of_three(root, name, pages, shown, &why)
}

/// Returns the page size in bytes, as the kernel reports it for this program.
fn page_bytes(root: &Root) -> Result<u64, String> {
    let kilobytes = root.labelled("proc/self/smaps", "KernelPageSize:")?;
    let kilobytes = kilobytes.parse::<u64>().ok();
    kilobytes
        .and_then(|kilobytes| kilobytes.checked_mul(1024))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "/proc/self/smaps has no page size".to_owned())
}

fn backlog(root: &Root, aim: &Aim) -> Item {
    let packets = (aim.rate.get() as f64 / (ON_WIRE * 8.0) * ELSEWHERE).ceil() as u64;
    let wanted = packets.clamp(1000, MAX_BACKLOG);
    let why = format!(
        "{}bit/s in packets of 1500 bytes are {} in {ELSEWHERE} s{}; if one CPU passes packets to another (RPS, virtual NICs, \
         loopback), packets that do not fit into this queue are lost",
        aim.rate,
        show_count(packets),
        match wanted == MAX_BACKLOG {
            true => format!(", of which {} suffice", show_count(MAX_BACKLOG)),
            false => String::new(),
        }
    );
    let shown = |packets: u64| format!("{} packets", show_count(packets));
    at_least(root, "net.core.netdev_max_backlog", wanted, shown, &why)
}

fn budget(root: &Root, aim: &Aim) -> Item {
    let wanted = if aim.rate.get() >= FAST { 600 } else { 300 };
    let why = "packets that a softirq takes from NICs before it yields: if too few, the NICs' rings overflow at this rate";
    let shown = |packets: u64| format!("{packets} packets");
    at_least(root, "net.core.netdev_budget", wanted, shown, why)
}

/// Returns what the CPUs' softirqs have counted since boot, in all namespaces.
fn soft_interrupts(root: &Root) -> Found {
    let text = root.read("proc/net/softnet_stat")?;
    let column = |number: usize| -> u64 {
        let values = text.lines().filter_map(|line| {
            let word = line.split_whitespace().nth(number)?;
            u64::from_str_radix(word, 16).ok()
        });
        values.fold(0, u64::saturating_add)
    };
    let (dropped, squeezed) = (column(1), column(2));
    let found = format!(
        "{} packets dropped, {} times squeezed since boot",
        show_count(dropped),
        show_count(squeezed)
    );
    Ok(match dropped + squeezed {
        0 => good(found),
        _ => note(found),
    })
}

fn free_memory(root: &Root, aim: &Aim) -> Item {
    let kilobytes = (aim.rate.get() as f64 * ELSEWHERE / 8.0 / 1024.0).ceil() as u64;
    let memory = root.labelled("proc/meminfo", "MemTotal:");
    let memory = memory.ok().and_then(|kilobytes| kilobytes.parse().ok());
    let most = memory.map_or(u64::MAX, |memory: u64| memory / MAX_FREE);
    // A small host cannot keep this much free, only its own default.
    let wanted = kilobytes.max(MIN_FREE).min(most.max(1));
    let why = format!(
        "data of {ELSEWHERE} s, at least {} kB (EXPReS report, section 4.5), at most a twentieth of the memory: a NIC's \
         interrupt cannot wait for memory, and packets are lost if none is free",
        show_count(MIN_FREE)
    );
    let shown = |kilobytes: u64| format!("{} kB", show_count(kilobytes));
    at_least(root, "vm.min_free_kbytes", wanted, shown, &why)
}

/// Queueing disciplines that drop packets after some milliseconds.
const IMPATIENT: [&str; 6] = ["fq_codel", "codel", "cake", "pie", "fq_pie", "red"];

fn queueing(root: &Root) -> Found {
    let found = setting(root, QUEUEING)?;
    Ok(match found.as_str() {
        "fq" => good(found).because("TCP is paced"),
        impatient if IMPATIENT.contains(&impatient) => {
            let why = "it drops packets that wait for more than some milliseconds, before they have left this host; NICs that \
                are up keep their discipline until `tc qdisc replace dev NAME root fq`";
            set(change(found, "fq"), QUEUEING, "fq").because(why)
        }
        _ => {
            let why = "bursts overflow queues on the path, and fq paces TCP at little cost (otherwise the kernel uses timers); \
                `send` paces UDP itself; applies to NICs that are set up later";
            set(note(found).wanting("fq"), QUEUEING, "fq").because(why)
        }
    })
}

fn congestion_control(root: &Root) -> Found {
    let found = setting(root, CONGESTION_CONTROL)?;
    let available = setting(root, "net.ipv4.tcp_available_congestion_control");
    let available = available.map(|available| format!("; available: {available}"));
    let shown = found.clone() + &available.unwrap_or_default();
    Ok(match found.as_str() {
        "reno" => {
            let item = change(shown, "cubic, htcp or bbr");
            set(item, CONGESTION_CONTROL, "cubic")
        }
        _ => good(shown),
    })
}

const TCP_OPTIONS: [(&str, &str); 3] = [
    (
        "net.ipv4.tcp_window_scaling",
        "without it TCP has at most 64 KiB in flight: 5 Mbit/s at an RTT of 0.1 s",
    ),
    (
        "net.ipv4.tcp_timestamps",
        "without it TCP measures few RTTs, and may mistake old packets for new ones at high rates (RFC 7323)",
    ),
    (
        "net.ipv4.tcp_sack",
        "without it several losses in one RTT cost one RTT each",
    ),
];

fn tcp_option(root: &Root, name: &str) -> Found {
    Ok(match setting(root, name)?.as_str() {
        "0" => set(change("off", "on"), name, "1"),
        "1" => good("on"),
        other => good(format!("on ({other})")),
    })
}

fn real_time(root: &Root) -> Found {
    let runtime = setting(root, REAL_TIME)?.parse::<i64>();
    let runtime = runtime.map_err(|_| "not a number")?;
    if runtime == -1 {
        return Ok(good("no limit"));
    }
    let period = root.number("proc/sys/kernel/sched_rt_period_us")?;
    if runtime >= period {
        return Ok(good("no limit"));
    }
    let item = note(format!("{runtime} us of {period} us")).wanting("-1 with --priority");
    Ok(set(item, REAL_TIME, "-1"))
}

/// Checks a setting that is one number and should be at least `wanted`.
fn at_least(root: &Root, name: &str, wanted: u64, show: impl Fn(u64) -> String, why: &str) -> Item {
    let found = root.number(&file(name)).and_then(|found| {
        let found = u64::try_from(found).map_err(|_| "negative value")?;
        Ok(largest(name, found, wanted, show, ""))
    });
    item(name, why, found)
}

/// Checks a setting of three numbers, the last of which should be at least `wanted`; the others stay.
fn last_of_three(
    root: &Root,
    name: &str,
    wanted: u64,
    show: impl Fn(u64) -> String,
    why: &str,
) -> Item {
    let found = root.numbers(&file(name)).and_then(|numbers| {
        let [least, middle, found] = numbers[..] else {
            let (file, count) = (file(name), numbers.len());
            return Err(format!("/{file} has {count} numbers instead of 3"));
        };
        let others = format!("{least} {middle} ");
        Ok(largest(name, found, wanted, show, &others))
    });
    item(&format!("{name} (largest)"), why, found)
}

/// Checks the last number of a setting, which follows `others`.
fn largest(
    name: &str,
    found: u64,
    wanted: u64,
    show: impl Fn(u64) -> String,
    others: &str,
) -> Item {
    match found >= wanted {
        true => good(show(found)).wanting(show(wanted)),
        false => {
            let item = change(show(found), show(wanted));
            set(item, name, &format!("{others}{wanted}"))
        }
    }
}

fn setting(root: &Root, name: &str) -> Result<String, String> {
    root.read(&file(name))
}

fn file(name: &str) -> String {
    format!("proc/sys/{}", name.replace('.', "/"))
}

/// Adds the commands that change a setting, now and permanently.
pub fn set(item: Item, name: &str, value: &str) -> Item {
    let setting = format!("{name} = {value}");
    Item {
        setting: Some(setting.clone()),
        ..item
            .by(format!("sysctl -w {name}='{value}'"))
            .kept_by(format!("echo '{setting}' >> {SETTINGS}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::root::tree::Tree;
    use super::super::tests::{aim, named};
    use super::*;

    /// Returns a host with a distribution's defaults.
    fn untuned() -> Tree {
        Tree::new(&[
            ("proc/sys/net/core/rmem_max", "212992"),
            ("proc/sys/net/core/wmem_max", "212992"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
            ("proc/sys/net/ipv4/udp_mem", "100\t200\t300"),
            ("proc/self/smaps", "Size: 4 kB\nKernelPageSize:        4 kB"),
            ("proc/sys/net/core/netdev_max_backlog", "1000"),
            ("proc/sys/net/core/netdev_budget", "300"),
            (
                "proc/net/softnet_stat",
                "0000ee9f 00000001 0000000a 0\n00013905 00000002 00000000 0",
            ),
            ("proc/sys/vm/min_free_kbytes", "5741"),
            ("proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB"),
            ("proc/sys/net/core/default_qdisc", "fq_codel"),
            ("proc/sys/net/ipv4/tcp_congestion_control", "reno"),
            (
                "proc/sys/net/ipv4/tcp_available_congestion_control",
                "reno cubic",
            ),
            ("proc/sys/net/ipv4/tcp_window_scaling", "1"),
            ("proc/sys/net/ipv4/tcp_timestamps", "0"),
            ("proc/sys/net/ipv4/tcp_sack", "1"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000"),
            ("proc/sys/kernel/sched_rt_period_us", "1000000"),
        ])
    }

    #[test]
    fn an_untuned_host_gets_commands_that_tune_it() {
        let items = items(&untuned().root(), &aim());
        let commands = [
            (
                "net.core.rmem_max",
                "sysctl -w net.core.rmem_max='125000000'",
            ),
            (
                "net.core.wmem_max",
                "sysctl -w net.core.wmem_max='125000000'",
            ),
            (
                "net.ipv4.tcp_rmem (largest)",
                "sysctl -w net.ipv4.tcp_rmem='4096 131072 250000000'",
            ),
            (
                "net.ipv4.tcp_wmem (largest)",
                "sysctl -w net.ipv4.tcp_wmem='4096 16384 250000000'",
            ),
            (
                "net.ipv4.udp_mem (largest)",
                "sysctl -w net.ipv4.udp_mem='100 200 61036'",
            ),
            // 10 Gbit/s over 1538 x 8 bits, for 0.1 s.
            (
                "net.core.netdev_max_backlog",
                "sysctl -w net.core.netdev_max_backlog='81275'",
            ),
            (
                "net.core.netdev_budget",
                "sysctl -w net.core.netdev_budget='600'",
            ),
            (
                "vm.min_free_kbytes",
                "sysctl -w vm.min_free_kbytes='122071'",
            ),
            (
                "net.core.default_qdisc",
                "sysctl -w net.core.default_qdisc='fq'",
            ),
            (
                "net.ipv4.tcp_congestion_control",
                "sysctl -w net.ipv4.tcp_congestion_control='cubic'",
            ),
            (
                "net.ipv4.tcp_timestamps",
                "sysctl -w net.ipv4.tcp_timestamps='1'",
            ),
        ];
        for (name, command) in commands {
            let item = named(&items, name);
            assert_eq!(item.verdict, Verdict::Change, "{name}");
            assert_eq!(item.command.as_deref(), Some(command));
        }
        let permanent = named(&items, "net.core.rmem_max").permanent.as_deref();
        assert_eq!(
            permanent,
            Some("echo 'net.core.rmem_max = 125000000' >> /etc/sysctl.d/90-evlbi.conf")
        );
        let soft = named(&items, "soft interrupts");
        assert_eq!(
            soft.found,
            "3 packets dropped, 10 times squeezed since boot"
        );
        assert_eq!(
            named(&items, "kernel.sched_rt_runtime_us").verdict,
            Verdict::Note
        );
        assert_eq!(named(&items, "net.ipv4.tcp_sack").verdict, Verdict::Good);
    }

    #[test]
    fn suggested_settings_are_good_afterwards() {
        let tree = untuned();
        for item in items(&tree.root(), &aim()) {
            let Some(setting) = item
                .command
                .as_deref()
                .and_then(|to| to.strip_prefix("sysctl -w "))
            else {
                continue;
            };
            let (name, value) = setting.split_once('=').unwrap();
            tree.write(&file(name), value.trim_matches('\''));
        }
        let items = items(&tree.root(), &aim());
        let left: Vec<&Item> = items
            .iter()
            .filter(|item| item.verdict != Verdict::Good)
            .collect();
        assert_eq!(left, [named(&items, "soft interrupts")]);
    }

    #[test]
    fn settings_hidden_by_a_container_are_unknown() {
        let tree = Tree::new(&[
            ("proc/sys/net/ipv4/tcp_rmem", "4096 131072"),
            ("proc/sys/net/core/rmem_max", "-3"),
        ]);
        for item in items(&tree.root(), &aim()) {
            assert_eq!(item.verdict, Verdict::Unknown, "{item:?}");
            assert!(item.found.starts_with("unknown: "), "{item:?}");
            assert_eq!(item.command, None);
        }
    }

    #[test]
    fn no_more_is_asked_than_linux_gives() {
        let mut aim = aim();
        aim.rate = evlbi_core::rate::BitRate::new(400_000_000_000).unwrap();
        let items = items(&untuned().root(), &aim);
        let item = named(&items, "net.core.rmem_max");
        assert_eq!(
            item.command.as_deref(),
            Some("sysctl -w net.core.rmem_max='1073741823'")
        );
        assert!(item.why.contains("several sockets"), "{}", item.why);
        let item = named(&items, "net.ipv4.tcp_rmem (largest)");
        assert_eq!(item.wanted.as_deref(), Some("2,147,483,647 bytes"));
        let item = named(&items, "vm.min_free_kbytes");
        assert_eq!(item.wanted.as_deref(), Some("3,276,800 kB"));
    }
}

//! The CPUs that process a NIC's packets: NUMA node, interrupts, and packets passed to other CPUs.

use std::collections::BTreeSet;

use super::interfaces::CARDS;
use super::item::{Found, Item, change, good, note, quoted};
use super::root::{Root, processors};

/// Maximum number of interrupts spelt out in a command.
const MAX_IN_COMMAND: usize = 32;

pub fn items(root: &Root, name: &str, group: &str) -> Vec<Item> {
    let device = device(root, name);
    let local = local_processors(root, &device);
    let item = |name, why, found| Item::new(group, name, why, found);
    vec![
        item(
            "NUMA node",
            "a receiver on another node reads its packets from remote memory: pin it to a CPU near the NIC (--cpu N)",
            node(root, &device, local.as_deref()),
        ),
        item(
            "interrupts",
            "if all of a NIC's interrupts go to one CPU, it alone processes all packets, and they are lost when it is \
             overloaded; a CPU on another node reads them from remote memory",
            affinity(root, name, &device, local.as_deref()),
        ),
        item(
            "RPS",
            "packets that are passed to another CPU wait in its backlog (net.core.netdev_max_backlog) and are lost when that is \
             full; fragments may overtake each other",
            handed_on(root, name),
        ),
    ]
}

/// Returns the directory of the NIC on its bus; that of a virtio NIC is one level up.
fn device(root: &Root, name: &str) -> String {
    let device = format!("{CARDS}/{name}/device");
    match root.link_end(&format!("{device}/subsystem")).as_deref() {
        Some("virtio") => format!("{device}/.."),
        _ => device,
    }
}

/// Returns the CPUs near the NIC, unless all of them are.
fn local_processors(root: &Root, device: &str) -> Option<String> {
    let node = root.number(&format!("{device}/numa_node")).ok();
    node.filter(|node| *node >= 0)
        .and_then(|_| root.read(&format!("{device}/local_cpulist")).ok())
        .filter(|list| !list.is_empty())
}

fn node(root: &Root, device: &str, local: Option<&str>) -> Found {
    let nodes = root.read("sys/devices/system/node/online");
    if nodes.is_ok_and(|list| processors(&list).len() == 1) {
        return Ok(good("this host has one"));
    }
    let node = root.number(&format!("{device}/numa_node"))?;
    let local = local.ok_or("the kernel does not report the NIC's node")?;
    Ok(note(format!("{node}; CPUs {local} are near the NIC")))
}

/// An interrupt of the NIC that has occurred, and its CPUs.
struct Interrupt {
    number: u32,
    /// Whether it reports sent packets, if the NIC separates the directions.
    is_of_sending: bool,
    processors: Vec<usize>,
}

fn affinity(root: &Root, name: &str, device: &str, local: Option<&str>) -> Found {
    let interrupts = interrupts(root, name, device)?;
    let used: BTreeSet<usize> = interrupts
        .iter()
        .flat_map(|interrupt| interrupt.processors.iter().copied())
        .collect();
    let beside = match local {
        Some(list) => processors(list),
        None => processors(&root.read("sys/devices/system/cpu/online")?),
    };
    let count = match interrupts.len() {
        1 => "1 interrupt".to_owned(),
        more => format!("{more} interrupts"),
    };
    let found = format!("{count} on {}", shown(&used));
    if let Some(local) = local
        && used.iter().any(|cpu| !beside.contains(cpu))
    {
        let found = format!("{found}, not all near the NIC");
        return Ok(change(found, format!("on {local}")).by(spread(&interrupts, &beside)));
    }
    Ok(match (interrupts.len(), used.len(), beside.len()) {
        (2.., 1, 2..) => change(found, "on several CPUs").by(spread(&interrupts, &beside)),
        _ => good(found),
    })
}

/// Returns the NIC's interrupts that have occurred since boot, each with its CPUs.
fn interrupts(root: &Root, name: &str, device: &str) -> Result<Vec<Interrupt>, String> {
    let table = root.read("proc/interrupts")?;
    let own = root.names(&format!("{device}/msi_irqs"));
    let own: Option<BTreeSet<u32>> = own
        .ok()
        .map(|names| names.iter().filter_map(|name| name.parse().ok()).collect());
    let is_own = |number: u32, line: &str| match &own {
        Some(own) => own.contains(&number),
        None => line.split_whitespace().any(|word| is_named(word, name)),
    };
    let rows = table.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let number: u32 = number.trim().parse().ok()?;
        let counts = rest
            .split_whitespace()
            .map_while(|word| word.parse::<u64>().ok());
        let came = counts.fold(0, u64::saturating_add) > 0;
        (came && is_own(number, rest)).then(|| {
            Ok(Interrupt {
                number,
                is_of_sending: rest.contains("-output"),
                processors: processors(&list_of(root, number)?),
            })
        })
    });
    let interrupts: Vec<Interrupt> = rows.collect::<Result<_, String>>()?;
    match interrupts.is_empty() {
        true => Err("this NIC has no known interrupt, or none has occurred".to_owned()),
        false => Ok(interrupts),
    }
}

/// Returns whether an interrupt's name belongs to this interface: `eth0`, `eth0-TxRx-3`, but not `eth01`.
fn is_named(word: &str, interface: &str) -> bool {
    let rest = word.strip_prefix(interface);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.', ':', '@']))
}

/// Returns the CPUs that an interrupt goes to.
fn list_of(root: &Root, number: u32) -> Result<String, String> {
    let read = |file: &str| root.read(&format!("proc/irq/{number}/{file}"));
    // Newer kernels report the CPU in use.
    match read("effective_affinity_list") {
        Ok(list) if !list.is_empty() => Ok(list),
        _ => read("smp_affinity_list"),
    }
}

fn shown(used: &BTreeSet<usize>) -> String {
    let names: Vec<String> = used.iter().map(|cpu| format!("cpu{cpu}")).collect();
    match names.len() {
        0..=8 => names.join(", "),
        more => format!("{more} CPUs"),
    }
}

/// Assigns each interrupt to the next CPU: those of receiving first, so that these are on different CPUs.
fn spread(interrupts: &[Interrupt], on: &[usize]) -> String {
    let mut in_order: Vec<&Interrupt> = interrupts.iter().collect();
    in_order.sort_by_key(|interrupt| interrupt.is_of_sending);
    let places = in_order.into_iter().zip(on.iter().cycle());
    let lines = places.take(MAX_IN_COMMAND).map(|(interrupt, cpu)| {
        let number = interrupt.number;
        format!("echo {cpu} > /proc/irq/{number}/smp_affinity_list")
    });
    let mut command = lines.collect::<Vec<String>>().join("; ");
    if interrupts.len() > MAX_IN_COMMAND {
        command += "  # and so on";
    }
    command
}

/// Checks receive packet steering: CPUs other than the interrupted ones process packets.
fn handed_on(root: &Root, name: &str) -> Found {
    let folder = format!("{CARDS}/{name}/queues");
    let queues = root.names(&folder)?;
    let masks: Vec<String> = queues
        .iter()
        .filter(|queue| queue.starts_with("rx-"))
        .filter_map(|queue| root.read(&format!("{folder}/{queue}/rps_cpus")).ok())
        .collect();
    let steered = masks
        .iter()
        .filter(|mask| mask.bytes().any(|byte| !matches!(byte, b'0' | b',')))
        .count();
    let command = format!(
        "for f in /sys/class/net/{}/queues/rx-*/rps_cpus; do echo 0 > $f; done",
        quoted(name)
    );
    let found = format!("on for {steered} of {} queues", masks.len());
    match (steered, masks.len()) {
        (_, 0) => Err("not reported by the kernel".to_owned()),
        (0, _) => Ok(good("off")),
        // With one queue it may be the only way to use more CPUs.
        (_, 1) => Ok(note(found).by(command)),
        _ => Ok(change(found, "off").by(command)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::root::tree::Tree;
    use super::super::tests::named;
    use super::*;

    const TABLE: &str = "           CPU0       CPU1       CPU2       CPU3
 24:          1          0          0          0  IO-APIC   5-edge      ACPI:Ged
 40:      90000          0          0          0  PCI-MSIX-0000:3b:00.0   0-edge      eth1-TxRx-0
 41:      80000          0          0          0  PCI-MSIX-0000:3b:00.0   1-edge      eth1-TxRx-1
 42:          0          0          0          0  PCI-MSIX-0000:3b:00.0   2-edge      eth1-TxRx-2
 43:         10          0          0          0  PCI-MSIX-0000:3c:00.0   2-edge      eth10-TxRx-0
NMI:          0          0          0          0   Non-maskable interrupts";

    fn host() -> Tree {
        Tree::new(&[
            ("proc/interrupts", TABLE),
            ("proc/irq/40/smp_affinity_list", "0-3"),
            ("proc/irq/40/effective_affinity_list", "0"),
            ("proc/irq/41/smp_affinity_list", "0"),
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/node/online", "0-1"),
            ("sys/class/net/eth1/device/numa_node", "1"),
            ("sys/class/net/eth1/device/local_cpulist", "2-3"),
            (
                "sys/class/net/eth1/queues/rx-0/rps_cpus",
                "00000000,00000000",
            ),
            ("sys/class/net/eth1/queues/rx-1/rps_cpus", "0"),
        ])
    }

    fn look(tree: &Tree) -> Vec<Item> {
        items(&tree.root(), "eth1", "card eth1")
    }

    #[test]
    fn interrupts_belong_near_the_nic() {
        let tree = host();
        let items = look(&tree);
        let item = named(&items, "interrupts");
        assert_eq!(item.found, "2 interrupts on cpu0, not all near the NIC");
        assert_eq!(
            item.command.as_deref(),
            Some(
                "echo 2 > /proc/irq/40/smp_affinity_list; echo 3 > /proc/irq/41/smp_affinity_list"
            )
        );
        assert_eq!(
            named(&items, "NUMA node").found,
            "1; CPUs 2-3 are near the NIC"
        );
        tree.write("proc/irq/40/effective_affinity_list", "2");
        tree.write("proc/irq/41/smp_affinity_list", "3");
        assert_eq!(named(&look(&tree), "interrupts").verdict, Verdict::Good);
    }

    /// Those of a virtio NIC alternate between receiving and sending.
    #[test]
    fn interrupts_of_receiving_are_spread_by_themselves() {
        let interrupt = |number: u32| Interrupt {
            number,
            is_of_sending: number % 2 == 1,
            processors: vec![0],
        };
        let command = spread(&[30, 31, 32, 33].map(interrupt), &[0, 1]);
        let of =
            |cpu: u32, number: u32| format!("echo {cpu} > /proc/irq/{number}/smp_affinity_list");
        let expected = [of(0, 30), of(1, 32), of(0, 31), of(1, 33)];
        assert_eq!(command, expected.join("; "));
    }

    #[test]
    fn several_interrupts_go_to_several_cpus() {
        let tree = host();
        tree.write("sys/class/net/eth1/device/numa_node", "-1");
        let items = look(&tree);
        assert_eq!(named(&items, "NUMA node").verdict, Verdict::Unknown);
        let item = named(&items, "interrupts");
        assert_eq!(item.verdict, Verdict::Change);
        assert_eq!(item.found, "2 interrupts on cpu0");
        tree.write("sys/devices/system/node/online", "0");
        assert_eq!(named(&look(&tree), "NUMA node").verdict, Verdict::Good);
    }

    #[test]
    fn interrupt_numbers_of_a_nic_are_read_from_its_bus_if_listed() {
        let tree = host();
        tree.write("sys/class/net/eth1/device/msi_irqs/41", "msix");
        tree.write("sys/class/net/eth1/device/msi_irqs/42", "msix");
        assert!(
            named(&look(&tree), "interrupts")
                .found
                .starts_with("1 interrupt on cpu0")
        );
    }

    #[test]
    fn a_host_that_hides_its_interrupts_is_not_known() {
        let tree = host();
        std::fs::remove_dir_all(tree.root().0.join("proc/irq")).unwrap();
        assert_eq!(named(&look(&tree), "interrupts").verdict, Verdict::Unknown);
        std::fs::remove_file(tree.root().0.join("proc/interrupts")).unwrap();
        assert_eq!(named(&look(&tree), "interrupts").verdict, Verdict::Unknown);
    }

    #[test]
    fn packets_passed_to_other_cpus_are_detected() {
        let tree = host();
        assert_eq!(named(&look(&tree), "RPS").verdict, Verdict::Good);
        tree.write(
            "sys/class/net/eth1/queues/rx-1/rps_cpus",
            "00000000,0000000f",
        );
        let items = look(&tree);
        let item = named(&items, "RPS");
        assert_eq!(
            (item.found.as_str(), item.verdict),
            ("on for 1 of 2 queues", Verdict::Change)
        );
    }
}

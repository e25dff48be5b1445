//! Counters of this host, read from /proc: what its network stack dropped and where, and what its
//! cores did. The difference of two readings tells what happened in between.
//!
//! Network counters are those of the current thread's network namespace, and of all its programs.
//!
//! Here belongs a further counter of the kernel's. What it means for a user is in `evlbi-host`.

pub mod card;
pub mod clock;
pub mod nic;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::iter;

use serde::{Deserialize, Serialize};

/// Name of this host.
pub fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| String::new(), |name| name.trim().to_owned())
}

/// Makes a group of counters: a structure of `u64`, how a kernel name finds its field, and the
/// difference of two readings.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident = $kernel:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$field_about])* pub $field: u64,)*
        }

        impl $name {
            fn set(&mut self, kernel_name: &str, value: u64) {
                match kernel_name {
                    $($kernel => self.$field = value,)*
                    _ => {}
                }
            }

            /// What was counted since `earlier`; 0 where a counter has begun anew meanwhile.
            pub fn since(&self, earlier: &$name) -> $name {
                $name {
                    $($field: self.$field.saturating_sub(earlier.$field),)*
                }
            }
        }
    };
}

counters! {
    /// UDP, in datagrams; joined ones count as one where the kernel counts so.
    Udp {
        /// Delivered to programs.
        in_datagrams = "InDatagrams",
        /// To a port that nobody listens to.
        no_ports = "NoPorts",
        /// Not delivered for any reason below.
        in_errors = "InErrors",
        /// Sent.
        out_datagrams = "OutDatagrams",
        /// Dropped because a socket's receive buffer was full.
        receive_buffer_errors = "RcvbufErrors",
        /// Dropped because a send buffer or a device's queue was full.
        send_buffer_errors = "SndbufErrors",
        /// With a wrong checksum.
        checksum_errors = "InCsumErrors",
        /// Multicast that no program had joined.
        ignored_multicast = "IgnoredMulti",
        /// Dropped because the memory for all UDP sockets was used up (`net.ipv4.udp_mem`).
        memory_errors = "MemErrors",
    }
}

counters! {
    /// IP, in packets.
    Ip {
        /// Received, faulty ones included.
        in_receives = "InReceives",
        /// Dropped on the way up for want of memory and the like.
        in_discards = "InDiscards",
        /// Handed to a protocol such as UDP.
        in_delivers = "InDelivers",
        /// Handed down by protocols.
        out_requests = "OutRequests",
        /// Dropped on the way down.
        out_discards = "OutDiscards",
        /// Fragments that came in.
        reassembly_requests = "ReasmReqds",
        /// Packets that could not be put together: a fragment was lost.
        reassembly_failures = "ReasmFails",
        /// Fragments that were made of packets longer than the MTU.
        fragments_made = "FragCreates",
    }
}

counters! {
    /// A network interface.
    Interface {
        /// Bytes received.
        rx_bytes = "rx 0",
        /// Packets received.
        rx_packets = "rx 1",
        /// Received with an error.
        rx_errors = "rx 2",
        /// Dropped by the kernel on reception.
        rx_dropped = "rx 3",
        /// Dropped by the card because nobody fetched them in time.
        rx_fifo = "rx 4",
        /// Received that were multicast.
        rx_multicast = "rx 7",
        /// Bytes sent.
        tx_bytes = "tx 0",
        /// Packets sent.
        tx_packets = "tx 1",
        /// Not sent because of an error.
        tx_errors = "tx 2",
        /// Dropped by the kernel or the device on sending.
        tx_dropped = "tx 3",
        /// Not sent because the card ran dry.
        tx_fifo = "tx 4",
    }
}

counters! {
    /// What a core's network soft interrupt did.
    Softnet {
        /// Packets taken up.
        processed = "0",
        /// Packets dropped because the core's backlog was full (`net.core.netdev_max_backlog`).
        dropped = "1",
        /// Times that it stopped with work left (`net.core.netdev_budget`).
        squeezed = "2",
    }
}

counters! {
    /// What a core spent its time on, in clock ticks (normally 10 ms).
    Core {
        /// Programs.
        user = "0",
        /// Programs of low priority.
        nice = "1",
        /// The kernel for programs.
        system = "2",
        /// Nothing.
        idle = "3",
        /// Nothing, while a program waited for a disk.
        iowait = "4",
        /// Interrupts.
        irq = "5",
        /// Soft interrupts, the network's among them.
        softirq = "6",
        /// Other virtual machines.
        steal = "7",
    }
}

/// One reading of all counters, or the difference of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// UDP over IPv4.
    pub udp: Udp,
    /// UDP over IPv6.
    pub udp6: Udp,
    /// IPv4.
    pub ip: Ip,
    /// IPv6.
    pub ip6: Ip,
    /// By name of the interface.
    pub interfaces: BTreeMap<String, Interface>,
    /// By core, of all namespaces.
    pub softnet: Vec<Softnet>,
    /// By core.
    pub cores: Vec<Core>,
    /// By interface and by the names of its driver, those that are not 0.
    pub nics: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Counters {
    /// Reads them now.
    ///
    /// # Errors
    /// When /proc cannot be read. A host without IPv6 has zeroes there.
    pub fn read() -> io::Result<Counters> {
        let net = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let snmp = net("snmp")?;
        let snmp6 = net("snmp6").unwrap_or_default();
        let mut counters = Counters {
            interfaces: parse_interfaces(&net("dev")?),
            softnet: parse_softnet(&net("softnet_stat")?),
            cores: parse_cores(&fs::read_to_string("/proc/stat")?),
            ..Counters::default()
        };
        counters.nics = nic::counters(counters.interfaces.keys());
        parse_snmp(&snmp, "Udp", |name, value| counters.udp.set(name, value));
        parse_snmp(&snmp, "Ip", |name, value| counters.ip.set(name, value));
        parse_snmp6(&snmp6, "Udp6", |name, value| counters.udp6.set(name, value));
        parse_snmp6(&snmp6, "Ip6", |name, value| counters.ip6.set(name, value));
        Ok(counters)
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let interface = |(name, now): (&String, &Interface)| {
            let before = earlier.interfaces.get(name).copied().unwrap_or_default();
            (name.clone(), now.since(&before))
        };
        let nic = |(name, now): (&String, &BTreeMap<String, u64>)| {
            let before = earlier.nics.get(name);
            let change = now.iter().map(|(counter, now)| {
                let before = before.and_then(|before| before.get(counter));
                let change = now.saturating_sub(before.copied().unwrap_or(0));
                (counter.clone(), change)
            });
            let change = change.filter(|(_, change)| *change > 0).collect();
            (name.clone(), change)
        };
        fn each<T: Default>(now: &[T], earlier: &[T], since: impl Fn(&T, &T) -> T) -> Vec<T> {
            let none = T::default();
            let earlier = earlier.iter().chain(iter::repeat(&none));
            iter::zip(now, earlier)
                .map(|(now, earlier)| since(now, earlier))
                .collect()
        }
        Counters {
            udp: self.udp.since(&earlier.udp),
            udp6: self.udp6.since(&earlier.udp6),
            ip: self.ip.since(&earlier.ip),
            ip6: self.ip6.since(&earlier.ip6),
            interfaces: self.interfaces.iter().map(interface).collect(),
            softnet: each(&self.softnet, &earlier.softnet, Softnet::since),
            cores: each(&self.cores, &earlier.cores, Core::since),
            nics: self.nics.iter().map(nic).collect(),
        }
    }
}

/// /proc/net/snmp: for each protocol a line of names and a line of values.
fn parse_snmp(text: &str, protocol: &str, mut set: impl FnMut(&str, u64)) {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    if let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                set(name, value);
            }
        }
    }
}

/// /proc/net/snmp6: a line for each counter, the protocol and its name in one word.
fn parse_snmp6(text: &str, protocol: &str, mut set: impl FnMut(&str, u64)) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().and_then(|word| word.strip_prefix(protocol));
        let value = words.next().and_then(|word| word.parse().ok());
        if let (Some(name), Some(value)) = (name, value) {
            set(name, value);
        }
    }
}

/// /proc/net/dev: the name, a colon, eight numbers of reception, eight of sending.
fn parse_interfaces(text: &str) -> BTreeMap<String, Interface> {
    let parse = |line: &str| {
        let (name, numbers) = line.rsplit_once(':')?;
        let mut interface = Interface::default();
        for (column, number) in numbers.split_whitespace().enumerate() {
            let direction = if column < 8 { "rx" } else { "tx" };
            interface.set(&format!("{direction} {}", column % 8), number.parse().ok()?);
        }
        Some((name.trim().to_owned(), interface))
    };
    text.lines().filter_map(parse).collect()
}

/// /proc/net/softnet_stat: a line for each core, hexadecimal numbers.
fn parse_softnet(text: &str) -> Vec<Softnet> {
    let parse = |line: &str| {
        let mut softnet = Softnet::default();
        for (column, number) in line.split_whitespace().enumerate() {
            let value = u64::from_str_radix(number, 16).unwrap_or(0);
            softnet.set(&column.to_string(), value);
        }
        softnet
    };
    text.lines().map(parse).collect()
}

/// /proc/stat: lines `cpuN` with ticks.
fn parse_cores(text: &str) -> Vec<Core> {
    let parse = |line: &str| {
        let (number, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        number.parse::<u32>().ok()?;
        let mut core = Core::default();
        for (column, number) in ticks.split_whitespace().enumerate() {
            core.set(&column.to_string(), number.parse().ok()?);
        }
        Some(core)
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // As Linux 6.18 prints them, shortened.
    const SNMP: &str = "\
Ip: Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates OutTransmits
Ip: 2 64 82425 0 0 0 0 0 82413 76978 2540 0 0 460 0 3 0 0 460 76978
Icmp: InMsgs InErrors
Icmp: 1 2
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 78414 2555 9440 64340 9439 7 1 5 6
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
UdpLite: 1 1 1 1 1 1 1 1 1
";
    const SNMP6: &str = "\
Ip6InReceives                   \t1551
Ip6InDelivers                   \t1321
Ip6ReasmReqds                   \t460
Udp6InDatagrams                 \t9
Udp6RcvbufErrors                \t4
UdpLite6InDatagrams             \t3
";
    const DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 608525902   69962    0    0    0     0          0         0 608525902   69962    0    0    0     0       0          0
 eth0.5:254125404   14032    1    2    3     4          5         6  1104717   10243    7    8    9     10       11          12
";
    const SOFTNET: &str = "\
0000ee9f 00000001 0000000a 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00013905 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000000 00000000
";
    const STAT: &str = "\
cpu  48029 51771 29794 633079 4717 0 230 268 0 0
cpu0 22534 24834 13273 322151 890 0 63 127 0 0
cpu1 25494 26936 16521 310927 3827 1 166 140 0 0
intr 1051488 0 0
";

    #[test]
    fn counters_are_found_by_their_names() {
        let mut udp = Udp::default();
        parse_snmp(SNMP, "Udp", |name, value| udp.set(name, value));
        let expected = Udp {
            in_datagrams: 78414,
            no_ports: 2555,
            in_errors: 9440,
            out_datagrams: 64340,
            receive_buffer_errors: 9439,
            send_buffer_errors: 7,
            checksum_errors: 1,
            ignored_multicast: 5,
            memory_errors: 6,
        };
        assert_eq!(udp, expected);
        let mut ip = Ip::default();
        parse_snmp(SNMP, "Ip", |name, value| ip.set(name, value));
        assert_eq!((ip.in_receives, ip.out_discards), (82425, 2540));
        assert_eq!((ip.reassembly_failures, ip.fragments_made), (3, 460));
        let (mut udp, mut ip) = (Udp::default(), Ip::default());
        parse_snmp6(SNMP6, "Udp6", |name, value| udp.set(name, value));
        parse_snmp6(SNMP6, "Ip6", |name, value| ip.set(name, value));
        assert_eq!((udp.in_datagrams, udp.receive_buffer_errors), (9, 4));
        assert_eq!((ip.in_receives, ip.reassembly_requests), (1551, 460));
    }

    #[test]
    fn tables_are_found_by_their_columns() {
        let interfaces = parse_interfaces(DEV);
        assert_eq!(interfaces.len(), 2);
        let expected = Interface {
            rx_bytes: 254_125_404,
            rx_packets: 14_032,
            rx_errors: 1,
            rx_dropped: 2,
            rx_fifo: 3,
            rx_multicast: 6,
            tx_bytes: 1_104_717,
            tx_packets: 10_243,
            tx_errors: 7,
            tx_dropped: 8,
            tx_fifo: 9,
        };
        assert_eq!(interfaces["eth0.5"], expected);
        let softnet = parse_softnet(SOFTNET);
        let first = Softnet {
            processed: 0xee9f,
            dropped: 1,
            squeezed: 10,
        };
        assert_eq!((softnet.len(), softnet[0]), (2, first));
        let cores = parse_cores(STAT);
        assert_eq!(cores.len(), 2);
        assert_eq!(
            (cores[1].user, cores[1].irq, cores[1].steal),
            (25494, 1, 140)
        );
    }

    #[test]
    fn differences_count_what_happened_in_between() {
        let core = |user, idle| Core {
            user,
            idle,
            ..Core::default()
        };
        let before = Counters {
            cores: vec![core(10, 10)],
            interfaces: parse_interfaces(DEV),
            ..Counters::default()
        };
        let mut after = before.clone();
        after.cores = vec![core(40, 20), core(1, 0)];
        after.udp.receive_buffer_errors = 7;
        after.interfaces.insert("new".into(), Interface::default());
        let between = after.since(&before);
        assert_eq!(between.udp.receive_buffer_errors, 7);
        assert_eq!(between.cores, [core(30, 10), core(1, 0)]);
        assert_eq!(between.interfaces["lo"], Interface::default());
        assert_eq!(before.since(&after).udp.receive_buffer_errors, 0);
    }

    #[test]
    fn this_host_is_read() {
        let counters = Counters::read().unwrap();
        assert!(counters.interfaces.contains_key("lo"));
        assert!(!counters.cores.is_empty());
        assert!(counters.cores[0].user > 0);
        assert_eq!(counters.since(&counters).udp, Udp::default());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(Udp:|Ip6|cpu|[ :\n\t0-9a-fx-]){0,60}|\\PC{0,80}") {
            parse_snmp(&text, "Udp", |_, _| {});
            parse_snmp6(&text, "Ip6", |_, _| {});
            parse_interfaces(&text);
            parse_softnet(&text);
            parse_cores(&text);
        }
    }
}

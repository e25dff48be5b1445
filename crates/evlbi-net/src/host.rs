//! Counters of this host, read from /proc: what its network stack dropped and where, and what its cores did. The difference of two
//! samples covers the time between them.
//!
//! Network counters are those of the current thread's network namespace and include all its programs.
//!
//! Add further kernel counters here. What they mean for a user is in `evlbi-host`.

pub mod card;
pub mod clock;
pub mod nic;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::iter;

use serde::{Deserialize, Serialize};

/// Returns the name of this host.
pub fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| String::new(), |name| name.trim().to_owned())
}

/// Defines a group of counters: a struct of `u64`, the mapping from kernel names to fields, and the difference of two samples.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident = $kernel:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

            /// Returns what was counted since `earlier`; 0 where a counter was reset in the meantime.
            pub fn since(&self, earlier: &$name) -> $name {
                $name {
                    $($field: self.$field.saturating_sub(earlier.$field),)*
                }
            }
        }
    };
}

counters! {
    /// UDP, in datagrams; joined ones count as one where the kernel does so.
    Udp {
        /// Delivered to programs.
        in_datagrams = "InDatagrams",
        /// For a port without a listener.
        no_ports = "NoPorts",
        /// Not delivered, for any of the reasons below.
        in_errors = "InErrors",
        /// Sent.
        out_datagrams = "OutDatagrams",
        /// Dropped because a socket's receive buffer was full.
        receive_buffer_errors = "RcvbufErrors",
        /// Dropped because a send buffer or a device's queue was full.
        send_buffer_errors = "SndbufErrors",
        /// With a wrong checksum.
        checksum_errors = "InCsumErrors",
        /// Multicast of a group that no program had joined.
        ignored_multicast = "IgnoredMulti",
        /// Dropped because the memory for all UDP sockets was used up (`net.ipv4.udp_mem`).
        memory_errors = "MemErrors",
    }
}

counters! {
    /// IP, in packets.
    Ip {
        /// Received, including faulty ones.
        in_receives = "InReceives",
        /// Dropped on reception for lack of memory and the like.
        in_discards = "InDiscards",
        /// Handed to a protocol such as UDP.
        in_delivers = "InDelivers",
        /// Passed down by protocols.
        out_requests = "OutRequests",
        /// Dropped on sending.
        out_discards = "OutDiscards",
        /// Fragments received.
        reassembly_requests = "ReasmReqds",
        /// Packets that could not be reassembled: a fragment was lost.
        reassembly_failures = "ReasmFails",
        /// Fragments created from packets longer than the MTU.
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
        /// Dropped by the NIC because the host did not fetch them in time.
        rx_fifo = "rx 4",
        /// Multicast received.
        rx_multicast = "rx 7",
        /// Bytes sent.
        tx_bytes = "tx 0",
        /// Packets sent.
        tx_packets = "tx 1",
        /// Not sent because of an error.
        tx_errors = "tx 2",
        /// Dropped by the kernel or the device on sending.
        tx_dropped = "tx 3",
        /// Not sent because the NIC ran out of data.
        tx_fifo = "tx 4",
    }
}

counters! {
    /// Work of a core's network softirq.
    Softnet {
        /// Packets processed.
        processed = "0",
        /// Packets dropped because the core's backlog was full (`net.core.netdev_max_backlog`).
        dropped = "1",
        /// Number of times that it stopped with work left (`net.core.netdev_budget`).
        squeezed = "2",
    }
}

counters! {
    /// Time of a core by use, in clock ticks (normally 10 ms).
    Core {
        /// Programs.
        user = "0",
        /// Programs of low priority.
        nice = "1",
        /// The kernel for programs.
        system = "2",
        /// Idle.
        idle = "3",
        /// Idle while a program waited for a disk.
        iowait = "4",
        /// Interrupts.
        irq = "5",
        /// Softirqs, including the network's.
        softirq = "6",
        /// Other virtual machines.
        steal = "7",
    }
}

/// One sample of all counters, or the difference of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// By interface and driver's name of the counter, without zeros.
    pub nics: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Counters {
    /// Reads the counters now.
    ///
    /// # Errors
    /// Returns an error if /proc cannot be read. On a host without IPv6 its counters are 0.
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

    /// Returns what was counted since `earlier`.
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

/// Parses /proc/net/snmp: for each protocol a line of names and a line of values.
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

/// Parses /proc/net/snmp6: a line per counter, with protocol and name in one word.
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

/// Parses /proc/net/dev: name, colon, eight receive counters, eight transmit counters.
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

/// Parses /proc/net/softnet_stat: a line per core, hexadecimal.
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

/// Parses /proc/stat: lines `cpuN` with ticks.
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

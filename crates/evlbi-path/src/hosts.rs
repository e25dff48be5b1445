//! The hosts of a path: network namespaces with a tap device each.

use std::io::ErrorKind::PermissionDenied;
use std::net::{Ipv4Addr, Ipv6Addr};

use evlbi_net::netns::{Namespace, Unavailable};
use evlbi_net::path::Tap;

use super::plan::Plan;
use super::relay::address;

/// Name of the device in each host.
const DEVICE: &str = "wire";
/// Length of the queue to the relay, in frames.
const QUEUE: &str = "10000";

/// The hosts of a path.
#[derive(Debug)]
pub struct Hosts {
    namespaces: Vec<Namespace>,
}

/// Returns the IPv4 address of a host.
fn v4(host: usize) -> Ipv4Addr {
    let [high, low] = (host as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// Returns the IPv6 address of a host.
fn v6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

fn shown(address: [u8; 6]) -> String {
    let bytes = address.iter().map(|byte| format!("{byte:02x}"));
    bytes.collect::<Vec<String>>().join(":")
}

impl Hosts {
    /// Creates the hosts of a plan and their tap devices.
    ///
    /// # Errors
    /// Returns [`Unavailable`], which names the reason.
    pub fn new(plan: &Plan) -> Result<(Hosts, Vec<Tap>), Unavailable> {
        let count = plan.hosts().count();
        let (mut namespaces, mut taps) = (Vec::new(), Vec::new());
        for (host, node) in plan.hosts().enumerate() {
            let namespace = Namespace::new()?;
            let tap = namespace.run(|| Tap::new(DEVICE))?;
            taps.push(tap.map_err(Unavailable::Tap)?);
            // No traffic other than what is meant to be on the path.
            for name in ["accept_ra", "accept_dad", "router_solicitations"] {
                let path = format!("/proc/sys/net/ipv6/conf/{DEVICE}/{name}");
                // Without IPv6 there is nothing to disable.
                let _ = namespace.run(|| std::fs::write(path, "0"))?;
            }
            let mut commands = vec![
                format!("link set dev {DEVICE} addrgenmode none"),
                format!(
                    "link set dev {DEVICE} address {} mtu {} txqueuelen {QUEUE}",
                    shown(address(host)),
                    plan.mtu
                ),
                format!("addr add {}/16 dev {DEVICE}", v4(host)),
                format!("addr add {}/64 dev {DEVICE} nodad", v6(host)),
                format!("link set dev {DEVICE} up"),
                format!("route add 224.0.0.0/4 dev {DEVICE}"),
            ];
            // No host needs to ask for hardware addresses over a long path.
            for other in (0..count).filter(|other| *other != host) {
                let lladdr = shown(address(other));
                commands.extend(Hosts::addresses(other).map(|it| {
                    format!("neigh add {it} lladdr {lladdr} dev {DEVICE} nud permanent")
                }));
            }
            for command in commands {
                let args: Vec<&str> = command.split(' ').collect();
                namespace.command("ip", &args)?;
            }
            let wanted = plan.nodes[node].host.clone().unwrap_or_default();
            let name = &plan.nodes[node].name;
            if let Some(algorithm) = &wanted.congestion {
                set_congestion(&namespace, algorithm, host, name)?;
            }
            if let Some(most) = wanted.buffer {
                for (setting, usual) in [("tcp_rmem", 131_072), ("tcp_wmem", 65_536)] {
                    set(&namespace, setting, &format!("4096 {usual} {most}"), name)?;
                }
            }
            namespaces.push(namespace);
        }
        Ok((Hosts { namespaces }, taps))
    }

    /// Returns the addresses of a host.
    pub fn addresses(host: usize) -> [String; 2] {
        [v4(host).to_string(), v6(host).to_string()]
    }

    /// Returns a host's namespace.
    pub fn namespace(&self, host: usize) -> &Namespace {
        &self.namespaces[host]
    }

    /// Returns the lines of `/etc/hosts` for the hosts of a plan. A name has the IPv4 address, as many programs support no other; with
    /// `-v6` appended, the IPv6 address.
    pub fn file(plan: &Plan) -> String {
        let mut file = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for (host, node) in plan.hosts().enumerate() {
            let name = &plan.nodes[node].name;
            file += &format!("{} {name}\n{} {name}-v6\n", v4(host), v6(host));
        }
        file
    }

    /// Returns the number of packets that a host had sent and that found the queue to the relay full.
    ///
    /// # Errors
    /// Returns [`Unavailable`] if the counters cannot be read.
    pub fn overflown(&self, host: usize) -> Result<u64, Unavailable> {
        let show = ["-s", "qdisc", "show", "dev", DEVICE];
        let text = self.namespaces[host].command("tc", &show)?;
        let number = |word: Option<&str>| -> u64 {
            let word = word.and_then(|word| word.parse().ok());
            word.unwrap_or(0)
        };
        let dropped = text.split("(dropped ").nth(1);
        let in_queue = number(dropped.and_then(|rest| rest.split(',').next()));
        let counts = self.namespaces[host]
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = counts
            .lines()
            .find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'))
            .unwrap_or("");
        // Received: 8 columns; sent: bytes, packets, errors, dropped.
        Ok(in_queue + number(line.split_whitespace().nth(11)))
    }
}

/// Sets the congestion control algorithm of a host. Only the first namespace of a machine may have a default that is not
/// allowed to all users; elsewhere the routes of the path name it, for which the right to configure the host suffices.
fn set_congestion(
    namespace: &Namespace,
    algorithm: &str,
    host: usize,
    name: &str,
) -> Result<(), Unavailable> {
    match set(namespace, "tcp_congestion_control", algorithm, name) {
        Err(Unavailable::Setting { source, .. }) if source.kind() == PermissionDenied => {}
        set => return set,
    }
    let v4 = format!("10.77.0.0/16 scope link src {}", v4(host));
    for route in [v4, "fd77::/64 metric 256".to_owned()] {
        let change = format!("route change {route} dev {DEVICE} proto kernel congctl {algorithm}");
        let args: Vec<&str> = change.split(' ').collect();
        namespace.command("ip", &args)?;
    }
    Ok(())
}

fn set(namespace: &Namespace, name: &str, value: &str, host: &str) -> Result<(), Unavailable> {
    let written = namespace.run(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value))?;
    written.map_err(|source| Unavailable::Setting {
        name: name.to_owned(),
        host: host.to_owned(),
        value: value.to_owned(),
        source,
    })
}

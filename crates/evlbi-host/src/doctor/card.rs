//! A NIC: its link, queues, rings and offloads, and what it has dropped.
//!
//! This module contains everything that one NIC reports, and what to change about it.

use std::io;

use evlbi_core::rate::BitRate;
use evlbi_net::host::card::{Card, Coalescing, Driver, Feature, Rings};
use evlbi_net::host::nic;

use super::Aim;
use super::interfaces::{CARDS, is_up, is_virtual, speed};
use super::interrupts;
use super::item::{Found, Item, Verdict, change, good, note, quoted};
use super::root::Root;
use evlbi_wire::units::show_count;

/// Jumbo frames, in bytes: each carries a VDIF frame of 8 kB.
const JUMBO: i64 = 9000;
/// Minimum speed of a fast NIC, in bits per second.
const FAST: u64 = 10_000_000_000;
/// Minimum length of a NIC's queue, in packets.
const QUEUE: i64 = 1000;
const LONG_QUEUE: i64 = 10_000;
/// Bits of a 1500-byte packet on the wire.
const ON_WIRE: f64 = 1538.0 * 8.0;
/// Maximum interrupt delay, in microseconds.
const PUT_OFF: u32 = 100;

/// Settings reported by the driver of a NIC, or the reasons why not.
pub struct Reported {
    pub driver: Result<Driver, String>,
    pub rings: Result<Rings, String>,
    pub coalescing: Result<Coalescing, String>,
    pub features: Result<Vec<Feature>, String>,
    /// Counts of packets that the host did not fetch in time, by the driver's names.
    pub not_fetched: Vec<(String, u64)>,
}

/// Queries the driver.
pub fn reported(name: &str) -> Reported {
    let card = Card::open(name);
    let counters = nic::counters(std::iter::once(&name.to_owned()));
    let counters = counters.into_values().flatten();
    Reported {
        driver: asked(&card, Card::driver),
        rings: asked(&card, Card::rings),
        coalescing: asked(&card, Card::coalescing),
        features: asked(&card, Card::features),
        not_fetched: counters
            .filter(|(name, _)| nic::is_not_fetched(name))
            .collect(),
    }
}

fn asked<T>(card: &io::Result<Card>, ask: fn(&Card) -> io::Result<T>) -> Result<T, String> {
    let card = card.as_ref().map_err(reason)?;
    ask(card).map_err(|error| reason(&error))
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::Unsupported => "not reported by the driver".to_owned(),
        io::ErrorKind::PermissionDenied => "needs root".to_owned(),
        _ => format!("cannot query the driver: {error}"),
    }
}

pub fn items(root: &Root, name: &str, reported: &Reported, aim: &Aim) -> Vec<Item> {
    let check = Check {
        root,
        name,
        // A NIC is only asked for what it can carry.
        rate: speed(root, name).map_or(aim.rate, |speed| speed.min(aim.rate)),
    };
    let group = format!("card {name}");
    let item = |name, why, found| Item::new(&group, name, why, found);
    let mut items = vec![
        item(
            "link",
            "drivers report little about a NIC that is down or has no cable",
            Ok(match is_up(root, name) {
                true => good("up"),
                false => note("down"),
            }),
        ),
        item(
            "speed",
            "data above the NIC's speed must be shed (`evlbi plan link`, --shed fit)",
            check.speed(aim),
        ),
        item(
            "duplex",
            "at half duplex, received and sent packets collide and are lost",
            check.duplex(),
        ),
        item(
            "MTU",
            "the cost of a packet does not depend on its length: at 1500 bytes a host handles six times as many, and a VDIF \
             frame of 8 kB is split; all hosts and switches of the network must have the same MTU, or long packets are lost",
            check.mtu(),
        ),
        item(
            "txqueuelen",
            "a sender's bursts are dropped in this host if the NIC's queue is full (Sansa 2006 used 20000 instead of the default \
             of 100)",
            check.queue_length(),
        ),
        item(
            "driver",
            "some versions of drivers and firmware drop packets: compare with a host that does not",
            driver(&reported.driver),
        ),
        item(
            "receive ring",
            "if a CPU is busy elsewhere for longer than the ring lasts, the NIC drops packets",
            check.rx_ring(&reported.rings),
        ),
        item(
            "send ring",
            "packets that do not fit wait in the queue before it, so a longer ring changes little",
            tx_ring(&reported.rings),
        ),
        item(
            "interrupt coalescing",
            "an interrupt per packet overloads the CPU at high rates; a long delay of interrupts increases measured delays, and \
             packets wait in the ring",
            check.coalescing(&reported.coalescing),
        ),
    ];
    items.extend(OFFLOADS.map(|offload| {
        let found = check.offload(&offload, &reported.features);
        item(offload.shown, offload.why, found)
    }));
    items.push(item(
        "dropped so far",
        "since the NIC was started; check whether it grows while data flows: missed and fifo errors mean too little CPU time or \
         too short a ring, the others too few buffers or packets without a receiver",
        check.dropped(&reported.not_fetched),
    ));
    items.extend(interrupts::items(root, name, &group));
    if is_virtual(root, name) {
        items.iter_mut().for_each(soften);
    }
    items
}

/// Turns required changes of an interface without a NIC into notes.
fn soften(item: &mut Item) {
    if item.verdict == Verdict::Change {
        item.verdict = Verdict::Note;
        item.why += "; this interface is virtual: the NIC below it counts, if there is one";
    }
}

struct Check<'a> {
    root: &'a Root,
    name: &'a str,
    rate: BitRate,
}

impl Check<'_> {
    fn number(&self, file: &str) -> Result<i64, String> {
        self.root.number(&format!("{CARDS}/{}/{file}", self.name))
    }

    fn speed(&self, aim: &Aim) -> Found {
        let speed = speed(self.root, self.name)?;
        let found = format!("{speed}bit/s");
        Ok(match speed >= aim.rate {
            true => good(found),
            false => note(found).wanting(format!("{}bit/s, if the data passes this NIC", aim.rate)),
        })
    }

    fn duplex(&self) -> Found {
        let reported = self.root.read(&format!("{CARDS}/{}/duplex", self.name));
        match reported.as_deref() {
            Ok("full") => Ok(good("full")),
            Ok("half") => Ok(change("half", "full").by(format!(
                "ethtool -s {} autoneg on  # and at the switch",
                quoted(self.name)
            ))),
            _ => Err("not reported by the driver".to_owned()),
        }
    }

    fn mtu(&self) -> Found {
        let mtu = self.number("mtu")?;
        let found = format!("{mtu} bytes");
        Ok(match mtu >= JUMBO {
            true => good(found),
            false => note(found)
                .wanting(format!("{JUMBO} bytes, if the network carries them"))
                .by(format!("ip link set dev {} mtu {JUMBO}", quoted(self.name))),
        })
    }

    fn queue_length(&self) -> Found {
        let wanted = match self.rate.get() >= FAST {
            true => LONG_QUEUE,
            false => QUEUE,
        };
        Ok(match self.number("tx_queue_len")? {
            0 => note("0: no queue, packets that do not fit into the NIC's ring are dropped"),
            found if found >= wanted => good(format!("{found} packets")),
            found => change(format!("{found} packets"), format!("{wanted} packets")).by(format!(
                "ip link set dev {} txqueuelen {wanted}",
                quoted(self.name)
            )),
        })
    }

    fn rx_ring(&self, reported: &Result<Rings, String>) -> Found {
        let rings = reported.as_ref()?;
        let per_packet = ON_WIRE / self.rate.get() as f64;
        let why = format!(
            "{} packets of 1500 bytes arrive in {:.0} us at {}bit/s: if a CPU is busy elsewhere for longer, the NIC drops packets",
            rings.rx,
            f64::from(rings.rx) * per_packet * 1e6,
            self.rate
        );
        let found = format!("{} packets of {} possible", rings.rx, rings.rx_max);
        let item = match rings.rx < rings.rx_max {
            true => change(found, rings.rx_max.to_string()).by(format!(
                "ethtool -G {} rx {}",
                quoted(self.name),
                rings.rx_max
            )),
            false => good(found),
        };
        Ok(item.because(why))
    }

    fn coalescing(&self, reported: &Result<Coalescing, String>) -> Found {
        let found = reported.as_ref()?;
        let shown = format!(
            "receive {} us or {} packets{}, send {} us or {} packets",
            found.rx_usecs,
            found.rx_frames,
            if found.adaptive_rx { ", adaptive" } else { "" },
            found.tx_usecs,
            found.tx_frames
        );
        let each = found.rx_usecs == 0 && found.rx_frames <= 1;
        Ok(
            match found.adaptive_rx || (!each && found.rx_usecs <= PUT_OFF) {
                true => good(shown),
                false => note(shown)
                    .wanting("adaptive, or some 10 us")
                    .by(format!("ethtool -C {} rx-usecs 10", quoted(self.name))),
            },
        )
    }

    fn offload(&self, offload: &Offload, reported: &Result<Vec<Feature>, String>) -> Found {
        let mut features = reported.as_ref()?.iter();
        let feature = features
            .find(|feature| feature.name == offload.name)
            .ok_or_else(|| format!("this kernel has no {}", offload.name))?;
        let found = match (feature.on, feature.changeable) {
            (true, _) => "on",
            (false, true) => "off",
            (false, false) => "off, not supported by the NIC",
        };
        if feature.on == offload.needed {
            return Ok(good(found));
        }
        let state = if offload.needed { "on" } else { "off" };
        let command = format!("ethtool -K {} {} {state}", quoted(self.name), offload.name);
        Ok(match (feature.changeable, offload.needed) {
            (true, true) => change(found, state).by(command),
            (true, false) => note(found).by(command),
            (false, _) => note(found),
        })
    }

    /// Returns the drops since the counters started.
    fn dropped(&self, not_fetched: &[(String, u64)]) -> Found {
        const COUNTERS: [&str; 5] = [
            "rx_dropped",
            "rx_missed_errors",
            "rx_fifo_errors",
            "rx_crc_errors",
            "tx_dropped",
        ];
        let read = |name: &str| {
            let count = self.number(&format!("statistics/{name}")).ok()?;
            Some((name.to_owned(), u64::try_from(count).ok()?))
        };
        let mut counts: Vec<(String, u64)> =
            COUNTERS.iter().filter_map(|name| read(name)).collect();
        if counts.is_empty() {
            return Err("the kernel reports no counters of it".to_owned());
        }
        for (name, count) in not_fetched {
            if counts.iter().all(|(known, _)| known != name) {
                counts.push((name.clone(), *count));
            }
        }
        counts.retain(|(_, count)| *count > 0);
        if counts.is_empty() {
            return Ok(good("nothing"));
        }
        let counts = counts
            .iter()
            .map(|(name, count)| format!("{name} {}", show_count(*count)));
        let counts = counts.collect::<Vec<String>>().join(", ");
        Ok(note(counts).by(format!("ip -s -s link show dev {}", quoted(self.name))))
    }
}

fn driver(reported: &Result<Driver, String>) -> Found {
    let driver = reported.as_ref()?;
    let or_none = |text: &str| match text {
        "" | "N/A" => "not reported".to_owned(),
        reported => reported.to_owned(),
    };
    Ok(good(format!(
        "{} {}, firmware {}, at {}",
        driver.name,
        driver.version,
        or_none(&driver.firmware),
        or_none(&driver.bus)
    )))
}

fn tx_ring(reported: &Result<Rings, String>) -> Found {
    let rings = reported.as_ref()?;
    Ok(good(format!(
        "{} packets of {} possible",
        rings.tx, rings.tx_max
    )))
}

/// An offload.
struct Offload {
    shown: &'static str,
    /// The kernel's name for it.
    name: &'static str,
    /// Whether it must be on; otherwise it should be off.
    needed: bool,
    why: &'static str,
}

const OFFLOADS: [Offload; 6] = [
    Offload {
        shown: "GSO",
        name: "tx-generic-segmentation",
        needed: true,
        why: "without it `send` passes each datagram to the kernel on its own, at many times the cost",
    },
    Offload {
        shown: "UDP segmentation in the card",
        name: "tx-udp-segmentation",
        needed: true,
        why: "without it the kernel cuts the bursts of `send` into packets, which takes CPU time",
    },
    Offload {
        shown: "TSO",
        name: "tx-tcp-segmentation",
        needed: true,
        why: "without it the kernel cuts TCP into packets, which takes CPU time",
    },
    Offload {
        shown: "GRO",
        name: "rx-gro",
        needed: true,
        why: "without it the kernel processes each packet on its own, and a CPU is overloaded at a few Gbit/s",
    },
    Offload {
        shown: "UDP GRO when forwarding",
        name: "rx-udp-gro-forwarding",
        needed: false,
        why: "only for hosts that forward: `recv` gets joined datagrams without it, and it also joins those of programs that did \
            not request it",
    },
    Offload {
        shown: "LRO",
        name: "rx-lro",
        needed: false,
        why: "it joins packets without keeping their lengths: GRO keeps them, and captures show the packets that arrived",
    },
];

#[cfg(test)]
mod tests;

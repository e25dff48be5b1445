//! A network card: its link, queues, rings and offloads, and what it has dropped.

use evlbi_core::rate::BitRate;
use evlbi_net::host::card::{Card, Coalescing, Driver, Feature, Rings};
use evlbi_net::host::nic;

use super::Aim;
use super::interfaces::{CARDS, is_up, is_virtual, speed};
use super::interrupts;
use super::item::{Check, Item, Verdict, quoted};
use super::root::Root;
use crate::units::show_count;

/// Jumbo frames, in bytes: each carries a VDIF frame of 8 kB.
const JUMBO: i64 = 9000;
/// From here on a card is fast, in bits per second.
const FAST: u64 = 10_000_000_000;
/// Packets that may wait for the card.
const QUEUE: i64 = 1000;
const LONG_QUEUE: i64 = 10_000;
/// Bits of a packet of 1500 bytes on the wire.
const ON_WIRE: f64 = 1538.0 * 8.0;
/// Microseconds that an interrupt may be put off.
const PUT_OFF: u32 = 100;

/// What the driver of a card says, or why not.
pub struct Told {
    pub driver: Result<Driver, String>,
    pub rings: Result<Rings, String>,
    pub coalescing: Result<Coalescing, String>,
    pub features: Result<Vec<Feature>, String>,
    /// Packets that the host did not fetch in time, by the driver's names for it.
    pub not_fetched: Vec<(String, u64)>,
}

/// Asks the driver.
pub fn told(name: &str) -> Told {
    let card = Card::open(name).map_err(|error| reason(&error));
    let card = card.as_ref().map_err(String::clone);
    let counters = nic::counters(std::iter::once(&name.to_owned()));
    let counters = counters.into_values().flatten();
    Told {
        driver: card
            .clone()
            .and_then(|card| card.driver().map_err(|error| reason(&error))),
        rings: card
            .clone()
            .and_then(|card| card.rings().map_err(|error| reason(&error))),
        coalescing: card
            .clone()
            .and_then(|card| card.coalescing().map_err(|error| reason(&error))),
        features: card.and_then(|card| card.features().map_err(|error| reason(&error))),
        not_fetched: counters
            .filter(|(name, _)| nic::is_not_fetched(name))
            .collect(),
    }
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::Unsupported => "the driver does not tell".to_owned(),
        std::io::ErrorKind::PermissionDenied => "it may not be asked without root".to_owned(),
        _ => format!("the driver cannot be asked: {error}"),
    }
}

pub fn items(root: &Root, name: &str, told: &Told, aim: &Aim) -> Vec<Item> {
    let look = Look {
        root,
        name,
        group: format!("card {name}"),
        // No card is asked for more than it can carry.
        rate: speed(root, name).map_or(aim.rate, |speed| speed.min(aim.rate)),
    };
    let mut items = vec![
        look.link(),
        look.speed(aim),
        look.duplex(),
        look.mtu(),
        look.queue_length(),
        look.driver(&told.driver),
        look.rx_ring(&told.rings),
        look.tx_ring(&told.rings),
        look.coalescing(&told.coalescing),
    ];
    items.extend(OFFLOADS.map(|offload| look.offload(&offload, &told.features)));
    items.push(look.dropped(&told.not_fetched));
    items.extend(interrupts::items(root, name, &look.group));
    if is_virtual(root, name) {
        items.iter_mut().for_each(soften);
    }
    items
}

/// Of an interface without a card nothing must be changed.
fn soften(item: &mut Item) {
    if item.verdict == Verdict::Change {
        item.verdict = Verdict::Note;
        item.why += "; this interface is virtual, and the card beneath it, if any, counts";
    }
}

struct Look<'a> {
    root: &'a Root,
    name: &'a str,
    group: String,
    rate: BitRate,
}

impl Look<'_> {
    fn check(&self, name: &str, why: impl Into<String>) -> Check {
        Check::new(&self.group, name, why)
    }

    fn read(&self, file: &str) -> Result<String, String> {
        self.root.read(&format!("{CARDS}/{}/{file}", self.name))
    }

    fn number(&self, file: &str) -> Result<i64, String> {
        self.root.number(&format!("{CARDS}/{}/{file}", self.name))
    }

    fn link(&self) -> Item {
        let check = self.check(
            "link",
            "of a card that is down, or has no cable, drivers tell little",
        );
        match is_up(self.root, self.name) {
            true => check.good("up"),
            false => check.note("down"),
        }
    }

    fn speed(&self, aim: &Aim) -> Item {
        let check = self.check(
            "speed",
            "data that does not fit the card must be left out (`evlbi plan link`, --shed fit)",
        );
        match speed(self.root, self.name) {
            Ok(speed) if speed >= aim.rate => check.good(format!("{speed}bit/s")),
            Ok(speed) => check
                .note(format!("{speed}bit/s"))
                .wanting(format!("{}bit/s, if the data goes by this card", aim.rate)),
            Err(reason) => check.unknown(reason),
        }
    }

    fn duplex(&self) -> Item {
        let check = self.check(
            "duplex",
            "at half duplex what comes and what goes collide, and are lost",
        );
        match self.read("duplex").as_deref() {
            Ok("full") => check.good("full"),
            Ok("half") => {
                let command = format!(
                    "ethtool -s {} autoneg on  # and at the switch",
                    quoted(self.name)
                );
                check.change("half", "full", command)
            }
            _ => check.unknown("the driver does not tell"),
        }
    }

    fn mtu(&self) -> Item {
        let check = self.check(
            "MTU",
            "packets cost the same whatever their length: with 1500 bytes a host handles six times as many, and a VDIF frame of \
             8 kB comes in pieces; all hosts and switches of that network must have it, or long packets vanish",
        );
        match self.number("mtu") {
            Ok(mtu) if mtu >= JUMBO => check.good(format!("{mtu} bytes")),
            Ok(mtu) => check
                .note(format!("{mtu} bytes"))
                .wanting(format!("{JUMBO} bytes, if the network carries them"))
                .by(format!("ip link set dev {} mtu {JUMBO}", quoted(self.name))),
            Err(reason) => check.unknown(reason),
        }
    }

    fn queue_length(&self) -> Item {
        let wanted = match self.rate.get() >= FAST {
            true => LONG_QUEUE,
            false => QUEUE,
        };
        let check = self.check(
            "txqueuelen",
            "bursts of a sender that find the queue before the card full are lost in this host (Sansa 2006 had 20000 where 100 \
             was usual)",
        );
        match self.number("tx_queue_len") {
            Ok(0) => check.note("0: no queue, what does not fit into the card's ring is dropped"),
            Ok(found) if found >= wanted => check.good(format!("{found} packets")),
            Ok(found) => check.change(
                format!("{found} packets"),
                format!("{wanted} packets"),
                format!("ip link set dev {} txqueuelen {wanted}", quoted(self.name)),
            ),
            Err(reason) => check.unknown(reason),
        }
    }

    fn driver(&self, told: &Result<Driver, String>) -> Item {
        let check = self.check(
            "driver",
            "some versions of drivers and firmware lose packets: compare with a host that does not",
        );
        let driver = match told {
            Ok(driver) => driver,
            Err(reason) => return check.unknown(reason),
        };
        let or_none = |text: &str| match text {
            "" | "N/A" => "not told".to_owned(),
            told => told.to_owned(),
        };
        check.good(format!(
            "{} {}, firmware {}, at {}",
            driver.name,
            driver.version,
            or_none(&driver.firmware),
            or_none(&driver.bus)
        ))
    }

    fn rx_ring(&self, told: &Result<Rings, String>) -> Item {
        let per_packet = ON_WIRE / self.rate.get() as f64;
        let name = "receive ring";
        let rings = match told {
            Ok(rings) => rings,
            Err(reason) => {
                let why = "a processor that is elsewhere for longer than it lasts loses packets in the card";
                return self.check(name, why).unknown(reason);
            }
        };
        let why = format!(
            "{} packets of 1500 bytes come in {:.0} us at {}bit/s: a processor that is elsewhere for longer loses packets in the \
             card",
            rings.rx,
            f64::from(rings.rx) * per_packet * 1e6,
            self.rate
        );
        let check = self.check(name, why);
        let found = format!("{} packets of {} possible", rings.rx, rings.rx_most);
        match rings.rx < rings.rx_most {
            true => check.change(
                found,
                rings.rx_most.to_string(),
                format!("ethtool -G {} rx {}", quoted(self.name), rings.rx_most),
            ),
            false => check.good(found),
        }
    }

    fn tx_ring(&self, told: &Result<Rings, String>) -> Item {
        let check = self.check(
            "send ring",
            "what does not fit waits in the queue before it, so that a longer one changes little",
        );
        match told {
            Ok(rings) => check.good(format!(
                "{} packets of {} possible",
                rings.tx, rings.tx_most
            )),
            Err(reason) => check.unknown(reason),
        }
    }

    fn coalescing(&self, told: &Result<Coalescing, String>) -> Item {
        let check = self.check(
            "interrupt coalescing",
            "an interrupt for each packet takes the processor at high rates; one put off for long makes measured delays longer, \
             and packets wait in the ring",
        );
        let found = match told {
            Ok(found) => found,
            Err(reason) => return check.unknown(reason),
        };
        let shown = format!(
            "receive {} us or {} packets{}, send {} us or {} packets",
            found.rx_usecs,
            found.rx_frames,
            if found.adaptive_rx { ", adaptive" } else { "" },
            found.tx_usecs,
            found.tx_frames
        );
        let each = found.rx_usecs == 0 && found.rx_frames <= 1;
        match found.adaptive_rx || (!each && found.rx_usecs <= PUT_OFF) {
            true => check.good(shown),
            false => check
                .note(shown)
                .wanting("adaptive, or some 10 us")
                .by(format!("ethtool -C {} rx-usecs 10", quoted(self.name))),
        }
    }

    fn offload(&self, offload: &Offload, told: &Result<Vec<Feature>, String>) -> Item {
        let check = self.check(offload.shown, offload.why);
        let features = match told {
            Ok(features) => features,
            Err(reason) => return check.unknown(reason),
        };
        let Some(feature) = features.iter().find(|feature| feature.name == offload.name) else {
            return check.unknown(format!("this kernel has no {}", offload.name));
        };
        let found = match (feature.on, feature.changeable) {
            (true, _) => "on",
            (false, true) => "off",
            (false, false) => "off, the card cannot",
        };
        let state = if offload.wanted { "on" } else { "off" };
        let command = format!("ethtool -K {} {} {state}", quoted(self.name), offload.name);
        match (
            feature.on == offload.wanted,
            feature.changeable,
            offload.needed,
        ) {
            (true, ..) => check.good(found),
            (false, true, true) => check.change(found, state, command),
            (false, true, false) => check.note(found).by(command),
            (false, false, _) => check.note(found),
        }
    }

    /// What was dropped since the counters began.
    fn dropped(&self, not_fetched: &[(String, u64)]) -> Item {
        let check = self.check(
            "dropped so far",
            "since the card was started; look whether it grows while data flows: missed and not fetched in time are for want of \
             processor or ring, the rest for want of buffers or because nobody wanted the packets",
        );
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
            return check.unknown("the kernel tells no counters of it");
        }
        for (name, count) in not_fetched {
            if counts.iter().all(|(known, _)| known != name) {
                counts.push((name.clone(), *count));
            }
        }
        counts.retain(|(_, count)| *count > 0);
        match counts.is_empty() {
            true => check.good("nothing"),
            false => {
                let counts = counts
                    .iter()
                    .map(|(name, count)| format!("{name} {}", show_count(*count)));
                check
                    .note(counts.collect::<Vec<String>>().join(", "))
                    .by(format!("ip -s -s link show dev {}", quoted(self.name)))
            }
        }
    }
}

/// An offload, and whether it should be on.
struct Offload {
    shown: &'static str,
    /// The kernel's name.
    name: &'static str,
    wanted: bool,
    /// Whether it must be so.
    needed: bool,
    why: &'static str,
}

const OFFLOADS: [Offload; 6] = [
    Offload {
        shown: "GSO",
        name: "tx-generic-segmentation",
        wanted: true,
        needed: true,
        why: "without it `send` hands the kernel each datagram by itself, at many times the cost",
    },
    Offload {
        shown: "UDP segmentation in the card",
        name: "tx-udp-segmentation",
        wanted: true,
        needed: true,
        why: "without it the kernel cuts `send`'s trains of datagrams before the card, which takes processor time",
    },
    Offload {
        shown: "TSO",
        name: "tx-tcp-segmentation",
        wanted: true,
        needed: true,
        why: "without it the kernel cuts TCP into packets, which takes processor time",
    },
    Offload {
        shown: "GRO",
        name: "rx-gro",
        wanted: true,
        needed: true,
        why: "without it the kernel takes each packet up by itself, and a processor is full at a few Gbit/s",
    },
    Offload {
        shown: "UDP GRO when forwarding",
        name: "rx-udp-gro-forwarding",
        wanted: false,
        needed: false,
        why: "for hosts that forward; `recv` has datagrams joined without it, and it joins those of programs that did not ask",
    },
    Offload {
        shown: "LRO",
        name: "rx-lro",
        wanted: false,
        needed: false,
        why: "it joins packets so that their lengths are lost: GRO does better, and captures show what came",
    },
];

#[cfg(test)]
mod tests;

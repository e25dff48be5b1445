//! A network card: its link, queues, rings and offloads, and what it has dropped.
//!
//! Here belongs what one card tells, and what to change of it.

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
    let card = Card::open(name);
    let counters = nic::counters(std::iter::once(&name.to_owned()));
    let counters = counters.into_values().flatten();
    Told {
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
        io::ErrorKind::Unsupported => "the driver does not tell".to_owned(),
        io::ErrorKind::PermissionDenied => "it may not be asked without root".to_owned(),
        _ => format!("the driver cannot be asked: {error}"),
    }
}

pub fn items(root: &Root, name: &str, told: &Told, aim: &Aim) -> Vec<Item> {
    let look = Look {
        root,
        name,
        // No card is asked for more than it can carry.
        rate: speed(root, name).map_or(aim.rate, |speed| speed.min(aim.rate)),
    };
    let group = format!("card {name}");
    let item = |name, why, found| Item::new(&group, name, why, found);
    let mut items = vec![
        item(
            "link",
            "of a card that is down, or has no cable, drivers tell little",
            Ok(match is_up(root, name) {
                true => good("up"),
                false => note("down"),
            }),
        ),
        item(
            "speed",
            "data that does not fit the card must be left out (`evlbi plan link`, --shed fit)",
            look.speed(aim),
        ),
        item(
            "duplex",
            "at half duplex what comes and what goes collide, and are lost",
            look.duplex(),
        ),
        item(
            "MTU",
            "packets cost the same whatever their length: with 1500 bytes a host handles six times as many, and a VDIF frame of \
             8 kB comes in pieces; all hosts and switches of that network must have it, or long packets vanish",
            look.mtu(),
        ),
        item(
            "txqueuelen",
            "bursts of a sender that find the queue before the card full are lost in this host (Sansa 2006 had 20000 where 100 \
             was usual)",
            look.queue_length(),
        ),
        item(
            "driver",
            "some versions of drivers and firmware lose packets: compare with a host that does not",
            driver(&told.driver),
        ),
        item(
            "receive ring",
            "a processor that is elsewhere for longer than it lasts loses packets in the card",
            look.rx_ring(&told.rings),
        ),
        item(
            "send ring",
            "what does not fit waits in the queue before it, so that a longer one changes little",
            tx_ring(&told.rings),
        ),
        item(
            "interrupt coalescing",
            "an interrupt for each packet takes the processor at high rates; one put off for long makes measured delays longer, \
             and packets wait in the ring",
            look.coalescing(&told.coalescing),
        ),
    ];
    items.extend(OFFLOADS.map(|offload| {
        let found = look.offload(&offload, &told.features);
        item(offload.shown, offload.why, found)
    }));
    items.push(item(
        "dropped so far",
        "since the card was started; look whether it grows while data flows: missed and not fetched in time are for want of \
         processor or ring, the rest for want of buffers or because nobody wanted the packets",
        look.dropped(&told.not_fetched),
    ));
    items.extend(interrupts::items(root, name, &group));
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
    rate: BitRate,
}

impl Look<'_> {
    fn number(&self, file: &str) -> Result<i64, String> {
        self.root.number(&format!("{CARDS}/{}/{file}", self.name))
    }

    fn speed(&self, aim: &Aim) -> Found {
        let speed = speed(self.root, self.name)?;
        let found = format!("{speed}bit/s");
        Ok(match speed >= aim.rate {
            true => good(found),
            false => {
                note(found).wanting(format!("{}bit/s, if the data goes by this card", aim.rate))
            }
        })
    }

    fn duplex(&self) -> Found {
        let told = self.root.read(&format!("{CARDS}/{}/duplex", self.name));
        match told.as_deref() {
            Ok("full") => Ok(good("full")),
            Ok("half") => Ok(change("half", "full").by(format!(
                "ethtool -s {} autoneg on  # and at the switch",
                quoted(self.name)
            ))),
            _ => Err("the driver does not tell".to_owned()),
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
            0 => note("0: no queue, what does not fit into the card's ring is dropped"),
            found if found >= wanted => good(format!("{found} packets")),
            found => change(format!("{found} packets"), format!("{wanted} packets")).by(format!(
                "ip link set dev {} txqueuelen {wanted}",
                quoted(self.name)
            )),
        })
    }

    fn rx_ring(&self, told: &Result<Rings, String>) -> Found {
        let rings = told.as_ref()?;
        let per_packet = ON_WIRE / self.rate.get() as f64;
        let why = format!(
            "{} packets of 1500 bytes come in {:.0} us at {}bit/s: a processor that is elsewhere for longer loses packets in the \
             card",
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

    fn coalescing(&self, told: &Result<Coalescing, String>) -> Found {
        let found = told.as_ref()?;
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

    fn offload(&self, offload: &Offload, told: &Result<Vec<Feature>, String>) -> Found {
        let mut features = told.as_ref()?.iter();
        let feature = features
            .find(|feature| feature.name == offload.name)
            .ok_or_else(|| format!("this kernel has no {}", offload.name))?;
        let found = match (feature.on, feature.changeable) {
            (true, _) => "on",
            (false, true) => "off",
            (false, false) => "off, the card cannot",
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

    /// What was dropped since the counters began.
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
            return Err("the kernel tells no counters of it".to_owned());
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

fn driver(told: &Result<Driver, String>) -> Found {
    let driver = told.as_ref()?;
    let or_none = |text: &str| match text {
        "" | "N/A" => "not told".to_owned(),
        told => told.to_owned(),
    };
    Ok(good(format!(
        "{} {}, firmware {}, at {}",
        driver.name,
        driver.version,
        or_none(&driver.firmware),
        or_none(&driver.bus)
    )))
}

fn tx_ring(told: &Result<Rings, String>) -> Found {
    let rings = told.as_ref()?;
    Ok(good(format!(
        "{} packets of {} possible",
        rings.tx, rings.tx_max
    )))
}

/// An offload.
struct Offload {
    shown: &'static str,
    /// The kernel's name.
    name: &'static str,
    /// Whether it must be on; else it had better be off.
    needed: bool,
    why: &'static str,
}

const OFFLOADS: [Offload; 6] = [
    Offload {
        shown: "GSO",
        name: "tx-generic-segmentation",
        needed: true,
        why: "without it `send` hands the kernel each datagram by itself, at many times the cost",
    },
    Offload {
        shown: "UDP segmentation in the card",
        name: "tx-udp-segmentation",
        needed: true,
        why: "without it the kernel cuts `send`'s trains of datagrams before the card, which takes processor time",
    },
    Offload {
        shown: "TSO",
        name: "tx-tcp-segmentation",
        needed: true,
        why: "without it the kernel cuts TCP into packets, which takes processor time",
    },
    Offload {
        shown: "GRO",
        name: "rx-gro",
        needed: true,
        why: "without it the kernel takes each packet up by itself, and a processor is full at a few Gbit/s",
    },
    Offload {
        shown: "UDP GRO when forwarding",
        name: "rx-udp-gro-forwarding",
        needed: false,
        why: "for hosts that forward; `recv` has datagrams joined without it, and it joins those of programs that did not ask",
    },
    Offload {
        shown: "LRO",
        name: "rx-lro",
        needed: false,
        why: "it joins packets so that their lengths are lost: GRO does better, and captures show what came",
    },
];

#[cfg(test)]
mod tests;

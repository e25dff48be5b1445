//! Settings of a NIC (`ethtool -i`, `-g`, `-c`, `-k`): driver, rings, interrupt coalescing, offloads. Read only; none of it needs root.

use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use super::nic::{WORD, ask, names, request, set_word, text, word};

// From linux/ethtool.h; libc lacks them.
/// Command for the driver (`struct ethtool_drvinfo`).
const ETHTOOL_GDRVINFO: u32 = 0x03;
/// Command for interrupt coalescing (`struct ethtool_coalesce`).
const ETHTOOL_GCOALESCE: u32 = 0x0e;
/// Command for the rings (`struct ethtool_ringparam`).
const ETHTOOL_GRINGPARAM: u32 = 0x10;
/// Command for the offloads: this number, the number of blocks that fit, [`BLOCK`] words for each 32 offloads.
const ETHTOOL_GFEATURES: u32 = 0x3a;
/// String set with the names of offloads (`ETH_SS_FEATURES`).
const FEATURES: u32 = 4;
/// Words per block of offloads: changeable, requested, on, never changed.
const BLOCK: usize = 4;
/// Maximum number of offloads; no kernel has more, and it writes no more blocks than fit.
const MAX_FEATURES: usize = 1024;

/// Length in bytes of each text in `struct ethtool_drvinfo`, after its first word.
const TEXT: usize = 32;
/// Length of `struct ethtool_drvinfo` in bytes.
const DRIVER_INFO: usize = 196;
/// Lengths of `struct ethtool_ringparam` and `struct ethtool_coalesce` in words.
const RING_WORDS: usize = 9;
const COALESCE_WORDS: usize = 23;
/// Spare room after each request, in case a kernel's structure is longer than known here.
const SPARE: usize = 256;

/// A network interface of the namespace in which it was opened.
#[derive(Debug)]
pub struct Card {
    socket: OwnedFd,
    name: String,
}

/// The driver of a NIC. A text is empty if the driver does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Name of the driver.
    pub name: String,
    /// Its version; for a driver of the kernel itself, the kernel's.
    pub version: String,
    /// Version of the NIC's firmware.
    pub firmware: String,
    /// Address of the NIC on its bus.
    pub bus: String,
}

/// Lengths of a NIC's rings, in packets (descriptors).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// Receive ring.
    pub rx: u32,
    /// Maximum length of the receive ring.
    pub rx_max: u32,
    /// Transmit ring.
    pub tx: u32,
    /// Maximum length of the transmit ring.
    pub tx_max: u32,
}

/// Interrupt coalescing of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Maximum delay after a packet was received, in microseconds.
    pub rx_usecs: u32,
    /// Number of received packets that cause an interrupt; 0: no limit.
    pub rx_frames: u32,
    /// Maximum delay after a packet was sent, in microseconds.
    pub tx_usecs: u32,
    /// Number of sent packets that cause an interrupt; 0: no limit.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive settings itself.
    pub adaptive_rx: bool,
    /// Whether the driver adapts the transmit settings itself.
    pub adaptive_tx: bool,
}

/// An offload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name for it, e.g. `tx-udp-segmentation`.
    pub name: String,
    /// Whether it is on.
    pub on: bool,
    /// Whether it can be changed.
    pub changeable: bool,
}

impl Card {
    /// Prepares requests about the interface `name`, whether or not it exists.
    ///
    /// # Errors
    /// Returns an error if no socket can be opened.
    pub fn open(name: &str) -> io::Result<Card> {
        // Any socket of the namespace will do.
        Ok(Card {
            socket: UdpSocket::bind("127.0.0.1:0")?.into(),
            name: name.to_owned(),
        })
    }

    /// Returns the driver.
    ///
    /// # Errors
    /// Returns the kernel's error: [`io::ErrorKind::Unsupported`] if the driver does not report it.
    pub fn driver(&self) -> io::Result<Driver> {
        Ok(parse_driver(&self.asked(ETHTOOL_GDRVINFO, DRIVER_INFO)?))
    }

    /// Returns the ring lengths.
    ///
    /// # Errors
    /// The same as [`Card::driver`].
    pub fn rings(&self) -> io::Result<Rings> {
        Ok(parse_rings(
            &self.asked(ETHTOOL_GRINGPARAM, RING_WORDS * WORD)?,
        ))
    }

    /// Returns the interrupt coalescing.
    ///
    /// # Errors
    /// The same as [`Card::driver`].
    pub fn coalescing(&self) -> io::Result<Coalescing> {
        let answer = self.asked(ETHTOOL_GCOALESCE, COALESCE_WORDS * WORD)?;
        Ok(parse_coalescing(&answer))
    }

    /// Returns the offloads, by the kernel's names.
    ///
    /// # Errors
    /// The same as [`Card::driver`].
    pub fn features(&self) -> io::Result<Vec<Feature>> {
        let names = names(&self.socket, &self.name, FEATURES)?;
        let blocks = names.len().min(MAX_FEATURES).div_ceil(32);
        let mut answer = request(ETHTOOL_GFEATURES, (2 + BLOCK * blocks) * WORD + SPARE);
        set_word(&mut answer, 1, blocks as u32);
        ask(&self.socket, &self.name, &mut answer)?;
        Ok(parse_features(&names, &answer))
    }

    fn asked(&self, command: u32, length: usize) -> io::Result<Vec<u8>> {
        let mut answer = request(command, length + SPARE);
        ask(&self.socket, &self.name, &mut answer)?;
        Ok(answer)
    }
}

fn parse_driver(answer: &[u8]) -> Driver {
    let mut texts = answer.get(WORD..).unwrap_or_default().chunks(TEXT);
    let mut next = || text(texts.next().unwrap_or_default());
    Driver {
        name: next(),
        version: next(),
        firmware: next(),
        bus: next(),
    }
}

fn parse_rings(answer: &[u8]) -> Rings {
    Rings {
        rx_max: word(answer, 1),
        tx_max: word(answer, 4),
        rx: word(answer, 5),
        tx: word(answer, 8),
    }
}

fn parse_coalescing(answer: &[u8]) -> Coalescing {
    Coalescing {
        rx_usecs: word(answer, 1),
        rx_frames: word(answer, 2),
        tx_usecs: word(answer, 5),
        tx_frames: word(answer, 6),
        adaptive_rx: word(answer, 10) != 0,
        adaptive_tx: word(answer, 11) != 0,
    }
}

/// Returns which of the named offloads are on. An empty name marks an unused number.
fn parse_features(names: &[String], answer: &[u8]) -> Vec<Feature> {
    let bit = |number: usize, what: usize| {
        let block = number / 32;
        word(answer, 2 + block * BLOCK + what) >> (number % 32) & 1 == 1
    };
    let named = names.iter().take(MAX_FEATURES).enumerate();
    named
        .filter(|(_, name)| !name.is_empty())
        .map(|(number, name)| Feature {
            name: name.clone(),
            on: bit(number, 2),
            changeable: bit(number, 0) && !bit(number, 3),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(values: &[u32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect()
    }

    #[test]
    fn answers_are_read_as_the_kernel_lays_them_out() {
        let rings = parse_rings(&words(&[0x10, 4096, 1, 2, 2048, 512, 3, 4, 256]));
        let expected = Rings {
            rx: 512,
            rx_max: 4096,
            tx: 256,
            tx_max: 2048,
        };
        assert_eq!(rings, expected);
        let coalescing = parse_coalescing(&words(&[0x0e, 8, 128, 0, 0, 16, 32, 0, 0, 0, 1, 0, 9]));
        let expected = Coalescing {
            rx_usecs: 8,
            rx_frames: 128,
            tx_usecs: 16,
            tx_frames: 32,
            adaptive_rx: true,
            adaptive_tx: false,
        };
        assert_eq!(coalescing, expected);
        let mut info = words(&[3]);
        for said in ["mlx5_core", "6.8.0", "16.35.2000", "0000:3b:00.0"] {
            let mut field = said.as_bytes().to_vec();
            field.resize(TEXT, 0);
            info.extend(field);
        }
        let driver = parse_driver(&info);
        assert_eq!(driver.name, "mlx5_core");
        assert_eq!(
            (driver.firmware.as_str(), driver.bus.as_str()),
            ("16.35.2000", "0000:3b:00.0")
        );
    }

    #[test]
    fn offloads_are_bits_of_their_numbers() {
        let mut names = vec![String::new(); 40];
        names[1] = "tx-one".into();
        names[33] = "rx-two".into();
        names[34] = "rx-fixed".into();
        // 40 names, 2 blocks: changeable, requested, on, never changed.
        let answer = words(&[0x3a, 2, 2, 2, 2, 0, 0b110, 0, 0b100, 0b100]);
        let found = parse_features(&names, &answer);
        let short: Vec<(&str, bool, bool)> = found
            .iter()
            .map(|feature| (feature.name.as_str(), feature.on, feature.changeable))
            .collect();
        assert_eq!(
            short,
            [
                ("tx-one", true, true),
                ("rx-two", false, true),
                ("rx-fixed", true, false)
            ]
        );
    }

    #[test]
    fn what_ethtool_prints_is_found() {
        if !evlbi_testkit::need(&["ethtool"]) {
            return;
        }
        let mut compared = 0;
        for interface in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let name = interface.file_name().into_string().unwrap();
            let output = evlbi_testkit::command("ethtool")
                .args(["-k", &name])
                .output()
                .unwrap();
            let card = Card::open(&name).unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            for feature in card.features().unwrap() {
                let state = if feature.on { "on" } else { "off" };
                let short = match feature.name.as_str() {
                    "tx-generic-segmentation" => "generic-segmentation-offload",
                    "rx-gro" => "generic-receive-offload",
                    "rx-lro" => "large-receive-offload",
                    other => other,
                };
                let expected = format!("{short}: {state}");
                // ethtool has other names for some.
                if printed.contains(&format!("{short}: ")) {
                    assert!(printed.contains(&expected), "{name} {expected}: {printed}");
                    compared += 1;
                }
            }
        }
        // Loopback alone has this many.
        assert!(compared >= 10, "{compared}");
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        for name in ["nothere", "a name that is far too long for any interface"] {
            let card = Card::open(name).unwrap();
            assert!(card.driver().is_err());
            assert!(card.rings().is_err());
            assert!(card.coalescing().is_err());
            assert!(card.features().is_err());
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(answer: Vec<u8>, names in proptest::collection::vec("[a-z]{0,3}", 0..70)) {
            parse_driver(&answer);
            parse_rings(&answer);
            parse_coalescing(&answer);
            parse_features(&names, &answer);
        }
    }
}

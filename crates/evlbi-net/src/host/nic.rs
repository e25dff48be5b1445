//! A NIC's own counters (`ethtool -S`), under the names of its driver.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cpu;

// From linux/ethtool.h; libc lacks them.
/// Command for the values of the counters: this number, their count, 64 bits each.
const ETHTOOL_GSTATS: u32 = 0x1d;
/// Command for their names: this number, the string set, their count, [`NAME`] bytes each.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
/// Command for the number of names: this number, nothing, a bit mask of sets in 64 bits, the counts.
const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// String set with the names of counters (`ETH_SS_STATS`).
const COUNTERS: u32 = 1;
/// Length of a name (`ETH_GSTRING_LEN`).
const NAME: usize = 32;

/// Maximum number of counters of a NIC. The kernel writes as many as exist at that moment, so there is always room for this many;
/// memory that is not written to costs nothing.
const MAX: usize = 1 << 16;
pub(super) const WORD: usize = size_of::<u32>();

/// Driver names of counters of packets that the NIC dropped because the host did not fetch them in time.
const NOT_FETCHED: [&str; 6] = [
    "rx_out_of_buffer",
    "rx_no_buffer_count",
    "rx_no_dma_resources",
    "rx_missed_errors",
    "rx_discards_phy",
    "rx_drops",
];

/// Returns whether a NIC's counter of this name counts packets that it dropped because the host did not fetch them in time.
pub fn is_not_fetched(name: &str) -> bool {
    NOT_FETCHED.contains(&name)
}

/// Returns the non-zero counters of the interfaces in the current thread's namespace whose drivers have any.
pub fn counters<'a>(
    interfaces: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, BTreeMap<String, u64>> {
    // Any socket of the namespace will do.
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0").map(OwnedFd::from) else {
        return BTreeMap::new();
    };
    interfaces
        .filter_map(|name| Some((name.clone(), read(&socket, name).ok()?)))
        .filter(|(_, counted)| !counted.is_empty())
        .collect()
}

fn read(socket: &OwnedFd, interface: &str) -> io::Result<BTreeMap<String, u64>> {
    let names = names(socket, interface, COUNTERS)?;
    let count = names.len();
    if count == 0 {
        return Ok(BTreeMap::new());
    }
    let mut values = request(ETHTOOL_GSTATS, 2 * WORD + MAX * size_of::<u64>());
    set_word(&mut values, 1, count as u32);
    ask(socket, interface, &mut values)?;
    let values = values[2 * WORD..].chunks_exact(size_of::<u64>());
    let each = names.into_iter().zip(values);
    Ok(each
        .filter_map(|(name, value)| {
            let value = u64::from_ne_bytes(*value.first_chunk()?);
            (value > 0).then_some((name, value))
        })
        .collect())
}

/// Returns the names of a string set, in the NIC's order; none if the NIC lacks the set.
pub(super) fn names(socket: &OwnedFd, interface: &str, set: u32) -> io::Result<Vec<String>> {
    let mut sets = request(ETHTOOL_GSSET_INFO, 4 * WORD + WORD);
    sets[2 * WORD..4 * WORD].copy_from_slice(&(1u64 << set).to_ne_bytes());
    ask(socket, interface, &mut sets)?;
    // A set that the NIC lacks is removed from the mask, and no count follows.
    let count = word(&sets, 4) as usize;
    if count == 0 || count > MAX / 2 {
        return Ok(Vec::new());
    }
    let mut names = request(ETHTOOL_GSTRINGS, 3 * WORD + MAX * NAME);
    set_word(&mut names, 1, set);
    ask(socket, interface, &mut names)?;
    let names = names[3 * WORD..].chunks_exact(NAME).take(count);
    Ok(names.map(text).collect())
}

/// Returns the text before the first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let said = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(said).into_owned()
}

pub(super) fn request(command: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    set_word(&mut bytes, 0, command);
    bytes
}

pub(super) fn word(bytes: &[u8], number: usize) -> u32 {
    let bytes = bytes.get(number * WORD..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

pub(super) fn set_word(bytes: &mut [u8], number: usize, value: u32) {
    bytes[number * WORD..(number + 1) * WORD].copy_from_slice(&value.to_ne_bytes());
}

/// Creates a request to the kernel about an interface.
pub(crate) fn about(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a request is plain data for which all zeroes are valid.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= asked.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in asked.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as c_char;
    }
    Ok(asked)
}

/// Makes the driver answer in `request`, which must have room for the answer.
pub(super) fn ask(socket: &OwnedFd, interface: &str, request: &mut [u8]) -> io::Result<()> {
    let mut asked = about(interface)?;
    asked.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the structure lives through the call; it points to `request`, exclusively borrowed, which has room for more than any
    // NIC's answer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut asked) };
    cpu::succeed(result).map(drop)
}

#[cfg(test)]
mod tests {
    use evlbi_testkit::name;
    use evlbi_testkit::netns::{Wire, pair_with};

    use super::*;

    #[test]
    fn what_ethtool_prints_is_read() {
        let Some(pair) = pair_with(&["ethtool"], &Wire::default(), name!()) else {
            return;
        };
        let name = pair.near.device.to_owned();
        let printed = pair.near.namespace.command("ethtool", &["-S", &name]);
        let printed = printed.unwrap();
        let printed: Vec<&str> = printed
            .lines()
            .filter_map(|line| line.trim().rsplit_once(": "))
            .map(|(name, _)| name)
            .collect();
        let read = || counters(std::iter::once(&name));
        let counted = pair.near.namespace.run(read).unwrap();
        let counted: Vec<&str> = counted[&name].keys().map(String::as_str).collect();
        // At least the index of the peer device.
        assert!(!counted.is_empty());
        for name in counted {
            assert!(printed.contains(&name), "{name}: {printed:?}");
        }
        let none = ["lo", "no interface has such a name"].map(str::to_owned);
        assert!(counters(none.iter()).is_empty());
    }
}

//! Which network interfaces there are, which are up, and how fast they are.

use std::collections::HashSet;

use evlbi_core::rate::BitRate;

use super::DoctorError;
use super::root::Root;

/// The folder that has one for each interface.
pub const CARDS: &str = "sys/class/net";
/// One gigabit a second.
pub const GIGABIT: BitRate = BitRate::new(1_000_000_000).unwrap();
/// A flag of an interface: it is up (`IFF_UP`).
const UP: i64 = 1;
/// The kind of an interface that is a loopback (`ARPHRD_LOOPBACK`).
const LOOPBACK: i64 = 772;

/// The interfaces to look at: those that were asked for, or all that are up except loopback.
pub fn chosen(root: &Root, asked: &[String]) -> Result<Vec<String>, DoctorError> {
    let there = interfaces(root);
    if let Some(name) = asked.iter().find(|name| !there.contains(name)) {
        return Err(DoctorError::NoInterface {
            name: name.clone(),
            there: there.join(", "),
        });
    }
    if asked.is_empty() {
        let up = there.into_iter().filter(|name| is_candidate(root, name));
        return Ok(up.collect());
    }
    let mut seen = HashSet::new();
    let once = asked.iter().filter(|name| seen.insert(*name));
    Ok(once.cloned().collect())
}

/// The fastest of the `chosen` cards that are up.
pub fn fastest(root: &Root, chosen: &[String]) -> Option<(String, BitRate)> {
    let up = chosen.iter().filter(|name| is_candidate(root, name));
    let speeds = up.filter_map(|name| {
        let speed = speed(root, name).ok()?;
        (!is_virtual(root, name)).then(|| (name.clone(), speed))
    });
    // Of several as fast the first.
    speeds.reduce(|fastest, next| if next.1 > fastest.1 { next } else { fastest })
}

fn interfaces(root: &Root) -> Vec<String> {
    let mut names = root.names(CARDS).unwrap_or_default();
    // Files of the bonding driver lie there too.
    names.retain(|name| root.has(&format!("{CARDS}/{name}/flags")));
    names
}

/// Up, and no loopback.
fn is_candidate(root: &Root, name: &str) -> bool {
    let kind = root.number(&format!("{CARDS}/{name}/type"));
    is_up(root, name) && kind != Ok(LOOPBACK)
}

/// Whether it is switched on and has a link.
pub fn is_up(root: &Root, name: &str) -> bool {
    let flags = root.read(&format!("{CARDS}/{name}/flags"));
    flags.is_ok_and(|text| {
        let flags = i64::from_str_radix(text.trim_start_matches("0x"), 16);
        flags.is_ok_and(|flags| flags & UP == UP)
    }) && root.number(&format!("{CARDS}/{name}/carrier")) == Ok(1)
}

/// Whether the interface is made by the kernel with no card beneath it that is known here; those that join cards, or divide
/// one, count as cards.
pub fn is_virtual(root: &Root, name: &str) -> bool {
    let kind = root
        .read(&format!("{CARDS}/{name}/uevent"))
        .unwrap_or_default();
    let divides = kind
        .lines()
        .any(|line| matches!(line, "DEVTYPE=bond" | "DEVTYPE=vlan" | "DEVTYPE=team"));
    !root.has(&format!("{CARDS}/{name}/device")) && !divides
}

/// What a card can carry.
pub fn speed(root: &Root, name: &str) -> Result<BitRate, String> {
    let told = root.number(&format!("{CARDS}/{name}/speed"));
    let megabits = told.ok().and_then(|speed| u64::try_from(speed).ok());
    megabits
        // What drivers say that do not know is -1, some as 32 bits.
        .filter(|megabits| *megabits < u64::from(u32::MAX))
        .and_then(|megabits| BitRate::new(megabits * 1_000_000))
        .ok_or_else(|| "the driver tells no speed".to_owned())
}

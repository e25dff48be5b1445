//! The network interfaces of this host: which exist, which are up, and their speeds.

use std::collections::HashSet;

use evlbi_core::rate::BitRate;

use super::DoctorError;
use super::root::Root;

/// Directory with one subdirectory per interface.
pub const CARDS: &str = "sys/class/net";
/// One gigabit a second.
pub const GIGABIT: BitRate = BitRate::new(1_000_000_000).unwrap();
/// Flag of an interface that is up (`IFF_UP`).
const UP: i64 = 1;
/// Type of a loopback interface (`ARPHRD_LOOPBACK`).
const LOOPBACK: i64 = 772;

/// Returns the interfaces to check: the requested ones, or all that are up except loopback.
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

/// Returns the fastest of the `chosen` NICs that are up.
pub fn fastest(root: &Root, chosen: &[String]) -> Option<(String, BitRate)> {
    let up = chosen.iter().filter(|name| is_candidate(root, name));
    let speeds = up.filter_map(|name| {
        let speed = speed(root, name).ok()?;
        (!is_virtual(root, name)).then(|| (name.clone(), speed))
    });
    // Of several equally fast ones, the first.
    speeds.reduce(|fastest, next| if next.1 > fastest.1 { next } else { fastest })
}

fn interfaces(root: &Root) -> Vec<String> {
    let mut names = root.names(CARDS).unwrap_or_default();
    // The bonding driver has files there too.
    names.retain(|name| root.has(&format!("{CARDS}/{name}/flags")));
    names
}

/// Returns whether an interface is up and not loopback.
fn is_candidate(root: &Root, name: &str) -> bool {
    let kind = root.number(&format!("{CARDS}/{name}/type"));
    is_up(root, name) && kind != Ok(LOOPBACK)
}

/// Returns whether an interface is enabled and has a link.
pub fn is_up(root: &Root, name: &str) -> bool {
    let flags = root.read(&format!("{CARDS}/{name}/flags"));
    flags.is_ok_and(|text| {
        let flags = i64::from_str_radix(text.trim_start_matches("0x"), 16);
        flags.is_ok_and(|flags| flags & UP == UP)
    }) && root.number(&format!("{CARDS}/{name}/carrier")) == Ok(1)
}

/// Returns whether the kernel emulates the interface, without a NIC below it that is known here. Interfaces that join NICs (bond, team)
/// or divide one (vlan) count as NICs.
pub fn is_virtual(root: &Root, name: &str) -> bool {
    let kind = root
        .read(&format!("{CARDS}/{name}/uevent"))
        .unwrap_or_default();
    let divides = kind
        .lines()
        .any(|line| matches!(line, "DEVTYPE=bond" | "DEVTYPE=vlan" | "DEVTYPE=team"));
    !root.has(&format!("{CARDS}/{name}/device")) && !divides
}

/// Returns the speed of a NIC.
pub fn speed(root: &Root, name: &str) -> Result<BitRate, String> {
    let told = root.number(&format!("{CARDS}/{name}/speed"));
    let megabits = told.ok().and_then(|speed| u64::try_from(speed).ok());
    megabits
        // Drivers that do not know it report -1, some as 32 bits.
        .filter(|megabits| *megabits < u64::from(u32::MAX))
        .and_then(|megabits| BitRate::new(megabits * 1_000_000))
        .ok_or_else(|| "speed not reported by the driver".to_owned())
}

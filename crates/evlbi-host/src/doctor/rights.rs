//! Privileges of this program: each enables a feature, the rest works without.

use super::item::{Found, Item, good, note};
use super::root::Root;

const GROUP: &str = "kernel";

/// Capabilities: name, number in linux/capability.h, and what does not work without it.
const RIGHTS: [(&str, u32, &str); 3] = [
    (
        "CAP_NET_ADMIN",
        12,
        "without it socket buffers are limited to net.core.rmem_max and wmem_max, and `evlbi path` needs user namespaces",
    ),
    (
        "CAP_NET_RAW",
        13,
        "without it `mirror://` and tcpdump (for `evlbi analyse`) cannot capture packets",
    ),
    (
        "CAP_SYS_NICE",
        23,
        "without it, or a limit on real-time priority (ulimit -r), --priority is refused and other programs delay packets",
    ),
];

pub fn items(root: &Root) -> Vec<Item> {
    let rights = RIGHTS
        .iter()
        .map(|(name, number, why)| Item::new(GROUP, name, why, right(root, *number)));
    let locked = Item::new(
        GROUP,
        "locked memory (ulimit -l)",
        "evlbi locks none; other programs that do (AF_XDP, io_uring, DPDK) fail if there is too little",
        locked_memory(root),
    );
    rights.chain([locked]).collect()
}

fn right(root: &Root, number: u32) -> Found {
    let rights = root.labelled("proc/self/status", "CapEff:")?;
    let rights = u64::from_str_radix(&rights, 16).map_err(|_| "/proc/self/status has no value")?;
    Ok(match rights >> number & 1 {
        1 => good("granted"),
        _ => note("not granted"),
    })
}

fn locked_memory(root: &Root) -> Found {
    match root
        .labelled("proc/self/limits", "Max locked memory")?
        .as_str()
    {
        "" => Err("/proc/self/limits has no value".to_owned()),
        "unlimited" => Ok(good("no limit")),
        bytes => match bytes.parse() {
            Ok(bytes) => Ok(note(evlbi_wire::units::show_size(bytes))),
            Err(_) => Err("/proc/self/limits has an invalid value".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::root::tree::Tree;
    use super::super::tests::named;
    use super::*;

    #[test]
    fn rights_are_bits_of_a_number() {
        let tree = Tree::new(&[
            ("proc/self/status", "Name:\tx\nCapEff:\t0000000000801000\n"),
            (
                "proc/self/limits",
                "Limit      Soft Limit  Hard Limit  Units\nMax locked memory         8388608   8388608  bytes",
            ),
        ]);
        let items = items(&tree.root());
        assert_eq!(named(&items, "CAP_NET_ADMIN").verdict, Verdict::Good);
        assert_eq!(named(&items, "CAP_NET_RAW").verdict, Verdict::Note);
        assert_eq!(named(&items, "CAP_SYS_NICE").verdict, Verdict::Good);
        assert_eq!(named(&items, "locked memory (ulimit -l)").found, "8 MiB");
    }

    #[test]
    fn without_proc_nothing_is_known() {
        let tree = Tree::new(&[]);
        let items = items(&tree.root());
        assert!(items.iter().all(|item| item.verdict == Verdict::Unknown));
    }
}

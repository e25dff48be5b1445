//! What this program may do: where a right is missing, something does not work. No right is needed for the rest.

use super::item::{Check, Item};
use super::root::Root;

const GROUP: &str = "kernel";

/// Rights by their numbers in linux/capability.h, and what does not work without.
const RIGHTS: [(&str, u32, &str); 3] = [
    (
        "CAP_NET_ADMIN",
        12,
        "without it no socket gets more than net.core.rmem_max and wmem_max, and `evlbi path` needs user namespaces",
    ),
    (
        "CAP_NET_RAW",
        13,
        "without it no captures can be taken for `evlbi analyse` (tcpdump)",
    ),
    (
        "CAP_SYS_NICE",
        23,
        "without it, or a limit on real-time priority (ulimit -r), --priority is refused, and other programs delay packets",
    ),
];

pub fn items(root: &Root) -> Vec<Item> {
    let mut items: Vec<Item> = RIGHTS
        .map(|(name, number, why)| right(root, name, number, why))
        .into();
    items.push(locked_memory(root));
    items
}

fn right(root: &Root, name: &str, number: u32, why: &str) -> Item {
    let check = Check::new(GROUP, name, why);
    let rights = root.read("proc/self/status").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let rights = line.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
        rights.ok_or_else(|| "/proc/self/status does not say".to_owned())
    });
    match rights {
        Ok(rights) if rights >> number & 1 == 1 => check.good("this program has it"),
        Ok(_) => check.note("this program has it not"),
        Err(reason) => check.unknown(reason),
    }
}

fn locked_memory(root: &Root) -> Item {
    let check = Check::new(
        GROUP,
        "locked memory (ulimit -l)",
        "evlbi locks none; programs beside it that do (AF_XDP, io_uring, DPDK) fail when there is too little",
    );
    let limit = root.read("proc/self/limits").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"));
        let soft = line.and_then(|line| line.split_whitespace().next().map(str::to_owned));
        soft.ok_or_else(|| "/proc/self/limits does not say".to_owned())
    });
    match limit.as_deref() {
        Ok("unlimited") => check.good("no limit"),
        Ok(bytes) => match bytes.parse() {
            Ok(bytes) => check.note(crate::units::show_size(bytes)),
            Err(_) => check.unknown("/proc/self/limits says no number"),
        },
        Err(reason) => check.unknown(reason),
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

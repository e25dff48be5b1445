//! NICs in a simulated file tree.

use super::super::interfaces::{chosen, fastest};
use super::super::root::tree::Tree;
use super::super::tests::{aim, named};
use super::*;

fn card(speed: &str) -> Tree {
    Tree::new(&[
        ("sys/class/net/eth1/flags", "0x1003"),
        ("sys/class/net/eth1/type", "1"),
        ("sys/class/net/eth1/carrier", "1"),
        ("sys/class/net/eth1/speed", speed),
        ("sys/class/net/eth1/duplex", "full"),
        ("sys/class/net/eth1/mtu", "1500"),
        ("sys/class/net/eth1/tx_queue_len", "1000"),
        ("sys/class/net/eth1/device/vendor", "0x15b3"),
        ("sys/class/net/eth1/statistics/rx_dropped", "0"),
        ("sys/class/net/eth1/statistics/tx_dropped", "1234"),
        ("sys/class/net/lo/flags", "0x9"),
        ("sys/class/net/lo/type", "772"),
        ("sys/class/net/lo/carrier", "1"),
        ("sys/class/net/eth2/flags", "0x1003"),
        ("sys/class/net/eth2/type", "1"),
        ("sys/class/net/eth2/carrier", "0"),
        ("sys/class/net/bonding_masters", ""),
    ])
}

fn feature(name: &str, on: bool, changeable: bool) -> Feature {
    Feature {
        name: name.to_owned(),
        on,
        changeable,
    }
}

fn said() -> Reported {
    Reported {
        driver: Ok(Driver {
            name: "mlx5_core".into(),
            version: "6.8.0".into(),
            firmware: "16.35.2000".into(),
            bus: "0000:3b:00.0".into(),
        }),
        rings: Ok(Rings {
            rx: 1024,
            rx_max: 8192,
            tx: 1024,
            tx_max: 8192,
        }),
        coalescing: Ok(Coalescing {
            rx_usecs: 250,
            ..Coalescing::default()
        }),
        features: Ok(vec![
            feature("tx-generic-segmentation", true, true),
            feature("tx-udp-segmentation", false, false),
            feature("rx-gro", false, true),
            feature("rx-udp-gro-forwarding", false, true),
            feature("rx-lro", true, true),
        ]),
        not_fetched: vec![("rx_out_of_buffer".into(), 7)],
    }
}

fn silent() -> Reported {
    let silent = || "not reported by the driver".to_owned();
    Reported {
        driver: Err(silent()),
        rings: Err(silent()),
        coalescing: Err(silent()),
        features: Err(silent()),
        not_fetched: Vec::new(),
    }
}

#[test]
fn an_untuned_nic_gets_commands_that_tune_it() {
    let items = items(&card("10000").root(), "eth1", &said(), &aim());
    let commands = [
        ("txqueuelen", "ip link set dev eth1 txqueuelen 10000"),
        ("receive ring", "ethtool -G eth1 rx 8192"),
        ("GRO", "ethtool -K eth1 rx-gro on"),
    ];
    for (name, command) in commands {
        let item = named(&items, name);
        assert_eq!(item.verdict, Verdict::Change, "{item:?}");
        assert_eq!(item.command.as_deref(), Some(command));
        assert_eq!(item.group, "card eth1");
    }
    // It is unknown here whether the network carries more.
    let mtu = named(&items, "MTU");
    assert_eq!(mtu.verdict, Verdict::Note, "{mtu:?}");
    assert_eq!(
        mtu.command.as_deref(),
        Some("ip link set dev eth1 mtu 9000")
    );
    // 1024 x 12304 bits.
    let why = &named(&items, "receive ring").why;
    assert!(why.contains("in 1260 us at 10Gbit/s"), "{why}");
    for name in [
        "interrupt coalescing",
        "LRO",
        "dropped so far",
        "UDP segmentation in the card",
    ] {
        assert_eq!(named(&items, name).verdict, Verdict::Note, "{name}");
    }
    assert_eq!(
        named(&items, "dropped so far").found,
        "tx_dropped 1,234, rx_out_of_buffer 7"
    );
    for name in [
        "speed",
        "duplex",
        "GSO",
        "UDP GRO when forwarding",
        "driver",
    ] {
        assert_eq!(named(&items, name).verdict, Verdict::Good, "{name}");
    }
    assert_eq!(named(&items, "TSO").verdict, Verdict::Unknown);
}

#[test]
fn a_slow_nic_is_checked_for_its_own_speed() {
    let items = items(&card("1000").root(), "eth1", &silent(), &aim());
    assert_eq!(named(&items, "txqueuelen").verdict, Verdict::Good);
    let speed = named(&items, "speed");
    assert_eq!(
        (speed.found.as_str(), speed.verdict),
        ("1Gbit/s", Verdict::Note)
    );
    for name in [
        "driver",
        "receive ring",
        "send ring",
        "interrupt coalescing",
        "GSO",
    ] {
        let item = named(&items, name);
        assert_eq!(item.found, "unknown: not reported by the driver");
        assert_eq!(item.verdict, Verdict::Unknown);
    }
}

#[test]
fn a_driver_that_does_not_know_its_speed_is_not_a_slow_nic() {
    for unknown in ["-1", "4294967295", "0", ""] {
        let tree = card(unknown);
        let items = items(&tree.root(), "eth1", &silent(), &aim());
        assert_eq!(
            named(&items, "speed").verdict,
            Verdict::Unknown,
            "{unknown}"
        );
        assert_eq!(fastest(&tree.root(), &["eth1".to_owned()]), None);
    }
}

#[test]
fn a_virtual_interface_is_noted_only() {
    let tree = card("10000");
    std::fs::remove_dir_all(tree.root().0.join("sys/class/net/eth1/device")).unwrap();
    let items_of = || items(&tree.root(), "eth1", &said(), &aim());
    assert!(
        items_of()
            .iter()
            .all(|item| item.verdict != Verdict::Change)
    );
    assert_eq!(fastest(&tree.root(), &["eth1".to_owned()]), None);
    tree.write("sys/class/net/eth1/uevent", "DEVTYPE=bond\nINTERFACE=eth1");
    assert_eq!(named(&items_of(), "txqueuelen").verdict, Verdict::Change);
}

#[test]
fn interfaces_that_are_up_are_checked() {
    let tree = card("25000");
    let root = tree.root();
    assert_eq!(chosen(&root, &[]).unwrap(), ["eth1"]);
    let twice = ["eth2", "eth2", "lo"].map(str::to_owned);
    assert_eq!(chosen(&root, &twice).unwrap(), ["eth2", "lo"]);
    let error = chosen(&root, &["nothere".to_owned()]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no network interface `nothere`; available: eth1, eth2, lo"
    );
    let (name, speed) = fastest(&root, &chosen(&root, &[]).unwrap()).unwrap();
    assert_eq!((name.as_str(), speed.get()), ("eth1", 25_000_000_000));
}

#[test]
fn a_name_cannot_become_a_command() {
    let tree = Tree::new(&[
        ("sys/class/net/a;reboot/mtu", "1500"),
        ("sys/class/net/a;reboot/device/vendor", "1"),
    ]);
    let items = items(&tree.root(), "a;reboot", &silent(), &aim());
    assert_eq!(
        named(&items, "MTU").command.as_deref(),
        Some("ip link set dev 'a;reboot' mtu 9000")
    );
}

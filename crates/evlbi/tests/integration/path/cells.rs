//! Effects of cells on packets: the path's log, the counts of the hosts at both ends, and the same cells in virtual time agree on each
//! packet.
//!
//! The log has each packet as it arrives at a first cell ([`tap`]), with its time. These times determine everything that cells do to
//! packets, even where it depends on rates and delays. So a stalled host changes what happens, but the comparison still holds.

use std::collections::BTreeMap;

use evlbi_core::path::{
    ETHERNET_OVERHEAD, Identity, Law, Loss, Network, Piece, Shape, Times, Train, Until,
};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_testkit::relay::Passed;
use evlbi_testkit::{buffer, need, until, until_some};
use serde_json::Value;

use crate::path::{FORWARD, HOSTS, Room, Up, cell};
use crate::result::number;

/// Number of a stream's first datagram. Packets of the kernels have other numbers.
pub const FIRST: u64 = 1000;
/// Length of the packets that `Up::send` sends, and of their headers on an Ethernet, without a tag and with one.
const PACKET: u32 = 1476;
/// Approximate length of the kernels' own packets.
const STRANGE: u32 = 96;
const ETHERNET: u32 = 14;
const TAGGED: u32 = 18;

/// A cell that only logs each packet that passes: delayed by no time.
pub fn tap(name: &str) -> String {
    format!("{{ name = \"{name}\", reorder = \"100%\", by = \"0s\" }}")
}

/// Datagrams of a stream that a receiver's buffer holds, however long it stalls, even if some are duplicated.
pub fn fitting() -> u64 {
    let holds = buffer::holds(1448) as u64;
    let fitting = holds * 3 / 4;
    assert!(fitting >= 50, "a receiver's buffer holds {holds} datagrams");
    fitting
}

/// An entry of a path's log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    cell: String,
    packet: u64,
    fate: String,
    at: Nanos,
    identity: u64,
}

/// The entries of a direction; those of a cell in their order.
pub fn read(log: &str, direction: &str) -> Vec<Entry> {
    // A path that is up may be about to write the last line.
    let whole = &log[..log.rfind('\n').map_or(0, |end| end + 1)];
    let lines = whole.lines().skip(1).map(|line| line.split(',').collect());
    lines
        .filter(|fields: &Vec<&str>| fields[2] == direction)
        .map(|fields| Entry {
            cell: fields[3].to_owned(),
            packet: fields[4].parse().unwrap(),
            fate: fields[5].to_owned(),
            at: Nanos(fields[0].replace('.', "").parse().unwrap()),
            identity: fields[6].parse().unwrap(),
        })
        .collect()
}

/// Numbers of a stream of `count` datagrams as they passed a tap.
pub fn stream(log: &[Entry], tap: &str, count: u64) -> Vec<u64> {
    numbers(log, tap, FIRST..FIRST + count)
}

pub fn numbers(log: &[Entry], tap: &str, range: std::ops::Range<u64>) -> Vec<u64> {
    let entries = log.iter().filter(|entry| entry.cell == tap);
    let numbers = entries.map(|entry| entry.identity);
    numbers.filter(|number| range.contains(number)).collect()
}

impl Up<'_> {
    /// Makes the kernels send nothing of their own from now on: they send IPv6 packets by default, and nothing else.
    pub fn silence_kernels(&self) {
        let set = "f=/proc/sys/net/ipv6/conf/all/disable_ipv6; [ ! -e $f ] || echo 1 > $f";
        for host in ["jive", "manchester"] {
            self.sh(host, set);
        }
        self.settled(|_| true);
    }

    /// Returns the complete log: the packets that `has_come` requires have passed the first cell, which is the tap `in`, and all that
    /// arrived there have left the last, the tap `out`, or were dropped.
    pub fn settled(&self, has_come: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        until_some("all packets leave the path", || {
            let state = self.state();
            let cells = state["cells"].as_array().unwrap().iter();
            let cells: Vec<&Value> = cells.filter(|cell| cell["direction"] == FORWARD).collect();
            let sum = |name: &str| cells.iter().map(|cell| number(cell, name)).sum::<u64>();
            let came = number(cell(&state, FORWARD, "in"), "packets");
            let left = number(cell(&state, FORWARD, "out"), "packets");
            let log = read(&self.room.text("log.csv"), FORWARD);
            let logged = ["in", "out"].map(|tap| {
                let entries = log.iter().filter(|entry| entry.cell == tap);
                entries.count() as u64
            });
            let is_all = came + sum("duplicated") == left + sum("dropped");
            let is_all = is_all && logged == [came, left];
            (is_all && has_come(&log)).then_some(log)
        })
    }
}

/// The entries of a stream of `count` datagrams: the lengths of the kernels' own packets before it are unknown.
fn of_stream(log: &[Entry], count: u64) -> Vec<Entry> {
    let entries = log.iter().cloned();
    entries
        .filter(|entry| (FIRST..FIRST + count).contains(&entry.identity))
        .collect()
}

/// A law as a plan gives it: the cell's name, the law, and a later law with its time.
pub type Planned = (&'static str, Law, Option<(Nanos, Law)>);

fn hold_none() -> Law {
    Law::Reorder {
        fraction: 1.0,
        until: Until::Time(Nanos(0)),
    }
}

fn delay(delay: Nanos, jitter: Nanos, shape: Shape, reorders: bool) -> Law {
    Law::Delay {
        delay,
        jitter,
        shape,
        reorders,
    }
}

/// A packet that has no congestion marks.
#[derive(Clone)]
struct Packet(u64);

impl Identity for Packet {
    fn identity(&self, _segment: u16) -> u64 {
        self.0
    }

    fn may_be_marked(&self) -> bool {
        false
    }
}

/// Applies these cells in virtual time to the packets of a log, whose frames have a link-layer header of `header` bytes.
fn in_virtual_time(planned: &[Planned], log: &[Entry], header: u32) -> Vec<Entry> {
    let mut network = Network::new();
    let line = network.line(planned.iter().map(|(_, law, _)| law.clone()), 1);
    for (id, (_, _, change)) in line.cells.iter().zip(planned) {
        network.cell_mut(*id).log(1 << 16);
        if let Some((at, law)) = change {
            network.cell_mut(*id).change_at(*at, law.clone());
        }
    }
    let route = network.route(&[&line]);
    for arrival in log.iter().filter(|entry| entry.cell == "in") {
        let is_strange = arrival.identity < FIRST;
        let train = Train::single(header + if is_strange { STRANGE } else { PACKET });
        let piece = Piece::whole(arrival.at, &train);
        network.offer(route, Packet(arrival.identity), train, piece, header);
    }
    network.advance(Nanos(u64::MAX), |_| {});
    let mut entries = Vec::new();
    for ((name, ..), id) in planned.iter().zip(&line.cells) {
        for logged in network.cell_mut(*id).take_log() {
            let fate = serde_json::to_value(logged.fate).unwrap();
            entries.push(Entry {
                cell: (*name).to_owned(),
                packet: logged.packet,
                fate: fate.as_str().unwrap().to_owned(),
                at: logged.at,
                identity: logged.identity,
            });
        }
    }
    entries
}

/// Asserts that a log matches the expected one, entry by entry.
#[track_caller]
fn assert_same(log: &[Entry], expected: &[Entry]) {
    // The order of cells is arbitrary, but not that of the entries of a cell.
    let of = |entries: &[Entry]| {
        let mut cells = BTreeMap::<String, Vec<Entry>>::new();
        for entry in entries {
            let cell = cells.entry(entry.cell.clone()).or_default();
            cell.push(entry.clone());
        }
        cells
    };
    let (log, expected) = (of(log), of(expected));
    assert_eq!(
        log.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (cell, expected) in &expected {
        let found = &log[cell];
        let differs = found
            .iter()
            .zip(expected)
            .position(|(one, other)| one != other);
        if let Some(place) = differs {
            panic!("{cell}: {:?}, expected {:?}", found[place], expected[place]);
        }
        assert_eq!(found.len(), expected.len(), "{cell}");
    }
}

/// The plan of [`exact`], and its cells from the first host on.
pub fn lossy() -> (String, [Planned; 6]) {
    let (first, last) = (tap("in"), tap("out"));
    let plan = format!(
        "{HOSTS}forward = [{first}, {{ delay = \"5ms\" }}, {{ every = 20 }}, {{ reorder = \"4%\", distance = 4 }}, \
         {{ duplicate = \"4%\" }}, {last}]\nbackward = [{{ delay = \"5ms\" }}]\n"
    );
    let every = Loss::Every {
        period: 20,
        first: 19,
    };
    let reorder = Law::Reorder {
        fraction: 0.04,
        until: Until::Passed(4),
    };
    let cells = [
        ("in", hold_none(), None),
        (
            "delay",
            delay(Nanos(5_000_000), Nanos(0), Shape::Uniform, false),
            None,
        ),
        ("every", Law::Loss(every), None),
        ("reorder", reorder, None),
        ("duplicate", Law::Duplicate { fraction: 0.04 }, None),
        ("out", hold_none(), None),
    ];
    (plan, cells)
}

/// `recv` and `probe` find each packet that cells dropped, duplicated or delayed, and no other; the kernels of both hosts count the
/// same; and so do the same cells in virtual time.
fn exact(room: &Room, cells: &[Planned], count: u64) {
    let up = room.up();
    up.silence_kernels();
    let kernels = || {
        let [sent, received, errors] = [
            ("jive", "OutDatagrams"),
            ("manchester", "InDatagrams"),
            ("manchester", "InErrors"),
        ]
        .map(|(host, name)| up.kernel(host, "Udp", name));
        (sent, received, errors)
    };
    let before = kernels();
    let receiver = up.receive("manchester", "udp://0.0.0.0:2630", "check", &[]);
    up.send("udp://manchester:2630", FIRST, count);
    let log = up.settled(|log| stream(log, "in", count).len() as u64 == count);
    let passed = Passed {
        numbers: stream(&log, "out", count),
    };
    let truth = passed.truth();
    let received = receiver.finish_after(truth.received);
    truth.agrees_with(&received);
    let after = kernels();
    assert_eq!(after.0 - before.0, count);
    assert_eq!(after.1 - before.1, truth.received);
    assert_eq!(after.2, before.2);

    let responder = up.respond();
    // Nothing arrives later than this.
    let options = ["--size", "1448", "--spacing", "0", "--loss-timeout", "5s"];
    let begun = log.len();
    let count = count.to_string();
    let result = up.probe("udp", &[&options[..], &["--count", &count]].concat());
    let count: u64 = count.parse().unwrap();
    drop(responder);
    let point = &result["points"][0];
    let log = up.settled(|_| true);
    assert_same(&log, &in_virtual_time(cells, &log, ETHERNET));
    let state = up.end();

    // Numbers of requests and of TCP are large.
    let probed = |tap: &str| numbers(&log[begun..], tap, 0..count);
    assert_eq!(probed("in"), (0..count).collect::<Vec<u64>>());
    let truth = Passed {
        numbers: probed("out"),
    }
    .truth();
    let of = |name: &str| number(point, name);
    assert_eq!(of("sent"), count);
    assert_eq!(of("received"), truth.received);
    assert_eq!(of("unique"), truth.unique);
    assert_eq!(of("duplicates"), truth.duplicates);
    assert_eq!(of("reordered"), truth.reordered);
    let causes = ["lost", "network_lost", "host_lost", "unattributed"].map(of);
    let lost = count - truth.unique;
    assert_eq!(causes, [lost, lost, 0, 0]);
    let extents = point["reordering_extents"].as_object().unwrap().values();
    let extents: u64 = extents.map(|extent| extent.as_u64().unwrap()).sum();
    assert_eq!(extents, truth.reordered);
    let gaps = point["intervals"].as_array().unwrap().iter();
    let missing = gaps.flat_map(|gap| number(gap, "first")..=number(gap, "last"));
    let passed = probed("out");
    let expected = (0..count).filter(|number| !passed.contains(number));
    assert_eq!(
        missing.collect::<Vec<u64>>(),
        expected.collect::<Vec<u64>>()
    );

    // As many as the plan gives, of all arrivals; and nothing was lost elsewhere.
    let log = read(&room.text("log.csv"), FORWARD);
    let of = |name: &str, what: &str| number(cell(&state, FORWARD, name), what);
    assert_eq!(of("every", "dropped"), of("every", "packets") / 20);
    for (name, what, fate) in [
        ("every", "dropped", "dropped"),
        ("reorder", "held", "held"),
        ("duplicate", "duplicated", "duplicated"),
    ] {
        let logged = log
            .iter()
            .filter(|entry| entry.cell == name && entry.fate == fate);
        assert_eq!(of(name, what), logged.count() as u64);
        assert!(of(name, what) > 0, "{name}: {state}");
    }
    for host in state["hosts"].as_array().unwrap() {
        for name in ["refused", "overrun", "overflown"] {
            assert_eq!(number(host, name), 0, "{host}");
        }
    }
}

#[test]
fn losses_are_exact_to_the_packet() {
    let (plan, cells) = lossy();
    if let Some(room) = Room::new(&plan) {
        exact(&room, &cells, fitting().min(2000));
    }
}

/// A user without any rights makes paths too, in user namespaces.
#[test]
fn a_plain_users_losses_are_exact_too() {
    let (plan, cells) = lossy();
    let Some(mut room) = Room::new(&plan) else {
        return;
    };
    if room.leave_rights() {
        exact(&room, &cells, 60);
    }
}

/// Each kind of cell has the same effect by the clock of the path as in virtual time: to the packet, and to the nanosecond at which
/// it leaves.
#[test]
fn every_cell_does_as_in_virtual_time() {
    let (first, last) = (tap("in"), tap("out"));
    let plan = format!(
        "{HOSTS}forward = [{first}, {{ outage = [\"600ms\", \"800ms\"] }}, \
         {{ loss = \"50%\", period = \"300ms\", length = \"100ms\", begin = \"50ms\" }}, \
         {{ loss = \"3%\", burst = \"3\" }}, {{ loss = \"30%\", on = \"50ms\", off = \"150ms\" }}, \
         {{ loss = \"50%\", above = \"20M\", window = \"1ms\" }}, {{ lose_at = [\"1.1s\", \"500ms\"] }}, \
         {{ every = 9, first = 3, change = [{{ at = \"900ms\", every = 7 }}] }}, {{ police = \"200M\", burst = \"20KiB\" }}, \
         {{ rate = \"100M\", buffer = \"15KiB\", mark_above = \"0s\", change = [{{ at = \"700ms\", rate = \"50M\" }}] }}, \
         {{ mtu = 1476 }}, {{ corrupt = \"5%\" }}, {{ mark = \"50%\" }}, \
         {{ delay = \"1ms\", jitter = \"1ms\", shape = \"pareto\", overtakes = true }}, \
         {{ delay = \"1ms\", jitter = \"500us\", shape = \"normal\" }}, {{ reorder = \"5%\", by = \"3ms\" }}, \
         {{ duplicate = \"5%\" }}, {last}]\n"
    );
    let Some(room) = Room::new(&plan) else {
        return;
    };
    let milliseconds = |count: u64| Nanos(count * 1_000_000);
    let rate = |megabits: u64| BitRate::new(megabits * 1_000_000).unwrap();
    let within = |times: Times, fraction: f64| Law::Loss(Loss::Within { times, fraction });
    let every = |period: u64| Law::Loss(Loss::Every { period, first: 3 });
    let limit = |megabits: u64| Law::Rate {
        rate: rate(megabits),
        buffer: 15 << 10,
        overhead: ETHERNET_OVERHEAD,
        mark: Some(Nanos(0)),
    };
    let outage = Times::Once {
        from: milliseconds(600),
        to: milliseconds(800),
    };
    let periodic = Times::Periodic {
        period: milliseconds(300),
        length: milliseconds(100),
        first: milliseconds(50),
    };
    let episodes = Times::Episodes {
        on: milliseconds(50),
        off: milliseconds(150),
    };
    // Three packets on average, and three of a hundred.
    let bursts = Loss::Bursts {
        begins: 0.03 / 0.97 / 3.0,
        ends: 1.0 / 3.0,
        good: 0.0,
        bad: 1.0,
    };
    let above = Loss::Above {
        rate: rate(20),
        window: milliseconds(1),
        overhead: ETHERNET_OVERHEAD,
        fraction: 0.5,
    };
    let police = Law::Police {
        rate: rate(200),
        burst: 20 << 10,
        overhead: ETHERNET_OVERHEAD,
    };
    let mtu = Law::Mtu {
        bytes: 1476,
        tells: true,
    };
    let by = Law::Reorder {
        fraction: 0.05,
        until: Until::Time(milliseconds(3)),
    };
    let at = Loss::At([milliseconds(500), milliseconds(1100)].into());
    let jitter = delay(milliseconds(1), milliseconds(1), Shape::Pareto, true);
    let ordered = delay(milliseconds(1), Nanos(500_000), Shape::Normal, false);
    let cells: [Planned; 18] = [
        ("in", hold_none(), None),
        ("outage", within(outage, 1.0), None),
        ("loss", within(periodic, 0.5), None),
        ("loss2", Law::Loss(bursts), None),
        ("loss3", within(episodes, 0.3), None),
        ("loss4", Law::Loss(above), None),
        ("lose_at", Law::Loss(at), None),
        ("every", every(9), Some((milliseconds(900), every(7)))),
        ("police", police, None),
        ("rate", limit(100), Some((milliseconds(700), limit(50)))),
        ("mtu", mtu, None),
        ("corrupt", Law::Corrupt { fraction: 0.05 }, None),
        ("mark", Law::Mark { fraction: 0.5 }, None),
        ("delay", jitter, None),
        ("delay2", ordered, None),
        ("reorder", by, None),
        ("duplicate", Law::Duplicate { fraction: 0.05 }, None),
        ("out", hold_none(), None),
    ];
    let up = room.up();
    up.silence_kernels();
    // Until all times of the plan have passed, by the path's clock.
    let done = |state: &Value, name: &str| -> u64 {
        let of = |what: &str| number(cell(state, FORWARD, name), what);
        let counts = ["dropped", "duplicated", "held", "corrupted", "marked"];
        counts.map(of).iter().sum()
    };
    let mut next = FIRST;
    until("each cell that does something at any time has", || {
        // A group needs no listener.
        up.send("udp://239.1.2.3:2630", next, 40);
        next += 40;
        let state = up.state();
        let at_any_time = [
            "loss",
            "loss2",
            "loss3",
            "loss4",
            "every",
            "police",
            "rate",
            "corrupt",
            "reorder",
            "duplicate",
        ];
        let is_all = at_any_time.iter().all(|name| done(&state, name) > 0);
        is_all && done(&state, "lose_at") == 2 && state["seconds"].as_f64().unwrap() > 1.5
    });
    let count = next - FIRST;
    let log = up.settled(|log| stream(log, "in", count).len() as u64 == count);
    let expected = in_virtual_time(&cells, &log, ETHERNET);
    assert_same(&of_stream(&log, count), &of_stream(&expected, count));
    let state = up.end();
    let log = read(&room.text("log.csv"), FORWARD);
    for (name, _, _) in cells {
        let logged = log.iter().filter(|entry| entry.cell == name).count();
        assert_eq!(done(&state, name), logged as u64, "{name}");
    }
    // They have no room for marks, and are short enough.
    assert_eq!((done(&state, "mark"), done(&state, "mtu")), (0, 0));
}

/// Cells treat a packet within a VLAN like any other, with its length without the tag.
#[test]
fn tagged_packets_are_dealt_with_like_others() {
    if !need(&["python3"]) {
        return;
    }
    let (first, last) = (tap("in"), tap("out"));
    let plan = format!(
        "{HOSTS}forward = [{first}, {{ every = 9 }}, {{ mtu = 1476 }}, {{ rate = \"100M\", buffer = \"100KiB\" }}, \
         {{ duplicate = \"5%\" }}, {last}]\n"
    );
    let Some(room) = Room::new(&plan) else {
        return;
    };
    let every = Loss::Every {
        period: 9,
        first: 8,
    };
    let mtu = Law::Mtu {
        bytes: PACKET,
        tells: true,
    };
    let rate = Law::Rate {
        rate: BitRate::new(100_000_000).unwrap(),
        buffer: 100 << 10,
        overhead: ETHERNET_OVERHEAD,
        mark: None,
    };
    let cells: [Planned; 6] = [
        ("in", hold_none(), None),
        ("every", Law::Loss(every), None),
        ("mtu", mtu, None),
        ("rate", rate, None),
        ("duplicate", Law::Duplicate { fraction: 0.05 }, None),
        ("out", hold_none(), None),
    ];
    let up = room.up();
    up.silence_kernels();
    let begun = up.settled(|_| true).len();
    let script = "import socket, struct\n\
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
        s.bind(('wire', 0))\n\
        for number in range(1000, 1200):\n    \
            data = struct.pack('<Q', number) + bytes(1440)\n    \
            udp = struct.pack('>HHHH', 2630, 2630, 8 + len(data), 0)\n    \
            ip = struct.pack('>BBHHHBBH4B4B', 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0, 10, 77, 0, 1, 10, 77, 0, 2)\n    \
            s.send(bytes.fromhex('0265766c00020265766c0001810000070800') + ip + udp + data)\n";
    super::printed(up.at("jive").args(["python3", "-c", script]));
    let log = up.settled(|log| stream(log, "in", 200).len() == 200);
    assert_eq!(
        stream(&log[begun..], "in", 200),
        (FIRST..FIRST + 200).collect::<Vec<u64>>()
    );
    let expected = in_virtual_time(&cells, &log, TAGGED);
    assert_same(&of_stream(&log, 200), &of_stream(&expected, 200));
    let state = up.end();
    let of = |name: &str, what: &str| number(cell(&state, FORWARD, name), what);
    assert_eq!(of("every", "dropped"), of("every", "packets") / 9);
    assert_eq!(of("mtu", "dropped"), 0);
    assert!(of("duplicate", "duplicated") > 0);
}

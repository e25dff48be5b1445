//! Captures of real connections and streams over emulated paths, against tshark, the kernel, the path and the receiver. Their
//! times are compared with tshark over committed captures (`captures.rs` of `evlbi-probe`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use evlbi_testkit::relay::Passed;
use evlbi_testkit::result::{largest, number, packets_by_event, read};
use evlbi_testkit::{Running, need, until};
use serde_json::Value;

use crate::path::cells::{self, FIRST, lossy, stream};
use crate::path::{FORWARD, HOSTS, Room, Up, cell, printed};

const ENDS: [(&str, &str); 2] = [("near", "jive"), ("far", "manchester")];

/// Captures the packets that `work` sends, at both hosts, in `NAME-near.pcap` and `NAME-far.pcap`.
fn taken<T>(up: &Up, name: &str, work: impl FnOnce() -> T) -> T {
    let file = |end: &str, kind: &str| format!("{name}-{end}.{kind}");
    let begun = ENDS.map(|(end, host)| {
        let said = fs::File::create(up.room.path(&file(end, "txt"))).unwrap();
        // It does not change to another user, as none exists where plain users have paths.
        let dump = format!(
            "echo $$ > {}; exec dumpcap -q -i wire -s 160 -B 64 -P -w {}",
            file(end, "pid"),
            file(end, "pcap")
        );
        let mut dumpcap = up.at(host);
        dumpcap
            .args(["sh", "-c", &dump])
            .stderr(said)
            .stdout(Stdio::null());
        Running(dumpcap.spawn().unwrap())
    });
    let begun = ENDS
        .into_iter()
        .zip(begun)
        .map(|((end, host), mut dumpcap)| {
            until("dumpcap captures", || {
                let said = up.room.text(&file(end, "txt"));
                assert!(dumpcap.0.try_wait().unwrap().is_none(), "{said}");
                said.contains("File: ")
            });
            (end, host, dumpcap)
        });
    let begun: Vec<_> = begun.collect();
    let done = work();
    // Closed connections send nothing more: no endpoint is about to close one.
    until("connections end", || {
        let text = up.sh("jive", "cat /proc/net/tcp");
        let states = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3));
        !states
            .into_iter()
            .any(|state| ["04", "09", "0B"].contains(&state))
    });
    // The reply of a closed port arrives after all earlier packets, in both captures.
    until("the captures have all", || {
        up.sh(
            "jive",
            "exec bash -c 'echo the end > /dev/udp/manchester/9'",
        );
        ENDS.iter()
            .all(|(end, _)| has_end(&up.room.read(&file(end, "pcap"))))
    });
    for (end, host, mut dumpcap) in begun {
        up.sh(host, &format!("kill $(cat {})", file(end, "pid")));
        assert!(dumpcap.wait().success());
    }
    done
}

/// Whether a capture contains the reply of a closed port (ICMP 3, 3), with the datagram that was sent there: `the end`.
fn has_end(capture: &[u8]) -> bool {
    // ICMP's header, and those of the datagram.
    const BEFORE: usize = 8 + 20 + 8;
    let mut places = capture.windows(BEFORE + 8);
    places.any(|place| place.starts_with(&[3, 3]) && place.ends_with(b"the end\n"))
}

fn analyse(room: &Room, name: &str) -> Value {
    let [capture, events, plot] =
        ["pcap", "csv", "svg"].map(|kind| room.path(&format!("{name}.{kind}")));
    let text = printed(
        room.evlbi()
            .args(["analyse", &capture, "--json", "--force"])
            .args(["--events", &events, "--bins", "100us"])
            .args(["--interval", "100ms", "--plot", &plot]),
    );
    read(text)
}

/// These fields of each packet that passes the filter, as tshark reads them.
fn tshark<const N: usize>(
    room: &Room,
    name: &str,
    filter: &str,
    fields: [&str; N],
) -> Vec<[String; N]> {
    let capture = room.path(&format!("{name}.pcap"));
    let mut tshark = evlbi_testkit::command("tshark");
    tshark.args(["-r", &capture, "-Y", filter, "-T", "fields"]);
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let text = printed(&mut tshark);
    let lines = text.lines().map(|line| line.split('\t').map(str::to_owned));
    lines
        .map(|values| values.collect::<Vec<String>>().try_into().unwrap())
        .collect()
}

/// Every packet that was retransmitted, overtaken, repeated or filled a window matches tshark, at either end of a path that drops
/// and reorders; and retransmissions, their causes, and duplicates match the sender's kernel.
#[test]
fn a_capture_agrees_with_tshark_and_the_kernel() {
    if !need(&["bash", "dumpcap", "tshark"]) {
        return;
    }
    let cells = "rtt = \"15ms\"\nrate = \"50M\"\nbuffer = \"1MiB\"\nforward = [{ loss = \"1%\" }, { reorder = \"0.1%\", distance = 4 }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let up = room.up();
    let responder = up.respond();
    let result = taken(&up, "lossy", || {
        up.probe("tcp", &["--duration", "2s", "--algorithm", "reno"])
    });
    let kernel = [
        up.kernel("jive", "Tcp", "RetransSegs"),
        up.kernel("jive", "TcpExt", "TCPDSACKRecv"),
    ];
    drop(responder);
    let state = up.end();
    let again = ["fast", "timeout", "tail_probe", "unneeded"];
    for end in ["near", "far"] {
        let name = format!("lossy-{end}");
        let analysis = analyse(&room, &name);
        let fields = [
            "frame.number",
            "tcp.flags",
            "tcp.analysis.retransmission",
            "tcp.analysis.out_of_order",
            "tcp.analysis.lost_segment",
            "tcp.analysis.duplicate_ack",
            "tcp.analysis.window_full",
            "tcp.analysis.window_update",
            "tcp.analysis.zero_window",
            "tcp.analysis.keep_alive",
            "tcp.analysis.ack_lost_segment",
        ];
        let packets = tshark(&room, &name, "frame", fields);
        assert_eq!(number(&analysis, "packets"), packets.len() as u64);
        let events = packets_by_event(&room.text(&format!("{name}.csv")));
        for (ours, theirs) in [
            (
                &[&again[..], &["reordered", "duplicate"]].concat()[..],
                2..4,
            ),
            (&["gap"], 4..5),
            (&["duplicate_acknowledgement"], 5..6),
            (&["window_full"], 6..7),
            (&["window_update"], 7..8),
            (&["zero_window"], 8..9),
            (&["keep_alive"], 9..10),
            (&["acknowledged_unseen"], 10..11),
        ] {
            let found = ours.iter().filter_map(|name| events.get(*name)).flatten();
            let expected = packets
                .iter()
                .filter(|fields| fields[theirs.clone()].iter().any(|field| !field.is_empty()));
            let expected: BTreeSet<u64> =
                expected.map(|fields| fields[0].parse().unwrap()).collect();
            assert_eq!(
                found.copied().collect::<BTreeSet<u64>>(),
                expected,
                "{name}: {ours:?}"
            );
        }
        let way = largest(&analysis);
        // SYN without ACK, each once.
        let syns = packets.iter().filter(|fields| {
            let flags = u16::from_str_radix(fields[1].trim_start_matches("0x"), 16);
            flags.is_ok_and(|flags| flags & 0x12 == 0x02) && fields[2].is_empty()
        });
        let connections = analysis["connections"].as_array().unwrap();
        assert_eq!(connections.len(), syns.count());
        assert!(way["held_back"]["repair"].as_f64().unwrap() > 0.0, "{way}");
        assert!(room.text(&format!("{name}.svg")).contains("data in flight"));
    }
    // The kernel's own counts, of the sending host.
    let flow = &result["flows"][0];
    let near = analyse(&room, "lossy-near");
    let way = largest(&near);
    assert_eq!(number(way, "segments"), number(flow, "segments"));
    // Each connection of a test greets first.
    let greeting = number(way, "acknowledged") - number(flow, "bytes");
    assert!(greeting < 100, "{greeting}");
    // Sums of all connections, as the kernel counts.
    let connections = near["connections"].as_array().unwrap().iter();
    let sent: Vec<&Value> = connections
        .map(|one| {
            &one["ways"][usize::from(one["ends"][0].as_str().unwrap().starts_with("10.77.0.2"))]
        })
        .collect();
    let of = |name: &str| -> u64 {
        sent.iter()
            .map(|way| number(&way["sent_again"], name))
            .sum()
    };
    assert_eq!(of("segments"), kernel[0]);
    assert_eq!(
        of("segments"),
        of("fast") + of("timeout") + of("probe") + of("unneeded")
    );
    assert_eq!(of("lost_before"), 0);
    let twice: u64 = sent.iter().map(|way| number(way, "received_twice")).sum();
    assert_eq!(twice, kernel[1]);
    // At the receiver the losses were earlier.
    let far = analyse(&room, "lossy-far");
    let far_way = largest(&far);
    assert!(
        number(&far_way["sent_again"], "lost_before") > 0,
        "{far_way}"
    );
    assert!(number(cell(&state, FORWARD, "loss"), "dropped") > 0);
    let behind = |way: &Value| way["behind"].as_f64().unwrap();
    // A round trip as seen by the receiver is no shorter than the plan's.
    assert!(
        behind(way) < behind(far_way) && behind(far_way) >= 0.0149,
        "{way} {far_way}"
    );
    let said = far["connections"][0]["findings"].to_string();
    assert!(
        said.contains("captured at the receiver")
            && said.contains("lost between the sender and here"),
        "{said}"
    );
}

/// Streams of VTP: lost, duplicated and reordered packets match the path, and times between packets match tshark.
#[test]
fn losses_of_streams_are_the_paths() {
    if !need(&["bash", "dumpcap", "tshark"]) {
        return;
    }
    let (plan, _) = lossy();
    let Some(room) = Room::new(&plan) else {
        return;
    };
    let up = room.up();
    let count = cells::fitting().min(2000);
    let receiver = up.receive("manchester", "udp://0.0.0.0:2630", "check", &[]);
    let (log, received) = taken(&up, "stream", || {
        up.send("udp://manchester:2630", FIRST, count);
        let log = up.settled(|log| stream(log, "in", count).len() as u64 == count);
        let received = receiver.finish_after(stream(&log, "out", count).len() as u64);
        // With segmentation offload the sender's capture has bursts. A group needs no listener.
        let send = [
            "send",
            &room.path("in.vdif"),
            "--to",
            "udp://239.1.2.3:2631",
            "--max",
        ];
        printed(up.evlbi_at("jive").args(send).args(["--burst", "8"]));
        (log, received)
    });
    let streams = |analysis: &Value, port: &str| -> Value {
        let streams = analysis["streams"].as_array().unwrap();
        let found = streams
            .iter()
            .find(|stream| stream["ends"][1].as_str().unwrap().ends_with(port));
        found.unwrap_or_else(|| panic!("{analysis}")).clone()
    };
    let analysis = analyse(&room, "stream-near");
    let near = streams(&analysis, ":2630");
    let far = streams(&analyse(&room, "stream-far"), ":2630");
    assert_eq!(
        (&near["numbers"], &far["numbers"]),
        (&"vtp".into(), &"vtp".into())
    );
    let of = |name: &str| number(&near["account"], name);
    assert_eq!(
        (of("unique"), of("lost"), of("reordered"), of("duplicates")),
        (count, 0, 0, 0)
    );
    // The path's log, the receiver and the capture before it.
    let truth = Passed {
        numbers: stream(&log, "out", count),
    }
    .truth();
    truth.agrees_with(&received);
    let of = |name: &str| number(&far["account"], name);
    let found = ["unique", "lost", "duplicates", "reordered"].map(of);
    assert_eq!(
        found,
        [truth.unique, truth.lost, truth.duplicates, truth.reordered]
    );
    let came: Vec<u64> = tshark(&room, "stream-far", "udp.dstport == 2630", ["udp.payload"])
        .iter()
        .map(|[payload]| {
            u64::from_str_radix(&payload[..16], 16)
                .unwrap()
                .swap_bytes()
        })
        .collect();
    assert_eq!(came, stream(&log, "out", count));
    // Bin by bin.
    let gaps = tshark(
        &room,
        "stream-near",
        "udp.dstport == 2630",
        ["frame.time_delta_displayed"],
    );
    let mut bins = BTreeMap::<u64, u64>::new();
    for [gap] in gaps.iter().skip(1) {
        let nanos: u64 = gap.replace('.', "").parse().unwrap();
        *bins.entry(nanos / 100_000 * 100_000).or_default() += 1;
    }
    let ours = near["gaps"]["bins"].as_object().unwrap();
    let ours: BTreeMap<u64, u64> = ours
        .iter()
        .map(|(bin, count)| (bin.parse().unwrap(), count.as_u64().unwrap()))
        .collect();
    assert_eq!(ours, bins);
    let train = streams(&analysis, ":2631");
    assert_eq!(number(&train, "datagrams"), count);
    assert!(number(&train, "packets") < count, "{train}");
    assert_eq!(number(&train["account"], "lost"), 0);
}

//! Captures of real connections over emulated paths, against tshark, the kernel, the path and the receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use evlbi_testkit::need;
use serde_json::Value;

use crate::path::{EVLBI, HOSTS, Room, cell};
use crate::result::number;

/// A responder on the far host; `taken NAME COMMAND` captures what a command sends, at both hosts; then what is to be done.
fn script(done: &str) -> String {
    format!(
        "export EVLBI_TOKEN=t
        $E path exec manchester -- $E respond 2> respond.txt &
        until grep -q listening respond.txt; do sleep 0.1; done
        dump() {{ exec tcpdump -i wire -U --immediate-mode -s 160 -B 65536 --time-stamp-precision=nano -w $1.pcap 2> $1.txt; }}
        has_echo() {{ tcpdump -r $1.pcap 'icmp[0] = 3 and icmp[30:2] = 9' 2> /dev/null | grep -q .; }}
        taken() {{
            name=$1; shift
            (dump $name-near) & near=$!
            $E path exec manchester -- sh -c 'echo $$ > far.pid; exec tcpdump -i wire -U --immediate-mode -s 160 -B 65536 -w '$name'-far.pcap 2> '$name'-far.txt' & far=$!
            until grep -qs listening $name-near.txt && grep -qs listening $name-far.txt; do sleep 0.1; done
            \"$@\" > $name.json
            # Whose connections have ended sends nothing more.
            n=0; until [ -z \"$(ss -tnH state fin-wait-1 state last-ack state closing)\" ]; do
                n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.1
            done
            # What comes back from a closed port comes after all that was sent before, in both captures.
            n=0; until has_echo $name-near && has_echo $name-far; do
                n=$((n+1)); [ $n -lt 150 ] || exit 1; bash -c 'echo > /dev/udp/manchester/9'; sleep 0.2
            done
            kill $near; $E path exec manchester -- sh -c 'kill $(cat far.pid)'
            wait $near || true; wait $far || true
        }}
        {done}"
    )
}

/// None where captures cannot be taken or tshark cannot read them, which is said.
fn captured(room: &Room, done: &str) -> Option<()> {
    if !need(&["tcpdump", "tshark"]) {
        return None;
    }
    room.run_well(&[], &script(done)).map(|_| ())
}

fn analyse(room: &Room, name: &str) -> Value {
    let [capture, events, plot] =
        ["pcap", "csv", "svg"].map(|kind| room.path(&format!("{name}.{kind}")));
    let text = printed(
        Command::new(EVLBI)
            .args(["analyse", &capture, "--json", "--force"])
            .args(["--events", &events, "--bins", "100us"])
            .args(["--interval", "100ms", "--plot", &plot]),
    );
    serde_json::from_str(&text).unwrap()
}

/// What a command prints, which must not fail.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The direction that carried most.
fn largest(analysis: &Value) -> &Value {
    let way = &analysis["connections"][0]["ways"][0];
    assert!(number(way, "bytes") > 100_000, "{analysis}");
    way
}

/// Packets of each event.
fn events(room: &Room, name: &str) -> BTreeMap<String, BTreeSet<u64>> {
    let text = fs::read_to_string(room.path(&format!("{name}.csv"))).unwrap();
    let mut events = BTreeMap::<String, BTreeSet<u64>>::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        events
            .entry(fields[4].to_owned())
            .or_default()
            .insert(fields[0].parse().unwrap());
    }
    events
}

fn tshark(room: &Room, name: &str, filter: &str, field: &str) -> Vec<String> {
    let capture = room.path(&format!("{name}.pcap"));
    let text = printed(
        Command::new("tshark")
            .args(["-r", &capture, "-Y", filter])
            .args(["-T", "fields", "-e", field]),
    );
    text.lines().map(str::to_owned).collect()
}

/// Every packet that was sent again, overtaken, repeated or filled a window is that of tshark, at either end of a path that loses
/// and reorders; and what was sent again, why, and what came twice is as the sender's kernel counted.
#[test]
fn a_capture_tells_what_tshark_and_the_kernel_tell() {
    let cells = "rtt = \"15ms\"\nrate = \"50M\"\nbuffer = \"1MiB\"\nforward = [{ loss = \"1%\" }, { reorder = \"0.1%\", distance = 4 }]\n";
    let room = Room::new(&format!("{HOSTS}{cells}"));
    let probe = "taken lossy $E probe tcp manchester:8620 --duration 4s --algorithm reno --json
        nstat -asz > nstat.txt";
    if captured(&room, probe).is_none() {
        return;
    }
    let again = ["fast", "timeout", "tail_probe", "unneeded"];
    let old = "tcp.analysis.retransmission || tcp.analysis.out_of_order";
    for end in ["near", "far"] {
        let name = format!("lossy-{end}");
        let analysis = analyse(&room, &name);
        assert_eq!(
            number(&analysis, "packets"),
            tshark(&room, &name, "frame", "frame.number").len() as u64
        );
        let events = events(&room, &name);
        for (ours, theirs) in [
            (&[&again[..], &["reordered", "duplicate"]].concat()[..], old),
            (&["gap"], "tcp.analysis.lost_segment"),
            (&["duplicate_acknowledgement"], "tcp.analysis.duplicate_ack"),
            (&["window_full"], "tcp.analysis.window_full"),
            (&["window_update"], "tcp.analysis.window_update"),
            (&["zero_window"], "tcp.analysis.zero_window"),
            (&["keep_alive"], "tcp.analysis.keep_alive"),
            (&["acknowledged_unseen"], "tcp.analysis.ack_lost_segment"),
        ] {
            let found = ours.iter().filter_map(|name| events.get(*name)).flatten();
            let expected = tshark(&room, &name, theirs, "frame.number");
            let expected: BTreeSet<u64> = expected
                .iter()
                .map(|frame| frame.parse().unwrap())
                .collect();
            assert_eq!(
                found.copied().collect::<BTreeSet<u64>>(),
                expected,
                "{name}: {ours:?}"
            );
        }
        let way = largest(&analysis);
        let syns = tshark(
            &room,
            &name,
            "tcp.flags.syn == 1 && tcp.flags.ack == 0",
            "tcp.stream",
        );
        assert_eq!(
            analysis["connections"].as_array().unwrap().len(),
            syns.len()
        );
        assert!(way["held_back"]["repair"].as_f64().unwrap() > 0.02, "{way}");
        assert!(
            fs::read_to_string(room.path(&format!("{name}.svg")))
                .unwrap()
                .contains("data under way")
        );
    }
    // The kernel's own account, of the host that sent.
    let flow = &room.json("lossy.json")["flows"][0];
    let text = fs::read_to_string(room.path("nstat.txt")).unwrap();
    let kernel = |name: &str| -> u64 {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    let near = analyse(&room, "lossy-near");
    let way = largest(&near);
    assert_eq!(number(way, "segments"), number(flow, "segments"));
    // Each connection of a test greets first.
    let greeting = number(way, "acknowledged") - number(flow, "bytes");
    assert!(greeting < 100, "{greeting}");
    // Of all connections, as the kernel counts.
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
    assert_eq!(of("segments"), kernel("TcpRetransSegs"));
    assert_eq!(
        of("segments"),
        of("fast") + of("timeout") + of("probe") + of("unneeded")
    );
    assert_eq!(of("lost_before"), 0);
    // A probe of the only segment under way looks like a timeout.
    let silences = kernel("TcpExtTCPTimeouts") + kernel("TcpExtTCPLossProbes");
    // A kernel that is held up answers so late that it looks like one too.
    if !room.was_disturbed(0.05) {
        assert!(of("timeouts") <= silences);
        assert!(silences > 0 || of("fast") == of("segments"));
    }
    let twice: u64 = sent.iter().map(|way| number(way, "received_twice")).sum();
    assert_eq!(twice, kernel("TcpExtTCPDSACKRecv"));
    // At the receiver the losses lie before.
    let state = room.json("path.json");
    let far = analyse(&room, "lossy-far");
    let far_way = largest(&far);
    assert!(
        number(&far_way["sent_again"], "lost_before") > 0,
        "{far_way}"
    );
    assert!(number(cell(&state, "jive>manchester", "loss"), "dropped") > 0);
    let behind = |way: &Value| way["behind"].as_f64().unwrap();
    assert!(behind(way) < 0.002 && (0.0145..0.03).contains(&behind(far_way)));
    let said = far["connections"][0]["findings"].to_string();
    assert!(
        said.contains("captured at the receiver")
            && said.contains("lost between the sender and here"),
        "{said}"
    );
}

/// What holds a connection back is told from the capture alone: an application that sends at a rate or in bursts with idle times
/// between (Sansa 2006), a receiver's or a sender's buffer, a full path; and flight and round trips are tshark's.
#[test]
fn what_holds_a_connection_back_is_told() {
    let room = Room::new(&format!(
        "{HOSTS}rtt = \"15ms\"\nrate = \"100M\"\nbuffer = \"300KiB\"\n"
    ));
    let probes = "probe() { taken $1 $E probe tcp manchester:8620 --duration 3s --algorithm reno --json $2; }
        probe constant '--rate 8M'
        probe bursts '--rate 8M --message 200k'
        probe receiver '--receive-buffer 40k'
        probe sender '--buffer 30k'
        probe path ''";
    if captured(&room, probes).is_none() {
        return;
    }
    // That holds connections back too.
    let is_quiet = !room.was_disturbed(0.05);
    for (name, part, said) in [
        ("constant", "application", "the application"),
        ("bursts", "application", "idle"),
        ("receiver", "receiver", "the receiver takes"),
        ("sender", "sender", "its send buffer"),
        ("path", "path", "a full path"),
    ] {
        let near = format!("{name}-near");
        let analysis = analyse(&room, &near);
        let way = largest(&analysis);
        let findings = analysis["connections"][0]["findings"].to_string();
        let held = way["held_back"][part].as_f64().unwrap();
        if is_quiet {
            assert!(held > 0.5, "{name}: {findings}");
            assert!(findings.contains(said), "{name}: {findings}");
        }
        if number(&way["sent_again"], "segments") > 0 {
            continue;
        }
        // Without loss tshark's figures mean the same.
        let port = analysis["connections"][0]["ends"][0]
            .as_str()
            .unwrap()
            .rsplit(':')
            .next()
            .unwrap()
            .to_owned();
        let most = |field: &str, filter: &str| -> f64 {
            let values = tshark(&room, &near, filter, field);
            values
                .iter()
                .filter_map(|value| value.parse().ok())
                .fold(0.0, f64::max)
        };
        let flight = most(
            "tcp.analysis.bytes_in_flight",
            &format!("tcp.srcport == {port}"),
        );
        assert_eq!(number(&way["flight"], "most"), flight as u64, "{name}");
        let longest = most(
            "tcp.analysis.ack_rtt",
            &format!("tcp.dstport == {port} && tcp.analysis.ack_rtt"),
        );
        let ours = way["round_trip"]["max"].as_f64().unwrap() * 1e-9;
        assert!((ours - longest).abs() < 1e-6, "{name}: {ours} {longest}");
    }
    if is_quiet {
        let bursts = analyse(&room, "bursts-near");
        let idle = &largest(&bursts)["idle"];
        // A message each 0.2 s.
        let longest = idle["longest"].as_f64().unwrap();
        assert!(number(idle, "periods") >= 10 && longest > 0.1, "{idle}");
    }
}

/// Streams of VTP: what the path lost, doubled and reordered, and times between packets as tshark has them.
#[test]
fn losses_of_streams_are_the_paths() {
    let cells = "rtt = \"10ms\"\nforward = [{ every = 100 }, { reorder = \"0.5%\", distance = 4 }, { duplicate = \"0.5%\" }]\n";
    let room = Room::new(&format!("{HOSTS}{cells}"));
    let send = "$E path exec manchester -- $E recv udp://0.0.0.0:2630 --to check --idle 10s --hold 10s --ring 64MiB --json > recv.json 2> recv.txt &
        receiver=$!
        until grep -q listening recv.txt; do sleep 0.1; done
        taken stream $E send pattern:1440 --to udp://manchester:2630 --rate 20M --duration 2s --no-gso --json
        taken train sh -c '$E send pattern:1440 --to udp://manchester:2631 --rate 20M --duration 1s --burst 8 --json || true'
        wait $receiver";
    if captured(&room, send).is_none() {
        return;
    }
    let sent = room.json("stream.json");
    let received = room.json("recv.json");
    let stream = |analysis: &Value, port: &str| -> Value {
        let streams = analysis["streams"].as_array().unwrap();
        let found = streams
            .iter()
            .find(|stream| stream["ends"][1].as_str().unwrap().ends_with(port));
        found.unwrap_or_else(|| panic!("{analysis}")).clone()
    };
    let near = stream(&analyse(&room, "stream-near"), ":2630");
    let far = stream(&analyse(&room, "stream-far"), ":2630");
    assert_eq!(
        (&near["numbers"], &far["numbers"]),
        (&"vtp".into(), &"vtp".into())
    );
    assert_eq!(number(&near["account"], "unique"), number(&sent, "sent"));
    assert_eq!(
        (
            number(&near["account"], "lost"),
            number(&near["account"], "reordered")
        ),
        (0, 0)
    );
    for counter in ["unique", "lost", "duplicates", "reordered"] {
        assert_eq!(
            number(&far["account"], counter),
            number(&received, counter),
            "{counter}"
        );
    }
    // Bin by bin.
    let gaps = tshark(
        &room,
        "stream-near",
        "udp.dstport == 2630",
        "frame.time_delta_displayed",
    );
    let mut bins = BTreeMap::<u64, u64>::new();
    for gap in gaps.iter().skip(1) {
        let nanos: u64 = gap.replace('.', "").parse().unwrap();
        *bins.entry(nanos / 100_000 * 100_000).or_default() += 1;
    }
    let ours = near["gaps"]["bins"].as_object().unwrap();
    let ours: BTreeMap<u64, u64> = ours
        .iter()
        .map(|(bin, count)| (bin.parse().unwrap(), count.as_u64().unwrap()))
        .collect();
    assert_eq!(ours, bins);
    // With segmentation offload the sender's capture has trains; nothing of them is missing.
    let train = stream(&analyse(&room, "train-near"), ":2631");
    assert_eq!(
        number(&train, "datagrams"),
        number(&room.json("train.json"), "sent")
    );
    assert!(
        number(&train, "packets") < number(&train, "datagrams"),
        "{train}"
    );
    assert_eq!(number(&train["account"], "lost"), 0);
}

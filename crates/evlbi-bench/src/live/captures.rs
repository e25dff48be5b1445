//! Captures of real connections over emulated paths, compared with tshark and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evlbi_testkit::command;
use serde_json::Value;

use super::picture::{Curve, Picture, Style};
use super::programs::{Fields, HOSTS, OnPath, evlbi, printed, responder, wait};
use super::record::{Aim, Need, Record, Scene};

const NEEDS: &[Need] = &[
    Need::Paths,
    Need::Program("tcpdump"),
    Need::Program("tshark"),
    Need::Program("ss"),
];

pub const SCENES: &[Scene] = &[
    Scene {
        name: "capture",
        shows: "`analyse` finds the same retransmissions, gaps and repeated packets as tshark, at both hosts, and the same \
            counts as the kernel.",
        needs: NEEDS,
        stall: Duration::from_millis(50),
        play: capture,
    },
    Scene {
        name: "limited-by",
        shows: "The capture alone shows what limits a connection; data in flight and RTTs are tshark's.",
        needs: NEEDS,
        stall: Duration::from_millis(50),
        play: limited_by,
    },
];

/// Returns a script with a responder on the remote host; `taken NAME COMMAND` captures what a command sends, at both hosts. `done`
/// follows.
fn script(done: &str) -> String {
    let listens = wait("grep -qs listening $name-near.txt && grep -qs listening $name-far.txt");
    let closed = wait("[ -z \"$(ss -tnH state fin-wait-1 state last-ack state closing)\" ]");
    let echoed = wait(
        "{ bash -c 'echo > /dev/udp/manchester/9'; sleep 0.1; has_echo $name-near && has_echo $name-far; }",
    );
    responder("manchester", "")
        + &format!(
            "dump() {{ exec tcpdump -i wire -U --immediate-mode -s 160 -B 65536 --time-stamp-precision=nano -w $1.pcap 2> $1.txt; }}
            has_echo() {{ tcpdump -r $1.pcap 'icmp[0] = 3 and icmp[30:2] = 9' 2> /dev/null | grep -q .; }}
            taken() {{
                name=$1; shift
                (dump $name-near) & near=$!
                $E path exec manchester -- sh -c 'echo $$ > far.pid; exec tcpdump -i wire -U --immediate-mode -s 160 -B 65536 -w '$name'-far.pcap 2> '$name'-far.txt' & far=$!
                {listens}
                \"$@\" > $name.json
                # Whose connections have ended sends nothing more.
                {closed}
                # What comes back from a closed port comes after all that was sent before, in both captures.
                {echoed}
                kill $near; $E path exec manchester -- sh -c 'kill $(cat far.pid)'
                wait $near || true; wait $far || true
            }}
            {done}"
        )
}

fn analyse(path: &OnPath, name: &str) -> Result<Value> {
    let text = printed(
        evlbi()?
            .args([
                "analyse",
                &path.room.path(&format!("{name}.pcap")),
                "--json",
                "--force",
            ])
            .args(["--events", &path.room.path(&format!("{name}.csv"))])
            .args(["--interval", "100ms"]),
    )?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the direction that carried most.
fn largest(analysis: &Value) -> Result<&Value> {
    let way = &analysis["connections"][0]["ways"][0];
    ensure!(way.count("bytes")? > 100_000, "no connection carried data");
    Ok(way)
}

/// Returns the packets of each event.
fn events(path: &OnPath, name: &str) -> BTreeMap<String, BTreeSet<u64>> {
    let text = path.room.text(&format!("{name}.csv"));
    let mut events = BTreeMap::<String, BTreeSet<u64>>::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        if let Ok(packet) = fields[0].parse() {
            events
                .entry(fields[4].to_owned())
                .or_default()
                .insert(packet);
        }
    }
    events
}

fn tshark(path: &OnPath, name: &str, filter: &str, field: &str) -> Result<Vec<String>> {
    let text = printed(
        command("tshark")
            .args(["-r", &path.room.path(&format!("{name}.pcap")), "-Y", filter])
            .args(["-T", "fields", "-e", field]),
    )?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn capture(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"15ms\"\nrate = \"50M\"\nbuffer = \"1MiB\"\nforward = [{{ loss = \"1%\" }}, {{ reorder = \"0.1%\", distance = 4 }}]\n"
    ));
    let done = "taken lossy $E probe tcp manchester:8620 --duration 4s --algorithm reno --json
        nstat -asz > nstat.txt";
    path.run(&[], &script(done))?;
    record.relay(&path.state());
    let again = ["fast", "timeout", "tail_probe", "unneeded"];
    for end in ["near", "far"] {
        let name = format!("lossy-{end}");
        let analysis = analyse(&path, &name)?;
        let packets = tshark(&path, &name, "frame", "frame.number")?.len() as u64;
        record.same(
            format!("{end}: packets"),
            analysis.count("packets")?,
            packets,
        );
        let events = events(&path, &name);
        for (what, ours, theirs) in [
            (
                "retransmitted or overtaken",
                &[&again[..], &["reordered", "duplicate"]].concat()[..],
                "tcp.analysis.retransmission || tcp.analysis.out_of_order",
            ),
            ("gaps", &["gap"], "tcp.analysis.lost_segment"),
            (
                "repeated acknowledgements",
                &["duplicate_acknowledgement"],
                "tcp.analysis.duplicate_ack",
            ),
            ("full windows", &["window_full"], "tcp.analysis.window_full"),
            (
                "window updates",
                &["window_update"],
                "tcp.analysis.window_update",
            ),
            (
                "closed windows",
                &["zero_window"],
                "tcp.analysis.zero_window",
            ),
            ("keep-alives", &["keep_alive"], "tcp.analysis.keep_alive"),
            (
                "acknowledged unseen",
                &["acknowledged_unseen"],
                "tcp.analysis.ack_lost_segment",
            ),
        ] {
            let found = ours.iter().filter_map(|name| events.get(*name)).flatten();
            let found: BTreeSet<u64> = found.copied().collect();
            let expected = tshark(&path, &name, theirs, "frame.number")?;
            let expected: BTreeSet<u64> = expected
                .iter()
                .filter_map(|frame| frame.parse().ok())
                .collect();
            let differs: Vec<&u64> = found.symmetric_difference(&expected).collect();
            record.fact(
                format!("{end}: {what} are tshark's"),
                differs.is_empty(),
                format!("{} packets {differs:?}", expected.len()),
            );
        }
        let opened = "tcp.flags.syn == 1 && tcp.flags.ack == 0";
        let syns = tshark(&path, &name, opened, "tcp.stream")?.len() as u64;
        record.same(
            format!("{end}: connections"),
            analysis.list("connections")?.len() as u64,
            syns,
        );
    }
    // The counters of the sending host's kernel.
    let text = path.room.text("nstat.txt");
    let kernel = |name: &str| -> Result<u64> {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name));
        let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        count.with_context(|| format!("nstat tells no {name}"))
    };
    let flow = path.room.json("lossy.json")["flows"][0].clone();
    let near = analyse(&path, "lossy-near")?;
    let way = largest(&near)?;
    record.same(
        "segments are the kernel's",
        way.count("segments")?,
        flow.count("segments")?,
    );
    // Each connection of a test first sends a greeting.
    let greeting = way
        .count("acknowledged")?
        .saturating_sub(flow.count("bytes")?);
    record.fact(
        "bytes acknowledged are those of the flow and a greeting",
        greeting < 100,
        format!("{greeting} B"),
    );
    // Sums over all connections, by the kernel's counters.
    let mut sums = BTreeMap::<&str, u64>::new();
    for one in near.list("connections")? {
        let is_far = one["ends"][0]
            .as_str()
            .is_some_and(|end| end.starts_with("10.77.0.2"));
        let way = &one["ways"][usize::from(is_far)];
        for name in [
            "segments",
            "fast",
            "timeout",
            "probe",
            "unneeded",
            "timeouts",
            "lost_before",
        ] {
            *sums.entry(name).or_default() += way["sent_again"].count(name)?;
        }
        *sums.entry("twice").or_default() += way.count("received_twice")?;
    }
    record.same(
        "retransmitted segments equal the kernel's",
        sums["segments"],
        kernel("TcpRetransSegs")?,
    );
    record.same(
        "retransmitted = fast + timeout + probe + unneeded",
        sums["segments"],
        sums["fast"] + sums["timeout"] + sums["probe"] + sums["unneeded"],
    );
    record.same(
        "nothing was lost before the sender's capture",
        sums["lost_before"],
        0,
    );
    record.same(
        "received twice are the kernel's DSACKs",
        sums["twice"],
        kernel("TcpExtTCPDSACKRecv")?,
    );
    // A probe of the only segment in flight looks like a timeout; so does a late reply of a stalled kernel.
    let silences = kernel("TcpExtTCPTimeouts")? + kernel("TcpExtTCPLossProbes")?;
    record.figure(
        "timeouts found",
        "",
        sums["timeouts"] as f64,
        Aim::AtMost(silences as f64),
    );
    if silences == 0 {
        record.figure(
            "retransmitted after repeated acknowledgements",
            "",
            sums["fast"] as f64,
            Aim::AtLeast(sums["segments"] as f64),
        );
    }
    record.figure(
        "time limited by recovery, local",
        "%",
        way["held_back"].real("repair")? * 100.0,
        Aim::AtLeast(2.0),
    );
    // At the receiver the losses are before the capture.
    let far = analyse(&path, "lossy-far")?;
    let far_way = largest(&far)?;
    record.fact(
        "remote: losses are before the capture",
        far_way["sent_again"].count("lost_before")? > 0,
        far_way["sent_again"]["lost_before"].to_string(),
    );
    record.fact(
        "the path dropped some",
        path.cell("jive>manchester", "loss")?.count("dropped")? > 0,
        "",
    );
    record.figure(
        "near: capture is behind the sender by",
        "ms",
        way.real("behind")? * 1e3,
        Aim::AtMost(2.0),
    );
    record.figure(
        "far: capture is behind the sender by",
        "ms",
        far_way.real("behind")? * 1e3,
        Aim::Within(14.5, 30.0),
    );
    let said = far["connections"][0]["findings"].to_string();
    record.said(
        "far: the finding says where it was captured",
        said.contains("captured at the receiver"),
    );
    record.said(
        "far: the finding says where it was lost",
        said.contains("lost between the sender and here"),
    );
    Ok(())
}

fn limited_by(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"15ms\"\nrate = \"100M\"\nbuffer = \"300KiB\"\n"
    ));
    let probes = "probe() { taken $1 $E probe tcp manchester:8620 --duration 3s --algorithm reno --json $2; }
        probe constant '--rate 8M'
        probe bursts '--rate 8M --message 200k'
        probe receiver '--receive-buffer 40k'
        probe sender '--buffer 30k'
        probe path ''";
    path.run(&[], &script(probes))?;
    record.relay(&path.state());
    let mut parts = Vec::new();
    for (place, (name, part, said)) in [
        ("constant", "application", "the application"),
        ("bursts", "application", "idle"),
        ("receiver", "receiver", "the receiver takes"),
        ("sender", "sender", "its send buffer"),
        ("path", "path", "a full path"),
    ]
    .into_iter()
    .enumerate()
    {
        let near = format!("{name}-near");
        let analysis = analyse(&path, &near)?;
        let way = largest(&analysis)?;
        let findings = analysis["connections"][0]["findings"].to_string();
        let held = way["held_back"].real(part)? * 100.0;
        record.figure(
            format!("{name}: time held back by the {part}"),
            "%",
            held,
            Aim::AtLeast(50.0),
        );
        record.said(
            format!("{name}: the finding says \u{201c}{said}\u{201d}"),
            findings.contains(said),
        );
        parts.push((place as f64, held));
        if name == "bursts" {
            // One message per 0.2 s.
            record.figure(
                "bursts: idle times",
                "",
                way["idle"].count("periods")? as f64,
                Aim::AtLeast(10.0),
            );
            record.figure(
                "bursts: longest idle time",
                "s",
                way["idle"].real("longest")?,
                Aim::AtLeast(0.1),
            );
        }
        if way["sent_again"].count("segments")? > 0 {
            continue;
        }
        // Without loss tshark's figures have the same meaning.
        let from = analysis["connections"][0]["ends"][0]
            .as_str()
            .unwrap_or_default();
        let port = from.rsplit(':').next().unwrap_or_default();
        let most = |field: &str, filter: &str| -> Result<f64> {
            let values = tshark(&path, &near, filter, field)?;
            Ok(values
                .iter()
                .filter_map(|value| value.parse().ok())
                .fold(0.0, f64::max))
        };
        let flight = most(
            "tcp.analysis.bytes_in_flight",
            &format!("tcp.srcport == {port}"),
        )?;
        record.same(
            format!("{name}: flight is tshark's"),
            way["flight"].count("most")?,
            flight as u64,
        );
        let longest = most(
            "tcp.analysis.ack_rtt",
            &format!("tcp.dstport == {port} && tcp.analysis.ack_rtt"),
        )?;
        let ours = way["round_trip"].real("max")? * 1e-9;
        record.fact(
            format!("{name}: the longest round trip is tshark's"),
            (ours - longest).abs() < 1e-6,
            format!("{ours:.6} and {longest:.6} s"),
        );
    }
    let last = parts.len() as f64;
    parts.push((last, 0.0));
    record.pictures.push(Picture {
        title: "Time held back by what was made to: constant rate, bursts, receiver, sender, path"
            .to_owned(),
        x: "connection",
        y: "%",
        curves: vec![Curve::new("time", Style::Bars, parts)],
        levels: vec![(50.0, "at least".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

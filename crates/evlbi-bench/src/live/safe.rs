//! SafeUDP next to the kernel's TCP, on the paths of the papers, with a receiver that loses data itself, and on a path that shrinks.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evlbi_net::safe::State;
use evlbi_testkit::Room;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::picture::{Curve, Picture, Style};
use super::programs::{
    Fields, HOSTS, Listening, OnPath, evlbi, json_of, output_of, pair, printed, started_at, wait,
};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "safe-fairness",
        shows: "A flow under SafeUDP (51.2 Mbit/s, k = 3) gets k/2 to 3 k times the rate of the kernel's TCP connections beside it, if it sheds.",
        needs: &[Need::Paths, Need::Program("iperf3")],
        stall: Duration::from_millis(100),
        play: fairness,
    },
    Scene {
        name: "safe-table",
        shows: "The same in virtual time at full rates, for 1 to 64 connections of this project's models of TCP.",
        needs: &[],
        stall: Duration::MAX,
        play: table,
    },
    Scene {
        name: "safe-paths",
        shows: "What becomes of 512 Mbit/s on a switch that drops packets and on a damaged fibre, on a shared path and on one's own.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(50),
        play: paths,
    },
    Scene {
        name: "safe-host",
        shows: "A receiver that is stopped for 0.2 s of each second, with a socket buffer of 64 KiB: its losses are its own.",
        needs: &[Need::Root],
        stall: Duration::from_millis(100),
        play: host,
    },
    Scene {
        name: "safe-stop",
        shows: "A receiver that is stopped for 12 s: half of the rate after 2 to 3 s, no data from 10 s on, and both are reported.",
        needs: &[Need::Root],
        stall: Duration::from_millis(100),
        play: stop,
    },
    Scene {
        name: "safe-capacity",
        shows: "512 Mbit/s on a path whose capacity falls to 60 % of that for a minute: rate, loss, state and fringe weight.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(50),
        play: capacity,
    },
];

/// Data per datagram in bytes, as in the papers.
const SIZE: u32 = 1424;
/// Time from the first beat to the data: four rates of probes.
const RAMP: f64 = 4.5;

/// Returns a script that sends from the plan's first host to `far` under SafeUDP, with `beside` after the sender has started.
fn script(far: &str, source: &str, send: &str, recv: &str, beside: &str) -> String {
    format!(
        "head -c 32 /dev/urandom > key
        $E path exec {far} -- $E recv udp://0.0.0.0:2630 --safe --key-file key {recv} --json > recv.json 2> recv.txt & R=$!
        {}
        $E send {source} --to udp://{far}:2630 --key-file key {send} --json > send.json 2> send.txt & S=$!
        {beside}
        wait $S || true
        kill -TERM $R; wait $R || true",
        wait("grep -q listening recv.txt")
    )
}

/// Steps of a flow: when each began, in seconds since the start of the flow, and the fraction of the data sent from then on.
fn steps(sent: &Value) -> Result<Vec<(f64, f64)>> {
    let mut steps = vec![(0.0, 1.0)];
    for notice in sent["safe"].list("notices")? {
        let kept = match notice.text("kind")? {
            "clear" => Some(1.0),
            _ => notice["kept"].as_f64(),
        };
        steps.extend(kept.map(|kept| (notice["at_s"].as_f64().unwrap_or(0.0), kept)));
    }
    Ok(steps)
}

/// Returns the mean fraction that was sent between two times.
fn kept(steps: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let ends = steps.iter().skip(1).map(|(at, _)| *at).chain([f64::MAX]);
    let parts = steps.iter().zip(ends).map(|((begins, kept), ends)| {
        let span = ends.min(to) - begins.max(from);
        span.max(0.0) * kept
    });
    parts.sum::<f64>() / (to - from)
}

/// Checks the accounts of both ends, if the sender had a last report.
fn agree(record: &mut Record, name: &str, sent: &Value, received: &Value) {
    let [here, there] = [&sent["safe"]["accounts"], &received["safe"]["accounts"]];
    record.fact(
        format!("{name}: both ends have the same accounts"),
        here == there && here.is_object(),
        format!("{here} and {there}"),
    );
}

fn fairness(record: &mut Record) -> Result<()> {
    // A tenth of 512 Mbit/s on 1 Gbit/s.
    let plan = format!("{HOSTS}rtt = \"15ms\"\nrate = \"100M\"\nbuffer = \"117KiB\"\n");
    let (rate, weight) = (51.2e6, 3.0);
    for algorithm in ["reno", "cubic", "bbr"] {
        for count in [1u32, 4, 16] {
            let path = OnPath::new(&plan);
            let beside = format!(
                "$E path exec manchester -- iperf3 -s -1 > server.txt &
                {}
                sleep 5; iperf3 -c manchester -C {algorithm} -P {count} -t 60 -i 1 -J > client.json",
                wait("$E path exec manchester -- ss -ltnH | grep -q :5201")
            );
            let send = "--rate 51.2M --duration 63s --safe shared --weight 3 --least 1/16";
            path.run(
                &[],
                &script(
                    "manchester",
                    &format!("pattern:{SIZE}"),
                    send,
                    "--to null",
                    &beside,
                ),
            )?;
            record.relay(&path.state());
            let name = format!("{algorithm}, {count}");
            let [sent, received] = ["send.json", "recv.json"].map(|file| path.room.json(file));
            let client: Value = serde_json::from_str(&path.room.text("client.json"))?;
            agree(record, &name, &sent, &received);
            let steps = steps(&sent)?;
            let part = kept(&steps, 35.0, 65.0);
            // Without the first half.
            let mut tcp = Vec::new();
            for interval in client.list("intervals")? {
                let sum = &interval["sum"];
                if (30.0..60.0).contains(&sum.real("start")?) {
                    tcp.push(sum.real("bits_per_second")?);
                }
            }
            let mean = tcp.iter().sum::<f64>() / tcp.len().max(1) as f64 / f64::from(count);
            let has_shed = part < 1.0;
            record.figure(
                format!("{name}: flow"),
                "Mbit/s",
                part * rate * 1e-6,
                Aim::Shown,
            );
            record.figure(
                format!("{name}: mean of TCP"),
                "Mbit/s",
                mean * 1e-6,
                Aim::Shown,
            );
            let aim = match has_shed && algorithm != "bbr" {
                true => Aim::Within(weight / 2.0, 3.0 * weight),
                false => Aim::Shown,
            };
            record.figure(format!("{name}: flow / TCP"), "", part * rate / mean, aim);
        }
    }
    Ok(())
}

fn table(record: &mut Record) -> Result<()> {
    let mut test = evlbi_testkit::cargo();
    test.args(["test", "--package", "evlbi-proto", "--test", "integration"])
        .args(["fairness::a_flow_that_sheds", "--", "--nocapture"])
        .env("EVLBI_FAIRNESS", "1");
    let said = test.output().context("cargo")?;
    ensure!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    // Lines as `Reno, k = 3, 4 flows: 51.2 and 10.9 Mbit/s, ratio 4.69, nothing shed`.
    for line in String::from_utf8_lossy(&said.stdout).lines() {
        let Some((case, ratio)) = line.split_once(", ratio ") else {
            continue;
        };
        let (number, remark) = ratio.split_at(ratio.find(',').unwrap_or(ratio.len()));
        let weight = case
            .split_once("k = ")
            .and_then(|(_, rest)| rest.split(',').next());
        let weight: f64 = weight
            .unwrap_or_default()
            .parse()
            .context(case.to_owned())?;
        let is_asserted = !case.starts_with("Bbr") && weight < 10.0 && remark.is_empty();
        let aim = match is_asserted {
            true => Aim::Within(weight / 2.0, 3.0 * weight),
            false => Aim::Shown,
        };
        record.figure(format!("{case}{remark}"), "", number.parse()?, aim);
    }
    Ok(())
}

fn paths(record: &mut Record) -> Result<()> {
    for (example, far) in [("cisco7600", "jive"), ("broken-fibre", "jodrell")] {
        for mode in ["shared", "reserved"] {
            let path = OnPath::new(&OnPath::example(example)?);
            let send = format!("--rate 512M --duration 60s --safe {mode}");
            let source = format!("pattern:{SIZE}");
            path.run(&[], &script(far, &source, &send, "--to null", ""))?;
            record.relay(&path.state());
            let name = format!("{example}, {mode}");
            let [sent, received] = ["send.json", "recv.json"].map(|file| path.room.json(file));
            agree(record, &name, &sent, &received);
            let all = &sent["safe"]["accounts"];
            let of = |name: &str| all[name].as_f64().unwrap_or(f64::NAN);
            record.figure(
                format!("{name}: sent"),
                "%",
                100.0 * of("sent") / of("offered"),
                Aim::Shown,
            );
            record.figure(
                format!("{name}: lost of it"),
                "%",
                100.0 * of("lost") / of("sent"),
                Aim::Shown,
            );
            let kinds = sent["safe"].list("notices")?.iter();
            let kinds: Vec<&str> = kinds.filter_map(|notice| notice["kind"].as_str()).collect();
            record.fact(format!("{name}: notices"), true, kinds.join(", "));
        }
    }
    Ok(())
}

fn host(record: &mut Record) -> Result<()> {
    for (name, more) in [("with GRO", ""), ("without", "--no-gro")] {
        let pair = pair()?;
        let room = Room::new();
        let key = room.write("key", [7; 32]);
        let mut recv = evlbi()?;
        recv.args([
            "recv",
            &format!("udp://{}:2630", pair.far.v4),
            "--to",
            "null",
        ])
        .args(["--buffer", "64KiB", "--safe", "--key-file", &key, "--json"])
        .args(more.split_whitespace());
        let recv = pair
            .far
            .namespace
            .run(|| Listening::start(&mut recv, 1))??;
        let mut send = evlbi()?;
        send.args(["send", &format!("pattern:{SIZE}"), "--to"])
            .arg(format!("udp://{}:2630", pair.far.v4))
            .args(["--rate", "100M", "--duration", "45s", "--safe", "shared"])
            .args(["--key-file", &key, "--json"]);
        let mut send = started_at(&pair.near, &mut send)?;
        while send.try_wait()?.is_none() {
            recv.signal(Signal::SIGSTOP);
            thread::sleep(Duration::from_millis(200));
            recv.signal(Signal::SIGCONT);
            thread::sleep(Duration::from_millis(800));
        }
        let sent = json_of(&output_of(send)?)?;
        let received: Value = serde_json::from_str(&recv.stop()?)?;
        agree(record, name, &sent, &received);
        let notices = sent["safe"].list("notices")?;
        let at = |kind: &str| {
            let found = notices.iter().find(|notice| notice["kind"] == kind);
            found.and_then(|notice| notice["at_s"].as_f64())
        };
        let noticed = at("host").unwrap_or(f64::NAN);
        record.figure(
            format!("{name}: notice"),
            "s",
            noticed,
            Aim::AtMost(RAMP + 3.0),
        );
        let shed = at("shedding").unwrap_or(f64::INFINITY);
        record.figure(
            format!("{name}: from the notice to the first shed data"),
            "s",
            shed - noticed,
            Aim::Within(30.0, 36.0),
        );
        let shed: Vec<f64> = (notices.iter())
            .filter(|notice| notice["kind"] == "shedding")
            .filter_map(|notice| notice["kept"].as_f64())
            .collect();
        record.fact(
            format!("{name}: shed once, to 3/4"),
            shed == [0.75],
            format!("{shed:?}"),
        );
        record.figure(
            format!("{name}: notices of congestion"),
            "",
            f64::from(u8::from(at("congested").is_some())),
            Aim::AtMost(0.0),
        );
        let all = &sent["safe"]["accounts"];
        let of = |part: &str| all[part].as_f64().unwrap_or(f64::NAN);
        for part in ["lost", "host", "unattributed"] {
            record.figure(format!("{name}: {part}"), "datagrams", of(part), Aim::Shown);
        }
        record.figure(
            format!("{name}: lost in the network, of all"),
            "%",
            100.0 * of("network") / of("lost"),
            Aim::AtMost(0.1),
        );
    }
    Ok(())
}

fn stop(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let room = Room::new();
    let key = room.write("key", [7; 32]);
    let to = format!("udp://{}:2630", pair.far.v4);
    let mut recv = evlbi()?;
    recv.args(["recv", &to, "--to", "null"])
        .args(["--safe", "--key-file", &key, "--json"]);
    let recv = pair
        .far
        .namespace
        .run(|| Listening::start(&mut recv, 1))??;
    let mut send = evlbi()?;
    send.args(["send", &format!("pattern:{SIZE}"), "--to", &to])
        .args(["--rate", "16M", "--duration", "20s", "--safe", "reserved"])
        .args(["--key-file", &key, "--control", "send.sock", "--json"])
        .current_dir(room.folder());
    let mut send = started_at(&pair.near, &mut send)?;
    let sent = |value: &Value| value["status"]["sending"]["sent"].as_f64();
    let begun = Instant::now();
    while ask(&room, "send.sock").as_ref().and_then(sent) < Some(4000.0) {
        ensure!(
            begun.elapsed() < Duration::from_secs(60),
            "the flow does not start"
        );
        thread::sleep(Duration::from_millis(20));
    }
    recv.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let mut seen = Vec::new();
    while stopped.elapsed() < Duration::from_secs(12) {
        let status = ask(&room, "send.sock").context("no status of the sender")?;
        let safe = &status["status"]["sending"]["safe"];
        seen.push((
            stopped.elapsed().as_secs_f64(),
            sent(&status).context("no count")?,
            safe.real("kept")?,
        ));
        thread::sleep(Duration::from_millis(20));
    }
    recv.signal(Signal::SIGCONT);
    let alive = send.try_wait()?.is_none();
    let output = output_of(send)?;
    let result: Value = serde_json::from_slice(&output.stdout)?;
    let received: Value = serde_json::from_str(&recv.stop()?)?;
    agree(record, "after 12 s", &result, &received);
    let half = seen.iter().find(|(_, _, kept)| *kept <= 0.5);
    let (after, _, kept) = half.context("the rate was not halved")?;
    record.figure("half of the rate after", "s", *after, Aim::Within(1.9, 3.0));
    record.figure("of the data", "", *kept, Aim::Within(0.5, 0.5));
    let late = seen.iter().filter(|(at, _, _)| *at >= 10.0);
    let late: Vec<f64> = late.map(|(_, sent, _)| *sent).collect();
    let sent = late.last().zip(late.first());
    let sent = sent.map_or(f64::NAN, |(last, first)| last - first);
    record.figure("sent from 10 s on", "datagrams", sent, Aim::AtMost(0.0));
    let notices = result["safe"].list("notices")?;
    let kinds: Vec<&str> = (notices.iter())
        .filter_map(|notice| notice["kind"].as_str())
        .collect();
    record.fact(
        "the notices say so",
        kinds == ["blind", "shedding", "stopped"],
        kinds.join(", "),
    );
    record.fact(
        "the status of the sender is 1, and its result says blind",
        alive && output.status.code() == Some(1) && result["safe"]["cut_off"] == "blind",
        format!("{}, {}", output.status, result["safe"]["cut_off"]),
    );
    Ok(())
}

/// Section 4.7 of the EXPReS report: congestion is noticed, evaluated, reported, and then answered.
fn capacity(record: &mut Record) -> Result<()> {
    let (begins, ends, length) = (10.0, 70.0, 132u32);
    // Two stations of 512 Mbit/s that observe the same sky; 4 s of it, sent again and again.
    let sky = "start = \"2024-05-01T12:00:00Z\"\nduration = 4.0\nseed = 2024\nsample_rate = 64_000_000\nbits = 2\nchannels = 4\n\
        threads = 4\npayload = 8000\nedv = 1\ncorrelation = 0.3\nsky_frequency = 4_980_000_000\n\
        [[station]]\nname = \"Ef\"\n[[station]]\nname = \"On\"\n";
    // 60 % of the flow with its headers: Ethernet and what is between packets, IPv4, UDP, sequence number.
    let low = 0.6 * 512e6 * (FRAME + 74.0) / FRAME;
    let change = [(begins, low), (ends, 1e9)].map(|(at, rate)| {
        let at = at + RAMP;
        format!("{{ at = \"{at}s\", rate = \"{rate:.0}\" }}")
    });
    let path = OnPath::new(&format!(
        "mtu = 9000\n{HOSTS}rtt = \"15ms\"\nforward = [{{ name = \"capacity\", rate = \"1G\", buffer = \"2MiB\", change = [{}] }}]\n",
        change.join(", ")
    ));
    path.room.write("sky.toml", sky);
    let here = |arguments: &[&str]| -> Result<String> {
        let mut command = evlbi()?;
        printed(command.args(arguments).current_dir(path.room.folder()))
    };
    here(&["sky", "sky.toml", "--out", "."])?;
    let repeat = (length / 4).to_string();
    let send = format!("--repeat {repeat} --mtu 9000 --safe shared");
    let send = format!("{send} --control send.sock");
    let recv = "--to Ef-received.vdif --control recv.sock";
    let is_over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&path.room, &is_over));
        let ran = path.run(&[], &script("manchester", "Ef.vdif", &send, recv, ""));
        is_over.store(true, Ordering::Relaxed);
        ran.map(|_| watching.join().unwrap_or_default())
    })?;
    record.relay(&path.state());
    let [sent, received] = ["send.json", "recv.json"].map(|file| path.room.json(file));
    agree(record, "the flow", &sent, &received);
    // All of the other station.
    let mut recv = evlbi()?;
    recv.args(["recv", "tcp://127.0.0.1:0", "--to", "On-received.vdif"])
        .current_dir(path.room.folder());
    let recv = Listening::start(&mut recv, 1)?;
    let to = format!("tcp://{}", recv.address());
    here(&["send", "On.vdif", "--repeat", &repeat, "--max", "--to", &to])?;
    recv.finish()?;

    // Times count from the first data.
    let first = seen.iter().find(|seen| seen.offered > 0.0);
    let start = first.map_or(RAMP, |seen| seen.at);
    let parts = seen.windows(2).filter(|two| two[0].at >= start);
    let parts: Vec<(f64, f64, f64)> = parts
        .map(|two| {
            let change = |of: fn(&Seen) -> f64| of(&two[1]) - of(&two[0]);
            let middle = (two[0].at + two[1].at) / 2.0 - start;
            let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
            let sent = share(change(|seen| seen.sent), change(|seen| seen.offered));
            let lost = share(change(|seen| seen.lost), change(|seen| seen.expected));
            (middle, sent, lost.clamp(0.0, 1.0))
        })
        .collect();
    let mut weights = Vec::new();
    for second in 1..=length {
        let part = format!("{second}/{length}");
        let found = here(&[
            "correlate",
            "Ef-received.vdif",
            "On-received.vdif",
            "--channels",
            "128",
            "--chunk",
            &part,
            "--json",
        ])?;
        let found: Value = serde_json::from_str(&found)?;
        let baseline = &found["baselines"][0];
        let at = f64::from(second) - 0.5;
        // A thread that was shed is a band without data.
        let mut bands = Vec::new();
        for band in baseline.list("bands")? {
            bands.push(band.real("weight")?);
        }
        let weight = bands.iter().sum::<f64>() / bands.len().max(1) as f64;
        weights.push((at, weight));
    }
    let mean = |from: f64, to: f64| {
        let within = weights.iter().filter(|(at, _)| (from..to).contains(at));
        let within: Vec<f64> = within.map(|(_, weight)| *weight).collect();
        within.iter().sum::<f64>() / within.len().max(1) as f64
    };
    record.figure(
        "weight before",
        "",
        mean(0.0, begins - 1.0),
        Aim::AtLeast(0.999),
    );
    record.figure(
        "weight while the capacity is low",
        "",
        mean(begins, ends),
        Aim::Within(0.3, 0.6),
    );
    // Each state from when it was seen first; all but suspect come with a notice.
    let mut marks: Vec<(f64, &str)> = Vec::new();
    for seen in seen.iter().filter(|seen| seen.at >= start) {
        if marks.last().is_none_or(|(_, state)| *state != seen.state) {
            marks.push((seen.at - start, seen.state));
        }
    }
    let notices = sent["safe"].list("notices")?;
    let first = |kind: &str| {
        let notice = notices.iter().find(|notice| notice["kind"] == kind)?;
        Some(notice["at_s"].as_f64()? - start)
    };
    let noticed = first("congested").context("no notice of congestion")? - begins;
    record.figure("notice of congestion after", "s", noticed, Aim::AtMost(5.0));
    let shed = first("shedding").context("nothing was shed")? - begins;
    record.figure("data shed after", "s", shed, Aim::AtMost(7.0));
    let all = &sent["safe"]["accounts"];
    record.figure(
        "lost",
        "%",
        100.0 * all.real("lost")? / all.real("sent")?,
        Aim::AtMost(5.0),
    );
    record.figure(
        "shed",
        "%",
        100.0 * all.real("shed")? / all.real("offered")?,
        Aim::Shown,
    );
    record.pictures.push(Picture {
        title: "512 Mbit/s while the capacity is 60 % of it for a minute".to_owned(),
        x: "s",
        y: "fraction",
        curves: vec![
            Curve::new("weight of the baseline", Style::Bars, weights),
            Curve::new(
                "rate sent, of 512 Mbit/s",
                Style::Line,
                parts.iter().map(|part| (part.0, part.1)).collect(),
            ),
            Curve::new(
                "lost of that",
                Style::Dots,
                parts.iter().map(|part| (part.0, part.2)).collect(),
            ),
        ],
        marks,
        levels: vec![(0.6, "capacity for a minute".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

/// Asks a flow for its status.
fn ask(room: &Room, name: &str) -> Option<Value> {
    let mut socket = UnixStream::connect(room.folder().join(name)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    socket.write_all(b"{\"do\":\"status\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Counters of both ends at a time.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Seconds since the sender was first seen.
    at: f64,
    offered: f64,
    sent: f64,
    expected: f64,
    lost: f64,
    state: &'static str,
}

/// Asks both ends for their counters four times a second, until `is_over`.
fn watch(room: &Room, is_over: &AtomicBool) -> Vec<Seen> {
    let (mut begun, mut seen) = (None, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(250));
        let (Some(here), Some(there)) = (ask(room, "send.sock"), ask(room, "recv.sock")) else {
            continue;
        };
        let begun = *begun.get_or_insert_with(Instant::now);
        let of = |value: &Value, name: &str| value[name].as_f64().unwrap_or(0.0);
        let (sending, receiving) = (&here["status"]["sending"], &there["status"]["receiving"][0]);
        seen.push(Seen {
            at: begun.elapsed().as_secs_f64(),
            offered: of(sending, "offered"),
            sent: of(sending, "sent"),
            expected: of(receiving, "expected"),
            lost: of(receiving, "lost"),
            state: (0..)
                .map_while(State::from_byte)
                .map(State::name)
                .find(|name| sending["safe"]["state"] == *name)
                .unwrap_or_default(),
        });
    }
    seen
}

/// Bytes of a frame of the simulated stations.
const FRAME: f64 = 8032.0;

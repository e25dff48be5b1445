//! Bulk TCP between two hosts: shares, punctuality, the kernel's state, and limits of a flow.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evlbi_net::transport::Protocol;
use evlbi_testkit::Room;
use evlbi_testkit::netns::Pair;
use serde_json::Value;

use super::buckets::{filter, limit};
use super::picture::{Curve, Picture, Style};
use super::programs::{
    Fields, LIMIT, ask, asked, evlbi, json_of, label, output, pair, respond, respond_by, shifted,
};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "shared-wire",
        shows: "Two connections in each direction share a wire; every sample of them is kept.",
        needs: &[Need::Root],
        stall: Duration::from_millis(100),
        play: shares,
    },
    Scene {
        name: "constant-rate",
        shows: "8000 messages a second arrive over TCP once each, in order and on time, by a remote clock that is off by 33.5 s.",
        needs: &[Need::Root, Need::Program("cc")],
        stall: Duration::from_millis(30),
        play: constant_rate,
    },
    Scene {
        name: "ss",
        shows: "Samples of a connection equal what `ss` reports at the same acknowledgement.",
        needs: &[Need::Root, Need::Program("tc"), Need::Program("ss")],
        stall: Duration::from_millis(100),
        play: samples,
    },
    Scene {
        name: "held-back",
        shows: "The limit of a flow is named: the application, losses, the sending host's own queue.",
        needs: &[Need::Root, Need::Program("tc"), Need::Program("nft")],
        stall: Duration::from_millis(100),
        play: held_back,
    },
    Scene {
        name: "stalled-reader",
        shows: "`send --duration` over TCP ends on time although the reader takes nothing.",
        needs: &[],
        stall: Duration::from_millis(100),
        play: stalled_reader,
    },
];

/// Returns a column of the lines of a sample file that start like this.
fn column(text: &str, begins: &str, name: &str) -> Result<Vec<f64>> {
    let mut lines = text.lines();
    let heads = lines.next().context("no samples")?.split(',');
    let place = heads.clone().position(|head| head == name);
    let place = place.with_context(|| format!("samples have no {name}"))?;
    let of = lines.filter(|line| line.starts_with(begins));
    of.map(|line| {
        let field = line.split(',').nth(place).context("a short line")?;
        Ok(field.parse()?)
    })
    .collect()
}

fn shares(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let room = Room::new();
    let samples = room.path("s.csv");
    let more = [
        "--streams",
        "2",
        "--both",
        "--algorithm",
        "reno,cubic",
        "--duration",
        "2s",
        "--interval",
        "500ms",
        "--samples",
        &samples,
    ];
    let result = asked(&pair, Protocol::Tcp.name(), &more)?;
    record.looks(&result, 10);
    let flows = result.list("flows")?;
    let laws: Vec<&str> = flows
        .iter()
        .map(|flow| flow.text("algorithm"))
        .collect::<Result<_>>()?;
    record.fact(
        "algorithms are used in turn",
        laws == ["reno", "cubic", "reno", "cubic"],
        laws.join(", "),
    );
    let mut errors = 0;
    for (place, flow) in flows.iter().enumerate() {
        errors += flow.list("errors")?.len();
        let name = format!(
            "{} {}",
            flow.text("algorithm")?,
            label(flow.text("direction")?)
        );
        record.figure(
            format!("flow {place}, {name}: data in 2 s"),
            "MB",
            flow.count("bytes")? as f64 * 1e-6,
            Aim::AtLeast(1.0),
        );
        record.figure(
            format!("flow {place}, {name}: intervals of 0.5 s"),
            "",
            flow.list("intervals")?.len() as f64,
            Aim::AtLeast(4.0),
        );
    }
    record.same("errors of the flows", errors as u64, 0);
    for total in result.list("totals")? {
        let of = flows
            .iter()
            .filter(|flow| flow["direction"] == total["direction"]);
        let rates: Vec<f64> = of.map(|flow| flow.real("rate")).collect::<Result<_>>()?;
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let fairness = sum * sum / (2.0 * squares);
        let way = label(total.text("direction")?);
        record.fact(
            format!("{way}: the fairness is Jain's of the rates"),
            (total.real("fairness")? - fairness).abs() < 1e-9,
            format!("{fairness:.6}"),
        );
        record.figure(format!("{way}: rate"), "Gbit/s", sum * 1e-9, Aim::Shown);
        record.figure(format!("{way}: fairness"), "", fairness, Aim::Shown);
    }
    let text = room.text("s.csv");
    for who in ["0,sender,", "3,receiver,"] {
        let count = text.lines().filter(|line| line.starts_with(who)).count();
        let name = who.trim_end_matches(',').replace(',', " of the ");
        record.figure(
            format!("samples of flow {name}"),
            "",
            count as f64,
            Aim::AtLeast(101.0),
        );
    }
    Ok(())
}

fn constant_rate(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let room = Room::new();
    let mut responder = evlbi()?;
    shifted(&room, -33.5, 30e-6)?.apply(&mut responder);
    let responder = respond_by(&pair, responder, &[])?;
    let records = room.path("r.csv");
    let more = [
        "--rate",
        "64M",
        "--message",
        "1000",
        "--duration",
        "3s",
        "--records",
        &records,
        "--limit",
        "5000",
        "--both",
    ];
    let result = json_of(&ask(&pair, &responder, Protocol::Tcp.name(), &more)?)?;
    responder.stop()?;
    record.looks(&result, 10);
    for flow in result.list("flows")? {
        let way = label(flow.text("direction")?);
        let messages = &flow["messages"];
        let mut counts = Vec::new();
        for name in ["due", "sent", "received", "shed"] {
            counts.push(messages.count(name)?);
        }
        record.fact(
            format!("{way}: all 24,000 messages came"),
            counts == [24_000, 24_000, 24_000, 0] && flow.count("bytes")? == 24_000_000,
            format!("due, sent, received, shed: {counts:?}"),
        );
        // The clock offset is recovered within its own error in this time: 90 us.
        record.figure(
            format!("{way}: median delay"),
            "ms",
            messages["delay"].real("median")? * 1e-6,
            Aim::Within(-0.5, 0.5),
        );
    }
    let kept = room.text("r.csv").lines().skip(1).count();
    record.same(
        "records kept, each fifth message of both directions",
        kept as u64,
        2 * 4800,
    );
    Ok(())
}

/// Installs a token bucket on the outbound path of a host, with a capacity of 200 ms.
fn slow(pair: &Pair, rate: &str) -> Result<()> {
    limit(&pair.near, rate, &["burst", "32kb", "latency", "200ms"])
}

fn samples(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    slow(&pair, "50mbit")?;
    let responder = respond(&pair, &[])?;
    let room = Room::new();
    let samples = room.path("s.csv");
    let more = [
        "--duration",
        "3s",
        "--sample",
        "1ms",
        "--algorithm",
        "reno",
        "--samples",
        &samples,
    ];
    let (output, said) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| ask(&pair, &responder, Protocol::Tcp.name(), &more));
        let mut said = Vec::new();
        let begun = Instant::now();
        while !probing.is_finished() && begun.elapsed() < LIMIT {
            if let Ok(listed) = pair.near.namespace.command("ss", &["-tinOH"]) {
                said.extend(listed.lines().map(str::to_owned));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        (probing.join(), said)
    });
    responder.stop()?;
    let output = output.ok().context("the probe's thread failed")??;
    let result = json_of(&output)?;
    record.looks(&result, 10);
    let port = result["flows"][0]["ports"][0].to_string();
    let text = room.text("s.csv");
    let of = |name: &str| column(&text, "0,sender,", name);
    let [acknowledged, window, segment, path_mtu, round_trip] = [
        of("acknowledged")?,
        of("window")?,
        of("segment")?,
        of("path_mtu")?,
        of("round_trip")?,
    ];
    let (mut compared, mut differs) = (0, Vec::new());
    for line in said
        .iter()
        .filter(|line| line.contains(&format!(":{port} ")))
    {
        let word = |name: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name))
        };
        let number = |name: &str| word(name)?.parse::<f64>().ok();
        let Some(theirs) = number("bytes_acked:") else {
            continue;
        };
        let same: Vec<usize> = (0..acknowledged.len())
            .filter(|place| acknowledged[*place] == theirs)
            .collect();
        // Values that change only with acknowledgements are equal at the same acknowledgement; a timeout needs none.
        if same.is_empty() || line.contains(" backoff:") || line.contains(" lost:") {
            continue;
        }
        let time = word("rtt:").and_then(|word| word.split_once('/')?.0.parse::<f64>().ok());
        let is_same = |place: &usize| {
            let place = *place;
            // It prints six digits.
            let is_time = time.is_some_and(|time| {
                let theirs = time * 1e3;
                (round_trip[place] - theirs).abs() <= 0.5 + 5e-6 * theirs
            });
            number("cwnd:") == Some(window[place])
                && number("mss:") == Some(segment[place])
                && number("pmtu:") == Some(path_mtu[place])
                && is_time
        };
        compared += 1;
        if !same.iter().any(is_same) {
            differs.push(line.clone());
        }
    }
    record.fact(
        "window, segment, path MTU and round trip are those of ss",
        differs.is_empty(),
        format!("{compared} compared {}", differs.join(" | ")),
    );
    record.figure(
        "lines of ss compared",
        "",
        f64::from(compared),
        Aim::AtLeast(5.0),
    );
    let seconds = of("seconds")?;
    record.pictures.push(Picture {
        title: "Window behind a queue of 200 ms at 50 Mbit/s".to_owned(),
        x: "s",
        y: "segments",
        curves: vec![Curve::new(
            "kernel",
            Style::Line,
            seconds.into_iter().zip(window).collect(),
        )],
        ..Picture::default()
    });
    Ok(())
}

fn held_back(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let part = |result: &Value, name: &str| result["flows"][0]["course"]["held_back"].real(name);
    // The application provides less than the path carries.
    let app = asked(
        &pair,
        Protocol::Tcp.name(),
        &["--rate", "5M", "--duration", "2s"],
    )?;
    record.looks(&app, 10);
    record.figure(
        "time held back by the application",
        "%",
        part(&app, "application")? * 100.0,
        Aim::AtLeast(90.0),
    );
    let messages = &app["flows"][0]["messages"];
    let of = |name: &str| messages.count(name);
    record.fact(
        "all messages came",
        of("sent")? == of("due")? && of("received")? == of("due")? && of("shed")? == 0,
        format!("{} due", of("due")?),
    );
    let rate = app["flows"][0].real("rate")?;
    record.fact(
        "`as requested` is printed for a rate that was reached, and for no other",
        app["findings"].to_string().contains("as requested") == (rate >= 0.99 * 5e6),
        format!("{:.3} Mbit/s", rate * 1e-6),
    );
    record.near("rate of 5 Mbit/s", "Mbit/s", rate * 1e-6, 5.0, 0.01);
    // A network drops what exceeds its rate: losses, and reduced windows after them.
    filter(
        &pair.far,
        &[
            "tcp flags & syn == 0 tcp dport != 22 limit rate over 4 mbytes/second burst 128 kbytes drop",
        ],
    )?;
    let lossy = asked(
        &pair,
        Protocol::Tcp.name(),
        &["--algorithm", "reno", "--buffer", "4M", "--duration", "4s"],
    )?;
    record.looks(&lossy, 10);
    let held = part(&lossy, "window")? + part(&lossy, "repair")?;
    record.figure(
        "time held back by losses",
        "%",
        held * 100.0,
        Aim::AtLeast(80.0),
    );
    record.fact(
        "segments were retransmitted",
        lossy["flows"][0].count("sent_again")? > 0,
        lossy["flows"][0]["sent_again"].to_string(),
    );
    // A queue of the sending host loses nothing.
    slow(&pair, "20mbit")?;
    let queue = asked(
        &pair,
        Protocol::Tcp.name(),
        &["--algorithm", "reno", "--duration", "2s"],
    )?;
    record.looks(&queue, 10);
    record.figure(
        "time held back by the host's own queue",
        "%",
        part(&queue, "host")? * 100.0,
        Aim::AtLeast(80.0),
    );
    Ok(())
}

fn stalled_reader(record: &mut Record) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = format!("tcp://{}", listener.local_addr()?);
    let begun = Instant::now();
    let mut send = evlbi()?;
    send.args([
        "send",
        "pattern:8032",
        "--to",
        &to,
        "--json",
        "--max",
        "--duration",
        "5s",
    ]);
    let result = json_of(&output(&mut send)?)?;
    let seconds = begun.elapsed().as_secs_f64();
    record.figure("time until it ended", "s", seconds, Aim::Within(5.0, 6.0));
    let not_sent = result.count("not_sent")?;
    record.figure("frames not sent", "", not_sent as f64, Aim::AtLeast(1.0));
    record.same(
        "offered = sent + not sent",
        result.count("offered")?,
        result.count("sent")? + not_sent,
    );
    // Everything that was sent waits in the connection.
    let (mut connection, _) = listener.accept()?;
    let taken = std::io::copy(&mut connection, &mut std::io::sink())?;
    record.same(
        "what left is in the connection",
        taken,
        result.count("bytes")?,
    );
    Ok(())
}

//! Delays of emulated paths, by ping and by the program's own probes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evlbi_net::transport::Protocol;
use evlbi_testkit::Room;
use serde_json::Value;

use super::picture::{Curve, Picture, Style};
use super::programs::{
    Fields, HOSTS, Listening, OnPath, evlbi, json_of, label, output, responder_with, shifted, wait,
};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "ping",
        shows: "The RTT of an emulated path is the plan's delay; ping measures the excess.",
        needs: &[Need::Paths, Need::Program("ping"), Need::Program("tcpdump")],
        stall: Duration::from_millis(5),
        play: ping,
    },
    Scene {
        name: "one-way-delay",
        shows: "A probe measures one-way delays of 10 and 20 ms, although the remote clock is off by 1234.5 s and runs 20 ppm fast.",
        needs: &[Need::Paths, Need::Program("cc")],
        stall: Duration::from_millis(30),
        play: one_way,
    },
    Scene {
        name: "far-clock",
        shows: "A clock offset of an hour is detected, and delays over loopback stay correct.",
        needs: &[Need::Program("cc")],
        stall: Duration::from_millis(30),
        play: far_clock,
    },
    Scene {
        name: "doctor",
        shows: "`doctor` sizes buffers for loopback by the RTT that it measures.",
        needs: &[],
        stall: Duration::from_millis(30),
        play: doctor,
    },
];

fn ping(record: &mut Record) -> Result<()> {
    let mut curves = Vec::new();
    for delay in [1.0, 15.0, 95.0] {
        let path = OnPath::new(&format!("{HOSTS}rtt = \"{delay}ms\"\n"));
        // Ping prints only one decimal; the kernel's timestamps are exact.
        let script = format!(
            "tcpdump -i wire -U --immediate-mode --time-stamp-precision=nano -w p.pcap icmp 2> tcpdump.txt & T=$!
            {}
            ping -q -n -i 0.005 -c 600 manchester
            kill $T; wait $T || true
            tcpdump -r p.pcap -tt -n --time-stamp-precision=nano > stamps.txt",
            wait("grep -q listening tcpdump.txt")
        );
        let said = path.run(&[], &script)?;
        record.relay(&path.state());
        let summary = said.split_once("rtt min/avg/max/mdev = ");
        let shortest = summary.and_then(|(_, rest)| rest.split('/').next()?.parse::<f64>().ok());
        let shortest = shortest.with_context(|| format!("no summary of ping: {said}"))?;
        record.figure(
            format!("{delay} ms: shortest by ping, over the plan"),
            "ms",
            shortest - delay,
            Aim::AtLeast(-0.05),
        );
        let mut over = round_trips(&path.room.text("stamps.txt"));
        ensure!(!over.is_empty(), "ping got no answer");
        over.iter_mut().for_each(|time| *time -= delay);
        over.sort_by(f64::total_cmp);
        // Timestamps are read as seconds since 1970, with a resolution of a quarter of a microsecond.
        record.fact(
            format!("{delay} ms: no round trip is shorter than the plan's delays"),
            over[0] > -0.001,
            format!("{:.4} ms over the plan", over[0]),
        );
        let at = |part: f64| over[((over.len() - 1) as f64 * part) as usize];
        record.figure(
            format!("{delay} ms: median, over the plan"),
            "ms",
            at(0.5),
            Aim::AtMost(0.2),
        );
        record.figure(
            format!("{delay} ms: p99, over the plan"),
            "ms",
            at(0.99),
            Aim::AtMost(1.0),
        );
        record.figure(
            format!("{delay} ms: longest, over the plan"),
            "ms",
            at(1.0),
            Aim::Shown,
        );
        let parts = (0..=285).map(|part| f64::from(part) / 300.0);
        let points = parts.map(|part| (at(part), part * 100.0)).collect();
        curves.push(Curve::new(format!("{delay} ms"), Style::Line, points));
    }
    record.pictures.push(Picture {
        title: "Round trips of pings over the plan's delay, up to p95".to_owned(),
        x: "longer than the plan, ms",
        y: "% of round trips",
        curves,
        ..Picture::default()
    });
    Ok(())
}

/// Returns the times from echo requests to their replies in ms, from the output of tcpdump.
fn round_trips(stamps: &str) -> Vec<f64> {
    let mut asked = HashMap::new();
    let mut found = Vec::new();
    for line in stamps.lines() {
        let at = line.split(' ').next().and_then(|at| at.parse::<f64>().ok());
        let number = line
            .split_once("seq ")
            .map(|(_, rest)| rest.split(',').next());
        let (Some(at), Some(number)) = (at, number.flatten()) else {
            continue;
        };
        if line.contains("echo request") {
            asked.insert(number, at);
        } else if let Some(then) = asked.get(number) {
            found.push((at - then) * 1e3);
        }
    }
    found
}

/// Checks sums that hold for any probe's points, and the time that their senders gave up. Returns the points.
pub fn sums(record: &mut Record, result: &Value) -> Result<Vec<Value>> {
    let points = result.list("points")?.clone();
    let mut holds = true;
    for point in &points {
        record.stalled("the sender", point["sender"]["slips"].real("seconds")?);
        let of = |name: &str| point.count(name);
        holds &= of("sent")? == of("unique")? + of("lost")?;
        holds &= of("received")? == of("unique")? + of("duplicates")?;
        holds &= of("lost")? == of("network_lost")? + of("host_lost")? + of("unattributed")?;
    }
    record.fact(
        "sent = unique + lost, received = unique + duplicates, lost = network + host + unattributed",
        holds,
        format!("{} points", points.len()),
    );
    Ok(points)
}

fn one_way(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"20ms\"\nbackward = [{{ delay = \"10ms\" }}]\n"
    ));
    let clock = shifted(&path.room, 1234.5, 20e-6)?.prefix();
    let script = responder_with("manchester", &clock, "--bind 0.0.0.0:8620")
        + "$E probe udp manchester:8620 --rate 10M --count 1000 --both --records r.csv --limit 1000 --json > p.json";
    path.run(&[], &script)?;
    record.relay(&path.state());
    let result = path.room.json("p.json");
    let points = sums(record, &result)?;
    let delay =
        |point: &Value, name: &str| -> Result<f64> { Ok(point["delay"].real(name)? * 1e-6) };
    let mut sum = 0.0;
    let mut slack = 0.0;
    for (point, (way, planned)) in points.iter().zip([("there", 10.0), ("back", 20.0)]) {
        let (shortest, error) = (delay(point, "min")?, delay(point, "error")?);
        let way = label(way);
        record.fact(
            format!("the {way} delay is not below {planned} ms by more than its error"),
            shortest > planned - error,
            format!("{shortest:.3} ± {error:.3} ms"),
        );
        let aim = Aim::Within(planned - error, planned + error);
        record.figure(format!("{way} delay, shortest"), "ms", shortest, aim);
        sum += shortest;
        slack += delay(point, "error_if_symmetric")?;
    }
    record.figure(
        "sum of both",
        "ms",
        sum,
        Aim::Within(30.0 - slack, 32.0 + slack),
    );
    let offset = result["clock"].real("offset")? * 1e-6;
    // Half of the asymmetry goes to the clock offset, and some seconds' worth of its skew.
    record.figure(
        "clock offset, over 1234.5 s",
        "ms",
        offset - 1_234_500.0,
        Aim::Within(-7.0, -3.0),
    );
    let text = path.room.text("r.csv");
    let curves = ["there", "back"].map(|way| {
        let of = text
            .lines()
            .map(|line| line.split(',').collect::<Vec<&str>>());
        let of = of.filter(|fields| fields.len() > 6 && fields[1] == way);
        let number = |field: &str| field.parse::<f64>().ok();
        let points = of.filter_map(|fields| Some((number(fields[2])?, number(fields[5])? * 1e-6)));
        Curve::new(label(way), Style::Line, points.collect())
    });
    record.pictures.push(Picture {
        title: "One-way delays, corrected by the clock offset that was found".to_owned(),
        x: "datagram",
        y: "ms",
        curves: curves.to_vec(),
        levels: vec![
            (10.0, "plan, outbound".to_owned()),
            (20.0, "plan, return".to_owned()),
        ],
        ..Picture::default()
    });
    Ok(())
}

fn far_clock(record: &mut Record) -> Result<()> {
    let room = Room::new();
    let mut responder = evlbi()?;
    responder.args(["respond", "--bind", "127.0.0.1:0"]);
    shifted(&room, -3600.25, 0.0)?.apply(&mut responder);
    let responder = Listening::start(&mut responder, 1)?;
    let mut probe = evlbi()?;
    probe.args([
        "probe",
        Protocol::Udp.name(),
        &responder.address().to_string(),
        "--json",
    ]);
    probe.args(["--rate", "10M", "--count", "2000", "--both"]);
    let result = json_of(&output(&mut probe)?)?;
    responder.stop()?;
    let (offset, error) = (
        result["clock"].real("offset")?,
        result["clock"].real("error")?,
    );
    record.fact(
        "the offset is within its error of -3600.25 s",
        (offset + 3600.25e9).abs() <= error,
        format!(
            "{:+.3} ± {:.3} µs",
            (offset + 3600.25e9) * 1e-3,
            error * 1e-3
        ),
    );
    for point in sums(record, &result)? {
        let way = label(point.text("direction")?);
        let delay = &point["delay"];
        let (median, error) = (delay.real("median")? * 1e-6, delay.real("error")? * 1e-6);
        record.figure(
            format!("median {way} delay"),
            "ms",
            median,
            Aim::Within(-error, 100.0),
        );
    }
    Ok(())
}

fn doctor(record: &mut Record) -> Result<()> {
    let mut doctor = evlbi()?;
    doctor.args(["doctor", "--interface", "lo", "--to", "127.0.0.1", "--json"]);
    let result = json_of(&output(&mut doctor)?)?;
    let sized_for = result.real("buffer_seconds")? * 1e3;
    record.figure(
        "time that buffers are sized for",
        "ms",
        sized_for,
        Aim::AtMost(100.0),
    );
    let from = result.text("buffer_seconds_from")?;
    record.fact("it is the round trip's", from == "the round trip", from);
    Ok(())
}

//! Streams over emulated paths with planned losses: checks that rates, patterns and periods are detected.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::delays::sums;
use super::picture::{Curve, Picture, Style};
use super::programs::{Fields, HOSTS, OnPath, responder, wait};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "line-rate-switch",
        shows: "A switch that loses packets above 900 Mbit/s loses at 940 and hardly at 800; a probe at line rate detects each \
            of them.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(30),
        play: switch,
    },
    Scene {
        name: "broken-fibre",
        shows: "Distinguishes a fibre that breaks now and then from one that always loses some packets.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(100),
        play: fibre,
    },
    Scene {
        name: "campaign",
        shows: "A campaign that was killed and resumed detects loss that recurs every 2 s.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(30),
        play: campaign,
    },
];

/// Returns the numbers of a stream's datagrams that a direction dropped, except 0, which requests have too.
fn dropped(log: &str, direction: &str, count: u64) -> Vec<u64> {
    let fields = log
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<&str>>());
    fields
        .filter(|fields| fields.len() > 6 && fields[2] == direction && fields[5] == "dropped")
        .filter_map(|fields| fields[6].parse().ok())
        .filter(|number| (1..count).contains(number))
        .collect()
}

fn switch(record: &mut Record) -> Result<()> {
    let plan = OnPath::example("cisco7600")?;
    let mut lost = Vec::new();
    for (rate, count) in [("800M", 200_000), ("940M", 1_000_000)] {
        let path = OnPath::new(&plan);
        let script = responder("jive", "--bind 0.0.0.0:8620")
            + &format!("$E probe udp jive:8620 --rate {rate} --count {count} --json > p.json");
        path.run(&["--log", &path.room.path("log.csv")], &script)?;
        record.relay(&path.state());
        let point = &sums(record, &path.room.json("p.json"))?[0];
        let finding = point.text("finding")?;
        lost.push(path.cell("manchester>jive", "switch")?.count("dropped")?);
        let dropped = dropped(&path.room.text("log.csv"), "manchester>jive", count);
        let gaps = point.list("intervals")?;
        let is_missed = |number: &u64| {
            gaps.iter().any(|gap| {
                let end = |name: &str| gap[name].as_u64();
                end("first").is_some_and(|first| first <= *number)
                    && end("last").is_some_and(|last| last >= *number)
            })
        };
        record.fact(
            format!("{rate}: each datagram that the switch dropped is missed at its place"),
            dropped.iter().all(is_missed),
            format!("{} dropped", dropped.len()),
        );
        // Among the other missing ones, number 0 may have been dropped by the switch.
        let rest = point
            .count("network_lost")?
            .saturating_sub(dropped.len() as u64);
        record.fact(
            format!("{rate}: nothing else is missed in the network"),
            rest <= path.elsewhere() + 1,
            format!(
                "{rest}, {} lost by full queues of the path",
                path.elsewhere()
            ),
        );
        record.fact(
            format!("{rate}: the loss is told to be in the network"),
            dropped.is_empty() || finding.contains("in the network"),
            finding,
        );
        record.figure(
            format!("{rate}: rate on the wire"),
            "Mbit/s",
            point.real("wire_rate_sent")? * 1e-6,
            Aim::AtLeast(780.0),
        );
    }
    record.figure(
        "lost at 800 Mbit/s, of 200,000",
        "",
        lost[0] as f64,
        Aim::Shown,
    );
    record.figure(
        "lost at 940 Mbit/s, of 1,000,000",
        "",
        lost[1] as f64,
        Aim::AtLeast((2 * lost[0] + 6) as f64),
    );
    Ok(())
}

fn fibre(record: &mut Record) -> Result<()> {
    let plan = OnPath::example("broken-fibre")?;
    // The same in a tenth of the time.
    let broken = plan.replace("on = \"5s\", off = \"20s\"", "on = \"500ms\", off = \"2s\"");
    let dirty = plan.replace(", on = \"5s\", off = \"20s\"", "");
    ensure!(broken != plan && dirty != plan, "the example has changed");
    let mut curves = Vec::new();
    for (name, plan, expected) in [
        ("broken", &broken, &["episodes", "periodic"][..]),
        ("dirty", &dirty, &["constant"]),
    ] {
        let path = OnPath::new(plan);
        let script = responder("jodrell", "--bind 0.0.0.0:8620")
            + "$E probe udp jodrell:8620 --rate 50M --duration 10s --json > p.json";
        path.run(&[], &script)?;
        record.relay(&path.state());
        let point = &sums(record, &path.room.json("p.json"))?[0];
        record.same(
            format!("{name}: no loss is left unexplained"),
            point.count("unattributed")?,
            0,
        );
        let dropped = path.cell("manchester>jodrell", "fibre")?.count("dropped")?;
        let state = path.state();
        let cells = state.list("cells")?.iter();
        let in_cells: u64 = cells
            .filter(|cell| cell["direction"] == "manchester>jodrell")
            .filter_map(|cell| cell["dropped"].as_u64())
            .sum();
        let elsewhere = path.elsewhere() + in_cells - dropped;
        let lost = point.count("network_lost")?;
        record.fact(
            format!("{name}: no more is missed in the network than the path dropped"),
            lost <= dropped + elsewhere,
            format!("{lost} missed, {dropped} dropped by the fibre, {elsewhere} elsewhere"),
        );
        record.figure(
            format!("{name}: lost elsewhere on the path"),
            "",
            elsewhere as f64,
            Aim::AtMost(0.0),
        );
        record.figure(
            format!("{name}: rate on the wire"),
            "Mbit/s",
            point.real("wire_rate_sent")? * 1e-6,
            Aim::AtLeast(49.0),
        );
        let pattern = &point["pattern"];
        let kind = pattern["pattern"].as_str().unwrap_or("none");
        record.said(
            format!(
                "{name}: the pattern is {}, found {kind}",
                expected.join(" or ")
            ),
            expected.contains(&kind),
        );
        if name == "broken" && kind != "constant" {
            record.near(
                format!("{name}: loss while it is broken"),
                "%",
                pattern.real("loss")? * 100.0,
                1.0,
                0.4,
            );
            record.figure(
                format!("{name}: length of an episode"),
                "s",
                pattern.real("length")?,
                Aim::AtMost(2.0),
            );
            record.figure(
                format!("{name}: loss outside"),
                "%",
                pattern.real("loss_outside")? * 100.0,
                Aim::AtMost(0.2),
            );
        }
        // Positions of the losses in the stream.
        let sent = point.count("sent")? as f64;
        let mut total = 0.0;
        let mut points = vec![(0.0, 0.0)];
        for gap in point.list("intervals")? {
            let at = gap.count("first")? as f64 / sent * 10.0;
            points.push((at, total));
            total += (gap.count("last")? - gap.count("first")? + 1) as f64;
            points.push((at, total));
        }
        points.push((10.0, total));
        curves.push(Curve::new(name, Style::Line, points));
    }
    record.pictures.push(Picture {
        title: "Datagrams lost so far: steps of a broken fibre, a slope of a dirty one".to_owned(),
        x: "s",
        y: "datagrams",
        curves,
        ..Picture::default()
    });
    Ok(())
}

fn campaign(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"2ms\"\nforward = [{{ loss = \"20%\", period = \"2s\", length = \"300ms\" }}]\n"
    ));
    let watch = "$E watch w.sqlite manchester:8620 --rate 20M --window 100ms --loss-timeout 100ms";
    let script = responder("manchester", "--bind 0.0.0.0:8620")
        + &format!(
            "{watch} --for 60s 2> first.txt & W=$!
            {}
            kill -9 $W; wait $W || true
            $E report w.sqlite --json > killed.json
            {watch} --for 8s 2> end.txt
            $E report w.sqlite --json > end.json",
            wait("[ $(grep -c lost first.txt) -ge 85 ]")
        );
    path.run(&[], &script)?;
    record.relay(&path.state());
    let [killed, end] = ["killed.json", "end.json"].map(|name| path.room.json(name));
    let (before, after) = (killed.list("windows")?, end.list("windows")?);
    let told = |name: &str| {
        let text = path.room.text(name);
        text.lines().filter(|line| line.contains("lost")).count()
    };
    let later = told("end.txt");
    record.fact(
        "whatever was reported before the kill is in the file",
        before.len() >= 85,
        format!("{} windows", before.len()),
    );
    record.fact(
        "what the killed run had measured is unchanged afterwards, and what came later is added",
        after.len() >= before.len() + later && after[..before.len()] == before[..],
        format!("{} windows, {later} of them later", after.len()),
    );
    let holds = |window: &Value| {
        let of = |name: &str| window[name].as_u64().unwrap_or(u64::MAX / 4);
        of("sent") == of("unique") + of("lost")
            && of("lost") == of("network_lost") + of("host_lost") + of("unattributed")
    };
    record.fact(
        "in each window sent = unique + lost, lost = network + host + unattributed",
        after.iter().all(holds),
        "",
    );
    record.figure(
        "windows of 0.1 s in 8 s",
        "",
        later as f64,
        Aim::AtLeast(60.0),
    );
    let way = &killed["directions"][0];
    let (sent, lost) = (way.count("sent")? as f64, way.count("lost")? as f64);
    record.figure("lost, of all", "%", lost / sent * 100.0, Aim::AtMost(6.0));
    let rate = way.real("rate_received")? * sent / (sent - lost);
    record.figure(
        "rate that was sent",
        "Mbit/s",
        rate * 1e-6,
        Aim::AtLeast(19.6),
    );
    let finding = way.text("finding")?;
    let pattern = &way["pattern"];
    let kind = pattern["pattern"].as_str().unwrap_or("none");
    record.said(
        format!("the pattern is periodic, found {kind}, and the finding tells the period"),
        kind == "periodic" && finding.contains("every"),
    );
    let period = pattern["period"].as_f64().unwrap_or(f64::NAN);
    record.figure("period", "s", period, Aim::Within(1.85, 2.15));
    let mut points = Vec::new();
    for (place, window) in before.iter().enumerate() {
        let part = window.count("lost")? as f64 / (window.count("sent")?.max(1)) as f64;
        points.push((place as f64 * 0.1, part * 100.0));
    }
    record.pictures.push(Picture {
        title: "Loss of each window of the killed run".to_owned(),
        x: "s",
        y: "% lost",
        curves: vec![Curve::new("loss", Style::Bars, points)],
        ..Picture::default()
    });
    Ok(())
}

//! TCP of the real kernel over emulated paths, compared with the simulator and the equations.

use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{Algorithm, Counting, Full, Outcome, Scene as Simulated};
use serde_json::Value;

use super::picture::{Curve, Picture, Style};
use super::programs::{Fields, HOSTS, OnPath, responder, wait};
use super::record::{Aim, Need, Record, Scene, relay_stall};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "saw-tooth",
        shows: "A lost packet halves Reno's window, which then grows by one segment per RTT (iperf3, 512 Mbit/s over 15 ms).",
        needs: &[Need::Paths, Need::Program("iperf3")],
        stall: Duration::from_millis(30),
        play: saw_tooth,
    },
    Scene {
        name: "reno-recovery",
        shows: "Reno recovers from four losses at 512 Mbit/s over 15 ms as simulated, and by the equations of the EXPReS report.",
        needs: &[Need::Paths, Need::Program("python3")],
        stall: Duration::from_millis(100),
        play: reno,
    },
    Scene {
        name: "cubic-recovery",
        shows: "CUBIC recovers from four losses at 512 Mbit/s over 15 ms as simulated.",
        needs: &[Need::Paths, Need::Program("python3")],
        stall: Duration::from_millis(100),
        play: cubic,
    },
    Scene {
        name: "product-buffer",
        shows: "With a send buffer of the bandwidth-delay product messages are never on time again after losses (figure 2.4 a).",
        needs: &[Need::Paths, Need::Program("python3")],
        stall: Duration::from_millis(30),
        play: product_buffer,
    },
    Scene {
        name: "shedding",
        shows: "A sender that sheds messages without room stays on time through the same losses.",
        needs: &[Need::Paths, Need::Program("python3")],
        stall: Duration::from_millis(100),
        play: shedding,
    },
    Scene {
        name: "burst",
        shows: "A UDP burst of two seconds next to a connection of 100 Mbit/s: its cost, and the recovery time.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(50),
        play: burst,
    },
    Scene {
        name: "buffers",
        shows: "Buffers that are too small for the RTT limit a flow; throughput follows their size.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(30),
        play: buffers,
    },
];

const RATE: f64 = 512e6;
const SEGMENT: f64 = 1448.0;
/// RTT of the path in seconds.
const ROUND_TRIP: f64 = 0.015;

/// Returns the number of segments in flight that carry the rate.
fn needed(round_trip: f64) -> f64 {
    RATE / 8.0 * round_trip / SEGMENT
}

/// Returns a command that limits windows towards the remote host to 1300 segments, twice what 512 Mbit/s need. So the window before the
/// losses is known, whatever slow start did. Kernels prefer this route setting to what they remember of a host after a successful
/// connection.
fn limited() -> String {
    let known = "python3 -c \"import socket; socket.create_connection(('manchester', 8620)).close()\"; sleep 0.2; ip tcp_metrics show | grep -q 'cwnd 1300'";
    format!(
        "ip route add 10.77.0.2 dev wire cwnd lock 1300\n{}\n",
        wait(&format!("{{ {known}; }}"))
    )
}

/// Returns the path of the examples.
fn example() -> Result<OnPath> {
    Ok(OnPath::new(&OnPath::example("tcp-losses-15ms")?))
}

/// Runs a TCP probe with these options, after the commands `before`.
fn probed(record: &mut Record, path: &OnPath, before: &str, more: &str) -> Result<Value> {
    let script = responder("manchester", "")
        + before
        + &format!("$E probe tcp manchester:8620 --json {more} > p.json");
    path.run(&[], &script)?;
    record.relay(&path.state());
    Ok(path.room.json("p.json"))
}

/// A sample of the sender's kernel.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: f64,
    window: f64,
    threshold: f64,
    round_trip: f64,
    sent_again: f64,
    acknowledged: f64,
}

fn rows(path: &OnPath) -> Result<Vec<Row>> {
    let text = path.room.text("s.csv");
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().context("no samples")?.split(',').collect();
    let place = |name: &str| {
        let place = heads.iter().position(|head| *head == name);
        place.with_context(|| format!("samples have no {name}"))
    };
    let places = [
        place("seconds")?,
        place("window")?,
        place("threshold")?,
        place("round_trip")?,
        place("sent_again")?,
        place("acknowledged")?,
    ];
    let mut rows = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[1] != "sender" {
            continue;
        }
        let mut row = [0.0; 6];
        for (value, place) in row.iter_mut().zip(places) {
            *value = fields[place].parse()?;
        }
        let [at, window, threshold, round_trip, sent_again, acknowledged] = row;
        rows.push(Row {
            at,
            window,
            threshold,
            round_trip: round_trip * 1e-6,
            sent_again,
            acknowledged,
        });
    }
    Ok(rows)
}

/// Returns the kernel's samples from the first loss that the path caused to the next that it did not, and the times of these losses.
fn recovery(rows: Vec<Row>, count: usize) -> Option<(Vec<Row>, Vec<f64>)> {
    // A probe for an acknowledgement does not lower the threshold, and the end of slow start causes no retransmission.
    let found: Vec<f64> = rows
        .windows(3)
        .filter(|rows| rows[1].threshold < rows[0].threshold)
        .filter(|rows| rows[2].sent_again > rows[0].sent_again)
        .map(|rows| rows[1].at)
        .collect();
    let end = found.get(count).copied().unwrap_or(f64::INFINITY);
    let losses = found.get(..count)?.to_vec();
    let from = losses[0] - 0.03;
    let rows = rows.into_iter().filter(|row| row.at > from && row.at < end);
    Some((rows.collect(), losses))
}

/// Simulates the same losses, with the mean RTT of the rows before `until`. Returns the windows at the kernel's times, and the outcome.
fn simulate(
    algorithm: Algorithm,
    rows: &[Row],
    losses: &[f64],
    until: f64,
) -> Result<(Vec<f64>, Outcome)> {
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    let during = rows.iter().take_while(|row| row.at < until);
    let round_trips: Vec<f64> = during.map(|row| row.round_trip).collect();
    let round_trip = round_trips.iter().sum::<f64>() / round_trips.len() as f64;
    let delay = || Law::Delay {
        delay: Nanos::from_secs_f64(round_trip / 2.0),
        jitter: Nanos(0),
        shape: Shape::Normal,
        reorders: false,
    };
    // It needs a second to settle.
    let origin = first.at - 1.0;
    let times = losses
        .iter()
        .map(|at| Nanos::from_secs_f64(at - origin - round_trip));
    let scene = Simulated {
        rate: BitRate::new(RATE as u64).context("a rate")?,
        segment: SEGMENT as u32,
        algorithm,
        counting: Counting::Segments,
        per_ack: 2.0,
        buffer: 256 << 20,
        full: Full::Block,
        window: Some(first.window),
        there: vec![Law::Loss(Loss::At(times.collect())), delay()],
        back: vec![delay()],
        seed: 1,
        length: Nanos::from_secs_f64(last.at - origin),
        every: Nanos(1_000_000),
    };
    let mut windows = Vec::new();
    let outcome = scene.run(|sample| windows.push(sample.window));
    let at = |row: &Row| ((row.at - origin) * 1e3) as usize;
    let end = windows.len().saturating_sub(1);
    let windows = rows.iter().map(|row| windows[at(row).min(end)]).collect();
    Ok((windows, outcome))
}

/// Returns when a window suffices for the rate again, in seconds after the last loss.
fn enough(rows: &[Row], windows: &[f64], lost: f64) -> Option<f64> {
    let mut after = rows
        .iter()
        .zip(windows)
        .filter(|(row, _)| row.at > lost + 0.05);
    let found = after.find(|(_, window)| **window >= needed(ROUND_TRIP))?;
    Some(found.0.at - lost)
}

/// A measured recovery: the probe's result, the kernel's samples, and the simulation of the same losses.
struct Recovered {
    result: Value,
    rows: Vec<Row>,
    losses: Vec<f64>,
    windows: Vec<f64>,
    outcome: Outcome,
    /// Time from the last loss until the window sufficed again, in seconds.
    recovery: f64,
}

/// Measures the recovery from the losses of the example; `None` if the path's losses hit something else, or this host dropped packets
/// itself.
fn recovered(
    record: &mut Record,
    algorithm: Algorithm,
    tolerance: f64,
) -> Result<Option<Recovered>> {
    const LOSSES: usize = 4;
    let path = example()?;
    let more = format!(
        "--rate 512M --duration 40s --buffer 200M --sample 5ms --algorithm {} --samples s.csv",
        algorithm.name()
    );
    let result = probed(record, &path, &limited(), &more)?;
    record.looks(&result, 160);
    let flow = &result["flows"][0];
    let dropped = path.cell("jive>manchester", "lose_at")?.count("dropped")?;
    record.same("the path dropped four packets", dropped, LOSSES as u64);
    record.same("nothing was shed", flow["messages"].count("shed")?, 0);
    let all = rows(&path)?;
    let Some((rows, losses)) = recovery(all, LOSSES) else {
        record.said("the four losses hit the stream", false);
        return Ok(None);
    };
    let lost = losses[LOSSES - 1];
    let until = rows[rows.len() - 1].at;
    record.figure(
        "time without other losses after the fourth",
        "s",
        until - lost,
        Aim::AtLeast(16.0),
    );
    let kernels: Vec<f64> = rows.iter().map(|row| row.window).collect();
    let Some(recovery) = enough(&rows, &kernels, lost) else {
        record.said("the window is enough again", false);
        return Ok(None);
    };
    let (windows, outcome) = simulate(algorithm, &rows, &losses, lost + recovery)?;
    let simulated = enough(&rows, &windows, lost).context("the simulated window never suffices")?;
    record.near(
        "recovery: kernel against simulator",
        "s",
        recovery,
        simulated,
        0.1,
    );
    let timely = &flow["messages"]["timely"];
    let delayed = timely.count("delayed_bytes")? as f64;
    record.near(
        "data late at most: against simulator",
        "MB",
        delayed * 1e-6,
        outcome.delayed as f64 * 1e-6,
        tolerance,
    );
    record.pictures.push(Picture {
        title: format!("Congestion window of {}", algorithm.name()),
        x: "s",
        y: "segments",
        curves: vec![
            Curve::new(
                "kernel",
                Style::Line,
                rows.iter().map(|row| (row.at, row.window)).collect(),
            ),
            Curve::new(
                "simulator, same losses",
                Style::Dashed,
                rows.iter()
                    .zip(&windows)
                    .map(|(row, window)| (row.at, *window))
                    .collect(),
            ),
        ],
        marks: losses.iter().map(|at| (*at, "losses")).collect(),
        levels: vec![(needed(ROUND_TRIP), "512 Mbit/s need".to_owned())],
        ..Picture::default()
    });
    Ok(Some(Recovered {
        result,
        rows,
        losses,
        windows,
        outcome,
        recovery,
    }))
}

/// Compares with t_r = (W - W0) RTT, and the late messages with C (1 - W0 / W) t_r / 2: equations 2-2 and 2-3 of the EXPReS report, for
/// any window at the loss.
fn reno(record: &mut Record) -> Result<()> {
    let Some(found) = recovered(record, Algorithm::Reno, 0.15)? else {
        return Ok(());
    };
    let (rows, losses) = (&found.rows, &found.losses);
    let lost = losses[3];
    let during: Vec<(&Row, f64)> = rows
        .iter()
        .zip(found.windows.iter().copied())
        .filter(|(row, _)| row.at > lost + 0.05 && row.at < lost + found.recovery)
        .collect();
    let (begin, _) = during.first().context("the recovery has no samples")?;
    let squares = during
        .iter()
        .map(|(row, simulated)| (simulated / row.window - 1.0).powi(2));
    let rms = (squares.sum::<f64>() / during.len() as f64).sqrt();
    record.figure(
        "window: RMS from the simulator",
        "%",
        rms * 100.0,
        Aim::AtMost(10.0),
    );
    let begun = begin.window;
    let round_trips = during.iter().map(|(row, _)| row.round_trip);
    let round_trip = round_trips.sum::<f64>() / during.len() as f64;
    let since = lost + found.recovery - begin.at;
    record.near(
        "recovery: against equation 2-2",
        "s",
        since,
        (needed(ROUND_TRIP) - begun) * round_trip,
        0.1,
    );
    let timely = &found.result["flows"][0]["messages"]["timely"];
    // With the measured RTT, not that of the path alone; and the earlier losses reduced the window too.
    let need = needed(round_trip);
    let part = |window: f64, time: f64| RATE / 8.0 * (1.0 - window / need).max(0.0) * time / 2.0;
    let before = [(8.0, 1), (4.0, 2), (2.0, 3)].map(|(times, next)| {
        let apart = losses[next] - losses[next - 1];
        2.0 * part(times * begun, apart)
    });
    let all = part(begun, (need - begun) * round_trip) + before.iter().sum::<f64>();
    record.near(
        "data late at most: against equation 2-3",
        "MB",
        timely.count("delayed_bytes")? as f64 * 1e-6,
        all * 1e-6,
        0.2,
    );
    let late = timely.list("late")?;
    let worst = late
        .iter()
        .max_by_key(|late| late["worst"].as_u64())
        .context("nothing was late")?;
    if let Some(drained) = found.outcome.timely_from {
        let until = worst["until"]
            .as_f64()
            .map_or(f64::NAN, |until| until - lost);
        let simulated = drained.as_secs_f64() - (lost - rows[0].at + 1.0);
        record.near(
            "on time again after the last loss: against simulator",
            "s",
            until,
            simulated,
            0.15,
        );
    }
    Ok(())
}

fn cubic(record: &mut Record) -> Result<()> {
    recovered(record, Algorithm::Cubic, 0.2).map(|_| ())
}

fn product_buffer(record: &mut Record) -> Result<()> {
    let path = example()?;
    let more = "--rate 512M --duration 30s --buffer 0.5bdp --algorithm reno";
    let result = probed(record, &path, &limited(), more)?;
    let messages = &result["flows"][0]["messages"];
    record.same(
        "what was sent was received",
        messages.count("received")?,
        messages.count("sent")?,
    );
    let late = messages["timely"].list("late")?;
    record.said(
        "messages are late until the end",
        late.last().is_some_and(|late| late["until"].is_null()),
    );
    record.figure(
        "messages blocked by the buffer",
        "s",
        messages.real("blocked")?,
        Aim::AtLeast(1.0),
    );
    let said = result["findings"].to_string();
    for part in [
        "never on time again",
        "limited by the send buffer",
        "reno needs a send buffer of",
    ] {
        record.said(format!("finding: {part}"), said.contains(part));
    }
    Ok(())
}

fn shedding(record: &mut Record) -> Result<()> {
    let path = example()?;
    let more = "--rate 512M --duration 15s --sample 5ms --buffer 0.5bdp --full shed --algorithm reno --samples s.csv";
    let result = probed(record, &path, &limited(), more)?;
    record.looks(&result, 10);
    let messages = &result["flows"][0]["messages"];
    let of = |name: &str| messages.count(name);
    record.same("due = sent + shed", of("due")?, of("sent")? + of("shed")?);
    record.same("what was sent was received", of("received")?, of("sent")?);
    record.figure(
        "messages shed",
        "",
        of("shed")? as f64,
        Aim::AtLeast(1000.0),
    );
    // At most the time to send what the buffer holds, whatever was lost; during a stall of the host nothing arrived.
    let longest = messages["timely"].real("longest")? * 1e-9;
    let held = RATE / 8.0 * ROUND_TRIP + 65536.0;
    let rows = rows(&path)?;
    let through = rows.iter().enumerate().map(|(place, row)| {
        let mut after = rows[place..].iter();
        let gone = after.find(|later| later.acknowledged > row.acknowledged + held);
        gone.or(rows.last()).map_or(0.0, |gone| gone.at - row.at)
    });
    let through = through.fold(0.0, f64::max);
    record.figure(
        "time to get through the buffer, at most",
        "s",
        through,
        Aim::Shown,
    );
    record.figure(
        "latest message",
        "s",
        longest,
        Aim::AtMost(0.15 + through + relay_stall(&path.state())),
    );
    record.pictures.push(Picture {
        title: "Congestion window while shedding".to_owned(),
        x: "s",
        y: "segments",
        curves: vec![Curve::new(
            "kernel",
            Style::Line,
            rows.iter().map(|row| (row.at, row.window)).collect(),
        )],
        levels: vec![(needed(ROUND_TRIP), "512 Mbit/s need".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

/// As in figures 8 and 10 of Meirosu et al.
fn burst(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"17ms\"\nrate = \"100M\"\nbuffer = \"250KiB\"\n"
    ));
    let more =
        "--duration 16s --algorithm reno --interval 100ms --background 70M --background-at 8s";
    let result = probed(record, &path, "", more)?;
    let flow = &result["flows"][0];
    let found = &flow["disturbance"];
    let of = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    record.fact(
        "the burst is reported from 8 to 10 s",
        (of("from"), of("to")) == (8.0, 10.0),
        format!("{} to {}", of("from"), of("to")),
    );
    // 100 Mbit/s without headers; and what the burst leaves of that.
    record.figure(
        "rate before",
        "Mbit/s",
        of("before") * 1e-6,
        Aim::Within(75.0, 98.0),
    );
    record.figure(
        "lowest rate",
        "Mbit/s",
        of("lowest") * 1e-6,
        Aim::AtMost(60.0),
    );
    record.figure(
        "time to recover",
        "s",
        of("recovery"),
        Aim::Within(1e-3, 6.0),
    );
    let stream = &result["background"][0];
    record.same(
        "the burst sent what was asked for",
        stream.count("sent")?,
        70_000_000 * 2 / 8 / 1472,
    );
    record.same(
        "sent = unique + lost",
        stream.count("sent")?,
        stream.count("unique")? + stream.count("lost")?,
    );
    let mut points = Vec::new();
    for interval in flow.list("intervals")? {
        let (Some(from), Some(rate)) = (interval["from"].as_f64(), interval["rate"].as_f64())
        else {
            continue;
        };
        points.push((from, rate * 1e-6));
    }
    record.pictures.push(Picture {
        title: "Rate of the connection beside the burst".to_owned(),
        x: "s",
        y: "Mbit/s",
        curves: vec![Curve::new("rate", Style::Line, points)],
        marks: vec![(8.0, "burst"), (10.0, "end")],
        ..Picture::default()
    });
    Ok(())
}

fn buffers(record: &mut Record) -> Result<()> {
    let plan = format!("{HOSTS}rtt = \"20ms\"\nrate = \"500M\"\n");
    for (end, part) in [("buffer", "buffer"), ("receive-buffer", "receiver")] {
        let path = OnPath::new(&plan);
        let more = format!("--duration 2s --{end} 60k");
        let result = probed(record, &path, "", &more)?;
        record.looks(&result, 10);
        let flow = &result["flows"][0];
        let held = flow["course"]["held_back"].real(part)?;
        record.figure(
            format!("--{end} 60k: time held back by it"),
            "%",
            held * 100.0,
            Aim::AtLeast(60.0),
        );
        let said = result["findings"].to_string();
        record.said(
            format!("--{end} 60k: the finding names the option"),
            said.contains(&format!("--{end}")),
        );
        // Linux keeps up to four times the nominal buffer in flight; the path would carry 500 Mbit/s.
        let most = 5.0 * 60e3 * 8.0 / 0.02 * 1e-6;
        record.figure(
            format!("--{end} 60k: rate"),
            "Mbit/s",
            flow.real("rate")? * 1e-6,
            Aim::AtMost(most),
        );
    }
    let path = OnPath::new(&plan);
    let result = probed(
        record,
        &path,
        "",
        "--duration 2s --mss 536,1448 --buffer 30k,2M",
    )?;
    let points = result.list("points")?;
    let counts =
        |name: &str| -> Result<Vec<u64>> { points.iter().map(|point| point.count(name)).collect() };
    record.fact(
        "each combination of segment and buffer is measured",
        counts("segment")? == [524, 524, 1436, 1436]
            && counts("buffer")? == [30_000, 2_000_000, 30_000, 2_000_000],
        "timestamps take 12 bytes of each segment",
    );
    let rates: Vec<f64> = points
        .iter()
        .map(|point| point.real("rate"))
        .collect::<Result<_>>()?;
    for (segment, pair) in [524, 1436].into_iter().zip(rates.chunks(2)) {
        record.figure(
            format!("segments of {segment} B: rate of 2 MB to that of 30 kB"),
            "",
            pair[1] / pair[0],
            Aim::AtLeast(2.0),
        );
    }
    Ok(())
}

fn saw_tooth(record: &mut Record) -> Result<()> {
    let path = OnPath::new(&format!(
        "{HOSTS}rtt = \"15ms\"\nrate = \"1G\"\nbuffer = \"4MiB\"\n\
         forward = [{{ lose_at = [\"2s\", \"2.4s\", \"2.8s\", \"3.2s\", \"3.6s\", \"8s\"] }}]\n"
    ));
    let script = format!(
        "$E path exec manchester -- iperf3 -s -1 > server.txt &
        {}
        sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
        iperf3 -c manchester -b 512M -i 0.1 -t 12 -J > client.json; wait",
        wait("$E path exec manchester -- ss -ltnH | grep -q :5201")
    );
    path.run(&[], &script)?;
    record.relay(&path.state());
    let dropped = path.cell("jive>manchester", "lose_at")?.count("dropped")?;
    record.same("the path dropped six packets", dropped, 6);
    // Time, window in segments and RTT in seconds.
    let client = path.room.json("client.json");
    let mut samples: Vec<[f64; 3]> = Vec::new();
    for interval in client.list("intervals")? {
        let stream = &interval["streams"][0];
        let of = |key: &str| stream.real(key);
        samples.push([of("end")?, of("snd_cwnd")? / SEGMENT, of("rtt")? * 1e-6]);
    }
    let apart = samples.windows(2).map(|pair| pair[1][0] - pair[0][0]);
    record.stalled("iperf3", apart.fold(0.0, f64::max) - 0.12);
    record.pictures.push(Picture {
        title: "Reno's window by iperf3, after the losses that end slow start".to_owned(),
        x: "s",
        y: "segments",
        curves: vec![Curve::new(
            "kernel",
            Style::Line,
            samples
                .iter()
                .filter(|sample| sample[0] > 3.7)
                .map(|sample| (sample[0], sample[1]))
                .collect(),
        )],
        marks: vec![(8.0, "loss")],
        ..Picture::default()
    });
    // The last loss, and the samples before and after it.
    let falls = samples
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[1][1] < 0.7 * pair[0][1]);
    let fall = falls.map(|(place, _)| place).next_back();
    let Some(fall) = fall.filter(|fall| (31..samples.len().saturating_sub(4)).contains(fall))
    else {
        record.said("the last loss lowers the window", false);
        return Ok(());
    };
    // A sample taken during the reduction shows only part of it.
    let was = if samples[fall - 1][1] > samples[fall][1] {
        fall - 1
    } else {
        fall
    };
    let (before, after) = (samples[was], samples[fall + 2]);
    record.figure(
        "window after the loss, of that before",
        "",
        after[1] / before[1],
        Aim::Within(0.45, 0.55),
    );
    // Three seconds of growth without another loss.
    for (when, range) in [
        ("before", was - 30..was),
        ("after", fall + 2..samples.len().min(fall + 32)),
    ] {
        let part = &samples[range];
        let (first, last) = (part[0], part[part.len() - 1]);
        let round_trip = part.iter().map(|sample| sample[2]).sum::<f64>() / part.len() as f64;
        let slope = (last[1] - first[1]) / (last[0] - first[0]);
        record.near(
            format!("growth {when} it, segments a round trip"),
            "",
            slope * round_trip,
            1.0,
            0.1,
        );
    }
    // After half of its segments in RTTs, the window is what it was: a window of C RTT, C RTT^2 / (2 MSS).
    let back = samples[fall + 2..]
        .iter()
        .find(|sample| sample[1] >= before[1]);
    let found = back.map_or(f64::NAN, |back| back[0] - before[0]);
    record.near(
        "recovery: against C RTT² / 2 MSS",
        "s",
        found,
        0.5 * before[1] * before[2],
        0.1,
    );
    Ok(())
}

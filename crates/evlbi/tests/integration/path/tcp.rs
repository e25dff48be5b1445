//! TCP of the real kernel over emulated paths, against the simulator and the equations.

use std::fs;

use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::tcp::{Algorithm, Counting, Full, Outcome, Scene};
use evlbi_core::time::Nanos;
use serde_json::Value;

use crate::observers::{has_missed, was_held_up};
use crate::path::{Room, cell, stall, stood_still};
use crate::result::number;

const RATE: f64 = 512e6;
const SEGMENT: f64 = 1448.0;

/// A responder on the far host, and what the near one does.
fn script(probe: &str) -> String {
    format!(
        "export EVLBI_TOKEN=t
        $E path exec manchester -- $E respond 2> respond.txt &
        until grep -q listening respond.txt; do sleep 0.1; done
        {probe}"
    )
}

/// Limits windows towards the far host to 1300 segments, twice what 512 Mbit/s need: they are known before the losses, whatever
/// slow start did. Kernels take this from the route to what they remember of a host once a connection to it ended well.
const LIMITED: &str = r#"
        ip route add 10.77.0.2 dev wire cwnd lock 1300
        n=0; until ip tcp_metrics show | grep -q 'cwnd 1300'; do
            n=$((n+1)); [ $n -lt 100 ]
            python3 -c "import socket; socket.create_connection(('manchester', 8620)).close()"; sleep 0.2
        done"#;

/// The plan of the examples, with a buffer that holds a whole window of [`LIMITED`]: where this host stood still, it is sent at once.
fn example() -> Room {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/tcp-losses-15ms.toml"
    );
    let plan = fs::read_to_string(path).unwrap();
    Room::new(&plan.replacen("1MiB", "4MiB", 1))
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

fn rows(room: &Room) -> Vec<Row> {
    let text = fs::read_to_string(room.path("s.csv")).unwrap();
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let names = [
        "seconds",
        "window",
        "threshold",
        "round_trip",
        "sent_again",
        "acknowledged",
    ];
    let places = names.map(column);
    let fields = lines.map(|line| line.split(',').collect::<Vec<&str>>());
    fields
        .filter(|fields| fields[1] == "sender")
        .map(|fields| {
            let [at, window, threshold, round_trip, sent_again, acknowledged] =
                places.map(|place| fields[place].parse::<f64>().unwrap());
            Row {
                at,
                window,
                threshold,
                round_trip: round_trip * 1e-6,
                sent_again,
                acknowledged,
            }
        })
        .collect()
}

/// The kernel's samples of a flow, from the first of the losses that the path made to the next that it did not, and the
/// times of these losses.
fn recovery(room: &Room, count: usize) -> Option<(Vec<Row>, Vec<f64>)> {
    let rows = rows(room);
    // What was only sent again to ask for an answer does not lower the threshold, and what ends slow start is not sent again.
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

/// The same in the simulator, with the mean round trip of the rows before `until`: windows at the kernel's times, and what it
/// comes to.
fn simulate(algorithm: Algorithm, rows: &[Row], losses: &[f64], until: f64) -> (Vec<f64>, Outcome) {
    let (first, last) = (rows.first().unwrap(), rows.last().unwrap());
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
    let scene = Scene {
        rate: BitRate::new(RATE as u64).unwrap(),
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
    let end = windows.len() - 1;
    let windows = rows.iter().map(|row| windows[at(row).min(end)]).collect();
    (windows, outcome)
}

/// When a window is enough for the rate again, seconds after the last loss.
fn enough(rows: &[Row], windows: &[f64], lost: f64) -> Option<f64> {
    let need = RATE / 8.0 * 0.015 / SEGMENT;
    let mut after = rows
        .iter()
        .zip(windows)
        .filter(|(row, _)| row.at > lost + 0.05);
    let found = after.find(|(_, window)| **window >= need)?;
    Some(found.0.at - lost)
}

#[track_caller]
fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.4}, expected {expected:.4}");
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "{what}: {found}, expected {expected}"
    );
}

/// The result of a probe with these options, and what comes before it.
fn result(room: &Room, before: &str, more: &str) -> Option<Value> {
    let probe = format!("{before}\n$E probe tcp manchester:8620 --json {more} > p.json");
    room.run_well(&[], &script(&probe))?;
    Some(room.json("p.json"))
}

/// A recovery that was measured: the probe's result, the kernel's samples, and what the simulator makes of the same losses.
struct Recovered {
    result: Value,
    rows: Vec<Row>,
    losses: Vec<f64>,
    windows: Vec<f64>,
    outcome: Outcome,
    /// From the last loss until the window was enough again, in seconds.
    recovery: f64,
}

impl Recovered {
    /// What the flow says of timeliness, and when it is timely again in the simulator, if data were late for want of a window
    /// alone: with more than one look of a hundred missed they were not. Delayed data agree.
    fn timely(&self, tolerance: f64) -> Option<(&Value, Nanos)> {
        let Some(drained) = self.outcome.timely_from else {
            let last = self.rows.last().unwrap().at;
            eprintln!(
                "skipped in part: this host lost packets itself, at {last} s, before messages were timely"
            );
            return None;
        };
        if has_missed(&self.result, 160) {
            return None;
        }
        let timely = &self.result["flows"][0]["messages"]["timely"];
        let delayed = number(timely, "delayed_bytes") as f64;
        near("delayed", delayed, self.outcome.delayed as f64, tolerance);
        Some((timely, drained))
    }
}

/// After the losses of the example, if the machine let it be measured. Recoveries agree.
fn recovered(algorithm: Algorithm) -> Option<Recovered> {
    let room = example();
    let (result, rows, losses) = measured(&room, algorithm.name(), 4)?;
    // And so did the connection.
    if stood_still(&room.json("path.json"), 0.1) {
        return None;
    }
    let kernels: Vec<f64> = rows.iter().map(|row| row.window).collect();
    let lost = losses[3];
    let recovery = enough(&rows, &kernels, lost).expect("it recovers");
    let (windows, outcome) = simulate(algorithm, &rows, &losses, lost + recovery);
    let simulated = enough(&rows, &windows, lost).expect("it recovers");
    near("recovery", recovery, simulated, 0.1);
    Some(Recovered {
        result,
        rows,
        losses,
        windows,
        outcome,
        recovery,
    })
}

/// What was measured, if the machine let it be: the probe's result, and the kernel's samples.
fn measured(room: &Room, algorithm: &str, count: usize) -> Option<(Value, Vec<Row>, Vec<f64>)> {
    let more = format!(
        "--rate 512M --duration 40s --buffer 200M --sample 5ms --algorithm {algorithm} --samples s.csv"
    );
    let result = result(room, LIMITED, &more)?;
    let flow = &result["flows"][0];
    let state = room.json("path.json");
    let lost = number(cell(&state, "jive>manchester", "lose_at"), "dropped");
    assert_eq!(lost, count as u64);
    assert_eq!(number(&flow["messages"], "shed"), 0);
    let Some((rows, losses)) = recovery(room, count) else {
        eprintln!(
            "skipped in part: the path's losses hit something else: {}",
            flow["course"]["losses"]
        );
        return None;
    };
    let until = rows.last().unwrap().at;
    if until < losses[count - 1] + 16.0 {
        eprintln!("skipped in part: this host lost packets itself, at {until} s");
        return None;
    }
    Some((result, rows, losses))
}

/// Reno after four losses: windows, recovery, delayed data and when messages are timely again, against the simulator; and the
/// recovery against t_r = (W - W0) RTT and what is late against C (1 - W0 / W) t_r / 2, equations 2-2 and 2-3 of the EXPReS
/// report from any window on.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn reno_recovers_as_simulated_and_by_its_equations() {
    let Some(found) = recovered(Algorithm::Reno) else {
        return;
    };
    let (rows, losses, theirs) = (&found.rows, &found.losses, found.recovery);
    let lost = losses[3];
    let during: Vec<(&Row, f64)> = rows
        .iter()
        .zip(found.windows.iter().copied())
        .filter(|(row, _)| row.at > lost + 0.05 && row.at < lost + theirs)
        .collect();
    let squares = during
        .iter()
        .map(|(row, simulated)| (simulated / row.window - 1.0).powi(2));
    let rms = (squares.sum::<f64>() / during.len() as f64).sqrt();
    println!("window RMS {:.1} %", rms * 100.0);
    assert!(rms < 0.1, "{rms}");
    let begun = during[0].0.window;
    let round_trips = during.iter().map(|(row, _)| row.round_trip);
    let round_trip = round_trips.sum::<f64>() / during.len() as f64;
    let need = RATE / 8.0 * 0.015 / SEGMENT;
    let since = lost + theirs - during[0].0.at;
    near("t_r", since, (need - begun) * round_trip, 0.1);
    let Some((timely, drained)) = found.timely(0.15) else {
        return;
    };
    let delayed = number(timely, "delayed_bytes") as f64;
    let late = timely["late"].as_array().unwrap();
    let worst = late
        .iter()
        .max_by_key(|late| number(late, "worst"))
        .unwrap();
    // With the round trip that it was, and not only the path's; and the losses before took their parts.
    let need = RATE / 8.0 * round_trip / SEGMENT;
    let part = |window: f64, time: f64| RATE / 8.0 * (1.0 - window / need).max(0.0) * time / 2.0;
    let before = [(8.0, 1), (4.0, 2), (2.0, 3)];
    let before = before.map(|(times, next)| {
        let apart = losses[next] - losses[next - 1];
        2.0 * part(times * begun, apart)
    });
    let all = part(begun, (need - begun) * round_trip) + before.iter().sum::<f64>();
    near("delayed by 2-3", delayed, all, 0.2);
    let until = worst["until"].as_f64().expect("timely again") - lost;
    let simulated = drained.as_secs_f64() - (lost - rows[0].at + 1.0);
    near("timely after", until, simulated, 0.15);
}

/// CUBIC after four losses, against the simulator.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn cubic_recovers_as_simulated() {
    if let Some(found) = recovered(Algorithm::Cubic) {
        found.timely(0.2);
    }
}

/// Figure 2.4 (a): with a send buffer of the bandwidth-delay product, which Linux makes of half of that, messages are never
/// timely again, and the probe says what would be needed.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn with_a_buffer_of_the_product_messages_stay_late() {
    let room = example();
    let more = "--rate 512M --duration 30s --buffer 0.5bdp --algorithm reno";
    let Some(result) = result(&room, LIMITED, more) else {
        return;
    };
    // A sender that is held up gives larger pieces, of which more have room.
    if room.was_disturbed(0.03) {
        return;
    }
    let messages = &result["flows"][0]["messages"];
    let late = messages["timely"]["late"].as_array().unwrap();
    assert!(late.last().unwrap()["until"].is_null(), "{late:?}");
    assert!(messages["blocked"].as_f64().unwrap() > 1.0);
    let said = result["findings"].to_string();
    for part in [
        "never timely again",
        "held back by the send buffer",
        "reno needs a send buffer of",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// And who sheds what has no room is as timely as before.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn shedding_keeps_messages_timely() {
    let room = example();
    let more = "--rate 512M --duration 15s --sample 5ms --buffer 0.5bdp --full shed --algorithm reno --samples s.csv";
    let Some(result) = result(&room, LIMITED, more) else {
        return;
    };
    let messages = &result["flows"][0]["messages"];
    let of = |name: &str| number(messages, name);
    assert_eq!(of("due"), of("sent") + of("shed"));
    assert_eq!(of("received"), of("sent"));
    assert!(of("shed") > 1000, "{}", of("shed"));
    // No later than it took to get through what the buffer holds, whatever was lost; while the host stood still nothing came.
    let longest = messages["timely"]["longest"].as_f64().unwrap() * 1e-9;
    let stall = stall(&room.json("path.json"));
    let held = RATE / 8.0 * 0.015 + 65536.0;
    let rows = rows(&room);
    let through = rows.iter().enumerate().map(|(index, row)| {
        let mut after = rows[index..].iter();
        let gone = after.find(|later| later.acknowledged > row.acknowledged + held);
        gone.or(rows.last()).unwrap().at - row.at
    });
    let through = through.fold(0.0, f64::max);
    println!(
        "late by {longest:.4} s, {through:.4} s to get through the buffer, {stall:.4} s still"
    );
    assert!(longest < 0.15 + through + stall || was_held_up(&result) || room.was_disturbed(0.1));
}

/// A burst of UDP for two seconds beside a connection, as in figures 8 and 10 of Meirosu et al.: what it costs, and when that is
/// over; the burst's own account is exact.
#[test]
fn a_burst_beside_a_connection_is_recovered_from() {
    let plan = format!(
        "{}rtt = \"17ms\"\nrate = \"100M\"\nbuffer = \"250KiB\"\n",
        crate::path::HOSTS
    );
    let room = Room::new(&plan);
    let more = "--duration 16s --algorithm reno --background 70M --background-at 8s";
    let Some(result) = result(&room, "", more) else {
        return;
    };
    let found = &result["flows"][0]["disturbance"];
    let of = |name: &str| found[name].as_f64().unwrap();
    assert_eq!((of("from"), of("to")), (8.0, 10.0));
    // 100 Mbit/s less headers; and what the burst leaves of them.
    assert!(of("before") < 120e6 && of("lowest") < 60e6, "{found}");
    if !room.was_disturbed(0.05) {
        // What was held up for that long before the first of four seconds counts in them.
        assert!(of("before") < 98e6 && of("before") > 75e6, "{found}");
        assert!(of("recovery") > 0.0 && of("recovery") < 6.0, "{found}");
    }
    let stream = &result["background"][0];
    assert_eq!(number(stream, "sent"), 70_000_000 * 2 / 8 / 1472);
    assert_eq!(
        number(stream, "sent"),
        number(stream, "unique") + number(stream, "lost")
    );
}

/// Whole segments vanish, and the message that says why: the probe says it, and ends.
#[test]
fn a_black_hole_of_the_path_mtu_is_named() {
    let plan = format!(
        "{}rtt = \"2ms\"\nforward = [{{ mtu = 1300, tells = false }}]\n",
        crate::path::HOSTS
    );
    let room = Room::new(&plan);
    let probe = "sysctl -qw net.ipv4.tcp_mtu_probing=0
        $E probe tcp manchester:8620 --duration 3s --json > p.json 2> p.txt || echo failed";
    let Some(said) = room.run_well(&[], &script(probe)) else {
        return;
    };
    assert_eq!(said.trim(), "failed");
    let result = room.json("p.json");
    assert!(!result["stopped"].is_null());
    let said = result["findings"].to_string();
    assert!(
        said.contains("black hole") && said.contains("--mss"),
        "{said}"
    );
}

/// Buffers that are too small for the round trip hold a flow back, and the probe says which, and what it should be.
#[test]
fn buffers_that_are_too_small_are_named() {
    let plan = format!("{}rtt = \"20ms\"\nrate = \"500M\"\n", crate::path::HOSTS);
    let room = Room::new(&plan);
    let probe = "for end in buffer receive-buffer; do
            $E probe tcp manchester:8620 --duration 2s --$end 60k --json > $end.json
        done";
    if room.run_well(&[], &script(probe)).is_none() {
        return;
    }
    for (end, part) in [("buffer", "buffer"), ("receive-buffer", "receiver")] {
        let result = room.json(&format!("{end}.json"));
        let flow = &result["flows"][0];
        let held = flow["course"]["held_back"][part].as_f64().unwrap();
        let said = result["findings"].to_string();
        // A path that stands still holds a flow back too.
        if was_held_up(&result) || room.was_disturbed(0.05) {
            continue;
        }
        assert!(held > 0.6, "{end}: {said}");
        assert!(said.contains(&format!("--{end}")), "{end}: {said}");
        // Linux holds up to some four times what it calls the buffer; the path would carry 500 Mbit/s.
        let rate = flow["rate"].as_f64().unwrap();
        assert!(rate < 5.0 * 60e3 * 8.0 / 0.02, "{end}: {rate}");
    }
}

/// Throughput against segments and send buffers: what a round trip can hold is what goes through.
#[test]
fn throughput_follows_the_buffer() {
    let plan = format!("{}rtt = \"20ms\"\nrate = \"500M\"\n", crate::path::HOSTS);
    let room = Room::new(&plan);
    let more = "--duration 2s --mss 536,1448 --buffer 30k,2M --plot p.svg";
    let Some(result) = result(&room, "", more) else {
        return;
    };
    let points = result["points"].as_array().unwrap();
    let of = |name: &str| -> Vec<u64> { points.iter().map(|point| number(point, name)).collect() };
    // Time stamps take 12 bytes of each.
    assert_eq!(of("segment"), [524, 524, 1436, 1436]);
    assert_eq!(of("buffer"), [30_000, 2_000_000, 30_000, 2_000_000]);
    let rates: Vec<f64> = points
        .iter()
        .map(|point| point["rate"].as_f64().unwrap())
        .collect();
    if !room.was_disturbed(0.03) {
        assert!(
            rates[1] > 2.0 * rates[0] && rates[3] > 2.0 * rates[2],
            "{rates:?}"
        );
    }
    assert!(
        fs::read_to_string(room.path("p.svg"))
            .unwrap()
            .contains("segments of 524 bytes")
    );
}

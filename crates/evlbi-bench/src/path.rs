//! The emulated path: accuracy of its delay and rate, and how much it carries.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_net::transport::Protocol;
use evlbi_testkit::command;
use evlbi_testkit::need::which;
use serde_json::Value;

use crate::stage::EVLBI;
use crate::table::{Aim, Common, Figure, Scene, Table, median, play, tools};

#[derive(Args)]
pub struct PathArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &PathArgs) -> Result<()> {
    let room = Room(evlbi_testkit::Room::new());
    let scenes: [(&str, Scene<Room, PathArgs>); 5] = [
        ("delay", delay),
        ("rate", rate),
        (Protocol::Tcp.name(), tcp),
        (Protocol::Udp.name(), udp),
        ("peer", peer),
    ];
    play("path", &scenes, &args.common, String::new, &room, args)
}

/// Function that runs a script on a path.
type OnPath<'a> = &'a dyn Fn(&str) -> Result<()>;

/// A directory for plans and results, removed on drop.
struct Room(evlbi_testkit::Room);

impl Room {
    /// Runs a script on a path whose link has these keys. In it, `$FAR COMMAND` runs a command on the other host, whose name is
    /// `$HOST`.
    fn run(&self, link: &str, script: &str) -> Result<()> {
        self.run_with(1500, "1GiB", link, script)
    }

    /// Runs a script on a path with another MTU and other TCP buffers.
    fn run_with(&self, mtu: u32, buffer: &str, link: &str, script: &str) -> Result<()> {
        let host = |name: &str| {
            format!("[[host]]\nname = \"{name}\"\ncongestion = \"reno\"\nbuffer = \"{buffer}\"\n")
        };
        let plan = format!(
            "mtu = {mtu}\n{}{}[[link]]\nbetween = [\"near\", \"far\"]\n{link}\n",
            host("near"),
            host("far")
        );
        fs::write(self.0.path("plan.toml"), plan)?;
        let evlbi = fs::canonicalize(EVLBI)?;
        let far = format!("{} path exec far --", evlbi.display());
        self.finish(
            command(&evlbi)
                .args(["path", "run", "plan.toml", "--json", "path.json", "--force"])
                .args(["--", "sh", "-ec", script])
                .envs([("FAR", far.as_str()), ("HOST", "far")]),
        )
    }

    /// Runs a script through rattan, which joins the current namespace and a new one.
    fn run_rattan(&self, delay_us: u32, script: &str) -> Result<()> {
        let buffers = "sysctl -qw net.ipv4.tcp_rmem='4096 131072 1073741824' \
             net.ipv4.tcp_wmem='4096 131072 1073741824'";
        let inside = format!("HOST=$RATTAN_BASE; {buffers}\n{script}");
        let outside = format!(
            "ip link set lo up; {buffers}; export FAR=\"nsenter -t $$ -n\"
             rattan link --uplink-delay {delay_us}us --downlink-delay {delay_us}us -- sh -ec \"$INSIDE\""
        );
        self.finish(
            command("unshare")
                .args(["-n", "sh", "-ec", &outside])
                .env("INSIDE", inside),
        )
    }

    fn finish(&self, command: &mut Command) -> Result<()> {
        let output = command
            .env("E", fs::canonicalize(EVLBI)?)
            .current_dir(self.0.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{}{}", errors.trim(), self.said());
        }
        Ok(())
    }

    /// Returns what the programs of a script have printed, from its files `*.txt`.
    fn said(&self) -> String {
        let files = fs::read_dir(self.0.folder())
            .into_iter()
            .flatten()
            .flatten();
        let texts = files
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|it| it == "txt"));
        let lines = texts.filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let line = text.lines().next_back()?;
            Some(format!("; {}: {line}", path.file_stem()?.display()))
        });
        lines.collect()
    }

    fn json(&self, name: &str) -> Result<Value> {
        let text = fs::read_to_string(self.0.path(name))?;
        serde_json::from_str(&text).with_context(|| format!("in {name}: {text}"))
    }
}

/// Returns the kernel timestamps of the datagrams in a capture, by sequence number.
fn stamps(capture: &str) -> Result<HashMap<u64, f64>> {
    let bytes = fs::read(capture)?;
    let at = |place: usize| -> Option<u32> {
        Some(u32::from_le_bytes(
            bytes.get(place..place + 4)?.try_into().ok()?,
        ))
    };
    // pcap with nanoseconds: a header of 24 bytes, then 16 before each frame.
    if at(0) != Some(0xa1b2_3c4d) {
        bail!("{capture}: expected a pcap file with stamps in nanoseconds (tcpdump --nano)");
    }
    let (mut place, mut stamps) = (24, HashMap::new());
    while let (Some(seconds), Some(nanos), Some(length)) = (at(place), at(place + 4), at(place + 8))
    {
        let frame = place + 16;
        // Ethernet 14, IPv4 20, UDP 8.
        let payload = bytes.get(frame + 42..frame + 50);
        if let Some(number) = payload.and_then(|bytes| bytes.try_into().ok()) {
            stamps.insert(
                u64::from_le_bytes(number),
                f64::from(seconds) + f64::from(nanos) * 1e-9,
            );
        }
        place = frame + length as usize;
    }
    Ok(stamps)
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// Measures one-way delays by tcpdump's timestamps of both hosts. The parallel TCP flow has already reached its rate: while it sends as
/// much as it can, other packets of that host wait behind it.
fn delay(room: &Room, args: &PathArgs, table: &mut Table) -> Result<()> {
    tools(&["tcpdump"])?;
    for (what, load, p99_aim) in [
        ("idle", "", 150.0),
        ("beside 1 Gbit/s of TCP", "-b 1G", 150.0),
        ("beside 5 Gbit/s of TCP", "-b 5G", 250.0),
    ] {
        if !load.is_empty() {
            tools(&["iperf3"])?;
        }
        for rtt in [1u32, 15, 95] {
            let (mut p99s, mut all) = (Vec::new(), Vec::new());
            for _ in 0..args.runs {
                for mut errors in one_way(room, rtt, load, args.seconds)? {
                    errors.sort_by(f64::total_cmp);
                    p99s.push(at(&errors, 0.99));
                    all.append(&mut errors);
                }
            }
            all.sort_by(f64::total_cmp);
            let error = |which: &str, value| {
                Figure::new(
                    format!("error of the delay, {rtt} ms, {what}: {which}"),
                    value,
                    "us",
                )
            };
            table.add(error("median", at(&all, 0.5)).aim(Aim::AtMost(50.0)));
            table.add(error("p99", at(&all, 0.99)).aim(Aim::AtMost(p99_aim)));
            table.add(error("p99 of half seconds", median(&mut p99s)));
        }
    }
    Ok(())
}

/// Returns the deviations of one-way delays from half of the RTT, in us, for each half second.
fn one_way(room: &Room, rtt: u32, load: &str, seconds: u32) -> Result<Vec<Vec<f64>>> {
    let dump = "tcpdump -i wire -Z root --nano -s 60 -B 16384 -U -w";
    let beside = if load.is_empty() {
        String::new()
    } else {
        format!(
            "$FAR iperf3 -s -1 > server.txt & sleep 0.5; \
             iperf3 -c $HOST -C cubic {load} -t {} > load.txt & sleep 4;",
            seconds + 5
        )
    };
    let script = format!(
        "{dump} near.pcap 'udp dst port 2630' 2> near.txt & near=$!
         $FAR sh -c '{dump} far.pcap \"udp dst port 2630\" 2> far.txt & echo $! > far.pid; wait' &
         sleep 1; {beside}
         $E send pattern:1024 --to udp://$HOST:2630 --rate 8M --duration {seconds}s --no-gso 2> send.txt
         sleep 0.5; kill -INT $near; $FAR sh -c 'kill -INT $(cat far.pid)'; wait"
    );
    room.run(&format!("rtt = \"{rtt}ms\""), &script)?;
    let (near, far) = (
        stamps(&room.0.path("near.pcap"))?,
        stamps(&room.0.path("far.pcap"))?,
    );
    let planned = f64::from(rtt) * 0.5e-3;
    let begin = near.values().copied().fold(f64::INFINITY, f64::min);
    let mut halves: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (number, sent) in &near {
        if let Some(arrived) = far.get(number) {
            let error = (arrived - sent - planned).abs() * 1e6;
            let half = ((sent - begin) * 2.0) as u64;
            halves.entry(half).or_default().push(error);
        }
    }
    // The last one is incomplete.
    halves.pop_last();
    if halves.is_empty() {
        bail!("too few datagrams were captured at both ends");
    }
    Ok(halves.into_values().collect())
}

/// Measures a bottleneck of 1 Gbit/s: TCP's goodput, and the spacing of datagrams that arrive faster.
fn rate(room: &Room, args: &PathArgs, table: &mut Table) -> Result<()> {
    tools(&["iperf3", "tcpdump"])?;
    let ours = |script: &str| room.run("rtt = \"1ms\"\nrate = \"1G\"\nbuffer = \"1MiB\"", script);
    let mut goodput = Vec::new();
    for _ in 0..args.runs {
        goodput.push(tcp_run(args, &ours, room, "-C cubic")?.0);
    }
    let goodput = median(&mut goodput);
    // 1448 of 1538 bytes on the wire.
    let ideal = 1448.0 / 1538.0;
    let differs = |reached: f64, ideal: f64| 100.0 * (reached / ideal - 1.0).abs();
    let what = "TCP through 1 Gbit/s: difference from what fits";
    let figure = Figure::new(what, differs(goodput, ideal), "%");
    table.add(figure.aim(Aim::AtMost(1.0)));
    let script = format!(
        "$FAR sh -c 'tcpdump -i wire -Z root --nano -s 60 -B 65536 -U -w far.pcap \"udp dst port 2630\" 2> far.txt & echo $! > far.pid; wait' &
         sleep 1; $E send pattern:1464 --mtu 1508 --to udp://$HOST:2630 --rate 1.5G --duration {}s 2> send.txt
         sleep 0.5; $FAR sh -c 'kill -INT $(cat far.pid)'; wait",
        args.seconds.min(3)
    );
    ours(&script)?;
    let mut stamps: Vec<f64> = stamps(&room.0.path("far.pcap"))?.into_values().collect();
    stamps.sort_by(f64::total_cmp);
    let span = stamps.last().context("nothing was captured")? - stamps[0];
    let path = room.json("path.json")?;
    let passed = path["cells"][0]["passed"].as_f64().context("no cell")?;
    // Ethernet 14 + 24, IPv4 20, UDP 8, number 8.
    let wire = 8.0 * (1464.0 + 8.0 + 28.0 + 38.0);
    let reached = (stamps.len() as f64 - 1.0) * wire / span / 1e9;
    let mut gaps: Vec<f64> = stamps
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) * 1e6)
        .collect();
    gaps.sort_by(f64::total_cmp);
    eprintln!("    {passed} passed, {} captured", stamps.len());
    let what = "UDP through 1 Gbit/s: difference from it, on the wire";
    let figure = Figure::new(what, differs(reached, 1.0), "%");
    table.add(figure.aim(Aim::AtMost(1.0)));
    for (what, share) in [("median", 0.5), ("p99", 0.99)] {
        let what = format!(
            "UDP through 1 Gbit/s: gaps, {what} (ideal {:.2})",
            wire / 1e3
        );
        table.add(Figure::new(what, at(&gaps, share), "us"));
    }
    Ok(())
}

/// Returns goodput in Gbit/s, and retransmissions.
fn tcp_run(args: &PathArgs, path: OnPath, room: &Room, options: &str) -> Result<(f64, u64)> {
    path(&format!(
        "$FAR iperf3 -s -1 > server.txt & sleep 0.5
         iperf3 -c $HOST {options} -O 2 -t {} -J > client.json; wait",
        args.seconds + 2
    ))?;
    let client = room.json("client.json")?;
    let end = &client["end"];
    let bits = end["sum_received"]["bits_per_second"].as_f64();
    let again = end["sum_sent"]["retransmits"].as_u64().unwrap_or(0);
    Ok((bits.context("no rate")? / 1e9, again))
}

fn tcp(room: &Room, args: &PathArgs, table: &mut Table) -> Result<()> {
    tools(&["iperf3"])?;
    for rtt in [0u32, 15, 95] {
        let (mut rates, mut agains) = (Vec::new(), Vec::new());
        // A window for 20 Gbit/s takes three times its bytes of memory; any excess waits in the host's queue.
        let buffer = format!("{}MiB", 8 + 3 * 20_000 / 8 * rtt / 1024);
        let link = format!("rtt = \"{rtt}ms\"");
        for _ in 0..args.runs {
            let path = |script: &str| room.run_with(1500, &buffer, &link, script);
            let (rate, again) = tcp_run(args, &path, room, "-C cubic")?;
            rates.push(rate);
            agains.push(again as f64);
        }
        let state = room.json("path.json")?;
        let memory = state["lateness"].as_array().into_iter().flatten();
        let memory: f64 = memory.filter_map(|part| part["memory"].as_f64()).sum();
        let rate = median(&mut rates);
        eprintln!(
            "    {} retransmissions, {:.0} MB under way",
            median(&mut agains),
            rate * f64::from(rtt) / 2.0 / 8.0,
        );
        let of = format!("TCP (cubic) at {rtt} ms");
        table.add(Figure::new(of.clone(), rate, "Gbit/s").aim(Aim::AtLeast(15.0)));
        table.add(Figure::new(
            format!("{of}, memory held"),
            memory / 1e6,
            "MB",
        ));
    }
    Ok(())
}

/// Measures the maximum rates without loss, in steps.
fn udp(room: &Room, args: &PathArgs, table: &mut Table) -> Result<()> {
    let scenes: [(&str, u32, &str, &[f64], f64); 3] = [
        (
            "1472 B packet by packet",
            1500,
            "pattern:1464 --mtu 1508 --no-gso",
            &[1.0, 1.5, 2.0, 2.5, 3.0],
            2.0,
        ),
        (
            "1472 B in trains",
            1500,
            "pattern:1464 --mtu 1508",
            &[5.0, 8.0, 10.0, 12.0, 15.0, 18.0],
            15.0,
        ),
        (
            "jumbo in trains",
            9000,
            "pattern:8032 --mtu 9000 --burst 7",
            &[5.0, 8.0, 10.0, 12.0, 15.0, 18.0],
            15.0,
        ),
    ];
    for (what, mtu, source, steps, aim) in scenes {
        for rtt in [0u32, 15, 95] {
            let mut reached = 0.0;
            for step in steps {
                let link = format!("rtt = \"{rtt}ms\"");
                let path = |script: &str| room.run_with(mtu, "1GiB", &link, script);
                if !loses_nothing(room, args, &path, source, *step)? {
                    break;
                }
                reached = *step;
            }
            let what = format!("{what}, {rtt} ms, without loss");
            table.add(Figure::new(what, reached, "Gbit/s").aim(Aim::AtLeast(aim)));
        }
    }
    Ok(())
}

/// Returns whether most runs reached this rate in Gbit/s without loss.
fn loses_nothing(
    room: &Room,
    args: &PathArgs,
    path: OnPath,
    source: &str,
    rate: f64,
) -> Result<bool> {
    let mut clean = 0;
    for _ in 0..args.runs {
        path(&format!(
            "rm -f recv.txt
             $FAR $E recv udp://0.0.0.0:2630 --to null --idle 1s --json > recv.json 2> recv.txt &
             for i in $(seq 100); do grep -q listening recv.txt && break; sleep 0.1; done
             $E send {source} --to udp://$HOST:2630 --rate {rate}G --duration {}s --json > send.json 2> send.txt; wait",
            args.seconds.min(3)
        ))?;
        let (sent, received) = (room.json("send.json")?, room.json("recv.json")?);
        let came_to_it = sent["rate_bps"].as_f64().context("no rate")? > 0.97e9 * rate;
        clean += usize::from(came_to_it && sent["sent"] == received["unique"]);
    }
    Ok(2 * clean > args.runs)
}

/// Measures the same through rattan, in turn.
fn peer(room: &Room, args: &PathArgs, table: &mut Table) -> Result<()> {
    tools(&["iperf3"])?;
    if which("rattan").is_none() {
        table.misses("rattan (cargo install --locked rattan@0.1.1)");
        return Ok(());
    }
    for rtt in [15u32, 95] {
        let link = format!("rtt = \"{rtt}ms\"");
        let ours = |script: &str| room.run(&link, script);
        let rattan = |script: &str| room.run_rattan(rtt * 500, script);
        let paths: [OnPath; 2] = [&ours, &rattan];
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..args.runs {
            for (path, rates) in paths.iter().zip(&mut rates) {
                rates.push(tcp_run(args, path, room, "-C cubic")?.0);
            }
        }
        let [ours, theirs] = rates.each_mut().map(|rates| median(rates));
        let figure = Figure::new(format!("TCP, {rtt} ms"), ours, "Gbit/s");
        table.add(figure.beside("rattan", theirs));
        let mut reached = [0.0; 2];
        for (path, reached) in paths.iter().zip(&mut reached) {
            for step in [0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5] {
                if !loses_nothing(room, args, path, "pattern:1464 --mtu 1508 --no-gso", step)? {
                    break;
                }
                *reached = step;
            }
        }
        let what = format!("1472 bytes packet by packet, {rtt} ms, without loss");
        table.add(Figure::new(what, reached[0], "Gbit/s").beside("rattan", reached[1]));
    }
    Ok(())
}

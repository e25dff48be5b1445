//! `cargo xtask bench net`: transport across a pair of network namespaces, compared with iperf3, iperf and nuttcp.

use anyhow::Result;
use clap::Args;

use crate::stage::{self, Carried, Stage, Wire, iperf3, iperf3_trains, ours};
use crate::table::{Aim, Common, Figure, Scene, Table, median, play};
use crate::{cores, disk, mirror, pacing};

#[derive(Args)]
pub struct NetArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 3)]
    pub seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// Seconds of the long run into --to check
    #[arg(long, default_value_t = 60)]
    long: u32,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &NetArgs) -> Result<()> {
    let stage = Stage::new()?;
    let scenes: [(&str, Scene<Stage, NetArgs>); 11] = [
        ("trains", trains),
        ("unsegmented", unsegmented),
        ("single", single),
        ("jumbo", jumbo),
        ("cpu", cpu),
        ("check", check),
        ("pair", pair),
        ("unix", unix),
        ("mirror", mirror::run),
        ("pacing", pacing::run),
        ("disk", disk::run),
    ];
    let apart = || {
        format!(
            "   (a cache line crosses to the other processor and back in {:.0} ns)",
            cores::round_trip()
        )
    };
    play("net", &scenes, &args.common, apart, &stage, args)
}

/// UDP payloads of 1472 bytes: a sequence number and a frame of 1464. jive5ab requires packets to be shorter than the MTU, so the wire
/// allows slightly more than 1500.
pub const STANDARD: Wire = Wire {
    mtu: 1508,
    segmentation: true,
};
pub const STANDARD_FRAME: usize = 1464;
/// A jumbo Ethernet frame.
pub const JUMBO: Wire = Wire {
    mtu: 9000,
    segmentation: true,
};
pub const JUMBO_FRAME: usize = 8032;

fn trains(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let aims = [Aim::AtLeast(30.0), Aim::RatioAtLeast(10.0)];
    let what = "1472 bytes in trains, without loss";
    against_iperf3(stage, args, table, what, STANDARD_FRAME, &[], &aims)
}

fn unsegmented(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(Wire {
        segmentation: false,
        ..STANDARD
    })?;
    let what = "1472 bytes, segmentation offload off";
    let aims = [Aim::RatioAtLeast(3.0)];
    against_iperf3(stage, args, table, what, STANDARD_FRAME, &[], &aims)
}

fn single(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let (what, options) = ("1472 bytes, packet by packet", ["--no-gso"]);
    let aims = [Aim::RatioAtLeast(1.3)];
    against_iperf3(stage, args, table, what, STANDARD_FRAME, &options, &aims)
}

fn jumbo(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(JUMBO)?;
    let what = "8040 bytes in trains, without loss";
    let aims = [Aim::RatioAtLeast(3.0)];
    against_iperf3(stage, args, table, what, JUMBO_FRAME, &[], &aims)
}

/// Rates that a search tries, in Gbit/s.
pub const RATES: [f64; 18] = [
    1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0,
    60.0,
];

/// A binary search for the highest of some rates that passes without loss.
pub struct Search {
    rates: Vec<f64>,
    /// Rates below this index pass.
    good: usize,
    /// Rates from this index on do not.
    bad: usize,
}

impl Search {
    pub fn among(rates: Vec<f64>) -> Search {
        let (good, bad) = (0, rates.len());
        Search { rates, good, bad }
    }

    pub fn is_over(&self) -> bool {
        self.good >= self.bad
    }

    fn middle(&self) -> usize {
        usize::midpoint(self.good, self.bad).min(self.rates.len() - 1)
    }

    /// Returns the rate to try next.
    pub fn rate(&self) -> f64 {
        self.rates[self.middle()]
    }

    /// Records whether it passed.
    pub fn told(&mut self, is_good: bool) {
        match is_good {
            true => self.good = self.good.max(self.middle() + 1),
            false => self.bad = self.bad.min(self.middle()),
        }
    }
}

/// Measures the highest rate without loss in most runs, compared with what iperf3 receives when it sends as fast as it can. A sender
/// that cannot reach a rate still shows how much it can send.
fn against_iperf3(
    stage: &Stage,
    args: &NetArgs,
    table: &mut Table,
    what: &str,
    frame: usize,
    options: &[&str],
    aims: &[Aim],
) -> Result<()> {
    // iperf3 also sends packet by packet.
    let trains = if options.is_empty() {
        iperf3_trains()
    } else {
        &[]
    };
    let peer = ["iperf3"]
        .iter()
        .chain(trains)
        .copied()
        .collect::<Vec<_>>()
        .join(" ");
    let wanted = if table.has_peer("iperf3") {
        args.runs
    } else {
        0
    };
    let mut theirs = Vec::new();
    let mut apart: f64 = 0.0;
    let mut first_loss = None;
    let mut highest: f64 = 0.0;
    let mut search = Search::among(RATES.to_vec());
    while !search.is_over() || theirs.len() < wanted {
        let rate = search.rate();
        let mut runs = Vec::new();
        for _ in 0..args.runs {
            if theirs.len() < wanted {
                let run = || iperf3(stage, frame + 8, None, args.seconds, trains);
                let (run, ns) = cores::near(run)?;
                theirs.push(run.received);
                apart = apart.max(ns);
            }
            let (run, ns) =
                cores::near(|| ours(stage, frame, Some(rate), args.seconds, "null", options))?;
            eprintln!(
                "    {rate} Gbit/s: {:.2} came, {} of {} lost; processors {ns:.0} ns apart",
                run.received, run.lost, run.expected
            );
            runs.push(run);
            apart = apart.max(ns);
        }
        // Most of the runs: another program's minute on a shared machine is not this one's limit.
        let whole = |run: &&Carried| run.lost == 0;
        let clean = 2 * runs.iter().filter(whole).count() > runs.len();
        let mut received: Vec<f64> = runs.iter().map(|run| run.received).collect();
        let received = median(&mut received);
        if clean {
            highest = received.max(highest);
        } else {
            let worst = runs.iter().find(|run| !whole(run));
            first_loss = worst.map(|run| (rate, run.received, run.lost_share()));
        }
        search.told(clean && received > 0.98 * rate);
    }
    // iperf3 counts all of the UDP payload, so the sequence number is included here too.
    let payload = highest * (frame + 8) as f64 / frame as f64;
    let mut figure = Figure::new(what, payload, "Gbit/s");
    if !theirs.is_empty() {
        figure = figure.beside(&peer, median(&mut theirs));
    }
    table.add(aims.iter().fold(figure, |figure, aim| figure.aim(*aim)));
    if let Some((rate, received, share)) = first_loss {
        eprintln!(
            "  with loss at {rate:.1} Gbit/s: {received:.2} came, {:.3} % lost",
            share * 100.0
        );
    }
    eprintln!("  processors at most {apart:.0} ns apart (round trip)");
    Ok(())
}

/// Measures CPU seconds of both hosts per gigabyte at 20 Gbit/s, compared with iperf3 as fast as it can.
fn cpu(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let has_peer = table.has_peer("iperf3");
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let rate = Some(20.0);
        let run = || ours(stage, STANDARD_FRAME, rate, args.seconds, "null", &[]);
        mine.push(cores::near(run)?.0.cpu_per_gb);
        if has_peer {
            let run = || iperf3(stage, STANDARD_FRAME + 8, None, args.seconds, &[]);
            theirs.push(cores::near(run)?.0.cpu_per_gb);
        }
    }
    let what = "processor time at 20 Gbit/s in trains";
    let mut figure = Figure::new(what, median(&mut mine), "s/GB").aim(Aim::RatioAtMost(0.2));
    if has_peer {
        figure = figure.beside("iperf3", median(&mut theirs));
    }
    table.add(figure);
    Ok(())
}

/// Checks every payload of a minute at 10 Gbit/s.
fn check(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let run = ours(stage, STANDARD_FRAME, Some(10.0), args.long, "check", &[])?;
    let what = format!("lost in {} s at 10 Gbit/s", args.long);
    table.add(Figure::new(what, run.lost as f64, "datagrams").aim(Aim::AtMost(0.0)));
    let what = format!("corrupted, of {} frames verified", run.good + run.corrupted);
    table.add(Figure::new(what, run.corrupted as f64, "frames").aim(Aim::AtMost(0.0)));
    Ok(())
}

/// Measures two senders and two receivers that share the host.
fn pair(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let mut both = stage::two_at_once(stage, STANDARD_FRAME, args.seconds)?;
    both.sort_by(f64::total_cmp);
    for (what, rate) in ["slower", "faster"].iter().zip(both) {
        let what = format!("the {what} of two flows on one host, as fast as they can");
        table.add(Figure::new(what, rate, "Gbit/s"));
    }
    Ok(())
}

/// Measures two programs of one host, as fast as they can: over a Unix socket, and over UDP on loopback.
fn unix(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    let (mut unix, mut udp) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        for (is_unix, rates) in [(true, &mut unix), (false, &mut udp)] {
            let run = || stage::on_one_host(stage, is_unix, JUMBO_FRAME, args.seconds);
            rates.push(cores::near(run)?.0);
        }
    }
    let figure = Figure::new("8040 bytes over a Unix socket", median(&mut unix), "Gbit/s");
    let figure = figure.beside("UDP on loopback", median(&mut udp));
    table.add(figure.aim(Aim::RatioAtLeast(0.9)));
    Ok(())
}

//! `cargo xtask bench net`: how fast and how evenly the program carries data, beside its peers, across a pair
//! of network namespaces; `cargo xtask bench fx`: what the correlator costs. Each figure is the median of repeated runs that take turns with the peer's.

mod analyse;
mod cores;
mod disk;
mod fx;
mod pacing;
mod path;
mod probe;
mod stage;
mod tcp;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use stage::{Carried, Stage, Wire, iperf3, ours};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measure evlbi beside its peers")]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Transport across two network namespaces (as root), beside iperf3, iperf and nuttcp
    Net(NetArgs),
    /// The correlator, step by step and as a whole, beside numpy; streams as they come
    Fx(fx::FxArgs),
    /// The emulated path: delay, rate, and how much it carries
    Path(path::PathArgs),
    /// Probes beside iperf3, iperf and nuttcp (as root): highest rate without loss, spacing, processor time
    Probe(probe::ProbeArgs),
    /// Bulk TCP beside iperf3 (as root)
    Tcp(tcp::TcpArgs),
    /// Captures beside tshark (as root)
    Analyse(analyse::AnalyseArgs),
}

#[derive(Args)]
struct NetArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Seconds of the long run into --to check
    #[arg(long, default_value_t = 60)]
    long: u32,
    /// Only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let args = match &cli.bench {
        Bench::Net(args) => args,
        Bench::Fx(args) => return fx::run(args),
        Bench::Path(args) => return path::run(args),
        Bench::Probe(args) => return probe::run(args),
        Bench::Tcp(args) => return tcp::run(args),
        Bench::Analyse(args) => return analyse::run(args),
    };
    stage::build()?;
    let stage = Stage::new()?;
    let scenes: [(&str, Scene<Stage, NetArgs>); 9] = [
        ("trains", trains),
        ("unsegmented", unsegmented),
        ("single", single),
        ("jumbo", jumbo),
        ("cpu", cpu),
        ("check", check),
        ("pair", pair),
        ("pacing", pacing::run),
        ("disk", disk::run),
    ];
    let apart = || {
        format!(
            "   (a cache line crosses to the other processor and back in {:.0} ns)",
            cores::round_trip()
        )
    };
    play(&scenes, args.only.as_deref(), apart, &stage, args)
}

/// A part of a bench: on what it stages, with its options.
type Scene<S, A> = fn(&S, &A) -> Result<()>;

/// Plays the scenes whose names contain `only`; `about` goes behind each name.
fn play<S, A>(
    scenes: &[(&str, Scene<S, A>)],
    only: Option<&str>,
    about: impl Fn() -> String,
    stage: &S,
    args: &A,
) -> Result<()> {
    for (name, scene) in scenes {
        if only.is_none_or(|only| name.contains(only)) {
            println!("\n{name}{}", about());
            scene(stage, args)?;
        }
    }
    Ok(())
}

/// UDP payloads of 1472 bytes: a sequence number and a frame of 1464. jive5ab's rule wants the packet to be
/// less than the MTU, so the wire has a little more than 1500.
const STANDARD: Wire = Wire {
    mtu: 1508,
    segmentation: true,
};
const STANDARD_FRAME: usize = 1464;
/// A jumbo frame of Ethernet.
const JUMBO: Wire = Wire {
    mtu: 9000,
    segmentation: true,
};
const JUMBO_FRAME: usize = 8032;

fn trains(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    against_iperf3(stage, args, STANDARD_FRAME, &[], 10.0, Some(30.0))
}

fn unsegmented(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(Wire {
        segmentation: false,
        ..STANDARD
    })?;
    let result = against_iperf3(stage, args, STANDARD_FRAME, &[], 3.0, None);
    stage.wire(STANDARD)?;
    result
}

fn single(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    against_iperf3(stage, args, STANDARD_FRAME, &["--no-gso"], 1.3, None)
}

fn jumbo(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(JUMBO)?;
    against_iperf3(stage, args, JUMBO_FRAME, &[], 3.0, None)
}

/// The highest rate that goes through without loss in most runs, beside what iperf3 receives when it sends as
/// fast as it can. A sender that cannot send what it is asked for still tells how much it can.
const RATES: [f64; 18] = [
    1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0,
    60.0,
];

/// A search by halves for the highest of some rates that goes through.
struct Search {
    rates: Vec<f64>,
    /// Rates below do go through.
    good: usize,
    /// From here on they do not.
    bad: usize,
}

impl Search {
    fn among(rates: Vec<f64>) -> Search {
        let (good, bad) = (0, rates.len());
        Search { rates, good, bad }
    }

    fn is_over(&self) -> bool {
        self.good >= self.bad
    }

    fn middle(&self) -> usize {
        usize::midpoint(self.good, self.bad).min(self.rates.len() - 1)
    }

    /// To try next.
    fn rate(&self) -> f64 {
        self.rates[self.middle()]
    }

    /// Whether it went through.
    fn told(&mut self, is_good: bool) {
        match is_good {
            true => self.good = self.good.max(self.middle() + 1),
            false => self.bad = self.bad.min(self.middle()),
        }
    }
}

fn against_iperf3(
    stage: &Stage,
    args: &NetArgs,
    frame: usize,
    options: &[&str],
    aim_ratio: f64,
    aim: Option<f64>,
) -> Result<()> {
    let mut theirs = Vec::new();
    let mut apart: f64 = 0.0;
    let mut first_loss = None;
    let mut highest: f64 = 0.0;
    let mut search = Search::among(RATES.to_vec());
    while !search.is_over() || theirs.len() < args.runs {
        let rate = search.rate();
        let mut runs = Vec::new();
        for _ in 0..args.runs {
            if theirs.len() < args.runs {
                let (run, ns) = cores::near(|| iperf3(stage, frame + 8, None, args.seconds))?;
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
    let theirs = median(&mut theirs);
    // iperf3 counts all of the UDP payload, so the sequence number is counted here too.
    let ratio = highest * (frame + 8) as f64 / frame as f64 / theirs;
    println!("  highest rate without loss   {highest:6.1} Gbit/s");
    println!("  iperf3, as fast as it can   {theirs:6.2} Gbit/s");
    println!(
        "  ratio                       {ratio:6.2}   aim {aim_ratio}: {}",
        verdict(ratio >= aim_ratio)
    );
    if let Some(aim) = aim {
        println!(
            "  aim                         {aim:6.1} Gbit/s: {}",
            verdict(highest >= aim)
        );
    }
    if let Some((rate, received, share)) = first_loss {
        println!(
            "  with loss at                {rate:6.1} Gbit/s: {received:.2} came, {:.3} % lost",
            share * 100.0
        );
    }
    println!("  processors apart            {apart:6.0} ns at most, there and back");
    Ok(())
}

/// Processor seconds of both ends for a gigabyte at 20 Gbit/s.
fn cpu(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let rate = Some(20.0);
        let run = || ours(stage, STANDARD_FRAME, rate, args.seconds, "null", &[]);
        mine.push(cores::near(run)?.0.cpu_per_gb);
        let run = || iperf3(stage, STANDARD_FRAME + 8, None, args.seconds);
        theirs.push(cores::near(run)?.0.cpu_per_gb);
    }
    let (mine, theirs) = (median(&mut mine), median(&mut theirs));
    println!("  at 20 Gbit/s in trains      {mine:6.2} s/GB");
    println!("  iperf3, as fast as it can   {theirs:6.2} s/GB");
    println!(
        "  ratio                       {:6.3}   aim 0.2: {}",
        mine / theirs,
        verdict(mine <= 0.2 * theirs)
    );
    Ok(())
}

/// 10 Gbit/s for a minute, every payload verified.
fn check(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    let run = ours(stage, STANDARD_FRAME, Some(10.0), args.long, "check", &[])?;
    println!(
        "  10 Gbit/s for {} s: {:.2} came, {} lost, {} frames verified, {} corrupted: {}",
        args.long,
        run.received,
        run.lost,
        run.good,
        run.corrupted,
        verdict(run.lost == 0 && run.corrupted == 0)
    );
    Ok(())
}

/// Two senders and two receivers share the host.
fn pair(stage: &Stage, args: &NetArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    let mut both = stage::two_at_once(stage, STANDARD_FRAME, args.seconds)?;
    both.sort_by(f64::total_cmp);
    println!(
        "  two flows as fast as they can: {:.2} and {:.2} Gbit/s received, ratio {:.2}",
        both[0],
        both[1],
        both[0] / both[1]
    );
    Ok(())
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "NOT reached" }
}

/// The middle one; `NaN` of nothing.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

//! `evlbi distribute` with real engines: processes on one host, Slurm with two nodes, Dask with two workers. Hosts, schedulers, disks and
//! programs fail, and the result is that of one run, to the bit.

mod cases;
pub mod dask;
mod hosts;
mod job;
pub mod slurm;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use evlbi_testkit::Room;

use super::record::{Aim, Need, Record, Scene};
use cases::Play;
use dask::Dask;
use hosts::Hosts;
use job::Job;
use slurm::Slurm;

/// Needs of all scenes: namespaces.
const HOSTS: [Need; 5] = [
    Need::Root,
    Need::Program("hostname"),
    Need::Program("ip"),
    Need::Program("nsenter"),
    Need::Program("unshare"),
];
const ON_SLURM: [Need; 6] = [
    HOSTS[0],
    HOSTS[1],
    HOSTS[2],
    HOSTS[3],
    HOSTS[4],
    Need::Slurm,
];
const ON_DASK: [Need; 6] = [HOSTS[0], HOSTS[1], HOSTS[2], HOSTS[3], HOSTS[4], Need::Dask];

pub const SCENES: &[Scene] = &[
    Scene {
        name: "distributed-local",
        shows: "Seven parts as processes of one host: `evlbi distribute` gives the files of one run, whatever fails.",
        needs: &HOSTS,
        stall: Duration::MAX,
        play: local,
    },
    Scene {
        name: "distributed-slurm",
        shows: "Seven parts on Slurm with two nodes: a node, the controller, the disk and `evlbi distribute` fail, and the files are those of one run.",
        needs: &ON_SLURM,
        stall: Duration::MAX,
        play: on_slurm,
    },
    Scene {
        name: "distributed-dask",
        shows: "Seven parts on Dask with two workers and TLS: a node, a worker, the scheduler, the disk and `evlbi distribute` fail, and the files are those of one run.",
        needs: &ON_DASK,
        stall: Duration::MAX,
        play: on_dask,
    },
];

fn local(record: &mut Record) -> Result<()> {
    let room = Room::new();
    let hosts = Hosts::new(None)?;
    let job = Job::new(&hosts, &room)?;
    let jobs = ["--jobs".to_owned(), "2".to_owned()];
    let mut play = Play::new(record, &hosts, &job, "local", &jobs, |_: &mut Command| {});
    play.reference()?;
    let settle = || hosts.kill_all(|process| process.option("--part").is_some());
    play.case("seven parts", cases::plain);
    play.case("a part is killed", cases::killed_part);
    settle()?;
    play.case("the disk is full", cases::full_disk);
    settle()?;
    play.case("part 4 always fails", cases::failing);
    settle()?;
    play.case("another version", cases::other_version);
    settle()?;
    play.case("a part is stopped", cases::straggler);
    settle()?;
    play.case("distribute is killed", cases::killed);
    Ok(())
}

fn on_slurm(record: &mut Record) -> Result<()> {
    let room = Room::new();
    let hosts = Hosts::new(slurm::usr()?.as_deref())?;
    let job = Job::new(&hosts, &room)?;
    let begun = Instant::now();
    let slurm = Slurm::start(&hosts, &room)?;
    ready(record, "Slurm", begun);
    let set = |command: &mut Command| slurm.environment(command);
    let mut play = Play::new(record, &hosts, &job, "slurm", &[], set);
    play.reference()?;
    play.case("seven parts", cases::plain);
    slurm.settle()?;
    play.case("a part is killed", cases::killed_part);
    slurm.settle()?;
    play.case("a node is killed", cases::killed_node);
    slurm.settle()?;
    play.case("the controller is killed", |play, out, checks| {
        cases::killed_controller(play, &slurm, out, checks)
    });
    slurm.settle()?;
    play.case("the disk is full", cases::full_disk);
    slurm.settle()?;
    play.case("part 4 always fails", cases::failing);
    slurm.settle()?;
    play.case("another version", cases::other_version);
    slurm.settle()?;
    play.case("a part is stopped", cases::straggler);
    slurm.settle()?;
    play.case("distribute is killed", |play, out, checks| {
        cases::killed(play, out, checks)?;
        let repeated = play.repeated(out);
        checks.that(
            repeated == 0,
            format!("{repeated} parts that still ran were submitted again"),
        );
        Ok(())
    });
    slurm.settle()?;
    play.case("Slurm refuses the job", cases::refused);
    Ok(())
}

fn on_dask(record: &mut Record) -> Result<()> {
    let room = Room::new();
    let hosts = Hosts::new(None)?;
    let job = Job::new(&hosts, &room)?;
    let begun = Instant::now();
    let mut dask = Dask::start(&hosts, &job, &room)?;
    ready(record, "Dask", begun);
    let options = dask.options();
    let mut play = Play::new(record, &hosts, &job, "dask", &options, |_: &mut Command| {});
    play.reference()?;
    play.case("seven parts", cases::plain);
    dask.settle()?;
    play.case("a node is killed", cases::killed_node);
    dask.settle()?;
    play.case("a worker is killed", |play, out, checks| {
        cases::killed_worker(play, &dask, out, checks)
    });
    dask.settle()?;
    play.case("the scheduler is killed", |play, out, checks| {
        cases::killed_scheduler(play, &mut dask, out, checks)
    });
    dask.settle()?;
    play.case("the disk is full", cases::full_disk);
    dask.settle()?;
    play.case("part 4 always fails", cases::failing);
    dask.settle()?;
    play.case("another version", cases::other_version);
    dask.settle()?;
    play.case("a part is stopped", cases::straggler);
    dask.settle()?;
    play.case("distribute is killed", cases::killed);
    dask.settle()?;
    play.case("a scheduler without TLS", |play, out, checks| {
        cases::plain_scheduler(play, &dask, out, checks)
    });
    Ok(())
}

/// Records how long an engine took to start.
fn ready(record: &mut Record, engine: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    record.figure(format!("{engine} is ready"), "s", seconds, Aim::Shown);
}

//! Slurm on the hosts: one controller and two nodes of one CPU each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use evlbi_testkit::Room;
use evlbi_testkit::need::{missing, which};
use nix::sys::signal::Signal;

use super::super::programs::{output, printed};
use super::hosts::{HEAD, HEAD_ADDRESS, Hosts, NODES, Process, until};

/// Programs of Slurm and of its authentication.
const PROGRAMS: [&str; 4] = ["munged", "sbatch", "slurmctld", "slurmd"];
/// Debian packages with them.
const PACKAGES: [&str; 2] = ["slurm-wlm", "munge"];
/// Directory of these packages, if they are unpacked and not installed.
const UNPACKED: &str = "target/slurm";
/// Programs that a package script would link to files with the suffix `-wlm`.
const LINKED: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];

/// Returns what is missing, after an attempt to unpack the Debian packages in `target/slurm`, which installs nothing.
pub fn lacking() -> Option<String> {
    let is_there = PROGRAMS.iter().all(|program| which(program).is_some());
    if is_there || Path::new(UNPACKED).is_dir() {
        return None;
    }
    let error = unpack().err()?;
    let missing = missing(&PROGRAMS).join(", ");
    Some(format!("{missing}; {UNPACKED}: {error:#}"))
}

/// Returns the directory to be laid over `/usr`, if Slurm is not installed.
pub fn usr() -> Result<Option<PathBuf>> {
    if PROGRAMS.iter().all(|program| which(program).is_some()) {
        return Ok(None);
    }
    let usr = Path::new(UNPACKED).join("usr");
    Ok(Some(fs::canonicalize(usr).context(UNPACKED)?))
}

fn unpack() -> Result<()> {
    let options = ["--simulate", "--no-install-recommends", "install"];
    let plan = printed(Command::new("apt-get").args(options).args(PACKAGES))?;
    // A package of the plan: Inst NAME (VERSION ...)
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let names: Vec<&str> = lines
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    ensure!(!names.is_empty(), "apt-get knows no {}", PACKAGES.join(" "));
    let folder = PathBuf::from(format!("{UNPACKED}.{}", std::process::id()));
    let debs = folder.join("debs");
    fs::create_dir_all(&debs)?;
    let mut download = Command::new("apt-get");
    download
        .arg("download")
        .args(&names)
        .current_dir(&debs)
        .env("LC_ALL", "C");
    printed(&mut download)?;
    for deb in fs::read_dir(&debs)? {
        let mut unpack = Command::new("dpkg");
        printed(unpack.arg("--extract").arg(deb?.path()).arg(&folder))?;
    }
    for program in LINKED {
        let link = folder.join("usr/sbin").join(program);
        if !link.exists() {
            std::os::unix::fs::symlink(format!("{program}-wlm"), link)?;
        }
    }
    fs::remove_dir_all(&debs)?;
    Ok(fs::rename(&folder, UNPACKED)?)
}

/// The daemons.
pub struct Slurm<'a> {
    hosts: &'a Hosts,
    folder: PathBuf,
}

impl<'a> Slurm<'a> {
    /// Starts all daemons, and waits until both nodes take jobs.
    pub fn start(hosts: &'a Hosts, room: &Room) -> Result<Slurm<'a>> {
        let folder = room.folder().join("slurm");
        fs::create_dir(&folder)?;
        let slurm = Slurm { hosts, folder };
        for name in ["state", "munge"]
            .into_iter()
            .chain(NODES.map(|node| node.0))
        {
            fs::create_dir(slurm.folder.join(name))?;
        }
        fs::write(slurm.folder.join("slurm.conf"), slurm.configuration())?;
        // slurmd starts with an empty directory of control groups only.
        fs::write(
            slurm.folder.join("cgroup.conf"),
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n",
        )?;
        hosts.run("mount", &["-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"])?;
        let key = slurm.folder.join("munge/key");
        fs::write(&key, random(1024)?)?;
        printed(Command::new("chmod").arg("400").arg(&key))?;
        let munge = |option: &str, name: &str| {
            format!(
                "--{option}={}",
                slurm.folder.join("munge").join(name).display()
            )
        };
        let mut munged = slurm.command(HEAD, "munged");
        // Its directories are below one that is readable by root alone.
        munged
            .arg("--force")
            .args([munge("key-file", "key"), munge("socket", "socket")])
            .args([munge("log-file", "log"), munge("pid-file", "pid")])
            .arg(munge("seed-file", "seed"));
        printed(&mut munged)?;
        slurm.start_controller()?;
        for (node, _) in NODES {
            slurm.start_node(node)?;
        }
        slurm.wait_for_nodes()?;
        Ok(slurm)
    }

    fn configuration(&self) -> String {
        let folder = self.folder.display();
        let nodes: String = (NODES.iter())
            .map(|(name, address)| format!("NodeName={name} NodeAddr={address} CPUs=1\n"))
            .collect();
        let names = NODES.map(|(name, _)| name).join(",");
        // A node counts as down after 5 s and not 5 min, the credentials of a job expire after 5 s and not 2 min, and the scheduler
        // runs every second and not every minute. The other lines make it run in namespaces and without control groups.
        format!(
            "ClusterName=evlbi\nSlurmctldHost={HEAD}({HEAD_ADDRESS})\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket,cred_expire=5\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.%n.pid\n\
             SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd.%n.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             SchedulerType=sched/builtin\nSchedulerParameters=sched_interval=1\n\
             ReturnToService=2\nSlurmdTimeout=5\nKillWait=5\nJobRequeue=1\n\
             {nodes}PartitionName=p Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
        )
    }

    /// Returns a command that runs a program of Slurm, or one that calls such programs.
    pub fn command(&self, host: &str, program: &str) -> Command {
        let mut command = self.hosts.on(host, program);
        self.environment(&mut command);
        command
    }

    /// Sets what programs of Slurm read.
    pub fn environment(&self, command: &mut Command) {
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
    }

    /// Starts the controller, which continues from its saved state.
    pub fn start_controller(&self) -> Result<()> {
        printed(&mut self.command(HEAD, "slurmctld"))?;
        Ok(())
    }

    fn start_node(&self, node: &str) -> Result<()> {
        printed(self.command(node, "slurmd").args(["-N", node]))?;
        Ok(())
    }

    /// Kills the controller by SIGKILL.
    pub fn kill_controller(&self) -> Result<()> {
        self.hosts.kill_all(|process| process.is("slurmctld"))
    }

    fn wait_for_nodes(&self) -> Result<()> {
        until("both nodes are idle", || {
            let mut sinfo = self.command(HEAD, "sinfo");
            let found = output(sinfo.args(["--noheader", "--Node", "--format=%T"]))?;
            let found = String::from_utf8_lossy(&found.stdout);
            let idle = found.lines().filter(|state| *state == "idle").count();
            Ok((idle == NODES.len()).then_some(()))
        })
    }

    /// Ends what a case has left: cancels all jobs, starts killed daemons, and waits until both nodes take jobs.
    pub fn settle(&self) -> Result<()> {
        let processes = self.hosts.processes();
        if !processes.iter().any(|process| process.is("slurmctld")) {
            self.start_controller()?;
        }
        for (node, _) in NODES {
            let is_it = |process: &Process| process.host == node && process.is("slurmd");
            if !processes.iter().any(is_it) {
                self.start_node(node)?;
            }
        }
        until("no job is left", || {
            printed(self.command(HEAD, "scancel").arg("--user=root"))?;
            let jobs = printed(self.command(HEAD, "squeue").arg("--noheader"))?;
            Ok(jobs.trim().is_empty().then_some(()))
        })?;
        for process in self.hosts.processes() {
            // A stopped part does not end by itself.
            if process.option("--part").is_some() {
                let _ = process.signal(Signal::SIGKILL);
            }
        }
        // A controller that was killed may have found a job twice, and drained the nodes.
        for (node, _) in NODES {
            let node = format!("nodename={node}");
            // It refuses nodes that are not drained.
            output(
                self.command(HEAD, "scontrol")
                    .args(["update", &node, "state=resume"]),
            )?;
        }
        self.wait_for_nodes()
    }

    /// Returns how Slurm shows its jobs, for a case that went wrong.
    pub fn jobs(&self) -> Result<String> {
        let mut squeue = self.command(HEAD, "squeue");
        squeue.args(["--noheader", "--all", "--array", "--states=all"]);
        let jobs = output(squeue.arg("--format=%i %T %N %r"))?;
        let jobs = String::from_utf8_lossy(&jobs.stdout).into_owned();
        Ok(jobs.lines().collect::<Vec<_>>().join("; "))
    }
}

/// Returns random bytes from the kernel.
fn random(bytes: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut random = vec![0; bytes];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random)
}

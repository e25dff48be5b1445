//! Hosts of a cluster on this machine: network and UTS namespaces on one bridge, within a mount and PID namespace of their own. Nothing
//! of it is visible outside, and the kernel removes all of it when its first process ends.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evlbi_testkit::{Running, command};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::programs::printed;

/// Name of the host with the controller, the scheduler and `evlbi distribute`.
pub const HEAD: &str = "ctl";
/// Its address.
pub const HEAD_ADDRESS: &str = "10.77.0.1";
/// The hosts that run parts, and their addresses.
pub const NODES: [(&str, &str); 2] = [("n1", "10.77.0.11"), ("n2", "10.77.0.12")];

/// Where the programs of daemons are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// First process of the namespaces: it reaps the orphans of daemons.
const INIT: &str = "while sleep 1; do :; done";
/// Timeout of what takes seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// The hosts, removed on drop.
pub struct Hosts {
    /// Ends all processes of the namespaces when it ends.
    root: Running,
    /// First process of the namespaces, which is in those of the head.
    init: i32,
    nodes: Vec<Node>,
}

/// A host that runs parts.
struct Node {
    name: &'static str,
    /// Process that keeps its namespaces, and the process that started that.
    keeper: i32,
    _parent: Running,
}

/// A process of the hosts.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: i32,
    /// Its command line.
    pub words: Vec<String>,
    /// Host on which it runs.
    pub host: &'static str,
}

impl Process {
    /// Returns the argument that follows this option.
    pub fn option(&self, name: &str) -> Option<&str> {
        let place = self.words.iter().position(|word| word == name)?;
        self.words.get(place + 1).map(String::as_str)
    }

    /// Returns whether its program has this name.
    pub fn is(&self, program: &str) -> bool {
        let word = self.words.first().map(Path::new);
        word.and_then(Path::file_name) == Some(OsStr::new(program))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.pid), signal).with_context(|| format!("{:?}", self.words))
    }
}

impl Hosts {
    /// Creates the hosts. Programs in `usr` are visible to them as if they were installed.
    pub fn new(usr: Option<&Path>) -> Result<Hosts> {
        let mut root = command("unshare");
        root.args(["--mount", "--uts", "--net", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "--", "sh", "-c", INIT])
            .stdin(Stdio::null())
            // It complains if its child is killed.
            .stderr(Stdio::null());
        let root = Running(root.spawn().context("unshare")?);
        let init = child(&root, "sh")?;
        let mut hosts = Hosts {
            root,
            init,
            nodes: Vec::new(),
        };
        if let Some(usr) = usr {
            let below = format!("lowerdir={}:/usr", usr.display());
            hosts.run("mount", &["-t", "overlay", "overlay", "-o", &below, "/usr"])?;
        }
        hosts.run("hostname", &[HEAD])?;
        hosts.ip("link set lo up")?;
        hosts.ip("link add br0 type bridge")?;
        hosts.ip(&format!("addr add {HEAD_ADDRESS}/24 dev br0"))?;
        hosts.ip("link set br0 up")?;
        for (name, address) in NODES {
            hosts.add(name, address)?;
        }
        Ok(hosts)
    }

    fn add(&mut self, name: &'static str, address: &str) -> Result<()> {
        let mut parent = self.on(HEAD, "unshare");
        parent
            .args(["--net", "--uts", "--", "sleep", "infinity"])
            .stdin(Stdio::null());
        let parent = Running(parent.spawn().context("nsenter")?);
        let keeper = child(&parent, "sleep")?;
        let netns = keeper.to_string();
        self.ip(&format!(
            "link add {name} type veth peer name eth0 netns {netns}"
        ))?;
        self.ip(&format!("link set {name} master br0 up"))?;
        self.nodes.push(Node {
            name,
            keeper,
            _parent: parent,
        });
        for arguments in [
            "link set lo up".to_owned(),
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".to_owned(),
        ] {
            let mut ip = self.on(name, "ip");
            printed(ip.args(arguments.split(' ')))?;
        }
        printed(self.on(name, "hostname").arg(name))?;
        Ok(())
    }

    /// Runs `ip` in the head's network namespace, with the process numbers of this process.
    fn ip(&self, arguments: &str) -> Result<String> {
        let mut ip = command("nsenter");
        ip.args(["--target", &self.init.to_string(), "--net", "--", "ip"]);
        printed(ip.args(arguments.split(' ')))
    }

    /// Returns a command that runs a program on a host. Its paths must be absolute.
    pub fn on(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let node = self.nodes.iter().find(|node| node.name == host);
        let process = node.map_or(self.init, |node| node.keeper).to_string();
        let mut command = command("nsenter");
        command
            .args(["--target", &process])
            .args(["--mount", "--uts", "--net", "--pid", "--"])
            .arg(program)
            .env("PATH", PATH);
        command
    }

    /// Runs a program on the head, which must not fail, and returns what it printed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        printed(self.on(HEAD, program).args(arguments))
    }

    /// Returns the path by which this process reads what the hosts see at a path.
    pub fn seen(&self, path: &Path) -> PathBuf {
        let inner = path.strip_prefix("/").unwrap_or(path);
        Path::new(&format!("/proc/{}/root", self.init)).join(inner)
    }

    /// Mounts a disk in memory of this many KiB at a directory, or changes its size.
    pub fn disk(&self, at: &str, kibibytes: u64, options: &str) -> Result<()> {
        let size = format!("{options}size={kibibytes}k");
        self.run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", at])?;
        Ok(())
    }

    /// Returns all processes of the hosts, without the first one of each.
    pub fn processes(&self) -> Vec<Process> {
        let name = |pid: i32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let Some(here) = name(self.init, "pid") else {
            return Vec::new();
        };
        let networks: Vec<(&str, Option<PathBuf>)> = (self.nodes.iter())
            .map(|node| (node.name, name(node.keeper, "net")))
            .collect();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse().ok()) else {
                continue;
            };
            let is_first = pid == self.init || self.nodes.iter().any(|node| node.keeper == pid);
            if is_first || name(pid, "pid").as_ref() != Some(&here) {
                continue;
            }
            let network = name(pid, "net");
            let host = networks.iter().find(|(_, other)| *other == network);
            // A zombie has no command line.
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = words.split(|byte| *byte == 0);
            let words: Vec<String> = words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            if words.first().is_some_and(|word| !word.is_empty()) {
                found.push(Process {
                    pid,
                    words,
                    host: host.map_or(HEAD, |(name, _)| name),
                });
            }
        }
        found
    }

    /// Kills all processes of a host by SIGKILL: daemons, parts and what they started.
    pub fn kill(&self, host: &str) {
        for process in self.processes() {
            if process.host == host {
                // It may have ended with another one.
                let _ = process.signal(Signal::SIGKILL);
            }
        }
    }

    /// Kills all processes that meet a condition, and waits for their end.
    pub fn kill_all(&self, is_meant: impl Fn(&Process) -> bool) -> Result<()> {
        until("processes end", || {
            let meant: Vec<Process> = (self.processes().into_iter())
                .filter(|process| is_meant(process))
                .collect();
            for process in &meant {
                let _ = process.signal(Signal::SIGKILL);
            }
            Ok(meant.is_empty().then_some(()))
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The kernel ends all others before the first one has ended.
        let _ = kill(Pid::from_raw(self.init), Signal::SIGKILL);
        let _ = self.root.0.wait();
    }
}

/// Returns the child of a process that runs this program.
fn child(parent: &Running, program: &str) -> Result<i32> {
    let parent = parent.0.id();
    until(program, || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.context("the process has ended")?;
        let mut children = children.split_whitespace();
        let is_it = |pid: &&str| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).next() == Some(program.as_bytes())
        };
        Ok(children.find(is_it).and_then(|pid| pid.parse().ok()))
    })
}

/// Waits until `look` returns something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if begun.elapsed() > PATIENCE {
            bail!("still waiting after {} s: {what}", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

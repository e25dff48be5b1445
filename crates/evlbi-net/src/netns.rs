//! Network namespaces: two hosts within one, joined by a wire, for tests and benches.
//!
//! A namespace is held by a descriptor and has no name; it goes, and its wire with it, when the
//! descriptor and the last socket in it are closed. Each thread is in one namespace, a new thread and
//! a child process begin in their parent's, and a socket stays in the one it was opened in.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Set in the environment of a program that [`pair_or_relaunch`] has started.
const RELAUNCHED: &str = "EVLBI_IN_USER_NAMESPACE";

/// How long a new link may take to be usable.
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// Why there are no namespaces here.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// This process may not make them.
    #[error(
        "network namespaces need root or unprivileged user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): {0}"
    )]
    NotPermitted(io::Error),
    /// The kernel refused something else.
    #[error("cannot make a network namespace: {0}")]
    Kernel(#[from] io::Error),
    /// A program that sets them up is not installed.
    #[error("`{0}` is not installed (Debian: apt install iproute2 util-linux ethtool nftables)")]
    NoTool(&'static str),
    /// A program that sets them up failed.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// What was run.
        command: String,
        /// What it said.
        message: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new one, with a loopback interface that is up and nothing else.
    ///
    /// # Errors
    /// [`Unavailable`], which names the reason.
    pub fn new() -> Result<Namespace, Unavailable> {
        let namespace = thread::scope(|scope| {
            let made = scope.spawn(|| {
                // SAFETY: only a number is passed; the call concerns this short-lived thread alone.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                    File::open("/proc/thread-self/ns/net").map(Namespace)
                } else {
                    Err(io::Error::last_os_error())
                }
            });
            made.join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        });
        let namespace = namespace.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Unavailable::NotPermitted(error),
            _ => Unavailable::Kernel(error),
        })?;
        namespace.command("ip", &["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// What it is held by.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Moves the current thread into the namespace for good.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: only numbers are passed; the descriptor is open as long as `self` lives.
        match unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Calls `inside` in the namespace, on a thread of its own, and waits for what it returns.
    ///
    /// # Errors
    /// What the kernel says when the namespace cannot be entered.
    ///
    /// # Panics
    /// When `inside` does.
    pub fn run<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let result = scope.spawn(|| self.enter().map(|()| inside())).join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a program in the namespace and returns what it printed.
    ///
    /// # Errors
    /// [`Unavailable::NoTool`] when it is not installed, [`Unavailable::Tool`] when it fails.
    pub fn command(&self, program: &'static str, args: &[&str]) -> Result<String, Unavailable> {
        let output = self.run(|| Command::new(program).args(args).output())?;
        let output = output.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unavailable::NoTool(program),
            _ => Unavailable::Kernel(error),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Unavailable::Tool {
            command: format!("{program} {}", args.join(" ")),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

/// What the wire between two namespaces is like.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Longest packet in bytes, IP header included.
    pub mtu: u32,
    /// Whether the devices take super-packets and leave them whole, as veth does. Without, every
    /// datagram crosses the wire as a packet of its own, as with a plain network card: what counts
    /// packets, such as a packet filter, then counts datagrams.
    pub segmentation: bool,
    /// Whether the receiving device joins packets again (GRO).
    pub join: bool,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire {
            mtu: 1500,
            segmentation: true,
            join: false,
        }
    }
}

/// One end of a [`Pair`].
#[derive(Debug)]
pub struct End {
    /// Where it is.
    pub namespace: Namespace,
    /// Its network device.
    pub device: &'static str,
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

/// Two namespaces joined by a wire.
#[derive(Debug)]
pub struct Pair {
    /// The near end.
    pub near: End,
    /// The far end.
    pub far: End,
}

impl Pair {
    /// Makes both namespaces and the wire.
    ///
    /// # Errors
    /// [`Unavailable`], which names the reason.
    pub fn new(wire: &Wire) -> Result<Pair, Unavailable> {
        let end = |device, number| {
            Ok::<_, Unavailable>(End {
                namespace: Namespace::new()?,
                device,
                v4: Ipv4Addr::new(10, 77, 0, number),
                v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number)),
            })
        };
        let pair = Pair {
            near: end("near", 1)?,
            far: end("far", 2)?,
        };
        pair.connect()?;
        pair.near.set_up(wire)?;
        pair.far.set_up(wire)?;
        pair.near.wait_for_link()?;
        pair.far.wait_for_link()?;
        Ok(pair)
    }

    fn connect(&self) -> Result<(), Unavailable> {
        let (near, far) = (&self.near, &self.far);
        // The tool finds the far namespace by a thread that is in it and waits meanwhile.
        let created = far.namespace.run(|| {
            // SAFETY: gettid only returns a number.
            let thread = unsafe { libc::gettid() }.to_string();
            let device = ["link", "add", near.device, "type", "veth"];
            let peer = ["peer", "name", far.device, "netns", &thread];
            let command = [device.as_slice(), peer.as_slice()].concat();
            near.namespace.command("ip", &command)
        })?;
        created.map(|_| ())
    }
}

impl End {
    fn set_up(&self, wire: &Wire) -> Result<(), Unavailable> {
        let Wire {
            mtu,
            segmentation,
            join,
        } = *wire;
        self.ip(&format!("link set dev {} mtu {mtu}", self.device))?;
        self.ip(&format!("addr add {}/24 dev {}", self.v4, self.device))?;
        // Usable at once: there is nobody else on the wire who could have the address.
        self.ip(&format!(
            "addr add {}/64 dev {} nodad",
            self.v6, self.device
        ))?;
        if !segmentation {
            self.ip(&format!("link set dev {} gso_max_segs 1", self.device))?;
        }
        if join {
            let ethtool = ["-K", self.device, "gro", "on"];
            self.namespace.command("ethtool", &ethtool)?;
        }
        self.ip(&format!("link set dev {} up", self.device))?;
        Ok(())
    }

    /// The kernel takes note of a new link up to a second later, and routes no IPv6 before that.
    fn wait_for_link(&self) -> Result<(), Unavailable> {
        let deadline = Instant::now() + LINK_PATIENCE;
        while !self
            .ip(&format!("-o link show dev {}", self.device))?
            .contains("state UP")
        {
            if Instant::now() > deadline {
                return Err(Unavailable::Kernel(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn ip(&self, command: &str) -> Result<String, Unavailable> {
        let args: Vec<&str> = command.split(' ').collect();
        self.namespace.command("ip", &args)
    }

    /// Its address of the family of `other`.
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }
}

/// Where the work is done that needs namespaces.
#[derive(Debug)]
pub enum Place {
    /// Here, with this pair.
    Here(Pair),
    /// It was done by another run of this program, which has ended so.
    Elsewhere(ExitStatus),
}

/// A pair of namespaces; where this process may not make one, runs this program again as the root of
/// a user namespace of its own, with `args`, and waits for it.
///
/// # Errors
/// [`Unavailable`] when neither is possible.
pub fn pair_or_relaunch(wire: &Wire, args: &[&str]) -> Result<Place, Unavailable> {
    match Pair::new(wire) {
        Ok(pair) => Ok(Place::Here(pair)),
        Err(Unavailable::NotPermitted(error)) => {
            if std::env::var_os(RELAUNCHED).is_some() || !may_unshare()? {
                return Err(Unavailable::NotPermitted(error));
            }
            let status = unshare()
                .arg(std::env::current_exe()?)
                .args(args)
                .env(RELAUNCHED, "1")
                .status()?;
            Ok(Place::Elsewhere(status))
        }
        Err(error) => Err(error),
    }
}

/// A pair of namespaces for the test called `test`; `None` when there is nothing left to do, because
/// the test ran in a user namespace of its own or because there are no namespaces here, which is said.
///
/// # Panics
/// When the test failed there.
pub fn pair_for_test(wire: &Wire, test: &str) -> Option<Pair> {
    match pair_or_relaunch(wire, &["--exact", test, "--nocapture"]) {
        Ok(Place::Here(pair)) => Some(pair),
        Ok(Place::Elsewhere(status)) => {
            assert!(status.success(), "{test} failed in a user namespace");
            None
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--"]);
    command
}

fn may_unshare() -> Result<bool, Unavailable> {
    match unshare().arg("true").output() {
        Ok(output) => Ok(output.status.success()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Unavailable::NoTool("unshare"))
        }
        Err(error) => Err(Unavailable::Kernel(error)),
    }
}

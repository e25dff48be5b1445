//! Two hosts within one machine: network namespaces joined by a wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evlbi_net::host::Counters;
use evlbi_net::netns::{Namespace, Unavailable};

use crate::need::{Inner, Kind, REPORT_TO, is_refused, skip};
use crate::running::command;
use crate::until::until;

/// Properties of the wire between two namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Maximum packet length in bytes, IP header included.
    pub mtu: u32,
    /// Whether the devices accept super-packets and leave them whole, as veth does. Otherwise every datagram crosses the wire as a
    /// packet of its own, as with a plain NIC: what counts packets, such as a packet filter, then counts datagrams.
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

impl Wire {
    /// Returns a wire that carries every datagram as a packet of its own.
    #[must_use]
    pub fn exact() -> Wire {
        Wire {
            mtu: 9000,
            segmentation: false,
            join: false,
        }
    }
}

/// One end of a [`Pair`].
#[derive(Debug)]
pub struct End {
    /// Its network namespace.
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
    /// The local host.
    pub near: End,
    /// The remote host.
    pub far: End,
}

impl Pair {
    /// Creates both namespaces and the wire.
    ///
    /// # Errors
    /// Returns [`Unavailable`], which names the reason.
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
        // The tool finds the other namespace by a thread that is in it and waits in the meantime.
        let created = far.namespace.run(|| {
            let thread = nix::unistd::gettid().to_string();
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
        // Usable at once: nothing else on the wire could have the address.
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

    /// Waits until the kernel has noticed the link: this takes up to a second, and without it IPv6 is not routed.
    fn wait_for_link(&self) -> Result<(), Unavailable> {
        let mut shown = Ok(());
        until("a link is up", || {
            match self.ip(&format!("-o link show dev {}", self.device)) {
                Ok(state) => state.contains("state UP"),
                Err(error) => {
                    shown = Err(error);
                    true
                }
            }
        });
        shown
    }

    fn ip(&self, command: &str) -> Result<String, Unavailable> {
        let args: Vec<&str> = command.split(' ').collect();
        self.namespace.command("ip", &args)
    }

    /// Returns the datagrams for which its sockets had no room, as the kernel counts.
    ///
    /// # Panics
    /// Panics if the kernel does not report it.
    #[must_use]
    #[track_caller]
    pub fn no_room(&self) -> u64 {
        let counters = self.namespace.run(Counters::read).expect("a namespace");
        counters.expect("counters").udp.receive_buffer_errors
    }

    /// Returns the packets that its rule with this comment has counted.
    ///
    /// # Panics
    /// Panics if there is no such rule, or it does not count.
    #[must_use]
    #[track_caller]
    pub fn counted(&self, comment: &str) -> u64 {
        let rules = self.namespace.command("nft", &["list", "table", "ip", "t"]);
        let rules = rules.expect("the rules");
        let line = rules.lines().find(|line| line.contains(comment));
        let mut words = line.expect("the rule").split_whitespace();
        words.find(|word| *word == "packets").expect("a counter");
        let count = words.next().and_then(|word| word.parse().ok());
        count.expect("a count")
    }

    /// Drops one in `period` of the arriving datagrams, from the first on; its rule counts them as `dropped`.
    ///
    /// # Panics
    /// Panics like [`filter`].
    #[track_caller]
    pub fn drop_every(&self, period: u32) {
        let rule =
            format!("ip protocol udp numgen inc mod {period} 0 counter drop comment \"dropped\"");
        filter(self, &[&rule]);
    }

    /// Returns its address of the family of `other`.
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }
}

/// Returns the name of the test in whose function it is used, as the test binary knows it.
#[macro_export]
macro_rules! name {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").expect("a function's name");
        name.split_once("::").expect("a crate's name").1
    }};
}

/// Returns a pair of namespaces for the test called `test`, from [`name!`](crate::name). `None` if there is nothing left to do: either
/// this process may not create one and the test ran as root of a user namespace of its own, or that is not permitted either, and the
/// test is skipped.
///
/// # Panics
/// Panics if the test failed there, or if something other than a permission or a program is missing.
#[must_use]
#[track_caller]
pub fn pair(wire: &Wire, test: &str) -> Option<Pair> {
    pair_with(&[], wire, test)
}

/// Returns a pair of namespaces for a test that also needs these programs.
///
/// # Panics
/// Panics like [`pair`].
#[must_use]
#[track_caller]
pub fn pair_with(programs: &[&str], wire: &Wire, test: &str) -> Option<Pair> {
    let own: &[&str] = if wire.join {
        &["ip", "ethtool"]
    } else {
        &["ip"]
    };
    if !crate::need(&[own, programs].concat()) || !as_root_of_its_own(test) {
        return None;
    }
    match Pair::new(wire) {
        Ok(pair) => Some(pair),
        Err(Unavailable::NotPermitted(_)) => {
            skip(Kind::Tool, NO_NAMESPACES);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const NO_NAMESPACES: &str = "network namespaces (root with CAP_SYS_ADMIN, or sysctl user.max_user_namespaces, \
                             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)";

/// Returns whether to continue with the test called `test`, which needs root's rights over namespaces: if root, yes. Otherwise it has
/// been run as root of a user namespace of its own, or it is skipped.
///
/// # Panics
/// Panics if the test failed there.
#[must_use]
#[track_caller]
pub fn as_root_of_its_own(test: &str) -> bool {
    if nix::unistd::Uid::effective().is_root() {
        return true;
    }
    if !has_users_of_its_own() {
        return false;
    }
    let inner = Inner::new(test);
    let program = std::env::current_exe().expect("this program");
    let output = unshare()
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(REPORT_TO, inner.value())
        .output()
        .expect("unshare starts");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{test} in a user namespace: {said}{errors}"
    );
    // A wrong name would run nothing.
    assert!(
        said.contains("1 passed"),
        "{test} in a user namespace: {said}"
    );
    inner.take();
    false
}

/// Returns whether this user may create user namespaces; if not, the calling test is skipped.
///
/// # Panics
/// Panics if `EVLBI_REQUIRE` is set and they may not be created.
#[must_use]
#[track_caller]
pub fn has_users_of_its_own() -> bool {
    if !crate::need(&["unshare"]) {
        return false;
    }
    let output = unshare().arg("true").output().expect("unshare starts");
    if output.status.success() {
        return true;
    }
    // If no namespaces are allowed, the kernel reports that there is no space.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(is_refused(&said), "{said}");
    skip(Kind::Tool, NO_NAMESPACES);
    false
}

fn unshare() -> std::process::Command {
    let mut unshare = command("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "--"]);
    unshare
}

/// Returns whether this user may create emulated paths (`evlbi path`); if not, the calling test is skipped. It checks without the
/// program, so that a failing path is a failure.
///
/// # Panics
/// Panics if `EVLBI_REQUIRE` is set and they may not be created.
#[must_use]
#[track_caller]
pub fn paths() -> bool {
    if !crate::need(&["ip", "tc", "unshare"]) {
        return false;
    }
    let tun = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    if let Err(error) = tun {
        let reason = format!("/dev/net/tun ({error})");
        let is_absent = error.kind() == std::io::ErrorKind::NotFound;
        assert!(is_absent || is_refused(&reason), "{reason}");
        skip(Kind::Tool, &reason);
        return false;
    }
    if !nix::unistd::Uid::effective().is_root() {
        return has_users_of_its_own();
    }
    match Namespace::new() {
        Ok(_) => true,
        Err(Unavailable::NotPermitted(_)) => {
            skip(Kind::Tool, NO_NAMESPACES);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// The start of a plan of an emulated path: two hosts, and the link between them.
pub const HOSTS: &str = r#"
[[host]]
name = "jive"
congestion = "reno"
buffer = "64MiB"
[[host]]
name = "manchester"
congestion = "reno"
buffer = "64MiB"
[[link]]
between = ["jive", "manchester"]
"#;

/// Returns a third host: its interface `eth1` is a mirror port, which shows `copies` times what arrives at the second host of a pair. The
/// calling test needs `nft`.
///
/// # Panics
/// Panics if it cannot be created.
#[must_use]
#[track_caller]
pub fn mirror_port(pair: &Pair, copies: usize) -> Namespace {
    let (far, device) = (&pair.far.namespace, pair.far.device);
    let watcher = Namespace::new().expect("a namespace");
    let run = |namespace: &Namespace, program, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        match namespace.command(program, &words) {
            Ok(said) => said,
            Err(error) => panic!("{error}"),
        }
    };
    // The tool finds the other namespace by a thread that is in it and waits in the meantime.
    let connect = || {
        let thread = nix::unistd::gettid();
        let pair = "link add shown mtu 9000 type veth peer name eth1 mtu 9000 netns";
        run(far, "ip", &format!("{pair} {thread}"));
    };
    watcher.run(connect).expect("a namespace");
    run(far, "ip", "link set shown up");
    run(&watcher, "ip", "link set eth1 up");
    run(far, "nft", "add table netdev mirror");
    let chain = format!(
        "add chain netdev mirror in {{ type filter hook ingress device {device} priority 0; }}"
    );
    run(far, "nft", &chain);
    for _ in 0..copies {
        run(far, "nft", "add rule netdev mirror in dup to shown");
    }
    until("the mirror port is up", || {
        run(&watcher, "ip", "-o link show dev eth1").contains("state UP")
    });
    watcher
}

/// Applies these rules to what arrives at a host, in chain `c` of table `t` of its packet filter. The calling test needs `nft`.
///
/// # Panics
/// Panics if `nft` refuses them.
#[track_caller]
pub fn filter(end: &End, rules: &[&str]) {
    let chain = [
        "add table ip t".to_owned(),
        "add chain ip t c { type filter hook input priority 0; }".to_owned(),
    ];
    let rules = rules.iter().map(|rule| format!("add rule ip t c {rule}"));
    for command in chain.into_iter().chain(rules) {
        if let Err(error) = end.namespace.command("nft", &[&command]) {
            panic!("{error}");
        }
    }
}

/// Configures a host's traffic control. Returns false if this kernel lacks the queueing discipline; the calling test, which needs `tc`,
/// is then skipped.
///
/// # Panics
/// Panics if `tc` refuses it for another reason.
#[must_use]
#[track_caller]
pub fn tc(end: &End, arguments: &[&str]) -> bool {
    match end.namespace.command("tc", arguments) {
        Ok(_) => true,
        Err(error) if error.to_string().contains("qdisc kind is unknown") => {
            let kind = format!(
                "a kernel with this queueing discipline: tc {}",
                arguments.join(" ")
            );
            skip(Kind::Tool, &kind);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

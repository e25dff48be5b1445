//! Options of the host: verbosity, priority, settings in another place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evlbi_testkit::address::deaf;
use evlbi_testkit::{Room, Running, command, need, until, until_some};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::control::support::ready;
use crate::live::support::{Recv, evlbi};
use crate::result::number;

/// A responder logs its clients only on request.
#[test]
fn verbose_logs_more() {
    for (verbose, is_said) in [
        (&[][..], false),
        (&["--verbose"][..], true),
        (&["-vv"][..], true),
    ] {
        let mut respond = evlbi();
        respond
            .args(["respond", "--bind", "127.0.0.1:0"])
            .args(verbose);
        let respond = Recv::listening(respond.env("EVLBI_TOKEN", "t"), 1);
        let far = respond.address().to_string();
        let mut probe = evlbi();
        probe.args([
            "probe",
            "latency",
            &far,
            "--count",
            "1",
            "--interval",
            "1ms",
            "--token",
            "t",
        ]);
        let probed = probe.output().unwrap();
        assert!(
            probed.status.success(),
            "{}",
            String::from_utf8_lossy(&probed.stderr)
        );
        respond.signal("TERM");
        let said = respond.end().stderr;
        assert_eq!(
            said.contains("starts a session"),
            is_said,
            "{verbose:?}: {said}"
        );
    }
}

/// The real-time priority of any thread of a process (proc(5), field 40 of `stat`).
fn has_priority(process: u32, priority: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.map(|task| task.path().join("stat")).any(|stat| {
        let stat = fs::read_to_string(stat).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(40 - 3) == Some(priority)
    })
}

/// The network thread runs before others, or a message explains why it does not.
#[test]
fn priority_is_that_of_the_network_thread() {
    let room = Room::new();
    let (_socket, to) = deaf();
    let to = format!("udp://{to}");
    let send = ["send", "pattern:1032", "--to", &to, "--rate", "1M"];
    let recv = [
        "recv",
        "udp://127.0.0.1:0",
        "--to",
        "null",
        "--ring",
        "64MiB",
    ];
    for command in [&send[..], &recv[..]] {
        let said = room.path(command[0]);
        let child = evlbi()
            .args(command)
            .args(["--priority", "7"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn();
        let child = Running(child.unwrap());
        let is_set = until_some("the priority is set, or refused", || {
            let is_refused = fs::read_to_string(&said)
                .unwrap()
                .contains("cannot set real-time priority 7");
            match has_priority(child.0.id(), "7") {
                true => Some(true),
                false => is_refused.then_some(false),
            }
        });
        // Root of this machine may do so.
        let may = fs::read_to_string("/proc/self/status")
            .unwrap()
            .contains("CapEff:\t000001ffffffffff");
        assert!(is_set || !may, "{command:?}");
    }
}

/// The settings of an agent may be outside its directory.
#[test]
fn an_agent_reads_its_settings_from_the_given_file() {
    let room = Room::new();
    fs::create_dir(room.path("agent")).unwrap();
    room.write("agent/agent.toml", "name = \"here\"");
    room.write("other.toml", "name = \"elsewhere\"");
    let mut starts = evlbi();
    starts
        .args(["agent", "--json", "--bind", "127.0.0.1:0", "--dir", "agent"])
        .args(["--config", "other.toml"])
        .current_dir(room.folder());
    let (_agent, ready) = ready(starts);
    assert_eq!(ready["host"], "elsewhere");
    let config = Path::new(ready["config"].as_str().unwrap());
    assert_eq!(config.file_name().unwrap(), "other.toml");
}

/// The relay of a path is for `path run` and `path up`: elsewhere it would change this host.
#[test]
fn a_relay_outside_of_a_container_is_refused() {
    let room = Room::new();
    let (plan, socket) = (room.write("p.toml", ""), room.path("socket"));
    let relay = evlbi()
        .args(["path", "relay", &plan, "--socket", &socket])
        .output();
    let relay = relay.unwrap();
    let said = String::from_utf8_lossy(&relay.stderr);
    assert!(said.contains("`evlbi path run`"), "{said}");
    assert_eq!(relay.status.code(), Some(1));
    assert!(!Path::new(&socket).exists());
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Errors and warnings are printed all the same.
#[test]
fn quiet_prints_errors_and_warnings_alone() {
    for (quiet, is_told) in [(&[][..], true), (&["--quiet"], false), (&["-q"], false)] {
        let mut recv = evlbi();
        recv.args(["recv", "udp://127.0.0.1:0", "--to", "null"]);
        recv.args(["--ring", "64MiB", "--duration", "10ms"]);
        let said = said(&recv.args(quiet).output().unwrap());
        assert_eq!(said.contains("listening on"), is_told, "{said}");
        assert!(said.contains("evlbi: no data arrived"), "{said}");
        let mut send = evlbi();
        send.args(["send", "pattern:1032", "--to", "udp://127.0.0.1:9"]);
        send.args(["--rate", "8M", "--duration", "50ms"]);
        let warned = self::said(&send.args(quiet).output().unwrap());
        assert!(
            warned.contains("evlbi: warning: nobody listens at"),
            "{warned}"
        );
    }
}

/// A responder with a token, and a probe of it.
fn respond(more: &[&str]) -> Recv {
    let mut respond = evlbi();
    respond.args(["respond", "--bind", "127.0.0.1:0"]);
    Recv::listening(respond.args(more), 1)
}

fn probe(target: &str) -> Command {
    let mut probe = evlbi();
    probe.args(["probe", "latency", target, "--count", "1"]);
    probe
        .args(["--interval", "1ms"])
        .env_remove("EVLBI_TOKEN")
        .stdin(Stdio::null());
    probe
}

const LONG_TOKEN: &str = "0123456789abcdef";

/// A file with a token, readable by this user alone, or by others, too.
fn token_in(room: &Room, name: &str, token: &str, mode: u32) -> String {
    let file = room.write(name, format!("{token}\n"));
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

#[test]
fn a_token_comes_from_a_file() {
    let room = Room::new();
    let own = token_in(&room, "own", LONG_TOKEN, 0o600);
    let open = token_in(&room, "open", LONG_TOKEN, 0o644);
    let short = token_in(&room, "short", "0123", 0o600);
    let respond = respond(&["--token-file", &own]);
    let far = respond.address().to_string();
    for (file, is_warned) in [(&own, false), (&open, true)] {
        // The command line wins.
        let probed = probe(&far)
            .args(["--token-file", file])
            .env("EVLBI_TOKEN", "another token")
            .output()
            .unwrap();
        let said = said(&probed);
        assert!(probed.status.success(), "{said}");
        assert_eq!(said.contains("others may read"), is_warned, "{said}");
    }
    let both = ["--token-file", &own, "--token", LONG_TOKEN];
    for (args, status, says) in [
        (&["--token-file", &short][..], 1, "less than 16 characters"),
        (
            &["--token-file", "/none"],
            1,
            "cannot read the token in /none",
        ),
        (&both, 2, "cannot be used with"),
        (&[], 2, "--token-file"),
    ] {
        let refused = probe(&far).args(args).output().unwrap();
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
    respond.signal("TERM");
    assert!(respond.end().status.success());
}

#[test]
fn a_config_file_has_defaults() {
    let room = Room::new();
    token_in(&room, "jive.token", LONG_TOKEN, 0o600);
    let respond = respond(&["--token", LONG_TOKEN]);
    let address = respond.address();
    let text = format!(
        "token-file = \"jive.token\"\n[hosts]\njive = \"{address}\"\n[rates]\nsend = \"1M\"\n"
    );
    let config = room.write("config.toml", text);
    let probed = probe("jive")
        .env("EVLBI_CONFIG", &config)
        .arg("-v")
        .output();
    let probed = probed.unwrap();
    let shown = said(&probed);
    assert!(probed.status.success(), "{shown}");
    for used in [format!("jive is {address}"), "token-file is ".to_owned()] {
        assert!(shown.contains(&used), "{used}: {shown}");
    }
    // The default place, the environment's token, and a host with another port.
    fs::create_dir_all(room.path("home/evlbi")).unwrap();
    let text = "[hosts]\njive = \"127.0.0.1:1\"";
    room.write("home/evlbi/config.toml", text);
    let probed = probe(&format!("jive:{}", address.port()))
        .env_remove("EVLBI_CONFIG")
        .env("XDG_CONFIG_HOME", room.path("home"))
        .env("EVLBI_TOKEN", LONG_TOKEN)
        .output()
        .unwrap();
    assert!(probed.status.success(), "{}", said(&probed));
    respond.signal("TERM");
    assert!(respond.end().status.success());

    let send = |config: &str, more: &[&str]| {
        let mut send = evlbi();
        send.args(["send", "pattern:1032", "--to", "udp://jive:9"]);
        send.args(["--duration", "10ms", "--json"]);
        let sent = send.args(more).env("EVLBI_CONFIG", config).output();
        sent.unwrap()
    };
    for (more, rate) in [(&[][..], 1_000_000), (&["--rate", "2M"], 2_000_000)] {
        let sent = send(&config, more);
        assert!(sent.status.success(), "{}", said(&sent));
        let result = serde_json::from_slice(&sent.stdout).unwrap();
        assert_eq!(number(&result, "rate_asked_bps"), rate);
    }
    // Without a rate of its own.
    let home = room.path("home/evlbi/config.toml");
    let refused = send(&home, &[]);
    assert_eq!(refused.status.code(), Some(2));
    let shown = said(&refused);
    assert!(shown.contains("--rate, or --max"), "{shown}");
    // HOME of another user, and none: the directory of work is nobody's home.
    fs::create_dir_all(room.path(".config/evlbi")).unwrap();
    room.write(".config/evlbi/config.toml", "tokens = \"x\"");
    for home in ["/dev/null", ""] {
        let mut send = evlbi();
        send.args(["send", "pattern:1032", "--to", "udp://127.0.0.1:9"]);
        send.args(["--rate", "1M", "--duration", "10ms"]);
        send.env_remove("EVLBI_CONFIG")
            .env_remove("XDG_CONFIG_HOME");
        let sent = send.env("HOME", home).current_dir(room.folder()).output();
        let sent = sent.unwrap();
        assert!(sent.status.success(), "{home}: {}", said(&sent));
    }
    let odd = room.write("odd.toml", "tokens = \"x\"");
    let refused = said(&send(&odd, &[]));
    assert!(
        refused.contains("odd.toml") && refused.contains("`tokens`"),
        "{refused}"
    );
}

/// An agent's terminal shows a link with the token; its log does not.
#[test]
fn a_link_with_the_token_is_for_a_terminal_alone() {
    let starts = |room: &Room| {
        let folder = room.path("agent");
        let line = format!(
            "{} agent --bind 127.0.0.1:0 --dir {folder}",
            env!("CARGO_BIN_EXE_evlbi")
        );
        (line, folder)
    };
    let ends = |folder: &str, mut child: Running| {
        let process = fs::read_to_string(format!("{folder}/lock")).unwrap();
        kill(
            Pid::from_raw(process.trim().parse().unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        child.wait();
    };
    let token = |folder: &str| fs::read_to_string(format!("{folder}/tokens/operate")).unwrap();

    let room = Room::new();
    let (line, folder) = starts(&room);
    let log = fs::File::create(room.path("log")).unwrap();
    let child = command("sh")
        .args(["-c", &format!("exec {line}")])
        .stdout(log)
        .stderr(Stdio::null())
        .spawn();
    let child = Running(child.unwrap());
    until("it says where it is", || {
        room.text("log").contains("recordings")
    });
    let shown = room.text("log");
    assert!(!shown.contains(token(&folder).trim()), "{shown}");
    ends(&folder, child);

    if !need(&["script"]) {
        return;
    }
    let room = Room::new();
    let (line, folder) = starts(&room);
    let child = command("script")
        .args(["-qfec", &line, &room.path("typescript")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let child = Running(child.unwrap());
    until("it shows the link", || {
        let shown = fs::read_to_string(room.path("typescript")).unwrap_or_default();
        shown.contains("#token=") && shown.contains(token(&folder).trim())
    });
    ends(&folder, child);
}

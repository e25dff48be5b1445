//! The shell script that applies what an examination found.

use std::collections::BTreeSet;

use super::Examination;
use super::disk;
use super::item::{Item, Verdict};

/// File of the kernel's settings that are applied at each start.
pub const SETTINGS: &str = "/etc/sysctl.d/90-evlbi.conf";

/// Beginning of each script: it stops at the first error, and needs root.
const HEAD: &str = "\
set -eu
if [ \"$(id -u)\" != 0 ]; then
    echo 'run this script as root' >&2
    exit 1
fi";

/// Returns a shell script (POSIX) that applies all changes, with their reasons as comments. It may run again. Optional
/// changes are commented out.
pub fn script(result: &Examination) -> String {
    let mut lines = vec![
        "#!/bin/sh".to_owned(),
        format!(
            "# {}, for {}bit/s: {} to change, found by `evlbi doctor`.",
            line(&result.host),
            result.aim.rate,
            super::counted(result.changes)
        ),
        "# Needs root. Read it before you run it; it can be run again.".to_owned(),
        HEAD.to_owned(),
    ];
    let tools: BTreeSet<&str> = changes(result).filter_map(tool).collect();
    for tool in tools {
        lines.push(format!(
            "command -v {tool} > /dev/null || {{ echo '{tool} is not installed' >&2; exit 1; }}"
        ));
    }
    if changes(result).any(|item| item.setting.is_some()) {
        lines.push(format!(
            "keep() {{ grep -qsxF \"$1\" {SETTINGS} || echo \"$1\" >> {SETTINGS}; }}"
        ));
    }
    let mut done = BTreeSet::new();
    for item in &result.items {
        let Some(command) = &item.command else {
            continue;
        };
        let is_change = item.verdict == Verdict::Change;
        if !is_change && (item.verdict != Verdict::Note || item.wanted.is_none()) {
            continue;
        }
        let wanted = item.wanted.as_deref().unwrap_or_default();
        lines.extend([
            String::new(),
            format!(
                "# {}{}: {}: {}; wanted: {}",
                if is_change { "" } else { "optional: " },
                line(&item.heading()),
                line(item.label()),
                line(&item.found),
                line(wanted)
            ),
            format!("# {}", line(&item.why)),
        ]);
        let (command, remark) = parts(command);
        lines.extend(remark.map(|remark| format!("# {}", line(remark))));
        if !is_change || item.group == disk::GROUP {
            lines.push(format!("# {}", line(command)));
            continue;
        }
        if done.insert(command) {
            lines.push(applied(command));
        }
        match (&item.setting, &item.permanent) {
            (Some(setting), _) => lines.push(format!("keep '{setting}'")),
            (None, Some(permanent)) => {
                lines.push(format!("# To keep it: {}", line(permanent)));
            }
            (None, None) => lines.push("# Lost at the next start of this host.".to_owned()),
        }
    }
    lines.join("\n")
}

/// Returns the items that the script changes.
fn changes(result: &Examination) -> impl Iterator<Item = &Item> {
    (result.items.iter())
        .filter(|item| item.verdict == Verdict::Change && item.group != disk::GROUP)
}

/// The program that a command calls, if it is not part of the shell.
fn tool(item: &Item) -> Option<&str> {
    let word = item.command.as_deref()?.split(' ').next()?;
    (!["for", "echo"].contains(&word)).then_some(word)
}

/// A command, and the remark behind it.
fn parts(command: &str) -> (&str, Option<&str>) {
    match command.split_once("  # ") {
        Some((command, remark)) => (command, Some(remark)),
        None => (command, None),
    }
}

/// A command that succeeds where there is nothing left to change.
fn applied(command: &str) -> String {
    match command.starts_with("ethtool ") {
        // This is how it says so.
        true => format!("{command} || [ $? -eq 80 ]"),
        false => command.to_owned(),
    }
}

/// Text in one line of a comment.
fn line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::super::item::{change, good, note};
    use super::super::tests::aim;
    use super::super::{kernel, summary};
    use super::*;

    fn made(items: Vec<Item>) -> String {
        script(&summary(aim(), items))
    }

    /// Reads a script without running it (`sh -n`).
    #[track_caller]
    fn is_valid(script: &str) {
        let mut shell = Command::new("sh")
            .arg("-n")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(script.as_bytes()).unwrap();
        drop(input);
        assert!(shell.wait().unwrap().success(), "{script}");
    }

    #[test]
    fn changes_are_applied_and_options_are_commented_out() {
        let item = |group: &str, name: &str, found| {
            Item::new(group, name, "data\nwould be lost", Ok(found))
        };
        let queue = "ip link set dev 'a b' txqueuelen 10000";
        let shown = made(vec![
            item("kernel", "a", good("5").by("never")),
            kernel::set(item("kernel", "b", change("1", "2")), "net.b", "2"),
            item("card eth0", "txqueuelen", change("1", "2").by(queue)),
            item(
                "card eth0",
                "rings",
                change("1", "2").by("ethtool -G eth0 rx 2  # and at the switch"),
            ),
            item(
                "card eth0",
                "MTU",
                note("1500")
                    .wanting("9000")
                    .by("ip link set dev eth0 mtu 9000"),
            ),
            item(
                "disk",
                "writing",
                change("1", "2").by("evlbi doctor  # until it is fast enough"),
            ),
            item("clock", "kept by", note("x").by("timedatectl")),
        ]);
        is_valid(&shown);
        let commands: Vec<&str> = shown
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let commands = commands[commands
            .iter()
            .position(|line| line.starts_with("command"))
            .unwrap()..]
            .join("\n");
        assert_eq!(
            commands,
            "\
command -v ethtool > /dev/null || { echo 'ethtool is not installed' >&2; exit 1; }
command -v ip > /dev/null || { echo 'ip is not installed' >&2; exit 1; }
command -v sysctl > /dev/null || { echo 'sysctl is not installed' >&2; exit 1; }
keep() { grep -qsxF \"$1\" /etc/sysctl.d/90-evlbi.conf || echo \"$1\" >> /etc/sysctl.d/90-evlbi.conf; }

sysctl -w net.b='2'
keep 'net.b = 2'

ip link set dev 'a b' txqueuelen 10000

ethtool -G eth0 rx 2 || [ $? -eq 80 ]

"
        );
        for comment in [
            "# kernel: b: 1; wanted: 2\n# data would be lost\n",
            "# and at the switch\n",
            "# optional: NIC eth0: MTU: 1500; wanted: 9000\n",
            "# ip link set dev eth0 mtu 9000\n",
            "# evlbi doctor",
        ] {
            assert!(shown.contains(comment), "{comment}{shown}");
        }
        assert!(
            !shown.contains("timedatectl") && !shown.contains("never"),
            "{shown}"
        );
    }

    #[test]
    fn a_host_with_nothing_to_change_gets_a_script_that_does_nothing() {
        let shown = made(Vec::new());
        is_valid(&shown);
        assert!(
            shown.contains("0 things to change") && !shown.contains("sysctl"),
            "{shown}"
        );
    }

    /// A script that runs twice writes each setting once.
    #[test]
    fn settings_are_kept_once() {
        let folder = evlbi_testkit::Room::new();
        let file = folder.path("90-evlbi.conf");
        let item = Item::new("kernel", "b", "why", Ok(change("1", "2")));
        let shown = made(vec![kernel::set(item, "net.b", "2")]);
        // Everything but what needs root.
        let lines = shown.lines().filter(|line| line.starts_with("keep"));
        let lines: Vec<String> = lines.map(|line| line.replace(SETTINGS, &file)).collect();
        for _ in 0..2 {
            let run = Command::new("sh")
                .args(["-euc", &lines.join("\n")])
                .status();
            assert!(run.unwrap().success());
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "net.b = 2\n");
    }
}

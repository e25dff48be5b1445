//! `evlbi plan` as a command: what it prints and draws, and what it says of options.

use std::process::Output;

use serde_json::Value;

use super::{Room, evlbi, failure};

fn plan(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("plan")
        .chain(args.split_whitespace())
        .collect();
    evlbi(&args)
}

fn json(args: &str) -> Value {
    let output = plan(&format!("{args} --json"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn results_are_printed() {
    for (args, schema, says) in [
        (
            "tcp --rate 512M --rtt 15ms --algorithm reno",
            "evlbi.plan.tcp/1",
            "under way",
        ),
        (
            "link --rate 1024M --link 1G",
            "evlbi.plan.link/1",
            "1004 bytes",
        ),
        ("multicast --stations 12", "evlbi.plan.multicast/1", "132"),
    ] {
        assert_eq!(json(args)["schema"], schema);
        let output = plan(args);
        assert!(output.status.success(), "{args}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(says), "{args}: {text}");
    }
}

#[test]
fn what_is_compared_is_drawn() {
    let room = Room::new();
    for (args, schema, drawn) in [
        ("", "evlbi.plan.compare/1", "one-way delay at 10.0000 ms"),
        (
            "--loss 0,1e-4 --duration 1s",
            "evlbi.plan.losses/1",
            "loss 1.0e-4",
        ),
    ] {
        let svg = room.path("delay.svg");
        let args = format!(
            "tcp --rate 10M --rtt 10ms --acks 2 --algorithm scalable --compare {args} --force --plot {svg}"
        );
        assert_eq!(json(&args)["schema"], schema);
        assert!(room.text("delay.svg").contains(drawn), "{args}");
    }
}

#[test]
fn what_cannot_be_planned_is_said() {
    for (args, said) in [
        ("tcp --rate 512M --rtt 0ms", "--rtt"),
        ("tcp --rate 2G --rtt 15ms --link 1G", "--link"),
        ("tcp --rate 512M --rtt 15ms,27ms", "--compare"),
        ("tcp --rate 512M --rtt 15ms --loss 1e-5,1e-4", "--compare"),
        ("tcp --rate 512M --rtt 15ms --algorithm fast", "westwood"),
        ("link --rate 1G --link sonet", "wanphy"),
        ("link --rate 1G --link 1G --size 1464 --mtu 9000", "--mtu"),
    ] {
        let output = plan(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(said),
            "{args}: {stderr}"
        );
    }
}

/// What cannot be written is refused before the work, not after it.
#[test]
fn a_plot_that_cannot_be_written_is_refused_first() {
    let room = Room::new();
    let plot = room.path("missing/plot.svg");
    // Nobody listens at port 9: that would be said later.
    let target = ["127.0.0.1:9", "--token", "t"];
    let matrix = ["--mss", "1000,1400", "--buffer", "1M"];
    for command in [
        vec!["analyse", "no.pcap"],
        [&["probe", "tcp"], &target[..]].concat(),
        [&["probe", "tcp"], &target[..], &matrix].concat(),
    ] {
        let said = failure(&[&command[..], &["--plot", &plot]].concat());
        assert!(
            said.contains("cannot write") && said.contains(&plot),
            "{command:?}: {said}"
        );
    }
}

//! `evlbi plan` as a command: printed and drawn results, and errors of options.

use std::process::Output;

use evlbi_testkit::command;
use evlbi_testkit::python::python;
use evlbi_testkit::result::{assert_schema, read};
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
    read(output.stdout)
}

#[test]
fn results_are_printed() {
    for (args, schema, says) in [
        (
            "tcp --rate 512M --rtt 15ms --algorithm reno",
            "evlbi.plan.tcp/1",
            "in flight",
        ),
        (
            "link --rate 1024M --link 1G",
            "evlbi.plan.link/1",
            "1004 bytes",
        ),
        (
            "safe --rate 512M --rtt 95ms --size 1424",
            "evlbi.plan.safe/1",
            "shed at about 7.4e-7",
        ),
        (
            "safe --rate 512M --rtt 95ms --size 1424 --safe strict --weight 5 --least 1/2",
            "evlbi.plan.safe/1",
            "shed at about 8.2e-8",
        ),
        ("multicast --stations 12", "evlbi.plan.multicast/1", "132"),
        (
            "distribute --costs 1.5,0.1 --cores 32 --stations 20 --rate 32G",
            "evlbi.plan.distribute/1",
            "784.0",
        ),
        (
            "distribute --costs 1.5,0.1 --cores 32 --stations 4 --rate 1G --nodes 7 --link 1G --duration 100s",
            "evlbi.plan.distribute/1",
            "hours of 7 nodes",
        ),
    ] {
        assert_schema(&json(args), schema);
        let output = plan(args);
        assert!(output.status.success(), "{args}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(says), "{args}: {text}");
    }
}

#[test]
fn comparisons_are_drawn() {
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
        assert_schema(&json(&args), schema);
        assert!(room.text("delay.svg").contains(drawn), "{args}");
    }
}

/// Plans as CSV: the names of the columns, and how many rows.
#[test]
fn plans_are_tables_too() {
    let room = Room::new();
    for (args, first, rows) in [
        ("tcp --rate 512M --rtt 15ms", "rate_bps,rtt_s,bdp_bytes,", 8),
        (
            "tcp --rate 10M --rtt 10ms --algorithm reno --compare",
            "rtt_s,algorithm,",
            1,
        ),
        (
            "tcp --rate 10M --rtt 10ms --algorithm reno --compare --loss 0,1e-4 --duration 1s",
            "rtt_s,algorithm,loss,",
            2,
        ),
        ("multicast --stations 5 --rate 1G", "stations,baselines,", 4),
        ("link --rate 1024M --link 1G", "rate_bps,ethernet_bps,", 1),
        ("distribute --costs 1.5,0.1", "stations,rate_bps,", 35),
    ] {
        let csv = room.path("plan.csv");
        let result = json(&format!("{args} --force --csv {csv}"));
        let text = room.text("plan.csv");
        assert!(text.starts_with(first), "{args}: {text}");
        assert_eq!(text.lines().count(), 1 + rows, "{args}: {text}");
        if let Some(found) = result["rows"].as_array() {
            assert_eq!(found.len(), rows, "{args}");
        }
        let printed = plan(&format!("{args} --csv -"));
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), text, "{args}");
    }
}

/// Costs are measured, whatever they are.
#[test]
fn a_cluster_is_planned_from_costs_on_this_host() {
    let room = Room::new();
    let svg = room.path("cluster.svg");
    let line = format!(
        "distribute --stations 4,20 --rate 1G --bits 8 --channels 64 --part 20s --plot {svg}"
    );
    let output = plan(&format!("{line} --json"));
    // On a busy host, fewer stations can take longer than more.
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("disturbed") {
        return;
    }
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_schema(&found, "evlbi.plan.distribute/1");
    let measured = &found["measured"];
    assert_eq!(measured["channels"], 64);
    assert!(measured["rounds"].as_u64().unwrap() > 0);
    let costs = ["station_ns", "baseline_ns"].map(|cost| found["costs"][cost].as_f64().unwrap());
    assert!(costs.iter().all(|cost| *cost > 0.0), "{found}");
    assert_eq!(found["cores_assumed"], true);
    let rows = found["rows"].as_array().unwrap();
    let needed = rows.iter().map(|row| row["cores"].as_f64().unwrap());
    for (needed, stations) in needed.zip([4.0, 20.0]) {
        let all = stations * costs[0] + stations * (stations - 1.0) / 2.0 * costs[1];
        assert!((needed / (all / 8.0) - 1.0).abs() < 1e-9, "{found}");
    }
    let drawn = room.text("cluster.svg");
    assert!(drawn.contains("costs measured on this host"), "{drawn}");
    assert!(drawn.contains("20 stations"), "{drawn}");
}

/// The lines of Python of the page, with the output that it shows.
#[test]
fn pandas_reads_results_as_documented() {
    let Some(python) = python("pandas") else {
        return;
    };
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/results.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, part) = page.split_once("## Read a result with pandas").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    let blocks = part.split("```").skip(1).step_by(2);
    let room = Room::new();
    let (mut printed, mut compared) = (String::new(), 0);
    for (language, text) in blocks.filter_map(|block| block.split_once('\n')) {
        let mut line = match language {
            "sh" => {
                let mut line = command("sh");
                let program = env!("CARGO_BIN_EXE_evlbi");
                line.args(["-c", &text.replace("evlbi ", &format!("{program} "))]);
                line
            }
            "python" => {
                let mut line = command(&python);
                line.args(["-c", text]);
                line
            }
            _ => {
                assert_eq!(printed.trim_end(), text.trim_end());
                compared += 1;
                continue;
            }
        };
        let output = line.current_dir(room.folder()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}: {said}");
        printed = String::from_utf8(output.stdout).unwrap();
    }
    assert_eq!(compared, 2);
}

#[test]
fn plans_that_cannot_be_made_are_reported() {
    for (args, said) in [
        ("tcp --rate 512M --rtt 0ms", "--rtt"),
        ("tcp --rate 2G --rtt 15ms --link 1G", "--link"),
        ("tcp --rate 512M --rtt 15ms,27ms", "--compare"),
        ("tcp --rate 512M --rtt 15ms --loss 1e-5,1e-4", "--compare"),
        ("tcp --rate 512M --rtt 15ms --algorithm fast", "westwood"),
        ("link --rate 1G --link sonet", "wanphy"),
        ("distribute --costs 1.5", "1.5,0.09"),
        ("distribute --costs 1.5,0.1 --channels 64", "--costs"),
        ("distribute --bits 3", "1, 2, 4 or 8"),
        ("distribute --stations 1", "2..=1000"),
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

/// A plot that cannot be written is refused before the work, not after it.
#[test]
fn a_plot_that_cannot_be_written_is_refused_first() {
    let room = Room::new();
    let plot = room.path("missing/plot.svg");
    // Nobody listens at port 9: that error would be reported later.
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

/// For a flow as it would be sent: nothing leaves.
#[test]
fn a_sender_prints_its_own_plan() {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let to = format!("udp://{}", receiver.local_addr().unwrap());
    let send = [
        "send",
        "pattern:8032",
        "--to",
        &to,
        "--rate",
        "512M",
        "--cut",
        "frames",
    ];
    let check = |more: &[&str]| {
        let output = evlbi(&[&send[..], &["--safe", "shared", "--check"], more].concat());
        assert!(output.status.success(), "{more:?}");
        output.stdout
    };
    let text = String::from_utf8(check(&["--mtu", "1500"])).unwrap();
    assert!(text.contains(" datagrams of 1004 bytes"), "{text}");
    assert_eq!(text.matches("shed at about").count(), 3, "{text}");
    let plan = read(check(&["--rtt", "95ms", "--json"]));
    assert_schema(&plan, "evlbi.plan.safe/1");
    let planned = json("safe --rate 512M --rtt 95ms --size 8032");
    assert_eq!(plan, planned);
    assert!(receiver.recv(&mut [0; 9]).is_err());
}

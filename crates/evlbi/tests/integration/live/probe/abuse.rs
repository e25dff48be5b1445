//! Tests that a responder forbids, and cleanup after a client that was killed.

use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::until;
use nix::sys::signal::Signal;

use super::{Probing, assert_refused, end, points, probe, probe_of, respond, run, threads};
use crate::result::number;

#[test]
fn refusals_name_the_options() {
    let responder = respond("127.0.0.1:0", &["--max-rate", "100M"]);
    let address = responder.address();
    let loaded = [
        "--rate",
        "1M",
        "--count",
        "10",
        "--load-tasks",
        "1",
        "--json",
    ];
    for (more, said) in [
        (&["--rate", "99M"][..], "--max-rate"),
        (&loaded, "--allow-load"),
        (&["--rate", "10M", "--token", "another"], "token"),
    ] {
        assert_refused(&run(&mut probe(address, more)), said);
    }
    let said = end(responder);
    assert!(
        said.contains("wrong token") && !said.contains("another"),
        "{said}"
    );
    let responder = respond("127.0.0.1:0", &["--allow-load"]);
    let address = responder.address();
    let output = run(&mut probe(address, &loaded));
    assert_eq!(points(&output)[0]["burden"]["tasks"], 1);
    let output = run(&mut probe_of("tcp", address, &["--into", "x"]));
    assert_refused(&output, "--files");
    end(responder);
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    let responder = respond("127.0.0.1:0", &["--max-rate", "100M", "--max-tests", "1"]);
    let address = responder.address();
    // Killed during a stream towards it, which would last an hour.
    let more = ["--rate", "50M", "--duration", "1h", "--reverse"];
    let mut killed = Probing::start(&mut probe(address, &more));
    until("a stream is sent", || {
        threads(&responder.child, "send") == 1
    });
    killed.child.signal(Signal::SIGKILL);
    killed.child.wait();
    // The next valid test works. It may wait until the killed one is detected, but not for its end.
    assert_fits(100, 100);
    let more = [
        "--rate", "10M", "--size", "100", "--count", "100", "--wait", "10min", "--json",
    ];
    let output = run(&mut probe(address, &more));
    assert_eq!(number(&points(&output)[0], "lost"), 0);
    end(responder);
}

//! The interface fuzzed from its own description (schemathesis): no answer but those that are described, nothing done for
//! who may not, and data flows meanwhile.

use std::path::{Path, PathBuf};

use crate::control::support::{Agent, Beside, recv};
use evlbi_testkit::command;
use evlbi_testkit::python::python;

/// Schemathesis, where it is installed beside the tests' Python; else it is said that it is missing.
fn schemathesis() -> Option<PathBuf> {
    let python = python("schemathesis")?;
    let program = python.parent()?.join("schemathesis");
    assert!(program.is_file(), "no {}", program.display());
    Some(program)
}

/// Requests of each kind that are made up, beside those that the description gives and implies.
const EXAMPLES: &str = "10";

/// What schemathesis found with a token.
fn fuzz(program: &Path, agent: &Agent, token: &str) {
    let output = command(program)
        .args([
            "run",
            &format!("https://{}/api/v1/openapi.json", agent.address),
        ])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args([
            "--tls-verify",
            "false",
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            EXAMPLES,
            // A host that stands still answers later, and nothing is wrong with it.
            "--request-timeout",
            "120",
            "--seed",
            "7",
            // Python 3.11 sometimes fails to parse in two threads at once (CPython issue 106905).
            "--workers",
            "1",
        ])
        // What a schema cannot say (which files are there, what fits together) is refused with 422, and of flows that are
        // looked at only, what stands against them is the answer.
        .args([
            "--exclude-checks",
            "positive_data_acceptance,negative_data_rejection",
        ])
        .current_dir(agent.room.folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

#[test]
fn whoever_may_watch_changes_nothing_by_any_request() {
    let Some(program) = schemathesis() else {
        return;
    };
    let agent = Agent::start("");
    // The name that the description gives as an example is among them.
    let beside = Beside::begin(&agent);
    fuzz(&program, &agent, &agent.token("watch"));
    let flows = agent.get("/api/v1/flows")["flows"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(flows.len(), 4);
    for flow in flows {
        assert_eq!(flow["revision"], 1, "{flow}");
        // The sky's station may have come to its end meanwhile.
        let is_over = flow["id"] == "from" && flow["end"]["outcome"] == "finished";
        assert!(flow["state"] == "running" || is_over, "{flow}");
    }
    beside.end();
}

#[test]
fn whatever_an_operator_asks_is_answered_as_described() {
    let Some(program) = schemathesis() else {
        return;
    };
    let agent = Agent::start("max-rate = \"100M\"\nmax-flows = 20");
    agent.begin(&recv("ef-1", "null"));
    // What this operator cannot reach goes on.
    let other = Agent::start("");
    let beside = Beside::begin(&other);
    fuzz(&program, &agent, &agent.token("operate"));
    assert_eq!(agent.get("/api/v1/about")["role"], "agent");
    beside.end();
}

//! The HTTP API fuzzed from its own description (schemathesis): only described answers, no action for a client that lacks the right,
//! and data flows meanwhile.

use std::path::{Path, PathBuf};

use crate::control::support::{Agent, Beside, recv};
use evlbi_testkit::command;
use evlbi_testkit::python::python;

/// Returns schemathesis if it is installed next to the tests' Python; otherwise reports that it is not.
fn schemathesis() -> Option<PathBuf> {
    let python = python("schemathesis")?;
    let program = python.parent()?.join("schemathesis");
    assert!(program.is_file(), "no {}", program.display());
    Some(program)
}

/// Generated requests of each kind, in addition to those that the description gives and implies.
const EXAMPLES: &str = "10";
/// Requests take a slow host longer to make than the default time for the next one.
const IDLE: &str = "idle = \"1h\"";

/// Runs schemathesis with a token.
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
            // A stalled host answers later, and nothing is wrong with it.
            "--request-timeout",
            "120",
            "--seed",
            "7",
            // Python 3.11 sometimes fails to parse in two threads at once (CPython issue 106905).
            "--workers",
            "1",
        ])
        // Errors that a schema cannot express (which files exist, which options fit together) are refused with 422, and a check of flows
        // answers with the problems.
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
fn a_token_for_viewing_changes_nothing_by_any_request() {
    let Some(program) = schemathesis() else {
        return;
    };
    let agent = Agent::start(IDLE);
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
        // The sky's station may have finished meanwhile.
        let is_over = flow["id"] == "from" && flow["end"]["outcome"] == "finished";
        assert!(flow["state"] == "running" || is_over, "{flow}");
    }
    beside.end();
}

#[test]
fn every_request_of_an_operator_is_answered_as_described() {
    let Some(program) = schemathesis() else {
        return;
    };
    let agent = Agent::start(&format!("max-rate = \"100M\"\nmax-flows = 20\n{IDLE}"));
    agent.begin(&recv("ef-1", "null"));
    // Flows that this operator cannot reach continue.
    let other = Agent::start("");
    let beside = Beside::begin(&other);
    fuzz(&program, &agent, &agent.token("operate"));
    assert_eq!(agent.get("/api/v1/about")["role"], "agent");
    beside.end();
}

//! The interface fuzzed from its own description (schemathesis): no answer but those that are described, nothing done for
//! who may not, and data flows meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::control::support::{Agent, received, recv, send};
use crate::result::number;
use evlbi_testkit::python::python;

/// Schemathesis, where it is installed beside the tests' Python; else it is said that it is missing.
fn schemathesis() -> Option<PathBuf> {
    let python = python("schemathesis")?;
    let program = python.parent()?.join("schemathesis");
    assert!(program.is_file(), "no {}", program.display());
    Some(program)
}

/// What schemathesis found with a token.
fn fuzz(program: &Path, agent: &Agent, token: &str) {
    let output = Command::new(program)
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
            "--max-time",
            "20",
            // A host that stands still answers later, and nothing is wrong with it.
            "--request-timeout",
            "60",
            "--seed",
            "7",
            "--workers",
            "2",
        ])
        // What a schema cannot say (which files are there, what fits together) is refused with 422, and of flows that are
        // looked at only, what stands against them is the answer.
        .args([
            "--exclude-checks",
            "positive_data_acceptance,negative_data_rejection",
        ])
        .current_dir(agent.folder.path())
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
    // The name that the description gives as an example.
    let to = agent.receive(&recv("ef-1", "null"));
    agent.begin(&send("from", &to, "50M"));
    fuzz(&program, &agent, &agent.token("watch"));
    let flows = agent.get("/api/v1/flows")["flows"]
        .as_array()
        .unwrap()
        .clone();
    let kept = |flow: &Value| flow["state"] == "running" && flow["revision"] == 1;
    assert!(flows.len() == 2 && flows.iter().all(kept), "{flows:?}");
    undisturbed(&agent, "from", "ef-1");
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
    let to = other.receive(&recv("to", "null"));
    other.begin(&send("from", &to, "50M"));
    fuzz(&program, &agent, &agent.token("operate"));
    assert_eq!(agent.get("/api/v1/about")["role"], "agent");
    undisturbed(&other, "from", "to");
}

/// Whether all that a flow sent has come to another.
fn undisturbed(agent: &Agent, from: &str, to: &str) {
    let sent = agent.finish(from);
    let all = number(&sent, "sent");
    agent.wait(to, |flow| received(flow, "unique") == all);
    let received = agent.finish(to);
    assert_eq!(
        (number(&sent, "not_sent"), number(&received, "lost")),
        (0, 0)
    );
}

//! Data of an agent for other programs: metrics, events, and the table of a time series.

use evlbi_testkit::until_some;
use reqwest::Method;
use serde_json::{Value, json};

use crate::control::support::{Agent, SKY_FRAMES, has_ended, received, recv, sky};
use crate::result::number;

/// Prometheus reads the flows' own counters; a reader of events continues after the last one that it has.
#[test]
fn counters_and_events_are_available_to_other_programs() {
    let agent = Agent::start("name = \"ef\"\n");
    let to = agent.receive(&recv("to", "null"));
    let mut sender = sky("from", &to, "1M");
    sender["shed"] = json!("every:5");
    agent.begin(&sender);
    agent.wait("from", has_ended);
    let sent = agent.flow("from")["status"]["sending"].clone();
    assert_eq!(
        ["offered", "sent", "shed"].map(|count| number(&sent, count)),
        [SKY_FRAMES, SKY_FRAMES - 15, 15]
    );
    let all = number(&sent, "sent");
    agent.wait("to", |flow| received(flow, "unique") == all);
    agent.finish("to");
    let came = agent.flow("to")["status"]["receiving"][0].clone();
    let request = agent
        .bare(Method::GET, "/metrics")
        .bearer_auth(agent.token("watch"));
    let text = agent.send(request).body.as_str().unwrap().to_owned();
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Also under the path of the HTTP API, and described with it.
    let same = agent.get("/api/v1/metrics").as_str().unwrap().to_owned();
    let counters = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("_total"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(counters(&same), counters(&text));
    let document = agent.get("/api/v1/openapi.json");
    assert!(document["paths"]["/api/v1/metrics"]["get"].is_object());
    let value = |name: &str, flow: &str| -> f64 {
        let line = format!("evlbi_{name}{{host=\"ef\",flow=\"{flow}\"}} ");
        let mut found = text.lines().filter_map(|text| text.strip_prefix(&line));
        let value = found.next().unwrap_or_else(|| panic!("no {line}: {text}"));
        assert_eq!(found.next(), None, "{line} twice");
        value.parse().unwrap()
    };
    for (name, count) in [
        ("sent_datagrams", "sent"),
        ("shed_datagrams", "shed"),
        ("not_sent_datagrams", "not_sent"),
        ("sent_data_bytes", "bytes"),
    ] {
        let value = value(&format!("{name}_total"), "from");
        assert_eq!(Some(value), sent[count].as_f64(), "{name}");
    }
    for (name, count) in [
        ("received_datagrams", "received"),
        ("expected_datagrams", "expected"),
        ("lost_host_datagrams", "host_lost"),
        ("lost_network_datagrams", "network_lost"),
        ("lost_unattributed_datagrams", "unattributed"),
        ("duplicate_datagrams", "duplicates"),
        ("reordered_datagrams", "reordered"),
        ("foreign_datagrams", "foreign"),
        ("received_data_bytes", "bytes"),
    ] {
        let value = value(&format!("{name}_total"), "to");
        assert_eq!(Some(value), came[count].as_f64(), "{name}");
    }
    assert!(
        text.lines()
            .any(|line| line == "evlbi_flows{state=\"ended\"} 2.0"),
        "{text}"
    );
    // Each event once, in order, from any position.
    let events = |after: u64| -> Vec<u64> {
        let found = agent.get(&format!("/api/v1/events?after={after}"));
        let events = found["events"].as_array().unwrap();
        events.iter().map(|event| number(event, "id")).collect()
    };
    let ids = events(0);
    assert!(ids.len() > 3 && ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for read in [2, ids.len()] {
        let rest = events(ids[read - 1]);
        // More may happen meanwhile.
        assert!(rest.starts_with(&ids[read..]), "{rest:?} of {ids:?}");
        assert!(events(0)[read..].starts_with(&rest), "{rest:?} of {ids:?}");
    }
    // The table of a time series matches the time series: in all, the counts of the flow.
    let (span, course) = until_some("the time series has all", || {
        let now = agent.get("/api/v1/about")["time"].as_f64().unwrap() as u64;
        let before = agent.get("/api/v1/flows/to/course?from=-600");
        assert!(
            before["time"]
                .as_array()
                .is_some_and(|time| !time.is_empty())
        );
        assert_eq!(
            before["step_s"], 1,
            "of the last ten minutes, not since 1969"
        );
        let span = format!("from={}&to={now}", now - 600);
        let course = agent.get(&format!("/api/v1/flows/to/course?{span}"));
        let expected = course["expected"].as_array().unwrap().iter();
        let all: u64 = expected.filter_map(Value::as_u64).sum();
        (all == number(&came, "expected")).then_some((span, course))
    });
    let request = agent
        .bare(Method::GET, &format!("/api/v1/flows/to/course.csv?{span}"))
        .bearer_auth(agent.token("watch"));
    let table = agent.send(request).body.as_str().unwrap().to_owned();
    let mut lines = table
        .lines()
        .map(|line| line.split(',').collect::<Vec<&str>>());
    let head = lines.next().unwrap();
    let rows: Vec<Vec<&str>> = lines.collect();
    for name in ["rate_bps", "expected", "lost"] {
        let at = head.iter().position(|head| *head == name).unwrap();
        let column: Vec<Option<f64>> = rows.iter().map(|row| row[at].parse().ok()).collect();
        let values = course[name].as_array().unwrap().iter();
        let values: Vec<Option<f64>> = values
            .map(|value| value.as_f64().map(f64::round_ties_even))
            .collect();
        assert_eq!(column, values, "{name}");
    }
}

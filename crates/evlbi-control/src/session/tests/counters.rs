//! Each counter of the tables appears everywhere that counters are shown.

use std::collections::BTreeMap;

use evlbi_stream::counters::{
    self, Counter, Counts, Field, Kind, RECEIVED, SAFE_RECEIVED, SAFE_SENT, SENT, Unit, real,
};
use serde_json::json;

use crate::fleet::About;
use crate::flow::{Flow, State};
use crate::session::console;
use crate::{history, metrics};

/// Returns a flow that receives and sends, with a different value for each counter.
fn flow() -> Flow {
    let mut next = 1000.0;
    let mut value = |unit: Unit| {
        next += 1.0;
        match unit.is_real() {
            true => json!(next + 0.5),
            false => json!(next as u64),
        }
    };
    let mut receiving = BTreeMap::from([("is_streaming", json!(true))]);
    let mut sending = BTreeMap::from([("shed_policy", json!("none"))]);
    let mut safe_sending = BTreeMap::from([("mode", json!("shared")), ("state", json!("held"))]);
    let mut safe_receiving = BTreeMap::from([("state", json!("held"))]);
    for (values, counters) in [
        (&mut receiving, counters_of(RECEIVED)),
        (&mut sending, counters_of(SENT)),
        (&mut safe_sending, counters_of(SAFE_SENT)),
        (&mut safe_receiving, counters_of(SAFE_RECEIVED)),
    ] {
        values.extend(counters.iter().map(|it| (it.name, value(it.unit))));
    }
    sending.insert("safe", json!(safe_sending));
    receiving.insert("safe", json!(safe_receiving));
    let status = json!({"time": 1e10, "line": "", "receiving": [receiving], "sending": sending});
    Flow {
        id: "ef".parse().unwrap(),
        host: "here".into(),
        command: "recv".into(),
        options: BTreeMap::new(),
        recording: None,
        revision: 1,
        state: State::Running,
        started: 1e10,
        end: None,
        status: Some(serde_json::from_value(status).unwrap()),
    }
}

fn counters_of<T>(table: &'static [Field<T>]) -> Vec<&'static Counter> {
    table.iter().map(|field| &field.counter).collect()
}

#[test]
fn each_counter_is_in_the_history_the_metrics_and_the_console() {
    let flow = flow();
    let status = flow.status.as_ref().unwrap();

    let folder = evlbi_testkit::Room::new();
    let kept = history::History::open(&folder.folder().join("history.sqlite")).unwrap();
    kept.sample(std::slice::from_ref(&flow), 1000).unwrap();
    let span = history::Span {
        from: 0,
        to: 2000,
        step: 1,
    };
    let course = kept.time_series(&flow.id, span, 2000).unwrap();
    let json = serde_json::to_value(&course).unwrap();
    let csv = course.csv().unwrap();
    let mut lines = csv
        .lines()
        .map(|line| line.split(',').collect::<Vec<&str>>());
    let (head, row) = (lines.next().unwrap(), lines.next().unwrap());
    for counter in counters::shown() {
        let total = |name| real(&status.total(counters::named(name).unwrap()).unwrap());
        let total = match counter.name {
            // Datagrams that a sender drops count as lost in a host, too.
            "host_lost" => total("host_lost") + total("not_sent"),
            name => total(name),
        };
        assert_eq!(json[counter.name][0].as_f64(), Some(total), "{counter:?}");
        let place = head.iter().position(|head| *head == counter.name);
        let cell: f64 = row[place.unwrap()].parse().unwrap();
        // Rates are written in whole bits per second.
        assert!((cell - total).abs() <= 0.5, "{counter:?}: {cell}");
        let is_counted = console::counted().contains(&counter.name);
        assert_eq!(is_counted, counter.kind == Kind::Counter, "{counter:?}");
    }

    let about = About {
        role: "agent".into(),
        name: "here".into(),
        version: String::new(),
        time: 0.0,
        started: 0.0,
        storage: None,
    };
    let metrics = metrics::text(about, vec![flow.clone()]).unwrap();
    let console = console::show(&flow);
    let received = &status.receiving[0];
    let sent = status.sending.as_ref().unwrap();
    let all: [(Vec<&Counter>, &Counts); 4] = [
        (counters_of(RECEIVED), &received.counts),
        (counters_of(SENT), &sent.counts),
        (counters_of(SAFE_SENT), &sent.safe.as_ref().unwrap().counts),
        (
            counters_of(SAFE_RECEIVED),
            &received.safe.as_ref().unwrap().counts,
        ),
    ];
    let state = "evlbi_safe_state{host=\"here\",flow=\"ef\",mode=\"shared\",state=\"held\"} 1.0";
    assert!(metrics.contains(state), "{metrics}");
    let all = all.into_iter();
    let all = all.flat_map(|(counters, counts)| counters.into_iter().map(move |it| (it, counts)));
    for (counter, counts) in all {
        let value = counts.get(counter.name).unwrap();
        let suffix = match counter.kind {
            Kind::Counter => "_total",
            _ => "",
        };
        let name = format!(
            "evlbi_{}{suffix}{{host=\"here\",flow=\"ef\"}} ",
            counter.metric
        );
        let mut found = metrics.lines().filter_map(|line| line.strip_prefix(&name));
        let found: f64 = found.next().expect(&name).parse().unwrap();
        assert_eq!(found, real(value), "{name}");
        let shown = format!("{} {}", counter.name.replace('_', " "), counter.show(value));
        // The console has the names for which codes stand.
        let is_shown = counter.unit == Unit::Code || console.contains(&shown);
        assert!(is_shown, "{shown}: {console}");
    }
}

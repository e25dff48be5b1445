//! Result of a run: how each flow ended, and its counters.

use std::iter::zip;

use evlbi_net::transport::{Carries, Url};
use evlbi_stream::counters;
use evlbi_wire::units::{show_count, show_rate};
use serde::Serialize;
use serde_json::Value;

use super::check::Findings;
use super::hosts::Hosts;
use super::paths::PathResult;
use crate::Problem;
use crate::commands::Known;
use crate::fleet::PlannedFlow;
use crate::flow::{End, Flow, FlowId, Options, Outcome, State};

/// Result of `evlbi run`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunResult {
    /// Name and version of the JSON schema.
    pub schema: &'static str,
    /// Name of the session in its file.
    pub session: FlowId,
    /// Name of the run: the prefix of its flows' names.
    pub run: String,
    /// Start, in seconds since 1970.
    pub started: f64,
    /// End, in seconds since 1970.
    pub ended: f64,
    /// The run was interrupted.
    pub interrupted: bool,
    /// Result of the check before the run.
    pub checked: Findings,
    /// Congestion control of the paths beyond their hosts, and of those that state it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathResult>,
    /// Results of the flows.
    pub flows: Vec<FlowResult>,
}

/// Result of a flow.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowResult {
    /// Full name of the flow.
    pub id: FlowId,
    /// Name of the host that it ran on, or was planned for.
    pub host: String,
    /// Command: `send`, `recv`, `probe udp`, ...
    pub command: String,
    /// State of the flow.
    pub state: State,
    /// End of the flow, if it has ended.
    pub end: Option<End>,
    /// Result of its command, if there is one.
    pub result: Option<Value>,
    /// For a receiving flow: counters of the flows that send to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub senders: Vec<FromSender>,
    #[serde(skip)]
    pub(crate) options: Options,
}

/// Counters of a sender for its receiver, in datagrams. Shed datagrams are not lost. Without SafeUDP the receiver alone cannot distinguish them.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FromSender {
    /// Name of the sending flow.
    pub flow: FlowId,
    /// Datagrams that it sent.
    pub sent: u64,
    /// Datagrams that it shed.
    pub shed: u64,
    /// Datagrams dropped in the sender's host.
    pub not_sent: u64,
    /// Sent datagrams that did not arrive.
    pub missing: i64,
}

impl RunResult {
    /// Counts the flows that failed or are still running.
    pub fn failed(&self) -> usize {
        let is_well = |flow: &&FlowResult| {
            let outcome = flow.end.as_ref().map(|end| end.outcome);
            !matches!(outcome, Some(Outcome::Finished | Outcome::Stopped))
        };
        self.flows.iter().filter(is_well).count()
    }
}

impl FlowResult {
    pub(crate) async fn of(flow: Flow, hosts: &Hosts) -> FlowResult {
        FlowResult {
            result: hosts.whole_result(&flow.id).await.ok(),
            id: flow.id,
            host: flow.host,
            command: flow.command,
            state: flow.state,
            end: flow.end,
            senders: Vec::new(),
            options: flow.options,
        }
    }

    /// Creates the result of a flow that no agent knows.
    pub(crate) fn missing(planned: &PlannedFlow, problem: Problem, time: f64) -> FlowResult {
        let why = planned.why_not.clone();
        FlowResult {
            id: planned.id.clone(),
            host: planned.host.clone(),
            command: planned.command.clone(),
            state: State::Ended,
            end: Some(End {
                time,
                outcome: Outcome::Failed,
                message: why.or(Some(problem.error)),
            }),
            result: None,
            senders: Vec::new(),
            options: Options::new(),
        }
    }

    /// Returns the URLs on which it receives datagrams, with the number of unique datagrams of each.
    pub(crate) fn receives(&self) -> Vec<(Url, u64)> {
        let Some(result) = &self.result else {
            return Vec::new();
        };
        // A correlator reports each stream, a recorder its only one.
        let streams = result["streams"].as_array();
        let streams = streams.map_or(std::slice::from_ref(result), Vec::as_slice);
        let urls = Known::of(&self.command, &self.options).streams();
        let found = zip(urls, streams);
        let found = found.map(|(url, stream)| Some((url?, stream["unique"].as_u64()?)));
        let has_datagrams =
            |(url, _): &(Url, u64)| url.transport().service().carries == Carries::Datagrams;
        found.flatten().filter(has_datagrams).collect()
    }

    /// Returns the sender's counters if it sends to a URL for which `is_there` holds and `unique` of its datagrams arrived.
    pub(crate) fn sent_to(
        &self,
        is_there: impl Fn(&Url) -> bool,
        unique: u64,
    ) -> Option<FromSender> {
        let to = Known::of(&self.command, &self.options).destination();
        to.filter(|to| is_there(to))?;
        let count = |name: &str| self.result.as_ref()?[name].as_u64();
        let sent = count("sent")?;
        Some(FromSender {
            flow: self.id.clone(),
            sent,
            shed: count("shed")?,
            not_sent: count("not_sent")?,
            missing: sent as i64 - unique as i64,
        })
    }

    fn numbers(&self) -> String {
        let Some(result) = &self.result else {
            return String::new();
        };
        let mut parts = Vec::new();
        parts.extend(result["rate_bps"].as_f64().map(show_rate));
        // A receiver alone counts what its sender shed as lost in the network, unless the sender reports it (SafeUDP).
        let is_reported = result["safe"].is_object();
        let is_known = !is_reported && self.senders.iter().any(|sender| sender.shed > 0);
        let is_misleading = |name: &str| is_known && ["lost", "network_lost"].contains(&name);
        parts.extend(counters::brief(|it| {
            let value = result[it.name].as_u64()?;
            (!is_misleading(it.name)).then(|| value.into())
        }));
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for baseline in list(&result["baselines"]) {
            let stations = list(&baseline["stations"]);
            let names: Vec<&str> = stations.iter().filter_map(Value::as_str).collect();
            let real = |name: &str| baseline[name].as_f64().unwrap_or(0.0);
            let (names, snr, weight) = (names.join("-"), real("snr"), real("weight"));
            parts.push(format!("{names} SNR {snr:.1} weight {weight:.4}"));
        }
        for sender in &self.senders {
            let mut part = format!(
                "from {}: lost {} of {} sent",
                sender.flow,
                sender.missing,
                show_count(sender.sent)
            );
            if sender.shed > 0 {
                part += &format!("; {} shed by the sender", show_count(sender.shed));
            }
            parts.push(part);
        }
        parts.join(", ")
    }
}

/// Formats the result as text, one line per flow.
pub fn text(result: &RunResult) -> String {
    let rows = result.flows.iter().map(|flow| {
        let about = [flow.id.as_str(), &flow.host, &flow.command];
        super::row(about, flow.state, flow.end.as_ref(), || flow.numbers())
    });
    super::table(&rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Shed datagrams are distinguished from lost ones, for a recorder and for a correlator's streams.
    #[test]
    fn shed_is_not_lost() {
        let of = |command: &str, options: Value, result: Value| FlowResult {
            id: command.parse().unwrap(),
            host: "jive".to_owned(),
            command: command.to_owned(),
            state: State::Ended,
            end: None,
            result: Some(result),
            senders: Vec::new(),
            options: serde_json::from_value(options).unwrap(),
        };
        let sender = of(
            "send",
            json!({"to": "udp://10.0.0.1:2631"}),
            json!({"offered": 1000, "sent": 900, "shed": 100, "not_sent": 0}),
        );
        let mut recorder = of(
            "recv",
            json!({"from": "udp://:2630-2631"}),
            json!({"unique": 897, "lost": 103, "host_lost": 1, "network_lost": 102}),
        );
        // Receivers of another transport, or of a byte stream, do not count.
        let over_tcp = of("recv", json!({"from": "tcp://:2631"}), json!({"unique": 0}));
        let other = of(
            "recv",
            json!({"from": "pudp://:2631"}),
            json!({"unique": 7}),
        );
        let streams = json!({"streams": [{"unique": 5}, {"unique": 899}]});
        let files = json!({"files": ["udp://:2630", "udp://:2631"]});
        let correlator = of("correlate", files, streams);
        let missing = |receiver: &FlowResult| -> Vec<i64> {
            let all = receiver.receives().into_iter();
            let sent = all.filter_map(|(own, unique)| sender.sent_to(|to| own.takes(to), unique));
            sent.map(|sent| sent.missing).collect()
        };
        assert!(missing(&over_tcp).is_empty() && missing(&other).is_empty());
        assert_eq!(missing(&recorder), [3]);
        assert_eq!(missing(&correlator), [1]);
        recorder.senders.extend(sender.sent_to(|_| true, 897));
        assert_eq!(
            recorder.numbers(),
            "unique 897, in the host 1, from send: lost 3 of 900 sent; 100 shed by the sender"
        );
        // Under SafeUDP the receiver does not count what was shed as lost.
        let mut reported = recorder.result.clone();
        let safe = reported.as_mut().unwrap();
        safe["safe"] = json!({"shed": 100});
        safe["lost"] = 3.into();
        safe["network_lost"] = 2.into();
        std::mem::swap(&mut recorder.result, &mut reported);
        assert_eq!(
            recorder.numbers(),
            "unique 897, lost 3, in the host 1, in the network 2, from send: lost 3 of 900 sent; 100 shed by the sender"
        );
        recorder.result = reported;
        // If nothing was shed, all that the receiver lost was lost on the way.
        recorder.senders[0].shed = 0;
        assert_eq!(
            recorder.numbers(),
            "unique 897, lost 103, in the host 1, in the network 102, from send: lost 3 of 900 sent"
        );
    }
}

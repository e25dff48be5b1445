//! What came of a run: how each flow ended, and its numbers.

use serde::Serialize;
use serde_json::Value;

use super::check::Findings;
use crate::control::flow::{End, Flow, FlowId, Outcome, State};
use crate::output;
use crate::units::{show_count, show_rate};

/// The result of `evlbi run`.
#[derive(Serialize)]
pub struct RunResult {
    pub schema: &'static str,
    pub session: FlowId,
    /// What the names of the run's flows begin with.
    pub run: String,
    /// Seconds since 1970.
    pub started: f64,
    pub ended: f64,
    pub interrupted: bool,
    pub checked: Findings,
    pub flows: Vec<FlowResult>,
}

/// What came of a flow.
#[derive(Serialize)]
pub struct FlowResult {
    pub id: FlowId,
    pub host: String,
    pub command: String,
    pub state: State,
    pub end: Option<End>,
    /// What its command printed as its result.
    pub result: Option<Value>,
}

impl RunResult {
    /// Flows that did not do what they were to do.
    pub fn failed(&self) -> usize {
        let is_well = |flow: &&FlowResult| {
            let outcome = flow.end.as_ref().map(|end| end.outcome);
            !matches!(outcome, Some(Outcome::Finished | Outcome::Stopped))
        };
        self.flows.iter().filter(is_well).count()
    }
}

impl FlowResult {
    pub fn of(flow: Flow, result: Option<Value>) -> FlowResult {
        FlowResult {
            id: flow.id,
            host: flow.host,
            command: flow.command,
            state: flow.state,
            end: flow.end,
            result,
        }
    }

    /// One that was never heard of.
    pub fn missing(id: FlowId, host: &str, command: &str, why: String, time: f64) -> FlowResult {
        FlowResult {
            id,
            host: host.to_owned(),
            command: command.to_owned(),
            state: State::Ended,
            end: Some(End {
                time,
                outcome: Outcome::Failed,
                message: Some(why),
            }),
            result: None,
        }
    }

    fn numbers(&self) -> String {
        let Some(result) = &self.result else {
            return String::new();
        };
        let count = |name: &str| result[name].as_u64().map(show_count);
        let mut parts = Vec::new();
        parts.extend(result["rate_bps"].as_f64().map(show_rate));
        for (name, word) in [
            ("sent", "sent"),
            ("shed", "shed"),
            ("unique", "unique"),
            ("lost", "lost"),
            ("host_lost", "in the host"),
            ("network_lost", "in the network"),
        ] {
            parts.extend(count(name).map(|count| format!("{word} {count}")));
        }
        for baseline in result["baselines"].as_array().into_iter().flatten() {
            let names: Vec<&str> = baseline["stations"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            parts.push(format!(
                "{} SNR {:.1} weight {:.4}",
                names.join("-"),
                baseline["snr"].as_f64().unwrap_or(0.0),
                baseline["weight"].as_f64().unwrap_or(0.0)
            ));
        }
        parts.join(", ")
    }
}

pub fn text(result: &RunResult) -> String {
    let rows = result.flows.iter().map(|flow| {
        let (how, why) = match &flow.end {
            Some(end) => (
                format!("{:?}", end.outcome).to_lowercase(),
                end.message.clone(),
            ),
            None => (format!("{:?}", flow.state).to_lowercase(), None),
        };
        vec![
            flow.id.to_string(),
            flow.host.clone(),
            flow.command.clone(),
            how,
            why.unwrap_or_else(|| flow.numbers()),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    match rows.is_empty() {
        true => "no flows".to_owned(),
        false => output::columns(&rows, |_| true),
    }
}

//! Report of a path's state.

use evlbi_wire::units::{show_count, show_seconds, show_size};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CellSnapshot, HostSnapshot, Lateness};

/// The state of a path.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct State {
    /// Schema of this document: `evlbi.path/1`.
    pub schema: String,
    /// Name of the plan.
    pub name: String,
    /// Seconds since the path was started.
    pub seconds: f64,
    /// The hosts, in the order of the plan.
    pub hosts: Vec<HostState>,
    /// The cells of all directions, in the order of the plan.
    pub cells: Vec<CellSnapshot>,
    /// Delays of each thread of the relay.
    pub lateness: Vec<Lateness>,
    /// Whether the path has ended: these are its final numbers.
    #[serde(default)]
    pub finished: bool,
}

/// A host.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostState {
    /// Its name.
    pub name: String,
    /// Its IPv4 address.
    pub v4: String,
    /// Its IPv6 address.
    pub v6: String,
    /// Counters of its packets.
    #[serde(flatten)]
    pub counts: HostSnapshot,
    /// Packets that it had sent and that found the queue to the relay full.
    pub overflown: u64,
}

/// An answer of a path that this version does not understand.
#[derive(Debug, thiserror::Error)]
#[error("this program's version differs from the path's")]
pub struct VersionError(#[source] serde_json::Error);

impl State {
    /// Parses what [`state`](crate::state) returned.
    ///
    /// # Errors
    /// Returns an error if it has another form, because another version created the path.
    pub fn read(value: &Value) -> Result<State, VersionError> {
        serde_json::from_value(value.clone()).map_err(VersionError)
    }
}

/// Returns the state as text for people: a table of the hosts and one of the cells.
pub fn text(state: &State) -> String {
    let mut shown = format!("{} after {}\n", state.name, show_seconds(state.seconds));
    shown += &format!(
        "{:<16} {:<12} {:>12} {:>12} {:>10} {:>10} {:>10}\n",
        "host", "address", "sent", "received", "refused", "overrun", "overflown"
    );
    for host in &state.hosts {
        shown += &format!(
            "{:<16} {:<12} {:>12} {:>12} {:>10} {:>10} {:>10}\n",
            host.name,
            host.v4,
            show_count(host.counts.sent),
            show_count(host.counts.received),
            show_count(host.counts.refused),
            show_count(host.counts.overrun),
            show_count(host.overflown),
        );
    }
    shown += &format!(
        "{:<32} {:<12} {:>12} {:>12} {:>10}  other\n",
        "direction", "cell", "packets", "passed", "dropped"
    );
    for cell in &state.cells {
        let truth = &cell.truth;
        let others = [
            ("duplicated", truth.duplicated),
            ("held", truth.held),
            ("corrupted", truth.corrupted),
            ("marked", truth.marked),
        ];
        let others = others.iter().filter(|(_, count)| *count > 0);
        let mut other: Vec<String> = others
            .map(|(name, count)| format!("{} {name}", show_count(*count)))
            .collect();
        if truth.delayed_us > 0 && cell.passed > 0 {
            let mean = truth.delayed_us as f64 * 1e-6 / cell.passed as f64;
            other.push(format!("mean delay {}", show_seconds(mean)));
        }
        if truth.backlog_max > 0 {
            other.push(format!("backlog up to {}", show_size(truth.backlog_max)));
        }
        shown += &format!(
            "{:<32} {:<12} {:>12} {:>12} {:>10}  {}\n",
            cell.place.direction,
            cell.place.cell,
            show_count(truth.packets),
            show_count(cell.passed),
            show_count(truth.dropped),
            other.join(", ")
        );
    }
    for lateness in state.lateness.iter().filter(|lateness| lateness.frames > 0) {
        shown += &format!(
            "delivered {} later than planned, at most {} ({} of memory, {})\n",
            show_seconds(lateness.mean_s),
            show_seconds(lateness.max_s),
            show_size(lateness.memory),
            match (100.0 * lateness.first_of_all).round() {
                0.0 => "without priority over other threads".to_owned(),
                percent => format!("{percent} % of the time with priority over all other threads"),
            }
        );
    }
    shown
}

//! Paths of a session that lead beyond a host: which congestion control each flow states, and the key that both of its ends get.
//!
//! Flows from one host to another do not share a controller: each reacts to its own reports. They share their weight instead, so that a
//! stream gets no larger share of a path when it is cut into several flows.

use evlbi_net::safe::{MAX_WEIGHT, WEIGHT};
use evlbi_net::transport::Url;
use serde::Serialize;
use serde_json::Value;

use super::check::Finding;
use super::plan::{FlowPlan, Scan, Session, SessionError};
use crate::flow::{FlowId, Options};

/// Latest version of session files. From version 2 on, a path beyond its host states its congestion control.
pub(super) const VERSION: u32 = 2;
/// Version of a file without one.
const FIRST_VERSION: u32 = 1;
/// Minimum `around` of a session with flows that send probes before their data, in seconds.
const MIN_AROUND: u64 = 8;

/// Option of a flow for its congestion control.
const SAFE: &str = "safe";
/// Option of a flow for the number of TCP flows as which it may count.
const FLOWS: &str = "weight";
/// Option of a flow for the key of its reports.
const KEY_FILE: &str = "key-file";

/// Congestion control of a path beyond its host, or of one that states it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PathResult {
    /// Name of the flow in the session.
    pub flow: FlowId,
    /// Host that sends.
    pub host: String,
    /// URL that it sends to.
    pub to: String,
    /// `shared`, `reserved`, `strict` or `off`; `None` if the session does not state it.
    pub safe: Option<String>,
    /// Holder of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_by: Option<String>,
    /// Until when, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_until: Option<String>,
}

impl PathResult {
    /// Formats the reservation, if there is one.
    pub(super) fn reservation(&self) -> Option<String> {
        let by = self.reserved_by.as_ref()?;
        let until = self.reserved_until.as_ref()?;
        let to = &self.to;
        Some(format!(
            "the path to {to} is reserved by {by} until {until}"
        ))
    }
}

impl FlowPlan {
    /// Returns the mode of SafeUDP that it asks for, or `off`.
    fn safe(&self) -> Option<&str> {
        self.options.get(SAFE)?.as_str()
    }

    /// Returns whether its receiver must send reports.
    fn needs_reports(&self) -> bool {
        self.safe().is_some_and(|mode| mode != "off")
    }

    /// Returns the number of TCP flows as which it may count if it is alone on a path that others use; `None` on another path.
    fn default_weight(&self) -> Option<f64> {
        match self.safe()? {
            "shared" => Some(WEIGHT),
            "strict" => Some(1.0),
            _ => None,
        }
    }

    /// Returns the number of TCP flows as which it may count, if it states one.
    fn weight(&self) -> Option<f64> {
        self.options.get(FLOWS)?.as_f64()
    }

    /// Returns whether it has a key of its own.
    fn has_key(&self) -> bool {
        self.options.contains_key(KEY_FILE)
    }
}

impl Session {
    /// Checks what the flows state about their paths.
    pub(super) fn check_paths(&self) -> Result<(), SessionError> {
        if !(FIRST_VERSION..=VERSION).contains(&self.version()) {
            let why = format!(
                "unknown version {} of session files: this program knows 1 to {VERSION}",
                self.version()
            );
            return Err(SessionError::Invalid(why));
        }
        for flow in &self.flows {
            let error = |why: String| SessionError::Flow {
                name: flow.name.clone(),
                why,
            };
            self.check_path(flow).map_err(error)?;
            match lacks(flow) {
                Some(why) if self.version() >= VERSION => return Err(error(why)),
                _ => {}
            }
        }
        Ok(())
    }

    fn version(&self) -> u32 {
        self.version.unwrap_or(FIRST_VERSION)
    }

    fn check_path(&self, flow: &FlowPlan) -> Result<(), String> {
        let is_reserved = flow.safe() == Some("reserved");
        if !is_reserved && (flow.reserved_by.is_some() || flow.reserved_until.is_some()) {
            return Err("`reserved-by` and `reserved-until` need safe = \"reserved\"".to_owned());
        }
        if !flow.needs_reports() {
            return Ok(());
        }
        let to = flow.known().destination();
        if let Some(to) = to.filter(|to| !to.can_be_safe()) {
            return Err(format!(
                "{SAFE} cannot control {to}: it needs udp:// to one host; give {SAFE} = \"off\", or leave it out for a transport with a control of its own"
            ));
        }
        if !is_reserved && self.around.as_secs() < MIN_AROUND {
            return Err(format!(
                "it sends probes for 4 s or more before its data, and `around` is {:?}: add around = \"8s\" to the session",
                self.around
            ));
        }
        let mut receivers = self.receivers(flow).peekable();
        if receivers.peek().is_none() && !flow.has_key() && leaves(flow) {
            return Err(format!(
                "no flow of the session receives it and sends it reports: give the `{KEY_FILE}` of its receiver, or safe = \"off\""
            ));
        }
        let together = |part| {
            let beside = self.beside(self.plans_of(part), flow);
            let weight = |flow: &FlowPlan| flow.weight().or(self.weight(part, flow));
            beside.filter_map(weight).sum::<f64>()
        };
        let mut parts = self.parts().into_iter();
        if parts.any(|part| together(part) > MAX_WEIGHT) {
            return Err(format!(
                "it and the other flows from its host to the same host may count as more than {MAX_WEIGHT} TCP flows together: lower their `{FLOWS}`, or leave it out"
            ));
        }
        for receiver in receivers {
            if receiver.has_key() != flow.has_key() {
                return Err(format!("give a `{KEY_FILE}` at both ends or at none"));
            }
            if receiver.options.get(SAFE) == Some(&Value::Bool(false)) {
                let name = &receiver.name;
                return Err(format!(
                    "its receiver {name} has {SAFE} = false, and must send reports: leave that out"
                ));
            }
        }
        Ok(())
    }

    /// Lists the flows that receive what a flow sends, to a file or into a correlator.
    fn receivers<'s>(&'s self, sender: &'s FlowPlan) -> impl Iterator<Item = &'s FlowPlan> {
        let to = sender.known().destination();
        let receivers = self.flows.iter().filter(|flow| flow.known().listens());
        receivers.filter(move |receiver| {
            let host = self.hosts.iter().find(|host| host.name == receiver.host);
            let is_there = |own: &Url, to: &Url| {
                let (Some(own_host), Some(to_host)) = (own.host(), to.host()) else {
                    return false;
                };
                let is_host = host.is_some_and(|host| host.has_address(&to_host.name));
                (own_host.name == to_host.name || is_host) && own.takes(to)
            };
            let mut streams = receiver.known().streams().into_iter().flatten();
            let to = to.as_ref();
            to.is_some_and(|to| streams.any(|own| is_there(&own, to)))
        })
    }

    /// Lists what the session should state about its paths, and does not.
    pub(super) fn warnings(&self) -> Vec<Finding> {
        let found = self.flows.iter().filter_map(|flow| {
            Some(Finding {
                host: flow.host.clone(),
                flow: Some(flow.name.clone()),
                problem: lacks(flow)?,
            })
        });
        found.collect()
    }

    /// Lists the paths beyond their hosts, and those with a stated congestion control.
    pub(super) fn paths(&self) -> Vec<PathResult> {
        let paths = self.flows.iter().filter_map(|flow| {
            let to = flow.known().destination()?;
            (flow.safe().is_some() || to.lacks_control()).then(|| PathResult {
                flow: flow.name.clone(),
                host: flow.host.clone(),
                to: to.to_string(),
                safe: flow.safe().map(str::to_owned),
                reserved_by: flow.reserved_by.clone(),
                reserved_until: flow.reserved_until.map(|until| until.to_string()),
            })
        });
        paths.collect()
    }

    /// Returns the host of the session that a flow sends to, or the host in its URL.
    fn place(&self, plan: &FlowPlan) -> Option<String> {
        let to = plan.known().destination()?.host()?.name.clone();
        let known = self.hosts.iter().find(|host| host.has_address(&to));
        Some(known.map_or(to, |host| host.name.clone()))
    }

    /// Lists the senders under SafeUDP from the host of `plan` to the host that it sends to, with itself.
    fn beside<'s>(
        &'s self,
        flows: impl Iterator<Item = &'s FlowPlan>,
        plan: &'s FlowPlan,
    ) -> impl Iterator<Item = &'s FlowPlan> {
        let place = self.place(plan);
        flows.filter(move |other| {
            other.host == plan.host
                && other.default_weight().is_some()
                && self.place(other) == place
        })
    }

    /// Returns the number of TCP flows as which a sender may count: flows from one host to another in a scan have the default weight
    /// together. `None` for a flow that is alone.
    fn weight(&self, scan: Option<&Scan>, plan: &FlowPlan) -> Option<f64> {
        let alone = plan.default_weight()?;
        let count = self.beside(self.plans_of(scan), plan).count();
        (count > 1).then(|| alone / count as f64)
    }

    /// Adds to the options of a flow the reports that its sender needs, the session's key, and its part of the weight.
    pub(super) fn add_reports(&self, scan: Option<&Scan>, plan: &FlowPlan, options: &mut Options) {
        if let Some(weight) = self.weight(scan, plan) {
            options.entry(FLOWS.to_owned()).or_insert(weight.into());
        }
        let is_sender = plan.needs_reports() && self.receivers(plan).next().is_some();
        let senders = self.flows.iter().filter(|flow| flow.needs_reports());
        let is_receiver = senders
            .flat_map(|sender| self.receivers(sender))
            .any(|receiver| receiver.name == plan.name);
        if is_receiver {
            options.entry(SAFE.to_owned()).or_insert(Value::Bool(true));
        }
        if let Some(key) = self.key.as_ref().filter(|_| is_sender || is_receiver) {
            let key = Value::from(key.as_str());
            options.entry(KEY_FILE.to_owned()).or_insert(key);
        }
    }
}

/// Generates a key for both ends of the flows of a session.
pub(super) fn new_key() -> String {
    let digits = rand::random::<[u8; 32]>();
    let digits = digits.map(|byte| format!("{byte:02x}")).concat();
    format!("{}{digits}", crate::agent::KEY)
}

/// Returns whether a flow sends data beyond its host without a congestion control of the transport.
fn leaves(flow: &FlowPlan) -> bool {
    let to = flow.known().destination();
    to.is_some_and(|to| to.lacks_control())
}

/// Returns what a flow must state from version 2 on, and does not.
fn lacks(flow: &FlowPlan) -> Option<String> {
    if !leaves(flow) {
        return None;
    }
    let is_dated = flow.reserved_by.is_some() && flow.reserved_until.is_some();
    match flow.safe() {
        None => Some(
            "its data leave the host, and the session does not state their congestion control: add the line safe = \"shared\" to its [[flow]] if others use the path, \"reserved\" if it is yours, \"strict\" to yield to everybody, or \"off\"; version 2 requires it"
                .to_owned(),
        ),
        Some("reserved") if !is_dated => Some(
            "safe = \"reserved\" without who reserved the path and until when: add the lines reserved-by = \"NAME\" and reserved-until = \"2026-12-31T00:00:00Z\" to its [[flow]]; version 2 requires them"
                .to_owned(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(head: &str, send: &str, recv: &str) -> Result<Session, String> {
        let text = format!(
            "name = \"n\"\n{head}\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"
             [[host]]\nname = \"jive\"\nagent = \"https://10.77.0.2:3650\"
             [[flow]]\nname = \"rec\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://:2630\"\nto = \"null\"\n{recv}
             [[flow]]\nname = \"send\"\nhost = \"ef\"\ncommand = \"send\"\nsource = \"a\"\nto = \"udp://10.77.0.2:2630\"\n{send}"
        );
        let session: Session = toml::from_str(&text).map_err(|error| error.to_string())?;
        session.check_paths().map_err(|error| error.to_string())?;
        Ok(session)
    }

    #[test]
    fn a_path_without_congestion_control_is_warned_of_and_then_refused() {
        let old = session("", "", "").unwrap();
        let [warning] = &old.warnings()[..] else {
            panic!("{:?}", old.warnings());
        };
        assert!(warning.problem.contains("safe = \"shared\""), "{warning}");
        assert_eq!(warning.flow.as_ref().unwrap().as_str(), "send");
        let refused = |head: &str, send: &str, recv: &str| session(head, send, recv).unwrap_err();
        let said = refused("version = 2", "", "");
        assert!(
            said.contains("flow send") && said.contains("safe = \"shared\""),
            "{said}"
        );
        for (head, send, recv, says) in [
            ("version = 3", "", "", "unknown version 3"),
            ("version = 2", "safe = \"reserved\"", "", "reserved-by"),
            ("version = 2", "safe = \"shared\"", "", "around = \"8s\""),
            ("", "safe = \"strict\"", "", "around = \"8s\""),
            (
                "",
                "safe = \"off\"\nreserved-by = \"us\"",
                "",
                "need safe = \"reserved\"",
            ),
            (
                "",
                "safe = \"reserved\"\nkey-file = \"k\"",
                "",
                "at both ends",
            ),
            (
                "",
                "safe = \"reserved\"",
                "key-file = \"k\"\nsafe = true",
                "at both ends",
            ),
            (
                "",
                "safe = \"reserved\"",
                "safe = false",
                "its receiver rec has safe = false",
            ),
        ] {
            let said = refused(head, send, recv);
            assert!(said.contains(says), "{head} {send} {recv}: {said}");
        }
        let elsewhere = session("", "safe = \"reserved\"\nto = \"udp://10.9.9.9:1\"", "");
        assert!(elsewhere.is_err(), "two keys `to`");
        assert!(
            session("version = 2", "safe = \"off\"", "")
                .unwrap()
                .warnings()
                .is_empty()
        );
        session("version = 2\naround = \"8s\"", "safe = \"shared\"", "").unwrap();
    }

    #[test]
    fn both_ends_get_reports_and_one_key() {
        let reserved = "safe = \"reserved\"\nreserved-by = \"the project\"\nreserved-until = \"2027-01-01T00:00:00Z\"";
        let options = |send: &str, recv: &str| {
            let mut session = session("version = 2", send, recv).unwrap();
            session.key = Some(new_key());
            let flows = session.flows_of("run", None).unwrap().into_iter();
            let flows: Vec<Options> = flows.map(|(_, flow)| flow.options).collect();
            (session, flows)
        };
        let (session, flows) = options(reserved, "");
        let key = Value::from(session.key.clone().unwrap());
        assert_eq!(
            (&flows[0][SAFE], &flows[0][KEY_FILE]),
            (&Value::Bool(true), &key)
        );
        assert_eq!(
            (&flows[1][SAFE], &flows[1][KEY_FILE]),
            (&"reserved".into(), &key)
        );
        assert!(!flows[1].contains_key("reserved-by"));
        let [path] = &session.paths()[..] else {
            panic!("{:?}", session.paths());
        };
        assert_eq!(
            path.reservation().unwrap(),
            "the path to udp://10.77.0.2:2630 is reserved by the project until 2027-01-01T00:00:00Z"
        );
        assert_ne!(new_key(), new_key());
        // Own keys stay.
        let own = "key-file = \"k\"";
        let (_, flows) = options(&format!("{reserved}\n{own}"), own);
        assert_eq!(
            (&flows[0][KEY_FILE], &flows[1][KEY_FILE]),
            (&"k".into(), &"k".into())
        );
        let (_, flows) = options("safe = \"off\"", "");
        assert!(flows.iter().all(|options| !options.contains_key(KEY_FILE)));
        assert!(!flows[0].contains_key(SAFE));
    }

    /// Many flows do not get around the weight of one.
    #[test]
    fn flows_of_one_path_share_their_weight() {
        let of = |count: usize, weight: &str, change: &dyn Fn(String) -> String| {
            let flow = |number: usize| {
                format!(
                    "[[flow]]\nname = \"s{number}\"\nhost = \"ef\"\ncommand = \"send\"\nsource = \"a\"\nto = \"udp://10.77.0.2:{}\"\nsafe = \"shared\"\nkey-file = \"k\"\n{weight}\n",
                    3000 + 2 * number
                )
            };
            let flows: String = (0..count).map(flow).collect();
            let text = format!(
                "name = \"n\"\naround = \"8s\"\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"\n{flows}"
            );
            let session: Session = toml::from_str(&change(text)).unwrap();
            session.check_paths().map_err(|error| error.to_string())?;
            let flows = session.flows_of("run", None).unwrap().into_iter();
            let weights = flows.map(|(_, flow)| flow.options.get(FLOWS).and_then(Value::as_f64));
            Ok(weights.collect::<Vec<Option<f64>>>())
        };
        let more = |count: usize, weight: &str| of(count, weight, &|text| text);
        assert_eq!(more(1, "").unwrap(), [None]);
        assert_eq!(more(2, "").unwrap(), [Some(1.5); 2]);
        assert_eq!(more(5, "").unwrap(), [Some(0.6); 5]);
        assert_eq!(more(50, "").unwrap(), [Some(0.06); 50]);
        assert_eq!(more(2, "weight = 2").unwrap(), [Some(2.0); 2]);
        let strict = |text: String| text.replace("shared", "strict");
        assert_eq!(of(2, "", &strict).unwrap(), [Some(0.5); 2]);
        let mixed = |text: String| text.replacen("shared", "strict", 1);
        assert_eq!(of(2, "", &mixed).unwrap(), [Some(0.5), Some(1.5)]);
        let said: String = more(6, "weight = 2").unwrap_err();
        assert!(said.contains("more than 10 TCP flows together"), "{said}");
    }

    /// A live correlator sends reports, too; a receiver beyond the session is not known to.
    #[test]
    fn a_sender_needs_a_receiver_with_reports() {
        let text = "name = \"n\"\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"
            [[flow]]\nname = \"send\"\nhost = \"ef\"\ncommand = \"send\"\nsource = \"a\"\nto = \"udp://10.77.0.2:2630\"\nsafe = \"reserved\"";
        let session: Session = toml::from_str(text).unwrap();
        let said = session.check_paths().unwrap_err().to_string();
        assert!(
            said.contains("sends it reports: give the `key-file`"),
            "{said}"
        );
        let live = "[[host]]\nname = \"jive\"\nagent = \"https://10.77.0.2:3650\"
            [[flow]]\nname = \"fx\"\nhost = \"jive\"\ncommand = \"correlate\"\nlive = true\nfiles = [\"udp://:2630\", \"tcp://:2700\"]";
        let mut session: Session = toml::from_str(&format!("{text}\n{live}")).unwrap();
        session.check_paths().unwrap();
        session.key = Some(new_key());
        let flows = session.flows_of("run", None).unwrap().into_iter();
        let flows: Vec<Options> = flows.map(|(_, flow)| flow.options).collect();
        let correlates = |options: &&Options| options.contains_key("live");
        let correlator = flows.iter().find(correlates).unwrap();
        assert_eq!(correlator[SAFE], Value::Bool(true));
        let keys: Vec<&Value> = flows.iter().map(|options| &options[KEY_FILE]).collect();
        assert_eq!(keys[0], keys[1]);
    }
}

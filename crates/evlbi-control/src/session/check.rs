//! Check of a whole session before it starts: agents, clocks, flows, links and disks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter::zip;

use evlbi_net::run::explain;
use evlbi_net::transport::Url;
use evlbi_wire::units::{show_bytes, show_rate, show_seconds};
use serde::Serialize;
use serde_json::Value;

use super::hosts::{Connected, Hosts};
use super::plan::{FlowPlan, Host, Scan, Session, made_ready};
use crate::commands::Known;
use crate::fleet::Checked;
use crate::flow::{FlowId, NewFlow};
use crate::identity::Role;
use crate::time::now;
use crate::{Problem, Reply};

/// Problem with a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Name of the host.
    pub host: String,
    /// Name of the flow in the session; `None` if the problem concerns the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowId>,
    /// Description, with what to do about it.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow: String = self.flow.iter().map(|flow| format!(" {flow}")).collect();
        write!(f, "{}{flow}: {}", self.host, self.problem)
    }
}

/// State of a host before a session.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostChecked {
    /// Name of the host.
    pub host: String,
    /// Offset of its clock from that of this host, in seconds; positive if it is ahead.
    pub clock_ahead_s: f64,
    /// Error bound of the offset, in seconds.
    pub clock_error_s: f64,
    /// Free space for recordings in bytes, if known.
    pub free_bytes: Option<u64>,
}

/// Result of the check of a session.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Findings {
    /// The hosts that answered.
    pub hosts: Vec<HostChecked>,
    /// Problems with the session.
    pub problems: Vec<Finding>,
    /// Paths without the statement that a later version of session files requires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Finding>,
    /// Losses at which the flows under SafeUDP shed and stop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limits>,
}

/// Losses at which a flow under SafeUDP sheds and stops.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Name of the host that sends.
    pub host: String,
    /// Name of the flow in the session.
    pub flow: FlowId,
    /// The losses, as `plan safe` has them.
    pub safe: Value,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: sheds", self.host, self.flow)?;
        let rows = self.safe["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let at = |event: &'static str| {
            let rows = rows.iter().filter(move |row| row["event"] == event);
            rows.filter_map(|row| Some([row["rtt_s"].as_f64()?, row["loss_event_rate"].as_f64()?]))
        };
        for ([round_trip, shed], [_, stop]) in zip(at("shed"), at("stop")) {
            let round_trip = show_seconds(round_trip);
            write!(
                f,
                " from {shed:.1e} loss events per datagram on over {round_trip} (stops from {stop:.1e} on),"
            )?;
        }
        let severe = self.safe["severe_loss"].as_f64().unwrap_or(0.0) * 100.0;
        write!(f, " if more than {severe} % are lost, over any path")
    }
}

/// Checks a session.
pub(crate) async fn check(session: &Session, run: &str, hosts: &Hosts) -> Findings {
    let mut checker = Checker::new(session, run);
    for host in &hosts.hosts {
        if let Err(problem) = checker.check_host(host).await {
            checker.findings.add(&host.plan.name, None, problem.error);
        }
    }
    let plans: Vec<&Host> = hosts.hosts.iter().map(|host| &host.plan).collect();
    for scan in session.parts() {
        checker.check_capacity(scan, &plans);
    }
    checker.check_names();
    checker.check_reservations(now());
    checker.findings.warnings = session.warnings();
    checker.findings
}

impl Findings {
    /// Adds limits of a flow; those of several scans are reported once.
    fn limit(&mut self, host: &str, flow: &FlowId, safe: Value) {
        let limits = Limits {
            host: host.to_owned(),
            flow: flow.clone(),
            safe,
        };
        if !self.limits.contains(&limits) {
            self.limits.push(limits);
        }
    }

    /// Adds a problem. Scans with the same flows have the same problems, which are reported once.
    fn add(&mut self, host: &str, flow: Option<&FlowId>, problem: String) {
        let found = Finding {
            host: host.to_owned(),
            flow: flow.cloned(),
            problem,
        };
        if !self.problems.contains(&found) {
            self.problems.push(found);
        }
    }
}

/// Check of a session in progress.
struct Checker<'s> {
    session: &'s Session,
    run: &'s str,
    findings: Findings,
    /// Bit rates of flows, in bit/s.
    rates: BTreeMap<FlowId, u64>,
    /// Bytes that hosts record in the scans that were checked.
    recorded: BTreeMap<String, f64>,
}

impl<'s> Checker<'s> {
    fn new(session: &'s Session, run: &'s str) -> Checker<'s> {
        Checker {
            session,
            run,
            findings: Findings::default(),
            rates: BTreeMap::new(),
            recorded: BTreeMap::new(),
        }
    }

    /// Checks the agent of a host, its clock, the role of the token, and its flows.
    async fn check_host(&mut self, host: &Connected) -> Reply<()> {
        let name = &host.plan.name;
        // The first request opens the connection.
        host.agent.about().await?;
        let sent = now();
        let about = host.agent.about().await?;
        let error = (now() - sent) / 2.0;
        let ahead = about.about.time - (sent + error);
        if let Some(problem) = clock_off(self.session, ahead, error) {
            self.findings.add(name, None, problem);
        }
        if about.your_role != Role::Operate {
            let problem = "the token allows only viewing: give the token for the role operate";
            self.findings.add(name, None, problem.into());
        }
        self.findings.hosts.push(HostChecked {
            host: name.clone(),
            clock_ahead_s: ahead,
            clock_error_s: error,
            free_bytes: about.about.storage.map(|storage| storage.free_bytes),
        });
        // Scans do not run at the same time, so each is checked separately.
        for scan in self.session.parts() {
            match self.checked(scan, host).await {
                Ok(flows) => {
                    for (flow, checked) in flows {
                        for problem in checked.problems {
                            self.findings.add(name, Some(flow), problem);
                        }
                        if let Some(safe) = checked.safe {
                            self.findings.limit(name, flow, safe);
                        }
                        self.rates
                            .extend(checked.rate_bps.map(|rate| (flow.clone(), rate)));
                    }
                }
                Err(problem) => self.findings.add(name, None, problem.error),
            }
        }
        Ok(())
    }

    /// Finds recordings of several scans with the same name.
    fn check_names(&mut self) {
        let mut seen = BTreeSet::new();
        for scan in self.session.parts() {
            // Problems of the flows themselves were found before.
            for (plan, flow) in self.session.flows_of(self.run, scan).unwrap_or_default() {
                if let Some(to) = Known::of(&flow.command, &flow.options).recording()
                    && !seen.insert((&plan.host, to.to_owned()))
                {
                    let problem =
                        format!("{to} is recorded more than once: put {{scan}} into the name");
                    self.findings.add(&plan.host, Some(&plan.name), problem);
                }
            }
        }
    }

    /// Finds paths whose reservation ends before a scan.
    fn check_reservations(&mut self, begin: f64) {
        for scan in self.session.parts() {
            let end = scan.map_or(begin, |scan| {
                scan.starts(begin, self.session.around) + scan.duration.as_secs_f64()
            });
            for plan in self.session.plans_of(scan) {
                if let Some(until) = plan.reserved_until
                    && (until.as_nanosecond() as f64) * 1e-9 < end
                {
                    let when = scan.map_or_else(
                        || "now".to_owned(),
                        |scan| format!("the end of scan {}", scan.name),
                    );
                    let problem = format!("its path is reserved until {until}, before {when}");
                    self.findings.add(&plan.host, Some(&plan.name), problem);
                }
            }
        }
    }

    /// Lets the agent check its flows of a scan.
    async fn checked(
        &self,
        scan: Option<&Scan>,
        host: &Connected,
    ) -> Reply<Vec<(&'s FlowId, Checked)>> {
        let flows = self.session.flows_of(self.run, scan);
        let flows = flows.map_err(|error| Problem::unprocessable(explain(&error)))?;
        let begin = now();
        let here = flows.into_iter();
        let here = here.filter(|(plan, _)| plan.host == host.plan.name);
        let here = here.map(|(plan, flow)| (&plan.name, self.in_time(scan, plan, flow, begin)));
        let (names, flows): (Vec<&FlowId>, Vec<NewFlow>) = here.unzip();
        // Senders of preceding scans in the list that send at the same time count as well; their problems are reported there.
        let mut all = match scan {
            Some(scan) => self.senders_beside(scan, host, begin),
            None => Vec::new(),
        };
        let others = all.len();
        all.extend(flows);
        let found = host.agent.check(all).await?;
        Ok(zip(names, found.into_iter().skip(others)).collect())
    }

    /// Returns a flow with its start in a scan. A sender whose own start is earlier starts to send when it is started.
    fn in_time(&self, scan: Option<&Scan>, plan: &FlowPlan, flow: NewFlow, begin: f64) -> NewFlow {
        // An agent has its own name for its host.
        let flow = NewFlow { host: None, ..flow };
        let Some(scan) = scan else { return flow };
        let (listens, around) = (plan.known().listens(), self.session.around);
        let start = scan.starts(begin, around);
        let (due, mut flow) = made_ready(flow, start, around.as_secs_f64(), listens);
        let own = flow.options.get("start").and_then(|start| start.as_str());
        let own = own.and_then(|start| start.parse::<jiff::Timestamp>().ok());
        let due = jiff::Timestamp::from_nanosecond((due * 1e9) as i128);
        if let (Some(own), Ok(due)) = (own, due)
            && own < due
        {
            let due = due.to_string().into();
            flow.options.insert("start".to_owned(), due);
        }
        flow
    }

    /// Returns the senders of a host in preceding scans of the list that overlap with this one.
    fn senders_beside(&self, scan: &Scan, host: &Connected, begin: f64) -> Vec<NewFlow> {
        let starts = |scan: &Scan| scan.starts(begin, self.session.around);
        let ends = |scan: &Scan| starts(scan) + scan.duration.as_secs_f64();
        let before = self.session.scans.iter();
        let before = before.take_while(|other| other.name != scan.name);
        let beside =
            before.filter(|other| starts(other) < ends(scan) && starts(scan) < ends(other));
        let flows = beside.flat_map(|other| {
            let flows = self.session.flows_of(self.run, Some(other));
            let is_here = |plan: &FlowPlan| plan.host == host.plan.name && !plan.known().listens();
            let here = flows.unwrap_or_default().into_iter();
            let here = here.filter(move |(plan, _)| is_here(plan));
            here.map(move |(plan, flow)| self.in_time(Some(other), plan, flow, begin))
        });
        flows.collect()
    }

    /// Compares rates with links, and recordings with free space.
    fn check_capacity(&mut self, scan: Option<&Scan>, hosts: &[&Host]) {
        let flows: Vec<&FlowPlan> = self.session.plans_of(scan).collect();
        let rates = &self.rates;
        let rate = |flow: &FlowPlan| rates.get(&flow.name).copied().unwrap_or(0);
        for host in hosts {
            let name = &host.name;
            let own = || flows.iter().filter(|flow| flow.host == *name);
            let out: u64 = own().map(|flow| rate(flow)).sum();
            let sent = flows.iter();
            let sent = sent.filter_map(|flow| Some((rate(flow), flow.known().destination()?)));
            let is_here = |to: &Url| to.host().is_some_and(|to| host.has_address(&to.name));
            let arriving = sent.filter(|(_, to)| is_here(to));
            let arriving: Vec<(u64, Url)> = arriving.collect();
            let into: u64 = arriving.iter().map(|(rate, _)| rate).sum();
            if let Some(link) = host.link {
                for (direction, rate) in [("outbound", out), ("inbound", into)] {
                    if rate > link.get() {
                        let rate = show_rate(rate as f64);
                        let problem =
                            format!("{rate} of {direction} data exceed its link of {link}bit/s");
                        self.findings.add(name, None, problem);
                    }
                }
            }
            let is_recorded = |to: &Url| {
                let recording = own().filter(|flow| flow.known().recording().is_some());
                let mut streams = recording.flat_map(|flow| flow.known().streams());
                streams.any(|own| own.is_some_and(|own| own.takes(to)))
            };
            let recorded = arriving.iter().filter(|(_, to)| is_recorded(to));
            let per_second: u64 = recorded.map(|(rate, _)| rate / 8).sum();
            let mut found = self.findings.hosts.iter();
            let found = found.find(|found| found.host == *name);
            let free = found.and_then(|found| found.free_bytes);
            if let (Some(scan), Some(free)) = (scan, free) {
                let all = self.recorded.entry(name.clone()).or_default();
                let before = *all;
                *all += per_second as f64 * scan.duration.as_secs_f64();
                let needed = *all;
                // Reported once, for the scan in which the disk becomes full.
                if needed > free as f64 && before <= free as f64 {
                    let (needed, free) = (show_bytes(needed), show_bytes(free as f64));
                    let scan = &scan.name;
                    let problem = format!(
                        "recordings need {needed} up to the end of scan {scan}, and {free} are free"
                    );
                    self.findings.add(name, None, problem);
                }
            }
        }
    }
}

/// Returns the problem of a clock that is `ahead` seconds ahead of this host's, known to within `error`.
fn clock_off(session: &Session, ahead: f64, error: f64) -> Option<String> {
    let is_off = ahead.abs() - error > session.clocks.as_secs_f64();
    let side = if ahead > 0.0 { "ahead of" } else { "behind" };
    let by = show_seconds(ahead.abs());
    is_off.then(|| format!("its clock is {by} {side} this host's: synchronise both with NTP, or raise `clocks` in the session"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stations that send to a host which records both, in two scans of ten seconds.
    fn session(link: &str, to: &str) -> Session {
        let host = |name: &str, number: u8, rest: &str| {
            format!(
                "[[host]]\nname = \"{name}\"\nagent = \"https://10.77.0.{number}:3650\"\n{rest}\n"
            )
        };
        let flows = |station: &str, port: u16| {
            format!(
                "[[flow]]\nname = \"{station}\"\nhost = \"{station}\"\ncommand = \"send\"\nsource = \"a\"\nto = \"udp://10.77.0.1:{port}\"
                 [[flow]]\nname = \"rec-{station}\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://:{port}\"\nto = \"{}\"\n",
                to.replace("STATION", station)
            )
        };
        let scan = |name: &str| format!("[[scan]]\nname = \"{name}\"\nduration = \"10s\"\n");
        let text = [
            "name = \"n\"\nclocks = \"500ms\"\n".to_owned(),
            host("jive", 1, link),
            host("ef", 2, link),
            host("jb", 3, link),
            scan("s1"),
            scan("s2"),
            flows("ef", 2630),
            flows("jb", 2631),
        ];
        toml::from_str(&text.concat()).unwrap()
    }

    /// Lists the problems if each station sends 64 Mbit/s and `free` bytes are free for recordings.
    fn found(session: &Session, free: u64) -> Vec<String> {
        let mut checker = Checker::new(session, "run");
        checker.findings.hosts.push(HostChecked {
            host: "jive".to_owned(),
            clock_ahead_s: 0.0,
            clock_error_s: 0.0,
            free_bytes: Some(free),
        });
        checker.rates = ["ef", "jb"]
            .map(|flow| (flow.parse().unwrap(), 64_000_000))
            .into();
        let hosts: Vec<&Host> = session.hosts.iter().collect();
        for scan in session.parts() {
            checker.check_capacity(scan, &hosts);
        }
        checker.check_names();
        let problems = checker.findings.problems.into_iter();
        problems
            .map(|found| format!("{}: {}", found.host, found.problem))
            .collect()
    }

    #[test]
    fn links_carry_all_flows() {
        let wide = session("link = \"128M\"", "{scan}-STATION.vdif");
        assert_eq!(found(&wide, 1 << 40), [""; 0]);
        let found = found(&session("link = \"127M\"", "{scan}-STATION.vdif"), 1 << 40);
        // Both scans have the problem, which is reported once.
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("jive: 128")
                && found[0].ends_with("of inbound data exceed its link of 127Mbit/s"),
            "{found:?}"
        );
    }

    #[test]
    fn disks_hold_the_recordings_of_all_scans() {
        let session = session("", "{scan}-STATION.vdif");
        // Two streams of 8 MB/s for 20 s.
        assert_eq!(found(&session, 320_000_000), [""; 0]);
        for (free, scan) in [(319_999_999, "s2"), (159_999_999, "s1")] {
            let found = found(&session, free);
            let says = format!("up to the end of scan {scan}");
            assert!(
                found.len() == 1 && found[0].contains(&says),
                "{free}: {found:?}"
            );
        }
    }

    /// A recording from the highest port counts.
    #[test]
    fn the_highest_port_is_a_port() {
        let text = session("", "{scan}-STATION.vdif");
        let mut session = text;
        for flow in &mut session.flows {
            for key in ["from", "to"] {
                if let Some(url) = flow.options.get(key).and_then(|url| url.as_str()) {
                    let url = url.replace(":2631", ":65535");
                    flow.options.insert(key.to_owned(), url.into());
                }
            }
        }
        assert_eq!(found(&session, 159_999_999).len(), 1);
    }

    /// Agents check the real time of sending, which is not before the sender is started.
    #[test]
    fn a_sender_does_not_send_before_its_scan() {
        let text = session("", "{scan}-STATION.vdif");
        let scan = &text.scans[0];
        let begin = 1.7e9;
        let start = |asked: Option<&str>| {
            let mut flow = text.flows_of("run", Some(scan)).unwrap().remove(0);
            let asked = asked.map(|asked| ("start".to_owned(), asked.into()));
            flow.1.options.extend(asked);
            let (plan, flow) = flow;
            let timed = Checker::new(&text, "run").in_time(Some(scan), plan, flow, begin);
            let start = timed.options["start"].as_str().unwrap();
            let start: jiff::Timestamp = start.parse().unwrap();
            start.as_nanosecond() as f64 * 1e-9 - begin
        };
        let around = text.around.as_secs_f64();
        let scan_start = scan.starts(0.0, text.around);
        assert!((start(None) - scan_start).abs() < 1e-3);
        let early = start(Some("2020-01-01T00:00:00Z"));
        assert!((early - (scan_start - around)).abs() < 1e-3, "{early}");
        let later = start(Some("2023-11-15T00:00:00Z"));
        assert!(later > scan_start, "{later}");
    }

    #[test]
    fn a_file_is_recorded_once() {
        let found = found(&session("", "STATION.vdif"), 1 << 40);
        assert_eq!(
            found,
            ["ef", "jb"].map(|name| format!(
                "jive: {name}.vdif is recorded more than once: put {{scan}} into the name"
            ))
        );
    }

    #[test]
    fn clocks_agree_within_the_allowed_offset() {
        let session = session("", "{scan}-STATION.vdif");
        for (ahead, error, side) in [
            (0.5, 0.0, None),
            (0.51, 0.0, Some("510")),
            (-2.0, 0.1, Some("behind")),
            (2.0, 0.1, Some("ahead")),
            // The error is too large to decide.
            (2.0, 1.6, None),
        ] {
            let found = clock_off(&session, ahead, error);
            assert_eq!(found.is_some(), side.is_some(), "{ahead}: {found:?}");
            if let (Some(found), Some(side)) = (found, side) {
                assert!(found.contains(side), "{ahead}: {found}");
            }
        }
    }
}

//! A session is looked at as a whole before anything of it starts: agents, clocks, flows, links and disks.

use std::collections::BTreeMap;

use serde::Serialize;

use super::hosts::{Connected, Hosts};
use super::plan::{FlowPlan, Host, Scan, Session};
use super::timetable::made_ready;
use evlbi_net::transport;

use crate::control::Problem;
use crate::control::commands::Known;
use crate::control::fleet::Checked;
use crate::control::flow::{FlowId, NewFlow};
use crate::control::identity::Role;
use crate::units::{now, show_bytes, show_rate, show_seconds};

/// Something that stands against a session.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowId>,
    pub problem: String,
}

/// What was found of a host.
#[derive(Clone, Debug, Serialize)]
pub struct HostChecked {
    pub host: String,
    /// How far its clock is ahead of this one's, in seconds, and how certain that is.
    pub clock_ahead_s: f64,
    pub clock_error_s: f64,
    pub free_bytes: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    pub hosts: Vec<HostChecked>,
    pub problems: Vec<Finding>,
}

/// Looks at everything.
pub async fn check(session: &Session, run: &str, hosts: &Hosts) -> Findings {
    let mut findings = Findings::default();
    let mut rates: BTreeMap<FlowId, u64> = BTreeMap::new();
    let scans: Vec<Option<&Scan>> = match session.scans.is_empty() {
        true => vec![None],
        false => session.scans.iter().map(Some).collect(),
    };
    for host in &hosts.hosts {
        let name = &host.plan.name;
        if let Err(problem) = look_at(session, host, &mut findings).await {
            findings.add(name, None, problem.error);
            continue;
        }
        // Scans do not run at once: each is looked at by itself.
        for scan in &scans {
            match checked(session, run, *scan, host).await {
                Ok(flows) => {
                    for (plan, checked) in flows {
                        for problem in checked.problems {
                            findings.add(name, Some(&plan.name), problem);
                        }
                        rates.extend(checked.rate_bps.map(|rate| (plan.name.clone(), rate)));
                    }
                }
                Err(problem) => findings.add(name, None, problem.error),
            }
        }
    }
    let plans: Vec<&Host> = hosts.hosts.iter().map(|host| &host.plan).collect();
    let mut recorded = BTreeMap::new();
    for scan in &scans {
        weigh(session, *scan, &plans, &rates, &mut recorded, &mut findings);
    }
    same_files(session, run, &scans, &mut findings);
    // Of several scans with the same flows the same is found.
    let mut seen = std::collections::BTreeSet::new();
    findings.problems.retain(|found| {
        seen.insert((
            found.host.clone(),
            found.flow.clone(),
            found.problem.clone(),
        ))
    });
    findings
}

impl Findings {
    fn add(&mut self, host: &str, flow: Option<&FlowId>, problem: String) {
        self.problems.push(Finding {
            host: host.to_owned(),
            flow: flow.cloned(),
            problem,
        });
    }
}

/// The agent, its clock and what its token allows.
async fn look_at(
    session: &Session,
    host: &Connected,
    findings: &mut Findings,
) -> Result<(), Problem> {
    let name = &host.plan.name;
    // The first one makes the connection.
    host.client.about().await?;
    let sent = now();
    let about = host.client.about().await?;
    let error = (now() - sent) / 2.0;
    let ahead = about.about.time - (sent + error);
    if let Some(problem) = clock_off(session, ahead, error) {
        findings.add(name, None, problem);
    }
    if about.your_role != Role::Operate {
        findings.add(
            name,
            None,
            "the token may watch only; the one for the role operate is needed".into(),
        );
    }
    findings.hosts.push(HostChecked {
        host: name.clone(),
        clock_ahead_s: ahead,
        clock_error_s: error,
        free_bytes: about.about.storage.map(|storage| storage.free_bytes),
    });
    Ok(())
}

/// What is to be said of a clock that is so many seconds ahead of this host's, certain to within `error`.
fn clock_off(session: &Session, ahead: f64, error: f64) -> Option<String> {
    let is_off = ahead.abs() - error > session.clocks.as_secs_f64();
    let (side, by) = (
        if ahead > 0.0 { "ahead" } else { "behind" },
        show_seconds(ahead.abs()),
    );
    is_off.then(|| format!("its clock is {by} {side} of this host's; set both by NTP, or allow more with `clocks` in the session"))
}

/// Recordings of several scans under one name.
fn same_files(session: &Session, run: &str, scans: &[Option<&Scan>], findings: &mut Findings) {
    let mut seen = std::collections::BTreeSet::new();
    for scan in scans {
        // What is wrong with the flows themselves was found before.
        for (plan, flow) in session.flows_of(run, *scan).unwrap_or_default() {
            if let Some(to) = Known::of(&flow.command, &flow.options).recording()
                && !seen.insert((plan.host.clone(), to.to_owned()))
            {
                findings.add(
                    &plan.host,
                    Some(&plan.name),
                    format!("{to} is recorded more than once; put {{scan}} into the name"),
                );
            }
        }
    }
}

/// What the agent finds of the flows of a scan that are its.
async fn checked<'a>(
    session: &'a Session,
    run: &str,
    scan: Option<&Scan>,
    host: &Connected,
) -> Result<Vec<(&'a FlowPlan, Checked)>, Problem> {
    let flows = session.flows_of(run, scan);
    let flows = flows.map_err(|error| Problem::unprocessable(crate::output::explain(&error)))?;
    let begin = now();
    let here = |plan: &FlowPlan| plan.host == host.plan.name;
    let here = flows.into_iter().filter(|(plan, _)| here(plan));
    let here = here.map(|(plan, flow)| (plan, in_time(session, scan, plan, flow, begin)));
    let (plans, flows): (Vec<&FlowPlan>, Vec<NewFlow>) = here.unzip();
    // What earlier scans of the list send at the same time counts as well, and is told of with those.
    let mut all = senders_beside(session, run, scan, host, begin);
    let others = all.len();
    all.extend(flows);
    let found = host.client.check(&all).await?;
    Ok(plans
        .into_iter()
        .zip(found.into_iter().skip(others))
        .collect())
}

/// A flow with the time that it has in a scan. A sender whose own start is before it is started sends then.
fn in_time(
    session: &Session,
    scan: Option<&Scan>,
    plan: &FlowPlan,
    flow: NewFlow,
    begin: f64,
) -> NewFlow {
    let Some(scan) = scan else { return flow };
    let listens = plan.known().listens();
    let around = session.around.as_secs_f64();
    let (due, mut flow) = made_ready(flow, scan.starts(begin, session.around), around, listens);
    let own = flow.options.get("start").and_then(|start| start.as_str());
    let own = own.and_then(|start| start.parse::<jiff::Timestamp>().ok());
    let due = jiff::Timestamp::from_nanosecond((due * 1e9) as i128);
    if let (Some(own), Ok(due)) = (own, due)
        && own < due
    {
        flow.options
            .insert("start".to_owned(), due.to_string().into());
    }
    flow
}

/// Senders of a host in scans before this one in the list that last at the same time.
fn senders_beside(
    session: &Session,
    run: &str,
    scan: Option<&Scan>,
    host: &Connected,
    begin: f64,
) -> Vec<NewFlow> {
    let Some(scan) = scan else {
        return Vec::new();
    };
    let times = |scan: &Scan| {
        let start = scan.starts(begin, session.around);
        (start, start + scan.duration.as_secs_f64())
    };
    let (start, end) = times(scan);
    let before = session.scans.iter();
    let before = before.take_while(|other| other.name != scan.name);
    let beside = before.filter(|other| {
        let (other_start, other_end) = times(other);
        other_start < end && start < other_end
    });
    let flows = beside.flat_map(|other| {
        let flows = session.flows_of(run, Some(other)).unwrap_or_default();
        let here = flows
            .into_iter()
            .filter(|(plan, _)| plan.host == host.plan.name && !plan.known().listens());
        here.map(|(plan, flow)| in_time(session, Some(other), plan, flow, begin))
            .collect::<Vec<NewFlow>>()
    });
    flows.collect()
}

/// Rates against links, and what is recorded against what is free.
fn weigh(
    session: &Session,
    scan: Option<&Scan>,
    hosts: &[&Host],
    rates: &BTreeMap<FlowId, u64>,
    recorded_before: &mut BTreeMap<String, f64>,
    findings: &mut Findings,
) {
    let flows = session.flows.iter().filter(|flow| {
        flow.scans.is_empty() || scan.is_none_or(|scan| flow.scans.contains(&scan.name))
    });
    let flows: Vec<&FlowPlan> = flows.collect();
    for host in hosts {
        let name = &host.name;
        let rate = |flow: &&&FlowPlan| rates.get(&flow.name).copied().unwrap_or(0);
        let out: u64 = flows
            .iter()
            .filter(|flow| flow.host == *name)
            .map(|flow| rate(&flow))
            .sum();
        let arriving = flows
            .iter()
            .filter_map(|flow| Some((rate(&flow), flow.known().destination()?)))
            .filter(|(_, to)| host.has_address(&to.name));
        let arriving: Vec<(u64, transport::Host)> = arriving.collect();
        let into: u64 = arriving.iter().map(|(rate, _)| rate).sum();
        if let Some(link) = host.link {
            for (way, rate) in [("leave it", out), ("come to it", into)] {
                if rate > link.get() {
                    let rate = show_rate(rate as f64);
                    findings.add(
                        name,
                        None,
                        format!("{rate} of data are to {way}, and its link carries {link}bit/s"),
                    );
                }
            }
        }
        let is_recorded = |port: u16| {
            let mut recording = flows
                .iter()
                .filter(|flow| flow.host == *name && flow.known().recording().is_some());
            recording.any(|flow| {
                let streams = flow.known().streams();
                streams.iter().flatten().any(|own| own.has_port(port))
            })
        };
        let recorded = arriving.iter().filter(|(_, to)| is_recorded(to.port));
        let per_second: u64 = recorded.map(|(rate, _)| rate / 8).sum();
        let free = findings
            .hosts
            .iter()
            .find(|found| found.host == *name)
            .and_then(|found| found.free_bytes);
        if let (Some(scan), Some(free)) = (scan, free) {
            let all = recorded_before.entry(name.clone()).or_default();
            let before = *all;
            *all += per_second as f64 * scan.duration.as_secs_f64();
            let needed = *all;
            // Told once: of the scan in which it is full.
            if needed > free as f64 && before <= free as f64 {
                findings.add(
                    name,
                    None,
                    format!(
                        "{} are to be recorded up to the end of scan {}, and {} are free",
                        show_bytes(needed),
                        scan.name,
                        show_bytes(free as f64)
                    ),
                );
            }
        }
    }
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

    /// What is found when each station sends 64 Mbit/s and `free` bytes are free where they are recorded.
    fn found(session: &Session, free: u64) -> Vec<String> {
        let mut findings = Findings::default();
        findings.hosts.push(HostChecked {
            host: "jive".to_owned(),
            clock_ahead_s: 0.0,
            clock_error_s: 0.0,
            free_bytes: Some(free),
        });
        let rates = ["ef", "jb"].map(|flow| (flow.parse().unwrap(), 64_000_000));
        let rates = BTreeMap::from(rates);
        let hosts: Vec<&Host> = session.hosts.iter().collect();
        let scans: Vec<Option<&Scan>> = session.scans.iter().map(Some).collect();
        let mut recorded = BTreeMap::new();
        for scan in &scans {
            weigh(session, *scan, &hosts, &rates, &mut recorded, &mut findings);
        }
        same_files(session, "run", &scans, &mut findings);
        let problems = findings.problems.into_iter();
        problems
            .map(|found| format!("{}: {}", found.host, found.problem))
            .collect()
    }

    #[test]
    fn links_carry_what_is_sent() {
        let wide = session("link = \"128M\"", "{scan}-STATION.vdif");
        assert_eq!(found(&wide, 1 << 40), [""; 0]);
        let found = found(&session("link = \"127M\"", "{scan}-STATION.vdif"), 1 << 40);
        // Once per scan; `check` reports equal problems once.
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("jive: 128")
                && found[0].ends_with("are to come to it, and its link carries 127Mbit/s"),
            "{found:?}"
        );
    }

    #[test]
    fn disks_hold_what_is_recorded_in_all_scans() {
        let session = session("", "{scan}-STATION.vdif");
        // Two streams of 8 MB/s for 20 s.
        assert_eq!(found(&session, 320_000_000), [""; 0]);
        for (free, scan) in [(319_999_999, "s2"), (159_999_999, "s1")] {
            let found = found(&session, free);
            let says = format!("recorded up to the end of scan {scan}");
            assert!(
                found.len() == 1 && found[0].contains(&says),
                "{free}: {found:?}"
            );
        }
    }

    /// The last port there is can be recorded from.
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

    /// What the agents weigh is when a sender sends in truth: not before it is started, whatever start it asks for.
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
            let timed = in_time(&text, Some(scan), plan, flow, begin);
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
                "jive: {name}.vdif is recorded more than once; put {{scan}} into the name"
            ))
        );
    }

    #[test]
    fn clocks_agree_within_what_is_allowed() {
        let session = session("", "{scan}-STATION.vdif");
        for (ahead, error, side) in [
            (0.5, 0.0, None),
            (0.51, 0.0, Some("510")),
            (-2.0, 0.1, Some("behind")),
            (2.0, 0.1, Some("ahead")),
            // Nobody knows.
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

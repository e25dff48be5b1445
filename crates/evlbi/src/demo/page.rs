//! The web UI of the demonstration: stations that stream to a live correlator, under their own agent.

use std::fs;
use std::io::{BufReader, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_control::flow::{Flow, NewFlow};
use evlbi_control::threads::stopped;
use evlbi_control::{Client, Control, Identity, Remote};
use evlbi_net::run::Run;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use super::{DemoOptions, STATIONS, Temporary};

/// Bit rate of each station: a rate that any machine correlates next to a browser and the rest of the demonstration.
const RATE: u32 = 16_000_000;
/// Length of the noise that is sent in a loop, in seconds.
const SECONDS: u32 = 1;
/// Maximum number of correlated stations: with more, a small machine would fall behind.
const MAX_STATIONS: u32 = 4;
/// Flows end by themselves after this time, even if nothing is left to end them.
const MAX: Duration = Duration::from_hours(24);
/// The same if the web UI does not stay.
const A_LITTLE: Duration = Duration::from_mins(2);
/// Flows end within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Stations, a correlator, and the agent that shows them; dropping this ends all of them.
pub struct Page {
    client: Client,
    runtime: Runtime,
    agent: Agent,
    room: Temporary,
}

/// The agent's process; dropping this ends it.
struct Agent {
    child: Child,
    run: Run,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            self.run
                .say(format_args!("cannot stop the agent of the web UI: {error}"));
        }
    }
}

impl Page {
    /// Starts everything, prints the link to the web UI, and opens it if there is a desktop.
    pub fn start(options: &DemoOptions, run: &Run) -> Result<Page> {
        let room = Temporary::new("page")?;
        let stations = &STATIONS[..options.stations.clamp(2, MAX_STATIONS) as usize];
        fs::write(room.0.join("sky.toml"), sky(options, stations))?;
        let (agent, url) = start_agent(&room.0, run)?;
        let (fingerprint, token) = Identity::read(&room.0.join("agent"))?;
        let page = Page {
            agent,
            client: Client::new(&url, fingerprint, &token)?,
            runtime: Runtime::new().context("threads cannot be started")?,
            room,
        };
        page.runtime
            .block_on(page.stream(options, stations, &page.room.0))?;
        let watching = fs::read_to_string(page.room.0.join("agent/tokens/watch"))?;
        show(run, &url, &token, watching.trim());
        Ok(page)
    }

    /// Waits until the run is stopped.
    pub fn stay(&self) {
        let run = &self.agent.run;
        run.line(format_args!("the web UI stays until Ctrl-C"));
        self.runtime.block_on(stopped(run));
    }

    async fn begin(&self, flow: Value) -> Result<Flow> {
        let flow: NewFlow = serde_json::from_value(flow)?;
        let begun = self.client.start(flow).await?;
        match begun.end.as_ref().and_then(|end| end.message.as_ref()) {
            Some(message) => bail!("{}: {message}", begun.id),
            None => Ok(begun),
        }
    }

    /// Starts the flows.
    async fn stream(&self, options: &DemoOptions, stations: &[&str], room: &Path) -> Result<()> {
        let longest = options.duration + if options.keep { MAX } else { A_LITTLE };
        let longest = format!("{}s", longest.as_secs());
        let correlator = self
            .begin(json!({
                "id": "correlator", "command": "correlate", "live": true, "files": vec!["udp://127.0.0.1:0"; stations.len()],
                "wait": "10s", "channels": 256, "freq": ["4.98G"], "duration": longest,
            }))
            .await?;
        let begun = Instant::now();
        let addresses = loop {
            let flows = self.client.flows().await?.into_iter();
            let status = flows
                .filter(|flow| flow.id == correlator.id)
                .find_map(|flow| flow.status);
            match status.map(|status| status.listening) {
                Some(addresses) if addresses.len() == stations.len() => break addresses,
                _ if begun.elapsed() > TIMEOUT => bail!("the correlator does not listen"),
                _ => sleep(Duration::from_millis(50)).await,
            }
        };
        let shed = match options.loss {
            0.0 => "none".to_owned(),
            loss => format!("random:{loss}"),
        };
        for ((number, name), to) in (0..).zip(stations).zip(addresses) {
            self.begin(json!({
                "id": name, "command": "send", "source": format!("sky:{}/{name}", room.join("sky.toml").display()),
                "to": format!("udp://{to}"), "repeat": 1_000_000, "shed": shed, "duration": longest,
                // Each station loses different packets.
                "seed": options.seed.wrapping_add(number),
            }))
            .await?;
        }
        Ok(())
    }

    /// Ends the flows, and waits until the agent has noticed.
    async fn end_flows(&self) -> Result<()> {
        let begun = Instant::now();
        for flow in self.client.flows().await? {
            self.client.stop(flow.id, true).await?;
        }
        loop {
            let flows = self.client.flows().await?;
            if flows.iter().all(|flow| flow.end.is_some()) || begun.elapsed() >= TIMEOUT {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Err(error) = self.runtime.block_on(self.end_flows()) {
            self.agent.run.say(format_args!(
                "stations of the web UI may still be running: {error:#}"
            ));
        }
    }
}

/// Returns the plan of the simulated sky.
fn sky(options: &DemoOptions, stations: &[&str]) -> String {
    let stations = stations
        .iter()
        .map(|name| format!("[[station]]\nname = \"{name}\"\n"));
    format!(
        "start = \"2026-01-01T00:00:00Z\"\nduration = {SECONDS}.0\nseed = {}\nsample_rate = {}\nbits = 2\nchannels = 1\nthreads = 1\ncomplex = false\npayload = 8000\nedv = 1\ncorrelation = 0.1\nsky_frequency = 4_980_000_000\n{}",
        options.seed,
        RATE / 2,
        stations.collect::<String>()
    )
}

/// Starts an agent for this host only. Returns it with its address.
fn start_agent(room: &Path, run: &Run) -> Result<(Agent, String)> {
    let folder = room.join("agent");
    fs::create_dir(&folder)?;
    fs::write(
        folder.join("agent.toml"),
        format!("name = \"demo\"\nread = [{room:?}]\n"),
    )?;
    let child = Command::new("/proc/self/exe")
        .args(["agent", "--bind", "127.0.0.1:0", "--json", "--dir"])
        .arg(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Only this process handles Ctrl-C.
        .process_group(0)
        .spawn()
        .context("the agent cannot be started")?;
    let mut agent = Agent {
        child,
        run: run.clone(),
    };
    let said = agent.child.stdout.take();
    let said = said.context("the agent says nothing")?;
    let mut said = serde_json::Deserializer::from_reader(BufReader::new(said));
    let ready = Value::deserialize(&mut said).context("the agent did not begin")?;
    let url = ready["url"].as_str().context("the agent has no address")?;
    Ok((agent, url.to_owned()))
}

/// Prints the link to the web UI, and opens it if there is a desktop.
fn show(run: &Run, url: &str, operating: &str, watching: &str) {
    run.line(format_args!(
        "web UI with stations that stream to a live correlator: {url}/#token={operating}"
    ));
    run.line(format_args!(
        "(the browser will ask whether to trust the agent's own certificate)"
    ));
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    if has_screen && std::io::stdout().is_terminal() {
        let open = Command::new("xdg-open")
            // Other users can read the command line: this token only lets them watch.
            .arg(format!("{url}/#token={watching}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if let Err(error) = open {
            tracing::info!("xdg-open cannot be started: {error}");
        }
    }
}

//! A stream that two receivers take at once: the host that it is sent to, and a capture of the link, as at a mirror port.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::net::{JUMBO, JUMBO_FRAME, NetArgs};
use crate::stage::{EVLBI, PORT, Stage, Wire, children_cpu, start_receiver, start_sender};
use crate::table::{Aim, Figure, Table, median};

/// Rate of the stream, in Gbit/s.
const RATE: f64 = 1.0;

/// Figures of a receiver.
#[derive(Default)]
struct Received {
    /// Received datagrams in percent of those sent.
    percent: Vec<f64>,
    /// CPU seconds of the receiver per received gigabyte.
    cpu_per_gb: Vec<f64>,
}

impl Received {
    fn add(&mut self, result: &Value, sent: f64, cpu: f64) {
        let number = |name: &str| result[name].as_f64().unwrap_or(0.0);
        self.percent.push(100.0 * number("unique") / sent);
        self.cpu_per_gb.push(cpu / (number("bytes") / 1e9));
        eprintln!(
            "    {} of {sent} came, {} did not fit the socket, {cpu:.2} s of CPU time",
            number("unique"),
            number("socket_drops")
        );
    }
}

pub fn run(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    // A mirror port of a switch shows each packet by itself.
    stage.wire(Wire {
        segmentation: false,
        ..JUMBO
    })?;
    let device = stage.receiving_device();
    let from = format!("mirror://{device}?udp={PORT}");
    let (mut udp, mut mirror) = (Received::default(), Received::default());
    for _ in 0..args.runs {
        let host = start_receiver(stage, PORT, "null")?;
        let arguments = ["recv", &from, "--to", "null", "--idle", "1s", "--json"];
        let capture = stage.listener_at(&format!(":{device} "), EVLBI, &arguments)?;
        let sender = start_sender(stage, PORT, JUMBO_FRAME, Some(RATE), args.seconds, &[])?;
        let sent = sender.json()?["sent"].as_f64().unwrap_or(0.0);
        ensure!(sent > 0.0, "nothing was sent");
        // A program's time is counted when it has been waited for.
        for (receiver, received) in [(host, &mut udp), (capture, &mut mirror)] {
            let before = children_cpu();
            let result = receiver.json()?;
            received.add(&result, sent, children_cpu() - before);
        }
    }
    table.version("udp://", "at the same time");
    let what = format!("datagrams of {RATE} Gbit/s that a mirror port shows, received");
    let figure = Figure::new(what, median(&mut mirror.percent), "%");
    let figure = figure.beside("udp://", median(&mut udp.percent));
    table.add(figure.aim(Aim::AtLeast(100.0)));
    let what = format!("CPU time of the receiver at a mirror port at {RATE} Gbit/s");
    let figure = Figure::new(what, median(&mut mirror.cpu_per_gb), "s/GB");
    table.add(figure.beside("udp://", median(&mut udp.cpu_per_gb)));
    Ok(())
}

//! Results of sending.

use evlbi_net::transmit::SendReport;
use evlbi_plot::lines;
use evlbi_wire::units::{show_count, show_rate};
use serde::Serialize;

use super::SafeResult;
use crate::counters::Counted;

/// Fraction of missing rate above which a sender reports at its end that it fell short.
const SHORT: f64 = 0.01;

/// Result of sending a flow.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SendResult {
    pub(super) schema: &'static str,
    pub(super) source: String,
    pub(super) to: String,
    /// MTU of the datagrams, in bytes.
    pub(super) mtu: Option<usize>,
    /// Requested bit rate; `None` for the maximum.
    pub(super) rate_asked_bps: Option<u64>,
    /// Earlier requested rates, if the rate was changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) rates_before_bps: Vec<u64>,
    /// Bytes before the first whole frame of the file, not sent.
    pub(super) leading_bytes: u64,
    /// Bytes after the last whole frame of the file, not sent.
    pub(super) truncated_bytes: u64,
    /// Frames of stations and threads that are not selected, not sent.
    pub(super) unselected_frames: u64,
    /// Bytes of fill pattern that completed the last datagram of raw data.
    pub(super) padded_bytes: u64,
    /// Congestion control, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe: Option<SafeResult>,
    /// Counts and measurements.
    #[serde(flatten)]
    pub report: Counted<SendReport>,
}

/// Formats a result as text.
pub fn text(result: &SendResult) -> String {
    let report = &result.report;
    let live = &report.live;
    let policies = report.shedding_before.iter().chain([&report.shedding]);
    let policies = policies.map(|shed| format!("{}: {:.4} %", shed.policy, shed.fraction * 100.0));
    let policies = policies.collect::<Vec<String>>().join(", then ");
    let departures = format!(
        "{} back to back; late by {:.1} us on average, {:.1} us at most",
        report.burst, report.lateness_us.mean, report.lateness_us.max
    );
    let [sent, shed, not_sent, bytes] =
        [live.sent, live.shed, live.not_sent, live.bytes].map(show_count);
    let mut pairs = vec![
        (
            "sent",
            format!("{sent} datagrams of {} bytes of data", report.datagram_data),
        ),
        ("shed", format!("{shed} datagrams, {policies}")),
        (
            "not sent",
            format!("{not_sent} datagrams dropped in this host"),
        ),
        ("data", format!("{bytes} bytes in {:.3} s", report.seconds)),
        ("rate", rate(result)),
        ("departures", departures),
    ];
    if let Some(safe) = &result.safe {
        pairs.push(("safe", safe.text()));
    }
    if result.unselected_frames > 0 {
        let text = format!("{} frames", show_count(result.unselected_frames));
        pairs.push(("not selected", text));
    }
    if let Some(short) = short(report) {
        pairs.push(("behind", short));
    }
    if let (Some(first), Some(last)) = (report.first_seq, report.last_seq) {
        pairs.push(("sequence", format!("{first} to {last}")));
    }
    let slips = &report.slips;
    if slips.count > 0 {
        let text = format!("{} times, {:.3} s given up", slips.count, slips.seconds);
        pairs.push(("slipped", text));
    }
    let refused = report.socket.refused;
    if refused > 0 {
        let text = format!("{} answers that nobody listens there", show_count(refused));
        pairs.push(("refused", text));
    }
    lines(&pairs)
}

/// Formats the achieved and the requested rate.
fn rate(result: &SendResult) -> String {
    let sent = show_rate(result.report.rate_bps);
    match result.rate_asked_bps {
        Some(asked) => format!("{sent} sent, {} requested", show_rate(asked as f64)),
        None => format!("{sent} sent, maximum requested"),
    }
}

/// Describes how far the sender fell behind its schedule, if it did. Data shed on purpose does not count.
fn short(report: &SendReport) -> Option<String> {
    let part = report.behind_seconds / report.seconds.max(1e-9);
    (part > SHORT).then(|| {
        format!(
            "{:.3} s at the end, {:.1} % of the data that were due: this host or the connection could not keep up",
            report.behind_seconds,
            part * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evlbi_core::rate::BitRate;
    use evlbi_core::shed::{Policy, Replace, Shed, Stream};
    use evlbi_core::time::Nanos;
    use evlbi_net::run::Run;
    use evlbi_net::transmit::{
        self, Clock, Flow, FlowOptions, Frames, PatternSource, Sent, Source,
    };
    use evlbi_net::transport::{OutOptions, Url};
    use evlbi_wire::time::FrameRate;

    use super::*;

    /// The first frames of a pattern: the flow ends with them, however long this process waits for a CPU.
    struct Few(PatternSource, usize);

    impl Source for Few {
        fn frames(&mut self) -> std::io::Result<Frames<'_>> {
            let frames = self.0.frames()?;
            Ok(Frames {
                bytes: &frames.bytes[..self.1.min(frames.bytes.len())],
                ..frames
            })
        }

        fn consume(&mut self, bytes: usize) {
            self.0.consume(bytes);
            self.1 -= bytes;
        }
    }

    /// Returns the result of a flow of 1 Mbit/s, 10 frames long, that started late by this much.
    fn said_of_one_that_is_late(late: Nanos) -> SendResult {
        let run = Run::silent();
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = format!("udp://{}", nobody.local_addr().unwrap());
        let to: Url = to.parse().unwrap();
        let outlet = to.open_out(&OutOptions::default(), &run);
        let frame_rate = FrameRate::new(100).unwrap();
        let rate = BitRate::new(1_000_000).unwrap();
        let source = PatternSource::new(72, 0, frame_rate, 1 << 20).unwrap();
        let source = Few(source, 10 * 72);
        let start = Nanos(run.clock().now().0 - late.0);
        let stream = Stream {
            rate: Some(rate),
            unit_bytes: 72,
            wire_bytes: 72,
            threads: Vec::new(),
            frame_rate: Some(frame_rate),
        };
        let options = FlowOptions {
            to: to.to_string(),
            frame_length: 72,
            datagram_data: 72,
            vdif: true,
            frame_rate: Some(frame_rate),
            sequence: Some(0),
            stream: None,
            clock: Clock::Rate(rate),
            start,
            end: None,
            burst: 1,
            shed: Shed::new(Policy::None, 1, &stream).unwrap(),
            shed_packets: false,
            safe: None,
            replace: Replace::Nothing,
            replacement: Vec::new(),
        };
        let sent = Sent::new();
        let flow = Flow::new(
            Box::new(source),
            outlet.unwrap(),
            options,
            Arc::clone(&sent),
        )
        .unwrap();
        let report = transmit::run(vec![flow], &run).remove(0);
        assert_eq!(sent.last().slips, report.slips);
        SendResult {
            schema: "evlbi.send/1",
            source: String::new(),
            to: String::new(),
            mtu: None,
            rate_asked_bps: Some(rate.get()),
            rates_before_bps: Vec::new(),
            leading_bytes: 0,
            truncated_bytes: 0,
            unselected_frames: 0,
            padded_bytes: 0,
            safe: None,
            report: report.into(),
        }
    }

    #[test]
    fn a_missed_rate_is_reported() {
        // Shorter than the second after which a sender stops catching up, and longer.
        let result = said_of_one_that_is_late(Nanos(900_000_000));
        let report = &result.report;
        assert!(report.behind_seconds > 0.1, "{report:?}");
        assert!(report.lateness_us.max >= 900_000.0, "{report:?}");
        let text = text(&result);
        assert!(text.contains("sent, 1.000 Mbit/s requested"), "{text}");
        assert!(text.contains("s at the end"), "{text}");

        let report = said_of_one_that_is_late(Nanos(5_000_000_000)).report;
        assert!(
            report.slips.count >= 1 && report.slips.seconds >= 5.0,
            "{report:?}"
        );
        assert!(report.behind_seconds >= 5.0, "{report:?}");
    }
}

//! Counters of all flows as Prometheus reads them (OpenMetrics).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::fleet::About;
use super::flow::{Flow, State};
use crate::steer::{Receiving, Sending};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All of it as text.
pub fn text(about: &About, flows: &[Flow]) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("evlbi");
    registry.register_collector(Box::new(Snapshot {
        about: about.clone(),
        flows: flows.to_vec(),
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot {
    about: About,
    flows: Vec<Flow>,
}

/// A counter of a stream: its name, what it is, and its value.
type OfReceiver = (&'static str, &'static str, fn(&Receiving) -> u64);
type OfSender = (&'static str, &'static str, fn(&Sending) -> u64);

const RECEIVED: [OfReceiver; 9] = [
    (
        "received_datagrams",
        "Datagrams that arrived, copies included",
        |s| s.received,
    ),
    (
        "expected_datagrams",
        "Datagrams between the first and the last number seen",
        |s| s.expected,
    ),
    ("lost_host_datagrams", "Datagrams lost in this host", |s| {
        s.host_lost
    }),
    (
        "lost_network_datagrams",
        "Datagrams lost before this host",
        |s| s.network_lost,
    ),
    (
        "lost_unattributed_datagrams",
        "Datagrams lost in the one or the other",
        |s| s.unattributed,
    ),
    ("duplicate_datagrams", "Datagrams that arrived again", |s| {
        s.duplicates
    }),
    (
        "reordered_datagrams",
        "Datagrams that arrived after a later one (RFC 4737)",
        |s| s.reordered,
    ),
    (
        "foreign_datagrams",
        "Datagrams that were none of the stream",
        |s| s.foreign,
    ),
    ("received_data_bytes", "Bytes of data, each once", |s| {
        s.bytes
    }),
];
const SENT: [OfSender; 4] = [
    ("sent_datagrams", "Datagrams that left", |s| s.sent),
    ("shed_datagrams", "Datagrams left out on purpose", |s| {
        s.shed
    }),
    (
        "not_sent_datagrams",
        "Datagrams dropped in this host before they left",
        |s| s.not_sent,
    ),
    ("sent_data_bytes", "Bytes of data that left", |s| s.bytes),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut free = |name, help, value: f64| gauge(&mut encoder, name, help, [(vec![], value)]);
        free(
            "start_time_seconds",
            "When this was started",
            self.about.started,
        )?;
        if let Some(storage) = &self.about.storage {
            free(
                "storage_free_bytes",
                "Bytes free where recordings are",
                storage.free_bytes as f64,
            )?;
        }
        let states = [
            State::Starting,
            State::Running,
            State::Stopping,
            State::Ended,
        ];
        let of_state = |state: State| {
            let count = self.flows.iter().filter(|flow| flow.state == state).count();
            (
                vec![("state", format!("{state:?}").to_lowercase())],
                count as f64,
            )
        };
        gauge(
            &mut encoder,
            "flows",
            "Flows by state",
            states.map(of_state),
        )?;
        for (name, help, value) in RECEIVED {
            let values = self
                .streams()
                .map(|(labels, stream)| (labels, value(stream)));
            counter(&mut encoder, name, help, values)?;
        }
        let rates = self
            .streams()
            .map(|(labels, stream)| (labels, stream.rate_bps));
        gauge(
            &mut encoder,
            "receive_rate_bits_per_second",
            "Data received in the last second",
            rates,
        )?;
        let fill = self
            .streams()
            .map(|(labels, stream)| (labels, stream.ring_fill));
        gauge(
            &mut encoder,
            "ring_fill_ratio",
            "Share of the ring that waits",
            fill,
        )?;
        for (name, help, value) in SENT {
            let values = self
                .senders()
                .map(|(labels, sending)| (labels, value(sending)));
            counter(&mut encoder, name, help, values)?;
        }
        let rates = self
            .senders()
            .map(|(labels, sending)| (labels, sending.rate_bps));
        gauge(
            &mut encoder,
            "send_rate_bits_per_second",
            "Data sent in the last second",
            rates,
        )?;
        for (name, help, value) in [
            (
                "fringe_amplitude",
                "Correlation coefficient of the last integration",
                0,
            ),
            (
                "fringe_snr",
                "Signal-to-noise ratio of the last integration",
                1,
            ),
            (
                "fringe_weight",
                "Share of the last integration with data of both stations",
                2,
            ),
            (
                "fringe_delay_seconds",
                "Delay of the second station behind the first",
                3,
            ),
        ] {
            let of = |baseline: &crate::steer::Baseline| {
                [
                    baseline.amplitude,
                    baseline.snr,
                    baseline.weight,
                    baseline.delay_s,
                ][value]
            };
            let values = self.flows.iter().flat_map(|flow| {
                let baselines = flow.status.iter().flat_map(|status| &status.baselines);
                baselines.map(move |baseline| {
                    let mut labels = labels(flow);
                    labels.push(("baseline", baseline.stations.join("-")));
                    (labels, of(baseline))
                })
            });
            gauge(&mut encoder, name, help, values)?;
        }
        Ok(())
    }
}

type Labels = Vec<(&'static str, String)>;

fn labels(flow: &Flow) -> Labels {
    vec![("host", flow.host.clone()), ("flow", flow.id.to_string())]
}

impl Snapshot {
    fn streams(&self) -> impl Iterator<Item = (Labels, &Receiving)> {
        self.flows.iter().flat_map(|flow| {
            let streams = flow.status.iter().flat_map(|status| &status.receiving);
            streams.map(move |stream| {
                let mut labels = labels(flow);
                labels.extend(stream.station.clone().map(|station| ("station", station)));
                (labels, stream)
            })
        })
    }

    fn senders(&self) -> impl Iterator<Item = (Labels, &Sending)> {
        let sending = |flow: &'_ Flow| {
            flow.status
                .as_ref()
                .is_some_and(|status| status.sending.is_some())
        };
        let flows = self.flows.iter().filter(move |flow| sending(flow));
        flows.filter_map(|flow| Some((labels(flow), flow.status.as_ref()?.sending.as_ref()?)))
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let values = values
        .into_iter()
        .map(|(labels, value)| (labels, ConstGauge::new(value)));
    family(encoder, name, help, values)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let values = values
        .into_iter()
        .map(|(labels, value)| (labels, ConstCounter::new(value)));
    family(encoder, name, help, values)
}

fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, M)>,
) -> fmt::Result {
    let mut values = values.peekable();
    let Some((_, first)) = values.peek() else {
        return Ok(());
    };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (labels, value) in values {
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

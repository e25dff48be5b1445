//! Counters of all flows in the OpenMetrics format, for Prometheus.

use std::fmt;

use evlbi_stream::control_socket::{Baseline, Receiving, Sending};
use evlbi_stream::counters::{
    Counter, Counts, Kind, RECEIVED, SAFE_RECEIVED, SAFE_SENT, SENT, real,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Number;

use super::fleet::About;
use super::flow::Flow;
use super::flow::State::{Ended, Running, Starting, Stopping};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Formats the metrics of all flows as text.
pub fn text(about: About, flows: Vec<Flow>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("evlbi");
    registry.register_collector(Box::new(Snapshot { about, flows }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot {
    about: About,
    flows: Vec<Flow>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut free = |name, help, value: f64| gauge(&mut encoder, name, help, [(vec![], value)]);
        free(
            "start_time_seconds",
            "Start time of this process",
            self.about.started,
        )?;
        if let Some(storage) = &self.about.storage {
            free(
                "storage_free_bytes",
                "Free space for recordings in bytes",
                storage.free_bytes as f64,
            )?;
        }
        let flows = [Starting, Running, Stopping, Ended].map(|state| {
            let count = self.flows.iter().filter(|flow| flow.state == state).count();
            (vec![("state", evlbi_plot::name(&state))], count as f64)
        });
        gauge(&mut encoder, "flows", "Flows by state", flows)?;
        let streams = self.flows.iter().flat_map(|flow| {
            let streams = flow.status.iter().flat_map(|status| &status.receiving);
            streams.map(move |stream| {
                let mut labels = labels(flow);
                labels.extend(stream.station.clone().map(|station| ("station", station)));
                (labels, stream)
            })
        });
        let streams: Vec<(Labels, &Receiving)> = streams.collect();
        let safe = streams.iter();
        let safe =
            safe.filter_map(|(it, stream)| Some((it.clone(), &stream.safe.as_ref()?.counts)));
        let safe: Vec<(Labels, &Counts)> = safe.collect();
        for field in SAFE_RECEIVED {
            values(&mut encoder, &field.counter, &safe)?;
        }
        let streams = streams.iter();
        let streams: Vec<(Labels, &Counts)> = streams
            .map(|(it, stream)| (it.clone(), &stream.counts))
            .collect();
        for field in RECEIVED {
            values(&mut encoder, &field.counter, &streams)?;
        }
        let senders = self.flows.iter().filter_map(|flow| {
            let sending = flow.status.as_ref()?.sending.as_ref()?;
            Some((labels(flow), sending))
        });
        let senders: Vec<(Labels, &Sending)> = senders.collect();
        let safe = senders.iter();
        let safe = safe.filter_map(|(it, sending)| Some((it.clone(), sending.safe.as_ref()?)));
        let states = safe.clone().map(|(mut labels, safe)| {
            labels.push(("mode", safe.mode.clone()));
            labels.push(("state", safe.state.clone()));
            (labels, 1.0)
        });
        gauge(
            &mut encoder,
            "safe_state",
            "Mode and state of senders under SafeUDP",
            states,
        )?;
        let safe: Vec<(Labels, &Counts)> = safe.map(|(it, safe)| (it, &safe.counts)).collect();
        for field in SAFE_SENT {
            values(&mut encoder, &field.counter, &safe)?;
        }
        let senders = senders.iter();
        let senders: Vec<(Labels, &Counts)> = senders
            .map(|(it, sending)| (it.clone(), &sending.counts))
            .collect();
        for field in SENT {
            values(&mut encoder, &field.counter, &senders)?;
        }
        let baselines = self.flows.iter().flat_map(|flow| {
            let baselines = flow.status.iter().flat_map(|status| &status.baselines);
            baselines.map(move |baseline| (flow, baseline))
        });
        for (name, help, value) in FRINGES {
            let values = baselines.clone().map(|(flow, baseline)| {
                let mut labels = labels(flow);
                labels.push(("baseline", baseline.stations.join("-")));
                (labels, value(baseline))
            });
            gauge(&mut encoder, name, help, values)?;
        }
        Ok(())
    }
}

/// Function that reads a value of a baseline.
type OfBaseline = fn(&Baseline) -> f64;

/// Metrics of baselines: names, help and values.
const FRINGES: [(&str, &str, OfBaseline); 4] = [
    (
        "fringe_amplitude",
        "Correlation coefficient of the last integration",
        |it| it.amplitude,
    ),
    (
        "fringe_snr",
        "Signal-to-noise ratio of the last integration",
        |it| it.snr,
    ),
    (
        "fringe_weight",
        "Fraction of the last integration with data of both stations",
        |it| it.weight,
    ),
    (
        "fringe_delay_seconds",
        "Delay of the second station relative to the first",
        |it| it.delay_s,
    ),
];

type Labels = Vec<(&'static str, String)>;

fn labels(flow: &Flow) -> Labels {
    vec![("host", flow.host.clone()), ("flow", flow.id.to_string())]
}

/// Encodes a counter of all senders or streams.
fn values(
    encoder: &mut DescriptorEncoder<'_>,
    counter: &Counter,
    of: &[(Labels, &Counts)],
) -> fmt::Result {
    let known = of.iter();
    let known = known.filter_map(|(it, counts)| Some((it.clone(), counts.get(counter.name)?)));
    let help = counter.help.replace('`', "");
    match (counter.kind, counter.unit.is_real()) {
        (Kind::Counter, false) => {
            let whole = |value: &Number| ConstCounter::new(value.as_u64().unwrap_or(0));
            let values = known.map(|(labels, value)| (labels, whole(value)));
            family(encoder, counter.metric, &help, values)
        }
        (Kind::Counter, true) => {
            let values = known.map(|(labels, value)| (labels, ConstCounter::new(real(value))));
            family(encoder, counter.metric, &help, values)
        }
        _ => {
            let values = known.map(|(labels, value)| (labels, real(value)));
            gauge(encoder, counter.metric, &help, values)
        }
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let values = values.into_iter();
    let values = values.map(|(labels, value)| (labels, ConstGauge::new(value)));
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

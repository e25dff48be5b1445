//! Counters of a stream. Each is defined once, in a table here. Results, statuses, the history with its CSV, metrics, the console, the web
//! UI, the description of the HTTP API and docs/src/counters.md are made from these tables.
//!
//! To add a counter, add a row (CONTRIBUTING.md, "How to add").

use std::collections::HashMap;
use std::ops::Deref;

use evlbi_core::deframe;
use evlbi_net::{receive, safe, transmit};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, Object, ObjectBuilder, Schema, Type};

use evlbi_wire::units::{show_count, show_rate, show_seconds};

/// How values of several streams or times are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Counts from the start; values of streams are added.
    Counter,
    /// Rate of the last second; values of streams are added, those of several times averaged.
    Rate,
    /// Current value; the maximum is taken.
    Level,
    /// Current value; the minimum is taken.
    Least,
}

/// Unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Datagrams of the transport, as sent or received.
    Datagrams,
    /// Whole frames of VDIF, Mark 5B or Mark 4, headers included.
    Frames,
    /// Bytes of data, without transport headers.
    Bytes,
    /// Number of occurrences.
    Times,
    /// Bits of data per second.
    BitsPerSecond,
    /// Seconds, with fractions.
    Seconds,
    /// A fraction from 0 to 1.
    Ratio,
    /// Number of TCP flows, with fractions.
    Flows,
    /// Number that stands for a name, which is shown elsewhere.
    Code,
}

/// Definition of a counter.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct Counter {
    /// Name in results and statuses.
    pub name: &'static str,
    /// How its values are combined.
    pub kind: Kind,
    /// Unit of its values.
    pub unit: Unit,
    /// Name in Prometheus, without `evlbi_`; empty if only results contain it.
    #[serde(skip)]
    pub metric: &'static str,
    /// Name in the one-line summary of a flow; empty if it is not shown there.
    #[serde(skip)]
    pub brief: &'static str,
    /// Its meaning, in Markdown.
    pub help: &'static str,
}

/// A counter of `T` with its getter.
pub struct Field<T: 'static> {
    /// Its definition.
    pub counter: Counter,
    get: fn(&T) -> Number,
}

/// Counters of a receiver, and the bit rate of the last second.
pub struct Received {
    /// Counters since the start.
    pub live: receive::Snapshot,
    /// Bits of data per second.
    pub rate_bps: f64,
}

/// Counters of a sender, and the bit rate of the last second.
pub struct Sent {
    /// Counters since the start.
    pub live: transmit::Snapshot,
    /// Bits of data per second.
    pub rate_bps: f64,
}

macro_rules! table {
    ($(#[$doc:meta])* $seen:vis $table:ident of $of:ty; $($(#[$when:meta])? $name:literal $([$brief:literal])? $kind:ident $unit:ident $metric:literal |$it:ident| $get:expr, $help:literal;)*) => {
        $(#[$doc])*
        $seen static $table: &[Field<$of>] = &[$($(#[$when])? Field {
            counter: Counter { name: $name, kind: Kind::$kind, unit: Unit::$unit, metric: $metric, brief: concat!($($brief)?), help: $help },
            get: |$it: &$of| number($get),
        }),*];
    };
}

table! {
    /// Counters of a received stream.
    pub RECEIVED of Received;
    "rate_bps" Rate BitsPerSecond "receive_rate_bits_per_second" |r| r.rate_bps, "bits of data received in the last second";
    "expected" Counter Datagrams "expected_datagrams" |r| r.live.counters.expected, "sequence numbers from the first to the last received, = `unique` + `lost`";
    "received" Counter Datagrams "received_datagrams" |r| r.live.counters.received, "datagrams of the stream's size and sender, = `unique` + `duplicates` + `ring_full`";
    "unique" ["unique"] Counter Datagrams "unique_datagrams" |r| r.live.counters.unique, "distinct sequence numbers received, including late ones";
    "lost" ["lost"] Counter Datagrams "lost_datagrams" |r| r.live.counters.lost, "sequence numbers that did not arrive or were dropped by a full ring, = `host_lost` + `network_lost` + `unattributed` (RFC 7680, without a time limit, within a history of 4,194,304 numbers)";
    "host_lost" ["in the host"] Counter Datagrams "lost_host_datagrams" |r| r.live.attribution.host_lost, "of the lost: certainly dropped in this host: `ring_full`, and socket drops between the first and the last datagram";
    "network_lost" ["in the network"] Counter Datagrams "lost_network_datagrams" |r| r.live.attribution.network_lost, "of the lost: not dropped by this host's socket or ring";
    "unattributed" Counter Datagrams "lost_unattributed_datagrams" |r| r.live.attribution.unattributed, "of the lost: at an unknown place, as the kernel counts a dropped GRO bundle as one datagram";
    "ring_full" Counter Datagrams "ring_full_datagrams" |r| r.live.counters.ring_full, "arrived, but dropped because the sink had not freed space";
    "duplicates" Counter Datagrams "duplicate_datagrams" |r| r.live.counters.duplicates, "second and further arrivals of a sequence number";
    "reordered" Counter Datagrams "reordered_datagrams" |r| r.live.counters.reordered, "arrived after a higher number (RFC 4737 section 3: s < NextExp), without duplicates";
    "late" Counter Datagrams "late_datagrams" |r| r.live.counters.late, "of the unique: arrived after their position was released, so not in the recording";
    "foreign" Counter Datagrams "foreign_datagrams" |r| r.live.foreign(), "all other datagrams that arrived, = `foreign_size` + `foreign_source` + `foreign_sequence` + `foreign_header`";
    "undecided" Level Datagrams "undecided_datagrams" |r| r.live.undecided, "the first datagrams, until it is known whether they belong to the stream";
    "bytes" Counter Bytes "received_data_bytes" |r| r.live.bytes, "data received, without duplicates";
    "ring_fill" Level Ratio "ring_fill_ratio" |r| r.live.ring_fill, "fraction of the ring that waits to be written or correlated";
    "ring_waits" Counter Seconds "ring_waits_seconds" |r| r.live.ring_waits, "time for which a reliable stream was not read because the ring was full";
    "host_lost_max" Counter Datagrams "lost_host_max_datagrams" |r| r.live.attribution.host_lost_max, "maximum that this host can have dropped";
    "foreign_size" Counter Datagrams "foreign_size_datagrams" |r| r.live.foreign_size, "foreign: with another length";
    "foreign_source" Counter Datagrams "foreign_source_datagrams" |r| r.live.foreign_source, "foreign: from another sender";
    "foreign_sequence" Counter Datagrams "foreign_sequence_datagrams" |r| r.live.counters.foreign_sequence, "foreign: with a number outside of every sequence";
    "foreign_header" Counter Datagrams "foreign_header_datagrams" |r| r.live.foreign_header, "foreign: over `pudp://`, not a frame of the stream's length, or one of the first three of a thread that starts later";
    "refused_connections" Counter Times "refused_connections" |r| r.live.refused_connections, "TCP connections that sent something other than a stream";
    "restarts" Counter Times "restarts" |r| r.live.counters.restarts, "how often the sender began a new sequence";
    "socket_drops" Counter Datagrams "socket_drops_datagrams" |r| r.live.socket_drops, "drops of the socket reported by the kernel (SO_MEMINFO), which counts a GRO bundle once";
    "socket_drops_within" Counter Datagrams "socket_drops_within_datagrams" |r| r.live.socket_drops_within, "of these: between the first and the last datagram received (SO_RXQ_OVFL)";
    #[cfg(test)] "nonce" Counter Datagrams "nonce_datagrams" |r| r.live.bytes * 1000 + 7, "a counter of the tests";
}

table! {
    /// Counters of a sent flow.
    pub SENT of Sent;
    "rate_bps" Rate BitsPerSecond "send_rate_bits_per_second" |s| s.rate_bps, "bits of data sent in the last second";
    "offered" Counter Datagrams "offered_datagrams" |s| s.live.offered, "sequence numbers used, = `sent` + `shed` + `not_sent`";
    "sent" ["sent"] Counter Datagrams "sent_datagrams" |s| s.live.sent, "accepted by the kernel";
    "shed" ["shed"] Counter Datagrams "shed_datagrams" |s| s.live.shed, "dropped on purpose";
    "not_sent" ["not sent"] Counter Datagrams "not_sent_datagrams" |s| s.live.not_sent, "dropped in this host";
    "bytes" Counter Bytes "sent_data_bytes" |s| s.live.bytes, "data sent, without transport headers";
    "behind_s" Level Seconds "send_behind_seconds" |s| s.live.behind.as_secs_f64(), "how far the sender is behind its schedule, including time given up";
    "slips" Counter Times "send_slips" |s| s.live.slips.count, "how often it gave up time because it was more than a second behind";
    "replaced" Counter Datagrams "replaced_datagrams" |s| s.live.replaced, "sent with replacement data for shed data";
    "frames" Counter Frames "sent_frames" |s| s.live.frames, "frames from the source";
    "time_jumps" Counter Frames "send_time_jumps" |s| s.live.time_jumps, "frames whose time could not be followed";
    #[cfg(test)] "nonce" Counter Datagrams "nonce_datagrams_sent" |s| s.live.sent * 1000 + 7, "a counter of the tests";
}

table! {
    /// Values of a sender under SafeUDP.
    pub SAFE_SENT of safe::Status;
    "mode_number" Level Code "safe_mode_number" |s| 1 + s.mode as u8, "`mode` as a number: 1 shared, 2 reserved, 3 strict; 0 without SafeUDP";
    "state_number" Level Code "safe_state_number" |s| 1 + s.state as u8, "`state` as a number: one more than that in section 7 of safeudp.md; 0 without SafeUDP";
    "kept" ["kept"] Least Ratio "safe_kept_ratio" |s| s.kept, "fraction of the data that is sent";
    "rejected" Counter Times "safe_rejected_reports" |s| s.rejected, "messages that were ignored: forged, repeated or damaged";
    "reports" Counter Times "safe_reports" |s| s.reports, "reports of the receiver";
    "noticed" Counter Times "safe_notices" |s| s.noticed, "notices to the application";
    "p" Level Ratio "safe_loss_event_rate" |s| s.evidence.p, "loss event rate (RFC 5348)";
    "q" Level Flows "safe_tcp_flows" |s| s.evidence.q.unwrap_or(0.0), "number of TCP flows as which this flow counts; 0 without loss";
    "x_tcp_bps" Rate BitsPerSecond "safe_tcp_rate_bits_per_second" |s| s.evidence.x_tcp_bps.unwrap_or(0.0), "bits of data per second that TCP would send; 0 without a limit";
    "rtt_s" Level Seconds "safe_rtt_seconds" |s| s.evidence.rtt_s.unwrap_or(0.0), "smoothed round-trip time; 0 before the first report";
    "queue_s" Level Seconds "safe_queue_seconds" |s| s.evidence.queue_s, "delay of queues on the way to the receiver";
    "loss" Level Ratio "safe_network_loss_ratio" |s| s.evidence.loss, "fraction lost in the network in the last window, by the reports";
    "host_loss" Level Ratio "safe_host_loss_ratio" |s| s.evidence.host_loss, "fraction that the receiving host lost in the last window, by the reports";
    #[cfg(test)] "nonce_safe" Counter Times "nonce_safe" |s| s.reports * 1000 + 7, "a counter of the tests";
}

table! {
    /// Values of a sender under SafeUDP, as its receiver knows them.
    pub SAFE_RECEIVED of safe::ReceivedSafely;
    "state_number" Level Code "safe_sender_state_number" |r| r.state.map_or(0, |(state, _)| 1 + state as u8), "`state` of the sender as a number: one more than that in section 7 of safeudp.md; 0 before its first beat";
    "kept" Least Ratio "safe_sender_kept_ratio" |r| r.state.map_or(1.0, |(_, kept)| kept), "fraction of the data that the sender sends";
    "sender_shed" Counter Datagrams "safe_sender_shed_datagrams" |r| r.shed, "dropped by the sender on purpose: neither expected nor lost";
    "rejected" Counter Times "safe_rejected_messages" |r| r.rejected, "messages that were ignored: forged, repeated, damaged, or of another host without a key";
}

table! {
    /// Counters of the frames in a recording.
    pub(crate) FRAMES of deframe::Counts;
    "frames" Counter Frames "" |c| c.frames, "frames in the recording";
    "invalid" Counter Frames "" |c| c.source_invalid + c.lost_frames, "of these: marked invalid, by their source or because they were lost";
    "lost_frames" Counter Frames "" |c| c.lost_frames + c.partial, "of these: not received whole (invalid, or kept in part with `--partial keep`)";
    "unfilled_frames" Counter Frames "" |c| c.unfilled_frames, "frames of gaps longer than `--fill`: in the gaps file, not in the recording and not in `frames`";
    "unfilled_bytes" Counter Bytes "" |c| c.unfilled_bytes, "the same for a stream without frames";
    "partial_frames" Counter Frames "" |c| c.partial, "of the lost: kept in part";
    "odd_headers" Counter Frames "" |c| c.odd_headers, "of `frames`: passed on unchanged although their header is damaged or does not fit this stream";
    "frame_slips" Counter Times "" |c| c.slips, "times that frames were found at another offset than expected: bytes were lost or inserted before";
    "ambiguous_frames" Counter Frames "" |c| c.ambiguous, "lost frames whose thread or time was guessed";
    "trimmed_bytes" Counter Bytes "" |c| c.trimmed_bytes, "data left out: the rest of a frame that began before the first datagram; at the end the fill pattern that completes the last datagram, and over TCP a partial frame";
    "unselected_frames" Counter Frames "" |c| c.unselected_frames, "frames of stations and threads that are not selected, received or lost: not in the recording, and in no other count of frames";
    #[cfg(test)] "nonce_frames" Counter Frames "" |c| c.frames * 1000 + 7, "a counter of the tests";
}

/// Returns a number for JSON; NaN and infinities become 0.
pub fn number(value: impl Into<Value>) -> Number {
    match value.into() {
        Value::Number(number) => number,
        _ => 0.into(),
    }
}

/// Returns the counters of statuses, a sender's first.
fn all() -> impl Iterator<Item = &'static Counter> {
    let streams = counters(SENT).chain(counters(RECEIVED));
    streams
        .chain(counters(SAFE_SENT))
        .chain(counters(SAFE_RECEIVED))
}

fn counters<T>(table: &'static [Field<T>]) -> impl Iterator<Item = &'static Counter> {
    table.iter().map(|field| &field.counter)
}

/// Returns the counters of statuses, each name once (a receiver and a sender share some).
pub fn shown() -> impl Iterator<Item = &'static Counter> {
    let is_first = |it: &Counter| named(it.name).is_some_and(|first| std::ptr::eq(first, it));
    all().filter(move |counter| is_first(counter))
}

/// Returns the counter of a status with this name.
pub fn named(name: &str) -> Option<&'static Counter> {
    all().find(|counter| counter.name == name)
}

/// Returns the values of the counters that have a short name, as text.
pub fn brief(value: impl Fn(&Counter) -> Option<Number>) -> Vec<String> {
    let counters = shown().filter(|counter| !counter.brief.is_empty());
    let each = counters.filter_map(|counter| {
        let value = counter.show(&value(counter)?);
        Some(format!("{} {value}", counter.brief))
    });
    each.collect()
}

/// Returns whether any table has a counter of this name.
fn is_defined(name: &str) -> bool {
    named(name).is_some() || FRAMES.iter().any(|field| field.counter.name == name)
}

impl Unit {
    /// Returns whether its values can be fractions.
    pub fn is_real(self) -> bool {
        matches!(
            self,
            Unit::BitsPerSecond | Unit::Seconds | Unit::Ratio | Unit::Flows
        )
    }
}

impl Counter {
    /// Combines the values of two streams.
    pub fn join(&self, a: &Number, b: &Number) -> Number {
        match (self.kind, a.as_u64(), b.as_u64()) {
            (Kind::Level, ..) if real(a) < real(b) => b.clone(),
            (Kind::Least, ..) if real(a) > real(b) => b.clone(),
            (Kind::Level | Kind::Least, ..) => a.clone(),
            (_, Some(a), Some(b)) => a.saturating_add(b).into(),
            _ => number(real(a) + real(b)),
        }
    }

    /// Formats a value, with its unit unless the unit is obvious.
    pub fn show(&self, value: &Number) -> String {
        match self.unit {
            Unit::BitsPerSecond => show_rate(real(value)),
            Unit::Seconds => show_seconds(real(value)),
            Unit::Ratio if (f64::MIN_POSITIVE..5e-4).contains(&real(value)) => {
                format!("{:.1e} %", real(value) * 100.0)
            }
            Unit::Ratio => format!("{:.1} %", real(value) * 100.0),
            Unit::Flows => format!("{:.2}", real(value)),
            _ => show_count(value.as_u64().unwrap_or(0)),
        }
    }
}

/// Returns a value as a float.
pub fn real(value: &Number) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Values of counters. Unknown names, e.g. from a newer program, are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts(Vec<(&'static str, Number)>);

impl Counts {
    /// Reads all counters of a table, for a status.
    pub fn of<T>(table: &[Field<T>], it: &T) -> Counts {
        let fields = table.iter();
        let values = fields.map(|field| (field.counter.name, (field.get)(it)));
        Counts(values.collect())
    }

    /// Reads the counters of a result: those that count from the start.
    pub fn total<T>(table: &[Field<T>], it: &T) -> Counts {
        let fields = table.iter();
        let fields = fields.filter(|field| field.counter.kind == Kind::Counter);
        let values = fields.map(|field| (field.counter.name, (field.get)(it)));
        Counts(values.collect())
    }

    /// Removes a counter.
    pub fn without(mut self, name: &str) -> Counts {
        self.0.retain(|(counter, _)| *counter != name);
        self
    }

    /// Returns the value of a counter, if it is known.
    pub fn get(&self, name: &str) -> Option<&Number> {
        debug_assert!(is_defined(name), "no table has a counter `{name}`");
        let found = self.0.iter().find(|(counter, _)| *counter == name);
        found.map(|(_, value)| value)
    }

    /// Returns a count; 0 if it is unknown.
    pub fn count(&self, name: &str) -> u64 {
        self.get(name).and_then(Number::as_u64).unwrap_or(0)
    }

    /// Returns a rate, a time or a fraction.
    pub fn real(&self, name: &str) -> f64 {
        self.get(name).map_or(0.0, real)
    }

    /// Formats all counters as one line of text.
    pub fn text(&self) -> String {
        let each = self.0.iter().filter_map(|(name, value)| {
            let counter = named(name).filter(|counter| counter.unit != Unit::Code)?;
            let value = counter.show(value);
            Some(format!("{} {value}", name.replace('_', " ")))
        });
        each.collect::<Vec<String>>().join(", ")
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Any counter of any table: which there are, the table says of which they are read.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for Counts {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Counts".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let frames = FRAMES.iter().map(|field| &field.counter);
        // The values of SafeUDP are in objects of their own.
        let is_of_stream = |it: &&Counter| {
            let mut streams = counters(SENT).chain(counters(RECEIVED));
            streams.any(|known| std::ptr::eq(known, *it))
        };
        let streams = shown().filter(is_of_stream);
        let properties = streams.chain(frames).map(|counter| {
            let kind = match counter.unit.is_real() {
                true => "number",
                false => "integer",
            };
            let value = serde_json::json!({ "type": kind, "description": counter.help });
            (counter.name.to_owned(), value)
        });
        let properties: serde_json::Map<String, Value> = properties.collect();
        schemars::json_schema!({ "type": "object", "properties": properties })
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        let values = HashMap::<String, Value>::deserialize(deserializer)?;
        let known = shown().filter_map(|counter| match values.get(counter.name)? {
            Value::Number(value) => Some((counter.name, value.clone())),
            _ => None,
        });
        Ok(Counts(known.collect()))
    }
}

impl<const N: usize> From<[(&'static str, Number); N]> for Counts {
    fn from(values: [(&'static str, Number); N]) -> Counts {
        Counts(values.into())
    }
}

/// A result with its counters.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counted<T> {
    /// The counters by name.
    #[serde(flatten)]
    pub counts: Counts,
    /// All other fields of the result.
    #[serde(flatten)]
    pub report: T,
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.report
    }
}

impl From<transmit::SendReport> for Counted<transmit::SendReport> {
    fn from(report: transmit::SendReport) -> Self {
        let (live, rate_bps) = (report.live, report.rate_bps);
        // The report also contains the duration of the slips.
        let counts = Counts::total(SENT, &Sent { live, rate_bps }).without("slips");
        Counted { counts, report }
    }
}

impl From<receive::ReceiveReport> for Counted<receive::ReceiveReport> {
    fn from(report: receive::ReceiveReport) -> Self {
        let counts = Counts::total(RECEIVED, &Received::total(&report));
        Counted { counts, report }
    }
}

impl Received {
    /// Reads the final counters of a receiver.
    pub fn total(report: &receive::ReceiveReport) -> Received {
        let (live, seconds) = (report.live.clone(), report.seconds);
        let rate_bps = match seconds > 0.0 {
            true => live.bytes as f64 * 8.0 / seconds,
            false => 0.0,
        };
        Received { live, rate_bps }
    }
}

/// Returns the schema of a receiver's counters for the HTTP API.
pub(crate) fn received_schema() -> Schema {
    schema(counters(RECEIVED), |it| it.help.to_owned(), Schema::Object)
}

/// Returns the schema of a sender's counters for the HTTP API.
pub(crate) fn sent_schema() -> Schema {
    schema(counters(SENT), |it| it.help.to_owned(), Schema::Object)
}

/// Returns the schema of the values of a sender under SafeUDP for the HTTP API.
pub(crate) fn safe_sent_schema() -> Schema {
    schema(counters(SAFE_SENT), |it| it.help.to_owned(), Schema::Object)
}

/// Returns the schema of the values of SafeUDP at a receiver for the HTTP API.
pub(crate) fn safe_received_schema() -> Schema {
    schema(
        counters(SAFE_RECEIVED),
        |it| it.help.to_owned(),
        Schema::Object,
    )
}

/// Returns the schema of lists of values of all counters for the HTTP API; for a name in both tables it gives both meanings.
pub fn lists_schema() -> Schema {
    let help = |counter: &Counter| {
        let same = all().filter(|other| other.name == counter.name);
        let helps: Vec<&str> = same.map(|counter| counter.help).collect();
        helps.join("; or ")
    };
    schema(shown(), help, |value| {
        let list = ArrayBuilder::new().items(RefOr::T(Schema::Object(value)));
        Schema::Array(list.build())
    })
}

fn schema(
    counters: impl Iterator<Item = &'static Counter>,
    help: impl Fn(&Counter) -> String,
    wrap: impl Fn(Object) -> Schema,
) -> Schema {
    let all = counters.fold(ObjectBuilder::new(), |all, counter| {
        let kind = match counter.unit.is_real() {
            true => Type::Number,
            false => Type::Integer,
        };
        let value = ObjectBuilder::new().schema_type(kind);
        let value = value.description(Some(help(counter))).build();
        all.property(counter.name, wrap(value))
            .required(counter.name)
    });
    Schema::Object(all.build())
}

/// Definitions of all counters of a status, and where the status has them.
#[derive(Serialize, ToSchema)]
pub struct Counters {
    sending: Vec<&'static Counter>,
    receiving: Vec<&'static Counter>,
    /// Those in `safe` of a sender.
    safe_sending: Vec<&'static Counter>,
    /// Those in `safe` of a received stream.
    safe_receiving: Vec<&'static Counter>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            sending: counters(SENT).collect(),
            receiving: counters(RECEIVED).collect(),
            safe_sending: counters(SAFE_SENT).collect(),
            safe_receiving: counters(SAFE_RECEIVED).collect(),
        }
    }
}

#[cfg(test)]
mod tests;

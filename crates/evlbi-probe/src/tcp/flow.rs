//! A connection: the combined knowledge of both endpoints.

use evlbi_core::account::{Distribution, Summary};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::socket::GrantedBuffer;
use evlbi_net::tcp::{Given, MessagesIn, MessagesOut, Taken};
use evlbi_trace::tcp::{
    Arrival, Bursts, Disturbance, Info, Interval, Reading, TimeSeries, Timeliness, intervals,
    lateness,
};
use serde::Serialize;

use super::{Asked, Direction, TestReport};
use crate::endpoint::{EndpointReport, FlowEnd};
use crate::measure::{ClockFit, Record};

/// A message is late if it arrives this fraction of the round-trip time, and [`MIN_TOLERANCE`], later than the least delayed one.
const TOLERANCE: f64 = 0.1;
const MIN_TOLERANCE: Nanos = Nanos(5_000_000);
/// Width of the bins of delays, in nanoseconds.
const BIN: u64 = 100_000;

/// A connection. Times are in seconds unless stated otherwise.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flow {
    /// Index of the connection in the test, from 0.
    pub number: usize,
    /// Direction of its data.
    pub direction: Direction,
    /// Congestion control algorithm of the sender.
    pub algorithm: String,
    /// Local and remote port.
    pub ports: [u16; 2],
    /// Payload of a segment, in bytes.
    pub segment: u32,
    /// Path MTU that the kernel assumes, in bytes.
    pub path_mtu: u32,
    /// The sender's send buffer, if one was requested.
    pub send_buffer: Option<GrantedBuffer>,
    /// The receiver's receive buffer, if one was requested.
    pub receive_buffer: Option<GrantedBuffer>,
    /// Bytes that the receiver read; if that is unknown, acknowledged bytes.
    pub bytes: u64,
    /// Time for these bytes.
    pub seconds: f64,
    /// Throughput, in bits per second.
    pub rate: f64,
    /// Sent segments, including retransmissions.
    pub segments: u64,
    /// Retransmitted segments.
    pub sent_again: u32,
    /// Retransmissions of these that were needless (DSACK, RFC 2883).
    pub needless: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Segments that arrived out of order.
    pub out_of_order: u32,
    /// Time in which the sender had data to send, by the kernel.
    pub busy: f64,
    /// Busy time limited by the receiver's window.
    pub receiver_limited: f64,
    /// Busy time limited by the send buffer.
    pub buffer_limited: f64,
    /// Time in which the send buffer accepted no data.
    pub blocked: f64,
    /// CPU time of the sender.
    pub sender_cpu_seconds: f64,
    /// CPU time of the receiver.
    pub receiver_cpu_seconds: f64,
    /// Rate of each stage of a file transfer while it works, without waiting for another, in bits per second.
    pub stages: Vec<Stage>,
    /// Time series: losses, windows, round-trip times, limits.
    pub course: TimeSeries,
    /// Burstiness of arrivals after the first loss.
    pub bursts: Option<Bursts>,
    /// Throughput in each interval of the test.
    pub intervals: Vec<Interval>,
    /// Effect of the background stream on its rate.
    pub disturbance: Option<Disturbance>,
    /// Messages at a constant rate.
    pub messages: Option<Messages>,
    /// Errors.
    pub errors: Vec<String>,
    /// Samples of the sender's and of the receiver's kernel.
    #[serde(skip)]
    pub readings: [Vec<Reading>; 2],
}

/// A stage of a file transfer.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    /// Work of the stage: `reading the file and sending`, `sending` or `writing the file`.
    pub name: &'static str,
    /// Rate, in bits per second.
    pub limit: f64,
}

/// Messages at a constant rate.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Messages {
    /// Messages that were due.
    pub due: u64,
    /// Messages of these that were written to the connection.
    pub sent: u64,
    /// Messages of these that were shed for lack of room.
    pub shed: u64,
    /// Messages of these that were received.
    pub received: u64,
    /// Maximum bytes that waited before the send buffer.
    pub most_waiting: u64,
    /// Time that messages waited for room there.
    pub blocked: f64,
    /// Lateness of the messages.
    pub timely: Timeliness,
    /// One-way delay of messages, from the write at the sender to the read at the receiver, in nanoseconds, corrected by the estimated
    /// clock offset.
    pub delay: Option<Summary>,
    /// One of this many messages is recorded.
    pub every: u64,
    /// Messages that were recorded one by one.
    #[serde(skip)]
    pub kept: Vec<Kept>,
}

/// A message: its number; departure and arrival, in nanoseconds since the first was due; lateness.
pub type Kept = (u64, i64, i64, i64);

impl Flow {
    /// Combines the reports of two endpoints whose clocks differ by `clock`, with the throughput in intervals of this many seconds. Returns
    /// `None` for a connection that neither endpoint knows.
    pub(crate) fn new(
        number: usize,
        direction: Direction,
        asked: &Asked,
        interval: f64,
        ends: &TestReport,
        clock: Option<&ClockFit>,
    ) -> Option<Flow> {
        let ends: [&EndpointReport; 2] = direction.ends(&ends.here, &ends.there).into();
        let [sender, receiver] = ends.map(|end| end.flows.as_ref()?.flows.get(number));
        let one = sender.or(receiver)?;
        let mut readings = ends.map(|end| {
            let all = end.flows.iter().flat_map(|end| &end.sampled.readings);
            let ours = all.filter(|reading| reading.connection as usize == number);
            ours.copied().collect::<Vec<Reading>>()
        });
        for reading in &mut readings[1] {
            reading.at = by_sender(direction, clock, reading.at);
        }
        let given = sender.and_then(|end| end.given.as_ref());
        let taken = receiver.and_then(|end| end.taken.as_ref());
        let last = |end: Option<&FlowEnd>| end.and_then(|end| end.last).unwrap_or_default();
        let [of_sender, of_receiver]: [Info; 2] = [last(sender), last(receiver)];
        let is_offered = asked.rate.is_none();
        let course = TimeSeries::new(&readings[0], is_offered);
        let first_and_last = readings[0].first().zip(readings[0].last());
        let span = first_and_last.map_or(0, |(first, last)| last.at.saturating_sub(first.at));
        let giving = given.map_or(0.0, |given| given.seconds);
        let (bytes, seconds) = match taken {
            // Data that was sent and did not arrive took time, too.
            Some(taken) => (taken.bytes, taken.seconds.max(giving)),
            None => (of_sender.acknowledged, span as f64 * 1e-9),
        };
        let round_trip = Nanos(u64::from(of_sender.shortest_round_trip) * 1000);
        let first_loss = course.losses.first().zip(readings[0].first());
        let first_loss = first_loss.filter(|_| clock.is_some());
        let bursts = first_loss.and_then(|(loss, begin)| {
            let moment = begin.at.saturating_add((loss.at * 1e9) as u64);
            Bursts::after(&readings[1], moment, round_trip)
        });
        let errors = [
            ("sender", given.and_then(|given| given.error.clone())),
            ("receiver", taken.and_then(|taken| taken.error.clone())),
        ];
        let said = |(who, error): (&str, Option<String>)| Some(format!("{who}: {}", error?));
        let out = given.and_then(|given| given.messages);
        let come = taken.and_then(|taken| taken.messages.as_ref());
        let messages = out
            .zip(come)
            .and_then(|(out, come)| Messages::new(asked, &out, come, round_trip, direction, clock));
        let other = asked.background;
        Some(Flow {
            number,
            direction,
            algorithm: sender.map_or_else(String::new, |end| end.algorithm.clone()),
            ports: direction.ends(one.ports[0], one.ports[1]).into(),
            segment: of_sender.segment,
            path_mtu: of_sender.path_mtu,
            send_buffer: sender.and_then(|end| end.send_buffer.clone()),
            receive_buffer: receiver.and_then(|end| end.receive_buffer.clone()),
            bytes,
            seconds,
            rate: bytes as f64 * 8.0 / seconds.max(1e-9),
            segments: of_sender.data_segments.into(),
            sent_again: of_sender.sent_again,
            needless: of_sender.needless,
            timeouts: of_sender.timeouts,
            out_of_order: of_receiver.out_of_order,
            busy: of_sender.busy as f64 * 1e-6,
            receiver_limited: of_sender.receiver_limited as f64 * 1e-6,
            buffer_limited: of_sender.buffer_limited as f64 * 1e-6,
            blocked: given.map_or(0.0, |given| given.blocked_seconds),
            sender_cpu_seconds: given.map_or(0.0, |given| given.cpu_seconds),
            receiver_cpu_seconds: taken.map_or(0.0, |taken| taken.cpu_seconds),
            disturbance: other
                .and_then(|other| Disturbance::new(&readings[0], other.from, other.to)),
            intervals: intervals(&readings[0], interval.max(asked.sample)),
            stages: stages(given, taken),
            course,
            bursts,
            messages,
            errors: errors.into_iter().filter_map(said).collect(),
            readings,
        })
    }
}

/// Returns the rates of a file transfer's stages while they work.
fn stages(given: Option<&Given>, taken: Option<&Taken>) -> Vec<Stage> {
    let Some((given, taken)) = given.zip(taken) else {
        return Vec::new();
    };
    let stage = |name, bytes: u64, seconds: f64| Stage {
        name,
        limit: bytes as f64 * 8.0 / seconds.max(1e-9),
    };
    let mut stages = Vec::new();
    if given.is_file || taken.disk_seconds.is_some() {
        let name = match given.is_file {
            true => "reading the file and sending",
            false => "sending",
        };
        let busy = given.seconds - given.blocked_seconds;
        stages.push(stage(name, given.bytes, busy));
    }
    if let Some(seconds) = taken.disk_seconds {
        stages.push(stage("writing the file", taken.bytes, seconds));
    }
    stages
}

/// Converts a time of the receiver, in nanoseconds, to the sender's clock.
fn by_sender(direction: Direction, clock: Option<&ClockFit>, at: u64) -> u64 {
    let Some(clock) = clock else {
        return at;
    };
    let ahead = match direction {
        // It is stated by the local clock.
        Direction::There => {
            let here = at.saturating_add_signed((-clock.offset).round() as i64);
            clock.offset_at(here).round() as i64
        }
        Direction::Back => (-clock.offset_at(at)).round() as i64,
    };
    at.saturating_add_signed(ahead.saturating_neg())
}

impl Messages {
    fn new(
        asked: &Asked,
        out: &MessagesOut,
        come: &MessagesIn,
        round_trip: Nanos,
        direction: Direction,
        clock: Option<&ClockFit>,
    ) -> Option<Messages> {
        let rate = BitRate::new(asked.rate?)?;
        let size = usize::try_from(asked.message?).ok()?;
        let since = |at: u64| at.wrapping_sub(out.start).cast_signed();
        let times = |Record(number, left, came): &Record| {
            (
                *number,
                since(*left),
                since(by_sender(direction, clock, *came)),
            )
        };
        let times: Vec<(u64, i64, i64)> = come.records.iter().map(times).collect();
        let arrivals = times.iter().map(|(number, _, came)| (*number, *came));
        let arrivals: Vec<Arrival> = arrivals.collect();
        let tolerance = Nanos((round_trip.0 as f64 * TOLERANCE) as u64).max(MIN_TOLERANCE);
        let kept = times.iter().zip(lateness(rate, size, &arrivals));
        let kept = kept.map(|((number, left, came), late)| (*number, *left, *came, late));
        let kept: Vec<Kept> = kept.collect();
        let mut delay = Distribution::new(Some(BIN));
        for (_, left, came) in &times {
            delay.add(came.saturating_sub(*left));
        }
        let pairs = kept.windows(2);
        let apart = pairs.map(|pair| pair[1].0.saturating_sub(pair[0].0));
        Some(Messages {
            due: out.due,
            sent: out.sent,
            shed: out.shed,
            received: come.count,
            most_waiting: out.most_waiting,
            blocked: out.blocked,
            timely: Timeliness::new(rate, size, tolerance, &arrivals),
            delay: clock.and_then(|_| delay.summary()),
            every: apart.min().unwrap_or(1),
            kept,
        })
    }
}

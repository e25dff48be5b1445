//! A connection: what both ends know of it together.

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

/// A message is late when it comes later than the most timely one by more than this part of the round trip, or this time.
const TOLERANCE: f64 = 0.1;
const MIN_TOLERANCE: Nanos = Nanos(5_000_000);
/// Width of the bins of delays in nanoseconds.
const BIN: u64 = 100_000;

/// A connection. Times are in seconds where nothing else is said.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flow {
    /// Its place among the connections of the test, from 0 on.
    pub number: usize,
    /// Which way its data goes.
    pub direction: Direction,
    /// Congestion control of the sender.
    pub algorithm: String,
    /// Ports here and there.
    pub ports: [u16; 2],
    /// Bytes of a segment.
    pub segment: u32,
    /// Bytes of the longest packet that the path is believed to carry.
    pub path_mtu: u32,
    /// The sender's send buffer, where one was asked for.
    pub send_buffer: Option<GrantedBuffer>,
    /// The receiver's receive buffer, likewise.
    pub receive_buffer: Option<GrantedBuffer>,
    /// Bytes that the receiver took; where it is not known, that were acknowledged.
    pub bytes: u64,
    /// In this time.
    pub seconds: f64,
    /// Bits per second.
    pub rate: f64,
    /// Segments that were sent, in all.
    pub segments: u64,
    /// Segments that were sent again.
    pub sent_again: u32,
    /// Of these, needlessly (DSACK, RFC 2883).
    pub needless: u32,
    /// Times that nothing was acknowledged for too long.
    pub timeouts: u32,
    /// Segments that came out of order.
    pub out_of_order: u32,
    /// Time in which the sender had something to send, in seconds as the kernel says.
    pub busy: f64,
    /// Of this, held back by the receiver's window.
    pub receiver_limited: f64,
    /// Of this, held back by the send buffer.
    pub buffer_limited: f64,
    /// Time in which the connection took nothing of what the sender had.
    pub blocked: f64,
    /// Processor time of the sender.
    pub sender_cpu_seconds: f64,
    /// Processor time of the receiver.
    pub receiver_cpu_seconds: f64,
    /// Bits per second that each stage of a file's way reaches while it works, and does not wait for another.
    pub stages: Vec<Stage>,
    /// Losses, windows, round trips, what held it back.
    pub course: TimeSeries,
    /// How evenly data came after the first loss.
    pub bursts: Option<Bursts>,
    /// The throughput in each interval of the test.
    pub intervals: Vec<Interval>,
    /// What the stream beside it did to its rate.
    pub disturbance: Option<Disturbance>,
    /// Of messages at a constant rate.
    pub messages: Option<Messages>,
    /// What went wrong.
    pub errors: Vec<String>,
    /// What the kernels said, of the sender and of the receiver.
    #[serde(skip)]
    pub readings: [Vec<Reading>; 2],
}

/// A stage of a file's way.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    /// What it does: `reading the file and sending`, `sending` or `writing the file`.
    pub name: &'static str,
    /// Bits per second.
    pub limit: f64,
}

/// Messages at a constant rate.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Messages {
    /// Messages that were due.
    pub due: u64,
    /// Of these, given to the connection.
    pub sent: u64,
    /// Of these, given up for want of room.
    pub shed: u64,
    /// Of these, come.
    pub received: u64,
    /// Most bytes that waited before the send buffer.
    pub most_waiting: u64,
    /// Seconds that messages waited for room there.
    pub blocked: f64,
    /// Whether they came when they should.
    pub timely: Timeliness,
    /// From when each was handed to the sender's kernel to when it was taken from the receiver's, in nanoseconds, by the
    /// clock as it was found.
    pub delay: Option<Summary>,
    /// Each of so many is looked at.
    pub every: u64,
    /// Those that were kept one by one.
    #[serde(skip)]
    pub kept: Vec<Kept>,
}

/// A message's number, time in nanoseconds from when the first was due to departure and to arrival, and lateness.
pub type Kept = (u64, i64, i64, i64);

impl Flow {
    /// Of a connection between two ends whose clocks are so far apart, with its throughput in intervals of so many seconds;
    /// none of a connection that neither end knows.
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
            // What was given and did not come took its time, too.
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

/// What the ends of a file's way reach while they work.
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

/// A time of the receiver's, in nanoseconds, by the sender's clock.
fn by_sender(direction: Direction, clock: Option<&ClockFit>, at: u64) -> u64 {
    let Some(clock) = clock else {
        return at;
    };
    let ahead = match direction {
        // It is known by the clock here.
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

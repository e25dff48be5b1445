//! One point of a sweep: the reports of both endpoints on one stream, combined.

use std::collections::BTreeMap;

use evlbi_core::account::{self, Bin, FreeRuns, Summary};
use evlbi_core::pace::Slips;
use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes;
use evlbi_net::host::{Core, Interface, nic};
use evlbi_net::socket::GrantedBuffer;
use evlbi_net::udp::{SendCounts, max_joined};
use evlbi_wire::validity::SequenceGap;
use serde::Serialize;

use super::direction::Direction;
use super::session::{Side, TestReport};
use crate::endpoint::{Burden, EndpointReport, Observed, RoundTrip};
use crate::measure::{
    Attribution, ClockFit, Exchanges, LossLocation, Pattern, Spacing, Stream, Suspect, Tallied,
    Window,
};

/// Factor for [`hardly_more`]: a counter of all packets up to this multiple of the stream's counted hardly any others.
const HARDLY_ELSE: f64 = 1.1;
/// Other packets that are always allowed.
const FEW: u64 = 100;
/// Number of windows for the pattern of loss.
const WINDOWS: u64 = 100;

/// Limit of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Region {
    /// No limit: datagrams arrive as requested, so that the rate is the inverse of their spacing.
    A,
    /// The path is full: datagrams are contiguous on the wire.
    B,
    /// The hosts cannot send or receive datagrams faster.
    C,
}

/// Fate of a stream, and loss locations. Rates are in bits per second, times in nanoseconds unless stated otherwise.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// Direction of the stream.
    pub direction: Direction,
    /// UDP payload of each datagram in bytes.
    pub size: usize,
    /// Datagrams back to back.
    pub burst: u32,
    /// Datagrams with a number of the sender: unique + lost.
    pub sent: u64,
    /// Arrivals: unique + duplicates.
    pub received: u64,
    /// Received datagrams, each counted once.
    pub unique: u64,
    /// network_lost + host_lost + unattributed.
    pub lost: u64,
    /// Loss fraction of the sent datagrams, 0 to 1.
    pub loss: f64,
    /// Of the lost, those lost in the network.
    pub network_lost: u64,
    /// Of the lost, those dropped by the hosts or their NICs.
    pub host_lost: u64,
    /// Of the lost, those at an unknown place.
    pub unattributed: u64,
    /// Loss locations.
    pub attribution: Attribution,
    /// Arrivals beyond the first of a datagram.
    pub duplicates: u64,
    /// Datagrams that arrived after one with a higher number (RFC 4737).
    pub reordered: u64,
    /// Of the unique, those that arrived after the loss timeout.
    pub late: u64,
    /// Datagrams with the test's key and an impossible number.
    pub foreign: u64,
    /// Requested time between datagrams, or bursts, in nanoseconds; `None` for as fast as the host can.
    pub spacing_asked: Option<f64>,
    /// Mean time between departures, in nanoseconds.
    pub spacing_achieved: Option<f64>,
    /// Requested UDP payload, in bits per second.
    pub rate_asked: Option<f64>,
    /// Sent UDP payload, in bits per second.
    pub rate_sent: f64,
    /// Received UDP payload including duplicates, in bits per second.
    pub rate_received: f64,
    /// Sent rate on Ethernet, which adds 66 bytes to each datagram (IPv6: 86), in bits per second.
    pub wire_rate_sent: f64,
    /// Received rate on Ethernet, in bits per second.
    pub wire_rate_received: f64,
    /// Duration of sending, in seconds.
    pub seconds: f64,
    /// Nanoseconds between departures; of bursts, if the host sends as fast as it can.
    pub departures: Option<Summary>,
    /// Nanoseconds between arrivals.
    pub arrivals: Option<Summary>,
    /// Maximum number of datagrams that the receiving kernel joined; they share a time of arrival.
    pub most_joined: u64,
    /// Number of runs of loss by length.
    pub loss_runs: BTreeMap<u64, u64>,
    /// The same as a table.
    pub loss_runs_table: Vec<Bin>,
    /// Number of distances, in datagrams from the start of a run to that of the next, by distance.
    pub loss_distances: BTreeMap<u64, u64>,
    /// The same as a table.
    pub loss_distances_table: Vec<Bin>,
    /// Lengths of all runs of loss.
    pub loss_run_lengths: Option<Summary>,
    /// Runs of loss, up to a maximum number.
    pub intervals: Vec<SequenceGap>,
    /// Number of datagrams by extent of reordering (RFC 4737).
    pub reordering_extents: BTreeMap<u64, u64>,
    /// The same as a table.
    pub reordering_extents_table: Vec<Bin>,
    /// All extents.
    pub reordering_extent_sizes: Option<Summary>,
    /// Runs of arrivals in order (RFC 4737).
    pub reordering_free_runs: FreeRuns,
    /// One-way delay (RFC 7679), as accurate as the clock offset.
    pub delay: Option<Delay>,
    /// Packet delay variation above the minimum (PDV, RFC 5481), in nanoseconds: median, 99 %, 99.9 %.
    pub pdv: Option<[i64; 3]>,
    /// Delay variation from one datagram to the next (RFC 3393), in nanoseconds.
    pub ipdv: Option<Summary>,
    /// Interarrival jitter (RFC 3550, section 6.4.1) in nanoseconds.
    pub jitter: f64,
    /// Report of the sending host.
    pub sender: SenderSide,
    /// Report of the receiving host.
    pub receiver: ReceiverSide,
    /// Extra load of the receiver.
    pub burden: Option<Burden>,
    /// Work of the receiving host's CPUs, as fractions of their time.
    pub receiver_cpu: Option<Shares>,
    /// The same of the sending host.
    pub sender_cpu: Option<Shares>,
    /// Distribution of loss over time.
    pub pattern: Pattern,
    /// Limit of the point, as far as the other points of its sweep show.
    pub region: Option<Region>,
    /// Finding, in a sentence.
    pub finding: String,
}

/// Work of CPUs, as fractions of their time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shares {
    /// Programs, including low priority.
    pub user: f64,
    /// The kernel on behalf of programs.
    pub kernel: f64,
    /// Interrupts and softirqs.
    pub interrupts: f64,
    /// Idle.
    pub idle: f64,
    /// Other virtual machines.
    pub steal: f64,
}

impl Shares {
    /// Returns `None` if no tick has passed.
    fn of(cores: &[Core]) -> Option<Shares> {
        let sum = |get: fn(&Core) -> u64| cores.iter().map(get).sum::<u64>() as f64;
        let parts = [
            sum(|core| core.user + core.nice),
            sum(|core| core.system),
            sum(|core| core.irq + core.softirq),
            sum(|core| core.idle + core.iowait),
            sum(|core| core.steal),
        ];
        let all: f64 = parts.iter().sum();
        let [user, kernel, interrupts, idle, steal] = parts.map(|part| part / all);
        (all > 0.0).then_some(Shares {
            user,
            kernel,
            interrupts,
            idle,
            steal,
        })
    }
}

/// One-way delay in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Delay {
    /// Minimum.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Mean of all.
    pub mean: f64,
    /// 99 % quantile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Maximum common error of all of these, if the minimum delays of both directions are equal.
    pub error_if_symmetric: f64,
    /// The same for any delays.
    pub error: f64,
}

/// Report of a stream's sending host.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SenderSide {
    /// Results of the sends, by the sending socket.
    pub counts: SendCounts,
    /// Delay of the schedule because the host fell behind.
    pub slips: Slips,
    /// CPU time of the sending thread, in seconds.
    pub cpu_seconds: f64,
    /// Interface of departure, if known.
    pub interface: Option<String>,
    /// Reason for an early end.
    pub stopped: Option<String>,
    /// Counters of the host during the stream.
    pub host: Observed,
}

/// Report of a stream's receiving host.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReceiverSide {
    /// Messages that the socket dropped.
    pub socket_drops: u64,
    /// Requested and granted receive buffer of the socket, in bytes.
    pub buffer: Option<GrantedBuffer>,
    /// CPU time of the receiving thread, in seconds.
    pub cpu_seconds: f64,
    /// Datagrams that do not belong to the test.
    pub strangers: u64,
    /// Interface of arrival, if known.
    pub interface: Option<String>,
    /// Counters of the host during the stream.
    pub host: Observed,
}

impl Point {
    /// Combines the reports of two endpoints whose clocks differ by `clock`; returns `None` if the sender has not sent.
    pub(crate) fn new(
        direction: Direction,
        stream: &Stream,
        burden: Option<Burden>,
        ends: &TestReport,
        clock: Option<ClockFit>,
    ) -> Option<Point> {
        let is_v6 = ends.peer.ip().to_canonical().is_ipv6();
        let (sender, receiver) = direction.ends(&ends.here, &ends.there);
        let departed = sender.departed.as_ref()?;
        let heard = &receiver.listened;
        let tallied = &heard.tallied;
        let account = &tallied.account;
        let counters = &account.counters;
        let evidence = Evidence {
            size: stream.size,
            is_v6,
            sender: side(sender),
            receiver: side(receiver),
            counts: departed.counts,
            socket_drops: heard.socket_drops,
            most_joined: heard.most_joined,
            is_exact: true,
        };
        let attribution = evidence.attribute(counters.lost);
        let on_the_wire = on_the_wire(stream.size, is_v6);
        let bits = stream.size as f64 * 8.0;
        let rate_sent = per_second(departed.counts.sent as f64 * bits, departed.seconds);
        let arrivals = counters.received.saturating_sub(1) as f64;
        let rate_received = per_second(arrivals * bits, tallied.arrivals_ns as f64 * 1e-9);
        let asked = stream.rate();
        let burst_bits = bits * f64::from(stream.burst);
        Some(Point {
            direction,
            size: stream.size,
            burst: stream.burst,
            sent: tallied.sent,
            received: counters.received,
            unique: counters.unique,
            lost: counters.lost,
            loss: counters.lost as f64 / tallied.sent.max(1) as f64,
            network_lost: attribution.network,
            host_lost: attribution.in_hosts(),
            unattributed: attribution.unattributed,
            attribution,
            duplicates: counters.duplicates,
            reordered: counters.reordered,
            late: tallied.late,
            foreign: tallied.foreign,
            spacing_asked: asked.map(|rate| match stream.spacing {
                Spacing::Nanoseconds(apart) => apart as f64,
                Spacing::BitsPerSecond(_) => burst_bits / rate * 1e9,
            }),
            spacing_achieved: match asked {
                Some(_) => departed.spacing.as_ref().map(|spacing| spacing.mean),
                // In bursts, of any grouping.
                None => Some(departed.seconds * 1e9 / departed.used.max(1) as f64),
            },
            rate_asked: asked,
            rate_sent,
            rate_received,
            wire_rate_sent: rate_sent * on_the_wire,
            wire_rate_received: rate_received * on_the_wire,
            seconds: departed.seconds,
            departures: departed.spacing.clone().map(Summary::with_tables),
            arrivals: tallied.gaps.clone().map(Summary::with_tables),
            most_joined: heard.most_joined,
            loss_runs: account.runs.clone(),
            loss_runs_table: account::table(&account.runs),
            loss_run_lengths: account.run_lengths.clone(),
            loss_distances: tallied.loss_distances.clone(),
            loss_distances_table: account::table(&tallied.loss_distances),
            intervals: gaps(account).copied().collect(),
            reordering_extents: account.extents.clone(),
            reordering_extents_table: account::table(&account.extents),
            reordering_extent_sizes: account.extent_sizes.clone(),
            reordering_free_runs: account.free_runs,
            delay: clock.and_then(|clock| delay(direction, &clock, tallied)),
            pdv: tallied.pdv,
            ipdv: tallied.ipdv.clone(),
            jitter: tallied.jitter,
            sender: SenderSide {
                counts: departed.counts,
                slips: departed.slips,
                cpu_seconds: departed.cpu_seconds,
                interface: sender.interface.clone(),
                stopped: departed.stopped.clone(),
                host: sender.host.clone(),
            },
            receiver: ReceiverSide {
                socket_drops: heard.socket_drops,
                buffer: heard.buffer.clone(),
                cpu_seconds: heard.cpu_seconds,
                strangers: heard.strangers,
                interface: receiver.interface.clone(),
                host: receiver.host.clone(),
            },
            burden,
            receiver_cpu: Shares::of(&receiver.host.change.cores),
            sender_cpu: Shares::of(&sender.host.change.cores),
            pattern: pattern(account, tallied.sent, departed.seconds),
            region: None,
            finding: String::new(),
        })
    }
}

/// Returns the bytes on Ethernet per byte of UDP payload.
pub fn on_the_wire(size: usize, is_v6: bool) -> f64 {
    let family = match is_v6 {
        true => Family::V6,
        false => Family::V4,
    };
    wire_bytes(size, family) as f64 / size.max(1) as f64
}

fn per_second(bits: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { bits / seconds } else { 0.0 }
}

/// Evidence of where datagrams were lost.
pub struct Evidence<'a> {
    pub size: usize,
    pub is_v6: bool,
    pub sender: Side<'a>,
    pub receiver: Side<'a>,
    /// Results of the sends, by the sending socket.
    pub counts: SendCounts,
    /// Messages that the receiving socket dropped.
    pub socket_drops: u64,
    /// Maximum number of datagrams in one message.
    pub most_joined: u64,
    /// Whether the hosts' counters cover exactly the stream's time; if not, they may include events outside of it.
    pub is_exact: bool,
}

impl Evidence<'_> {
    /// Assigns lost datagrams to the counters that may have counted them, in the order of the path.
    pub fn attribute(&self, lost: u64) -> Attribution {
        let (sender, receiver) = (self.sender.counters, self.receiver.counters);
        let counts = &self.counts;
        let in_a_message = |is_joined: bool| match is_joined {
            true => max_joined(self.size),
            false => 1,
        };
        let joined = in_a_message(counts.messages < counts.sent);
        let udp = if self.is_v6 { sender.udp6 } else { sender.udp };
        let sent_by_all = udp.out_datagrams + udp.send_buffer_errors;
        let suspect = |place, counted, each, is_ours| Suspect {
            place,
            counted,
            each,
            is_ours,
        };
        // The kernel counts a full queue before the NIC, but does not report it to the program.
        let full = udp.send_buffer_errors.saturating_sub(counts.buffer_full);
        let is_ours = self.is_exact && hardly_more(sent_by_all, counts.messages);
        let mut all = vec![
            suspect(LossLocation::SenderHost, counts.not_sent(), 1, true),
            suspect(LossLocation::SenderHost, full, joined, is_ours),
        ];
        if let Some(card) = self.sender.card() {
            let carried = card.tx_packets + card.tx_dropped;
            let failed = card.tx_dropped + card.tx_errors + card.tx_fifo;
            let is_ours = self.is_exact && hardly_more(carried, counts.sent);
            all.push(suspect(LossLocation::SenderNic, failed, joined, is_ours));
        }
        let card = self.receiver.card();
        let is_ours =
            self.is_exact && card.is_some_and(|card| hardly_more(card.rx_packets, counts.sent));
        if let Some(card) = card {
            let name = self.receiver.interface.unwrap_or_default();
            let counted = receiver.nics.get(name).into_iter().flatten();
            let not_fetched = counted.filter(|(name, _)| nic::is_not_fetched(name));
            let not_fetched: u64 = not_fetched.map(|(_, count)| count).sum();
            let missed = not_fetched.max(card.rx_fifo);
            all.push(suspect(LossLocation::ReceiverNic, missed, 1, is_ours));
        }
        let dropped = receiver.softnet.iter().map(|core| core.dropped).sum();
        all.push(suspect(
            LossLocation::ReceiverBacklog,
            dropped,
            joined,
            is_ours,
        ));
        let joined = in_a_message(self.most_joined > 1);
        all.push(suspect(
            LossLocation::ReceiverSocket,
            self.socket_drops,
            joined,
            true,
        ));
        Attribution::new(lost, &all)
    }
}

impl<'a> Side<'a> {
    fn card(&self) -> Option<&'a Interface> {
        self.counters.interfaces.get(self.interface?)
    }
}

fn side(end: &EndpointReport) -> Side<'_> {
    Side {
        counters: &end.host.change,
        interface: end.interface.as_deref(),
    }
}

/// Returns whether a counter of all traffic counted hardly more than one stream.
fn hardly_more(all: u64, ours: u64) -> bool {
    all as f64 <= ours as f64 * HARDLY_ELSE + FEW as f64
}

/// Returns the runs of loss that are listed.
fn gaps(account: &account::Report) -> impl Iterator<Item = &SequenceGap> {
    let segments = account.segments.iter();
    segments.flat_map(|segment| &segment.intervals)
}

/// Returns the distribution of loss over the time of a stream.
fn pattern(account: &account::Report, sent: u64, seconds: f64) -> Pattern {
    // If not all runs are listed, the remaining time would look free of loss.
    if account.intervals_not_listed > 0 {
        return Pattern::Unknown;
    }
    let begin = |at: u64| (u128::from(at) * u128::from(sent) / u128::from(WINDOWS)) as u64;
    let begins: Vec<u64> = (0..=WINDOWS).map(begin).collect();
    let time = |number: u64| number as f64 / sent.max(1) as f64 * seconds;
    let windows = begins.windows(2).map(|pair| Window {
        begin: time(pair[0]),
        end: time(pair[1]),
        sent: pair[1] - pair[0],
        ..Window::default()
    });
    let mut windows: Vec<Window> = windows.collect();
    for gap in gaps(account) {
        // It is an event of the window in which it starts, and adds losses to those into which it extends.
        let after = begins.partition_point(|begin| *begin <= gap.first);
        let first = after.clamp(1, windows.len()) - 1;
        windows[first].runs += 1;
        for (window, pair) in windows.iter_mut().zip(begins.windows(2)).skip(first) {
            let end = pair[1].min(gap.last + 1);
            window.lost += end.saturating_sub(pair[0].max(gap.first));
        }
    }
    Pattern::of(&windows)
}

/// Estimates the responder's clock from round trips.
pub fn clock<'a>(trips: impl IntoIterator<Item = &'a RoundTrip>) -> Option<ClockFit> {
    let mut exchanges = Exchanges::default();
    trips
        .into_iter()
        .for_each(|trip| exchanges.add(&trip.times));
    exchanges.fit()
}

fn delay(direction: Direction, clock: &ClockFit, tallied: &Tallied) -> Option<Delay> {
    let delays = tallied.delays.as_ref()?;
    // The clock in the middle of the stream; it drifts from there to both ends.
    let [(_, begin), (_, end)] = tallied.departed?;
    let middle = begin + end.saturating_sub(begin) / 2;
    let half = end.saturating_sub(begin) as f64 / 2.0 * clock.skew.abs();
    // First delay as measured, with a clock that is ahead by this much.
    let first = match direction {
        Direction::There => tallied.first_delay_ns - clock.offset_at(middle),
        Direction::Back => {
            let here = (middle as f64 - clock.offset) as u64;
            tallied.first_delay_ns + clock.offset_at(here)
        }
    };
    let of_here = |delay: f64| match direction {
        // The remote clock has gained more until the datagram arrived.
        Direction::There => clock.of_here(delay),
        Direction::Back => delay,
    };
    Some(Delay {
        min: of_here(first + delays.min as f64),
        median: of_here(first + delays.median as f64),
        mean: of_here(first + delays.mean),
        p99: of_here(first + delays.p99 as f64),
        max: of_here(first + delays.max as f64),
        error_if_symmetric: clock.error_if_symmetric + half,
        error: clock.error + half,
    })
}

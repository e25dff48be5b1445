//! Analysis of the connections and streams in a capture, packet by packet, in bounded memory.
//!
//! Analyses of further kinds of packets belong here. `evlbi-probe` reads the files.

mod direction;
mod ranges;
mod rounds;
mod stream;
#[cfg(test)]
mod tests;
mod time_series;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;

use evlbi_wire::packet::{Content, Datagram, Packet, Segment};
use serde::{Deserialize, Serialize};

pub use self::direction::{DirectionReport, Interval, SentAgain};
pub use self::rounds::{Idle, LimitedBy};
pub use self::stream::{Numbers, Stream, StreamInterval};

use self::direction::DirectionState;
use self::stream::Datagrams;
use evlbi_core::time::Nanos;

/// Silence after which a connection or stream is forgotten before others, in nanoseconds.
const SILENT: u64 = 10_000_000_000;

/// Settings of the analysis.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Length of an interval.
    pub every: Nanos,
    /// Width of the histogram bins of times between datagrams, if a histogram is wanted.
    pub width: Option<Nanos>,
    /// Maximum number of connections, and of streams, that are analysed; packets and bytes of others are counted.
    pub max_flows: usize,
}

/// Callback for the kind of a packet and its direction.
pub type Note<'a> = &'a mut dyn FnMut(&[SocketAddr; 2], Event);

/// Kind of a TCP packet, other than plain data and acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Sequence numbers before it are missing.
    Gap,
    /// Other packets overtook it.
    Reordered,
    /// Duplicate of an earlier packet.
    Duplicate,
    /// Retransmission because acknowledgements reported a gap.
    Fast,
    /// Retransmission after a timeout.
    Timeout,
    /// Tail loss probe: retransmission of the last packet, to find out whether it arrived.
    TailProbe,
    /// Unneeded retransmission of acknowledged data.
    Unneeded,
    /// Acknowledges data that were not captured.
    AcknowledgedUnseen,
    /// Duplicate acknowledgement.
    DuplicateAcknowledgement,
    /// Reports that data arrived twice.
    ReceivedTwice,
    /// Zero window: its sender accepts no data.
    ZeroWindow,
    /// Fills the receiver's window.
    WindowFull,
    /// Only updates the window.
    WindowUpdate,
    /// Keep-alive probe.
    KeepAlive,
}

/// Minimum, mean and maximum of a number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Extent {
    /// Minimum.
    pub least: u64,
    /// The mean.
    pub mean: f64,
    /// Maximum.
    pub most: u64,
}

impl Extent {
    fn of(value: u64) -> Extent {
        Extent {
            least: value,
            mean: value as f64,
            most: value,
        }
    }

    /// Adds a value to `count` earlier ones.
    fn add(&mut self, value: u64, count: u64) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
        self.mean += (value as f64 - self.mean) / (count + 1) as f64;
    }
}

/// TCP connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Connection {
    /// Client and server; if the start was not captured, the sender of the first packet is first.
    pub ends: [SocketAddr; 2],
    /// Whether its start was captured.
    pub is_whole: bool,
    /// Time of the first packet, in seconds since the first of the capture.
    pub from: f64,
    /// Time of the last packet.
    pub to: f64,
    /// Packets in both directions.
    pub packets: u64,
    /// Round-trip time of the handshake in seconds: from SYN to the acknowledgement of SYN+ACK.
    pub handshake: Option<f64>,
    /// Whether one endpoint reset it.
    pub is_reset: bool,
    /// Whether both endpoints sent FIN.
    pub is_finished: bool,
    /// Direction from the first endpoint to the second, and the return direction.
    pub ways: [DirectionReport; 2],
}

/// Packets that are only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Others {
    /// Number of connections or streams.
    pub flows: u64,
    /// Number of their packets.
    pub packets: u64,
    /// Number of their bytes, IP headers included.
    pub bytes: u64,
}

impl Others {
    /// Selects the flows to keep, given their ranks: the upper half, by whether they are active and by bytes. Packets and bytes
    /// of the others are counted.
    fn take_half(&mut self, mut orders: Vec<(bool, u64)>) -> impl FnMut((bool, u64), u64) -> bool {
        let half = orders.len() / 2;
        orders.sort_unstable();
        // Highest rank of the lower half, and how many of that rank are still to be removed.
        let middle = orders.get(half.saturating_sub(1)).copied();
        let middle = middle.unwrap_or_default();
        let before = orders.iter().filter(|order| **order < middle).count();
        let mut ties = half.saturating_sub(before);
        move |order, packets| {
            let is_tie = order == middle && ties > 0;
            ties -= usize::from(is_tie);
            let is_kept = order >= middle && !is_tie;
            if !is_kept {
                self.flows += 1;
                self.packets += packets;
                self.bytes += order.1;
            }
            is_kept
        }
    }
}

/// Returns the bits per second of a number of bytes; 0 if they took no time.
fn bits_per_second(bytes: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => bytes as f64 * 8.0 / seconds,
        false => 0.0,
    }
}

/// Results of the analysis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    /// TCP connections, the largest first.
    pub connections: Vec<Connection>,
    /// UDP streams, the largest first.
    pub streams: Vec<Stream>,
    /// Packets that were only counted.
    pub others: Others,
}

/// Connection in progress.
#[derive(Debug)]
struct Track {
    ends: [SocketAddr; 2],
    from: u64,
    last: u64,
    packets: u64,
    bytes: u64,
    /// Times of SYN and SYN+ACK, the number of the first, and how often each was sent.
    asked: Option<(u64, u32)>,
    answered: Option<u64>,
    attempts: [u32; 2],
    /// Window scale option of each endpoint: not captured, absent, or its value.
    scales: [Option<Option<u8>>; 2],
    handshake: Option<u64>,
    is_reset: bool,
    has_ended: [bool; 2],
    halves: [DirectionState; 2],
}

/// Endpoints of a connection, sorted.
type Pair = (SocketAddr, SocketAddr);

/// Analysis of the packets of a capture.
#[derive(Debug)]
pub struct Capture {
    settings: Settings,
    begun: Option<u64>,
    last: u64,
    connections: HashMap<Pair, Track>,
    ended: Vec<Track>,
    streams: HashMap<Pair, Datagrams>,
    others: Others,
}

impl Capture {
    /// Makes an analysis without packets.
    pub fn new(settings: Settings) -> Capture {
        Capture {
            settings,
            begun: None,
            last: 0,
            connections: HashMap::new(),
            ended: Vec::new(),
            streams: HashMap::new(),
            others: Others::default(),
        }
    }

    /// Notes that a packet passed at a time in nanoseconds: times are relative to the first.
    pub fn passed(&mut self, at: u64) {
        self.begun.get_or_insert(at);
        self.last = self.last.max(at);
    }

    /// Analyses the next packet, which passed at a time in nanoseconds. `note` receives its kind and its direction.
    pub fn offer(&mut self, at: u64, packet: &Packet, note: Note<'_>) {
        self.passed(at);
        match &packet.content {
            Content::Tcp(segment) => self.segment(at, packet, segment, note),
            Content::Udp(datagram) => self.datagram(at, packet, datagram),
        }
    }

    fn segment(&mut self, at: u64, packet: &Packet, segment: &Segment, note: Note<'_>) {
        let (source, destination) = (packet.source, packet.destination);
        let key = (source.min(destination), source.max(destination));
        if let Some(known) = self.connections.get_mut(&key)
            && !known.is_over_for(segment)
        {
            return known.offer(at, packet, segment, note);
        }
        // Earlier packets with these ports belong to another connection.
        self.ended.extend(self.connections.remove(&key));
        if self.connections.len() + self.ended.len() >= self.settings.max_flows {
            self.forget_connections();
        }
        // If the SYN was not captured, the endpoint that sends SYN+ACK is the server.
        let ends = match segment.begins && segment.acknowledgment.is_some() {
            true => [destination, source],
            false => [source, destination],
        };
        let mut track = Track::new(ends, at, self.settings.every.0);
        track.offer(at, packet, segment, note);
        self.connections.insert(key, track);
    }

    fn datagram(&mut self, at: u64, packet: &Packet, datagram: &Datagram) {
        let key = (packet.source, packet.destination);
        if let Some(known) = self.streams.get_mut(&key) {
            return known.offer(at, packet.length, datagram);
        }
        if self.streams.len() >= self.settings.max_flows {
            self.forget_streams();
        }
        let width = self.settings.width.map(|width| width.0);
        let mut stream = Datagrams::new(at, width, self.settings.every.0);
        stream.offer(at, packet.length, datagram);
        self.streams.insert(key, stream);
    }

    /// Makes room: half of the connections are only counted from now on, first those that have ended or are silent, then the
    /// smallest.
    fn forget_connections(&mut self) {
        let since = self.last.saturating_sub(SILENT);
        let order = |track: &Track| (track.is_live(since), track.bytes);
        let tracks = self.ended.iter().chain(self.connections.values());
        let mut keeps = self.others.take_half(tracks.map(order).collect());
        let mut keeps = |track: &Track| keeps(order(track), track.packets);
        self.ended.retain(&mut keeps);
        self.connections.retain(|_, track| keeps(track));
    }

    fn forget_streams(&mut self) {
        let since = self.last.saturating_sub(SILENT);
        let order = |stream: &Datagrams| (stream.last >= since, stream.bytes);
        let orders = self.streams.values().map(order).collect();
        let mut keeps = self.others.take_half(orders);
        self.streams
            .retain(|_, stream| keeps(order(stream), stream.packets));
    }

    /// Ends the analysis.
    pub fn finish(self) -> Found {
        let begun = self.begun.unwrap_or(0);
        let tracks = self.ended.into_iter().chain(self.connections.into_values());
        let mut tracks: Vec<Track> = tracks.collect();
        tracks.sort_by_key(|track| (Reverse(track.bytes), track.from));
        let mut streams: Vec<(Pair, Datagrams)> = self.streams.into_iter().collect();
        streams.sort_by_key(|(_, stream)| (Reverse(stream.bytes), stream.from));
        let tracks = tracks.into_iter().map(|track| track.finish(begun));
        let streams = streams.into_iter();
        Found {
            connections: tracks.collect(),
            streams: streams
                .map(|(ends, stream)| stream.finish(ends.into(), begun))
                .collect(),
            others: self.others,
        }
    }
}

impl Track {
    fn new(ends: [SocketAddr; 2], at: u64, every: u64) -> Track {
        Track {
            ends,
            from: at,
            last: at,
            packets: 0,
            bytes: 0,
            asked: None,
            answered: None,
            attempts: [0; 2],
            scales: [None; 2],
            handshake: None,
            is_reset: false,
            has_ended: [false; 2],
            halves: [
                DirectionState::new(at, every),
                DirectionState::new(at, every),
            ],
        }
    }

    /// Returns whether a packet starts another connection between the same ports.
    fn is_over_for(&self, segment: &Segment) -> bool {
        let asked = self.asked.map(|(_, number)| number);
        segment.begins && segment.acknowledgment.is_none() && asked != Some(segment.sequence)
    }

    /// Returns whether it is active: not ended, with packets since then.
    fn is_live(&self, since: u64) -> bool {
        self.last >= since && !self.is_reset && self.has_ended != [true; 2]
    }

    fn offer(&mut self, at: u64, packet: &Packet, segment: &Segment, note: Note<'_>) {
        self.last = self.last.max(at);
        self.packets += 1;
        self.bytes += u64::from(packet.length);
        self.is_reset |= segment.resets;
        let from = usize::from(packet.source != self.ends[0]);
        self.has_ended[from] |= segment.ends;
        self.begin(at, from, segment);
        let own = &mut self.halves[from];
        let is_plain = !(segment.begins || segment.ends || segment.resets);
        let is_next = own.next.is_some_and(|next| next as u32 == segment.sequence);
        let is_bare = is_plain && segment.length == 0 && is_next;
        own.sends(at, segment, packet.identification);
        self.halves[1 - from].hears(at, segment, is_bare);
        let ends = [packet.source, packet.destination];
        for half in [from, 1 - from] {
            let events = self.halves[half].events.drain(..);
            events.for_each(|event| note(&ends, event));
        }
    }

    /// Analyses the handshake.
    fn begin(&mut self, at: u64, from: usize, segment: &Segment) {
        // A reply to a retransmitted packet gives no round-trip time.
        let is_clear = self.attempts.iter().all(|times| *times <= 1);
        match (segment.begins, segment.acknowledgment.is_some()) {
            (true, false) => {
                self.attempts[0] += 1;
                self.asked = self.asked.or(Some((at, segment.sequence)));
            }
            (true, true) => {
                self.attempts[1] += 1;
                self.answered = self.answered.or(Some(at));
                if let Some((asked, _)) = self.asked.filter(|_| is_clear) {
                    self.halves[1].rounds.behind(at.saturating_sub(asked));
                }
            }
            (false, true) if from == 0 && is_clear => {
                if let Some(answered) = self.answered.filter(|_| self.handshake.is_none()) {
                    self.halves[0].rounds.behind(at.saturating_sub(answered));
                    let asked = self.asked.map_or(answered, |(asked, _)| asked);
                    self.handshake = Some(at.saturating_sub(asked));
                }
            }
            _ => {}
        }
        if !segment.begins {
            return;
        }
        self.halves[from].begin(true, segment);
        self.halves[1 - from].begin(false, segment);
        let options = &segment.options;
        if options.scale.is_some() || options.whole {
            self.scales[from] = Some(options.scale);
        }
        if segment.acknowledgment.is_none() {
            return;
        }
        // Both must have sent the option, and the server sends it only if the client did (RFC 7323, section 2.2).
        let scales = match self.scales {
            [Some(None), _] | [_, Some(None)] => [Some(0); 2],
            [Some(Some(first)), Some(Some(second))] => [Some(first), Some(second)],
            [None, Some(Some(second))] => [None, Some(second)],
            [_, None] => [None; 2],
        };
        for (half, scale) in self.halves.iter_mut().zip([scales[1], scales[0]]) {
            if let Some(scale) = scale {
                half.scale(scale);
            }
        }
    }

    fn finish(self, begun: u64) -> Connection {
        let seconds = |at: u64| at.saturating_sub(begun) as f64 * 1e-9;
        let handshake = self.asked.and(self.handshake);
        Connection {
            ends: self.ends,
            is_whole: self.asked.is_some() && self.answered.is_some(),
            from: seconds(self.from),
            to: seconds(self.last),
            packets: self.packets,
            handshake: handshake.map(|time| time as f64 * 1e-9),
            is_reset: self.is_reset,
            is_finished: self.has_ended == [true; 2],
            ways: self.halves.map(|half| half.finish(self.last)),
        }
    }
}

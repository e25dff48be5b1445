//! One endpoint of a connection, without clock, socket or randomness: written data and arriving packets go in, packets come out.
//!
//! Behaviour of Linux TCP that flows depend on belongs here, tested with the behaviour of a kernel.

use thiserror::Error;

use super::congestion::Algorithm;
use super::incoming::Incoming;
use super::info::Info;
use super::outgoing::Outgoing;
use super::packet::{HEADERS, Kind, Packet, Segment};
use super::receiver::{Ack, Receiver};
use super::sender::{Counting, Sender};
use evlbi_core::time::Nanos;

/// Timeout after which SYN and SYN+ACK are retransmitted; it doubles each time (RFC 6298, section 5.7).
const FIRST_TIMEOUT: Nanos = Nanos::SECOND;
/// Maximum number of retransmissions of SYN, of SYN+ACK, and of a segment or a window probe in a row (Linux, tcp(7):
/// tcp_syn_retries, tcp_synack_retries, tcp_retries2).
const MAX_SYNS: u32 = 6;
const MAX_ANSWERS: u32 = 5;
const MAX_RETRIES: u32 = 15;
/// Time for which the endpoint that closes first still answers (Linux, TCP_TIMEWAIT_LEN).
const TIME_WAIT: Nanos = Nanos(60_000_000_000);
/// Threshold of slow start before the first loss, as Linux shows it (TCP_INFINITE_SSTHRESH).
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// Settings of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Congestion control algorithm.
    pub algorithm: Algorithm,
    /// Unit of window growth.
    pub counting: Counting,
    /// Segments for each acknowledgement, on average.
    pub per_ack: f64,
    /// Maximum payload of a segment, in bytes, at least 1: the smaller one of both endpoints applies.
    pub segment: u32,
    /// Maximum number of bytes that are written and not acknowledged.
    pub send_buffer: u64,
    /// Maximum number of bytes that have arrived and are not read.
    pub receive_buffer: u64,
    /// Congestion window to start with, in segments; `None` is slow start.
    pub window: Option<f64>,
}

impl Default for Settings {
    /// As Linux over Ethernet: CUBIC, 1448 bytes, a buffer of 4 MiB to send and of 6 MiB to receive.
    fn default() -> Settings {
        Settings {
            algorithm: Algorithm::Cubic,
            counting: Counting::Segments,
            per_ack: 2.0,
            segment: 1448,
            send_buffer: 4 << 20,
            receive_buffer: 6 << 20,
            window: None,
        }
    }
}

/// Reasons why a connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failed {
    /// The remote host has no listener.
    #[error("connection refused")]
    Refused,
    /// The remote host has aborted the connection.
    #[error("connection reset by the remote host")]
    Reset,
    /// The remote host has not answered for too long.
    #[error("connection timed out")]
    TimedOut,
    /// This endpoint has been shut down or aborted.
    #[error("connection closed by this end")]
    Closed,
}

/// Result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A number of bytes were read.
    Bytes(u64),
    /// Nothing has arrived.
    Nothing,
    /// Everything is read, and the remote host sends no more (FIN).
    Closed,
}

/// One endpoint of a TCP connection (RFC 9293), with the congestion control of Linux: a state machine without clock and sockets.
///
/// After each call that changes something, call [`Connection::next_packet`] until it returns `None`, and again when
/// [`Connection::next_at`] is reached. Time never goes backwards.
///
/// Segments are numbered in the order in which they are first sent, and keep their bytes when they are retransmitted. Nagle's
/// algorithm is off.
///
/// ```
/// use evlbi_trace::tcp::{Connection, Read, Settings};
/// use evlbi_core::time::Nanos;
///
/// // A wire without loss and delay.
/// fn exchange(ends: &mut [Connection; 2], now: Nanos) {
///     let mut quiet = 0;
///     for way in [0, 1].into_iter().cycle() {
///         quiet += 1;
///         while let Some(packet) = ends[way].next_packet(now) {
///             ends[1 - way].handle(&packet, now);
///             quiet = 0;
///         }
///         if quiet == 2 {
///             return;
///         }
///     }
/// }
///
/// let now = Nanos(0);
/// let mut client = Connection::connect(Settings::default(), now);
/// let syn = client.next_packet(now).unwrap();
/// let server = Connection::accept(Settings::default(), &syn, now).unwrap();
/// let mut ends = [client, server];
/// exchange(&mut ends, now);
/// assert!(ends[0].is_connected() && ends[1].is_connected());
/// assert_eq!(ends[0].write(b"hello"), Ok(5));
/// ends[0].shutdown();
/// exchange(&mut ends, now);
/// let mut bytes = [0; 10];
/// assert_eq!(ends[1].read(&mut bytes), Ok(Read::Bytes(5)));
/// assert_eq!(ends[1].read(&mut bytes), Ok(Read::Closed));
/// ```
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    stage: Stage,
    /// When SYN or SYN+ACK is sent next, and how often it was sent.
    syn_at: Nanos,
    syns: u32,
    failed: Option<Failed>,
    /// Whether RST must be sent.
    owes_reset: bool,
    sender: Sender,
    outgoing: Outgoing,
    receiver: Receiver,
    incoming: Incoming,
    /// Acknowledgement to send, with data or alone.
    answer: Option<Ack>,
    probing: Probing,
    /// Whether FIN was first sent after the peer's had arrived: then no time wait is needed.
    closes_last: bool,
    waits_until: Option<Nanos>,
    has_ended: bool,
    /// Whether a write did not fit, and there was no room since.
    lacks_room: bool,
    spent: Spent,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Answering,
    Connected,
}

/// Probes of a zero window (RFC 9293, section 3.8.6.1).
#[derive(Clone, Copy, Debug, Default)]
struct Probing {
    at: Option<Nanos>,
    is_due: bool,
    /// Number of probes so far, and since the last reply.
    count: u32,
    unanswered: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    data_segments: u64,
    sent: u64,
    bytes_again: u64,
    out_of_order: u64,
    segment_received: u32,
}

/// Time by limit, as Linux counts it (tcp_chrono_start).
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    on: Option<Limit>,
    since: Nanos,
    /// Total for each limit.
    total: [Nanos; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// Path or congestion window.
    Path,
    Receiver,
    Buffer,
}

impl Spent {
    fn turn(&mut self, on: Option<Limit>, now: Nanos) {
        if self.on != on {
            self.total = self.totals(now);
            (self.on, self.since) = (on, now);
        }
    }

    fn totals(&self, now: Nanos) -> [Nanos; 3] {
        let mut total = self.total;
        if let Some(on) = self.on {
            let of = &mut total[on as usize];
            *of = of.plus(now.since(self.since));
        }
        total
    }
}

impl Connection {
    fn new(settings: Settings, stage: Stage, now: Nanos) -> Connection {
        let settings = Settings {
            segment: settings.segment.max(1),
            ..settings
        };
        Connection {
            sender: Sender::new(
                settings.algorithm.begin(),
                settings.counting,
                settings.window,
            ),
            outgoing: Outgoing::new(settings.send_buffer),
            receiver: Receiver::new(settings.per_ack),
            incoming: Incoming::new(settings.receive_buffer),
            settings,
            stage,
            syn_at: now,
            syns: 0,
            failed: None,
            owes_reset: false,
            answer: None,
            probing: Probing::default(),
            closes_last: false,
            waits_until: None,
            has_ended: false,
            lacks_room: false,
            spent: Spent::default(),
            counters: Counters::default(),
        }
    }

    /// Opens a connection: sends SYN, up to seven times within 63 s, and fails after 127 s without a reply.
    pub fn connect(settings: Settings, now: Nanos) -> Connection {
        Connection::new(settings, Stage::Connecting, now)
    }

    /// Accepts the connection that a SYN asks for: sends SYN+ACK. Returns `None` if the packet is not a SYN.
    pub fn accept(settings: Settings, syn: &Packet, now: Nanos) -> Option<Connection> {
        let Kind::Syn {
            segment,
            is_answer: false,
        } = syn.kind
        else {
            return None;
        };
        let mut connection = Connection::new(settings, Stage::Answering, now);
        connection.meet(segment, syn);
        Some(connection)
    }

    /// Returns two connected endpoints, without the packets and the round trip of a handshake.
    pub fn pair(settings: [Settings; 2]) -> [Connection; 2] {
        let segment = settings[0].segment.min(settings[1].segment);
        let windows = settings.each_ref().map(|one| one.receive_buffer);
        let mut ends = settings.map(|settings| {
            let settings = Settings {
                segment,
                ..settings
            };
            Connection::new(settings, Stage::Connected, Nanos::default())
        });
        ends[0].outgoing.offer(0, windows[1]);
        ends[1].outgoing.offer(0, windows[0]);
        ends
    }

    /// Notes the peer's SYN.
    fn meet(&mut self, segment: u32, syn: &Packet) {
        self.settings.segment = self.settings.segment.min(segment);
        self.outgoing.offer(0, syn.window);
        self.receiver.echo = syn.left;
    }

    /// Returns the congestion control algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.settings.algorithm
    }

    /// Sets another congestion control algorithm, before anything is written.
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.settings.algorithm = algorithm;
        let Settings {
            counting, window, ..
        } = self.settings;
        self.sender = Sender::new(algorithm.begin(), counting, window);
    }

    /// Returns whether the handshake is complete.
    pub fn is_connected(&self) -> bool {
        self.stage == Stage::Connected
    }

    /// Returns why the connection does nothing more, if it failed.
    pub fn failed(&self) -> Option<Failed> {
        self.failed
    }

    /// Writes as many bytes as the send buffer accepts, and returns their number: 0 if it is full, or before the handshake is
    /// complete.
    ///
    /// # Errors
    /// Returns an error after the connection failed, and after [`Connection::shutdown`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Failed> {
        self.may_write()?;
        let count = match self.is_connected() {
            true => self.outgoing.write(bytes),
            false => 0,
        };
        self.lacks_room |= count < bytes.len();
        Ok(count)
    }

    /// Writes bytes without contents, which cost no memory and are read as zeros, and returns how many the send buffer accepts.
    ///
    /// # Errors
    /// As [`Connection::write`].
    pub fn write_blank(&mut self, bytes: u64) -> Result<u64, Failed> {
        self.may_write()?;
        let count = match self.is_connected() {
            true => self.outgoing.write_blank(bytes),
            false => 0,
        };
        self.lacks_room |= count < bytes;
        Ok(count)
    }

    fn may_write(&self) -> Result<(), Failed> {
        match self.failed {
            Some(failed) => Err(failed),
            None if self.outgoing.is_shut() => Err(Failed::Closed),
            None => Ok(()),
        }
    }

    /// Reads bytes that have arrived, as many as there are and fit; blank ones are zeros.
    ///
    /// # Errors
    /// Returns an error if the connection failed and everything that had arrived is read.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Read, Failed> {
        let count = self.incoming.read(into) as u64;
        self.outcome(count)
    }

    /// Reads at most `max` bytes that have arrived, without copying them.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn discard(&mut self, max: u64) -> Result<Read, Failed> {
        let count = self.incoming.discard(max);
        self.outcome(count)
    }

    fn outcome(&mut self, count: u64) -> Result<Read, Failed> {
        let is_open = self.is_connected() && self.failed.is_none() && !self.incoming.is_over();
        if is_open && count > 0 && self.incoming.is_wider(self.settings.segment) {
            self.answer.get_or_insert_with(|| self.receiver.ack(None));
        }
        match self.failed {
            _ if count > 0 || self.unread() > 0 => Ok(Read::Bytes(count)),
            _ if self.incoming.is_over() => Ok(Read::Closed),
            Some(failed) => Err(failed),
            None => Ok(Read::Nothing),
        }
    }

    /// Closes the outgoing direction: sends FIN after everything that was written. Reading remains possible.
    pub fn shutdown(&mut self) {
        self.outgoing.shut();
    }

    /// Aborts the connection: sends RST. Data that were not sent or not read are lost.
    pub fn abort(&mut self) {
        if self.failed.is_none() && !self.has_ended {
            self.owes_reset = self.stage != Stage::Connecting;
            self.failed = Some(Failed::Closed);
            self.incoming.discard(u64::MAX);
        }
    }

    /// Returns whether [`Connection::read`] returns bytes, the end, or an error.
    pub fn is_readable(&self) -> bool {
        self.unread() > 0 || self.incoming.is_over() || self.failed.is_some()
    }

    /// Returns how many bytes can be read.
    pub fn unread(&self) -> u64 {
        self.incoming.unread()
    }

    /// Returns whether everything is read and the remote host sends no more (FIN).
    pub fn is_at_end(&self) -> bool {
        self.incoming.is_over() && self.unread() == 0
    }

    /// Returns whether a third of the send buffer is free, as Linux wakes a writer (sk_stream_is_writeable), or
    /// [`Connection::write`] returns an error.
    pub fn is_writable(&self) -> bool {
        let has_room = self.is_connected() && self.outgoing.is_writable();
        has_room || self.may_write().is_err()
    }

    /// Returns whether nothing is left to do: both directions are closed and everything is acknowledged, or the connection
    /// failed. The endpoint that closes first must answer for 60 s more (time wait).
    pub fn has_ended(&self) -> bool {
        self.has_ended || self.failed.is_some() && !self.owes_reset
    }

    /// Returns whether both directions are closed and everything is acknowledged, possibly in time wait.
    pub fn is_closed(&self) -> bool {
        self.outgoing.is_over() && self.incoming.is_over()
    }

    /// Handles a packet that arrives.
    pub fn handle(&mut self, packet: &Packet, now: Nanos) {
        if packet.is_reset() {
            if self.failed.is_none() && !self.has_ended {
                self.failed = Some(match self.stage {
                    Stage::Connecting => Failed::Refused,
                    _ => Failed::Reset,
                });
            }
            return;
        }
        if self.failed.is_some() {
            self.owes_reset = true;
            return;
        }
        match (self.stage, &packet.kind) {
            (
                Stage::Connecting,
                Kind::Syn {
                    segment,
                    is_answer: true,
                },
            ) => {
                self.meet(*segment, packet);
                self.connected(packet, now);
                self.answer = Some(self.receiver.ack(None));
            }
            (Stage::Connecting, _) => {}
            // SYN+ACK was lost.
            (Stage::Answering, Kind::Syn { .. }) => {
                self.receiver.echo = packet.left;
                self.syn_at = now;
            }
            // A delayed SYN of a connection that has ended.
            (Stage::Answering, _) if packet.ack.next > 0 => {}
            (Stage::Answering, _) => {
                self.connected(packet, now);
                self.take(packet, now);
            }
            // An acknowledgement of SYN+ACK was lost.
            (Stage::Connected, Kind::Syn { .. }) => self.answer = Some(self.receiver.ack(None)),
            (Stage::Connected, _) => self.take(packet, now),
        }
    }

    fn connected(&mut self, packet: &Packet, now: Nanos) {
        self.stage = Stage::Connected;
        self.sender.measure(now.since(packet.ack.echo));
        if self.syns > 2 {
            // As in Linux, by RFC 5681, section 3.1.
            self.sender.window = 1.0;
        }
    }

    /// Handles a packet of an established connection.
    fn take(&mut self, packet: &Packet, now: Nanos) {
        if self.outgoing.is_busy() {
            self.sender.acknowledged(&packet.ack, now);
            self.outgoing.acknowledge(self.sender.first);
        }
        self.outgoing.offer(packet.ack.next, packet.window);
        self.probing.unanswered = 0;
        self.lacks_room &= !self.outgoing.is_writable();
        match &packet.kind {
            Kind::Data { number, segment } => self.receive(*number, segment, packet.left, now),
            Kind::Probe => self.answer = Some(self.receiver.ack(None)),
            _ => {}
        }
        if self.is_closed() {
            if self.closes_last {
                self.has_ended = true;
            } else {
                self.waits_until = Some(now.plus(TIME_WAIT));
            }
        }
    }

    fn receive(&mut self, number: u64, segment: &Segment, left: Nanos, now: Nanos) {
        if !self.incoming.fits(segment) {
            self.answer = Some(self.receiver.ack(None));
            return;
        }
        let before = self.receiver.next;
        let counters = &mut self.counters;
        counters.segment_received = counters.segment_received.max(segment.length);
        if number >= before {
            self.incoming.keep(number - before, segment);
        }
        let mut ack = self.receiver.take(number, left, now);
        self.incoming.advance(self.receiver.next - before);
        let is_repeated = ack.is_some_and(|ack| ack.is_repeated);
        self.counters.out_of_order += u64::from(number > before && !is_repeated);
        if segment.is_last && ack.is_none() {
            ack = Some(self.receiver.ack(Some(number)));
        }
        self.answer = ack.or(self.answer.take());
    }

    /// Returns the next packet to send now, if there is one.
    pub fn next_packet(&mut self, now: Nanos) -> Option<Packet> {
        self.expire(now);
        if self.failed.is_some() {
            return std::mem::take(&mut self.owes_reset).then(Packet::reset);
        }
        let kind = match self.stage {
            Stage::Connected => self.next_kind(now),
            stage => self.shake_hands(stage == Stage::Answering, now),
        }?;
        let ack = self.answer.take();
        Some(Packet {
            kind,
            left: now,
            ack: ack.unwrap_or_else(|| self.receiver.ack(None)),
            window: self.incoming.offer(self.settings.segment),
        })
    }

    fn shake_hands(&mut self, is_answer: bool, now: Nanos) -> Option<Kind> {
        if self.syn_at > now {
            return None;
        }
        self.syn_at = now.plus(Nanos(FIRST_TIMEOUT.0 << self.syns));
        self.syns += 1;
        Some(Kind::Syn {
            segment: self.settings.segment,
            is_answer,
        })
    }

    fn next_kind(&mut self, now: Nanos) -> Option<Kind> {
        if let Some(kind) = self.next_data(now) {
            return Some(kind);
        }
        self.sender.has_sent();
        self.settle(now);
        if std::mem::take(&mut self.probing.is_due) {
            return Some(Kind::Probe);
        }
        self.answer.is_some().then_some(Kind::Ack)
    }

    fn next_data(&mut self, now: Nanos) -> Option<Kind> {
        let largest = self.settings.segment;
        let length = self.outgoing.next_length(largest, self.probing.is_due);
        let next = self.outgoing.next();
        let number = self.sender.send(next + u64::from(length.is_some()), now)?;
        let is_new = number == next;
        if let Some(length) = length.filter(|_| is_new) {
            self.outgoing.cut(length);
            self.closes_last = self.outgoing.is_last_cut() && self.incoming.is_over();
            self.probing = Probing::default();
        }
        let segment = self.outgoing.segment(number)?.clone();
        let counters = &mut self.counters;
        let bytes = u64::from(segment.length);
        counters.data_segments += u64::from(bytes > 0);
        counters.sent += bytes;
        if !is_new {
            counters.bytes_again += bytes;
        }
        Some(Kind::Data { number, segment })
    }

    /// Notes the limit when nothing more can be sent now, and starts or stops the timer of window probes.
    fn settle(&mut self, now: Nanos) {
        let unsent = self.outgoing.unsent();
        let is_free = self.sender.in_flight() < self.sender.window.max(1.0) as u64
            && self.sender.paced_until.is_none();
        let limit = if !self.outgoing.is_busy() {
            None
        } else if is_free && unsent > 0 {
            Some(Limit::Receiver)
        } else if is_free && self.lacks_room {
            Some(Limit::Buffer)
        } else {
            Some(Limit::Path)
        };
        self.spent.turn(limit, now);
        if unsent == 0 {
            self.sender.has_nothing();
        }
        let is_stuck = unsent > 0 && self.sender.first == self.outgoing.next();
        match self.probing.at {
            None if is_stuck => {
                let timeout = self.sender.timeout(self.probing.count);
                self.probing.at = Some(now.plus(timeout));
            }
            Some(_) if !is_stuck => self.probing = Probing::default(),
            _ => {}
        }
    }

    /// Runs the timers that are due.
    fn expire(&mut self, now: Nanos) {
        if self.failed.is_some() {
            return;
        }
        match self.stage {
            Stage::Connected => {}
            _ if self.syn_at > now => return,
            Stage::Connecting if self.syns <= MAX_SYNS => return,
            Stage::Answering if self.syns <= MAX_ANSWERS => return,
            _ => {
                self.failed = Some(Failed::TimedOut);
                return;
            }
        }
        if self.sender.timeout_at.is_some_and(|at| at <= now) {
            if self.sender.backoff() >= MAX_RETRIES {
                self.failed = Some(Failed::TimedOut);
                return;
            }
            self.sender.timed_out(now);
        }
        if self.probing.at.is_some_and(|at| at <= now) {
            let probing = &mut self.probing;
            if probing.unanswered >= MAX_RETRIES {
                self.failed = Some(Failed::TimedOut);
                return;
            }
            (probing.at, probing.is_due) = (None, true);
            probing.count += 1;
            probing.unanswered += 1;
        }
        if self.receiver.until.is_some_and(|until| until <= now) {
            self.answer = Some(self.receiver.ack(None));
        }
        if self.waits_until.is_some_and(|until| until <= now) {
            self.has_ended = true;
        }
    }

    /// Returns when a timer is due: call [`Connection::next_packet`] then.
    pub fn next_at(&self) -> Option<Nanos> {
        if self.failed.is_some() {
            return None;
        }
        if self.stage != Stage::Connected {
            return Some(self.syn_at);
        }
        let time_wait = self.waits_until.filter(|_| !self.has_ended);
        let all = [
            self.sender.timeout_at,
            self.sender.paced_until,
            self.probing.at,
            self.receiver.until,
            time_wait,
        ];
        all.into_iter().flatten().min()
    }

    /// Returns the state of the sender.
    pub(super) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns the values that Linux would show (TCP_INFO).
    pub fn info(&self, now: Nanos) -> Info {
        let (sender, counters) = (&self.sender, &self.counters);
        let [in_flight, beyond_gaps, lost] = sender.counts();
        let [path, receiver, buffer] = self.spent.totals(now);
        let backoff = sender.backoff().max(self.probing.count);
        let threshold = sender.threshold.min(NO_THRESHOLD.into());
        Info {
            phase: sender.phase(),
            window: sender.window as u32,
            threshold: threshold as u32,
            round_trip: micros(sender.smoothed_round_trip()),
            round_trip_deviation: micros(sender.round_trip_deviation()),
            shortest_round_trip: micros(sender.shortest_round_trip()),
            timeout: micros(sender.timeout(backoff)),
            backoff: backoff as u8,
            timeouts: narrow(sender.timeouts),
            in_flight: narrow(in_flight),
            beyond_gaps: narrow(beyond_gaps),
            lost: narrow(lost),
            data_segments: narrow(counters.data_segments),
            sent_again: narrow(sender.sent_again),
            needless: narrow(sender.needless),
            out_of_order: narrow(counters.out_of_order),
            delivered: narrow(sender.delivery.delivered),
            segment: self.settings.segment,
            segment_received: counters.segment_received,
            path_mtu: self.settings.segment + HEADERS,
            not_sent: narrow(self.outgoing.unsent()),
            acknowledged: self.outgoing.acknowledged,
            received: self.incoming.received,
            sent: counters.sent,
            bytes_again: counters.bytes_again,
            delivery_rate: sender.delivery.rate.bytes(self.settings.segment),
            application_limited: sender.delivery.rate.is_limited,
            pacing_rate: sender.pacing_rate(self.settings.segment),
            peer_window: narrow(self.outgoing.peer_window()),
            own_window: narrow(self.incoming.window()),
            busy: path.plus(receiver).plus(buffer).0 / 1000,
            receiver_limited: receiver.0 / 1000,
            buffer_limited: buffer.0 / 1000,
            ..Info::default()
        }
    }
}

fn micros(time: Nanos) -> u32 {
    narrow(time.0 / 1000)
}

/// Returns a number clamped to the range of the type.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

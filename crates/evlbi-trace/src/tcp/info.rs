//! State of a connection: the values of RFC 4898 that Linux has (`TCP_INFO`).

use serde::{Deserialize, Serialize};

/// Congestion state of a sender (`tcpi_ca_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Normal operation.
    #[default]
    Open,
    /// Segments arrived out of order.
    Disorder,
    /// The window is being reduced without a loss: by explicit congestion notification, or by the host itself.
    Reducing,
    /// Lost segments are being retransmitted.
    Recovery,
    /// Retransmission timeout.
    Loss,
}

impl From<u8> for Phase {
    fn from(state: u8) -> Phase {
        match state {
            1 => Phase::Disorder,
            2 => Phase::Reducing,
            3 => Phase::Recovery,
            4 => Phase::Loss,
            _ => Phase::Open,
        }
    }
}

/// State of a connection. Counts are in segments unless noted; times are in microseconds. A value that is newer than the kernel
/// is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// `tcpi_ca_state`.
    pub phase: Phase,
    /// Congestion window, `tcpi_snd_cwnd`.
    pub window: u32,
    /// Threshold of slow start, `tcpi_snd_ssthresh`: 2147483647 before the first loss.
    pub threshold: u32,
    /// Smoothed round-trip time, `tcpi_rtt`.
    pub round_trip: u32,
    /// Mean deviation of the round-trip time, `tcpi_rttvar`.
    pub round_trip_deviation: u32,
    /// Minimum round-trip time, `tcpi_min_rtt`.
    pub shortest_round_trip: u32,
    /// Retransmission timeout, `tcpi_rto`.
    pub timeout: u32,
    /// Consecutive timeouts, `tcpi_backoff`.
    pub backoff: u8,
    /// Timeouts so far, `tcpi_total_rto`.
    pub timeouts: u32,
    /// Segments sent and not acknowledged, `tcpi_unacked`.
    pub in_flight: u32,
    /// Segments in flight that arrived after a gap, `tcpi_sacked`.
    pub beyond_gaps: u32,
    /// Segments in flight that count as lost, `tcpi_lost`.
    pub lost: u32,
    /// Segments with data sent so far, retransmissions included, `tcpi_data_segs_out`.
    pub data_segments: u32,
    /// Retransmissions so far, `tcpi_total_retrans`.
    pub sent_again: u32,
    /// Unneeded retransmissions: the receiver had the segments (RFC 2883), `tcpi_dsack_dups`.
    pub needless: u32,
    /// Maximum reordering, in segments, before one counts as lost, `tcpi_reordering`.
    pub reordering: u32,
    /// Number of times that segments were out of order, `tcpi_reord_seen`.
    pub reordered: u32,
    /// Segments received out of order, `tcpi_rcv_ooopack`.
    pub out_of_order: u32,
    /// Segments delivered, including those with a congestion mark, `tcpi_delivered`.
    pub delivered: u32,
    /// Segments delivered with a congestion mark (RFC 3168), `tcpi_delivered_ce`.
    pub marked: u32,
    /// Maximum size of a sent segment, in bytes, `tcpi_snd_mss`.
    pub segment: u32,
    /// Maximum size of a received segment, in bytes, `tcpi_rcv_mss`.
    pub segment_received: u32,
    /// Estimated path MTU, in bytes, `tcpi_pmtu`.
    pub path_mtu: u32,
    /// Bytes written and not sent yet, `tcpi_notsent_bytes`.
    pub not_sent: u32,
    /// Bytes acknowledged so far, `tcpi_bytes_acked`.
    pub acknowledged: u64,
    /// Bytes received in order so far, `tcpi_bytes_received`.
    pub received: u64,
    /// Bytes sent so far, retransmissions included, `tcpi_bytes_sent`.
    pub sent: u64,
    /// Bytes retransmitted, `tcpi_bytes_retrans`.
    pub bytes_again: u64,
    /// Latest delivery rate in bytes per second, `tcpi_delivery_rate`.
    pub delivery_rate: u64,
    /// Whether the application limited that rate, by having nothing to send.
    pub application_limited: bool,
    /// Pacing rate in bytes per second, `tcpi_pacing_rate`.
    pub pacing_rate: u64,
    /// Window of the remote endpoint in bytes, `tcpi_snd_wnd`.
    pub peer_window: u32,
    /// Window of this endpoint in bytes, `tcpi_rcv_wnd`.
    pub own_window: u32,
    /// Receiver's estimate of the data per round trip in bytes, `tcpi_rcv_space`.
    pub receive_space: u32,
    /// Total time with data to send, `tcpi_busy_time`.
    pub busy: u64,
    /// Part of that time limited by the receiver's window, `tcpi_rwnd_limited`.
    pub receiver_limited: u64,
    /// Part of that time limited by the send buffer, `tcpi_sndbuf_limited`.
    pub buffer_limited: u64,
}

/// Sample of the state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Time in nanoseconds of UTC.
    pub at: u64,
    /// Number of the connection.
    pub connection: u32,
    /// Bytes that the application has and that do not fit the send buffer.
    pub backlog: u64,
    /// Values of the kernel.
    pub info: Info,
}

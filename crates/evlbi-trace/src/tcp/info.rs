//! What is known of a connection at a moment: the values of RFC 4898, as far as Linux has them (`TCP_INFO`).

use serde::{Deserialize, Serialize};

/// How a sender takes what it hears (`tcpi_ca_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// All is well.
    #[default]
    Open,
    /// Something has come out of order.
    Disorder,
    /// The window is being reduced without a loss: explicit congestion notification, or the host itself.
    Reducing,
    /// Something was lost, and is sent again.
    Recovery,
    /// Nothing was acknowledged for too long.
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

/// A connection at a moment. Segments are counted where nothing else is said; times are in microseconds. A kernel that is
/// older than a value says 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// `tcpi_ca_state`.
    pub phase: Phase,
    /// Congestion window, `tcpi_snd_cwnd`.
    pub window: u32,
    /// Where slow start ends, `tcpi_snd_ssthresh`: 2147483647 before the first loss.
    pub threshold: u32,
    /// Smoothed round-trip time, `tcpi_rtt`.
    pub round_trip: u32,
    /// Its mean deviation, `tcpi_rttvar`.
    pub round_trip_deviation: u32,
    /// Shortest, `tcpi_min_rtt`.
    pub shortest_round_trip: u32,
    /// Timeout after which a segment is sent again, `tcpi_rto`.
    pub timeout: u32,
    /// Timeouts in a row, `tcpi_backoff`.
    pub backoff: u8,
    /// Timeouts so far, `tcpi_total_rto`.
    pub timeouts: u32,
    /// Sent, and not acknowledged, `tcpi_unacked`.
    pub in_flight: u32,
    /// Of these, arrived beyond a gap, `tcpi_sacked`.
    pub beyond_gaps: u32,
    /// Of these, taken as lost, `tcpi_lost`.
    pub lost: u32,
    /// With data, sent so far, again as well, `tcpi_data_segs_out`.
    pub data_segments: u32,
    /// Sent again so far, `tcpi_total_retrans`.
    pub sent_again: u32,
    /// Of these, not needed: the receiver had them (RFC 2883), `tcpi_dsack_dups`.
    pub needless: u32,
    /// Furthest that segments may be out of order before one counts as lost, `tcpi_reordering`.
    pub reordering: u32,
    /// Times that segments were found to be out of order, `tcpi_reord_seen`.
    pub reordered: u32,
    /// Arrived here out of order, `tcpi_rcv_ooopack`.
    pub out_of_order: u32,
    /// Delivered, with those that carried a mark of congestion, `tcpi_delivered`.
    pub delivered: u32,
    /// Of these, with a mark (RFC 3168), `tcpi_delivered_ce`.
    pub marked: u32,
    /// Bytes of a segment that is sent, `tcpi_snd_mss`.
    pub segment: u32,
    /// The same of those received, `tcpi_rcv_mss`.
    pub segment_received: u32,
    /// Bytes of the longest packet that the path is believed to carry, `tcpi_pmtu`.
    pub path_mtu: u32,
    /// Bytes written and not sent yet, `tcpi_notsent_bytes`.
    pub not_sent: u32,
    /// Bytes acknowledged so far, `tcpi_bytes_acked`.
    pub acknowledged: u64,
    /// Bytes received in order so far, `tcpi_bytes_received`.
    pub received: u64,
    /// Bytes sent so far, again as well, `tcpi_bytes_sent`.
    pub sent: u64,
    /// Of these, again, `tcpi_bytes_retrans`.
    pub bytes_again: u64,
    /// Bytes per second of the last delivery, `tcpi_delivery_rate`.
    pub delivery_rate: u64,
    /// Whether that is the application's doing: there was nothing to send.
    pub application_limited: bool,
    /// Bytes per second at which the kernel spaces what it sends, `tcpi_pacing_rate`.
    pub pacing_rate: u64,
    /// Bytes that the other end takes, `tcpi_snd_wnd`.
    pub peer_window: u32,
    /// Bytes that this end takes, `tcpi_rcv_wnd`.
    pub own_window: u32,
    /// What the receiver thinks that a round trip brings, in bytes, `tcpi_rcv_space`.
    pub receive_space: u32,
    /// Time with something to send, so far, `tcpi_busy_time`.
    pub busy: u64,
    /// Of this, held back by the receiver's window, `tcpi_rwnd_limited`.
    pub receiver_limited: u64,
    /// Of this, by the send buffer, `tcpi_sndbuf_limited`.
    pub buffer_limited: u64,
}

/// A connection at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// When, in nanoseconds of UTC.
    pub at: u64,
    /// Number of the connection.
    pub connection: u32,
    /// Bytes that the application has and the send buffer has no room for.
    pub backlog: u64,
    /// What the kernel says.
    pub info: Info,
}

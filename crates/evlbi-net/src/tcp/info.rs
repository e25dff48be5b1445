//! State of a connection as Linux reports it: `TCP_INFO` (RFC 4898's values, as far as Linux has them).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use evlbi_trace::tcp::Info;
use linux_raw_sys::net::tcp_info;

use crate::cpu::succeed;

/// Returns the kernel's state of any connection.
///
/// # Errors
/// Returns the kernel's error.
pub fn info(socket: &impl AsFd) -> io::Result<Info> {
    // SAFETY: a structure of numbers, for which zero is valid.
    let mut raw: tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<tcp_info>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `raw`, exclusively borrowed; the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut raw).cast(),
            &raw mut length,
        )
    };
    succeed(result)?;
    Ok(Info {
        phase: raw.tcpi_ca_state.into(),
        window: raw.tcpi_snd_cwnd,
        threshold: raw.tcpi_snd_ssthresh,
        round_trip: raw.tcpi_rtt,
        round_trip_deviation: raw.tcpi_rttvar,
        shortest_round_trip: raw.tcpi_min_rtt,
        timeout: raw.tcpi_rto,
        backoff: raw.tcpi_backoff,
        timeouts: raw.tcpi_total_rto.into(),
        in_flight: raw.tcpi_unacked,
        beyond_gaps: raw.tcpi_sacked,
        lost: raw.tcpi_lost,
        data_segments: raw.tcpi_data_segs_out,
        sent_again: raw.tcpi_total_retrans,
        needless: raw.tcpi_dsack_dups,
        reordering: raw.tcpi_reordering,
        reordered: raw.tcpi_reord_seen,
        out_of_order: raw.tcpi_rcv_ooopack,
        delivered: raw.tcpi_delivered,
        marked: raw.tcpi_delivered_ce,
        segment: raw.tcpi_snd_mss,
        segment_received: raw.tcpi_rcv_mss,
        path_mtu: raw.tcpi_pmtu,
        not_sent: raw.tcpi_notsent_bytes,
        acknowledged: raw.tcpi_bytes_acked,
        received: raw.tcpi_bytes_received,
        sent: raw.tcpi_bytes_sent,
        bytes_again: raw.tcpi_bytes_retrans,
        delivery_rate: raw.tcpi_delivery_rate,
        application_limited: raw.tcpi_delivery_rate_app_limited() != 0,
        pacing_rate: raw.tcpi_pacing_rate,
        peer_window: raw.tcpi_snd_wnd,
        own_window: raw.tcpi_rcv_wnd,
        receive_space: raw.tcpi_rcv_space,
        busy: raw.tcpi_busy_time,
        receiver_limited: raw.tcpi_rwnd_limited,
        buffer_limited: raw.tcpi_sndbuf_limited,
    })
}

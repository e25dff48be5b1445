//! Capacity of a link for a stream.

use std::str::FromStr;

use evlbi_core::packetise::{Family, PacketiseError, Rule, TCP_HEADER, payload_length};
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{wire_bytes, wire_bytes_of_segment};
use evlbi_net::file::TableError;
use evlbi_wire::vtp;
use serde::Serialize;

use evlbi_wire::units::show_rate;

use crate::csv::{self, Column, cell};

/// Capacity of SONET for a 10GBASE-W, in bits per second (Meirosu, section 1.1), in blocks of 66 bits for 64.
const WANPHY_PAYLOAD: f64 = 9.58464e9;
const BLOCK: f64 = 64.0 / 66.0;
/// Default rate.
const RATE: BitRate = BitRate::new(1_000_000_000).expect("above 0");

/// A stream, and the link that is to carry it.
#[derive(Clone, Debug)]
pub struct PlanLinkOptions {
    /// Bits of data per second.
    pub rate: BitRate,
    /// The link.
    pub link: Link,
    /// Length of a frame in bytes, header included.
    pub frame: usize,
    /// Maximum IP packet in bytes.
    pub mtu: usize,
    /// Data in each packet in bytes; `None` for frames as `send` cuts them, and full segments over TCP.
    pub size: Option<u32>,
    /// Protocol.
    pub carrier: Carrier,
    /// Whether it is over IPv6.
    pub v6: bool,
}

impl Default for PlanLinkOptions {
    fn default() -> PlanLinkOptions {
        PlanLinkOptions {
            rate: RATE,
            link: Link::Ethernet(RATE),
            frame: 8032,
            mtu: 1500,
            size: None,
            carrier: Carrier::Udp,
            v6: false,
        }
    }
}

/// Protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// VTP: UDP with a sequence number of 8 bytes.
    Udp,
    /// UDP without a sequence number.
    Pudp,
    /// TCP with timestamps.
    Tcp,
}

/// Kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// Ethernet of this rate.
    Ethernet(BitRate),
    /// 10 gigabit Ethernet over SONET (10GBASE-W).
    WanPhy,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Link, String> {
        match text {
            "wanphy" => Ok(Link::WanPhy),
            rate => rate
                .parse()
                .map(Link::Ethernet)
                .map_err(|error| format!("{error}, or wanphy")),
        }
    }
}

/// Reason why packets cannot carry a stream.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanLinkError {
    /// Headers take the whole packet.
    #[error("an MTU of {mtu} leaves no room for data after {headers} bytes of headers")]
    NoRoom {
        /// Maximum IP packet, in bytes.
        mtu: usize,
        /// Headers of each packet, in bytes.
        headers: usize,
    },
    /// Frames must not be split, and are longer than a packet.
    #[error("pudp:// carries whole frames, and {frame} bytes do not fit an MTU of {mtu}")]
    Whole {
        /// Length of a frame in bytes.
        frame: usize,
        /// Maximum IP packet, in bytes.
        mtu: usize,
    },
    /// Frames cannot be split into packets.
    #[error("{0}")]
    Cut(#[from] PacketiseError),
}

/// A stream on a link. Rates in bits per second.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkPlan {
    schema: &'static str,
    rate: f64,
    /// Rate of the link below Ethernet, if its coding adds bits.
    payload: Option<f64>,
    /// Rate of Ethernet on the link, gaps and preambles included.
    ethernet: f64,
    /// Data in each packet, and its size on the wire, in bytes.
    data_bytes: usize,
    wire_bytes: u64,
    /// Fraction of data in all that is on the wire.
    efficiency: f64,
    /// Rate of the stream on the wire.
    needed: f64,
    /// Fraction of the link that it takes.
    load: f64,
    /// Maximum data rate of the link in such packets.
    most: f64,
    /// Fraction of the data to shed; 0 if it fits.
    shed: f64,
    packets_per_second: f64,
    /// Time from the start of a packet to that of the next, in seconds.
    spacing_s: f64,
}

/// Returns the bytes of data in a packet, as `send` splits frames.
fn data_bytes(
    options: &PlanLinkOptions,
    family: Family,
    header: usize,
) -> Result<usize, PlanLinkError> {
    if let Some(size) = options.size {
        return Ok(size as usize);
    }
    let (frame, mtu) = (options.frame, options.mtu);
    if options.carrier == Carrier::Tcp {
        let headers = family.ip_header() + TCP_HEADER;
        let data = mtu.checked_sub(headers).filter(|data| *data > 0);
        return data.ok_or(PlanLinkError::NoRoom { mtu, headers });
    }
    let data = payload_length(frame, mtu, family, header, Rule::Frames)?;
    if options.carrier == Carrier::Pudp && data < frame {
        return Err(PlanLinkError::Whole { frame, mtu });
    }
    Ok(data)
}

/// Calculates how much of a stream fits a link.
///
/// # Errors
/// [`PlanLinkError`] if packets have no room for data, or for a frame that must not be split.
pub fn plan(options: &PlanLinkOptions) -> Result<LinkPlan, PlanLinkError> {
    let family = if options.v6 { Family::V6 } else { Family::V4 };
    let header = match options.carrier {
        Carrier::Udp => vtp::HEADER_LEN,
        Carrier::Pudp | Carrier::Tcp => 0,
    };
    let data = data_bytes(options, family, header)?;
    let wire_bytes = match options.carrier {
        Carrier::Tcp => wire_bytes_of_segment(data, family),
        Carrier::Udp | Carrier::Pudp => wire_bytes(data + header, family),
    };
    let (payload, ethernet) = match options.link {
        Link::Ethernet(rate) => (None, rate.get() as f64),
        Link::WanPhy => (Some(WANPHY_PAYLOAD), WANPHY_PAYLOAD * BLOCK),
    };
    let rate = options.rate.get() as f64;
    let efficiency = data as f64 / wire_bytes as f64;
    let needed = rate / efficiency;
    let most = ethernet * efficiency;
    let packets_per_second = rate.min(most) / (data as f64 * 8.0);
    Ok(LinkPlan {
        schema: "evlbi.plan.link/1",
        rate,
        payload,
        ethernet,
        data_bytes: data,
        wire_bytes,
        efficiency,
        needed,
        load: needed / ethernet,
        most,
        shed: (1.0 - most / rate).max(0.0),
        packets_per_second,
        spacing_s: 1.0 / packets_per_second,
    })
}

/// Formats it as text.
pub fn text(plan: &LinkPlan) -> String {
    let lines = [
        format!(
            "each packet: {} bytes of data, {} on the wire ({:.2} %)",
            plan.data_bytes,
            plan.wire_bytes,
            plan.efficiency * 100.0
        ),
        format!(
            "{} of data are {} on the wire, of {}{}",
            show_rate(plan.rate),
            show_rate(plan.needed),
            show_rate(plan.ethernet),
            plan.payload.map_or(String::new(), |payload| format!(
                " (64 bits in 66 of the payload of {})",
                show_rate(payload)
            ))
        ),
        match plan.shed > 0.0 {
            false => format!("it fits: {:.1} % of the link", plan.load * 100.0),
            true => format!(
                "it does not fit: {:.3} % must be shed, {} of data pass",
                plan.shed * 100.0,
                show_rate(plan.most)
            ),
        },
        format!(
            "{:.0} packets per second, one per {:.3} us",
            plan.packets_per_second,
            plan.spacing_s * 1e6
        ),
    ];
    lines.join("\n")
}

/// Formats it as CSV, in one row.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(plan: &LinkPlan) -> Result<String, TableError> {
    let columns: &[Column<LinkPlan>] = &[
        ("rate_bps", |plan| plan.rate.to_string()),
        ("ethernet_bps", |plan| plan.ethernet.to_string()),
        ("payload_bps", |plan| cell(plan.payload)),
        ("data_bytes", |plan| plan.data_bytes.to_string()),
        ("wire_bytes", |plan| plan.wire_bytes.to_string()),
        ("efficiency", |plan| plan.efficiency.to_string()),
        ("needed_bps", |plan| plan.needed.to_string()),
        ("load", |plan| plan.load.to_string()),
        ("most_bps", |plan| plan.most.to_string()),
        ("shed", |plan| plan.shed.to_string()),
        ("packets_per_s", |plan| plan.packets_per_second.to_string()),
        ("spacing_s", |plan| plan.spacing_s.to_string()),
    ];
    csv::table(columns, [plan])
}

//! What of a stream fits a link.

use anyhow::{Result, bail};
use evlbi_core::packetise::{Family, Rule, TCP_HEADER, payload_length};
use evlbi_core::shed::{wire_bytes, wire_bytes_of_segment};
use evlbi_wire::vtp;
use serde::Serialize;

use crate::cli::{Carrier, Link, PlanLinkArgs};
use crate::output;
use crate::units::show_rate;

/// What SONET carries of a 10GBASE-W in bits per second (Meirosu, section 1.1), which is in blocks of 66 bits for 64.
const WANPHY_PAYLOAD: f64 = 9.58464e9;
const BLOCK: f64 = 64.0 / 66.0;

/// Rates in bits per second.
#[derive(Debug, Serialize)]
struct LinkPlan {
    schema: &'static str,
    rate: f64,
    /// What the link carries beneath Ethernet, where that is coded.
    payload: Option<f64>,
    /// What it carries of Ethernet, gaps and preambles included.
    ethernet: f64,
    /// Data in each packet, and what it takes on the wire, in bytes.
    data_bytes: usize,
    wire_bytes: u64,
    /// Of all that is on the wire, what is data.
    efficiency: f64,
    /// What the stream takes on the wire.
    needed: f64,
    /// Part of the link.
    load: f64,
    /// Most data that the link carries in such packets.
    most: f64,
    /// Part of the data that must be left out; 0 if it fits.
    shed: f64,
    packets_per_second: f64,
    /// Between beginnings of packets, in seconds.
    spacing_s: f64,
}

pub fn run(args: &PlanLinkArgs) -> Result<()> {
    output::print(args.json, &plan(args)?, text)
}

/// Bytes of data in a packet, as `send` cuts frames.
fn data_bytes(args: &PlanLinkArgs, family: Family, header: usize) -> Result<usize> {
    if let Some(size) = args.size {
        return Ok(size as usize);
    }
    let (frame, mtu) = (args.frame, args.mtu);
    if args.carrier == Carrier::Tcp {
        let headers = family.ip_header() + TCP_HEADER;
        return match mtu.checked_sub(headers) {
            None | Some(0) => {
                bail!("--mtu {mtu} leaves no room for data beside {headers} bytes of headers")
            }
            Some(data) => Ok(data),
        };
    }
    let data = payload_length(frame, mtu, family, header, Rule::Frames)?;
    if args.carrier == Carrier::Pudp && data < frame {
        bail!(
            "pudp:// carries whole frames, and {frame} bytes do not fit an MTU of {mtu}; raise --mtu"
        );
    }
    Ok(data)
}

fn plan(args: &PlanLinkArgs) -> Result<LinkPlan> {
    let family = match args.v6 {
        true => Family::V6,
        false => Family::V4,
    };
    let header = match args.carrier {
        Carrier::Udp => vtp::HEADER_LEN,
        Carrier::Pudp | Carrier::Tcp => 0,
    };
    let data = data_bytes(args, family, header)?;
    let wire_bytes = match args.carrier {
        Carrier::Tcp => wire_bytes_of_segment(data, family),
        Carrier::Udp | Carrier::Pudp => wire_bytes(data + header, family),
    };
    let (payload, ethernet) = match args.link {
        Link::Ethernet(rate) => (None, rate.get() as f64),
        Link::WanPhy => (Some(WANPHY_PAYLOAD), WANPHY_PAYLOAD * BLOCK),
    };
    let rate = args.rate.get() as f64;
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

fn text(plan: &LinkPlan) -> String {
    let mut lines = vec![
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
    ];
    lines.push(match plan.shed > 0.0 {
        false => format!("it fits: {:.1} % of the link", plan.load * 100.0),
        true => format!(
            "it does not fit: {:.3} % must be left out, {} of data go through",
            plan.shed * 100.0,
            show_rate(plan.most)
        ),
    });
    lines.push(format!(
        "{:.0} packets per second, one each {:.3} us",
        plan.packets_per_second,
        plan.spacing_s * 1e6
    ));
    lines.join("\n")
}

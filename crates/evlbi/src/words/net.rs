//! Errors of evlbi-net and evlbi-core.

use std::error::Error;

use evlbi_core::packetise::PacketiseError;
use evlbi_core::shed::ShedError;
use evlbi_net::ring::RingError;
use evlbi_net::transport::NotHonoured;

/// What is said in place of an error's own words.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_option))
        .or_else(|| error.downcast_ref().and_then(of_ring))
        .or_else(|| error.downcast_ref().and_then(of_packets))
        .or_else(|| error.downcast_ref().and_then(of_shedding))
}

fn of_option(error: &NotHonoured) -> Option<String> {
    let option = match (error.option, error.receives) {
        ("single", false) => "--no-gso",
        ("single", true) => "--no-gro",
        ("only", _) => "--source",
        ("buffer", _) => "--buffer",
        ("mtu", _) => "--mtu",
        ("sequence", _) => "--sequence",
        ("window", _) => "--window",
        ("hold", _) => "--hold",
        // As a URL has it.
        _ => return None,
    };
    let (scheme, here) = (error.scheme, error.here);
    Some(format!(
        "{option} has no effect on {scheme}://{here}; leave it out"
    ))
}

fn of_ring(error: &RingError) -> Option<String> {
    Some(match error {
        RingError::Size { .. } => format!("{error}; a larger --ring holds them"),
        RingError::Memory { .. } => {
            format!("{error}; a smaller --ring (or --window, where the ring follows it) needs less")
        }
        _ => return None,
    })
}

fn of_packets(error: &PacketiseError) -> Option<String> {
    Some(match error {
        PacketiseError::MtuTooSmall { .. } => format!("{error}; raise --mtu"),
        PacketiseError::SmallParts { enough, .. } => {
            format!("{error}; raise --mtu to {enough} or cut them as bytes with --cut plain")
        }
        PacketiseError::NoDivisor { .. } => {
            format!("{error}; cut them as bytes with --cut plain")
        }
        _ => return None,
    })
}

fn of_shedding(error: &ShedError) -> Option<String> {
    Some(match error {
        ShedError::NoRate => format!("{error}; give --rate or --realtime with it"),
        ShedError::NoFrameRate => format!("{error}; give --frame-rate"),
        _ => return None,
    })
}

//! Probes and responders at work in this process.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use evlbi_net::run::{Run, explain};
use evlbi_probe::measure::Token;
use evlbi_probe::respond::{RespondOptions, Responding, respond};
use evlbi_probe::sweep::Sizes;
use evlbi_probe::udp::ProbeUdpOptions;
use evlbi_probe::{Measured, Target};

pub const TOKEN: &str = "a token of tests";

/// Of a responder that allows whatever is asked for, but load.
pub fn open() -> RespondOptions {
    RespondOptions {
        bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        token: Token::from(TOKEN),
        ..RespondOptions::default()
    }
}

/// A responder on loopback.
pub fn respond_here(options: &RespondOptions) -> Responding {
    respond(options, &Run::silent()).unwrap()
}

/// Ends a responder, of which no session may have panicked.
#[track_caller]
pub fn end(responder: Responding) {
    responder.stop();
    responder.join().unwrap();
}

/// A responder as a client is told of it.
pub fn target(responder: &Responding) -> Target {
    Target {
        address: responder.addresses()[0].to_string(),
        token: Token::from(TOKEN),
        ..Target::default()
    }
}

/// A stream of so many datagrams of this size.
pub fn stream(rate: &str, size: usize, count: usize) -> ProbeUdpOptions {
    ProbeUdpOptions {
        rate: Some(rate.parse().unwrap()),
        size: Sizes(vec![size]),
        count: Some(count as u64),
        ..ProbeUdpOptions::default()
    }
}

/// What was measured, and is in its file if one was asked for.
#[track_caller]
pub fn kept<R, E>(measured: Result<Measured<R>, E>) -> R
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let measured = measured.unwrap_or_else(|error| panic!("{}", explain(&*error.into())));
    measured.written.unwrap();
    measured.result
}

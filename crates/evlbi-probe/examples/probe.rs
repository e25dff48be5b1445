//! Probes a path to a responder, and prints the losses and their places: `cargo run --example probe HOST:8620 TOKEN`.
//! Run `evlbi respond` on the other host, or call [`evlbi_probe::respond::respond`] there.

use std::error::Error;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_probe::Target;
use evlbi_probe::measure::Token;
use evlbi_probe::udp::{ProbeUdpOptions, probe};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [address, token] = &given[..] else {
        return Err("arguments: HOST:PORT TOKEN".into());
    };
    let options = ProbeUdpOptions {
        target: Target {
            address: address.clone(),
            token: Token::from(token.as_str()),
            ..Target::default()
        },
        rate: Some("2M".parse()?),
        duration: Some(Duration::from_secs(1)),
        ..ProbeUdpOptions::default()
    };
    let measured = probe(&options, &Run::silent())?;
    for point in &measured.result.points {
        println!("sent {}, received {}", point.sent, point.unique);
        println!("lost {}", point.lost);
        println!("{}", point.finding);
    }
    Ok(())
}

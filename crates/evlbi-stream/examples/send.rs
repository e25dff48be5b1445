//! Sends a recording at a bit rate: `cargo run --example send scan.vdif udp://127.0.0.1:2630 8M`.

use std::error::Error;

use evlbi_net::run::Run;
use evlbi_stream::send::{Pace, SendOptions, send};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [source, to, rate] = &given[..] else {
        return Err("arguments: FILE URL RATE".into());
    };
    let options = SendOptions {
        source: source.clone(),
        to: to.parse()?,
        pace: Pace::Rate(rate.parse()?),
        ..SendOptions::default()
    };
    let sending = send(&options, &Run::silent())?;
    let result = sending.join()?;

    let live = &result.report.live;
    println!("sent {} datagrams, {} bytes", live.sent, live.bytes);
    println!("not sent {}", live.not_sent);
    println!(
        "late by {:.1} us on average",
        result.report.lateness_us.mean
    );
    Ok(())
}

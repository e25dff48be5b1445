//! Sends ten seconds over a path of 15 ms that loses one packet in a hundred, in virtual time: `cargo run --example lossy_path`.
//! Hosts, path and clock are simulated, so it takes only a moment, and the same seed always loses the same packets.

use std::error::Error;
use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::Run;
use evlbi_net::sim::Network;
use evlbi_stream::recv::{RecvOptions, receive};
use evlbi_stream::send::{Pace, SendOptions, send};

/// UTC at the beginning, in nanoseconds since 1970: 2027-01-15 08:00.
const BEGINNING: u64 = 1_800_000_000_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::simulated(BEGINNING);
    let there = [
        Law::Delay {
            delay: Nanos(15_000_000),
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        },
        Law::Loss(Loss::Random { fraction: 0.01 }),
    ];
    let network = Network::between(&clock, [&there, &[]], 1500, 1);
    let (station, correlator) = (network.near(1), network.far(1));
    let to = network.to((correlator.address(), 2630).into());

    // All simulated threads run in here.
    let (sent, received) = clock.simulate(|| {
        let receiving = receive(
            &RecvOptions {
                from: to.clone(),
                idle: Some(Duration::from_secs(1)),
                ..RecvOptions::default()
            },
            &Run::silent().on(&correlator),
        )?;
        let sending = send(
            &SendOptions {
                source: "pattern:1032".to_owned(),
                to,
                pace: BitRate::new(8_000_000).map_or(Pace::RealTime, Pace::Rate),
                duration: Some(Duration::from_secs(10)),
                ..SendOptions::default()
            },
            &Run::silent().on(&station),
        )?;
        let sent = sending.join()?;
        Ok::<_, Box<dyn Error>>((sent, receiving.join()))
    })?;

    let counters = &received.live.counters;
    println!("sent {}", sent.report.live.sent);
    println!("received {}", counters.unique);
    println!("lost {}", counters.lost);
    println!("in the network {}", received.live.attribution.network_lost);
    Ok(())
}

//! Paths without a return direction: the receiver decides alone when a stream is over.

use evlbi_core::path::{Law, Loss, Times};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::Run;
use evlbi_net::sim::Network;

use super::{BEGINNING, TOKEN, delay};
use crate::measure::Token;
use crate::session::Target;
use crate::sweep::{Sizes, Spacings};
use crate::udp::{self, ProbeUdpOptions};

/// A second one-way stream on such a path is received like the first, and both are counted exactly.
#[test]
fn a_path_without_a_return_direction() {
    let lossy = Law::Loss(Loss::Every {
        period: 10,
        first: 3,
    });
    let closed = Law::Loss(Loss::Random { fraction: 1.0 });
    let clock = Clock::simulated(BEGINNING);
    let laws: [&[Law]; 2] = [&[lossy, delay(20)], &[closed]];
    let network = Network::between(&clock, laws, 1500, 1);
    let options = ProbeUdpOptions {
        target: Target {
            address: "10.0.0.1:5000".to_owned(),
            token: Token::from(TOKEN),
            ..Target::default()
        },
        one_way: true,
        size: Sizes(vec![500, 1000]),
        spacing: Some(Spacings(vec![1_000_000])),
        count: Some(1000),
        ..ProbeUdpOptions::default()
    };
    let (sent, received) = clock.simulate(|| {
        let (near, far) = (network.near(1), network.far(1));
        let (run, own) = (Run::silent().on(&far), options.clone());
        let work = move || udp::probe(&own, &run).unwrap().result;
        let receiving = far.clock().spawn("receive", work).unwrap();
        let sent = udp::send_one_way(&options, &Run::silent().on(&near)).unwrap();
        (sent, receiving.join())
    });
    let sent = serde_json::to_value(&sent).unwrap();
    for (place, point) in received.points.iter().enumerate() {
        assert_eq!(sent["points"][place]["used"], 1000);
        assert_eq!([point.sent, point.unique, point.lost], [1000, 900, 100]);
        assert_eq!(point.loss_runs.get(&1), Some(&100));
    }
    assert_eq!((received.points.len(), received.stopped), (2, None));
}

/// The receiver ends a stream after 2 s of silence, and one of which nothing arrives 15 s after its calculated end; then it waits for the
/// loss timeout. It polls every 20 ms.
#[test]
fn a_path_without_a_return_direction_falls_silent() {
    let end = |points: usize| {
        let clock = Clock::simulated(BEGINNING);
        // The first datagram leaves after a millisecond, so number 500 is the first that is lost.
        let cut = Law::Loss(Loss::Within {
            times: Times::Once {
                from: Nanos(500_500_000),
                to: Nanos(u64::MAX),
            },
            fraction: 1.0,
        });
        let network = Network::between(&clock, [&[cut, delay(25)], &[delay(1)]], 1500, 1);
        let options = ProbeUdpOptions {
            target: Target {
                address: "10.0.0.1:5000".to_owned(),
                token: Token::from(TOKEN),
                ..Target::default()
            },
            one_way: true,
            size: Sizes([500, 1000][..points].to_vec()),
            spacing: Some(Spacings(vec![1_000_000])),
            count: Some(1000),
            ..ProbeUdpOptions::default()
        };
        clock.simulate(|| {
            let (run, own) = (Run::silent().on(&network.near(1)), options.clone());
            let send = move || udp::send_one_way(&own, &run).unwrap();
            let sending = network.near(1).clock().spawn("send", send).unwrap();
            let run = Run::silent().on(&network.far(1));
            let result = udp::probe(&options, &run).unwrap().result;
            let over = clock.now();
            sending.join();
            for (point, unique) in result.points.iter().zip([500, 0]) {
                assert_eq!(
                    [point.sent, point.unique, point.lost],
                    [1000, unique, 1000 - unique]
                );
            }
            assert_eq!(result.points.len(), points);
            over.as_secs_f64()
        })
    };
    // The last arrives after 525 ms, is noticed by the poll after 540 ms, and is overdue at the poll after 2.56 s. The listener ends 1 s
    // later, which the next poll notices.
    assert_eq!(end(1), 0.54 + 2.02 + 1.0 + 0.02);
    // A stream of 1 s, 1 s for late datagrams, and 15 s.
    assert_eq!(end(2), 3.58 + 17.02 + 1.0 + 0.02);
}

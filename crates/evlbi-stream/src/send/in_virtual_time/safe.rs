//! Flows under SafeUDP, with the threads and sockets of a simulated network.

use evlbi_net::safe::{Key, Mode, Step};

use super::*;
use crate::control_socket;
use crate::send::{SafeOptions, SendError};

/// Options of a flow of 8 Mbit/s with reports, at both ends.
fn both(
    network: &Network,
    mode: Mode,
    least: Step,
    length: Duration,
) -> (SendOptions, RecvOptions) {
    let key = Key::new(&[9; 32]);
    let send_options = SendOptions {
        safe: Some(SafeOptions {
            mode,
            least,
            key: Some(key.clone()),
            ..SafeOptions::default()
        }),
        ..sender(network, 8_000_000, length)
    };
    let recv_options = RecvOptions {
        safe: Some(key),
        to: "null".into(),
        ..receiver(network)
    };
    (send_options, recv_options)
}

/// A flow of 20 s over these laws.
fn safe(laws: &[Law], mode: Mode) -> [Value; 2] {
    let (clock, network) = network(laws, 1);
    let (send_options, recv_options) = both(&network, mode, Step::LOWEST, seconds(20));
    clock.simulate(|| played(&network, &send_options, &recv_options))
}

/// Returns a number of the accounts.
fn account(result: &Value, name: &str) -> u64 {
    of(&result["safe"]["accounts"], name)
}

fn rate(bits: u64) -> Law {
    Law::Rate {
        rate: BitRate::new(bits).unwrap(),
        buffer: 20_000,
        overhead: 24,
        mark: None,
    }
}

#[test]
fn a_clean_path_carries_everything_after_the_ramp() {
    for mode in [Mode::Shared, Mode::Reserved] {
        let [sent, received] = safe(&[delay(10)], mode);
        assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
        assert_eq!(sent["safe"]["notices"], serde_json::json!([]));
        assert_eq!(received["safe"]["is_agreed"], true);
        let expected = 20 * 8_000_000 / 8 / FRAME as u64;
        assert!(account(&sent, "offered").abs_diff(expected) <= 1);
        assert_eq!(account(&sent, "unique"), of(&sent, "sent"));
        assert_eq!((of(&sent, "shed"), of(&received, "lost")), (0, 0));
        assert_eq!(sent["safe"]["state"], "ended");
        let round_trip = sent["safe"]["rtt_s"].as_f64().unwrap();
        assert!((0.010..0.012).contains(&round_trip), "{round_trip}");
    }
}

#[test]
fn what_is_shed_is_not_lost_at_either_end() {
    let [sent, received] = safe(&[rate(5_000_000), delay(10)], Mode::Shared);
    assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
    assert_eq!(of(&sent, "shed"), account(&received, "shed"));
    assert_eq!(of(&received["safe"], "shed"), of(&sent, "shed"));
    let offered = of(&sent, "offered");
    assert_eq!(offered, of(&sent, "sent") + of(&sent, "shed"));
    // The ramp finds half of the rate; trials may lose a little.
    let kept = of(&sent, "sent") as f64 / offered as f64;
    assert!((0.4..0.62).contains(&kept), "{kept}");
    assert_eq!(
        of(&received, "expected"),
        of(&received, "unique") + of(&received, "lost")
    );
    assert_eq!(of(&received, "unique"), account(&received, "unique"));
    assert!(of(&received, "lost") < offered / 50, "{received}");
    assert!(sent["safe"]["notices"][0]["kind"] == "shedding");
    let gaps = received["intervals"].as_array().unwrap();
    let lost: u64 = gaps
        .iter()
        .map(|gap| 1 + of(gap, "last") - of(gap, "first"))
        .sum();
    assert_eq!(lost, of(&received, "lost"));
}

/// Too few datagrams, or too far apart, for anybody who does not know that they were announced.
#[test]
fn flows_of_few_or_rare_datagrams_are_accounted_for() {
    let room = Room::new();
    let raw = room.path("raw.bin");
    std::fs::write(
        &raw,
        (0..60_000)
            .map(|n| ((n * 97) >> 3) as u8)
            .collect::<Vec<u8>>(),
    )
    .unwrap();
    for (source, rate, length) in [
        (None, 1_000_000, Some(Duration::from_millis(40))),
        (None, 10_000, Some(seconds(12))),
        (Some(&raw), 1_000_000, None),
        (Some(&raw), 40_000, None),
    ] {
        let (clock, network) = network(&[delay(10)], 1);
        let least = SafeOptions::default().least;
        let (mut send_options, mut recv_options) = both(&network, Mode::Shared, least, seconds(1));
        send_options.pace = Pace::Rate(BitRate::new(rate).unwrap());
        send_options.duration = length;
        if let Some(source) = source {
            send_options.source = source.clone();
        }
        recv_options.idle = Some(seconds(10));
        let [sent, received] = clock.simulate(|| played(&network, &send_options, &recv_options));
        let offered = of(&sent, "offered");
        assert!((5..64).contains(&offered), "{offered}");
        assert_eq!(
            sent["safe"]["notices"],
            serde_json::json!([]),
            "{source:?} {rate}"
        );
        assert_eq!(account(&sent, "unique"), offered);
        assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
        assert_eq!(
            (of(&received, "unique"), of(&received, "lost")),
            (offered, 0)
        );
    }
}

#[test]
fn a_path_that_carries_less_than_is_of_use_gets_no_data() {
    let (clock, network) = network(&[rate(5_000_000), delay(10)], 1);
    let (send_options, recv_options) = both(&network, Mode::Shared, Step::ALL, seconds(20));
    let recv_options = RecvOptions {
        duration: Some(seconds(30)),
        ..recv_options
    };
    let [sent, received] = clock.simulate(|| played(&network, &send_options, &recv_options));
    assert_eq!((of(&sent, "sent"), of(&received, "received")), (0, 0));
    assert!(of(&sent, "offered") > 0);
    assert_eq!(of(&sent, "shed"), of(&sent, "offered"));
    assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
    assert_eq!(sent["safe"]["notices"][0]["kind"], "stopped");
}

#[test]
fn a_receiver_counts_one_flow_after_another() {
    let (clock, network) = network(&[rate(5_000_000), delay(10)], 1);
    let least = SafeOptions::default().least;
    let (send_options, recv_options) = both(&network, Mode::Shared, least, seconds(8));
    let recv_options = RecvOptions {
        idle: Some(seconds(10)),
        ..recv_options
    };
    let [first, second, received] = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let receiving = receive(&recv_options, &run(network.far(1))).unwrap();
        let sent = || {
            let sending = send(&send_options, &run(network.near(1))).unwrap();
            serde_json::to_value(sending.join().unwrap()).unwrap()
        };
        let (first, second) = (sent(), sent());
        [
            first,
            second,
            serde_json::to_value(receiving.join()).unwrap(),
        ]
    });
    assert_eq!(second["safe"]["accounts"], received["safe"]["accounts"]);
    assert!(of(&first, "shed") > 0 && of(&second, "shed") > 0);
    let unique = account(&first, "unique") + account(&second, "unique");
    assert_eq!(of(&received, "unique"), unique);
    let lost = account(&first, "lost") + account(&second, "lost");
    assert_eq!(of(&received, "lost"), lost);
}

/// Data are sent for as long as was asked, however long they have waited for reports.
#[test]
fn a_flow_shorter_than_the_ramp_is_sent_and_accounted_for() {
    let (clock, network) = network(&[delay(10)], 1);
    let length = Duration::from_millis(500);
    let (send_options, recv_options) = both(&network, Mode::Shared, Step::LOWEST, length);
    let [sent, received] = clock.simulate(|| played(&network, &send_options, &recv_options));
    let expected = 8_000_000 / 8 / 2 / FRAME as u64;
    assert!(account(&sent, "unique").abs_diff(expected) <= 1, "{sent}");
    assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
}

/// Until the planned start of the data, the receiver may start.
#[test]
fn a_sender_waits_for_its_receiver_until_its_start() {
    let (clock, network) = network(&[delay(10)], 1);
    let (mut send_options, recv_options) = both(&network, Mode::Shared, Step::LOWEST, seconds(1));
    let (sent, received) = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let run_near = run(network.near(1));
        let start = i128::from(run_near.clock().utc()) + 9_000_000_000;
        send_options.start = Some(jiff::Timestamp::from_nanosecond(start).unwrap());
        let sending = send(&send_options, &run_near).unwrap();
        clock.sleep(seconds(4));
        let receiving = receive(&recv_options, &run(network.far(1))).unwrap();
        (sending.join().unwrap(), receiving.join())
    });
    let sent = serde_json::to_value(sent).unwrap();
    let received = serde_json::to_value(received).unwrap();
    assert!(account(&sent, "unique") > 100, "{sent}");
    assert_eq!(sent["safe"]["accounts"], received["safe"]["accounts"]);
}

#[test]
fn a_receiver_without_reports_gets_no_data() {
    let (clock, network) = network(&[delay(10)], 1);
    let send_options = SendOptions {
        safe: Some(SafeOptions {
            key: Some(Key::new(&[9; 32])),
            ..SafeOptions::default()
        }),
        ..sender(&network, 8_000_000, seconds(20))
    };
    for key in [None, Some(Key::new(&[8; 32]))] {
        let recv_options = RecvOptions {
            safe: key,
            duration: Some(seconds(6)),
            ..receiver(&network)
        };
        let [sent, received] = clock.simulate(|| played(&network, &send_options, &recv_options));
        assert_eq!((of(&sent, "sent"), of(&received, "received")), (0, 0));
        assert!(sent["error"].as_str().unwrap().contains("sends no reports"));
        assert_eq!(sent["safe"]["notices"][0]["kind"], "failed");
    }
}

#[test]
fn flows_that_cannot_be_controlled_are_refused() {
    let (_, network) = network(&[], 1);
    let run = Run::silent().on(&network.near(1));
    let options = SendOptions {
        safe: Some(SafeOptions::default()),
        ..sender(&network, 8_000_000, seconds(20))
    };
    let refused = |options: &SendOptions| send(options, &run).err().unwrap();
    assert!(matches!(refused(&options), SendError::SafeKey(_)));
    let shed = SendOptions {
        shed: "random:5%".parse().unwrap(),
        ..options.clone()
    };
    assert!(matches!(refused(&shed), SendError::SafeShed));
    for to in ["tcp://127.0.0.1:1", "udp://239.1.1.1:2630"] {
        let other = SendOptions {
            to: to.parse().unwrap(),
            ..options.clone()
        };
        assert!(matches!(refused(&other), SendError::SafeTransport(_)));
    }
    let fast = SendOptions {
        pace: Pace::Max,
        ..options
    };
    assert!(matches!(refused(&fast), SendError::SafeRate));
}

/// While a flow runs, both ends show what it keeps, and each notice with its time.
#[test]
fn the_status_shows_what_is_kept() {
    let (clock, network) = network(&[rate(5_000_000), delay(10)], 1);
    let (send_options, recv_options) = both(&network, Mode::Shared, Step::LOWEST, seconds(20));
    let (status, result, seen) = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let receiving = receive(&recv_options, &run(network.far(1))).unwrap();
        let sending = send(&send_options, &run(network.near(1))).unwrap();
        clock.sleep(seconds(11));
        let mut seen = Vec::new();
        for _ in 0..1000 {
            clock.sleep(Duration::from_millis(1));
            receiving.watched().refresh();
            let mut status = control_socket::Status::default();
            receiving.watched().tell(&mut status);
            let status = serde_json::to_value(status).unwrap();
            seen.push(of(&status["receiving"][0], "lost"));
        }
        let mut status = control_socket::Status::default();
        sending.watched().tell(&mut status);
        receiving.watched().refresh();
        let mut heard = control_socket::Status::default();
        receiving.watched().tell(&mut heard);
        status.receiving = heard.receiving;
        let line = sending.watched().line();
        assert!(
            line.contains("safe held") && line.contains("50 %"),
            "{line}"
        );
        let result = serde_json::to_value(sending.join().unwrap()).unwrap();
        receiving.join();
        (serde_json::to_value(status).unwrap(), result, seen)
    });
    let (sent, received) = (&status["sending"]["safe"], &status["receiving"][0]["safe"]);
    assert_eq!(
        (&sent["mode"], &sent["state"]),
        (&"shared".into(), &"held".into())
    );
    assert_eq!(
        (&sent["kept"], &received["kept"]),
        (&0.5.into(), &0.5.into())
    );
    assert_eq!(received["state"], sent["state"]);
    assert!(of(received, "sender_shed") > 0 && of(&status["receiving"][0], "lost") == 0);
    assert_eq!(sent["notices"][0], result["safe"]["notices"][0]);
    // In every moment of a second, data in flight and data shed are not lost.
    assert!(seen.iter().all(|lost| *lost == 0), "{seen:?}");
    // Another program reads it.
    let read: control_socket::Status = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), status);
}

//! Stations that shed data.

use evlbi_core::rate::BitRate;
use evlbi_net::safe::Key;
use evlbi_stream::send::SafeOptions;

use super::*;

const DELAYS: [f64; 3] = [0.0, 0.003, 0.015];

/// Stations with these delays and frames of 5 ms, for 16 cycles of 16 blocks of 100 ms.
fn stations(room: &Room) -> [Stream; 3] {
    let start = jiff::Timestamp::from_second(BEGIN).unwrap();
    let stations = STATIONS.iter().zip(DELAYS);
    let stations = stations
        .map(|(name, delay)| format!("[[station]]\nname = \"{name}\"\ndelay = [{delay}]\n"));
    let text = format!(
        "start = \"{start}\"\nduration = 16\nsample_rate = 800000.0\npayload = 1000\ncorrelation = 0.8\nedv = 1\n{}",
        stations.collect::<String>()
    );
    let file = room.write("shed.toml", text);
    STATIONS.map(|name| Stream::of(format!("sky:{file}/{name}")))
}

fn delayed() -> CorrelateOptions {
    CorrelateOptions {
        delay: DELAYS.map(|delay| DelayTerms(vec![delay])).to_vec(),
        ..of_channels(64)
    }
}

/// A baseline keeps the smaller fraction of its two stations, less the edges of the blocks. Random loss would leave the product: 0.375
/// and 0.25.
#[test]
fn nested_fractions_leave_the_smaller_one() {
    let room = Room::new();
    let mut streams = stations(&room);
    for (stream, kept) in streams.iter_mut().zip(["3/4", "1/2", "1/2"]) {
        stream.shed = format!("keep:{kept}").parse().unwrap();
    }
    let live = correlated(&streams, &delayed(), &idle(1), 1, |_, _| ());
    let files = STATIONS.map(|name| room.path(&format!("{name}.vdif")));
    let recorded = recorded(&streams, &files, &delayed(), 1);
    for found in [live.correlation, recorded] {
        let fringes = found.fringes();
        let weights: Vec<f64> = fringes.iter().map(|fringe| fringe.weight).collect();
        for (weight, expected) in weights.iter().zip([0.4925, 0.4625, 0.44]) {
            assert!((weight - expected).abs() < 0.01, "{weights:?}");
        }
    }
}

/// Under SafeUDP, on a path that carries 60 % of the data: what the station sheds is neither expected nor lost.
#[test]
fn what_a_station_sheds_is_not_lost() {
    let room = Room::new();
    let [mut first, second, _] = stations(&room);
    let key = Key::new(&[7; 32]);
    first.safe = Some(SafeOptions {
        key: Some(key.clone()),
        ..SafeOptions::default()
    });
    first.laws.push(Law::Rate {
        rate: BitRate::new(1_150_000).unwrap(),
        buffer: 20_000,
        overhead: 24,
        mark: None,
    });
    let options = StreamOptions {
        safe: Some(key),
        wait: Duration::from_secs(9),
        ..idle(10)
    };
    let mut two = delayed();
    two.delay.truncate(2);
    let found = correlated(&[first, second], &two, &options, 1, |_, _| ());
    let sums = |name: &str| -> f64 {
        let lines = found.shown.iter();
        let of = |shown: &Shown| shown.value["baselines"][0][name][0].as_f64().unwrap();
        lines.map(of).sum::<f64>() / found.shown.len() as f64
    };
    let streams = serde_json::to_value(&found.correlation.streams).unwrap();
    let of = |name: &str| streams[0][name].as_u64().unwrap();
    assert!(of("shed") > 1000, "{streams}");
    assert_eq!(of("expected"), of("unique") + of("lost"));
    assert!(of("lost") < of("expected") / 10, "{streams}");
    assert_eq!(streams[1]["shed"], 0);
    assert!((0.3..0.7).contains(&sums("shed")), "{}", sums("shed"));
    assert!(sums("lost") < 0.1, "{}", sums("lost"));
}

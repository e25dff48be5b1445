use evlbi_wire::vdif::StationId;
use proptest::prelude::*;

use super::*;

fn stream() -> Stream {
    Stream {
        rate: BitRate::new(1_024_000_000),
        unit_bytes: 8032,
        wire_bytes: 8 * wire_bytes(1004 + 8, Family::V4),
        threads: vec![0],
        frame_rate: FrameRate::new(1000),
    }
}

fn unit(thread: u16, index: i64) -> Unit {
    Unit {
        key: StreamKey {
            station: StationId(1),
            thread,
        },
        time: Some(FrameTime::from_index(index, FrameRate::new(1000).unwrap())),
    }
}

fn decisions(policy: &str, seed: u64, count: i64) -> Vec<bool> {
    let mut shed = Shed::new(policy.parse().unwrap(), seed, &stream()).unwrap();
    (0..count)
        .map(|index| shed.decide(&unit(0, index)))
        .collect()
}

fn share(decisions: &[bool]) -> f64 {
    decisions.iter().filter(|shed| **shed).count() as f64 / decisions.len() as f64
}

/// Lengths of the runs of shed units.
fn runs(decisions: &[bool]) -> Vec<usize> {
    decisions
        .chunk_by(|a, b| a == b)
        .filter(|run| run[0])
        .map(<[bool]>::len)
        .collect()
}

#[test]
fn every_sheds_single_units_at_a_steady_distance() {
    let decisions = decisions("every:10", 1, 1000);
    assert_eq!(share(&decisions), 0.1);
    assert!(runs(&decisions).iter().all(|length| *length == 1));
    let places: Vec<usize> = (0..1000).filter(|i| decisions[*i]).collect();
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] == 10));
}

#[test]
fn bunches_have_1_to_10_units_and_an_exact_share() {
    let decisions = decisions("bunch:5%", 1, 1_000_000);
    let lengths = runs(&decisions);
    for length in 1..=10 {
        let count = lengths.iter().filter(|l| **l == length).count() as f64;
        let expected = lengths.len() as f64 / 10.0;
        assert!(
            (count - expected).abs() < 5.0 * expected.sqrt(),
            "{length}: {count}"
        );
    }
    assert_eq!(lengths.iter().max(), Some(&10));
    assert!((share(&decisions) - 0.05).abs() < 10.0 / 1e6);
}

#[test]
fn random_choices_follow_from_the_seed() {
    assert_eq!(
        decisions("random:0.2", 7, 500),
        decisions("random:0.2", 7, 500)
    );
    assert_ne!(
        decisions("random:0.2", 7, 500),
        decisions("random:0.2", 8, 500)
    );
    let n = 200_000.0f64;
    let sigma = (0.2 * 0.8 / n).sqrt();
    assert!((share(&decisions("random:0.2", 1, n as i64)) - 0.2).abs() < 4.0 * sigma);
}

#[test]
fn bursts_have_the_share_and_the_mean_length_asked_for() {
    let decisions = decisions("burst:0.1,20", 3, 2_000_000);
    let lengths = runs(&decisions);
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    assert!((mean / 20.0 - 1.0).abs() < 0.05, "{mean}");
    assert!((share(&decisions) / 0.1 - 1.0).abs() < 0.05);
}

#[test]
fn threads_are_shed_whole() {
    let mut shed = Shed::new("threads:1,3-4".parse().unwrap(), 1, &stream()).unwrap();
    let choice: Vec<bool> = (0..6).map(|thread| shed.decide(&unit(thread, 5))).collect();
    assert_eq!(choice, [false, true, false, true, true, false]);
}

#[test]
fn common_choices_need_no_talk_and_last_longer_than_a_delay() {
    // Two stations that start at different times, one seeing the data 20 ms later.
    let count = 600_000;
    let one = decisions("common:0.1", 9, count);
    let mut late = Shed::new("common:0.1".parse().unwrap(), 9, &stream()).unwrap();
    let other: Vec<bool> = (0..count)
        .map(|index| late.decide(&unit(0, index + 20)))
        .collect();
    assert!((share(&one) - 0.1).abs() < 1e-3);
    let either = one.iter().zip(&other).filter(|(a, b)| **a || **b).count() as f64 / count as f64;
    // Blocks of 100 ms, 20 ms apart: f + f * d / block = 0.12, not 1 - (1 - f)^2 = 0.19.
    assert!((either - 0.12).abs() < 2e-3, "{either}");
    assert!(runs(&one).iter().all(|length| *length >= 100));
}

#[test]
fn common_choices_rotate_over_the_threads() {
    let several = Stream {
        threads: vec![6, 0, 2, 4],
        ..stream()
    };
    let policy: Policy = "common:0.25".parse().unwrap();
    let mut shed = Shed::new(policy, 9, &several).unwrap();
    let mut per_thread = [0u32; 4];
    for second in 0..4000 {
        let mut in_this_second = 0;
        for (rank, thread) in [0u16, 2, 4, 6].into_iter().enumerate() {
            let first = shed.decide(&unit(thread, second * 1000));
            let last = shed.decide(&unit(thread, second * 1000 + 999));
            assert_eq!(first, last, "a thread is shed for the whole second");
            in_this_second += u32::from(first);
            per_thread[rank] += u32::from(first);
        }
        assert_eq!(in_this_second, 1);
    }
    assert!(
        per_thread.iter().all(|count| (900..1100).contains(count)),
        "{per_thread:?}"
    );
}

#[test]
fn a_gigabit_of_vdif_is_made_to_fit_a_gigabit_of_ethernet() {
    // 1004 + 8 + 8 + 20 + 18 + 20 = 1078 bytes on the wire for 1004 of VDIF.
    let wire: f64 = 1.024 * 1078.0 / 1004.0;
    let shed = Shed::new("fit:1G".parse().unwrap(), 1, &stream()).unwrap();
    assert!((shed.fraction().unwrap() - (1.0 - 1.0 / wire)).abs() < 1e-12);
    assert!((shed.fraction().unwrap() - 0.0905).abs() < 1e-4);
    let decisions = decisions("fit:1G", 1, 1_000_000);
    assert!((share(&decisions) - (1.0 - 1.0 / wire)).abs() < 1e-6);
    assert_eq!(share(&self::decisions("fit:10G", 1, 1000)), 0.0);
}

#[test]
fn what_a_policy_lacks_is_said() {
    let unknown = Stream {
        rate: None,
        frame_rate: None,
        ..stream()
    };
    let new = |text: &str| Shed::new(text.parse().unwrap(), 1, &unknown).map(|_| ());
    assert_eq!(new("fit:1G"), Err(ShedError::NoRate));
    assert_eq!(new("common:0.1"), Err(ShedError::NoFrameRate));
}

#[test]
fn bad_policies_say_what_to_write() {
    for (text, says) in [
        ("", "choose none"),
        ("sometimes", "choose none"),
        ("none:1", "choose none"),
        ("every:1", "at least 2"),
        ("every:x", "at least 2"),
        ("bunch:0", "between 0 and 1"),
        ("bunch:1", "between 0 and 1"),
        ("random:150%", "between 0 and 1"),
        ("random:nan", "between 0 and 1"),
        ("burst:0.5,0.2", "mean length"),
        ("burst:0.99,5", "longer bursts"),
        ("threads:", "0 to 1023"),
        ("threads:7-3", "0 to 1023"),
        ("threads:1024", "0 to 1023"),
        ("common:0.1,10ms", "100ms or more"),
        ("fit:quick", "rate of a link"),
    ] {
        let error = text.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn wire_bytes_count_everything() {
    // facts of Ethernet: 66 bytes beside the UDP payload, 84 at least.
    assert_eq!(wire_bytes(1472, Family::V4), 1538);
    assert_eq!(wire_bytes(1, Family::V4), 84);
    assert_eq!(wire_bytes(1452, Family::V6), 1538);
}

proptest! {
    #[test]
    fn bunches_never_drift(percent in 1u64..100, seed: u64) {
        let policy = Policy::Bunch(format!("{percent}%").parse().unwrap());
        let mut shed = Shed::new(policy, seed, &stream()).unwrap();
        let (mut total, mut lost) = (0u64, 0u64);
        for index in 0..5_000 {
            total += 1;
            lost += u64::from(shed.decide(&unit(0, index)));
            // At any moment the share is off by no more than the current bunch.
            let off = lost as f64 - total as f64 * percent as f64 / 100.0;
            prop_assert!(off.abs() <= LONGEST_BUNCH as f64 + 1.0, "{off}");
        }
        let report = shed.report();
        prop_assert_eq!((report.offered, report.shed), (total, lost));
    }

    #[test]
    fn policies_read_back_as_shown(
        policy in prop_oneof![
            Just("none".to_string()),
            (2u64..1000).prop_map(|n| format!("every:{n}")),
            (1u32..999).prop_map(|f| format!("bunch:0.{f:03}")),
            (1u32..99).prop_map(|f| format!("random:{f}%")),
            (1u32..500, 2u32..50).prop_map(|(f, l)| format!("burst:0.{f:03},{l}")),
            proptest::collection::vec(0u16..1024, 1..5).prop_map(|t| {
                let names: Vec<String> = t.iter().map(u16::to_string).collect();
                format!("threads:{}", names.join(","))
            }),
            (1u32..99, 100u32..9000).prop_map(|(f, b)| format!("common:{f}%,{b}ms")),
            (1u64..400).prop_map(|r| format!("fit:{r}G")),
        ]
    ) {
        let parsed: Policy = policy.parse().unwrap();
        prop_assert_eq!(parsed.to_string().parse::<Policy>().unwrap(), parsed);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Policy>();
    }
}

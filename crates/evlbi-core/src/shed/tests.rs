//! Exact counts of what each policy sheds.

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
    let key = StreamKey {
        station: StationId(1),
        thread,
    };
    let time = FrameTime::from_index(index, FrameRate::new(1000).unwrap());
    Unit::new(key, Some(time), &[])
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
fn bunches_have_1_to_10_units_and_an_exact_fraction() {
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

/// With the defaults, two stations shed as many units in common as chance gives, and replacements are never alike.
#[test]
fn stations_share_no_choice_but_common_ones() {
    let of = |policy: &str, station: u16, start: i64| -> Vec<bool> {
        let mut shed = Shed::new(policy.parse().unwrap(), 1, &stream()).unwrap();
        (start..start + 20_000)
            .map(|index| {
                let mut unit = unit(0, index);
                unit.key.station = StationId(station);
                shed.decide(&unit)
            })
            .collect()
    };
    for policy in ["random:10%", "bunch:10%", "burst:10%,5"] {
        let [ef, jb, later] = [(1, 0), (2, 0), (1, 7)].map(|(id, from)| of(policy, id, from));
        assert_eq!(ef, of(policy, 1, 0));
        for other in [jb, later] {
            let both = ef.iter().zip(&other).filter(|(a, b)| **a && **b).count();
            assert!((100..400).contains(&both), "{policy}: {both}");
        }
    }
    // Steady policies start at different places: of 20 stations few share one.
    for policy in ["every:100", "fit:1G"] {
        let begins = (1..=20).map(|station| of(policy, station, 0)[..100].to_vec());
        let begins: std::collections::BTreeSet<Vec<bool>> = begins.collect();
        assert!(begins.len() > 5, "{policy}: {}", begins.len());
    }
    assert_eq!(of("common:10%", 1, 0), of("common:10%", 2, 0));
    // Streams that name no station differ by their data.
    let unnamed = |byte: u8| -> Vec<bool> {
        let mut shed = Shed::new("random:10%".parse().unwrap(), 1, &stream()).unwrap();
        let unit = Unit::new(StreamKey::default(), None, &[byte; 16]);
        (0..1000).map(|_| shed.decide(&unit)).collect()
    };
    assert_eq!(unnamed(1), unnamed(1));
    assert_ne!(unnamed(1), unnamed(2));
    let bytes = |station: u16, index: i64, part: u64| {
        let mut unit = unit(0, index);
        unit.key.station = StationId(station);
        let mut bytes = [0; 16];
        unit.fill_random(1, part, &mut bytes);
        bytes
    };
    assert_eq!(bytes(1, 5, 0), bytes(1, 5, 0));
    for other in [bytes(2, 5, 0), bytes(1, 6, 0), bytes(1, 5, 1)] {
        assert_ne!(bytes(1, 5, 0), other);
    }
}

#[test]
fn bursts_have_the_requested_fraction_and_mean_length() {
    let decisions = decisions("burst:0.1,20", 3, 2_000_000);
    let lengths = runs(&decisions);
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    assert!((mean / 20.0 - 1.0).abs() < 0.05, "{mean}");
    assert!((share(&decisions) / 0.1 - 1.0).abs() < 0.05);
}

#[test]
fn threads_are_shed_whole() {
    let six = Stream {
        threads: (0..6).collect(),
        ..stream()
    };
    let mut shed = Shed::new("threads:1,3-4".parse().unwrap(), 1, &six).unwrap();
    let choice: Vec<bool> = (0..6).map(|thread| shed.decide(&unit(thread, 5))).collect();
    assert_eq!(choice, [false, true, false, true, true, false]);
}

#[test]
fn common_choices_need_no_talk_and_last_longer_than_a_delay() {
    // Two stations that start at different times, one receiving the data 20 ms later.
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
    assert_eq!(per_thread, [1000; 4], "one in each four seconds");
}

#[test]
fn no_fraction_falls_in_step_with_the_rotation() {
    for (count, percent) in [(4, 20), (4, 33), (3, 50), (8, 10), (2, 50), (16, 6)] {
        let several = Stream {
            threads: (0..count).collect(),
            ..stream()
        };
        let policy: Policy = format!("common:{percent}%").parse().unwrap();
        let mut shed = Shed::new(policy, 3, &several).unwrap();
        let seconds = 10_000;
        let mut per_thread = vec![0i64; usize::from(count)];
        for second in 0..seconds {
            for thread in 0..count {
                per_thread[usize::from(thread)] +=
                    i64::from(shed.decide(&unit(thread, second * 1000)));
            }
        }
        let all: i64 = per_thread.iter().sum();
        let exact = seconds * i64::from(count) * percent / 100;
        assert!((all - exact).abs() <= 1, "{all} of {exact}");
        let share = percent as f64 / 100.0;
        let sigma = (seconds as f64 * share * (1.0 - share)).sqrt();
        for happened in &per_thread {
            let off = *happened as f64 - seconds as f64 * share;
            assert!(off.abs() < 4.0 * sigma, "{per_thread:?}");
        }
    }
}

#[test]
fn common_choices_stay_those_of_earlier_versions() {
    // Stations need not run the same version: these answers may never change.
    let second = 1_700_000_000i64;
    let blocks: String = (0..40)
        .map(|block| second * 1000 + block * 100)
        .scan(
            Shed::new("common:0.3".parse().unwrap(), 9, &stream()).unwrap(),
            |shed, index| {
                Some(if shed.decide(&unit(0, index)) {
                    'x'
                } else {
                    '.'
                })
            },
        )
        .collect();
    assert_eq!(blocks, ".x..x...x..x..x...x..x..x...x..x..x...x.");
    let four = Stream {
        threads: vec![0, 1, 2, 3],
        ..stream()
    };
    let mut shed = Shed::new("common:0.25".parse().unwrap(), 9, &four).unwrap();
    let turns: Vec<u16> = (second..second + 12)
        .flat_map(|second| (0..4).map(move |thread| (second, thread)))
        .filter(|(second, thread)| shed.decide(&unit(*thread, second * 1000)))
        .map(|(_, thread)| thread)
        .collect();
    assert_eq!(turns, [1, 3, 0, 2, 3, 1, 0, 2, 1, 3, 2, 0]);
}

#[test]
fn two_stations_in_one_stream_shed_alike_by_blocks() {
    let twice = Stream {
        threads: vec![0, 0],
        ..stream()
    };
    let mut both = Shed::new("common:0.3".parse().unwrap(), 9, &twice).unwrap();
    let together: Vec<bool> = (0..100_000)
        .map(|index| both.decide(&unit(0, index)))
        .collect();
    assert_eq!(together, decisions("common:0.3", 9, 100_000));
}

#[test]
fn common_fractions_are_exact_from_any_moment_on() {
    // One cell is 100 frames; over any consecutive cells the fraction is off by less than one of them.
    for seed in 0..20 {
        let cells: Vec<bool> = decisions("common:0.3", seed, 50_000)
            .chunks(100)
            .map(|cell| cell[0])
            .collect();
        for from in (0..cells.len()).step_by(7) {
            let mut shed = 0.0;
            for (count, cell) in cells[from..].iter().enumerate() {
                shed += f64::from(u8::from(*cell));
                assert!((shed - 0.3 * (count + 1) as f64).abs() < 1.0);
            }
        }
    }
    let cells_of = |seed| decisions("common:0.3", seed, 1_000);
    assert!((1..20).any(|seed| cells_of(seed) != cells_of(0)));
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
fn what_fits_depends_on_the_packets() {
    let fraction = |wire_bytes, unit_bytes, link: &str| {
        let stream = Stream {
            wire_bytes,
            unit_bytes,
            ..stream()
        };
        let policy = format!("fit:{link}").parse().unwrap();
        Shed::new(policy, 1, &stream).unwrap().fraction().unwrap()
    };
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    // Whole frames of 8032 bytes over IPv4: 8032 + 8 + 8 + 20 + 18 + 20 = 8106 bytes on the wire.
    let whole = wire_bytes(8032 + 8, Family::V4);
    assert_eq!(whole, 8106);
    assert!(close(
        fraction(whole, 8032, "1G"),
        1.0 - 8032.0 / (1.024 * 8106.0)
    ));
    assert!((fraction(whole, 8032, "1G") - 0.032_353).abs() < 1e-6);
    // jive5ab's plain cut at MTU 1500, and the longer headers of IPv6.
    let plain = fraction(wire_bytes(1464 + 8, Family::V4), 1464, "1G");
    assert!(close(plain, 1.0 - 1464.0 / (1.024 * 1538.0)), "{plain}");
    let v6 = fraction(wire_bytes(1440 + 8, Family::V6), 1440, "1G");
    assert!(close(v6, 1.0 - 1440.0 / (1.024 * 1534.0)), "{v6}");
    // A frame sheds as much as its eight packets would.
    let packets = fraction(wire_bytes(1004 + 8, Family::V4), 1004, "1G");
    assert!(close(packets, fraction(8 * 1078, 8032, "1G")));
    // It just fits.
    assert_eq!(fraction(8106, 8032, "1.033434263G"), 0.0);
    assert!(fraction(8106, 8032, "1.033434262G") > 0.0);
}

#[test]
fn bursts_start_in_their_steady_state() {
    // The very first unit is shed as often as any.
    let first = (0..20_000).filter(|seed| decisions("burst:0.2", *seed, 1)[0]);
    let share = first.count() as f64 / 20_000.0;
    assert!(
        (share - 0.2).abs() < 4.0 * (0.2 * 0.8 / 20_000.0f64).sqrt(),
        "{share}"
    );
}

#[test]
fn errors_name_what_a_policy_lacks() {
    let unknown = Stream {
        rate: None,
        frame_rate: None,
        ..stream()
    };
    let new = |text: &str| Shed::new(text.parse().unwrap(), 1, &unknown).map(|_| ());
    assert_eq!(new("fit:1G"), Err(ShedError::NoRate));
    assert_eq!(new("common:0.1"), Err(ShedError::NoFrameRate));
    assert_eq!(new("keep:1/2"), Err(ShedError::NoBlocks));
    let raw = Stream {
        threads: Vec::new(),
        ..stream()
    };
    let threads = Shed::new("threads:0".parse().unwrap(), 1, &raw);
    assert_eq!(threads.map(|_| ()), Err(ShedError::NoThreads));
    let other = Shed::new("threads:5-7".parse().unwrap(), 1, &stream());
    let error = other.unwrap_err().to_string();
    assert!(error.ends_with("it has 0"), "{error}");
}

#[test]
fn errors_of_bad_policies_show_a_valid_form() {
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
        ("common:0.1,24h", "less than 24h"),
        ("common:0.1,2", "`2`: add a unit, e.g. 2ms, 2s"),
        ("common:0.1,soon", "invalid duration `soon`"),
        ("keep:3/4,10ms", "the block of keep: must be 100ms or more"),
        ("keep:4/4", "between 0 and 1"),
        ("keep:1/0", "between 0 and 1"),
        ("keep:-1/2", "between 0 and 1"),
        ("fit:quick", "rate of a link"),
    ] {
        let error = text.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

/// Returns whether `keep:` keeps a block of a stream with one thread, by its definition: the last four bits of the block's number,
/// in reverse order, are below the kept sixteenths.
fn is_kept(sixteenths: u64, seed: u64, block: i64) -> bool {
    let number = (block as u64).wrapping_add(seed) % 16;
    let reversed = (0..4).fold(0, |all, bit| all << 1 | (number >> bit & 1));
    reversed < sixteenths
}

/// Frames of 1 ms that `keep:` keeps of 16 blocks of 100 ms, from `first` on.
fn kept(sixteenths: u64, seed: u64, first: i64) -> Vec<bool> {
    let policy = match sixteenths {
        16 => "none".to_owned(),
        _ => format!("keep:{sixteenths}/16,100ms"),
    };
    let mut shed = Shed::new(policy.parse().unwrap(), seed, &stream()).unwrap();
    let frames = first..first + 1600;
    frames.map(|frame| !shed.decide(&unit(0, frame))).collect()
}

#[test]
fn stations_at_different_steps_keep_what_the_blocks_have_in_common() {
    // Kept at three stations, and the delay of the second against the first, in ms: what the blocks have in common.
    for (sixteenths, delay, weight) in [
        ([12, 8], 3, 0.4925),
        ([12, 8], 15, 0.4625),
        ([8, 8], 12, 0.44),
        ([12, 8], 0, 0.5),
        ([4, 2], 0, 0.125),
    ] {
        for seed in 0..16 {
            let [one, other] = [(sixteenths[0], 0), (sixteenths[1], delay)]
                .map(|(sixteenths, delay)| kept(sixteenths, seed, 1_000_000 - delay));
            let both = one
                .iter()
                .zip(&other)
                .filter(|(one, other)| **one && **other);
            assert_eq!(
                both.count() as f64 / 1600.0,
                weight,
                "{sixteenths:?} {delay} {seed}"
            );
        }
    }
}

#[test]
fn whole_threads_are_shed_from_the_highest_down_and_blocks_of_one() {
    let four = Stream {
        threads: vec![7, 2, 5, 0],
        ..stream()
    };
    for (kept, whole) in [
        ("keep:3/4", [1.0, 1.0, 1.0, 0.0]),
        ("keep:1/2", [1.0, 1.0, 0.0, 0.0]),
        ("keep:7/8", [1.0, 1.0, 1.0, 0.5]),
        ("keep:3/8", [1.0, 0.5, 0.0, 0.0]),
        ("keep:1/16", [0.25, 0.0, 0.0, 0.0]),
    ] {
        let mut shed = Shed::new(kept.parse().unwrap(), 3, &four).unwrap();
        for (thread, part) in [0, 2, 5, 7].into_iter().zip(whole) {
            let decisions: Vec<bool> = (0..1600)
                .map(|frame| shed.decide(&unit(thread, frame)))
                .collect();
            assert_eq!(1.0 - share(&decisions), part, "{kept} {thread}");
            assert!(runs(&decisions).iter().all(|length| length % 100 == 0));
        }
    }
}

#[test]
fn data_without_times_is_kept_in_blocks_by_number() {
    let raw = Stream {
        rate: BitRate::new(80_320_000),
        threads: Vec::new(),
        frame_rate: None,
        ..stream()
    };
    let mut shed = Shed::new("keep:1/2".parse().unwrap(), 0, &raw).unwrap();
    let unit = Unit::new(StreamKey::default(), None, &[]);
    let decisions: Vec<bool> = (0..1000).map(|_| shed.decide(&unit)).collect();
    // 1250 units in a second, 125 in a block.
    assert_eq!(runs(&decisions), [125; 4]);
    assert!(!decisions[0] && decisions[125]);
}

#[test]
fn wire_bytes_count_everything() {
    // Ethernet: 66 bytes in addition to the UDP payload, at least 84 in all.
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
            // At any moment the fraction is off by at most the current burst.
            let off = lost as f64 - total as f64 * percent as f64 / 100.0;
            prop_assert!(off.abs() <= MAX_BUNCH as f64 + 1.0, "{off}");
        }
        let report = shed.report();
        prop_assert_eq!((report.offered, report.shed), (total, lost));
    }

    #[test]
    fn whole_cycles_of_bunches_have_the_fraction_to_less_than_a_unit(
        parts in 1_000_000_000u64..Fraction::ONE, seed: u64,
    ) {
        let fraction: Fraction = format!("0.{parts:012}").parse().unwrap();
        prop_assert_eq!(fraction.0, parts);
        let mut shed = Shed::new(Policy::Bunch(fraction), seed, &stream()).unwrap();
        for index in 0..20_000 {
            shed.decide(&unit(0, index));
            let State::Bunch { to_shed: 0, to_keep: 0, .. } = shed.state else {
                continue;
            };
            // n(1/f - 1) is rounded down and the rest carried: 0 <= shed - f * offered < f.
            let off = i128::from(shed.shed) * i128::from(Fraction::ONE)
                - i128::from(shed.offered) * i128::from(parts);
            prop_assert!((0..i128::from(parts)).contains(&off), "{off}");
        }
    }

    #[test]
    fn every_policy_follows_from_its_seed(seed: u64) {
        for policy in ["bunch:0.1", "random:0.1", "burst:0.1,3", "common:0.1"] {
            prop_assert_eq!(decisions(policy, seed, 2000), decisions(policy, seed, 2000));
        }
    }

    /// With a delay below a block, a kept block of one station has the same block of the other one but for the delay, and the one
    /// before it for the delay, as far as the other station keeps these.
    #[test]
    fn the_weight_of_two_steps_is_that_of_their_blocks(
        one in 1u64..17, other in 1u64..17, seed: u64, delay in 0i64..100, second in 0i64..1_000_000,
    ) {
        let first = second * 1000;
        let frames = kept(one, seed, first).into_iter().zip(kept(other, seed, first - delay));
        let found = frames.filter(|(one, other)| *one && *other).count() as i64;
        let counted: i64 = (0..16).map(|block| {
            let block = first / 100 + block;
            let of = |block| i64::from(is_kept(other, seed, block));
            i64::from(is_kept(one, seed, block)) * (of(block) * (100 - delay) + of(block - 1) * delay)
        }).sum();
        prop_assert_eq!(found, counted);
    }

    #[test]
    fn a_larger_fraction_keeps_what_a_smaller_one_keeps(
        parts in proptest::array::uniform2(1u64..Fraction::ONE), seed: u64, threads in 1u16..6,
    ) {
        let stream = Stream { threads: (0..threads).collect(), ..stream() };
        let [mut less, mut more] = [parts[0].min(parts[1]), parts[0].max(parts[1])].map(|parts| {
            let policy = Policy::Keep {
                kept: Fraction::new(parts).unwrap(),
                block: std::time::Duration::from_millis(100),
            };
            Shed::new(policy, seed, &stream).unwrap()
        });
        for block in 0..200 {
            for thread in 0..threads {
                let unit = unit(thread, block * 100);
                prop_assert!(less.decide(&unit) || !more.decide(&unit));
            }
        }
    }

    #[test]
    fn fitting_is_spread_evenly(link in 100u64..2000) {
        let policy: Policy = format!("fit:{link}M").parse().unwrap();
        let mut shed = Shed::new(policy, 1, &stream()).unwrap();
        let fraction = shed.fraction().unwrap();
        for index in 0..5_000 {
            shed.decide(&unit(0, index));
            let off = shed.shed as f64 - fraction * shed.offered as f64;
            prop_assert!((-1.0 - 1e-6..=1.0 + 1e-6).contains(&off), "{off}");
        }
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
            (1u32..16, 100u32..9000).prop_map(|(k, b)| format!("keep:{k}/16,{b}ms")),
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

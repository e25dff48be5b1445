//! Comparison of the theory with correlations of noise.

use std::f64::consts::TAU;
use std::sync::LazyLock;

use proptest::prelude::*;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use evlbi_wire::fill;
use evlbi_wire::mark4::{Channels, Tracks};
use evlbi_wire::time::FrameRate;

use super::*;
use crate::unpack::Unpacker;

/// Bands of equal power at all frequencies.
const WHITE: [&[f64]; 2] = [&[1.0; 64]; 2];

/// Fill of samples that are recorded as they are.
static WORDS: LazyLock<[Vec<u8>; 1]> = LazyLock::new(|| {
    let mut words = vec![0; 8];
    fill::make(&mut words);
    [words]
});

/// One channel of real samples.
fn real(bits: u8) -> Samples<'static> {
    Samples {
        codec: Codec::vdif(bits).unwrap(),
        channels: 1,
        channel: 0,
        complex: false,
        turn: 0.0,
        fill: &*WORDS,
    }
}

fn two_bits() -> Samples<'static> {
    real(2)
}

fn at_one(replaced: Replaced, fraction: f64) -> Ratios {
    predicted(
        replaced,
        Lost::independent(fraction, 0.0),
        [two_bits(); 2],
        WHITE,
    )
    .unwrap()
}

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() < tolerance
}

#[test]
fn replaced_samples_have_the_power_of_their_levels() {
    assert_eq!(noise(Replaced::Flagged, two_bits()), 0.0);
    assert!(near(noise(Replaced::Random, two_bits()), 1.407, 1e-3));
    assert!(near(noise(Replaced::Fill, two_bits()), 1.701, 1e-3));
    let one_bit = real(1);
    assert!(near(noise(Replaced::Random, one_bit), 1.0, 1e-12));
    assert!(near(noise(Replaced::Fill, one_bit), 1.0, 1e-12));
    // 0x44, 0x33, 0x22, 0x11 are 60 to 111 levels below the middle, at 35.5 levels per rms.
    let eight_bits = real(8);
    let levels = [59.5, 76.5, 93.5, 110.5f64].map(|level| (level / 35.5).powi(2));
    let expected = levels.iter().sum::<f64>() / 4.0 / quantise::power(eight_bits.codec);
    assert!(near(noise(Replaced::Fill, eight_bits), expected, 1e-5));
}

#[test]
fn a_channel_of_many_has_its_own_part_of_the_pattern() {
    // Sixteen channels of two bits: a word is one sample of each, so each is constant. Codes of the first two: 0 and 1.
    let channel = |channel| Samples {
        channels: 16,
        channel,
        ..two_bits()
    };
    let power = quantise::power(two_bits().codec);
    let high = f64::from(crate::codec::HIGH);
    let first = noise(Replaced::Fill, channel(0));
    assert!(near(first, high * high / power, 1e-6));
    assert!(near(noise(Replaced::Fill, channel(1)), 1.0 / power, 1e-9));
    let lines = fill_lines(channel(0));
    assert!(near(lines[0].power, first, 1e-9));
    let mean: f64 = (0..16).map(|c| noise(Replaced::Fill, channel(c))).sum();
    assert!(near(mean / 16.0, noise(Replaced::Fill, two_bits()), 1e-9));
    // All of it is at zero frequency.
    let mut above = [1.0; 32];
    above[0] = 0.0;
    let above = power_against(Replaced::Fill, channel(0), &above);
    assert!(near(above, 0.0, 1e-9));
    // One complex channel contains all components of the pattern.
    let complex = Samples {
        complex: true,
        ..two_bits()
    };
    let found = noise(Replaced::Fill, complex);
    assert!(near(found, noise(Replaced::Fill, two_bits()), 1e-9));
}

/// The levels that the bits of 0x11223344 give on tracks, counted by hand from the tables of memo 230.
#[test]
fn fill_on_tracks_has_the_levels_of_its_bits() {
    let unpacker = |fan_out, is_modulated| {
        let channels = Channels::usual(Tracks::new(32).unwrap(), 2, fan_out).unwrap();
        Unpacker::mark4(&channels, is_modulated, FrameRate::new(400).unwrap()).unwrap()
    };
    let found = |fan_out, channel, start| {
        let unpacker = unpacker(fan_out, false);
        let samples = Samples {
            channels: unpacker.layout().channels,
            channel,
            fill: &[unpacker.fill(start).unwrap()],
            ..two_bits()
        };
        noise(Replaced::Fill, samples)
    };
    let power = quantise::power(two_bits().codec);
    let (low, high) = (1.0 / power, f64::from(crate::codec::HIGH).powi(2) / power);
    for channel in 0..8 {
        assert!(near(found(2, channel, 0), high, 1e-6));
    }
    assert!(near(found(4, 0, 0), low, 1e-6));
    for channel in 1..4 {
        assert!(near(found(4, channel, 0), f64::midpoint(low, high), 1e-6));
    }
    // The second half of a word is on the tracks of the first.
    assert!(near(found(4, 0, 2), f64::midpoint(low, high), 1e-6));
    assert_eq!(unpacker(2, true).fill(0), None);
    let unknown = Samples {
        fill: &[],
        ..two_bits()
    };
    let lost = Lost::independent(0.1, 0.0);
    let of = |samples| predicted(Replaced::Fill, lost, samples, WHITE);
    assert_eq!(of([unknown, two_bits()]), None);
    assert!(of([two_bits(), unknown]).is_some());
}

#[test]
fn fill_is_loud_at_both_ends_of_the_band() {
    let lines = fill_lines(two_bits());
    assert_eq!(lines.len(), 16);
    // Mean -1.369, power 4.263.
    assert!(near(lines[0].power, 0.4395, 1e-4));
    assert_eq!(lines[8].frequency, -0.5);
    assert!(near(lines[8].power, 0.4395, 1e-4));
    let mut fading = [1.0; 16];
    (fading[0], fading[15]) = (0.0, 0.0);
    let within = |other: &[f64; 16]| power_against(Replaced::Fill, two_bits(), other);
    let all = noise(Replaced::Fill, two_bits());
    assert!(near(within(&[1.0; 16]), all, 1e-9));
    assert!(near(within(&fading), 0.822, 1e-3));
    // Shifted down by a channel, the line at zero leaves the band, and that at half of the rate enters it.
    let turned = |turn, samples: Samples<'static>| Samples { turn, ..samples };
    let down = turned(-1.0 / 32.0, two_bits());
    assert!(near(
        power_against(Replaced::Fill, down, &[1.0; 16]),
        all,
        1e-9
    ));
    assert!(near(
        power_against(Replaced::Fill, down, &fading),
        0.822,
        1e-3
    ));
    // For one bit these lines are not equal: 10 ones in 32, of which 4 in odd places.
    let one_bit = real(1);
    let (zero, half) = ((12.0f64 / 32.0).powi(2), (4.0f64 / 32.0).powi(2));
    let lines = fill_lines(one_bit);
    assert!(near(lines[0].power, zero, 1e-9));
    assert!(near(lines[16].power, half, 1e-9));
    let up = power_against(Replaced::Fill, one_bit, &[1.0; 16]);
    assert!(near(up, 1.0 + zero - half, 1e-9));
    let down = power_against(Replaced::Fill, turned(-1.0 / 32.0, one_bit), &[1.0; 16]);
    assert!(near(down, 1.0 - zero + half, 1e-9));
    // If stations have less power at the edges, fill costs less.
    let lost = Lost::independent(0.3, 0.0);
    let snr = |spectra| {
        let found = predicted(Replaced::Fill, lost, [two_bits(); 2], spectra);
        found.unwrap().snr
    };
    assert!(snr([&fading, &fading]) > snr(WHITE) + 0.03);
    // The units do not matter.
    let louder = fading.map(|power| 7.0 * power);
    assert!(near(
        snr([&fading, &louder]),
        snr([&fading, &fading]),
        1e-12
    ));
}

/// Levels with an outer one of 3.336 would give powers of 1.409 and 1.703: the third digit.
#[test]
fn ratios_are_those_of_theory() {
    use Replaced::{Fill, Flagged, Random};
    for (replaced, fraction, autos, snr) in [
        (Flagged, 0.1, 0.949, 0.949),
        (Flagged, 0.3, 0.837, 0.837),
        (Random, 0.1, 0.882, 0.882),
        (Random, 0.3, 0.661, 0.661),
        (Fill, 0.1, 0.870, 0.870),
        (Fill, 0.3, 0.636, 0.636),
    ] {
        let found = at_one(replaced, fraction);
        let shown = format!("{replaced:?} {fraction}: {found:?}");
        assert!(
            near(found.amplitude_by_all, 1.0 - fraction, 1e-12),
            "{shown}"
        );
        assert!(near(found.amplitude_by_autos, autos, 6e-4), "{shown}");
        assert!(near(found.amplitude_by_overlap, 1.0, 1e-12), "{shown}");
        assert!(near(found.snr, snr, 6e-4), "{shown}");
        let weight = if replaced == Flagged {
            1.0 - fraction
        } else {
            1.0
        };
        assert!(near(found.weight, weight, 1e-12), "{shown}");
    }
    assert!(near(at_one(Flagged, 0.3).snr.powi(2), 0.7, 1e-12));
}

#[test]
fn loss_at_both_stations_multiplies_unless_it_is_alike() {
    let both = [two_bits(); 2];
    let flagged = |lost| predicted(Replaced::Flagged, lost, both, WHITE).unwrap();
    let apart = flagged(Lost::independent(0.1, 0.3));
    assert!(near(apart.amplitude_by_all, 0.63, 1e-12));
    assert!(near(apart.weight, 0.63, 1e-12));
    assert!(near(apart.snr, 0.63f64.sqrt(), 1e-12));
    assert!(near(apart.amplitude_by_autos, 0.63f64.sqrt(), 1e-12));
    let alike = flagged(Lost::in_common(0.3));
    assert!(near(alike.weight, 0.7, 1e-12));
    assert!(near(alike.amplitude_by_autos, 1.0, 1e-12));
    assert!(near(alike.snr.powi(2), 0.7, 1e-12));

    // Noise of two stations where the random bytes coincide.
    let k = noise(Replaced::Random, two_bits());
    let random = |lost| predicted(Replaced::Random, lost, both, WHITE).unwrap();
    let expected = 0.7 / (0.7 + 0.3 * k * k).sqrt();
    assert!(near(random(Lost::in_common(0.3)).snr, expected, 1e-12));
    let station = at_one(Replaced::Random, 0.3).snr;
    let apart = random(Lost::independent(0.3, 0.3)).snr;
    assert!(near(apart, station * station, 1e-12));

    assert_eq!(
        predicted(Replaced::Fill, Lost::in_common(0.1), both, WHITE),
        None
    );
    let apart = Lost::independent(0.1, 0.1);
    assert_eq!(predicted(Replaced::Fill, apart, both, WHITE), None);
}

#[test]
fn nothing_lost_and_everything_lost() {
    for replaced in [Replaced::Flagged, Replaced::Random, Replaced::Fill] {
        let none = at_one(replaced, 0.0);
        assert_eq!(
            none,
            Ratios {
                amplitude_by_all: 1.0,
                amplitude_by_autos: 1.0,
                amplitude_by_overlap: 1.0,
                weight: 1.0,
                snr: 1.0,
            }
        );
        let all = at_one(replaced, 1.0);
        assert_eq!(all.amplitude_by_all, 0.0);
        assert_eq!(all.amplitude_by_autos, 0.0);
        assert_eq!(all.amplitude_by_overlap, 0.0);
        assert_eq!(all.snr, 0.0);
    }
    // Values outside 0 to 1 are clamped.
    assert_eq!(Lost::in_common(-1.0), Lost::in_common(0.0));
    assert_eq!(Lost::independent(2.0, 7.0), Lost::independent(1.0, 1.0));
}

/// Two normal numbers (Box-Muller).
fn normal(rng: &mut ChaCha8Rng) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sine, cosine) = (TAU * rng.random::<f64>()).sin_cos();
    [radius * cosine, radius * sine]
}

/// Number of samples in a block: the period of the pattern, so that its lines count fully.
const BLOCK: usize = 16;
const BLOCKS: usize = 40_000;

#[test]
fn sampled_noise_loses_as_much_as_theory_predicts() {
    let codec = two_bits().codec;
    let rho = 0.2f64;
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let (a, b): (Vec<f32>, Vec<f32>) = (0..BLOCKS * BLOCK)
        .map(|_| {
            let [a, other] = normal(&mut rng);
            let b = rho * a + (1.0 - rho * rho).sqrt() * other;
            (a as f32, b as f32)
        })
        .unzip();
    let encoded = |noise: &[f32]| {
        let mut payload = vec![0; noise.len() / 4];
        codec.encode(noise, 1.0, &mut payload);
        payload
    };
    let (a, b) = (encoded(&a), encoded(&b));
    let fraction = 0.3;
    let lost: Vec<bool> = (0..BLOCKS)
        .map(|_| rng.random::<f64>() < fraction)
        .collect();
    let whole = measured(codec, &a, &b, &lost);
    for replaced in [Replaced::Random, Replaced::Fill] {
        let mut damaged = a.clone();
        for (bytes, _) in damaged.chunks_mut(4).zip(&lost).filter(|(_, lost)| **lost) {
            match replaced {
                Replaced::Random => rng.fill(bytes),
                _ => fill::make(bytes),
            }
        }
        let found = measured(codec, &damaged, &b, &lost);
        let expected = at_one(replaced, fraction);
        let amplitude = found.0 / whole.0;
        let snr = amplitude * whole.1 / found.1;
        assert!(
            near(amplitude, expected.amplitude_by_all, 0.02),
            "{amplitude}"
        );
        assert!(near(snr, expected.snr, 0.016), "{replaced:?}: {snr}");
    }
}

/// Returns the mean of the products, and their noise: the scatter of the sums of intact blocks and of lost ones, each about its
/// own mean.
fn measured(codec: Codec, a: &[u8], b: &[u8], lost: &[bool]) -> (f64, f64) {
    let decoded = |payload: &[u8]| {
        let mut values = vec![0.0; payload.len() * 4];
        codec.decode(payload, &mut values);
        values
    };
    let (a, b) = (decoded(a), decoded(b));
    let sums: Vec<f64> = a
        .chunks(BLOCK)
        .zip(b.chunks(BLOCK))
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum())
        .collect();
    let scatter = |which: bool| {
        let chosen = || {
            let all = sums.iter().zip(lost);
            all.filter(move |(_, lost)| **lost == which)
                .map(|(sum, _)| sum)
        };
        let mean = chosen().sum::<f64>() / chosen().count() as f64;
        chosen().map(|sum| (sum - mean).powi(2)).sum::<f64>()
    };
    let variance = scatter(false) + scatter(true);
    (sums.iter().sum(), variance.sqrt())
}

proptest! {
    #[test]
    fn more_loss_costs_more(
        replaced in prop::sample::select(vec![Replaced::Flagged, Replaced::Random, Replaced::Fill]),
        bits in prop::sample::select(vec![1u8, 2, 4, 8]),
        less in 0.0f64..0.98,
        step in 0.001f64..0.02,
        other in 0.0f64..0.9,
        common: bool,
    ) {
        let samples = [real(bits); 2];
        let at = |fraction| {
            let lost = match (replaced, common) {
                (Replaced::Fill, _) => Lost::independent(fraction, 0.0),
                (_, true) => Lost::in_common(fraction),
                (_, false) => Lost::independent(fraction, other),
            };
            predicted(replaced, lost, samples, WHITE).unwrap()
        };
        let (less, more) = (at(less), at(less + step));
        prop_assert!(more.amplitude_by_all < less.amplitude_by_all);
        prop_assert!(more.snr < less.snr);
        prop_assert!(more.amplitude_by_autos <= less.amplitude_by_autos + 1e-12);
        prop_assert!(more.weight <= less.weight);
        // Flagged loss costs least.
        prop_assert!(more.snr <= more.amplitude_by_all.sqrt() + 1e-12);
    }

    #[test]
    fn overlap_falls_with_the_delay(f in 0.0f64..1.0, delay in 0.0f64..2.0, later in 0.0f64..1.0) {
        let overlap = |delay| Lost::at_same_spread_times(f, delay, 1.0).overlap();
        prop_assert!(overlap(delay + later) <= overlap(delay) + 1e-12);
        prop_assert!(overlap(delay) <= Lost::in_common(f).overlap() + 1e-12);
    }

    #[test]
    fn lines_hold_the_power_of_the_pattern(
        bits in prop::sample::select(vec![1u8, 2, 4, 8]),
        channels: usize,
        channel: usize,
        complex: bool,
    ) {
        let codec = Codec::vdif(bits).unwrap();
        let samples = Samples { codec, channels, channel, complex, turn: 0.0, fill: &*WORDS };
        let (lowest, highest) = (codec.levels()[0], codec.levels().iter().fold(0f32, |a, b| a.max(b.abs())));
        let unit = quantise::power(codec);
        let found = noise(Replaced::Fill, samples);
        prop_assert!(found >= 0.0 && found <= f64::from(highest.max(-lowest)).powi(2) / unit + 1e-9);
        let seen = power_against(Replaced::Fill, samples, &[1.0; 64]);
        prop_assert!(seen >= 0.0 && seen < 2.0 * found + 1e-9);
    }
}

/// Every tenth cell, and a wavefront that arrives later at one station.
#[test]
fn cells_overlap_as_counted() {
    const CELL: usize = 100;
    const TIMES: usize = 1000 * CELL;
    let is_lost = |time: usize| (time / CELL).is_multiple_of(10);
    for delay in [0, 20, 70, 100] {
        let intact = (0..TIMES).filter(|time| !is_lost(*time) && !is_lost(time + delay));
        let found = intact.count() as f64 / TIMES as f64;
        let expected = Lost::at_same_spread_times(0.1, delay as f64, CELL as f64).overlap();
        assert!(near(found, expected, 1e-9), "{delay}: {found} {expected}");
    }
}

#[test]
fn cells_that_are_apart_share_less_of_a_late_wavefront() {
    // Every tenth of cells of 100 ms, 20 ms late: a fifth of each lost cell falls into another one.
    let lost = Lost::at_same_spread_times(0.1, 0.02, 0.1);
    assert!((lost.overlap() - 0.88).abs() < 1e-12);
    assert!((Lost::at_same_spread_times(0.1, 0.0, 0.1).overlap() - 0.9).abs() < 1e-12);
    assert!((Lost::at_same_spread_times(0.1, 1.0, 0.1).overlap() - 0.8).abs() < 1e-12);
}

//! Simulated stations from outside: their frames, their statistics, and the results of a correlator.

use std::f64::consts::{PI, TAU};

use crate::cross_spectrum::CrossSpectrum;
use crate::recording::{decode, generate};
use evlbi_fx::codec::{Codec, HIGH, THRESHOLD};
use evlbi_fx::sky::{Format, PhaseCal, SkyPlan, Station, StationPlan};
use evlbi_wire::mark4::{self, Channels, Order, modulate};
use evlbi_wire::mark5b;
use evlbi_wire::vdif::{Header, StationId};

/// Two identical stations, unless the test changes them.
fn pair() -> SkyPlan {
    SkyPlan {
        sample_rate: 16e6,
        duration: 0.125,
        bits: 8,
        correlation: 0.3,
        stations: vec![StationPlan::new("Ef"), StationPlan::new("On")],
        ..SkyPlan::default()
    }
}

/// Returns the samples of each channel of both stations, components interleaved.
fn both(plan: &SkyPlan) -> [Vec<Vec<f32>>; 2] {
    ["Ef", "On"].map(|name| decode(&plan.station(name).unwrap()))
}

/// Returns the correlation coefficient at zero lag.
fn coefficient(a: &[f32], b: &[f32]) -> f64 {
    let sum = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(a * b));
        products.sum()
    };
    sum(a, b) / (sum(a, a) * sum(b, b)).sqrt()
}

/// Returns the error of a coefficient from `count` samples, five sigma.
fn five_sigma(count: usize) -> f64 {
    5.0 / (count as f64).sqrt()
}

/// Returns the coefficient after 2-bit sampling with levels 1 and [`HIGH`], from the Hermite series of the sampler.
fn two_bit(rho: f64) -> f64 {
    let (high, t) = (f64::from(HIGH), f64::from(THRESHOLD));
    let density = |x: f64| (-x * x / 2.0).exp() / TAU.sqrt();
    let inside = 1.0
        - 2.0
            * (0..10_000)
                .map(|i| density(t + (f64::from(i) + 0.5) * 1e-3) * 1e-3)
                .sum::<f64>();
    let power = inside + high * high * (1.0 - inside);
    // He_0, He_1 ... at zero and at the threshold.
    let (mut at_zero, mut at_t) = ([1.0, 0.0], [1.0, t]);
    let mut sum = 0.0;
    let mut factorial = 1.0;
    for n in 1..16 {
        let order = f64::from(n);
        factorial *= order;
        if n % 2 == 1 {
            let c = 2.0 * (at_zero[0] * density(0.0) + (high - 1.0) * at_t[0] * density(t));
            sum += c * c / factorial * rho.powi(n);
        }
        at_zero = [at_zero[1], -order * at_zero[0]];
        at_t = [at_t[1], t * at_t[1] - order * at_t[0]];
    }
    sum / power
}

#[test]
fn the_same_station_is_always_the_same() {
    let plan = SkyPlan {
        duration: 0.01,
        channels: 4,
        threads: 2,
        ..pair()
    };
    let station = plan.station("On").unwrap();
    let once = generate(&station);
    assert_eq!(generate(&station), once);
    let elsewhere = std::thread::spawn({
        let mut generator = station.generator();
        let mut frames = vec![0; once.len()];
        move || (generator.fill(&mut frames), frames)
    });
    assert!(elsewhere.join().unwrap() == (once.len(), once.clone()));

    // Frame by frame, and from a plan without the other station.
    let alone = SkyPlan {
        stations: vec![StationPlan::new("On")],
        ..plan.clone()
    };
    let mut generator = alone.station("On").unwrap().generator();
    let mut frame = vec![0; station.frame_length() + 7];
    let mut again = Vec::new();
    loop {
        let length = generator.fill(&mut frame);
        if length == 0 {
            break;
        }
        again.extend_from_slice(&frame[..length]);
    }
    assert_eq!(again, once);
    assert_eq!(generator.remaining(), 0);

    let other_seed = SkyPlan {
        seed: 2,
        ..plan.clone()
    };
    assert_ne!(generate(&other_seed.station("On").unwrap()), once);
    let longer = SkyPlan {
        duration: 0.02,
        ..plan
    };
    assert_eq!(generate(&longer.station("On").unwrap())[..once.len()], once);
}

#[test]
fn frames_are_whole_and_in_time() {
    evlbi_testkit::watch();
    for (edv, legacy, complex) in [
        (0, false, false),
        (0, true, true),
        (1, false, true),
        (3, false, false),
    ] {
        let plan = SkyPlan {
            // The last second of an epoch.
            start: 1_719_791_999,
            duration: 1.25,
            sample_rate: 1e6,
            bits: 2,
            channels: 4,
            threads: 4,
            payload: 5000,
            edv,
            legacy,
            complex,
            ..pair()
        };
        let station = plan.station("Ef").unwrap();
        let bytes = generate(&station);
        assert_eq!(
            bytes.len() as u64,
            station.total_frames() * station.frame_length() as u64
        );
        let per_second = station.frame_rate().get();
        assert_eq!(per_second, if complex { 100 } else { 50 });
        // The last frame is completed.
        assert_eq!(station.total_frames(), if complex { 500 } else { 252 });
        for (n, bytes) in bytes.chunks_exact(station.frame_length()).enumerate() {
            let header = Header::parse(bytes).unwrap();
            assert_eq!(header.frame_length(), station.frame_length());
            let shape = header.shape();
            assert_eq!(
                (shape.bits, shape.channels(), shape.complex),
                (2, 1, complex)
            );
            assert_eq!(shape.legacy, legacy);
            assert_eq!(header.key().station, StationId::from_code(*b"Ef"));
            assert_eq!(usize::from(header.key().thread), n % 4);
            assert!(!header.is_invalid());
            let index = header.time().index(station.frame_rate());
            assert_eq!(
                index,
                station.start().index(station.frame_rate()) + n as i64 / 4
            );
            let rate = (edv != 0).then_some(1_000_000);
            assert_eq!(header.sample_rate(), rate);
            assert_eq!(header.frame_rate(), rate.map(|_| station.frame_rate()));
        }
    }
}

#[test]
fn samplers_see_noise_of_the_right_level() {
    for (bits, inside) in [(1, None), (2, Some(0.673_7)), (4, None), (8, None)] {
        let plan = SkyPlan { bits, ..pair() };
        let samples = decode(&plan.station("Ef").unwrap()).remove(0);
        let count = samples.len() as f64;
        let share =
            |f: &dyn Fn(f32) -> bool| samples.iter().filter(|x| f(**x)).count() as f64 / count;
        let mean = samples.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let rms = (samples.iter().map(|x| f64::from(x * x)).sum::<f64>() / count).sqrt();
        let sigma = f64::from(Codec::vdif(bits).unwrap().sigma());
        // Code 8 of 4 bits is zero, so that the levels extend further below it than above; that does not matter.
        assert!(mean.abs() < 5.0 * sigma / count.sqrt(), "{bits}: {mean}");
        if let Some(inside) = inside {
            let found = share(&|x| x.abs() < 2.0);
            assert!(
                (found - inside).abs() < five_sigma(samples.len()),
                "{found}"
            );
        }
        if bits > 2 {
            // A rounded signal has additionally a twelfth of the square of its step.
            assert!((rms - sigma).abs() < 0.01, "{bits}: {rms}");
        }
    }
}

#[test]
fn stations_correlate_as_planned() {
    evlbi_testkit::watch();
    let rho: f64 = 0.3;
    assert!((two_bit(1e-3) / 1e-3 - 0.8825).abs() < 1e-4);
    for (bits, expected) in [(1, 2.0 / PI * rho.asin()), (2, two_bit(rho)), (8, rho)] {
        let plan = SkyPlan { bits, ..pair() };
        let [a, b] = both(&plan);
        let found = coefficient(&a[0], &b[0]);
        assert!(
            (found - expected).abs() < five_sigma(a[0].len()),
            "{bits} bits: {found}, not {expected}"
        );
    }
}

#[test]
fn louder_stations_correlate_less() {
    let mut plan = pair();
    plan.stations[1].noise = 4.0;
    let [a, b] = both(&plan);
    let share = 0.3 / (0.3 + 0.7 * 4.0);
    let found = coefficient(&a[0], &b[0]);
    let expected = (0.3f64 * share).sqrt();
    assert!((found - expected).abs() < five_sigma(a[0].len()), "{found}");

    plan.correlation = 0.0;
    let [a, b] = both(&plan);
    assert!(coefficient(&a[0], &b[0]).abs() < five_sigma(a[0].len()));

    plan.correlation = 1.0;
    let [a, b] = both(&plan);
    assert_eq!(a, b);
}

#[test]
fn channels_meet_their_like_only() {
    for (channels, threads, complex) in [(4, 1, false), (4, 4, true), (8, 2, false)] {
        let plan = SkyPlan {
            sample_rate: 1e6,
            duration: 0.25,
            channels,
            threads,
            complex,
            ..pair()
        };
        let [a, b] = both(&plan);
        assert_eq!(a.len(), channels as usize);
        let error = five_sigma(a[0].len());
        for (i, a) in a.iter().enumerate() {
            for (j, b) in b.iter().enumerate() {
                let expected = if i == j { 0.3 } else { 0.0 };
                assert!((coefficient(a, b) - expected).abs() < error, "{i} {j}");
            }
        }
    }
}

/// Phase slope of the cross-spectrum compared with the definition, for whole and fractional delays of either sign, real and
/// complex.
#[test]
fn delays_appear_in_the_phase_of_the_cross_spectrum() {
    evlbi_testkit::watch();
    for complex in [false, true] {
        for samples in [0.0, 1.0, -3.0, 0.5, 0.2371, -1000.75, 12_345.678] {
            let mut plan = SkyPlan {
                complex,
                correlation: 0.9,
                ..pair()
            };
            let delay = samples / plan.sample_rate;
            // Part of it is in the clock.
            plan.stations[1].delay = vec![delay - 2e-8];
            plan.stations[1].clock = vec![2e-8];
            let [a, b] = both(&plan);
            let spectrum = CrossSpectrum::new(&a[0], &b[0], complex, samples.round() as i64);
            let left = (samples - samples.round()) / plan.sample_rate;
            let (found, phase) = spectrum.delay_and_phase(plan.sample_rate, left);
            // sigma = 1 / (2 pi rms bandwidth sqrt(2 B T) rho), about 4e-4 samples here.
            let error = (found - left) * plan.sample_rate;
            assert!(error.abs() < 2e-3, "{complex} {samples}: {error}");
            let fringe = (plan.sky_frequency * delay).fract() * TAU;
            let error = (phase - fringe + PI).rem_euclid(TAU) - PI;
            assert!(error.abs() < 0.01, "{complex} {samples}: {error}");
        }
    }
}

#[test]
fn delay_rates_appear_as_fringe_rates() {
    let rate = 1.1e-7;
    let mut plan = pair();
    plan.stations[0].delay = vec![3e-6];
    plan.stations[1].delay = vec![3e-6, rate];
    let [a, b] = both(&plan);
    // 539 Hz: each of 128 segments of 1 ms contains half a turn.
    let segment = 16_000;
    let phases: Vec<f64> = a[0]
        .chunks_exact(segment)
        .zip(b[0].chunks_exact(segment))
        .map(|(a, b)| {
            CrossSpectrum::new(a, b, false, 0)
                .delay_and_phase(plan.sample_rate, 0.0)
                .1
        })
        .collect();
    let turned: f64 = phases
        .windows(2)
        .map(|two| (two[1] - two[0]).rem_euclid(TAU) / TAU)
        .sum();
    let found = turned / (phases.len() - 1) as f64 / (segment as f64 / plan.sample_rate);
    // The phase of the middle of the band rotates as well.
    let expected = plan.sky_frequency * rate;
    assert!(
        (found - expected).abs() < 1.0,
        "{found} Hz, not {expected} Hz"
    );
}

#[test]
fn phase_cal_tones_stand_where_they_should() {
    for complex in [false, true] {
        let mut plan = SkyPlan { complex, ..pair() };
        plan.sky_frequency = 4_900_010_000.0;
        plan.stations[0].delay = vec![1e-3, 1e-7];
        plan.stations[0].phase_cal = Some(PhaseCal {
            spacing: 5e6,
            power: 0.04,
        });
        let samples = decode(&plan.station("Ef").unwrap()).remove(0);
        let offsets: &[f64] = if complex { &[-5e6, 0.0, 5e6] } else { &[5e6] };
        let step = if complex { 2 } else { 1 };
        for offset in offsets {
            let frequency = offset - 10_000.0;
            // At zero delay and zero phase, whatever the delay of the sky.
            let (mut re, mut im) = (0.0, 0.0);
            for (n, sample) in samples.chunks_exact(step).enumerate() {
                let (sin, cos) =
                    (-TAU * (frequency * n as f64 / plan.sample_rate).fract()).sin_cos();
                let (x, y) = (
                    f64::from(sample[0]),
                    sample.get(1).map_or(0.0, |y| f64::from(*y)),
                );
                re += x * cos - y * sin;
                im += x * sin + y * cos;
            }
            let count = (samples.len() / step) as f64;
            let noise = 1.0 / 1.04;
            let power = 0.04 / offsets.len() as f64;
            // One sign of a real tone is half of it.
            let amplitude = (2.0 * power * noise).sqrt() / if complex { 1.0 } else { 2.0 };
            let error = five_sigma(samples.len() / step);
            assert!(
                (re / count - amplitude).abs() < 2.0 * error,
                "{offset}: {re}"
            );
            assert!((im / count).abs() < 2.0 * error, "{offset}: {im}");
        }
    }
}

#[test]
fn the_example_plan_is_good() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/sky-three-stations.toml"
    );
    let plan: SkyPlan = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let stations = plan.stations().unwrap();
    let names: Vec<&str> = stations.iter().map(Station::name).collect();
    assert_eq!(names, ["Ef", "On", "Jb"]);
    assert_eq!(stations[0].start().second, 1_714_564_800);
    assert_eq!(stations[0].frame_rate().get(), 2000);
    assert_eq!(stations[0].bit_rate(), 2000 * 8032 * 8);
    let written = toml::to_string(&plan).unwrap();
    assert_eq!(toml::from_str::<SkyPlan>(&written).unwrap(), plan);
}

/// One sky in VDIF and in Mark 4, in several orders of tracks: the same samples but for those under headers, at the same times.
#[test]
fn mark4_holds_the_samples_of_vdif() {
    for (channels, bits, fan_out, modulated) in [
        (8, 2, 4, false),
        (4, 2, 2, true),
        (8, 1, 1, false),
        (16, 1, 2, false),
        (4, 2, 1, true),
    ] {
        let mut plan = SkyPlan {
            sample_rate: 16e6,
            duration: 0.02,
            bits,
            channels,
            payload: 4000,
            ..pair()
        };
        let vdif = generate(&plan.station("Ef").unwrap());
        let payload = vdif.chunks_exact(4032).flat_map(|frame| &frame[32..]);
        let payload: Vec<u8> = payload.copied().collect();
        plan.stations[0].format = Format::Mark4;
        plan.stations[0].fan_out = fan_out;
        plan.stations[0].modulated = modulated;
        let station = plan.station("Ef").unwrap();
        let tracks = mark4::Tracks::new(channels as usize * usize::from(bits * fan_out)).unwrap();
        assert_eq!(station.frame_length(), tracks.frame_length());
        let rate = station.frame_rate();
        assert_eq!(u64::from(rate.get()), 800 / u64::from(fan_out));
        let mark4 = generate(&station);
        for (number, frame) in mark4.chunks_exact(tracks.frame_length()).enumerate() {
            let header = mark4::Header::parse(frame, tracks).unwrap();
            let order = Order::of(&Channels::of(&header).unwrap());
            let code = header.time_code().unwrap();
            assert_eq!(code.second(plan.start), Some(plan.start));
            assert_eq!(
                code.micros() as usize,
                number * 1_000_000 / rate.get() as usize
            );
            let mut samples = frame[tracks.header_length()..].to_vec();
            if modulated {
                modulate(&mut samples, tracks);
            }
            let mut ours = Vec::new();
            order.to_vdif(&samples, &mut ours);
            let begin = number * tracks.frame_length() + tracks.header_length();
            let theirs = payload.get(begin..(begin + ours.len()).min(payload.len()));
            let theirs = theirs.unwrap_or_default();
            assert!(ours.starts_with(theirs), "{channels} {bits} {fan_out}");
            assert!(number > 0 || theirs.len() == ours.len());
        }
    }
}

#[test]
fn mark5b_holds_the_samples_of_vdif() {
    for (channels, bits) in [(1, 2), (16, 2), (32, 1)] {
        let mut plan = SkyPlan {
            sample_rate: 16e6,
            duration: 0.01,
            bits,
            channels,
            ..pair()
        };
        let vdif = decode(&plan.station("Ef").unwrap());
        plan.stations[0].format = Format::Mark5b;
        let station = plan.station("Ef").unwrap();
        let codec = Codec::mark5b(bits).unwrap();
        let mut values = vec![0.0; codec.components(mark5b::PAYLOAD_LEN)];
        let mut all = vec![Vec::new(); channels as usize];
        for (number, frame) in (0..).zip(generate(&station).chunks_exact(mark5b::FRAME_LEN)) {
            let header = mark5b::Header::parse(frame).unwrap();
            assert_eq!(header.frame_number(), number);
            assert_eq!(header.time(plan.start).unwrap().second, plan.start);
            codec.decode(&frame[mark5b::HEADER_LEN..], &mut values);
            for sample in values.chunks_exact(channels as usize) {
                all.iter_mut()
                    .zip(sample)
                    .for_each(|(all, value)| all.push(*value));
            }
        }
        for (ours, theirs) in all.iter().zip(&vdif) {
            let count = ours.len().min(theirs.len());
            assert!(count > 100_000 && ours[..count] == theirs[..count]);
        }
    }
}

#[test]
fn errors_of_bad_plans_suggest_a_remedy() {
    let station = "\n[[station]]\nname = \"Ef\"\n";
    let error = |text: &str| match toml::from_str::<SkyPlan>(text) {
        Ok(plan) => plan.stations().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let cases = [
        ("", "no station: add `[[station]]`"),
        (
            "sample_rat = 1\n[[station]]\nname = \"Ef\"",
            "unknown field `sample_rat`, expected one of `start`",
        ),
        (
            "[[station]]\nname = \"Ef\"\ndelays = [1]",
            "unknown field `delays`",
        ),
        (
            "[[station]]\nname = \"Effelsberg\"",
            "two letters or digits",
        ),
        (
            "[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Ef\"",
            "two stations are named \"Ef\"",
        ),
        (
            "[[station]]\nname = \"Ef\"\ndelay = [20.0]",
            "delay = 20 is out of range",
        ),
        (
            "[[station]]\nname = \"Ef\"\nnoise = nan",
            "noise = NaN is out of range",
        ),
        (
            "[[station]]\nname = \"Ef\"\nphase_cal = { spacing = 0, power = 1 }",
            "spacing = 0 is out of range",
        ),
        (
            "start = \"yesterday\"",
            "give a date and time such as \"2024-05-01T12:00:00Z\", in quotes",
        ),
        (
            "start = \"2024-05-01T12:00:00.5Z\"",
            "starts with a whole second",
        ),
        ("start = \"2050-05-01T12:00:00Z\"", "between 2000 and 2031"),
        (
            "sample_rate = 1.5",
            "sample_rate = 1.5 is out of range: give a whole number",
        ),
        ("sample_rate = -1", "sample_rate = -1 is out of range"),
        ("duration = 0", "duration = 0 is out of range"),
        (
            "bits = 3",
            "cannot decode VDIF samples of 3 bits: supported are 1, 2, 4 or 8 bits",
        ),
        ("channels = 3", "3 channels over 1 threads"),
        (
            "channels = 1073741824",
            "at most 1024 threads and 4096 channels",
        ),
        ("channels = 4\nthreads = 0", "4 channels over 0 threads"),
        ("channels = 4\nthreads = 3", "4 channels over 3 threads"),
        ("payload = 8192", "a payload of 8000 bytes does"),
        ("sample_rate = 100", "no payload does at this rate"),
        ("payload = 8001", "payload: invalid VDIF frame length"),
        (
            "channels = 32\n[[station]]\nname = \"Ef\"\nformat = \"mark5b\"",
            "format = m5b: a sample of all channels has 1, 2, 4, 8, 16 or 32 bits, not 64",
        ),
        (
            "complex = true\n[[station]]\nname = \"Ef\"\nformat = \"mark5b\"",
            "format = m5b: its samples are real",
        ),
        (
            "[[station]]\nname = \"Ef\"\nformat = \"mark4\"\nfan_out = 3",
            "channels x bits x fan_out = 6 tracks: give 8, 16, 32 or 64",
        ),
        (
            "channels = 32\nbits = 1\n[[station]]\nname = \"Ef\"\nformat = \"mark4\"",
            "of at most 16 channels (upper sidebands)",
        ),
        (
            "sample_rate = 1e6\n[[station]]\nname = \"Ef\"\nformat = \"mark4\"",
            "a frame has 80000 samples of each channel, which does not fit 1000000 per second",
        ),
        (
            "[[station]]\nname = \"Ef\"\nformat = \"vlba\"",
            "unknown variant `vlba`, expected one of `vdif`, `mark5b`, `mark4`",
        ),
        ("payload = 0", "payload: invalid VDIF frame length"),
        (
            "payload = 18446744073709551615",
            "payload: invalid VDIF frame length",
        ),
        (
            "payload = 9223372036854775807",
            "payload: invalid VDIF frame length",
        ),
        ("edv = 2", "edv = 2: give 0, 1 or 3"),
        ("edv = 3", "a payload of 1000 or 5000 bytes"),
        (
            "edv = 3\npayload = 5000\nchannels = 2",
            "its threads have one channel",
        ),
        (
            "edv = 1\nlegacy = true",
            "legacy headers have no extended data",
        ),
        ("edv = 1\nsample_rate = 1600\npayload = 8", "whole kHz"),
        ("correlation = 1.1", "a coefficient from 0 to 1"),
        ("sky_frequency = -1", "a frequency in Hz"),
    ];
    for (text, expected) in cases {
        let text = if text.contains("station") || text.is_empty() {
            text.to_owned()
        } else {
            format!("{text}{station}")
        };
        let error = error(&text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(
        pair().station("Jb").unwrap_err().to_string(),
        "the plan has no station \"Jb\"; it has Ef, On"
    );
}

//! Mark 4 headers, channels and samples: known answers, damage, and every order of tracks.

use proptest::prelude::*;

use super::*;

/// 2014-06-16T07:38:12Z, of sample.m4 of `baseband`.
const SAMPLE_SECOND: i64 = 1_402_904_292;
const DAY: i64 = 86_400;

fn tracks(count: usize) -> Tracks {
    Tracks::new(count).unwrap()
}

fn track_header(words: [u32; 5]) -> TrackHeader {
    TrackHeader::from_words(words)
}

/// A header with a time, and samples in the usual order.
fn header(count: usize, bits: usize, fan_out: usize, second: i64, micros: u32) -> Header {
    let mut header = Header::new(tracks(count));
    let channels = Channels::usual(tracks(count), bits, fan_out).unwrap();
    channels.describe(&mut header);
    header.set_station(0x6c);
    header.set_time_code(TimeCode::new(second, micros).unwrap());
    header
}

/// A frame whose payload is noise.
fn frame(header: &Header, seed: u32) -> Vec<u8> {
    let tracks = tracks(header.tracks().len());
    let mut frame = vec![0; tracks.frame_length()];
    let mut word = seed | 1;
    for byte in &mut frame {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        *byte = (word >> 11) as u8;
    }
    header.emit(&mut frame);
    frame
}

#[test]
fn the_memos_header_has_its_crc() {
    let header = track_header([0x0000_002d, 0x0330_0000, u32::MAX, 0x4053_2143, 0x3805_5284]);
    assert_eq!(header.crc(), 0x284);
    assert!(header.is_intact());
}

/// Headers of the first tracks of five recordings, with the rest of the time of their first frames.
#[test]
fn recorded_headers_are_read() {
    let second = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
    for (words, time, micros, converter, lower, station) in [
        (
            [0x1122_3344, 0x0210_006c, u32::MAX, 0x4167_0738, 0x1247_5ea6],
            "2014-06-16T07:38:12Z",
            475_000,
            0,
            true,
            0x6c,
        ),
        (
            [0x1122_3344, 0x0200_006c, u32::MAX, 0x5011_0123, 0x1048_533f],
            "2015-01-11T01:23:10Z",
            485_000,
            0,
            false,
            0x6c,
        ),
        (
            [0x1122_3344, 0x0200_006c, u32::MAX, 0x7063_0442, 0x2602_5ca7],
            "2017-03-04T04:42:26Z",
            25_000,
            0,
            false,
            0x6c,
        ),
        (
            [0x1122_3344, 0x0210_006c, u32::MAX, 0x3307_0600, 0x0077_0319],
            "2013-11-03T06:00:00Z",
            770_000,
            0,
            true,
            0x6c,
        ),
        (
            [0x1122_3344, 0x0200_0072, u32::MAX, 0x9128_1732, 0x2107_2c7c],
            "2019-05-08T17:32:21Z",
            72_500,
            0,
            false,
            0x72,
        ),
    ] {
        let header = track_header(words);
        assert!(header.is_intact(), "{header:?}");
        let code = header.time_code().unwrap();
        let second = second(time);
        assert_eq!(code.micros(), micros);
        assert_eq!(code.second(second), Some(second));
        // Nearly ten years later, and a day before.
        for days in [-1, 0, 1, 3000, 3649] {
            assert_eq!(
                code.second(second + days * DAY),
                Some(second),
                "{time} {days}"
            );
        }
        assert_eq!(code, TimeCode::new(second, micros).unwrap());
        assert_eq!(
            (header.stack(), header.track(), header.sub_sample()),
            (0, 2, 0)
        );
        assert_eq!((header.converter(), header.is_lower()), (converter, lower));
        assert_eq!(header.station(), station);
        assert!(!header.is_magnitude() && !header.is_faulty() && !header.is_rolled());
        let mut again = header;
        again.set_time_code(code);
        assert_eq!(again, header);
    }
    let last = track_header([0x1122_3344, 0x73f7_006c, u32::MAX, 0x4167_0738, 0x1247_5212]);
    assert!(last.is_intact() && last.is_magnitude());
    assert_eq!(
        (
            last.stack(),
            last.track(),
            last.sub_sample(),
            last.converter()
        ),
        (1, 33, 3, 7)
    );
}

#[test]
fn milliseconds_that_no_frame_has_are_refused() {
    for milli in 0..1000u32 {
        let digits = u32::from_str_radix(&milli.to_string(), 16).unwrap();
        let mut header = track_header([0, 0, u32::MAX, 0x4167_0738, 0x1200_0000 | digits << 12]);
        header.words[4] |= u32::from(header.computed_crc());
        let code = header.time_code();
        if milli % 5 == 4 {
            assert_eq!(
                code,
                Err(TimeCodeError(0x0004_1670_7381_2000 | u64::from(digits)))
            );
        } else {
            let micros = code.unwrap().micros();
            assert_eq!((micros / 1000, micros % 1250), (milli, 0));
        }
    }
}

#[test]
fn times_that_do_not_exist_are_refused() {
    let code = |high, low| track_header([0, 0, u32::MAX, high, low]).time_code();
    assert!(code(0x4366_2359, 0x5999_8000).is_ok());
    // Day 0, day 366 of an odd year, day 367, hour 24, minute 60, a leap second, and a digit above 9.
    for (high, low) in [
        (0x4000_0738, 0x1247_5000),
        (0x5366_0738, 0x1247_5000),
        (0x4367_0738, 0x1247_5000),
        (0x4167_2438, 0x1247_5000),
        (0x4167_0760, 0x1247_5000),
        (0x4167_0738, 0x6047_5000),
        (0x4167_0738, 0x1a47_5000),
    ] {
        assert!(code(high, low).is_err(), "{high:08x} {low:08x}");
    }
}

#[test]
fn the_year_is_the_latest_with_its_digit_and_day() {
    let second = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
    let leap_day = TimeCode::new(second("2024-12-31T23:59:59Z"), 998_750).unwrap();
    let at = |reference: &str| leap_day.second(second(reference));
    assert_eq!(
        at("2026-01-01T00:00:00Z"),
        Some(second("2024-12-31T23:59:59Z"))
    );
    // 2014 and 2034 have no day 366.
    assert_eq!(
        at("2024-06-01T00:00:00Z"),
        Some(second("2004-12-31T23:59:59Z"))
    );
    assert_eq!(
        at("2043-12-31T00:00:00Z"),
        Some(second("2024-12-31T23:59:59Z"))
    );
    // A host whose clock is late, by less than a day.
    let new_year = TimeCode::new(second("2030-01-01T00:00:00Z"), 0).unwrap();
    let at = |reference: &str| new_year.second(second(reference));
    assert_eq!(
        at("2029-12-31T00:00:00Z"),
        Some(second("2030-01-01T00:00:00Z"))
    );
    assert_eq!(
        at("2029-12-30T23:59:59Z"),
        Some(second("2020-01-01T00:00:00Z"))
    );
    assert_eq!(new_year.second(i64::MAX), None);
    assert_eq!(new_year.second(i64::MIN), None);
}

/// The memo's first bits of the sequence; `P` is at a parity bit, which is not recorded.
#[test]
fn modulation_is_the_memos_sequence() {
    let memo = "00000000P00110110P00001111P01111011P10110110P".replace('P', "");
    for count in [8, 16, 32, 64] {
        let mut payload = vec![0; tracks(count).payload_length()];
        modulate(&mut payload, tracks(count));
        for (bit, bits) in memo.bytes().zip(payload.chunks_exact(count / 8)) {
            let expected = if bit == b'1' { 0xff } else { 0 };
            assert!(bits.iter().all(|byte| *byte == expected));
        }
        modulate(&mut payload, tracks(count));
        assert!(payload.iter().all(|byte| *byte == 0));
    }
}

/// The tables of the memo: numbers of the first sign track and the first magnitude track of the first channels.
#[test]
fn the_usual_order_is_the_memos() {
    for (fan_out, bits, memo) in [
        (4, 2, "2/10 3/11 18/26 19/27"),
        (4, 1, "2/2 3/3 10/10 11/11 18/18 19/19 26/26 27/27"),
        (2, 2, "2/6 3/7 10/14 11/15 18/22 19/23 26/30 27/31"),
        (2, 1, "2/2 3/3 6/6 7/7 10/10 11/11 14/14 15/15"),
        (1, 2, "2/4 6/8 10/12 14/16 18/20 22/24 26/28 30/32 3/5"),
        (1, 1, "2/2 3/3 4/4"),
    ] {
        let channels = Channels::usual(tracks(32), bits, fan_out).unwrap();
        assert_eq!(channels.channels().len(), 32 / bits / fan_out);
        for (channel, first) in memo.split(' ').enumerate() {
            let (sign, magnitude) = first.split_once('/').unwrap();
            let [sign, magnitude] = [sign, magnitude].map(|track| track.parse::<usize>().unwrap());
            for sub in 0..fan_out {
                assert_eq!(channels.place(channel, 0, sub) + 2, sign + 2 * sub);
                assert_eq!(
                    channels.place(channel, bits - 1, sub) + 2,
                    magnitude + 2 * sub
                );
            }
        }
    }
    for (count, bits, fan_out) in [(32, 3, 1), (32, 2, 3), (32, 0, 1), (8, 2, 8), (64, 1, 1)] {
        assert!(Channels::usual(tracks(count), bits, fan_out).is_err());
    }
}

/// All orders that have names for their channels.
fn orders() -> impl Iterator<Item = Channels> {
    let counts = [8, 16, 32, 64].into_iter();
    counts.flat_map(|count| {
        let shapes = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)].into_iter();
        shapes.filter_map(move |(bits, fan_out)| Channels::usual(tracks(count), bits, fan_out).ok())
    })
}

#[test]
fn headers_describe_the_order_of_their_tracks() {
    assert_eq!(orders().count(), 23);
    for channels in orders() {
        let mut header = Header::new(channels.tracks());
        channels.describe(&mut header);
        let read = Channels::of(&header).unwrap();
        let names = |channels: &Channels| channels.channels().to_vec();
        let mut expected = names(&channels);
        expected.sort_unstable();
        assert_eq!(names(&read), expected);
        for (place, channel) in names(&read).iter().enumerate() {
            let usual = names(&channels).iter().position(|other| other == channel);
            for (bit, sub) in
                (0..read.bits()).flat_map(|bit| (0..read.fan_out()).map(move |sub| (bit, sub)))
            {
                assert_eq!(
                    read.place(place, bit, sub),
                    channels.place(usual.unwrap(), bit, sub)
                );
            }
        }
    }
}

#[test]
fn headers_without_an_order_are_refused() {
    let mut header = header(32, 2, 4, SAMPLE_SECOND, 0);
    let mut refused = |index: usize, (converter, lower, magnitude, sub)| {
        let before = header.clone();
        header.tracks_mut()[index].set_samples(converter, lower, magnitude, sub);
        let error = Channels::of(&header).unwrap_err();
        header = before;
        error
    };
    let [first, second] = [0, 1].map(|converter| Channel {
        converter,
        sideband: Sideband::Upper,
    });
    assert_eq!(
        refused(0, (0, false, false, 1)),
        ChannelError::Twice(0, 2, first)
    );
    assert_eq!(
        refused(0, (1, false, false, 0)),
        ChannelError::Twice(0, 1, second)
    );
    assert_eq!(
        refused(0, (9, false, false, 0)),
        ChannelError::Incomplete(first)
    );
    assert_eq!(
        Channels::of(&Header::new(tracks(8))),
        Err(ChannelError::Twice(0, 1, first))
    );
}

#[test]
fn channels_have_names() {
    for name in ["0U", "1L", "15L"] {
        assert_eq!(name.parse::<Channel>().unwrap().to_string(), name);
    }
    assert_eq!(
        "3l".parse(),
        Ok(Channel {
            converter: 3,
            sideband: Sideband::Lower
        })
    );
    for wrong in ["", "U", "16U", "3", "-1L", "3X", "3ü"] {
        assert!(wrong.parse::<Channel>().is_err(), "{wrong}");
    }
}

/// Bit by bit: sub-sample by sub-sample, channel by channel, the sign as the higher bit.
#[test]
fn the_order_of_vdif_is_that_of_the_samples() {
    for channels in orders() {
        let count = channels.tracks().count();
        let header = header(count, channels.bits(), channels.fan_out(), SAMPLE_SECOND, 0);
        let frame = frame(&header, 7);
        let payload = &frame[channels.tracks().header_length()..];
        let order = Order::of(&channels);
        let mut vdif = Vec::new();
        order.to_vdif(payload, &mut vdif);
        assert_eq!(vdif.len(), payload.len());
        let bit = |bytes: &[u8], place: usize| bytes[place / 8] >> (place % 8) & 1;
        let mut place = 0;
        for time in payload.chunks_exact(count / 8).take(50) {
            for sub in 0..channels.fan_out() {
                for channel in 0..channels.channels().len() {
                    for of in (0..channels.bits()).rev() {
                        let expected = bit(time, channels.place(channel, of, sub));
                        assert_eq!(bit(&vdif, place), expected);
                        place += 1;
                    }
                }
            }
        }
        let mut back = Vec::new();
        order.to_tracks(&vdif, &mut back);
        assert_eq!(back, payload);
    }
}

#[test]
fn frames_are_found_at_any_byte() {
    for count in [8, 16, 32, 64] {
        // Years that end in 8 and 9 lengthen the run of ones.
        for year in [2014, 2018, 2019, 2020] {
            let second = (year - 1970) * 365 * DAY + (year - 1969) / 4 * DAY;
            let length = tracks(count).frame_length();
            let mut stream = vec![0x5a; 1237];
            for nth in 0..3 {
                stream.extend(frame(&header(count, 1, 2, second, nth * 2500), 99 + nth));
            }
            let intact = |at: &usize| {
                Header::parse(&stream[*at..], tracks(count))
                    .unwrap()
                    .is_intact()
            };
            let found: Vec<usize> = find(&stream, tracks(count)).filter(intact).collect();
            assert_eq!(
                found,
                [1237, 1237 + length, 1237 + 2 * length],
                "{count} {year}"
            );
            for (nth, at) in (0..).zip(found) {
                let header = Header::parse(&stream[at..], tracks(count)).unwrap();
                let code = header.time_code().unwrap();
                assert_eq!(
                    (code.second(second), code.micros()),
                    (Some(second), nth * 2500)
                );
            }
        }
    }
}

/// A header is found if its sync word is damaged on at most a tenth of the tracks, and on one of 8 in any case.
#[test]
fn dead_tracks_do_not_hide_a_header() {
    for (count, max) in [(64, 6), (32, 3), (16, 1), (8, 1)] {
        let length = tracks(count).header_length();
        // Tracks of one byte, and of all bytes.
        for step in [1, 9] {
            for damaged in 0..=max + 1 {
                let mut one_bit = frame(&header(count, 1, 2, SAMPLE_SECOND, 0), 3);
                let [mut zero, mut one] = [one_bit.clone(), one_bit.clone()];
                for track in (0..damaged).map(|nth| nth * step % count) {
                    let (byte, bit) = (track / 8, 1 << (track % 8));
                    for time in 0..length / (count / 8) {
                        zero[time * count / 8 + byte] &= !bit;
                        one[time * count / 8 + byte] |= bit;
                    }
                    one_bit[(64 + track % 32) * count / 8 + byte] ^= bit;
                }
                for damage in [zero, one, one_bit] {
                    let stream = [&[0x5a; 1237], &damage[..]].concat();
                    let found: Vec<usize> = find(&stream, tracks(count)).collect();
                    let expected: &[usize] = if damaged <= max { &[1237] } else { &[] };
                    assert_eq!(found, expected, "{damaged} of {count}");
                    for start in found {
                        let read = Header::parse(&stream[start..], tracks(count)).unwrap();
                        assert!(read.is_intact() && !read.is_faulty() && !read.is_rolled());
                        assert_eq!(
                            read.time_code(),
                            TimeCode::new(SAMPLE_SECOND, 0).ok_or(TimeCodeError(0))
                        );
                    }
                }
            }
        }
    }
}

/// The CRC starts with zero, so a slip of k bits keeps it on a track in 2^k: three quarters of the tracks never.
#[test]
fn a_slip_is_not_an_intact_header() {
    for count in [8usize, 16, 32, 64] {
        let stream = frame(&header(count, 1, 2, SAMPLE_SECOND, 0), 3);
        let bit = |time: usize, track: usize| {
            u32::from(stream[time * count / 8 + track / 8] >> (track % 8) & 1)
        };
        let head = |slip: usize, track: usize| {
            let word = |number: usize| {
                let times = slip + 32 * number..slip + 32 * (number + 1);
                times.fold(0, |word, time| word << 1 | bit(time, track))
            };
            TrackHeader::from_words([0, 1, 2, 3, 4].map(word))
        };
        let intact = |slip: usize| {
            let heads = (0..count).map(|track| head(slip, track));
            heads.filter(TrackHeader::is_intact).count()
        };
        assert_eq!(intact(0), count);
        for slip in 1..=3 {
            let found = intact(slip);
            assert!(found * 4 < count * 3, "{found} of {count} at {slip}");
        }
        // Of 64 tracks, half pass one bit time late.
        assert!(count < 64 || intact(1) > 16);
        for bytes in 1..=count {
            assert!(Header::parse(&stream[bytes..], tracks(count)).is_err());
        }
    }
}

/// Votes of the tracks read the time of headers of which no track is intact.
#[test]
fn damaged_headers_show_their_time() {
    let good = header(32, 2, 4, SAMPLE_SECOND, 477_500);
    let mut bytes = vec![0; tracks(32).header_length()];
    good.emit(&mut bytes);
    for track in 0..32 {
        // Another bit on each track: all tracks are damaged.
        let time = 96 + track;
        bytes[time * 4 + track / 8] ^= 1 << (track % 8);
    }
    let read = Header::parse(&bytes, tracks(32)).unwrap();
    assert_eq!(read.intact_tracks(), 0);
    assert_eq!(read.time_code(), good.time_code());
    let fill = [0x44, 0x33, 0x22, 0x11].repeat(160);
    assert!(matches!(
        Header::parse(&fill, tracks(32)),
        Err(HeaderError::Sync { .. })
    ));
    assert_eq!(
        Header::parse(&bytes[1..], tracks(32)),
        Err(HeaderError::Short {
            needed: 640,
            found: 639
        })
    );
}

proptest! {
    #[test]
    fn every_time_is_read_as_written(
        second in 0i64..4_000_000_000,
        step in 0u32..800,
        later in 0i64..3600 * DAY,
    ) {
        let code = TimeCode::new(second, step * TimeCode::STEP).unwrap();
        let mut header = Header::new(tracks(16));
        header.set_time_code(code);
        let mut bytes = vec![0; tracks(16).header_length()];
        header.emit(&mut bytes);
        let read = Header::parse(&bytes, tracks(16)).unwrap();
        prop_assert_eq!(read.intact_tracks(), 16);
        prop_assert_eq!(read.time_code(), Ok(code));
        prop_assert_eq!(code.second(second + later), Some(second));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(prop_oneof![Just(0xff), any::<u8>()], 0..3000), reference: i64) {
        for tracks in Tracks::ALL {
            for at in find(&bytes, tracks) {
                prop_assert!(Header::parse(&bytes[at..], tracks).is_ok());
            }
            if let Ok(header) = Header::parse(&bytes, tracks) {
                let _ = Channels::of(&header).map(|channels| Order::of(&channels));
                let _ = header.time_code().map(|code| code.second(reference));
            }
        }
    }
}

/// Formats that are not read are known by the distance of their sync words; Mark 4 that is read is none of them.
#[test]
fn relatives_are_known_by_name() {
    let stream = |count: usize, bits: usize, sync: &[u8]| {
        let mut bytes = vec![0x5a; 3 * bits * count / 8 + 999];
        for frame in 0..3 {
            let at = 999 + frame * bits * count / 8;
            let header = Header::new(tracks(count));
            header.emit(&mut bytes[at..]);
            for byte in bytes[at + 8 * count..][..4 * count].chunks_mut(sync.len()) {
                byte.copy_from_slice(sync);
            }
        }
        bytes
    };
    for count in [64, 32, 16, 8] {
        let tracks = tracks(count);
        let found = |bits: usize| Relative::find(&stream(count, bits, &[0xff]));
        assert_eq!(found(20_160), Some(Relative::Vlba(tracks)));
        assert_eq!(found(22_500), Some(Relative::Parity(tracks)));
        assert_eq!(found(20_000), Some(Relative::Damaged(tracks)));
        // The same with times 40 ms and 80 ms apart.
        let at = |apart: u32| {
            let mut bytes = Vec::new();
            for number in 0..2 {
                let header = header(count, 1, 2, SAMPLE_SECOND, apart * number);
                bytes.extend(frame(&header, number));
            }
            Relative::find(&bytes)
        };
        assert_eq!(at(40_000), Some(Relative::Damaged(tracks)));
        assert_eq!(at(80_000), Some(Relative::Slow(tracks)));
    }
    let mark_iiia = stream(32, 20_000, &[0xfc, 0xff, 0xff, 0x3f]);
    assert_eq!(Relative::find(&mark_iiia), Some(Relative::MarkIiia));
    let noise = frame(&header(64, 2, 4, SAMPLE_SECOND, 0), 5);
    assert_eq!(Relative::find(&noise), None);
    assert_eq!(Relative::find(&[0xff; 100_000]), None);
    let shown = Relative::Vlba(tracks(32)).to_string();
    assert_eq!(shown, "VLBA tape format of 32 tracks");
}

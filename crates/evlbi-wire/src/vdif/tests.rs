//! Known answers from the headers of recordings shipped with `baseband` 4.3, and properties.

use proptest::prelude::*;

use super::*;
use crate::mark5b;

/// First header of sample.vdif (VLBA, NRAO's extended data).
const SAMPLE: [u32; 8] = [
    0x00db2c77, 0x1c000000, 0x20000275, 0x0401fffc, 0x03800010, 0xacabfeed, 0x33400000, 0xf2031583,
];
/// First header of sample_mwa.vdif.
const MWA: [u32; 8] = [0x007d11e9, 0x1f000000, 0x01000044, 0x9c006d77, 0, 0, 0, 0];
/// Second header of sample_arochime.vdif.
const ARO_CHIME: [u32; 8] = [0x1eaca12f, 0x0004b38d, 0x2a000084, 0x8c014151, 0, 0, 0, 0];
/// Second header of sample_bps1.vdif.
const ONE_BIT: [u32; 8] = [0x0070c8f9, 0x25000470, 0x040003ec, 0x0000777a, 0, 0, 0, 0];
/// Second header of sample_drao_corrupted.vdif, which has a counter in words that its version leaves unused.
const DRAO: [u32; 8] = [
    0x1f590fa1, 0x00000162, 0x23000275, 0x90570001, 0, 0x27c51d4b, 0, 0,
];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn parse(words: [u32; 8]) -> Header {
    let header = Header::parse(&bytes(&words)).unwrap();
    assert_eq!(header.words(), words);
    assert_eq!(header.to_bytes().as_slice(), bytes(&words));
    header
}

fn second(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_second()
}

fn key(station: [u8; 2], thread: u16) -> StreamKey {
    StreamKey {
        station: StationId::from_code(station),
        thread,
    }
}

#[test]
fn a_header_of_the_vlba() {
    let header = parse(SAMPLE);
    assert!(!header.is_invalid() && !header.is_legacy());
    assert_eq!(header.epoch().to_string(), "2014-01-01");
    assert_eq!(header.seconds(), 14_363_767);
    assert_eq!(header.time().second, second("2014-06-16T05:56:07Z"));
    assert_eq!(header.frame_number(), 0);
    assert_eq!(header.version(), 1);
    assert_eq!(header.key().station, StationId(65_532));
    assert_eq!(header.key().station.to_string(), "65532");
    assert_eq!(header.key().thread, 1);
    let shape = Shape {
        frame_length: 5032,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    assert_eq!(header.shape(), shape);
    assert_eq!(shape.check(), Ok(()));
    assert_eq!(shape.samples_per_frame(), 20_000);
    assert_eq!(header.sample_rate(), Some(32_000_000));
    assert_eq!(header.frame_rate(), FrameRate::new(1600));
    let extended = Extended::Nrao(Nrao {
        complex_rate: 16_000_000,
        sync: SYNC,
        tuning: 0x3340_0000,
        unit: 2,
        input: 0,
        sub_band: 1,
        upper: true,
        revision: (1, 5),
        personality: 0x83,
    });
    assert_eq!(header.extended(), Some(extended));
    assert_eq!(
        extended.to_string(),
        "EDV 3 (NRAO): 16 MHz of bandwidth, tuned to 51.25 MHz, unit 2, IF 0, sub-band 1, upper side band, \
         personality 0x83 revision 1.5"
    );
}

#[test]
fn a_complex_header_of_the_mwa() {
    let header = parse(MWA);
    assert_eq!(header.time().second, second("2015-10-03T20:49:45Z"));
    assert_eq!(header.key(), key(*b"mw", 0));
    assert_eq!(header.key().station.to_string(), "mw");
    let shape = header.shape();
    assert!(shape.complex);
    assert_eq!((shape.bits, shape.channels()), (8, 2));
    assert_eq!((shape.frame_length, shape.samples_per_frame()), (544, 128));
    assert_eq!(shape.bits_per_complete_sample(), 32);
    assert_eq!(header.edv(), Some(0));
    assert_eq!((header.sample_rate(), header.frame_rate()), (None, None));
    let unused = header.extended().unwrap().to_string();
    assert_eq!(unused, "EDV 0 (unused)");
}

#[test]
fn a_header_of_many_channels() {
    let header = parse(ARO_CHIME);
    assert_eq!(header.key(), key(*b"AQ", 1));
    assert_eq!(header.epoch().half_years(), 0);
    assert_eq!(header.frame_number(), 308_109);
    let shape = header.shape();
    assert!(shape.complex);
    assert_eq!((shape.bits, shape.channels()), (4, 1024));
    assert_eq!((shape.frame_length, shape.samples_per_frame()), (1056, 1));
}

#[test]
fn a_header_of_one_bit() {
    let header = parse(ONE_BIT);
    assert_eq!(header.time().second, second("2018-09-24T13:11:21Z"));
    assert_eq!(header.time().frame, 1136);
    assert_eq!(header.key(), key(*b"wz", 0));
    assert_eq!(header.version(), 0);
    let shape = header.shape();
    assert_eq!((shape.bits, shape.channels()), (1, 16));
    assert_eq!(
        (shape.frame_length, shape.samples_per_frame()),
        (8032, 4000)
    );
}

#[test]
fn words_that_nothing_explains_are_kept() {
    let header = parse(DRAO);
    assert_eq!(header.key().thread, 0x57);
    let words = [0, 0x27c5_1d4b, 0, 0];
    let version = 0;
    let extended = header.extended().unwrap();
    assert_eq!(extended, Extended::Other { version, words });
    assert_eq!(
        extended.to_string(),
        "EDV 0x00: words [00000000, 27c51d4b, 00000000, 00000000]"
    );
}

#[test]
fn a_legacy_header_has_four_words() {
    let words = [0x4000_000a, 0x1c00_0007, 0x0100_0010, 0x0402_4566];
    let mut header = Header::parse(&bytes(&words)).unwrap();
    let before = header;
    assert_eq!(header.shape().payload_length(), 112);
    assert!(header.is_legacy());
    assert_eq!(header.len(), LEGACY_HEADER_LEN);
    assert_eq!(header.key(), key(*b"Ef", 2));
    assert_eq!(header.time().second, second("2014-01-01T00:00:10Z"));
    assert_eq!(header.shape().samples_per_frame(), 112 * 8 / 2 / 2);
    assert_eq!((header.edv(), header.extended()), (None, None));
    // There is no extended user data, and none can be set.
    let version = 5;
    let words = [1; 4];
    header
        .set_extended(&Extended::Other { version, words })
        .unwrap();
    assert_eq!(header, before);
    let mut written = [0xaa; 20];
    header.emit(&mut written);
    assert_eq!(written[..16], header.to_bytes()[..16]);
    assert_eq!(written[16..], [0xaa; 4]);
}

#[test]
fn invalid_headers_are_refused() {
    let short = |needed, found| Err(HeaderError::Short { needed, found });
    let bytes = bytes(&SAMPLE);
    assert_eq!(Header::parse(&bytes[..15]), short(16, 15));
    assert_eq!(Header::parse(&bytes[..31]), short(32, 31));
    assert!(Header::parse(&bytes).is_ok());
    assert_eq!(Header::parse(&[0; 32]), Err(HeaderError::FrameLength(0)));
    let mut inside_header = SAMPLE;
    inside_header[2] = 3;
    let inside_header = self::bytes(&inside_header);
    assert_eq!(
        Header::parse(&inside_header),
        Err(HeaderError::FrameLength(24))
    );
}

#[test]
fn the_epoch_is_kept_as_long_as_its_seconds_reach() {
    let mut header = parse(SAMPLE);
    let at = |second| FrameTime { second, frame: 9 };
    // Past the end of the half-year, as in a recording that runs past it.
    let july = second("2014-07-01T00:00:00Z");
    header.set_time(at(july + 5)).unwrap();
    assert_eq!(
        (header.epoch().half_years(), header.seconds()),
        (28, 15_638_405)
    );
    assert_eq!(header.time(), at(july + 5));
    // Before it, the epoch must change.
    let december = second("2013-12-31T23:59:59Z");
    header.set_time(at(december)).unwrap();
    assert_eq!(
        (header.epoch().half_years(), header.seconds()),
        (27, 15_897_599)
    );
    // A time outside all epochs is refused and changes nothing.
    let before = header;
    let century = second("1999-12-31T23:59:59Z");
    assert_eq!(header.set_time(at(century)), Err(TimeError(at(century))));
    for second in [i64::MIN, i64::MAX] {
        assert_eq!(header.set_time(at(second)), Err(TimeError(at(second))));
    }
    let frame = 1 << 24;
    assert!(
        header
            .set_time(FrameTime {
                second: july,
                frame
            })
            .is_err()
    );
    assert_eq!(header, before);
}

#[test]
fn a_new_header_goes_to_the_epoch_of_its_time() {
    let mut header = Header::new(parse(SAMPLE).shape(), StreamKey::default());
    let second = second("2026-11-21T00:00:00Z");
    header.set_time(FrameTime { second, frame: 0 }).unwrap();
    assert_eq!(header.epoch().to_string(), "2026-07-01");
    assert_eq!(header.time().second, second);
    // A header that has counted from the first epoch for years keeps it.
    let mut header = parse(ARO_CHIME);
    let second = header.time().second + 1;
    header.set_time(FrameTime { second, frame: 0 }).unwrap();
    assert_eq!(
        (header.epoch().half_years(), header.seconds()),
        (0, ARO_CHIME[0] + 1)
    );
}

#[test]
fn shapes_that_no_header_can_represent() {
    let shape = parse(SAMPLE).shape();
    let length = |frame_length| {
        Shape {
            frame_length,
            ..shape
        }
        .check()
    };
    for bad in [0, 32, 5033, MAX_FRAME_LEN + 8, usize::MAX] {
        assert_eq!(length(bad), Err(ShapeError::FrameLength(bad)));
    }
    assert_eq!(length(40), Ok(()));
    assert_eq!(length(MAX_FRAME_LEN), Ok(()));
    let bits = |bits| Shape { bits, ..shape }.check();
    assert_eq!((bits(1), bits(32)), (Ok(()), Ok(())));
    assert_eq!(bits(0), Err(ShapeError::Bits(0)));
    assert_eq!(bits(33), Err(ShapeError::Bits(33)));
    let channels = |log2_channels| {
        Shape {
            log2_channels,
            ..shape
        }
        .check()
    };
    assert_eq!(channels(14), Ok(()));
    assert!(matches!(channels(15), Err(ShapeError::Samples { .. })));
    assert_eq!(channels(32), Err(ShapeError::Channels(32)));
}

#[test]
fn samples_are_counted_by_whole_words() {
    let samples = |bits, complex| {
        let mut shape = parse(SAMPLE).shape();
        (shape.frame_length, shape.bits, shape.complex) = (32 + 96, bits, complex);
        shape.samples_per_frame()
    };
    assert_eq!((samples(2, false), samples(2, true)), (384, 192));
    // Three in a word of 32 bits; then one; then one component.
    assert_eq!((samples(10, false), samples(10, true)), (72, 24));
    assert_eq!((samples(17, false), samples(17, true)), (24, 12));
    assert_eq!((samples(32, false), samples(32, true)), (24, 12));
}

#[test]
fn a_mark_5b_header_travels_in_the_extended_words() {
    let mut header = parse(SAMPLE);
    let mut inner = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]).unwrap();
    let rate = FrameRate::new(6400).unwrap();
    let time = header.time();
    inner.set_time(time, rate).unwrap();
    header.set_extended(&Extended::Mark5b(inner)).unwrap();
    assert_eq!(header.edv(), Some(0xab));
    assert_eq!(header.extended(), Some(Extended::Mark5b(inner)));
    // Without Mark 5B's sync word only the version shows it.
    header.words[4] = 0xab00_0000;
    assert!(matches!(
        header.extended(),
        Some(Extended::Other { version: 0xab, .. })
    ));
}

#[test]
fn rates_that_the_header_cannot_represent() {
    let mut header = parse(MWA);
    let mut set = |complex_rate| {
        let (sync, das) = (SYNC, 0);
        header
            .set_extended(&Extended::Nict(Nict {
                complex_rate,
                sync,
                das,
            }))
            .map(|()| header.words()[4])
    };
    assert_eq!(set(16_000_000), Ok(0x0180_0010));
    assert_eq!(set(62_500_000), Ok(0x0100_f424));
    assert_eq!(set(8_388_607_000_000), Ok(0x01ff_ffff));
    for bad in [500, 8_388_608_000, 8_388_608_000_000, u64::MAX] {
        assert_eq!(set(bad), Err(RateError(bad)));
    }
    assert_eq!(header.words()[4], 0x01ff_ffff);
}

fn shapes() -> impl Strategy<Value = Shape> {
    let lengths = 3usize..=MAX_FRAME_LEN / 8;
    (lengths, 0u8..=31, 1u8..=32, any::<bool>(), any::<bool>()).prop_map(
        |(eights, log2_channels, bits, complex, legacy)| Shape {
            frame_length: 8 * if legacy { eights } else { eights.max(5) },
            log2_channels,
            bits,
            complex,
            legacy,
        },
    )
}

fn extendeds() -> impl Strategy<Value = Extended> {
    let rates = prop_oneof![
        (0u64..1 << 23).prop_map(|rate| rate * 1_000),
        (0u64..1 << 23).prop_map(|rate| rate * 1_000_000),
    ];
    let rest = any::<([u8; 8], u32, u32, u64, [u32; 4])>();
    (0..6, rates, rest).prop_map(
        |(kind, complex_rate, (small, sync, word, long, words))| match kind {
            0 => Extended::Nict(Nict {
                complex_rate,
                sync,
                das: long,
            }),
            1 => Extended::Alma(Alma {
                polarisation: small[0] & 1,
                quadrant: small[1] & 3,
                correlator: small[2] & 1,
                sync: sync >> 12,
                status: word,
                serial: long,
            }),
            2 => Extended::Nrao(Nrao {
                complex_rate,
                sync,
                tuning: word,
                unit: small[0] & 15,
                input: small[1] & 15,
                sub_band: small[2] & 7,
                upper: small[3] & 1 == 1,
                revision: (small[4] & 15, small[5] & 15),
                personality: small[6],
            }),
            3 => Extended::Merged(Merged {
                mask_length: small[0],
                sync,
                mask: long,
            }),
            4 => {
                let [_, words @ ..] = words;
                let [a, b, c] = words;
                let header = mark5b::Header::from_words([mark5b::SYNC, a, b, c]);
                Extended::Mark5b(header.unwrap())
            }
            _ => {
                let version = small[0] | 0x10;
                let mut words = words;
                words[0] = words[0] & 0x00ff_fffe | u32::from(version) << 24;
                Extended::Other { version, words }
            }
        },
    )
}

/// `SAMPLE` with other extended words.
fn with_extended(extended: Extended) -> Header {
    let mut header = parse(SAMPLE);
    header.set_extended(&extended).unwrap();
    header
}

#[test]
fn a_lost_frame_differs_in_its_time_and_its_mark_only() {
    let header = parse(SAMPLE);
    let time = FrameTime {
        second: header.time().second + 1,
        frame: 3,
    };
    let filled = header.fill_after(time, 1603, None).unwrap();
    let mut expected = SAMPLE;
    expected[0] = 0x80db_2c78;
    expected[1] = 0x1c00_0003;
    assert_eq!(filled.words(), expected);
    let frame = 1 << 24;
    let none = FrameTime { frame, ..time };
    assert_eq!(header.fill_after(none, 0, None), Err(TimeError(none)));
}

#[test]
fn what_moves_from_frame_to_frame_moves_on_in_a_lost_one() {
    let alma = |serial| {
        Extended::Alma(Alma {
            polarisation: 1,
            quadrant: 2,
            correlator: 0,
            sync: ALMA_SYNC,
            status: 7,
            serial,
        })
    };
    let time = parse(SAMPLE).time();
    let after = |extended, frames_on| {
        let filled = with_extended(extended).fill_after(time, frames_on, FrameRate::new(1600));
        filled.unwrap().extended().unwrap()
    };
    assert_eq!(after(alma(0xffff_ffff), 2), alma(0x1_0000_0001));
    assert_eq!(after(alma(0), -1), alma(u64::MAX));
    let merged = |mask| {
        Extended::Merged(Merged {
            mask_length: 8,
            sync: SYNC,
            mask,
        })
    };
    assert_eq!(after(merged(0xff), 1), merged(0));
    let user = |time: Option<FrameTime>| {
        let words = [mark5b::SYNC, 0xbead << 16, 0, 0];
        let mut inner = mark5b::Header::from_words(words).unwrap();
        if let Some(time) = time {
            let rate = FrameRate::new(1600).unwrap();
            inner.set_time(time, rate).unwrap();
        }
        Extended::Mark5b(inner)
    };
    assert_eq!(after(user(None), 1), user(Some(time)));
}

fn times() -> impl Strategy<Value = FrameTime> {
    let (first, end) = (
        second("2000-01-01T00:00:00Z"),
        second("2032-01-01T00:00:00Z"),
    );
    let seconds = prop_oneof![
        first..end,
        (0u8..64, -3i64..3).prop_map(move |(half_years, off)| {
            (Epoch::new(half_years).unwrap().start() + off).clamp(first, end - 1)
        }),
    ];
    (seconds, 0u32..1 << 24).prop_map(|(second, frame)| FrameTime { second, frame })
}

proptest! {
    #[test]
    fn every_field_is_parsed_as_written(
        shape in shapes(),
        station: u16,
        thread in 0u16..1024,
        time in times(),
        invalid: bool,
        extended in extendeds(),
    ) {
        let key = StreamKey { station: StationId(station), thread };
        let mut header = Header::new(shape, key);
        header.set_time(time).unwrap();
        header.set_invalid(invalid);
        header.set_extended(&extended).unwrap();
        let mut written = vec![0; header.len()];
        header.emit(&mut written);
        let read = Header::parse(&written).unwrap();
        prop_assert_eq!(read, header);
        prop_assert_eq!(read.shape(), shape);
        prop_assert_eq!(read.key(), key);
        prop_assert_eq!(read.time(), time);
        prop_assert_eq!(read.is_invalid(), invalid);
        prop_assert_eq!(read.extended(), (!shape.legacy).then_some(extended));
        let _ = (read.frame_rate(), extended.to_string());
    }

    #[test]
    fn the_time_is_set_from_any_time(from in times(), to in times()) {
        let mut header = parse(SAMPLE);
        header.set_time(from).unwrap();
        let epoch = header.epoch();
        header.set_time(to).unwrap();
        prop_assert_eq!(header.time(), to);
        if to.second >= epoch.start() && to.second.abs_diff(from.second) <= HALF_YEAR {
            prop_assert_eq!(header.epoch(), epoch);
        } else {
            prop_assert_eq!(Some(header.epoch()), Epoch::containing(to.second));
        }
    }

    #[test]
    fn any_words_are_kept(words: [u32; 8]) {
        let bytes = bytes(&words);
        match Header::parse(&bytes) {
            Ok(header) => {
                prop_assert_eq!(&header.to_bytes()[..header.len()], &bytes[..header.len()]);
                let mut again = header;
                again.set_invalid(!header.is_invalid());
                again.set_invalid(header.is_invalid());
                prop_assert_eq!(again, header);
                again.set_time(header.time()).unwrap();
                prop_assert_eq!(again, header);
                let _ = format!("{header:?} {:?} {:?}", header.frame_rate(), header.shape().check());
                let _ = header.extended().map(|extended| extended.to_string());
            }
            Err(error) => prop_assert!(matches!(error, HeaderError::FrameLength(0..32))),
        }
    }

    #[test]
    fn shapes_from_anywhere_do_not_panic(
        frame_length: usize,
        log2_channels: u8,
        bits: u8,
        complex: bool,
        legacy: bool,
    ) {
        let shape = Shape { frame_length, log2_channels, bits, complex, legacy };
        let _ = (shape.check(), shape.samples_per_frame(), shape.bits_per_complete_sample());
        let _ = Header::new(shape, StreamKey::default());
    }
}

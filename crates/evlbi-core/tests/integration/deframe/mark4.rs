//! Streams of Mark 4: found at any byte, headers damaged, bytes lost or inserted, datagrams lost.

use std::ops::Range;

use evlbi_core::deframe::{Deframer, Format, FrameState, Partial, Settings, Slip};
use evlbi_wire::fill;
use evlbi_wire::mark4::{Channels, Header, TimeCode, Tracks, find};
use evlbi_wire::time::{FrameRate, FrameTime};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::deframe::stream::{Output, Path, Stream, carry};

/// 2018-12-31T23:59:58Z: the digit of the year lengthens the run of ones of the sync word, until it changes during the stream.
const SECOND: i64 = 1_546_300_798;

fn tracks(count: usize) -> Tracks {
    Tracks::new(count).unwrap()
}

/// Returns `frames` frames of noise, with 2 bits and a fan-out of 4 (8 tracks: 2), that end two frames after the new year.
fn stream(tracks: Tracks, rate: u32, frames: usize) -> Stream {
    let fan_out = tracks.count().min(16) / 4;
    let mut header = Header::new(tracks);
    Channels::usual(tracks, 2, fan_out)
        .unwrap()
        .describe(&mut header);
    header.set_station(0x6c);
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(rate));
    let length = tracks.frame_length();
    let mut bytes = vec![0; frames * length];
    random.fill(&mut bytes[..]);
    for (number, frame) in bytes.chunks_exact_mut(length).enumerate() {
        let time = time(rate, frames, number);
        let micros = time.frame * (1_000_000 / rate);
        header.set_time_code(TimeCode::new(time.second, micros).unwrap());
        header.emit(frame);
    }
    Stream {
        bytes,
        frame_length: length,
        header_length: tracks.header_length(),
        rate,
    }
}

fn time(rate: u32, frames: usize, number: usize) -> FrameTime {
    let end = (SECOND + 2) * i64::from(rate) + 2;
    let index = end - frames as i64 + number as i64;
    FrameTime::from_index(index, FrameRate::new(rate).unwrap())
}

fn settings() -> Settings {
    Settings {
        latest: SECOND + 100,
        ..Settings::default()
    }
}

fn walk(bytes: &[u8]) -> (Output, Deframer) {
    let mut deframer = Deframer::new(settings());
    let mut output = Output::default();
    let mut taken = 0;
    // As a file is read.
    for end in (0..bytes.len())
        .step_by(1 << 20)
        .skip(1)
        .chain([bytes.len()])
    {
        let is_last = end == bytes.len();
        taken += deframer.walk(&bytes[taken..end], is_last, &mut |chunk| output.take(chunk));
    }
    assert_eq!(taken, bytes.len());
    (output.finish(&deframer), deframer)
}

/// Returns the times of the frames that have one.
fn times(output: &Output) -> Vec<FrameTime> {
    output
        .frames
        .iter()
        .filter_map(|frame| frame.time)
        .collect()
}

#[test]
fn frames_are_found_at_any_byte_and_rate() {
    for (count, rate) in [(64, 800), (64, 400), (32, 200), (16, 100), (8, 50), (8, 25)] {
        let tracks = tracks(count);
        let stream = stream(tracks, rate, 6);
        for cut in [0, 1, 2, 1250, 20 * count, stream.frame_length - 1] {
            let (output, deframer) = walk(&stream.bytes[cut..]);
            let layout = deframer.layout().unwrap();
            assert_eq!(
                (layout.format, layout.tracks()),
                (Format::Mark4, Some(tracks))
            );
            assert_eq!(output.rate, FrameRate::new(rate));
            let first = usize::from(cut > 0);
            let expected: Vec<_> = (first..6).map(|number| time(rate, 6, number)).collect();
            assert_eq!(times(&output), expected, "{count} tracks from byte {cut}");
            assert_eq!(output.bytes, stream.bytes[first * stream.frame_length..]);
            assert_eq!(output.counts.whole, expected.len() as u64);
        }
    }
}

/// Stations write 0x11223344, the fill pattern, into the headers of all tracks.
#[test]
fn auxiliary_data_like_fill_are_not_fill() {
    for count in [64, 32, 16, 8] {
        let tracks = tracks(count);
        let mut whole = stream(tracks, 400, 6);
        for frame in whole.bytes.chunks_exact_mut(whole.frame_length) {
            for (time, bits) in frame.chunks_exact_mut(tracks.bytes()).take(32).enumerate() {
                bits.fill(if 0x1122_3344 >> (31 - time) & 1 == 1 {
                    0xff
                } else {
                    0
                });
            }
            let mut header = Header::parse(frame, tracks).unwrap();
            header.set_time_code(header.time_code().unwrap());
            header.emit(frame);
            let words = header.tracks().iter().map(|head| head.words()[0]);
            assert!(words.into_iter().all(|word| word == fill::PATTERN));
        }
        let (output, _) = walk(&whole.bytes);
        assert_eq!((output.counts.frames, output.counts.whole), (6, 6));
        // Lost data next to such a header are filled, and it remains.
        let lost = 2 * whole.frame_length / 1250 + 2;
        let keep = Settings {
            partial: Partial::Keep,
            ..settings()
        };
        let output = carry(&whole, &Path::new(1250, [lost]), keep);
        assert_eq!(output.counts.partial, 1);
        let frame = &output.bytes[2 * whole.frame_length..];
        assert_eq!(
            frame[..whole.header_length],
            whole.frame(2)[..whole.header_length]
        );
    }
}

/// Changes the bit of a track in all bit times.
fn set_track(bytes: &mut [u8], tracks: Tracks, track: usize, is_one: bool) {
    for byte in bytes.iter_mut().skip(track / 8).step_by(tracks.bytes()) {
        match is_one {
            true => *byte |= 1 << (track % 8),
            false => *byte &= !(1 << (track % 8)),
        }
    }
}

#[test]
fn a_recording_with_a_dead_track_has_its_frames() {
    for count in [64, 32, 16, 8] {
        for is_one in [false, true] {
            let mut whole = stream(tracks(count), 400, 6);
            set_track(&mut whole.bytes, tracks(count), count / 2, is_one);
            let bytes = &whole.bytes[1..];
            let (output, deframer) = walk(bytes);
            assert_eq!(deframer.format(), Some(Format::Mark4), "{count} {is_one}");
            let expected: Vec<_> = (1..6).map(|number| time(400, 6, number)).collect();
            assert_eq!(times(&output), expected);
            assert_eq!(output.bytes, bytes[whole.frame_length - 1..]);
            assert_eq!((output.counts.whole, output.counts.slips), (5, 0));
        }
    }
}

#[test]
fn one_wrong_bit_in_each_sync_word_does_not_hide_the_frames() {
    for count in [64, 8] {
        let whole = stream(tracks(count), 400, 6);
        let mut bytes = whole.bytes.clone();
        for (number, frame) in bytes.chunks_exact_mut(whole.frame_length).enumerate() {
            frame[(64 + 5 * number) * count / 8] ^= 1 << number;
        }
        let (output, _) = walk(&bytes);
        assert_eq!(times(&output).len(), 6);
        assert_eq!((output.bytes, output.counts.whole), (bytes, 6));
    }
}

/// The times in headers overrule a given frame rate, which is that of a single frame.
#[test]
fn a_given_frame_rate_is_that_of_the_times_or_not_used() {
    let whole = stream(tracks(16), 400, 6);
    let rate = FrameRate::new;
    for (given, frames, expected) in [(400, 6, 400), (100, 6, 400), (800, 6, 400), (800, 1, 800)] {
        let mut deframer = Deframer::new(Settings {
            frame_rate: rate(given),
            ..settings()
        });
        let mut output = Output::default();
        let first = 6 - frames;
        let bytes = &whole.bytes[first * whole.frame_length..];
        deframer.walk(bytes, true, &mut |chunk| output.take(chunk));
        assert_eq!(deframer.frame_rate(), rate(expected), "{given}");
        assert_eq!(deframer.layout().unwrap().frame_rate, rate(expected));
        let whole = output.finish(&deframer).counts.whole;
        assert_eq!(whole, frames as u64, "{given}");
        let other = rate(given)
            .zip(rate(expected))
            .filter(|_| given != expected);
        assert_eq!(deframer.take_other_rate(), other);
        assert_eq!(deframer.take_other_rate(), None);
    }
}

#[test]
fn frames_that_do_not_divide_a_second_are_none() {
    let tracks = tracks(8);
    let mut stream = stream(tracks, 25, 4);
    for (number, frame) in stream
        .bytes
        .chunks_exact_mut(stream.frame_length)
        .enumerate()
    {
        let mut header = Header::parse(frame, tracks).unwrap();
        header.set_time_code(TimeCode::new(SECOND, 80_000 * number as u32).unwrap());
        header.emit(frame);
    }
    let (_, deframer) = walk(&stream.bytes);
    assert_eq!(deframer.format(), Some(Format::Raw));
}

/// Whatever happens to a header, its frame stays at its time.
#[test]
fn a_frame_with_a_damaged_header_is_the_next_one() {
    let tracks = tracks(32);
    let whole = stream(tracks, 400, 8);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for errors in (1..=40).chain([1280, usize::MAX]) {
        let mut bytes = whole.bytes.clone();
        let header = &mut bytes[4 * whole.frame_length..][..whole.header_length];
        if errors == usize::MAX {
            fill::make(header);
        }
        for _ in 0..errors % usize::MAX {
            header[random.random_range(0..640)] ^= 1 << random.random_range(0..8);
        }
        let (output, _) = walk(&bytes);
        let expected: Vec<_> = (0..8).map(|number| time(400, 8, number)).collect();
        assert_eq!(times(&output), expected, "{errors}");
        assert_eq!(output.bytes, bytes);
        // Up to eight of 32 tracks may be wrong.
        let odd = output.counts.odd_headers;
        assert!(
            odd == u64::from(errors > 8) || (9..20).contains(&errors),
            "{errors}"
        );
        assert_eq!((output.counts.frames, output.counts.slips), (8, 0));
    }
}

/// Headers that are lost from the start on hide neither the frames nor their times.
#[test]
fn frames_are_found_between_damaged_headers() {
    let whole = stream(tracks(16), 400, 25);
    let patterns: [fn(usize) -> bool; 4] = [
        |number| number % 2 == 1,
        |number| number < 3 || number % 4 > 0,
        |number| ![0, 4, 5, 9].contains(&(number % 10)),
        |number| number < 22 && ![9, 13, 16].contains(&number),
    ];
    for is_damaged in patterns {
        let mut bytes = whole.bytes.clone();
        let frames = bytes.chunks_exact_mut(whole.frame_length).enumerate();
        let damaged = frames.filter(|(number, _)| is_damaged(*number));
        damaged.for_each(|(_, frame)| fill::make(&mut frame[..whole.header_length]));
        let (output, deframer) = walk(&bytes);
        assert_eq!(deframer.format(), Some(Format::Mark4));
        assert!(output.bytes == bytes);
        let expected: Vec<_> = (0..25).map(|number| time(400, 25, number)).collect();
        for (number, frame) in output.frames.iter().enumerate() {
            let time = frame.time;
            assert!(time.is_none_or(|it| it == expected[number]), "{number}");
            assert!(is_damaged(number) || time.is_some(), "{number}");
        }
        assert_eq!(output.counts.frames, 25);
    }
}

/// Damages the auxiliary data of half of the tracks of a header, so that their CRC is wrong.
fn damage_half(header: &mut [u8], tracks: Tracks) {
    header[20 * tracks.bytes()..21 * tracks.bytes()]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x55);
}

/// Once frames are found, the expected time is enough, any number of times in a row; before, three quarters of the tracks need a correct
/// CRC.
#[test]
fn frames_whose_damaged_headers_show_the_expected_time_have_it() {
    for count in [64, 8] {
        let tracks = tracks(count);
        let whole = stream(tracks, 400, 40);
        let mut bytes = whole.bytes.clone();
        let damaged = bytes.chunks_exact_mut(whole.frame_length).skip(4);
        damaged.for_each(|frame| damage_half(frame, tracks));
        let (output, _) = walk(&bytes);
        let expected: Vec<_> = (0..40).map(|number| time(400, 40, number)).collect();
        assert_eq!(times(&output), expected);
        assert_eq!((output.counts.whole, output.counts.odd_headers), (4, 36));
        assert_eq!((&output.bytes, output.counts.slips), (&bytes, 0));
        // Ten of them with other times.
        for frame in bytes.chunks_exact_mut(whole.frame_length).skip(20).take(10) {
            whole_header(&whole, 39).emit(frame);
            damage_half(frame, tracks);
        }
        let (output, _) = walk(&bytes);
        let timed = |number: usize| output.frames[number].time == Some(expected[number]);
        assert!((0..28).all(timed) && !(28..30).any(timed) && (30..40).all(timed));
        let (_, deframer) = walk(&bytes[4 * whole.frame_length..]);
        assert_eq!(deframer.format(), Some(Format::Raw));
    }
}

fn whole_header(stream: &Stream, number: usize) -> Header {
    let tracks = tracks(stream.header_length / 20);
    Header::parse(stream.frame(number), tracks).unwrap()
}

#[test]
fn frames_after_eight_damaged_headers_have_no_time() {
    let whole = stream(tracks(8), 400, 40);
    let mut bytes = whole.bytes.clone();
    for frame in bytes.chunks_exact_mut(whole.frame_length).skip(10).take(12) {
        fill::make(&mut frame[..whole.header_length]);
    }
    let (output, _) = walk(&bytes);
    let timed = |number: usize| output.frames[number].time.is_some();
    assert!((0..18).all(timed) && !(18..22).any(timed) && (22..40).all(timed));
    assert_eq!(output.frames[39].time, Some(time(400, 40, 39)));
    assert!(output.frames[10].state == FrameState::Odd && output.counts.odd_headers == 12);
}

/// Bytes lost or inserted within a frame are reported; all other frames keep their time.
#[test]
fn a_slip_is_reported_and_costs_one_frame() {
    for count in [64, 16] {
        let tracks = tracks(count);
        let whole = stream(tracks, 800, 10);
        let length = whole.frame_length;
        for slip in [1, 4, 8, 1250, 8000, length / 2] {
            for is_insertion in [false, true] {
                let at = 4 * length + length / 3;
                let mut bytes = whole.bytes.clone();
                match is_insertion {
                    true => drop(bytes.splice(at..at, vec![0x5a; slip])),
                    false => drop(bytes.drain(at..at + slip)),
                }
                let (output, deframer) = walk(&bytes);
                let expected = [0, 1, 2, 3, 5, 6, 7, 8, 9].map(|number| time(800, 10, number));
                assert_eq!(times(&output), expected, "{count}: {slip} {is_insertion}");
                let byte = 4 * length as u64;
                let slip = slip as i64 * if is_insertion { 1 } else { -1 };
                assert_eq!(deframer.slips(), [Slip { byte, bytes: slip }]);
                assert_eq!(output.bytes, bytes, "nothing is left out");
            }
        }
    }
}

/// A limited number of sync words is examined for each frame: bytes that are full of them do not slow it down. A slip behind more of them
/// costs one frame more.
#[test]
fn a_slip_is_searched_for_with_limited_work() {
    let tracks = tracks(8);
    let whole = stream(tracks, 400, 10);
    let length = whole.frame_length;
    let sync = |number: usize| (4 * length + 1000 + 200 * number, whole_header(&whole, 0));
    for (false_ones, missing, slip_at) in [(15, 4, 4), (16, 5, 5), (60, 5, 5)] {
        let mut bytes = whole.bytes.clone();
        for (at, header) in (0..false_ones).map(sync) {
            header.emit(&mut bytes[at..]);
            bytes[at + 140..at + 150].fill(0x5a);
        }
        bytes.drain(4 * length + 500..4 * length + 600);
        let (output, deframer) = walk(&bytes);
        let rest = (0..10).filter(|number| *number != missing);
        let expected: Vec<_> = rest.map(|number| time(400, 10, number)).collect();
        assert_eq!(times(&output), expected, "{false_ones}");
        let byte = slip_at * length as u64;
        assert_eq!(deframer.slips(), [Slip { byte, bytes: -100 }]);
        assert_eq!(output.bytes, bytes);
    }
}

/// A search for few tracks does not find a sync word of more, and not a slip of a few bits.
#[test]
fn frames_of_other_tracks_are_none() {
    let whole = stream(tracks(64), 800, 5);
    for count in [8, 16, 32] {
        let length = tracks(count).frame_length();
        let mut deframer = Deframer::new(Settings {
            frame_length: Some(length),
            format: Some(Format::Mark4),
            ..settings()
        });
        deframer.walk(&whole.bytes, true, &mut |_| {});
        assert_eq!(deframer.format(), Some(Format::Raw));
    }
    // The year's digit is 8: a run of 33 ones.
    let found: Vec<usize> = find(&whole.bytes[..whole.frame_length], tracks(64)).collect();
    assert_eq!(found, [0]);
}

/// Datagrams of the usual lengths, at any place in the frames, among them those with headers.
#[test]
fn lost_datagrams_are_fill_at_their_place() {
    for (count, slot) in [
        (64, 1280),
        (64, 8000),
        (32, 1250),
        (16, 4000),
        (8, 1250),
        (64, 1464),
    ] {
        let whole = stream(tracks(count), 800, 12);
        let length = whole.frame_length;
        let first = 4 * length / slot;
        let lost = [
            first,
            first + 1,
            first + 5,
            first + length / slot,
            first + 3 * length / slot,
        ];
        let path = Path::new(slot, lost);
        for partial in [Partial::Whole, Partial::Keep] {
            let output = carry(
                &whole,
                &path,
                Settings {
                    partial,
                    ..settings()
                },
            );
            let expected: Vec<_> = (0..12).map(|number| time(800, 12, number)).collect();
            assert_eq!(times(&output)[..11], expected[..11], "{count} {slot}");
            assert_eq!(output.counts.ambiguous, 0);
            let lost_bytes: Vec<Range<usize>> = lost
                .iter()
                .map(|lost| lost * slot..(lost + 1) * slot)
                .collect();
            for (number, frame) in output.frames.iter().enumerate().take(11) {
                let place = number * length;
                let is_lost = |byte: &usize| lost_bytes.iter().any(|lost| lost.contains(byte));
                let payload = place + whole.header_length..place + length;
                let missing = payload.clone().filter(is_lost).count();
                let is_hit = (place..place + length).any(|byte| is_lost(&byte));
                let ours = &output.bytes[frame.bytes.clone()];
                let header = Header::parse(ours, tracks(count)).unwrap();
                assert!(header.is_intact());
                if !is_hit {
                    assert_eq!(ours, whole.frame(number));
                } else if partial == Partial::Whole {
                    assert!(fill::is_fill(&ours[whole.header_length..]));
                } else {
                    assert_eq!(frame.state, FrameState::Partial);
                    let same = payload.clone().filter(|byte| !is_lost(byte));
                    assert!(
                        same.into_iter()
                            .all(|byte| ours[byte - place] == whole.bytes[byte])
                    );
                    let gaps = output
                        .gaps
                        .iter()
                        .filter(|gap| gap.start == expected[number]);
                    let listed: usize = gaps.flat_map(|gap| &gap.bytes).map(Range::len).sum();
                    assert_eq!(listed, missing, "{count} {slot} frame {number}");
                }
            }
        }
    }
}

//! Kinds of streams: Mark 5B, raw bytes, files, extended headers, frames marked invalid or damaged, senders that restart.

use std::ops::Range;
use std::time::Duration;

use evlbi_core::deframe::{
    Chunk, Deframer, Format, Frame, FrameState, Holes, Partial, Selected, Settings, Slip,
};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Cause;
use evlbi_wire::vdif::{Alma, Extended, Header, Nrao};
use evlbi_wire::{fill, mark5b};
use proptest::prelude::*;

use crate::deframe::stream::{
    Output, Path, Plan, SECOND, Stream, assert_same, carry, carry_into, expected, filled, key,
};

fn walk(bytes: &[u8], settings: Settings) -> (Output, Deframer) {
    let mut deframer = Deframer::new(settings);
    let mut output = Output::default();
    let taken = deframer.walk(bytes, true, &mut |chunk| output.take(chunk));
    assert_eq!(taken, bytes.len());
    (output.finish(&deframer), deframer)
}

/// Returns the settings of a stream of known rate and date.
fn dated(stream: &Stream) -> Settings {
    Settings {
        frame_rate: stream.rate(),
        latest: SECOND + 86_400 * 300,
        ..Settings::default()
    }
}

fn mark5b_stream(frames: u32, first: u32, rate: u32) -> Stream {
    let rate_known = FrameRate::new(rate).unwrap();
    let mut stream = Stream {
        bytes: Vec::new(),
        frame_length: mark5b::FRAME_LEN,
        header_length: mark5b::HEADER_LEN,
        rate,
    };
    for number in 0..frames {
        let index = SECOND * i64::from(rate) + i64::from(first + number);
        let words = [mark5b::SYNC, 0xbead << 16, 0, 0];
        let mut header = mark5b::Header::from_words(words).unwrap();
        let time = FrameTime::from_index(index, rate_known);
        header.set_time(time, rate_known).unwrap();
        let start = stream.bytes.len();
        stream.bytes.resize(start + mark5b::FRAME_LEN, number as u8);
        header.emit(&mut stream.bytes[start..]);
    }
    stream
}

#[test]
fn lost_mark5b_frames_have_their_number_and_time_code() {
    let stream = mark5b_stream(60, 75, 100);
    for slot in [10_016, 5008, 1464] {
        let slots = 10_016 / slot;
        let lost = [0, 20 * slots, 24 * slots + 1, 25 * slots, 26 * slots];
        let path = Path::new(slot, lost);
        let settings = dated(&stream);
        let output = carry(&stream, &path, settings);
        assert_eq!(output.counts.ambiguous, 0);
        assert_eq!(
            output.counts.frames,
            output.counts.whole + output.counts.lost_frames
        );
        assert!((3..10).contains(&output.counts.lost_frames));
        let seen = path.seen(&stream).start.div_ceil(10_016);
        for (number, frame) in output.bytes.chunks(10_016).enumerate() {
            let original = stream.frame(seen + number);
            let lost = output.frames[number].state == FrameState::Lost;
            assert_eq!(frame[..16], original[..16], "frame {number}");
            let payload = if lost {
                pattern(10_000)
            } else {
                original[16..].to_vec()
            };
            assert!(frame[16..] == payload, "frame {number}");
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill::make(&mut bytes);
    bytes
}

#[test]
fn raw_bytes_pass_unchanged_with_the_pattern_in_gaps() {
    let plan = Plan::new(1);
    let mut stream = plan.make();
    for (place, byte) in stream.bytes.iter_mut().enumerate() {
        *byte = ((place * place) >> 7) as u8;
    }
    // Gaps, and empty slots shortly after them.
    let gaps = [20..25, 50..54, 60..64, 75..79, 90..94, 101..105];
    let lost = gaps
        .into_iter()
        .flat_map(|gap| gap.clone().chain([gap.end + 1]));
    let path = Path {
        gap_from: 4,
        max_new: 9,
        ..Path::new(37, lost.chain([3, 4, 10, 40]))
    };
    for format in [Some(Format::Raw), None] {
        let settings = Settings {
            format,
            hold: 2000,
            ..Settings::default()
        };
        let output = carry(&stream, &path, settings);
        let mut bytes = stream.bytes.clone();
        let filled = pattern(bytes.len());
        for slot in &path.lost {
            let place = slot * 37..(slot + 1) * 37;
            bytes[place.clone()].copy_from_slice(&filled[place]);
        }
        assert!(output.bytes == bytes, "{format:?}");
        assert!(output.frames.is_empty());
        assert_eq!(output.counts.unframed_bytes as usize, bytes.len());
        assert_eq!(output.counts.filled_bytes, 35 * 37);
    }
}

#[test]
fn a_packet_serial_number_counts_on_in_lost_frames() {
    let plan = Plan::new(3);
    let mut stream = plan.make();
    let length = stream.frame_length;
    for (number, frame) in stream.bytes.chunks_mut(length).enumerate() {
        let mut header = Header::parse(frame).unwrap();
        let alma = Extended::Alma(Alma {
            polarisation: 1,
            quadrant: 0,
            correlator: 0,
            sync: 0,
            status: 0,
            serial: 0xffff_fff0 + number as u64 / 3,
        });
        header.set_extended(&alma).unwrap();
        header.emit(frame);
    }
    let path = Path::new(length, [1, 4, 50, 51, 52, 53, 54, 100]);
    let settings = Settings {
        frame_rate: stream.rate(),
        ..Settings::default()
    };
    let output = carry(&stream, &path, settings);
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn a_rate_in_the_headers_is_believed() {
    let plan = Plan {
        rate: 1600,
        first_frame: 1595,
        frame_length: 5032,
        cycles: 12,
        ..Plan::new(2)
    };
    let mut stream = plan.make();
    for frame in stream.bytes.chunks_mut(5032) {
        let mut header = Header::parse(frame).unwrap();
        let extended = Extended::Nrao(Nrao {
            complex_rate: 16_000_000,
            ..Nrao::default()
        });
        header.set_extended(&extended).unwrap();
        header.emit(frame);
    }
    let path = Path::new(5032, [9, 10, 11]);
    let output = carry(&stream, &path, Settings::default());
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
    assert_eq!(output.rate, FrameRate::new(1600));
}

#[test]
fn bytes_outside_whole_frames_are_trimmed() {
    let stream = Plan::new(3).make();
    let (output, deframer) = walk(&stream.bytes[50..2000], Settings::default());
    assert!(output.bytes == stream.bytes[96..1920]);
    assert_eq!(output.counts.trimmed_bytes, 46 + 80);
    assert_eq!(deframer.layout().unwrap().frame_length, 96);
    assert_eq!(deframer.format(), Some(Format::Vdif));
}

/// Fill pattern at the end of a stream pads its last datagram, even if it is as long as frames. If more follows, or in a file, it
/// is frames.
#[test]
fn padding_as_long_as_frames_is_trimmed() {
    let stream = Plan::new(3).make();
    let mut padded = stream.bytes.clone();
    padded.resize(stream.bytes.len() + 96 * 5 + 40, 0);
    fill::make(&mut padded[stream.bytes.len()..]);
    let mut deframer = Deframer::new(Settings::default());
    let mut output = Output::default();
    let mut push = |bytes: &mut [u8], ended| {
        deframer.push(bytes, &Holes::new(), ended, &mut |chunk| output.take(chunk))
    };
    let taken = push(&mut padded, false);
    assert_eq!(taken, stream.bytes.len());
    // One more frame than was padded, and the padding of its datagram.
    let end = padded.len();
    let mut rest = padded[taken..].to_vec();
    rest.truncate(96 * 5);
    rest.extend(&stream.bytes[..96]);
    rest.extend(&padded[end - 200..]);
    assert_eq!(push(&mut rest, true), rest.len());
    assert_eq!(output.bytes.len(), stream.bytes.len() + 96 * 6);
    let counts = deframer.counts();
    assert_eq!((counts.odd_headers, counts.trimmed_bytes), (5, 200));
    let (output, _) = walk(&padded, Settings::default());
    assert_eq!(output.counts.odd_headers, 5);
}

#[test]
fn a_file_may_be_one_frame() {
    let stream = Plan::new(3).make();
    let (output, deframer) = walk(&stream.bytes[..96], Settings::default());
    assert_eq!(deframer.format(), Some(Format::Vdif));
    assert_eq!(output.counts.whole, 1);
    let (output, _) = walk(&stream.bytes[..192], Settings::default());
    assert_eq!(output.counts.whole, 2);
    let (output, deframer) = walk(&stream.bytes[..95], Settings::default());
    assert_eq!(deframer.format(), Some(Format::Raw));
    assert_eq!(output.bytes.len(), 95);
    let told = Settings {
        frame_length: Some(96),
        ..Settings::default()
    };
    for length in [120, 150] {
        let (output, _) = walk(&stream.bytes[..length], told.clone());
        assert_eq!(output.bytes, stream.bytes[..96]);
    }
}

#[test]
fn frames_are_found_if_three_of_them_fit() {
    let stream = Plan::new(1).make();
    for (hold, format) in [(3 * 96, Format::Vdif), (3 * 96 - 1, Format::Raw)] {
        let settings = Settings {
            hold,
            ..Settings::default()
        };
        let (output, deframer) = walk(&stream.bytes, settings);
        assert_eq!(deframer.format(), Some(format));
        assert!(output.bytes == stream.bytes);
    }
    // Of the third one the header suffices.
    for (length, format) in [(223, None), (224, Some(Format::Vdif))] {
        let mut deframer = Deframer::new(Settings::default());
        deframer.walk(&stream.bytes[..length], false, &mut |_| ());
        assert_eq!(deframer.format(), format);
    }
}

#[test]
fn what_looks_like_frames_for_a_while_is_none() {
    let stream = Plan::new(1).make();
    let mut two = stream.bytes.clone();
    two[2 * 96..].fill(0xff);
    // The time of a thread increases with each frame.
    let twice: Vec<u8> = (0..120)
        .flat_map(|n| stream.frame(n / 2))
        .copied()
        .collect();
    // A station's time does, too.
    let mut stations = stream.bytes.clone();
    for (number, frame) in stations.chunks_mut(96).enumerate() {
        let mut header = Header::parse(frame).unwrap();
        header.set_key(key(number as u16, 0));
        header.emit(frame);
    }
    // VDIF has versions 0 and 1.
    let mut version = stream.bytes.clone();
    version.chunks_mut(96).for_each(|frame| frame[11] |= 2 << 5);
    let any = Settings::default();
    let mark5b = Settings {
        format: Some(Format::Mark5b),
        ..any.clone()
    };
    let same = stream.bytes.clone();
    for (bytes, settings) in [
        (two, &any),
        (twice, &any),
        (stations, &any),
        (version, &any),
        (same, &mark5b),
    ] {
        let (output, deframer) = walk(&bytes, settings.clone());
        assert_eq!(deframer.format(), Some(Format::Raw));
        assert!(output.bytes == bytes);
    }
}

#[test]
fn damaged_headers_are_passed_on_as_they_are() {
    let mut stream = Plan::new(3).make();
    let original = stream.clone();
    for number in [0, 1, 40, 41, 90, 91, 92, 93, 94, 95, 96] {
        stream.bytes[number * 96 + 8] ^= 4;
    }
    let output = carry(&stream, &Path::new(96, []), Settings::default());
    assert!(output.bytes == stream.bytes);
    assert_eq!(output.counts.odd_headers, 11);
    assert_eq!(output.counts.whole, 180 - 11);
    assert_eq!(output.counts.ambiguous, 0);
    // Lost frames next to them are still identified.
    let path = Path::new(96, [39, 42, 97, 98, 99]);
    let settings = Settings {
        frame_rate: stream.rate(),
        ..Settings::default()
    };
    let output = carry(&stream, &path, settings);
    for slot in path.lost {
        let header = Header::parse(&output.bytes[slot * 96..]).unwrap();
        assert_eq!(header.time(), original.header(slot).time());
        assert_eq!(header.key(), original.header(slot).key());
    }
}

/// Headers that are lost from the start on hide neither the frames nor their times.
#[test]
fn frames_are_found_between_damaged_headers() {
    let patterns: [fn(usize) -> bool; 4] = [
        |number| number % 2 == 1,
        |number| number % 3 == 2,
        |number| number < 3 || number % 4 > 0,
        |number| ![0, 4, 5, 9].contains(&(number % 10)),
    ];
    let streams = [Plan::new(1).make(), mark5b_stream(60, 75, 100)];
    for (stream, is_damaged) in streams
        .iter()
        .flat_map(|it| patterns.map(|damaged| (it, damaged)))
    {
        let mut bytes = stream.bytes.clone();
        let frames = bytes.chunks_exact_mut(stream.frame_length).enumerate();
        let damaged = frames.filter(|(number, _)| is_damaged(*number));
        damaged.for_each(|(_, frame)| fill::make(&mut frame[..stream.header_length]));
        let settings = dated(stream);
        let (output, deframer) = walk(&bytes, settings.clone());
        assert_ne!(deframer.format(), Some(Format::Raw));
        assert!(output.bytes == bytes);
        let odd = (0..stream.frames()).filter(|number| is_damaged(*number));
        assert_eq!(output.counts.odd_headers, odd.count() as u64);
        let rate = stream.rate().unwrap();
        let index = |frame: &Frame| frame.time.map(|time| time.index(rate));
        let first = index(&output.frames[0]).unwrap();
        // Up to eight in a row.
        for (number, frame) in output.frames.iter().enumerate().take(20) {
            assert_eq!(index(frame), Some(first + number as i64), "{number}");
        }
        // Also behind a part of a frame.
        let (output, _) = walk(&bytes[40..], settings);
        assert_eq!(output.counts.frames, stream.frames() as u64 - 1);
        assert!(output.bytes == bytes[stream.frame_length..]);
    }
}

/// A long run of damaged headers does not restart the cadence if the frames after it are at the expected offsets: a frame lost
/// within the run gets the time that follows from the frames before it, not from the jump after it.
#[test]
fn frames_at_the_same_offset_continue_the_cadence() {
    let mut stream = Plan::new(3).make();
    let later = Plan {
        first_frame: 7777,
        ..Plan::new(3)
    };
    let original = stream.clone();
    stream.bytes.truncate(81 * 96);
    stream.bytes.extend(later.make().bytes);
    for number in 40..81 {
        stream.bytes[number * 96 + 8] ^= 4;
    }
    let settings = Settings {
        frame_rate: stream.rate(),
        ..Settings::default()
    };
    let output = carry(&stream, &Path::new(96, [70]), settings);
    assert_eq!(output.counts.odd_headers, 40);
    let lost = Header::parse(&output.bytes[70 * 96..]).unwrap();
    assert_eq!(lost.time(), original.header(70).time());
    assert_eq!(lost.key(), original.header(70).key());
}

#[test]
fn frames_that_arrive_invalid_stay_unchanged_and_are_listed() {
    let mut stream = Plan::new(2).make();
    let truth = stream.clone();
    for number in [30, 32, 34, 50, 60] {
        let mut header = stream.header(number);
        header.set_invalid(true);
        if number >= 50 {
            // Some recorders leave wrong times in them.
            let time = FrameTime {
                second: SECOND + 1000,
                frame: 0,
            };
            header.set_time(time).unwrap();
        }
        header.emit(&mut stream.bytes[number * 96..]);
    }
    let path = Path::new(96, [52]);
    let settings = Settings {
        frame_rate: stream.rate(),
        ..Settings::default()
    };
    let output = carry(&stream, &path, settings);
    assert_eq!(output.counts.source_invalid, 5);
    assert_eq!(output.counts.odd_headers, 0);
    let ours = Header::parse(&output.bytes[52 * 96..]).unwrap();
    assert_eq!(ours.time(), truth.header(52).time());
    let mut others = output.bytes.clone();
    others[52 * 96..53 * 96].copy_from_slice(stream.frame(52));
    assert!(others == stream.bytes);
    let listed: Vec<_> = output
        .gaps
        .iter()
        .map(|gap| (gap.cause, gap.frames))
        .collect();
    use Cause::{Lost, Source};
    assert_eq!(listed, [(Source, 3), (Source, 1), (Lost, 1), (Source, 1)]);
}

#[test]
fn the_missing_part_of_a_kept_frame_is_listed() {
    let stream = Plan::new(1).make();
    let path = Path::new(32, [3 * 20 + 1, 3 * 21 + 1, 3 * 30, 3 * 40, 3 * 40 + 1]);
    let settings = Settings {
        partial: Partial::Keep,
        ..Settings::default()
    };
    let output = carry(&stream, &path, settings);
    let listed: Vec<_> = output
        .gaps
        .iter()
        .map(|gap| (gap.first_byte.unwrap() / 96, gap.frames, gap.bytes.clone()))
        .collect();
    // Only the header of frame 30 was lost: it was generated, and nothing of the payload is missing.
    assert_eq!(listed, [(20, 2, Some(0..32)), (40, 1, Some(0..32))]);
    assert_eq!(output.counts.partial, 4);
    let (bytes, _) = expected(&stream, &path, Partial::Keep);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn a_sender_may_restart_with_other_frames() {
    let first = Plan::new(3).make();
    let second = Plan {
        frame_length: 40,
        first_frame: 500,
        ..Plan::new(2)
    };
    let second = second.make();
    let mut deframer = Deframer::new(Settings::default());
    let mut output = Output::default();
    let path = Path::new(96, [40, 41]);
    carry_into(&mut deframer, &first, &path, &mut output);
    let (mut truth, _) = expected(&first, &path, Partial::Whole);
    deframer.restart(0);
    // The second sender is received from the middle of a frame on.
    let path = Path::new(8, [0, 300, 301]);
    carry_into(&mut deframer, &second, &path, &mut output);
    truth.extend(expected(&second, &path, Partial::Whole).0);
    assert!(output.bytes == truth);
    assert_eq!(deframer.counts().trimmed_bytes, 32);
    assert_eq!(deframer.layout().unwrap().frame_length, 40);
}

/// A sender that restarts leaves a gap as long as the times of its frames show, which is filled or, beyond the limit, listed.
#[test]
fn the_frames_times_show_the_gap_of_a_restart() {
    let stream = Plan {
        cycles: 4000,
        ..Plan::new(3)
    };
    let stream = stream.make();
    let path = Path::new(96, []);
    let cut = |frames: Range<usize>| {
        let bytes = stream.bytes[frames.start * 96..frames.end * 96].to_vec();
        Stream {
            bytes,
            ..stream.clone()
        }
    };
    // It stops and restarts within a cycle of threads.
    let [before, after] = [cut(0..1001), cut(2000..3000)];
    for fill in [Duration::MAX, Duration::from_millis(100), Duration::ZERO] {
        let mut deframer = Deframer::new(Settings {
            fill,
            frame_rate: stream.rate(),
            ..Settings::default()
        });
        let mut output = Output::default();
        carry_into(&mut deframer, &before, &path, &mut output);
        deframer.restart(77);
        carry_into(&mut deframer, &after, &path, &mut output);
        let counts = deframer.counts();
        let is_filled = fill == Duration::MAX;
        let [filled, listed] = if is_filled { [999, 0] } else { [0, 999] };
        assert_eq!(
            [counts.lost_frames, counts.unfilled_frames],
            [filled, listed]
        );
        assert_eq!(output.bytes.len() as u64, 96 * (2001 + filled));
        let missing: u64 = deframer.gaps().iter().map(|gap| gap.frames).sum();
        assert_eq!((deframer.gaps().len(), missing), (3, 999));
        assert!(output.bytes[output.bytes.len() - after.bytes.len()..] == after.bytes);
        assert_eq!(counts.ambiguous, 0);
    }
    // A restart at an earlier time leaves no gap.
    let mut deframer = Deframer::new(Settings::default());
    let mut output = Output::default();
    carry_into(&mut deframer, &after, &path, &mut output);
    deframer.restart(77);
    carry_into(&mut deframer, &before, &path, &mut output);
    assert_eq!(output.bytes.len(), 96 * 2001);
}

#[test]
fn elapsed_time_shows_the_gap_of_a_raw_stream() {
    let mut deframer = Deframer::new(Settings {
        format: Some(Format::Raw),
        ..Settings::default()
    });
    let mut bytes = Vec::new();
    let mut sink = |chunk: Chunk<'_>| bytes.extend_from_slice(chunk.bytes);
    deframer.push(&mut [1; 1000], &Holes::new(), true, &mut sink);
    deframer.restart(3 << 20);
    let (mut rest, mut taken, mut times) = ([2; 1000], 0, 0);
    while taken < 1000 {
        taken += deframer.push(&mut rest[taken..], &Holes::new(), true, &mut sink);
        times += 1;
    }
    assert_eq!(times, 3, "piece by piece");
    assert_eq!(bytes.len(), 2000 + (3 << 20));
    assert!(fill::is_fill(&bytes[1000..][..3 << 20]));
    assert!(bytes.ends_with(&[2; 1000]));
}

#[test]
fn frames_at_a_new_offset_are_found() {
    let stream = Plan {
        cycles: 400,
        ..Plan::new(3)
    };
    let mut stream = stream.make();
    stream.bytes.splice(30_000..30_000, [7; 13]);
    let path = Path {
        max_new: 3,
        ..Path::new(96, [])
    };
    let settings = Settings {
        hold: 8000,
        ..Settings::default()
    };
    let output = carry(&stream, &path, settings.clone());
    // All but the frame that had started at the end.
    assert!(output.bytes == stream.bytes[..stream.bytes.len()]);
    assert_eq!(output.counts.odd_headers, 0);
    assert_eq!(output.counts.unframed_bytes, 96 + 13);
    // A lost frame gets the right header on both sides.
    let path = Path::new(96, [100, 1000]);
    let output = carry(&stream, &path, settings);
    assert_eq!(output.counts.lost_frames, 3);
    assert_eq!(output.bytes.len(), stream.bytes.len());
    assert!(output.bytes[1001 * 96..][13..] == stream.bytes[1001 * 96..][13..]);
}

/// Bytes lost or inserted within a frame are reported; all other frames keep their time.
#[test]
fn a_slip_is_reported_and_costs_one_frame() {
    let streams = [
        Plan::new(1).make(),
        Plan::new(3).make(),
        mark5b_stream(60, 75, 100),
    ];
    for whole in streams {
        let length = whole.frame_length;
        let settings = dated(&whole);
        let (before, _) = walk(&whole.bytes, settings.clone());
        for (slip, is_insertion) in [1, 4, 8, 17, length / 2, length - 1]
            .into_iter()
            .flat_map(|slip| [(slip, false), (slip, true)])
        {
            let at = 40 * length + length / 3;
            let mut bytes = whole.bytes.clone();
            match is_insertion {
                true => drop(bytes.splice(at..at, vec![0x5a; slip])),
                false => drop(bytes.drain(at..at + slip)),
            }
            let (output, deframer) = walk(&bytes, settings.clone());
            let times = |output: &Output| -> Vec<_> {
                output.frames.iter().map(|it| (it.key, it.time)).collect()
            };
            let mut expected = times(&before);
            // A cut across the end of a frame hits the next header, too.
            let hit = 1 + usize::from(!is_insertion && slip > length - length / 3);
            expected.drain(40..40 + hit);
            assert_eq!(times(&output), expected, "{length}: {slip} {is_insertion}");
            assert_eq!(output.counts.odd_headers, 0);
            let byte = 40 * length as u64;
            let bytes_of = slip as i64 * if is_insertion { 1 } else { -1 };
            let found = [Slip {
                byte,
                bytes: bytes_of,
            }];
            assert_eq!(deframer.slips(), found, "{length}: {slip} {is_insertion}");
            assert!(output.bytes == bytes, "nothing is left out");
        }
    }
}

/// Also of several in the frames of one time, of which each belongs to another thread.
#[test]
fn slips_have_their_own_sizes() {
    let whole = Plan::new(4).make();
    let settings = Settings {
        frame_rate: whole.rate(),
        ..Settings::default()
    };
    let mut bytes = whole.bytes.clone();
    for (frame, slip) in [(88, 30), (82, 20), (80, 10)] {
        let at = frame * whole.frame_length + 50;
        bytes.drain(at..at + slip);
    }
    let (output, deframer) = walk(&bytes, settings);
    let bytes: Vec<i64> = deframer.slips().iter().map(|it| it.bytes).collect();
    assert_eq!(bytes, [-10, -20, -30]);
    assert_eq!(output.counts.whole, 240 - 3);
    assert_eq!((output.counts.odd_headers, output.counts.ambiguous), (0, 0));
}

/// Its size is that by which the times are off, however many frames were taken in between.
#[test]
fn a_slip_of_more_than_two_frames_is_found() {
    for whole in [Plan::new(1).make(), mark5b_stream(60, 75, 100)] {
        let length = whole.frame_length;
        let settings = dated(&whole);
        let (before, _) = walk(&whole.bytes, settings.clone());
        for slip in [2 * length + 17, 4 * length + 3] {
            let mut bytes = whole.bytes.clone();
            let at = 20 * length + length / 3;
            bytes.splice(at..at, vec![0x5a; slip]);
            let (output, deframer) = walk(&bytes, settings.clone());
            let bytes: Vec<i64> = deframer.slips().iter().map(|it| it.bytes).collect();
            assert_eq!(bytes, [slip as i64]);
            let [ours, theirs] = [&output, &before].map(|it| it.frames.iter().rev().take(39));
            assert!(
                ours.zip(theirs)
                    .all(|(ours, theirs)| ours.time == theirs.time)
            );
        }
    }
}

#[test]
fn a_file_that_is_walked_in_blocks_gives_the_same_frames() {
    let stream = Plan::new(4).make();
    let (whole, _) = walk(&stream.bytes, Settings::default());
    let output = in_blocks(&stream, 1000, Settings::default());
    assert_eq!(output.frames, whole.frames);
    assert_eq!(output.bytes, whole.bytes);
    assert_eq!(output.rate, stream.rate());
}

/// Walks a stream in blocks of this length.
fn in_blocks(stream: &Stream, length: usize, settings: Settings) -> Output {
    let mut deframer = Deframer::new(settings);
    let mut output = Output::default();
    let (mut from, mut to) = (0, 0);
    while from < stream.bytes.len() {
        to = (to + length).min(stream.bytes.len());
        let ended = to == stream.bytes.len();
        from += deframer.walk(&stream.bytes[from..to], ended, &mut |chunk| {
            output.take(chunk);
        });
    }
    output.finish(&deframer)
}

proptest! {
    /// Fill in a stream covers headers, and ends anywhere: each piece shows what belongs to its frames.
    #[test]
    fn fill_is_the_same_in_whatever_pieces_it_arrives(
        runs in prop::collection::vec((2_000usize..10_000, 8usize..300), 1..6),
        cuts in prop::collection::vec((0usize..40, 84usize..97), 1..6),
        slot in 8usize..400,
        max_new in 1usize..4,
        thread in prop::option::of(0u16..4),
        seed: u64,
    ) {
        let mut stream = Plan::new(4).make();
        let cuts = cuts.into_iter().map(|(frame, byte)| (2_016 + frame * 96 + byte, 12));
        for (start, length) in runs.into_iter().chain(cuts) {
            fill::make_from(&mut stream.bytes[start..start + length], start);
        }
        let selected = match thread {
            Some(thread) => Selected::of(key(7, thread)),
            None => Selected::default(),
        };
        let settings = Settings { selected, hold: 8_000, ..Settings::default() };
        let path = Path { max_new, seed, ..Path::new(slot, []) };
        let in_ring = carry(&stream, &path, settings.clone());
        for output in [in_ring, in_blocks(&stream, slot * max_new, settings)] {
            prop_assert!(thread.is_some() || output.bytes == stream.bytes);
            prop_assert!(output.frames.len() > 40);
            for (frame, shown) in output.frames.iter().zip(&output.filled) {
                let is_it = |place: &usize| stream.frame(*place) == &output.bytes[frame.bytes.clone()];
                let place = (0..stream.frames()).find(is_it).unwrap() * 96;
                prop_assert_eq!(*shown, filled(&stream.bytes, place..place + 96));
            }
        }
    }
}

#[test]
fn a_long_span_is_output_in_pieces() {
    let stream = Plan {
        cycles: 100_000,
        rate: 1000,
        ..Plan::new(1)
    };
    let stream = stream.make();
    let (output, _) = walk(&stream.bytes, Settings::default());
    assert!(output.bytes == stream.bytes);
    assert_eq!(output.longest_chunk, 96 << 16);
    assert_eq!(output.counts.whole, 100_000);
}

#[test]
fn nothing_is_nothing() {
    let mut deframer = Deframer::new(Settings::default());
    let mut nothing = |_: Chunk<'_>| unreachable!();
    for ended in [false, true, false] {
        assert_eq!(
            deframer.push(&mut [], &Holes::new(), ended, &mut nothing),
            0
        );
    }
    assert_eq!(deframer.format(), None);
}

//! Which frames are late, and that no station stops the others.

use super::*;
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::{self, Header, StationId};

const SAMPLE_RATE: u64 = 16_000;
/// For frames of 800 bytes, 3200 samples each.
const FRAMES_A_SECOND: i64 = 5;
const WAIT: f64 = 5.0;
/// Midnight.
const START: i64 = 1_704_067_200;

fn push(feed: &Feed, number: i64) {
    let shape = vdif::Shape {
        frame_length: 832,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let station = StationId::from_code(*b"Ef");
    let key = StreamKey { station, thread: 0 };
    let rate = FrameRate::new(FRAMES_A_SECOND as u32).unwrap();
    let time = FrameTime::from_index(START * FRAMES_A_SECOND + number, rate);
    let mut header = Header::new(shape, key);
    header.set_time(time).unwrap();
    let mut bytes = [0x55; 832];
    header.emit(&mut bytes);
    let frame = Arrived {
        layout: deframe::Layout {
            format: Format::Vdif,
            frame_length: 832,
            header_length: 32,
            version: header.version(),
            frame_rate: None,
        },
        key,
        time,
        invalid: false,
        is_odd: false,
        begin: 0,
        header: &bytes[..32],
        samples: Recorded::from(&bytes[32..]),
    };
    feed.put(std::iter::once(frame));
}

/// Creates streams that start with these frames.
fn feeds<const N: usize>(first: [i64; N]) -> [Arc<Feed>; N] {
    let clocks = Arc::new(Mutex::new(Clocks::new(N, WAIT)));
    let (rate, epoch) = (Some(SAMPLE_RATE), Arc::new(OnceLock::from(START)));
    let mut station = 0;
    first.map(|first| {
        let (all, clock) = (Selection::default(), Clock::real());
        let feed = Feed::new(&all, rate, Trust::Exact, &epoch, &clocks, station, &clock);
        station += 1;
        push(&feed, first);
        feed.state().learn(&feed);
        feed
    })
}

/// While the run is at its start, data from before it is not late; later it is, and counted.
#[test]
fn frames_from_before_the_run_are_late_once_it_has_started() {
    let [feed] = feeds([20]);
    let sample = |number: i64| Some(number * SAMPLE_RATE as i64 / FRAMES_A_SECOND);
    feed.state().begins = sample(20);
    for (needed, late) in [(20, 0), (21, 1), (30, 2)] {
        feed.state().needed = sample(needed);
        push(&feed, 18);
        assert_eq!(feed.state().late(), late);
    }
}

/// Whatever the length of an integration, and however little other data may wait.
#[test]
fn data_that_the_correlator_waits_for_find_room() {
    let [feed] = feeds([0]);
    // An integration of 160 s.
    let integration = 160;
    feed.clocks().want(integration as f64);
    let most = integration + WAIT as i64 + HOLD as i64;
    for number in 1..=most * FRAMES_A_SECOND {
        assert!(!feed.state().is_full(&feed.clocks()), "{number}");
        push(&feed, number);
    }
    assert!(feed.state().is_full(&feed.clocks()));
    // The correlator took that, and waits for the next one.
    feed.clocks().want(2.0 * integration as f64);
    assert!(!feed.state().is_full(&feed.clocks()));
}

/// A station that sends and is an hour behind does not stop the correlator, whichever station it is. The room for the other is enough
/// to continue, however short a period or a frame is, and however the stations' delays differ.
#[test]
fn a_station_that_is_behind_stops_nothing() {
    let hour = 3600 * FRAMES_A_SECOND;
    for (behind, delay) in [(0, 0), (1, 0), (0, 2), (0, -2)] {
        let mut first = [hour - 3 * FRAMES_A_SECOND; 2];
        first[behind] = 0;
        let feeds = feeds(first);
        feeds.iter().for_each(|feed| feed.state().keep_all());
        let ending = Arc::new(Ending::new(Run::silent()));
        let stations = feeds.each_ref().map(|feed| LiveStation {
            feed: Arc::clone(feed),
            layout: *feed.state().shape.as_ref().unwrap().layout(),
            ending: Arc::clone(&ending),
        });
        let mut next = first;
        let mut send = |station: usize| {
            next[station] += 1;
            push(&feeds[station], next[station]);
        };
        for period in 1..=50 {
            // A hundredth of a second later.
            let end = 3600 * SAMPLE_RATE as i64 + period * SAMPLE_RATE as i64 / 100;
            for (at, station) in stations.iter().enumerate() {
                let later = if at == behind { 0 } else { delay };
                let end = end + later * SAMPLE_RATE as i64;
                let range = end - SAMPLE_RATE as i64 / 100..end;
                while station.has_come(&range).unwrap().is_none() {
                    send(behind);
                    let ahead = &feeds[1 - behind];
                    let is_full = ahead.state().is_full(&ahead.clocks());
                    let is_waited_for =
                        || station.has_come(&range).is_ok_and(|come| come.is_none());
                    assert!(!is_full || !is_waited_for(), "{behind}, {delay}, {period}");
                    if !is_full {
                        send(1 - behind);
                    }
                }
            }
        }
    }
}

/// The start of the run forgets the times so far, but not that nothing gives a station's year.
#[test]
fn a_station_of_another_year_has_a_remedy_in_the_run() {
    let days = 1000 * 86_400 * FRAMES_A_SECOND;
    let first = [days, days, 0];
    let feeds = feeds(first);
    let shape = |feed: &Feed| feed.state().shape.clone().unwrap();
    let mut undated = shape(&feeds[2]);
    undated.frames.format = Format::Mark5b;
    feeds[2].state().shape = Some(undated);
    let seconds = first.map(|number| number as f64 / FRAMES_A_SECOND as f64);
    let times = seconds.map(|time| Some((time, time)));
    feeds[0].clocks().begin(&times, seconds[0], 0.0);
    for (feed, number) in feeds.iter().zip(first) {
        push(feed, number + 1);
    }
    let why = feeds[2].why_nothing();
    assert!(why.contains("so give it with #year=YEAR"), "{why}");
    let why = feeds[0].why_nothing();
    assert!(!why.contains("year"), "{why}");
}

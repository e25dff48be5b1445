//! Shared support for tests of streams in virtual time and of recordings.

mod in_virtual_time;

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evlbi_net::run::{Note, Notes};
use evlbi_net::transport::Url;
use evlbi_stream::selection::Selection;
use evlbi_stream::send::{Pace, SendOptions, Sending, send};
use evlbi_stream::sky::{self, SkyOptions};
use evlbi_testkit::{Room, until};
use parking_lot::Mutex;

use super::*;

/// One second of two stations that receive the same noise.
const PLAN: &str = r#"
start = "2026-01-01T00:00:00Z"
duration = 1
sample_rate = 4e6
correlation = 0.3
payload = 8000
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
"#;

fn options() -> CorrelateOptions {
    CorrelateOptions {
        channels: Some(64),
        threads: Some(1),
        ..CorrelateOptions::default()
    }
}

fn recordings(room: &Room) -> Recordings {
    let sky = SkyOptions {
        plan: room.write("plan.toml", PLAN).into(),
        out: room.folder().join("sky"),
        force: false,
    };
    sky::simulate(&sky, &Run::silent()).unwrap();
    let paths = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
    Recordings::open(&paths, &options(), &Run::silent()).unwrap()
}

/// Counts dumps, and stops the run at one of them.
struct Stopping<'r> {
    run: &'r Run,
    at: usize,
    dumps: usize,
    blocks: i64,
}

impl Along for Stopping<'_> {
    fn dump(&mut self, _begins: f64, sums: &Sums) -> Result<(), Cause> {
        self.dumps += 1;
        self.blocks += sums.blocks as i64;
        if self.dumps == self.at {
            self.run.stop();
        }
        Ok(())
    }
}

/// A stopped correlation keeps its dumps until then, and does not affect another one of the same recordings.
#[test]
fn correlations_of_one_process_are_apart() {
    let room = Room::new();
    let recordings = recordings(&room);
    let [whole, part] = std::thread::scope(|scope| {
        let recordings = &recordings;
        let correlations = [usize::MAX, 3].map(|at| {
            scope.spawn(move || {
                let run = Run::silent();
                let mut stopping = Stopping {
                    run: &run,
                    at,
                    dumps: 0,
                    blocks: 0,
                };
                let found = correlate(recordings, &options(), &run, &mut stopping).unwrap();
                assert_eq!(found.series.added, stopping.dumps);
                let blocks = stopping.blocks * found.setup.block_parts();
                assert!(blocks.abs_diff(found.parts()) <= 128, "{blocks}");
                found
            })
        });
        correlations.map(|correlation| correlation.join().unwrap())
    });
    assert!(!whole.interrupted && part.interrupted);
    assert!((3..whole.series.added).contains(&part.series.added));
    let fringes = whole.fringes();
    assert!(fringes[0].snr > 100.0, "{}", fringes[0].snr);
}

fn url(text: &str) -> Url {
    text.parse().unwrap()
}

/// The addresses of a run. A note about a connection without frames panics.
#[derive(Default)]
struct Places(Mutex<Vec<String>>);

impl Notes for Places {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Listens(place) => self.0.lock().push(place.to_string()),
            Note::Said(said) => assert!(!said.to_string().contains("without frames"), "{said}"),
            _ => {}
        }
    }
}

/// All of each stream.
fn whole(urls: &[Url]) -> Vec<(Url, Selection)> {
    let all = urls.iter().cloned();
    all.map(|url| (url, Selection::default())).collect()
}

/// Starts to correlate the streams that arrive at these URLs; returns the addresses on which it listens, too.
fn begin(urls: &[Url], streams: &StreamOptions, run: &Run) -> (Correlating, Vec<String>) {
    let places = Arc::new(Places::default());
    let (run, show) = (
        run.noted_by(places.clone()),
        Box::new(|_: &Integration| Ok(())),
    );
    let begun = correlate_streams(&whole(urls), &options(), streams, &run, show).unwrap();
    let places = places.0.lock().clone();
    (begun, places)
}

/// A live correlation that is dropped frees its ports; another one continues.
#[test]
fn live_correlations_of_one_process_are_apart() {
    let anywhere = ["udp://127.0.0.1:0", "udp://[::1]:0"].map(url);
    let run = Run::silent();
    let (other, others) = begin(&anywhere, &StreamOptions::default(), &run);
    let mut urls = anywhere.clone();
    for _ in 0..3 {
        let (correlating, addresses) = begin(&urls, &StreamOptions::default(), &run);
        drop(correlating);
        for address in &addresses {
            UdpSocket::bind(address).unwrap();
        }
        urls = [0, 1].map(|number| url(&format!("udp://{}", addresses[number])));
    }
    for address in &others {
        UdpSocket::bind(address).unwrap_err();
    }
    run.stop();
    let error = other.join().err().unwrap().to_string();
    assert!(error.ends_with("ended before a frame arrived"), "{error}");
}

/// A receiving thread that panics takes all others of a correlation with it.
#[test]
fn a_receiver_that_panics_leaves_no_thread() {
    let anywhere = [(); 2].map(|()| url("tcp://127.0.0.1:0"));
    let (correlating, places) = begin(&anywhere, &StreamOptions::default(), &Run::silent());
    let watch = correlating.watch();
    let mut connection = TcpStream::connect(&places[0]).unwrap();
    connection.write_all(b"no frame").unwrap();
    drop(connection);
    until("the thread that looks at the streams has ended", || {
        Arc::strong_count(&watch) == 2
    });
    drop(correlating);
}

/// Byte streams are correlated on arrival, and nothing of them is lost.
#[test]
fn streams_over_tcp_are_correlated() {
    let room = Room::new();
    drop(recordings(&room));
    let streams = StreamOptions {
        wait: Duration::from_secs(60),
        ..StreamOptions::default()
    };
    let urls = [(); 2].map(|()| url("tcp://127.0.0.1:0"));
    let (correlating, places) = begin(&urls, &streams, &Run::silent());
    let stations = ["Ef", "Jb"].iter().zip(places);
    let sending = stations.map(|(name, at)| {
        let options = SendOptions {
            source: room.path(&format!("sky/{name}.vdif")),
            to: url(&format!("tcp://{at}")),
            pace: Pace::Max,
            ..SendOptions::default()
        };
        send(&options, &Run::silent()).unwrap()
    });
    let _sending: Vec<Sending> = sending.collect();
    let fringes = correlating.join().unwrap().fringes();
    let (snr, weight) = (fringes[0].snr, fringes[0].weight);
    // A frame is 0.008 of a station. Noise sometimes contains the fill pattern.
    assert!(snr > 100.0 && weight > 0.999, "{snr} {weight}");
}

/// A refused correlation leaves nothing behind.
#[test]
fn streams_that_cannot_be_received_are_refused_at_once() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let urls = [url("udp://127.0.0.1:0"), url(&format!("udp://{taken}"))];
    let streams = StreamOptions::default();
    let begin = |options: &CorrelateOptions| {
        let run = Run::silent();
        let begun = correlate_streams(&whole(&urls), options, &streams, &run, Box::new(|_| Ok(())));
        begun.err().unwrap().to_string()
    };
    let of_recordings = CorrelateOptions {
        visibilities: Some(Path::new("out").into()),
        ..options()
    };
    assert!(begin(&of_recordings).contains("cannot write visibilities"));
    assert!(begin(&options()).contains(&taken.to_string()));
}

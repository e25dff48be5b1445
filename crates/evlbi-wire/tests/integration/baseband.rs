//! Compares this crate with `baseband`, field by field: on the sample recordings of `baseband`, and on headers that this crate
//! wrote.
//!
//! The answers of `baseband` about our headers are committed in `tests/oracles`, so that comparison does not need it. The Python
//! that has `baseband` is `EVLBI_PYTHON`, or the virtual environment in `target/venv`. Without either, the tests skip its sample
//! recordings and do not check whether it still gives the same answers.

use std::path::{Path, PathBuf};

use evlbi_testkit::oracle;
use evlbi_testkit::python::python;
use evlbi_testkit::{Room, command};
use evlbi_wire::time::{Epoch, FrameRate, FrameTime};
use evlbi_wire::vdif::{Alma, Extended, Header, Merged, Nict, Nrao, Shape, StationId, StreamKey};
use evlbi_wire::{mark5b, vdif};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Frames per second of the files that the tests write; the script has the same number.
const RATE: u32 = 1000;
/// Time within 500 days of every Mark 5B time, as in the script: 2014-06-13.
const MARK5B_REFERENCE: i64 = 1_402_617_600;

type Fields = Map<String, Value>;

#[derive(Deserialize)]
struct ReadFile {
    file: PathBuf,
    headers: Vec<Fields>,
}

#[test]
fn sample_recordings_read_the_same() {
    let Some(files) = baseband_reads(&["samples".as_ref()]) else {
        return;
    };
    assert_eq!(files.len(), 7);
    for ReadFile { file, headers } in files {
        let bytes = std::fs::read(&file).unwrap();
        compare(&file, &bytes, &headers);
    }
}

/// `baseband` read our headers like we do when its answers were committed.
#[test]
fn what_we_wrote_reads_the_same() {
    for (name, bytes) in written() {
        let answer = oracle::committed(&answer(name));
        assert_eq!(answer["file"], oracle::hash(&bytes), "{name} is another");
        compare(Path::new(name), &bytes, &unfold(&answer["headers"]));
    }
}

#[test]
fn baseband_still_reads_the_same() {
    let room = Room::new();
    for (name, bytes) in written() {
        let file = PathBuf::from(room.write(name, &bytes));
        let Some(files) = baseband_reads(&[&file]) else {
            return;
        };
        assert_eq!(files.len(), 1);
        let headers = fold(&files[0].headers);
        oracle::compare(
            &answer(name),
            &json!({ "file": oracle::hash(&bytes), "headers": headers }),
        );
    }
}

/// Our files and their names.
fn written() -> [(&'static str, Vec<u8>); 2] {
    [("written.vdif", vdif()), ("written.m5b", mark_5b())]
}

/// Path of the answer of `baseband` about a file.
fn answer(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles");
    Path::new(folder).join(name).with_added_extension("json")
}

/// Headers as tables: consecutive headers with the same fields share one, which names the fields once.
fn fold(headers: &[Fields]) -> Value {
    let tables = headers.chunk_by(|a, b| a.keys().eq(b.keys()));
    let table = |headers: &[Fields]| {
        let names: Vec<&String> = headers[0].keys().collect();
        let rows = headers
            .iter()
            .map(|header| header.values().collect::<Vec<_>>());
        json!({ "fields": names, "rows": rows.collect::<Vec<_>>() })
    };
    tables.map(table).collect()
}

fn unfold(tables: &Value) -> Vec<Fields> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let rows = |table: &Value| {
        let names = list(&table["fields"]);
        let header = move |row: Value| {
            let names = names.iter().map(|name| name.as_str().unwrap().to_owned());
            names.zip(list(&row)).collect()
        };
        list(&table["rows"]).into_iter().map(header)
    };
    list(tables).iter().flat_map(rows).collect()
}

fn vdif() -> Vec<u8> {
    let mut bytes = Vec::new();
    for header in vdif_headers() {
        let start = bytes.len();
        bytes.resize(start + header.frame_length(), 0);
        header.emit(&mut bytes[start..]);
    }
    bytes
}

fn mark_5b() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (step, frame) in (-120..120).zip((0..RATE).step_by(7).cycle()) {
        // Whole days and odd seconds, on both sides of a change of the thousand days.
        let second = MARK5B_REFERENCE + step * (4 * 86_400 + 3_607);
        let mut header = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]).unwrap();
        let rate = FrameRate::new(RATE).unwrap();
        header.set_time(FrameTime { second, frame }, rate).unwrap();
        let mut words = header.words();
        // The samples of every second frame are a test vector.
        words[1] |= (frame ^ 0xbead) << 16 | (frame % 2) << 15;
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(bytes.len() + mark5b::PAYLOAD_LEN, 0);
    }
    bytes
}

/// Returns the output of the script, or `None`, after printing the reason, without `baseband`. A Python named by `EVLBI_PYTHON`
/// must have it.
fn baseband_reads(arguments: &[&Path]) -> Option<Vec<ReadFile>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = python("baseband")?;
    let output = command(&python)
        .arg(here.join("tests/integration/baseband_headers.py"))
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Compares each header of `bytes` with the values that `baseband` found.
fn compare(file: &Path, bytes: &[u8], theirs: &[Fields]) {
    let mark5b = file.extension().is_some_and(|name| name == "m5b");
    let mut offset = 0;
    for theirs in theirs {
        let rate = FrameRate::new(theirs["rate"].as_u64().unwrap() as u32).unwrap();
        let (mut ours, length) = if mark5b {
            mark5b_fields(&bytes[offset..], rate)
        } else {
            vdif_fields(&bytes[offset..], rate)
        };
        ours.insert("offset".into(), json!(offset));
        allow_for_differences(&mut ours, theirs);
        assert_eq!(&ours, theirs, "{} at byte {offset}", file.display());
        offset += length;
    }
    assert_eq!(offset, bytes.len());
    println!("{}: {} headers read the same", file.display(), theirs.len());
}

/// Removes the two intended differences between the readers.
fn allow_for_differences(ours: &mut Fields, theirs: &Fields) {
    let Some(leaps) = theirs.get("leaps") else {
        return;
    };
    // Leap seconds since the reference epoch: see FrameTime.
    let second = ours["second"].as_i64().unwrap() - leaps.as_i64().unwrap();
    ours.insert("second".into(), json!(second));
    ours.insert("leaps".into(), leaps.clone());
    // Complex samples of more than 16 bits per component: two words each here, none at all there.
    if theirs["complex_data"] == 1 && theirs["bps"].as_u64() > Some(16) {
        let words = theirs["payload_nbytes"].as_u64().unwrap() / 4;
        let samples = words / 2 / theirs["nchan"].as_u64().unwrap();
        assert_eq!(ours["samples_per_frame"], samples);
        ours.insert(
            "samples_per_frame".into(),
            theirs["samples_per_frame"].clone(),
        );
    }
}

fn vdif_fields(bytes: &[u8], rate: FrameRate) -> (Fields, usize) {
    let header = Header::parse(bytes).unwrap();
    let shape = header.shape();
    let mut fields = object(json!({
        "invalid_data": u8::from(header.is_invalid()),
        "legacy_mode": u8::from(header.is_legacy()),
        "seconds": header.seconds(),
        "_1_30_2": header.words()[1] >> 30,
        "ref_epoch": header.epoch().half_years(),
        "frame_nr": header.frame_number(),
        "vdif_version": header.version(),
        "lg2_nchan": shape.log2_channels,
        "frame_length": header.frame_length() / 8,
        "complex_data": u8::from(shape.complex),
        "bits_per_sample": shape.bits - 1,
        "thread_id": header.key().thread,
        "station_id": header.key().station.0,
        "frame_nbytes": header.frame_length(),
        "payload_nbytes": shape.payload_length(),
        "bps": shape.bits,
        "nchan": shape.channels(),
        "samples_per_frame": shape.samples_per_frame(),
    }));
    fields.extend(extended_fields(&header));
    if let Some(sample_rate) = header.sample_rate() {
        fields.insert("sample_rate".into(), json!(sample_rate));
    }
    fields.extend(time_fields(
        header.time(),
        header.frame_rate().unwrap_or(rate),
    ));
    (fields, header.frame_length())
}

fn extended_fields(header: &Header) -> Fields {
    let mut fields = Fields::new();
    if let Some(edv) = header.edv() {
        fields.insert("edv".into(), json!(edv));
    }
    let words = header.words();
    fields.extend(match header.extended() {
        Some(Extended::Nict(Nict { sync, das, .. })) => object(json!({
            "sampling_unit": words[4] >> 23 & 1,
            "sampling_rate": words[4] & 0x7f_ffff,
            "sync_pattern": sync,
            "das_id": das,
        })),
        Some(Extended::Alma(Alma {
            polarisation,
            quadrant,
            correlator,
            sync,
            status,
            serial,
        })) => object(json!({
            "pol": polarisation,
            "BL_quadrant": quadrant,
            "BL_correlator": correlator,
            "sync_pattern": sync,
            "PIC_status": status,
            "PSN": serial,
        })),
        Some(Extended::Nrao(Nrao {
            sync,
            tuning,
            unit,
            input,
            sub_band,
            upper,
            revision: (major, minor),
            personality,
            ..
        })) => object(json!({
            "sampling_unit": words[4] >> 23 & 1,
            "sampling_rate": words[4] & 0x7f_ffff,
            "sync_pattern": sync,
            "loif_tuning": tuning,
            "_7_28_4": words[7] >> 28,
            "dbe_unit": unit,
            "if_nr": input,
            "subband": sub_band,
            "sideband": u8::from(upper),
            "major_rev": major,
            "minor_rev": minor,
            "personality": personality,
        })),
        Some(Extended::Mark5b(inner)) => {
            let mut fields = time_code_fields(&inner);
            fields.insert("mark5b_frame_nr".into(), json!(inner.frame_number()));
            fields
        }
        // `baseband` does not decode the others.
        Some(Extended::Merged(_) | Extended::Other { .. }) | None => Fields::new(),
    });
    fields
}

fn mark5b_fields(bytes: &[u8], rate: FrameRate) -> (Fields, usize) {
    let header = mark5b::Header::parse(bytes).unwrap();
    let mut fields = time_code_fields(&header);
    fields.insert("frame_nr".into(), json!(header.frame_number()));
    let time = header.time(MARK5B_REFERENCE).unwrap();
    fields.extend(time_fields(time, rate));
    (fields, mark5b::FRAME_LEN)
}

fn time_code_fields(header: &mark5b::Header) -> Fields {
    let bcd = |decimal: u32| u32::from_str_radix(&decimal.to_string(), 16).unwrap();
    object(json!({
        "sync_pattern": header.words()[0],
        "user": header.user(),
        "internal_tvg": u8::from(header.is_test_vector()),
        "bcd_jday": bcd(header.day().unwrap()),
        "bcd_seconds": bcd(header.second_of_day().unwrap()),
        "bcd_fraction": bcd(header.fraction().unwrap()),
        "crc": header.crc(),
        "computed_crc": header.computed_crc(),
    }))
}

fn time_fields(time: FrameTime, rate: FrameRate) -> Fields {
    let nanos = time.nanos(rate) - i128::from(time.second) * 1_000_000_000;
    object(json!({
        "rate": rate.get(),
        "second": time.second,
        "nanos": nanos as u64,
    }))
}

fn object(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is not an object"),
    }
}

/// Headers of every extended data version, shape and kind of time that `baseband` accepts.
fn vdif_headers() -> Vec<Header> {
    let mut headers = Vec::new();
    let times = times();
    for (number, (kind, shape)) in kinds_and_shapes().into_iter().enumerate() {
        let key = StreamKey {
            station: StationId((number * 997) as u16),
            thread: (number * 37 % 1024) as u16,
        };
        for (nth, time) in times.iter().enumerate().skip(number % 9).step_by(9) {
            let mut header = Header::new(shape, key);
            header.set_time(*time).unwrap();
            header.set_invalid((number + nth) % 4 == 0);
            if let Some(extended) = extended(kind, shape, number as u32, *time) {
                header.set_extended(&extended).unwrap();
            }
            headers.push(header);
        }
    }
    headers
}

/// Kinds of headers: an extended data version, or legacy.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Legacy,
    Edv(u8),
}

/// Kinds with the lengths and samples that `baseband` requires for versions 2, 3 and 0xAB.
fn kinds_and_shapes() -> Vec<(Kind, Shape)> {
    let kinds = [0, 1, 2, 3, 4, 0x55, 0xab].map(Kind::Edv);
    let mut all = Vec::new();
    for kind in kinds.into_iter().chain([Kind::Legacy]) {
        for (bits, log2_channels, complex) in samples() {
            let frame_length = match kind {
                Kind::Edv(2) => 8032,
                Kind::Edv(3) => 5032,
                Kind::Edv(0xab) => 10_032,
                Kind::Edv(_) => 32 + 640,
                Kind::Legacy => 16 + 640,
            };
            let legacy = kind == Kind::Legacy;
            let admitted = match kind {
                // It finds no samples in wider ones, and so no frame rate.
                Kind::Edv(1 | 3) => !complex || bits <= 16,
                Kind::Edv(2) => bits == 2 && !complex,
                Kind::Edv(0xab) => !complex,
                _ => true,
            };
            if admitted {
                all.push((
                    kind,
                    Shape {
                        frame_length,
                        log2_channels,
                        bits,
                        complex,
                        legacy,
                    },
                ));
            }
        }
    }
    all
}

fn samples() -> impl Iterator<Item = (u8, u8, bool)> {
    let one_channel = [1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 17, 24, 32].map(|bits| (bits, 0));
    let many_channels = [(1, 4), (2, 3), (4, 5), (8, 1), (32, 2)];
    one_channel
        .into_iter()
        .chain(many_channels)
        .flat_map(|(bits, channels)| [(bits, channels, false), (bits, channels, true)])
}

/// Borders of past epochs (`baseband` knows no later ones), and moments within them.
fn times() -> Vec<FrameTime> {
    let epochs = (0..=48).step_by(4).chain([1, 33, 34, 49]);
    let mut times = Vec::new();
    for start in epochs.map(|half_years| Epoch::new(half_years).unwrap().start()) {
        for (after, frame) in [(0, 0), (1, RATE - 1), (86_399, 1), (13_000_000, RATE / 2)] {
            times.push(FrameTime {
                second: start + after,
                frame,
            });
        }
    }
    times
}

fn extended(kind: Kind, shape: Shape, number: u32, time: FrameTime) -> Option<Extended> {
    let Kind::Edv(version) = kind else {
        return None;
    };
    // A whole number of frames per second, more than the highest number, and of nanoseconds per frame.
    let times_rate = [1, 2, 4, 5, 8][number as usize % 5];
    let complex_rate = shape.samples_per_frame() * u64::from(RATE) * times_rate;
    let sync = vdif::SYNC;
    let small = |bits: u32| (number.wrapping_mul(2_654_435_761) >> (32 - bits)) as u8;
    Some(match version {
        // Version 0 leaves the words zero.
        0 => return None,
        1 => Extended::Nict(Nict {
            complex_rate,
            sync,
            das: u64::from_le_bytes(*b"STATION1"),
        }),
        2 => Extended::Alma(Alma {
            polarisation: small(1),
            quadrant: small(2),
            correlator: small(1),
            sync: vdif::ALMA_SYNC,
            status: number,
            serial: u64::from(number) << 33 | 5,
        }),
        3 => Extended::Nrao(Nrao {
            complex_rate,
            sync,
            tuning: number << 20,
            unit: small(4),
            input: small(4),
            sub_band: small(3),
            upper: small(1) == 1,
            revision: (small(4), small(3)),
            personality: small(8),
        }),
        4 => Extended::Merged(Merged {
            mask_length: 8,
            sync,
            mask: u64::from(small(8)),
        }),
        0xab => {
            let words = [mark5b::SYNC, number << 16, 0, 0];
            let mut inner = mark5b::Header::from_words(words).unwrap();
            inner.set_time(time, FrameRate::new(RATE).unwrap()).unwrap();
            Extended::Mark5b(inner)
        }
        version => Extended::Other {
            version,
            words: [0x00c0_ffee, number, 2, 3],
        },
    })
}

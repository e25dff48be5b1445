//! Compares this crate with `baseband`, an independent reader: both decode its sample recordings, payloads of any bytes, and the
//! files of simulated stations to exactly the same values.
//!
//! The values that `baseband` decoded are committed in `tests/oracles` with the stations' files, so that comparison does not need
//! it. The Python that has `baseband` is `EVLBI_PYTHON`, or the virtual environment in `target/venv`. Without either, the tests
//! that run it or need its sample recordings are skipped.

use std::path::{Path, PathBuf};

use crate::recording::{decode, decode_file, generate};
use evlbi_fx::codec::{Codec, CodecError};
use evlbi_fx::sky::{SkyPlan, StationPlan};
use evlbi_testkit::oracle;
use evlbi_testkit::python::python;
use evlbi_testkit::{Room, command};
use evlbi_wire::{mark5b, vdif};
use serde_json::{Value, json};

#[test]
fn sample_recordings_decode_the_same() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    // Bits, whether samples are complex, and the number of components.
    let recordings = [
        ("sample.vdif", 2, false, 16 * 20_000),
        ("sample_vlbi.vdif", 2, false, 16 * 20_000),
        ("sample_bps1.vdif", 1, false, 2 * 64_000),
        ("sample_arochime.vdif", 4, true, 10 * 2048),
        ("sample_mwa.vdif", 8, true, 10 * 512),
        ("sample_drao_corrupted.vdif", 4, true, 10 * 10_000),
        ("sample.m5b", 2, false, 4 * 40_000),
    ];
    for (name, bits, complex, components) in recordings {
        let file = baseband.data().join(name);
        let bytes = std::fs::read(&file).unwrap();
        let codec = if name.ends_with(".m5b") {
            Codec::mark5b(bits).unwrap()
        } else {
            let header = vdif::Header::parse(&bytes).unwrap();
            assert_eq!(header.shape().complex, complex, "{name}");
            // The corrupted one has 4 bits, but its header says 5.
            match name.contains("corrupted") {
                true => Codec::vdif(bits).unwrap(),
                false => Codec::of(&header).unwrap(),
            }
        };
        assert_eq!(codec.bits(), bits, "{name}");
        let ours = decode_frames(codec, &bytes);
        assert_eq!(ours.len(), components, "{name}");
        let (theirs, _) = baseband.run(&["frames".as_ref(), bits.to_string().as_ref(), &file]);
        assert!(ours == theirs, "{name} decodes to other values");
        println!("{name}: {components} components of {bits} bits are the same");
    }
}

#[test]
fn payloads_of_any_bytes_decode_the_same() {
    let payload = payload();
    let answer = oracle::committed(&answers("payloads.json"));
    for (coding, codec, bits) in codings() {
        let codec = codec(bits).unwrap();
        let mut ours = vec![0.0; codec.components(payload.len())];
        codec.decode(&payload, &mut ours);
        let theirs = &answer[coding][bits.to_string()];
        assert_eq!(brief(&ours), *theirs, "{coding} of {bits} bits");
    }
}

#[test]
fn baseband_still_decodes_payloads_the_same() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    let file = baseband.room.write("payload", payload());
    let mut answer = json!({});
    for (coding, _, bits) in codings() {
        let bits = bits.to_string();
        let (theirs, _) = baseband.run(&["payload", coding, &bits, &file].map(Path::new));
        answer[coding][bits] = brief(&theirs);
    }
    oracle::compare(&answers("payloads.json"), &answer);
}

/// Returns every byte, as often as fits a Mark 5B payload.
fn payload() -> Vec<u8> {
    (0..=255).cycle().take(mark5b::PAYLOAD_LEN).collect()
}

type MakeCodec = fn(u8) -> Result<Codec, CodecError>;

/// Codings by their names in the script, each with its bits.
fn codings() -> impl Iterator<Item = (&'static str, MakeCodec, u8)> {
    let codings = [
        ("vdif", Codec::vdif as MakeCodec, &[1, 2, 4, 8][..]),
        ("mark5b", Codec::mark5b, &[1, 2]),
        ("edv_ab", Codec::mark5b, &[1, 2]),
    ];
    let each = |(name, codec, bits): (_, _, &'static [u8])| {
        bits.iter().map(move |bits| (name, codec, *bits))
    };
    codings.into_iter().flat_map(each)
}

/// Returns the number of values, and their hash.
fn brief(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    json!({ "values": values.len(), "hash": oracle::hash(&bytes) })
}

/// Returns the path of a file of `tests/oracles`.
fn answers(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles")).join(name)
}

/// Committed files of simulated stations decode to the values that `baseband` decoded, from start to end.
#[test]
fn stations_were_read_from_end_to_end() {
    for (name, plan) in small_plans() {
        let answer = oracle::committed(&answers(&format!("{name}.json")));
        let bytes = std::fs::read(answers(&format!("{name}.vdif"))).unwrap();
        assert_eq!(answer["file"], oracle::hash(&bytes), "{name} is another");
        let group = if plan.complex { 2 } else { 1 };
        let ours = interleave(&decode_file(&bytes, plan.channels.into()), group);
        assert_eq!(brief(&ours), answer["samples"], "{name}");
        assert_found(&plan, &answer["found"], ours.len());
    }
}

#[test]
fn baseband_still_reads_stations_the_same() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    for (name, plan) in small_plans() {
        let file = answers(&format!("{name}.vdif"));
        // Processors differ in single samples, so the files that the answers are about are kept.
        if oracle::is_written() && !file.exists() {
            std::fs::write(&file, generate(&plan.station("Ef").unwrap())).unwrap();
        }
        let (theirs, found) = baseband.run(&["stream".as_ref(), &file]);
        let bytes = std::fs::read(&file).unwrap();
        let answer =
            json!({ "file": oracle::hash(&bytes), "samples": brief(&theirs), "found": found });
        oracle::compare(&answers(&format!("{name}.json")), &answer);
    }
}

#[test]
fn simulated_stations_are_read_from_end_to_end() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    for plan in plans() {
        let station = plan.station("Ef").unwrap();
        let file = PathBuf::from(baseband.room.path("Ef.vdif"));
        std::fs::write(&file, generate(&station)).unwrap();
        let (theirs, found) = baseband.run(&["stream".as_ref(), &file]);

        assert_found(&plan, &found, theirs.len());
        let group = if plan.complex { 2 } else { 1 };
        assert!(interleave(&decode(&station), group) == theirs, "{plan:?}");
    }
}

/// Checks that `baseband` found what the plan contains, and `components` components.
fn assert_found(plan: &SkyPlan, found: &Value, components: usize) {
    let number = |key: &str| found[key].as_f64().unwrap();
    let group = if plan.complex { 2 } else { 1 };
    let samples = components / group / plan.channels as usize;
    assert_eq!(number("start"), plan.start as f64, "{plan:?}");
    assert_eq!(number("sample_rate"), plan.sample_rate, "{plan:?}");
    let seconds = number("stop") - number("start");
    assert!(
        (seconds - samples as f64 / plan.sample_rate).abs() < 1e-6,
        "{plan:?}"
    );
    assert!((seconds - plan.duration).abs() < 1e-6, "{plan:?}");
    assert_eq!(number("threads"), f64::from(plan.threads), "{plan:?}");
    assert_eq!(
        number("threads") * number("channels"),
        f64::from(plan.channels),
        "{plan:?}"
    );
    assert_eq!(found["complex"], plan.complex, "{plan:?}");
}

/// Returns the same formats at such low rates that the files are small, with the files' names.
fn small_plans() -> Vec<(String, SkyPlan)> {
    let small = |plan: SkyPlan| {
        let threads = format!("{}-channels-{}-threads", plan.channels, plan.threads);
        let kind = match (plan.legacy, plan.edv) {
            (true, _) => "legacy".to_owned(),
            (false, edv) => format!("edv-{edv}"),
        };
        let complex = if plan.complex { "-complex" } else { "" };
        let name = format!("{kind}-{}-bits{complex}-{threads}", plan.bits);
        // Frames of version 3 have one length.
        let (sample_rate, payload, duration) = match plan.edv {
            3 => (20e3, 5000, 2.0),
            _ => (8e3, 200, 1.4),
        };
        let plan = SkyPlan {
            sample_rate,
            payload,
            duration,
            ..plan
        };
        (name, plan)
    };
    plans().into_iter().map(small).collect()
}

/// Returns all kinds of formats. Those without a rate in their headers are longer than a second, so that `baseband` finds the
/// rate.
fn plans() -> Vec<SkyPlan> {
    let plan = SkyPlan {
        sample_rate: 1e6,
        duration: 1.2,
        payload: 5000,
        stations: vec![StationPlan {
            delay: vec![-2e-3, 1e-7],
            ..StationPlan::new("Ef")
        }],
        ..SkyPlan::default()
    };
    let shapes = [
        // bits, channels, threads, complex, extended data version, legacy
        (2, 1, 1, false, 0, false),
        (1, 1, 1, false, 0, true),
        (4, 2, 1, true, 0, false),
        (8, 2, 2, true, 0, true),
        (2, 8, 4, true, 1, false),
        (1, 16, 2, false, 1, false),
        (2, 8, 8, false, 3, false),
        (8, 1, 1, false, 3, false),
    ];
    shapes
        .map(|(bits, channels, threads, complex, edv, legacy)| SkyPlan {
            bits,
            channels,
            threads,
            complex,
            edv,
            legacy,
            ..plan.clone()
        })
        .into()
}

/// Interleaves all channels sample by sample, as `baseband` does.
fn interleave(channels: &[Vec<f32>], group: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for sample in 0..channels[0].len() / group {
        for channel in channels {
            all.extend_from_slice(&channel[sample * group..][..group]);
        }
    }
    all
}

/// Decodes frame by frame; a file that starts with a Mark 5B header contains nothing else.
fn decode_frames(codec: Codec, bytes: &[u8]) -> Vec<f32> {
    let mut all = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let bytes = &bytes[offset..];
        let (payload, length) = match mark5b::Header::parse(bytes) {
            Ok(_) => (
                &bytes[mark5b::HEADER_LEN..mark5b::FRAME_LEN],
                mark5b::FRAME_LEN,
            ),
            Err(_) => {
                let header = vdif::Header::parse(bytes).unwrap();
                let length = header.frame_length();
                (&bytes[header.len()..length], length)
            }
        };
        let start = all.len();
        all.resize(start + codec.components(payload.len()), f32::NAN);
        assert_eq!(codec.decode(payload, &mut all[start..]), all.len() - start);
        offset += length;
    }
    all
}

/// Python with `baseband`, and a directory for its files.
struct Baseband {
    python: PathBuf,
    room: Room,
}

impl Baseband {
    /// Finds it; `None`, after printing the reason, if there is none. A Python named by `EVLBI_PYTHON` must have it.
    fn find() -> Option<Baseband> {
        let python = python("baseband")?;
        let room = Room::new();
        Some(Baseband { python, room })
    }

    /// Returns the directory of its sample recordings.
    fn data(&self) -> PathBuf {
        let program =
            "import baseband.data, os; print(os.path.dirname(baseband.data.__file__), end='')";
        let output = command(&self.python)
            .args(["-c", program])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().into()
    }

    /// Runs the script; returns the values that it decodes, and its output.
    fn run(&self, arguments: &[&Path]) -> (Vec<f32>, Value) {
        let values = self.room.path("values");
        let output = command(&self.python)
            .arg(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/baseband_samples.py"),
            )
            .args(arguments)
            .arg(&values)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let values = std::fs::read(&values).unwrap();
        let (values, rest) = values.as_chunks::<4>();
        assert!(rest.is_empty());
        let values = values
            .iter()
            .map(|bytes| f32::from_ne_bytes(*bytes))
            .collect();
        (
            values,
            serde_json::from_slice(&output.stdout).unwrap_or_default(),
        )
    }
}

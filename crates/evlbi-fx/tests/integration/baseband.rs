//! An independent reader agrees: `baseband` decodes its own sample recordings, payloads of any bytes, and
//! the files of simulated stations to the very values that this crate decodes.
//!
//! The python that has `baseband` is `EVLBI_PYTHON`, else that of a virtual environment in
//! `target/venv`. Without either the tests are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::recording::{decode, generate};
use evlbi_fx::codec::Codec;
use evlbi_fx::sky::{SkyPlan, StationPlan};
use evlbi_testkit::python::python;
use evlbi_wire::{mark5b, vdif};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn sample_recordings_decode_the_same() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    // Bits, whether samples are complex, and how many components there are.
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
            // The corrupted one has 4 bits, and tells 5.
            Codec::of(&header).unwrap_or_else(|error| {
                assert!(name.contains("corrupted"), "{name}: {error}");
                Codec::vdif(bits).unwrap()
            })
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
    let Some(baseband) = Baseband::find() else {
        return;
    };
    // Every byte, as often as a Mark 5B payload has room.
    let payload: Vec<u8> = (0..=255).cycle().take(mark5b::PAYLOAD_LEN).collect();
    let file = baseband.folder.path().join("payload");
    std::fs::write(&file, &payload).unwrap();
    let codings = [
        ("vdif", Codec::vdif as fn(u8) -> _, &[1, 2, 4, 8][..]),
        ("mark5b", Codec::mark5b, &[1, 2]),
        ("edv_ab", Codec::mark5b, &[1, 2]),
    ];
    for (coding, codec, bits) in codings {
        for bits in bits {
            let codec = codec(*bits).unwrap();
            let bits = bits.to_string();
            let arguments = ["payload", coding, &bits].map(Path::new);
            let (theirs, _) = baseband.run(&[&arguments[..], &[&file]].concat());
            let mut ours = vec![0.0; codec.components(payload.len())];
            codec.decode(&payload, &mut ours);
            assert!(
                ours == theirs,
                "{coding} of {bits} bits decodes to other values"
            );
        }
    }
}

#[test]
fn simulated_stations_are_read_from_end_to_end() {
    let Some(baseband) = Baseband::find() else {
        return;
    };
    for plan in plans() {
        let station = plan.station("Ef").unwrap();
        let file = baseband.folder.path().join("Ef.vdif");
        std::fs::write(&file, generate(&station)).unwrap();
        let (theirs, found) = baseband.run(&["stream".as_ref(), &file]);

        let number = |key: &str| found[key].as_f64().unwrap();
        let group = if plan.complex { 2 } else { 1 };
        let samples = theirs.len() / group / plan.channels as usize;
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
        assert!(interleave(&decode(&station), group) == theirs, "{plan:?}");
    }
}

/// Shapes of every sort. Those whose headers do not tell the rate are longer than a second, so that
/// `baseband` finds it.
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

/// Sample by sample, all channels: as `baseband` has them.
fn interleave(channels: &[Vec<f32>], group: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for sample in 0..channels[0].len() / group {
        for channel in channels {
            all.extend_from_slice(&channel[sample * group..][..group]);
        }
    }
    all
}

/// Frame by frame; a file that begins with a Mark 5B header has nothing else.
fn decode_frames(codec: Codec, bytes: &[u8]) -> Vec<f32> {
    let mut all = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let bytes = &bytes[offset..];
        let (payload, length) = match mark5b::Frame::new_checked(bytes) {
            Ok(frame) => (frame.payload(), mark5b::FRAME_LEN),
            Err(_) => {
                let frame = vdif::Frame::new_checked(bytes).unwrap();
                (frame.payload(), frame.header().frame_length())
            }
        };
        let start = all.len();
        all.resize(start + codec.components(payload.len()), f32::NAN);
        assert_eq!(codec.decode(payload, &mut all[start..]), all.len() - start);
        offset += length;
    }
    all
}

/// A python that has `baseband`, and a folder for its files.
struct Baseband {
    python: PathBuf,
    folder: TempDir,
}

impl Baseband {
    /// `None`, with the reason said, where there is none. A python that was named must have it.
    fn find() -> Option<Baseband> {
        let python = python("baseband")?;
        let folder = tempfile::tempdir().unwrap();
        Some(Baseband { python, folder })
    }

    /// Where its sample recordings lie.
    fn data(&self) -> PathBuf {
        let program =
            "import baseband.data, os; print(os.path.dirname(baseband.data.__file__), end='')";
        let output = Command::new(&self.python)
            .args(["-c", program])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().into()
    }

    /// The values that the script decodes, and what it prints.
    fn run(&self, arguments: &[&Path]) -> (Vec<f32>, Value) {
        let values = self.folder.path().join("values");
        let output = Command::new(&self.python)
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

//! Our SWIN output: a Python reader, written from the format's description, reads our files; and where DiFX has
//! correlated the same recordings, our records have its headers.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_correlate::CorrelateOptions;
use evlbi_fx::difx::swin::{HEADER_LEN, Reader, Record};
use evlbi_testkit::{Room, command, need, oracle};
use rustfft::num_complex::Complex32;
use serde_json::{Value, json};

use crate::{correlated, delayed, sky};

const CHANNELS: usize = 16;

/// A file of the oracles.
fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/swin")).join(name)
}

fn answer() -> Value {
    oracle::committed(&path("ours.json"))
}

/// Records as our own reader reads them.
fn records(file: &Path, channels: usize) -> Vec<Record> {
    let reader = Reader::new(File::open(file).unwrap(), vec![channels]);
    reader.collect::<Result<_, _>>().unwrap()
}

/// Asserts that our records match those of the Python reader.
#[track_caller]
fn assert_same(ours: &[Record], theirs: &Value) {
    let theirs = theirs.as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (own, their) in ours.iter().zip(theirs) {
        let integers = json!({
            "baseline": [own.baseline.0, own.baseline.1],
            "mjd": own.mjd,
            "configuration": own.configuration,
            "source": own.source,
            "frequency": own.frequency,
            "polarisations": std::str::from_utf8(&own.polarisations).unwrap(),
            "bin": own.bin,
        });
        for (name, value) in integers.as_object().unwrap() {
            assert_eq!(*value, their[name], "{name} of {their}");
        }
        // JSON may cost the last bit of a number of 64, and none of one of 32.
        let near = |own: f64, their: &Value| {
            let their = their.as_f64().unwrap();
            assert!(
                (own - their).abs() <= own.abs() * f64::EPSILON,
                "{own} {their}"
            );
        };
        near(own.seconds, &their["seconds"]);
        near(own.weight, &their["weight"]);
        for (axis, own) in own.uvw.iter().enumerate() {
            near(*own, &their["uvw"][axis]);
        }
        let channels = their["channels"].as_array().unwrap();
        assert_eq!(own.channels.len(), channels.len());
        for (own, their) in own.channels.iter().zip(channels) {
            let [re, im] = [0, 1].map(|part| their[part].as_f64().unwrap() as f32);
            assert_eq!(*own, Complex32::new(re, im));
        }
    }
}

/// Returns the only file of visibilities in a directory.
fn visibilities(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let is_swin = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with("DIFX_")
    };
    files.find(is_swin).unwrap()
}

/// Correlates the stations of the plan, as `make.sh` does.
fn ours(room: &Room) -> PathBuf {
    sky(room, &fs::read_to_string(path("plan.toml")).unwrap());
    let [ef, jb, on] = &["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let out = room.path("out");
    let options = CorrelateOptions {
        integration: Some(Duration::from_micros(12_800)),
        visibilities: Some((&out).into()),
        ..delayed(CHANNELS, &["0", "2.5us,1e-7", "-1.5us,-3e-7"])
    };
    correlated(&[ef, jb, on], &options);
    visibilities(Path::new(&out))
}

/// The committed file is read to the exact values of the Python reader; and what we write today is the same except for the
/// rounding of other CPUs' arithmetic.
#[test]
fn a_reader_in_python_read_what_we_write() {
    let theirs = answer();
    let written = records(&path("ours.swin"), CHANNELS);
    assert_same(&written, &theirs);
    // Six products in five integrations.
    assert_eq!(written.len(), 30);
    let room = Room::new();
    let today = records(&ours(&room), CHANNELS);
    assert_eq!(today.len(), written.len());
    for (today, before) in today.iter().zip(&written) {
        for (now, then) in today.channels.iter().zip(&before.channels) {
            assert!((now - then).norm() < 1e-3, "{now} {then}");
        }
        let headers = [today, before].map(|record| Record {
            channels: Vec::new(),
            ..record.clone()
        });
        assert_eq!(headers[0], headers[1]);
    }
}

#[test]
fn a_reader_in_python_reads_what_we_write_now() {
    if !need(&["python3"]) {
        return;
    }
    let ask = |file: &Path| -> Value {
        let output = command("python3")
            .arg(path("swin.py"))
            .arg(file)
            .arg(CHANNELS.to_string())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(ask(&path("ours.swin")), answer());
    let room = Room::new();
    let file = ours(&room);
    assert_same(&records(&file, CHANNELS), &ask(&file));
}

/// Our records of the VieRDS recordings start with DiFX's own headers, record by record and field by field.
#[test]
fn records_have_the_headers_of_difx() {
    let Some(recordings) = need::recordings() else {
        return;
    };
    for name in [
        "zerobaseline_001_very_basic",
        "nonzerobasline_001_very_high_delay_rate",
    ] {
        let folder = recordings.join("vierds").join(name);
        let files = fs::read_dir(&folder).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> = files
            .filter(|file| file.extension().is_some_and(|kind| kind == "vdif"))
            .collect();
        files.sort();
        let room = Room::new();
        let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
        let out = room.path("out");
        let options = CorrelateOptions {
            model: Some(folder.join("sim_1.im")),
            visibilities: Some((&out).into()),
            ..CorrelateOptions::default()
        };
        correlated(&files, &options);
        let ours = visibilities(Path::new(&out));
        let theirs = visibilities(&folder.join("sim_1.difx"));
        assert_eq!(ours.file_name(), theirs.file_name());
        // Sync word and version, which the reader does not keep.
        assert_eq!(first_bytes(&ours), first_bytes(&theirs));
        same_headers(name, &records(&ours, 64), &records(&theirs, 64));
    }
}

fn first_bytes(file: &Path) -> [u8; 8] {
    let mut header = [0; HEADER_LEN];
    File::open(file).unwrap().read_exact(&mut header).unwrap();
    header[..8].try_into().unwrap()
}

fn same_headers(name: &str, ours: &[Record], theirs: &[Record]) {
    // Known difference: DiFX's job ends with the second, in the middle of an integration. It weighs the data it has of that one,
    // and has none that starts later.
    let end = 63_001.0 - 0.0256;
    let whole = theirs.iter().take_while(|record| record.seconds < end);
    let count = whole.count();
    assert!(count >= 114, "{name}: {count}");
    for (own, their) in ours[..count].iter().zip(theirs) {
        let integers = |record: &Record| {
            (
                record.baseline,
                record.mjd,
                record.configuration,
                record.source,
                record.frequency,
                record.polarisations,
                record.bin,
            )
        };
        assert_eq!(integers(own), integers(their), "{name}");
        let near = |field: &str, found: f64, expected: f64, within: f64| {
            let message = format!("{name}: {field} {found}, not {expected}");
            assert!((found - expected).abs() <= within, "{message}");
        };
        // A bit of a second of the day.
        near("seconds", own.seconds, their.seconds, 1e-11);
        // DiFX weighs by subintegrations, in single precision.
        near("weight", own.weight, their.weight, 5e-4);
        for (own, their) in own.uvw.iter().zip(their.uvw) {
            near("uvw", *own, their, 1e-8);
        }
    }
}

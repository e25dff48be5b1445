//! Files of sums, `part-00017-3f9ac210b7d1.evs`: a line of JSON, the sums of each dump, and a line of JSON about
//! the frames of each station.
//!
//! Numbers are little-endian. A dump is its number (i64), its blocks (u64), for each input the valid parts (u64), the energy and the
//! power of each channel (f64), and for each product the common valid parts (u64), both energies and the sum of each channel (real and
//! imaginary part, f64).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Take};
use std::path::Path;

use evlbi_fx::correlator::{Setup, Sums};
use rustfft::num_complex::Complex64;
use serde::{Deserialize, Serialize};

/// First line of a file of sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub schema: String,
    pub plan_id: String,
    pub part: usize,
    pub dumps: usize,
}

/// Name and version of the format.
pub const SCHEMA: &str = "evlbi.sums/1";
/// Maximum length of a line of JSON.
const MAX_LINE: u64 = 1 << 20;

/// Writes the sums of a dump.
pub fn encode(dump: i64, sums: &Sums, bytes: &mut Vec<u8>) {
    bytes.extend(dump.to_le_bytes());
    bytes.extend(sums.blocks.to_le_bytes());
    for input in &sums.inputs {
        bytes.extend(input.good.to_le_bytes());
        bytes.extend(input.energy.to_le_bytes());
        bytes.extend(input.power.iter().flat_map(|power| power.to_le_bytes()));
    }
    for product in &sums.products {
        bytes.extend(product.overlap.to_le_bytes());
        bytes.extend(product.energy_a.to_le_bytes());
        bytes.extend(product.energy_b.to_le_bytes());
        for value in &product.values {
            bytes.extend(value.re.to_le_bytes());
            bytes.extend(value.im.to_le_bytes());
        }
    }
}

/// Returns the length of a dump in a file, in bytes.
pub fn dump_length(setup: &Setup) -> usize {
    let (inputs, channels) = (setup.inputs().count(), setup.channels());
    16 + inputs * (16 + 8 * channels) + setup.products().len() * (24 + 16 * channels)
}

/// Reads the sums of a dump from its bytes, of [`dump_length`]; returns its number.
fn decode(bytes: &[u8], sums: &mut Sums) -> i64 {
    let mut words = bytes.as_chunks::<8>().0.iter().copied();
    let mut next = || words.next().unwrap_or_default();
    let dump = i64::from_le_bytes(next());
    sums.blocks = u64::from_le_bytes(next());
    for input in &mut sums.inputs {
        input.good = u64::from_le_bytes(next());
        input.energy = f64::from_le_bytes(next());
        for power in &mut input.power {
            *power = f64::from_le_bytes(next());
        }
    }
    for product in &mut sums.products {
        product.overlap = u64::from_le_bytes(next());
        product.energy_a = f64::from_le_bytes(next());
        product.energy_b = f64::from_le_bytes(next());
        for value in &mut product.values {
            *value = Complex64::new(f64::from_le_bytes(next()), f64::from_le_bytes(next()));
        }
    }
    dump
}

/// Reader of a file of sums.
pub struct Reader {
    file: BufReader<File>,
    pub header: Header,
    /// The dump that was read last.
    pub sums: Sums,
    buffer: Vec<u8>,
}

impl Reader {
    /// Opens a file of sums of this setup.
    pub fn open(path: &Path, setup: &Setup) -> io::Result<Reader> {
        let mut file = BufReader::new(File::open(path)?);
        let header = line(&mut (&mut file).take(MAX_LINE))?;
        Ok(Reader {
            file,
            header,
            sums: Sums::new(setup),
            buffer: vec![0; dump_length(setup)],
        })
    }

    /// Reads the next dump; returns its number.
    pub fn next(&mut self) -> io::Result<i64> {
        self.file.read_exact(&mut self.buffer)?;
        Ok(decode(&self.buffer, &mut self.sums))
    }

    /// Returns the document behind the dumps.
    pub fn last<T: for<'de> Deserialize<'de>>(&mut self) -> io::Result<T> {
        let after = self.header.dumps as u64 * self.buffer.len() as u64;
        self.file.seek(SeekFrom::Start(0))?;
        let _: Header = line(&mut (&mut self.file).take(MAX_LINE))?;
        let after = i64::try_from(after).map_err(io::Error::other)?;
        self.file.seek_relative(after)?;
        line(&mut (&mut self.file).take(MAX_LINE))
    }
}

fn line<T: for<'de> Deserialize<'de>>(from: &mut Take<&mut BufReader<File>>) -> io::Result<T> {
    let mut text = String::new();
    from.read_line(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

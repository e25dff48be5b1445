//! SWIN: the visibility format that DiFX writes and its tools read.
//!
//! A record consists of a header of 74 bytes and a complex number of 2 x 32 bits per channel, all little-endian. The header
//! contains a sync word, version, baseline (256 a + b, with stations from 1; a = b for an autocorrelation), modified Julian date
//! and second of the middle of the integration, indices of configuration, source and frequency, two letters of polarisation,
//! pulsar bin, weight, and u, v, w in metres.

use std::io::{self, Read, Write};

use rustfft::num_complex::Complex32;

/// First word of a record.
pub const SYNC: u32 = 0xFF00_FF00;
/// Version of the format.
const VERSION: i32 = 1;
/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 74;

/// Spectrum of one product.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Stations, from 1; the same twice for an autocorrelation.
    pub baseline: (u8, u8),
    /// Modified Julian date.
    pub mjd: i32,
    /// Second of the day of the middle of the integration.
    pub seconds: f64,
    /// Index of the configuration.
    pub configuration: i32,
    /// Index of the source.
    pub source: i32,
    /// Index of the frequency.
    pub frequency: i32,
    /// Letters of the two polarisations.
    pub polarisations: [u8; 2],
    /// Pulsar bin.
    pub bin: i32,
    /// Fraction of the integration with valid data.
    pub weight: f64,
    /// Baseline coordinates u, v, w in metres.
    pub uvw: [f64; 3],
    /// Values of the channels.
    pub channels: Vec<Complex32>,
}

/// Reason why records cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwinError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No record at the expected place.
    #[error(
        "no visibilities at byte {offset}, but {found:08x}: is this a SWIN file with this number of channels?"
    )]
    Sync {
        /// Offset in bytes.
        offset: u64,
        /// Word found there.
        found: u32,
    },
    /// The file ends within a record.
    #[error("the last record, at byte {offset}, is truncated")]
    Cut {
        /// Offset of its start, in bytes.
        offset: u64,
    },
    /// The frequency of a record is not in the table.
    #[error("the record at byte {offset} is of frequency {frequency}, which the job does not have")]
    Frequency {
        /// Offset of its start, in bytes.
        offset: u64,
        /// Index of the frequency.
        frequency: i32,
    },
}

impl Record {
    /// Writes the record.
    ///
    /// # Errors
    /// Returns errors of `to`.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + 8 * self.channels.len());
        let baseline = i32::from(self.baseline.0) * 256 + i32::from(self.baseline.1);
        bytes.extend(SYNC.to_le_bytes());
        for number in [VERSION, baseline, self.mjd] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.seconds.to_le_bytes());
        for number in [self.configuration, self.source, self.frequency] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.polarisations);
        bytes.extend(self.bin.to_le_bytes());
        bytes.extend(self.weight.to_le_bytes());
        for number in self.uvw {
            bytes.extend(number.to_le_bytes());
        }
        for value in &self.channels {
            bytes.extend(value.re.to_le_bytes());
            bytes.extend(value.im.to_le_bytes());
        }
        to.write_all(&bytes)
    }
}

/// Reader of one record after the other.
pub struct Reader<R> {
    from: R,
    /// Number of channels of each frequency.
    channels: Vec<usize>,
    offset: u64,
}

impl<R: Read> Reader<R> {
    /// Makes a reader of records with these numbers of channels per frequency.
    pub fn new(from: R, channels: Vec<usize>) -> Reader<R> {
        Reader {
            from,
            channels,
            offset: 0,
        }
    }

    fn record(&mut self) -> Result<Option<Record>, SwinError> {
        let offset = self.offset;
        let header = self.bytes(HEADER_LEN)?;
        match header.len() {
            0 => return Ok(None),
            HEADER_LEN => {}
            _ => return Err(SwinError::Cut { offset }),
        }
        let fields = &mut Fields(&header);
        let found = u32::from_le_bytes(fields.take());
        if found != SYNC {
            return Err(SwinError::Sync { offset, found });
        }
        let _version: [u8; 4] = fields.take();
        let baseline = i32::from_le_bytes(fields.take());
        let mut record = Record {
            baseline: ((baseline >> 8) as u8, baseline as u8),
            mjd: i32::from_le_bytes(fields.take()),
            seconds: f64::from_le_bytes(fields.take()),
            configuration: i32::from_le_bytes(fields.take()),
            source: i32::from_le_bytes(fields.take()),
            frequency: i32::from_le_bytes(fields.take()),
            polarisations: fields.take(),
            bin: i32::from_le_bytes(fields.take()),
            weight: f64::from_le_bytes(fields.take()),
            uvw: [(); 3].map(|()| f64::from_le_bytes(fields.take())),
            channels: Vec::new(),
        };
        let frequency = record.frequency;
        let channels = usize::try_from(frequency)
            .ok()
            .and_then(|frequency| self.channels.get(frequency))
            .ok_or(SwinError::Frequency { offset, frequency })?;
        let length = 8 * channels;
        let bytes = self.bytes(length)?;
        if bytes.len() < length {
            return Err(SwinError::Cut { offset });
        }
        let (pairs, _) = bytes.as_chunks::<4>().0.as_chunks::<2>();
        let value = |pair: &[[u8; 4]; 2]| {
            let [re, im] = pair.map(f32::from_le_bytes);
            Complex32::new(re, im)
        };
        record.channels = pairs.iter().map(value).collect();
        self.offset += (HEADER_LEN + bytes.len()) as u64;
        Ok(Some(record))
    }

    /// Reads the next `count` bytes, or all that are left.
    fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(count);
        let mut from = self.from.by_ref().take(count as u64);
        from.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, SwinError>;

    fn next(&mut self) -> Option<Result<Record, SwinError>> {
        let record = self.record();
        if record.is_err() {
            // Later records cannot be separated.
            self.channels.clear();
        }
        record.transpose()
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (now, rest) = self.0.split_at(N.min(self.0.len()));
        field[..now.len()].copy_from_slice(now);
        self.0 = rest;
        field
    }
}

/// Returns the name that DiFX gives the visibilities of a job that starts then.
pub fn file_name(mjd: i64, second: i64) -> String {
    format!("DIFX_{mjd:05}_{second:06}.s0000.b0000")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(channels: usize) -> Record {
        Record {
            baseline: (1, 2),
            mjd: 58_876,
            seconds: 63_000.012_8,
            frequency: 1,
            polarisations: *b"RL",
            weight: 0.75,
            uvw: [1.0, -2.0, 3.5],
            channels: (0..channels)
                .map(|n| Complex32::new(n as f32, -(n as f32)))
                .collect(),
            ..Record::default()
        }
    }

    #[test]
    fn records_have_the_described_layout() {
        let mut bytes = Vec::new();
        record(3).write(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 74 + 24);
        assert_eq!(bytes[..12], [0, 255, 0, 255, 1, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(&bytes[36..38], b"RL");
        assert_eq!(bytes[42..50], 0.75f64.to_le_bytes());
        assert_eq!(bytes[74 + 8..74 + 12], 1f32.to_le_bytes());
        assert_eq!(file_name(58_876, 63_000), "DIFX_58876_063000.s0000.b0000");
    }

    #[test]
    fn written_records_are_read_and_damage_is_reported() {
        let mut bytes = Vec::new();
        for _ in 0..3 {
            record(5).write(&mut bytes).unwrap();
        }
        let read = |bytes: &[u8], channels: &[usize]| {
            let reader = Reader::new(bytes, channels.to_vec());
            reader.collect::<Result<Vec<Record>, SwinError>>()
        };
        assert_eq!(read(&bytes, &[1, 5]).unwrap(), vec![record(5); 3]);
        let error = read(&bytes[..bytes.len() - 1], &[1, 5]).unwrap_err();
        assert!(
            error.to_string().contains("at byte 228, is truncated"),
            "{error}"
        );
        let error = read(&bytes, &[1, 4]).unwrap_err();
        assert!(
            error.to_string().starts_with("no visibilities at byte 106"),
            "{error}"
        );
        let error = read(&bytes, &[5]).unwrap_err();
        assert!(error.to_string().contains("frequency 1"), "{error}");
        assert!(read(&[], &[]).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            sync: bool,
        ) {
            if sync && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&SYNC.to_le_bytes());
            }
            let _ = Reader::new(bytes.as_slice(), vec![4, 8]).count();
        }
    }
}

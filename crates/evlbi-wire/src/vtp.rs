//! VTP (VDIF Transport Protocol 1.0.0), which jive5ab calls `udps`: a 64-bit sequence number, then data.
//!
//! The standard does not define the byte order. Existing implementations (jive5ab, DiFX) use the native order of x86, so it is
//! little-endian here. The sequence starts at any number and grows by one with each datagram. There is no magic number, stream
//! identifier or checksum.

/// Length of the sequence header, in bytes.
pub const HEADER_LEN: usize = 8;

/// Returns the header of a datagram with this sequence number.
#[inline]
pub fn header(sequence: u64) -> [u8; HEADER_LEN] {
    sequence.to_le_bytes()
}

/// Splits a datagram into sequence number and data; `None` if it is shorter than a header.
#[inline]
pub fn split(datagram: &[u8]) -> Option<(u64, &[u8])> {
    let (header, data) = datagram.split_first_chunk::<HEADER_LEN>()?;
    Some((u64::from_le_bytes(*header), data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_little_endian() {
        let mut datagram = header(0x0102_0304_0506_0708).to_vec();
        assert_eq!(datagram, [8, 7, 6, 5, 4, 3, 2, 1]);
        datagram.extend_from_slice(b"data");
        assert_eq!(
            split(&datagram),
            Some((0x0102_0304_0506_0708, b"data".as_slice()))
        );
    }

    #[test]
    fn short_datagrams_have_no_header() {
        assert_eq!(split(&[]), None);
        assert_eq!(split(&[1; 7]), None);
        assert_eq!(split(&[0; 8]), Some((0, [].as_slice())));
    }
}

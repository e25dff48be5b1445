//! VTP (VDIF Transport Protocol 1.0.0), which jive5ab calls `udps`: a 64-bit sequence number, then data.
//!
//! The standard leaves the byte order open; the peers that exist (jive5ab, DiFX) write and read the
//! native number of x86, so it is little-endian here. The sequence starts anywhere and grows by one
//! with each datagram. There is no magic, no stream identifier and no checksum.

/// Length of the sequence header in bytes.
pub const HEADER_LEN: usize = 8;

/// The header that a datagram with sequence number `sequence` begins with.
#[inline]
pub fn header(sequence: u64) -> [u8; HEADER_LEN] {
    sequence.to_le_bytes()
}

/// Sequence number and data of a datagram; `None` when it is too short to hold a header.
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

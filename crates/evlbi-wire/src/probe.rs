//! Test datagrams: which test they belong to, their sequence number, and when they were sent.
//!
//! All numbers are big-endian. Every datagram starts with
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | `EVP` and the kind: `D` data, `Q` request, `R` reply |
//! | 4 | 4 | 0 |
//! | 8 | 8 | random key of the test, unknown to other senders and to earlier tests |
//! | 16 | 8 | sequence number, starting at 0 |
//! | 24 | 8 | time sent: nanoseconds of the sender's clock |
//!
//! A reply repeats the number and time of its request (T1 of RFC 8762, STAMP). Two times of the responder's clock follow: when
//! the request arrived (T2) and when the reply was sent (T3).

/// Length of the header, in bytes: the shortest test datagram.
pub const HEADER_LEN: usize = 32;
/// Length of the header of a reply, in bytes.
pub const REPLY_LEN: usize = 48;

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of a stream in one direction.
    Data,
    /// Request, which the responder answers.
    Request,
    /// Reply to a request.
    Reply {
        /// When the request arrived, in nanoseconds of the responder's clock.
        arrived: u64,
        /// When the reply was sent, by the same clock.
        replied: u64,
    },
}

/// Header of a test datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Kind of the datagram.
    pub kind: Kind,
    /// Key of the test.
    pub key: u64,
    /// Sequence number.
    pub sequence: u64,
    /// When the datagram (for a reply: its request) was sent, in nanoseconds of the sender's clock.
    pub departed: u64,
}

impl Probe {
    /// Returns the header as bytes, of which the first [`Probe::length`] are sent.
    #[inline]
    pub fn to_bytes(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        bytes[..3].copy_from_slice(b"EVP");
        bytes[3] = match self.kind {
            Kind::Data => b'D',
            Kind::Request => b'Q',
            Kind::Reply { .. } => b'R',
        };
        bytes[8..16].copy_from_slice(&self.key.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.departed.to_be_bytes());
        if let Kind::Reply { arrived, replied } = self.kind {
            bytes[32..40].copy_from_slice(&arrived.to_be_bytes());
            bytes[40..48].copy_from_slice(&replied.to_be_bytes());
        }
        bytes
    }

    /// Returns the length of the header, in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        match self.kind {
            Kind::Reply { .. } => REPLY_LEN,
            _ => HEADER_LEN,
        }
    }

    /// Parses the header of a datagram; `None` if it is not a test datagram.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Probe> {
        let (header, rest) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let number = |from: usize| Some(u64::from_be_bytes(*header.get(from..)?.first_chunk()?));
        let kind = match header.first_chunk::<8>()? {
            b"EVPD\0\0\0\0" => Kind::Data,
            b"EVPQ\0\0\0\0" => Kind::Request,
            b"EVPR\0\0\0\0" => Kind::Reply {
                arrived: u64::from_be_bytes(*rest.first_chunk()?),
                replied: u64::from_be_bytes(*rest.get(8..)?.first_chunk()?),
            },
            _ => return None,
        };
        Some(Probe {
            kind,
            key: number(8)?,
            sequence: number(16)?,
            departed: number(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_has_the_documented_layout() {
        let probe = Probe {
            kind: Kind::Reply {
                arrived: 3,
                replied: 4,
            },
            key: 0x0102_0304_0506_0708,
            sequence: 1,
            departed: 2,
        };
        let mut expected = b"EVPR\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08".to_vec();
        for number in 1..=4u64 {
            expected.extend(number.to_be_bytes());
        }
        assert_eq!(probe.to_bytes()[..], expected);
        assert_eq!(probe.length(), 48);
    }

    proptest! {
        #[test]
        fn headers_are_parsed_as_written(
            key: u64, sequence: u64, departed: u64, arrived: u64, replied: u64, kind in 0..3, body: Vec<u8>,
        ) {
            let kind = [Kind::Data, Kind::Request, Kind::Reply { arrived, replied }][kind as usize];
            let probe = Probe { kind, key, sequence, departed };
            let mut datagram = probe.to_bytes()[..probe.length()].to_vec();
            for short in 0..datagram.len() {
                prop_assert_eq!(Probe::parse(&datagram[..short]), None);
            }
            datagram.extend(body);
            prop_assert_eq!(Probe::parse(&datagram), Some(probe));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, kind in 0..4) {
            if let (Some(magic), Some(begin)) = ([b'D', b'Q', b'R'].get(kind as usize), bytes.first_chunk_mut()) {
                *begin = [b'E', b'V', b'P', *magic, 0, 0, 0, 0];
            }
            if let Some(probe) = Probe::parse(&bytes) {
                prop_assert_eq!(&probe.to_bytes()[..probe.length()], &bytes[..probe.length()]);
            }
        }
    }
}

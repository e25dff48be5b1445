//! Datagrams of a test: which test they belong to, their number, and when they left.
//!
//! All numbers are big-endian. Every datagram begins with
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `EVP` and the kind: `D` data, `Q` a request, `R` the reply to one |
//! | 4 | 4 | 0 |
//! | 8 | 8 | the test's key, chosen at random: neither a stranger nor a test before this one has it |
//! | 16 | 8 | sequence number, from 0 on |
//! | 24 | 8 | when it left: nanoseconds of the sender's clock |
//!
//! A reply repeats number and time of its request and goes on with two times of the responder's clock: when the request
//! came and when the reply left (T2 and T3 of RFC 8762, STAMP, where the time above is T1).

/// Length of the header in bytes: the shortest test datagram.
pub const HEADER_LEN: usize = 32;
/// Length of a reply's header.
pub const REPLY_LEN: usize = 48;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a stream in one direction.
    Data,
    /// To be answered.
    Request,
    /// The answer.
    Reply {
        /// When the request came, in nanoseconds of the responder's clock.
        arrived: u64,
        /// When the reply left.
        replied: u64,
    },
}

/// The header of a test datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What it is.
    pub kind: Kind,
    /// The test that it belongs to.
    pub key: u64,
    /// Its number.
    pub sequence: u64,
    /// When it left (a reply: when its request left), in nanoseconds of the sender's clock.
    pub departed: u64,
}

impl Probe {
    /// The header as it is sent: the first `HEADER_LEN` bytes, of a reply all.
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

    /// How many of those bytes are sent.
    #[inline]
    pub fn length(&self) -> usize {
        match self.kind {
            Kind::Reply { .. } => REPLY_LEN,
            _ => HEADER_LEN,
        }
    }

    /// Reads the header of a datagram; `None` where it is none.
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
    fn a_header_lies_as_documented() {
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
        fn headers_come_back(
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

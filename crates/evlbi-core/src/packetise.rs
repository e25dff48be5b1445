//! Splits frames into the data of datagrams.

/// IP version, which determines the size of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, with a header of 20 bytes.
    V4,
    /// IPv6, with a header of 40 bytes.
    V6,
}

impl Family {
    /// Returns the length of the IP header without options, in bytes.
    pub fn ip_header(self) -> usize {
        match self {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }

    /// Returns the maximum UDP payload that the 16-bit length fields allow, in bytes. (RFC 768; RFC 8200: the IPv6 payload length
    /// does not count the fixed header.)
    fn longest_payload(self) -> usize {
        match self {
            Family::V4 => 65_535 - 20 - UDP_HEADER,
            Family::V6 => 65_535 - UDP_HEADER,
        }
    }
}

/// Length of a UDP header, in bytes.
pub const UDP_HEADER: usize = 8;

/// Length of a TCP header with timestamps, in bytes.
pub const TCP_HEADER: usize = 32;

/// Minimum data of a datagram when frames are split by a divisor, in bytes. Below it headers take a quarter of the link, and the
/// packet rate becomes the limit.
const MIN_FRAGMENT: usize = 200;

/// Rule that splits the stream; both are from jive5ab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// jive5ab's VDIF modes: whole frames, or their largest exact divisor that fits.
    Frames,
    /// jive5ab's `mode=none`: as many bytes as fit, a multiple of 8, regardless of frames.
    Plain,
}

/// Reason why a stream cannot be split into datagrams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketiseError {
    /// The MTU leaves no room for data.
    #[error("an MTU of {mtu} bytes leaves no room for data after {headers} bytes of headers")]
    MtuTooSmall {
        /// MTU in bytes.
        mtu: usize,
        /// IP, UDP and sequence headers in bytes.
        headers: usize,
    },
    /// The frame's divisors that fit the MTU are tiny (below 200 bytes).
    #[error(
        "frames of {frame_length} bytes cut into equal parts that fit an MTU of {mtu} would be only {best} bytes each"
    )]
    SmallParts {
        /// Length of the frame in bytes.
        frame_length: usize,
        /// MTU in bytes.
        mtu: usize,
        /// Largest divisor that fits, in bytes.
        best: usize,
        /// Minimum MTU at which the parts are large enough, in bytes.
        enough: usize,
    },
    /// The frame's divisors that fit any datagram are tiny (below 200 bytes).
    #[error(
        "frames of {frame_length} bytes cut into equal parts that fit a datagram would be only {best} bytes each, whatever the MTU"
    )]
    NoDivisor {
        /// Length of the frame in bytes.
        frame_length: usize,
        /// Largest divisor that fits, in bytes.
        best: usize,
    },
    /// A frame of no length.
    #[error("cannot send frames of length 0")]
    EmptyFrame,
}

/// Returns the bytes of data in each datagram (without its `transport_header`: 8 bytes of sequence number for VTP, none for plain
/// UDP) for frames of `frame_length` bytes over an IP path with the given MTU.
///
/// With [`Rule::Frames`] the data are the largest exact divisor of the frame for which headers and data together are *less* than
/// the MTU, as in jive5ab. With [`Rule::Plain`] they fill the MTU.
pub fn payload_length(
    frame_length: usize,
    mtu: usize,
    family: Family,
    transport_header: usize,
    rule: Rule,
) -> Result<usize, PacketiseError> {
    if frame_length == 0 {
        return Err(PacketiseError::EmptyFrame);
    }
    let headers = family.ip_header() + UDP_HEADER + transport_header;
    let longest = family.longest_payload() - transport_header;
    let room = mtu.saturating_sub(headers);
    let too_small = PacketiseError::MtuTooSmall { mtu, headers };
    match rule {
        Rule::Plain => match room.min(longest) & !7 {
            0 => Err(too_small),
            length => Ok(length),
        },
        Rule::Frames => {
            let max = room.saturating_sub(1).min(longest);
            if max == 0 {
                return Err(too_small);
            }
            let best = largest_divisor(frame_length, max);
            if best >= MIN_FRAGMENT.min(frame_length) {
                return Ok(best);
            }
            Err(match smallest_divisor(frame_length, longest) {
                Some(part) => PacketiseError::SmallParts {
                    frame_length,
                    mtu,
                    best,
                    enough: part + headers + 1,
                },
                None => PacketiseError::NoDivisor { frame_length, best },
            })
        }
    }
}

/// Returns the largest divisor of `number` up to `max`.
fn largest_divisor(number: usize, max: usize) -> usize {
    let mut parts = (1..=max.min(number)).rev();
    let divisor = parts.find(|part| number.is_multiple_of(*part));
    divisor.unwrap_or(1)
}

/// Returns the smallest divisor of `number` that is worth a datagram, up to `max`.
fn smallest_divisor(number: usize, max: usize) -> Option<usize> {
    (MIN_FRAGMENT.min(number)..=max).find(|part| number.is_multiple_of(*part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VTP: usize = 8;

    #[test]
    fn as_jive5ab_cuts_vdif() {
        let cut = |frame, mtu| payload_length(frame, mtu, Family::V4, VTP, Rule::Frames);
        assert_eq!(cut(8032, 1500), Ok(1004));
        assert_eq!(cut(8032, 8069), Ok(8032));
        assert_eq!(cut(8032, 8068), Ok(4016));
        assert_eq!(cut(8032, 9000), Ok(8032));
        assert_eq!(cut(5032, 1500), Ok(1258));
        assert_eq!(cut(10_016, 1500), Ok(1252));
        assert_eq!(cut(1032, 65_536), Ok(1032));
        assert_eq!(
            payload_length(8032, 1500, Family::V6, VTP, Rule::Frames),
            Ok(1004)
        );
    }

    #[test]
    fn as_jive5ab_cuts_mark4() {
        let cut = |frame, mtu| payload_length(frame, mtu, Family::V4, VTP, Rule::Frames);
        for (tracks, parts) in [
            (8, [1250, 4000, 5000]),
            (16, [1250, 4000, 8000]),
            (32, [1250, 4000, 8000]),
            (64, [1280, 4000, 8000]),
        ] {
            let lengths = [1500, 4470, 9000].map(|mtu| cut(2500 * tracks, mtu).unwrap());
            assert_eq!(lengths, parts, "{tracks}");
        }
    }

    #[test]
    fn as_jive5ab_cuts_bytes() {
        let cut = |mtu| payload_length(8032, mtu, Family::V4, VTP, Rule::Plain);
        assert_eq!(cut(1500), Ok(1464));
        assert_eq!(cut(9000), Ok(8960));
        assert_eq!(cut(65_536), Ok(65_496));
        assert_eq!(cut(1_000_000), Ok(65_496));
    }

    #[test]
    fn errors_of_frames_that_cannot_be_split_suggest_an_mtu() {
        let cut = |frame, mtu| payload_length(frame, mtu, Family::V4, VTP, Rule::Frames);
        assert!(matches!(
            cut(8032, 36),
            Err(PacketiseError::MtuTooSmall { .. })
        ));
        assert_eq!(cut(0, 1500), Err(PacketiseError::EmptyFrame));
        // 8 * 1009 (a prime): the divisors that fit 1500 are 1009 and smaller.
        assert_eq!(cut(8 * 1009, 1500), Ok(1009));
        // 8 * 1511: 1511 bytes fit as soon as the MTU is above 36 + 1511.
        let error = cut(8 * 1511, 1500).unwrap_err();
        assert!(
            matches!(error, PacketiseError::SmallParts { enough: 1548, .. }),
            "{error}"
        );
        assert_eq!(cut(8 * 1511, 1547), Err(error_at(1547)));
        assert_eq!(cut(8 * 1511, 1548), Ok(1511));
        // 8 * 65521 has no divisor from 200 to the longest datagram: no MTU suffices.
        let error = cut(8 * 65_521, 65_536).unwrap_err();
        assert_eq!(
            error,
            PacketiseError::NoDivisor {
                frame_length: 8 * 65_521,
                best: 8
            }
        );
        assert!(!error.to_string().contains("raise"), "{error}");
    }

    fn error_at(mtu: usize) -> PacketiseError {
        PacketiseError::SmallParts {
            frame_length: 8 * 1511,
            mtu,
            best: 8,
            enough: 1548,
        }
    }

    #[test]
    fn longer_headers_of_ipv6_count() {
        let cut = |mtu, rule| payload_length(8032, mtu, Family::V6, VTP, rule);
        assert_eq!(cut(1500, Rule::Plain), Ok(1440));
        assert_eq!(cut(9000, Rule::Plain), Ok(8944));
        assert_eq!(cut(8089, Rule::Frames), Ok(8032));
        assert_eq!(cut(8088, Rule::Frames), Ok(4016));
        // RFC 8200: the fixed header is not part of the payload length.
        assert_eq!(cut(1_000_000, Rule::Plain), Ok(65_512));
    }

    #[test]
    fn without_sequence_number_there_is_more_room() {
        let cut = |mtu| payload_length(8032, mtu, Family::V4, 0, Rule::Frames);
        assert_eq!(cut(8061), Ok(8032));
        assert_eq!(cut(8060), Ok(4016));
    }

    proptest! {
        #[test]
        fn data_divides_the_frame_and_fits(
            words in 8usize..20_000, mtu in 576usize..70_000, v6: bool,
        ) {
            let frame = words * 8;
            let (family, headers, longest) = match v6 {
                true => (Family::V6, 56, 65_519),
                false => (Family::V4, 36, 65_499),
            };
            let fits = |part: usize, mtu: usize| {
                frame.is_multiple_of(part) && headers + part < mtu && part <= longest
            };
            let largest = (1..=frame).rev().find(|part| fits(*part, mtu));
            match payload_length(frame, mtu, family, VTP, Rule::Frames) {
                Ok(length) => prop_assert_eq!(Some(length), largest),
                Err(PacketiseError::SmallParts { best, enough, .. }) => {
                    prop_assert_eq!(Some(best), largest);
                    let now = payload_length(frame, enough, family, VTP, Rule::Frames);
                    prop_assert!(now.is_ok_and(|length| length >= 200));
                    prop_assert!(payload_length(frame, enough - 1, family, VTP, Rule::Frames).is_err());
                }
                Err(error) => {
                    prop_assert_eq!(&error, &PacketiseError::NoDivisor { frame_length: frame, best: largest.unwrap() });
                    prop_assert!(payload_length(frame, 70_000, family, VTP, Rule::Frames).is_err());
                }
            }
        }

        #[test]
        fn no_lengths_panic(frame: usize, mtu: usize, v6: bool, plain: bool) {
            let family = if v6 { Family::V6 } else { Family::V4 };
            let rule = if plain { Rule::Plain } else { Rule::Frames };
            let _ = payload_length(frame, mtu, family, VTP, rule);
        }
    }
}

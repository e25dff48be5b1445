//! Any bytes as a VTP datagram: header and data are written unchanged.

use evlbi_wire::vtp;

pub fn run(datagram: &[u8]) {
    match vtp::split(datagram) {
        Some((sequence, data)) => {
            assert_eq!(datagram, [&vtp::header(sequence), data].concat());
        }
        None => assert!(datagram.len() < vtp::HEADER_LEN),
    }
}

//! Any bytes as a datagram of a test: the parsed header is written unchanged.

use evlbi_wire::probe::Probe;

pub fn run(datagram: &[u8]) {
    if let Some(probe) = Probe::parse(datagram) {
        assert_eq!(
            datagram[..probe.length()],
            probe.to_bytes()[..probe.length()]
        );
    }
}

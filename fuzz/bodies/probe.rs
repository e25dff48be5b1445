//! Any bytes as a datagram of a test: what is read of it makes its header again.

use evlbi_wire::probe::Probe;

pub fn run(datagram: &[u8]) {
    if let Some(probe) = Probe::parse(datagram) {
        assert_eq!(
            datagram[..probe.length()],
            probe.to_bytes()[..probe.length()]
        );
    }
}

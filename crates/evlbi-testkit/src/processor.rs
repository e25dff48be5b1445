//! The CPU from which tests send: datagrams from one CPU stay in order.

use evlbi_net::cpu;

/// Returns its number.
pub fn number() -> usize {
    cpu::allowed_cores().expect("processors")[0]
}

/// Pins this thread, and the programs that it starts, to that CPU.
pub fn stay() {
    cpu::pin(number()).unwrap();
}

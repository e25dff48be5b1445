//! The processor that tests send from: what leaves from one arrives in its order.

use evlbi_net::cpu;

/// Its number.
pub fn number() -> usize {
    cpu::allowed_cores().expect("processors")[0]
}

/// Keeps this thread, and the programs that it starts, on that processor.
pub fn stay() {
    cpu::pin(number()).unwrap();
}

//! The deframer against streams whose truth is known: what was lost comes back as invalid frames with the
//! headers that were lost, and all else as it was.

mod formats;
mod hostile;
mod loss;
mod reference;
mod stream;

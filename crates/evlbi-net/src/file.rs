//! Recordings on disk: read ahead of the sender, and written in large pieces from the ring.

mod read;
mod write;

pub use read::{Block, ReadError, Reader, ReaderOptions};
pub use write::{Durability, WriteError, Writer, WriterOptions};

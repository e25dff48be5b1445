//! Files: recordings, which are read ahead of the sender and written in large pieces from the ring; JSON documents and CSV tables.
//!
//! This module reads and writes files. What a recording is, and where it goes, is decided in `evlbi-stream`.

mod output;
mod read;
mod table;
mod write;

pub use output::{OutputError, Part, check_new, is_special, replace_json, same_file};
pub use read::{Block, Fill, ReadError, Reader, ReaderOptions};
pub use table::{Table, TableError, table_text};
pub use write::{Durability, WriteError, Writer, WriterOptions};

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail with an error, as on a full disk, instead of killing the program.
/// Call it once at the start.
pub fn report_size_limits() {
    // SAFETY: ignoring a signal installs no handler and touches no memory of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

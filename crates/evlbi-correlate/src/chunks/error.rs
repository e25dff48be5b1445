//! Reasons why a plan cannot be made, or parts cannot be correlated or merged.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use evlbi_fx::simd::Simd;
use evlbi_wire::units::show_count;

use crate::CorrelateError;
use crate::files::FileError;

/// Reasons why a plan cannot be made, or parts cannot be correlated or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The recordings cannot be correlated.
    #[error("{0}")]
    Correlate(#[from] CorrelateError),
    /// A file or directory cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// The plan is damaged.
    #[error("{} is not a plan of parts", path.display())]
    Plan {
        /// Path of the plan.
        path: PathBuf,
        /// The damage.
        source: serde_json::Error,
    },
    /// The plan contradicts itself.
    #[error("the plan {} contradicts itself", .0.display())]
    Contradicts(PathBuf),
    /// The plan is not what it was when it was made.
    #[error("the plan {} was changed after it was made", .0.display())]
    Edited(PathBuf),
    /// Even one group of bands takes more memory than allowed.
    #[error("a part takes {} MB of memory, even with the fewest bands", show_count(.0.div_ceil(1_000_000)))]
    Memory(u64),
    /// The plan has no such part.
    #[error("the plan has no part {part}: its parts are 1 to {parts}")]
    NoPart {
        /// Number of the part.
        part: usize,
        /// Number of parts.
        parts: usize,
    },
    /// Another version of the program made the plan.
    #[error("version {plan} made the plan, and this is version {ours}: their results could differ")]
    Version {
        /// Version that made the plan.
        plan: String,
        /// This version.
        ours: &'static str,
    },
    /// A recording is another one than when the plan was made.
    #[error("{} is not the recording of the plan: {what}", path.display())]
    Changed {
        /// Path of the recording.
        path: PathBuf,
        /// Difference.
        what: String,
    },
    /// A model or table is another one than when the plan was made.
    #[error("{} was changed after the plan was made", .0.display())]
    ChangedText(PathBuf),
    /// The directory has parts of another plan.
    #[error("{} has parts of another plan", .0.display())]
    OtherPlan(PathBuf),
    /// The directory has no plan.
    #[error("{} has no parts of a plan", .0.display())]
    NoParts(PathBuf),
    /// The file of a part is not what its host wrote.
    #[error("part {part}, of host {host}, is damaged: {} {why}", path.display())]
    Damaged {
        /// Number of the part.
        part: usize,
        /// Host that correlated it.
        host: String,
        /// Path of its sums.
        path: PathBuf,
        /// Damage.
        why: String,
    },
    /// Two results of a part differ.
    #[error("part {part} differs between hosts {} and {}: {} and {}", hosts[0], hosts[1], paths[0].display(), paths[1].display())]
    Differ {
        /// Number of the part.
        part: usize,
        /// Hosts that correlated it.
        hosts: [String; 2],
        /// Paths of their sums.
        paths: [PathBuf; 2],
    },
    /// Parts were correlated with different vector instructions.
    #[error(
        "part {} of host {} was correlated with {} instructions, and part {} of host {} with {}: their last digits could differ",
        parts[0], hosts[0], simd[0], parts[1], hosts[1], simd[1]
    )]
    Simd {
        /// Numbers of two parts.
        parts: [usize; 2],
        /// Hosts that correlated them.
        hosts: [String; 2],
        /// Their instructions.
        simd: [Simd; 2],
    },
    /// Parts were correlated with different sines and cosines.
    #[error(
        "part {} of host {} and part {} of host {} were correlated with different sines and cosines, of the C library or the CPU: their last digits could differ",
        parts[0], hosts[0], parts[1], hosts[1]
    )]
    Sines {
        /// Numbers of two parts.
        parts: [usize; 2],
        /// Hosts that correlated them.
        hosts: [String; 2],
    },
    /// Parts are missing.
    #[error("{} of {of} parts are missing: {}", parts.len(), listed(parts))]
    Missing {
        /// Numbers of the missing parts.
        parts: Vec<usize>,
        /// Number of parts.
        of: usize,
    },
    /// A command did not fetch the bytes of a recording.
    #[error("cannot fetch bytes of {}: `{command}` {why}", path.display())]
    Stage {
        /// Path of the recording.
        path: PathBuf,
        /// Command that ran.
        command: String,
        /// Reason.
        why: String,
        /// Whether the same command may succeed later.
        may_succeed: bool,
    },
    /// The run was stopped before the part was complete.
    #[error("interrupted before the part was complete")]
    Interrupted,
}

impl ChunkError {
    /// Returns whether the same may succeed later or elsewhere: a file is not there yet, a file system is full or away, memory is short,
    /// or a host does not answer.
    pub fn is_temporary(&self) -> bool {
        match self {
            ChunkError::Stage { may_succeed, .. } => return *may_succeed,
            ChunkError::Interrupted => return true,
            _ => {}
        }
        let mut cause: Option<&(dyn Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if kind.is_some_and(is_temporary) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

fn is_temporary(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        HostUnreachable, NotFound, OutOfMemory, QuotaExceeded, ResourceBusy,
        StaleNetworkFileHandle, StorageFull, TimedOut, WouldBlock,
    };
    matches!(
        kind,
        NotFound
            | StorageFull
            | QuotaExceeded
            | OutOfMemory
            | ResourceBusy
            | StaleNetworkFileHandle
            | TimedOut
            | WouldBlock
            | HostUnreachable
    )
}

/// Lists numbers in ascending order; of several in a row the first and the last.
pub fn listed(numbers: &[usize]) -> String {
    let rows = numbers.chunk_by(|a, b| *b == a + 1);
    let rows = rows.map(|row| match row {
        [first, .., last] => format!("{first} to {last}"),
        row => row.iter().map(usize::to_string).collect(),
    });
    rows.collect::<Vec<String>>().join(", ")
}

//! The command that correlates a part.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Exit status of a part that may succeed if it is tried again.
pub const TRY_AGAIN: i32 = 75;
/// Bytes at the end of what a program printed in which its last line is searched for.
const LAST: u64 = 4096;

/// The command that correlates a part: the same on all hosts but for the number.
#[derive(Clone, Debug)]
pub struct Task {
    /// Path of this program on the hosts.
    pub program: PathBuf,
    /// Path of the plan, as the hosts find it.
    pub plan: PathBuf,
    /// Directory of the parts, as the hosts find it.
    pub directory: PathBuf,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// How often a part is tried again that may then succeed.
    pub retries: u32,
}

impl Task {
    /// Returns the arguments for a part.
    pub fn arguments_for<'a>(&'a self, part: &'a OsStr) -> impl Iterator<Item = &'a OsStr> {
        let fixed = [
            "correlate".as_ref(),
            "--plan".as_ref(),
            self.plan.as_os_str(),
            "--part".as_ref(),
            part,
            "--out".as_ref(),
            self.directory.as_os_str(),
        ];
        fixed
            .into_iter()
            .chain(self.arguments.iter().map(OsStr::new))
    }
}

/// Returns the last line of a file that a program wrote; nothing if there is none.
pub fn last_line(path: &Path) -> String {
    fs::File::open(path).map_or(String::new(), last_line_of)
}

/// Returns the last line of an open file.
pub fn last_line_of(mut file: fs::File) -> String {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::End(0))
        .and_then(|length| file.seek(SeekFrom::Start(length.saturating_sub(LAST))))
        .and_then(|_| file.read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.trim().lines().last().unwrap_or_default();
    line.trim_start_matches("evlbi: ").to_owned()
}

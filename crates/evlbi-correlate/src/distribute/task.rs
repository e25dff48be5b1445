//! The command that correlates a part.

use std::ffi::OsStr;
use std::path::PathBuf;

/// Exit status of a part that may succeed if it is tried again.
pub const TRY_AGAIN: i32 = 75;

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

//! Another revision of the workspace, to be built and run next to this one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{output_of, well};

/// Tree for all revisions: what they share is compiled only once.
const TREE: &str = "target/base";

/// Returns the commit that a name stands for.
///
/// # Errors
/// Returns an error if git does not know the name.
pub fn commit(revision: &str) -> Result<String> {
    let commit = format!("{revision}^{{commit}}");
    output_of("git", &["rev-parse", "--verify", &commit])
        .with_context(|| format!("git does not know the revision `{revision}`"))
}

/// Returns the absolute path of a tree of the revision, which has a `target` of its own.
///
/// # Errors
/// Returns an error if git does not know the revision, or the disk is full.
pub fn tree(revision: &str) -> Result<PathBuf> {
    let commit = commit(revision)?;
    let tree = std::path::absolute(TREE)?;
    if !tree.exists() {
        // It reads the objects of this repository, also those of later commits.
        let clone = ["clone", "--quiet", "--shared", "--no-checkout", "."];
        well(Command::new("git").args(clone).arg(&tree))?;
    }
    let checkout = ["checkout", "--quiet", "--detach", "--force", &commit];
    well(Command::new("git").arg("-C").arg(&tree).args(checkout))?;
    Ok(tree)
}

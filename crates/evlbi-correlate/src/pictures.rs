//! Figures as files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use evlbi_plot::Figure;

/// Writes a figure as `STEM.svg` and `STEM.png` into a directory, which is made; returns their paths.
///
/// # Errors
/// When one exists and is not to be overwritten, or cannot be written.
#[cfg(feature = "pictures")]
pub fn write(figure: &Figure, directory: &Path, stem: &str, force: bool) -> Result<Vec<PathBuf>> {
    use anyhow::Context;

    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let files = figure.files(directory, stem)?;
    let paths = files.iter().map(|(path, _)| path.as_path());
    evlbi_net::file::check_new(paths, force)?;
    let written = files.into_iter().map(|(path, bytes)| {
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    });
    written.collect()
}

/// Draws nothing: the crate was built without its feature `pictures`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "pictures"))]
pub fn write(_: &Figure, directory: &Path, stem: &str, _: bool) -> Result<Vec<PathBuf>> {
    let path = directory.join(stem);
    anyhow::bail!(
        "cannot draw {}: this program was built without pictures",
        path.display()
    )
}

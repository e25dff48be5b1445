//! Writes figures to files.

use std::path::{Path, PathBuf};

use evlbi_net::file::{OutputError, check_new};
use evlbi_plot::Figure;

use crate::files::FileError;

/// Reasons why a picture cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// Its directory or its file cannot be created.
    #[error("{0}")]
    File(#[from] FileError),
    /// It already exists and must not be overwritten.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// It cannot be drawn.
    #[cfg(feature = "pictures")]
    #[error("{0}")]
    Draw(#[from] evlbi_plot::DrawError),
    /// The crate was built without its feature `pictures`.
    #[cfg(not(feature = "pictures"))]
    #[error("cannot draw {}: this program was built without pictures", .0.display())]
    Without(PathBuf),
}

/// Whether figures are drawn, i.e. the crate was built with its feature `pictures`.
pub const ARE_DRAWN: bool = cfg!(feature = "pictures");

/// Checks whether [`write()`] can write figures of these names to a directory; call it before long work.
///
/// # Errors
/// Returns an error if a picture exists and must not be overwritten.
pub fn check(
    directory: &Path,
    stems: impl IntoIterator<Item = String>,
    force: bool,
) -> Result<(), PictureError> {
    let paths = stems
        .into_iter()
        .flat_map(|stem| ["svg", "png"].map(|ending| directory.join(format!("{stem}.{ending}"))));
    let paths: Vec<PathBuf> = paths.collect();
    Ok(check_new(paths.iter().map(PathBuf::as_path), force)?)
}

/// Writes a figure as `STEM.svg` and `STEM.png` to a directory, which is created; returns their paths.
///
/// # Errors
/// Returns an error if one exists and must not be overwritten, or cannot be written.
#[cfg(feature = "pictures")]
pub fn write(
    figure: &Figure,
    directory: &Path,
    stem: &str,
    force: bool,
) -> Result<Vec<PathBuf>, PictureError> {
    crate::files::make_directory(directory)?;
    let files = figure.files(directory, stem)?;
    let paths = files.iter().map(|(path, _)| path.as_path());
    check_new(paths, force)?;
    let written = files.into_iter().map(|(path, bytes)| {
        std::fs::write(&path, bytes).map_err(FileError::at("cannot write", &path))?;
        Ok(path)
    });
    written.collect()
}

/// Returns an error: the crate was built without its feature `pictures`.
///
/// # Errors
/// Always returns an error.
#[cfg(not(feature = "pictures"))]
pub fn write(
    _: &Figure,
    directory: &Path,
    stem: &str,
    _: bool,
) -> Result<Vec<PathBuf>, PictureError> {
    Err(PictureError::Without(directory.join(stem)))
}

//! Figures as files.

use std::path::{Path, PathBuf};

use evlbi_net::file::{OutputError, check_new};
use evlbi_plot::Figure;

use crate::files::FileError;

/// Why a picture is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// Its directory or its file cannot be made.
    #[error("{0}")]
    File(#[from] FileError),
    /// It is there already, and is not to be overwritten.
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

/// Whether figures are drawn: the crate was built with its feature `pictures`.
pub const ARE_DRAWN: bool = cfg!(feature = "pictures");

/// Whether figures of these names can be written into a directory by [`write()`]: asked before what takes long.
///
/// # Errors
/// When a picture exists and is not to be overwritten.
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

/// Writes a figure as `STEM.svg` and `STEM.png` into a directory, which is made; returns their paths.
///
/// # Errors
/// When one exists and is not to be overwritten, or cannot be written.
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

/// Draws nothing: the crate was built without its feature `pictures`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "pictures"))]
pub fn write(
    _: &Figure,
    directory: &Path,
    stem: &str,
    _: bool,
) -> Result<Vec<PathBuf>, PictureError> {
    Err(PictureError::Without(directory.join(stem)))
}

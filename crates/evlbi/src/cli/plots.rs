//! `--plot`: pictures of results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evlbi_net::file::{check_new, same_file};
use evlbi_plot::Figure;
use serde::Serialize;

use crate::status::Usage;

/// Width and height of a picture on a terminal.
const TERMINAL: (usize, usize) = (100, 60);

/// Returns a copy of these paths, after checking that each picture can be drawn and written, does not exist yet, and is none of
/// the command's `others`.
pub fn checked<'a>(
    plots: &[PathBuf],
    force: bool,
    others: &(impl IntoIterator<Item = &'a PathBuf> + Clone),
) -> Result<Vec<PathBuf>> {
    let files = plots.iter().map(PathBuf::as_path);
    let files = files.filter(|path| !is_terminal(path));
    for path in files.clone() {
        if !matches!(ending(path), Some("svg" | "png" | "html")) {
            bail!(Usage(format!(
                "cannot draw {}: give a file name that ends in .svg, .png or .html, or - for the terminal",
                path.display()
            )));
        }
        only_one(path, others.clone())?;
        can_write(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    check_new(files, force)?;
    Ok(plots.to_vec())
}

/// Checks that an output is none of the others of a command.
pub(super) fn only_one<'a>(
    path: &Path,
    others: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<()> {
    let mut others = others.into_iter();
    match others.any(|other| other == path || same_file(other, path)) {
        true => bail!(Usage(format!(
            "{} is another file of this command: give each its own name",
            path.display()
        ))),
        false => Ok(()),
    }
}

fn ending(path: &Path) -> Option<&str> {
    path.extension()?.to_str()
}

/// A measurement of hours must not end in a picture that cannot be written.
pub(super) fn can_write(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("it is a directory: give the name of a file in it");
    }
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let place = match path.exists() {
        true => path,
        false => directory.unwrap_or(Path::new(".")),
    };
    Ok(nix::unistd::access(place, nix::unistd::AccessFlags::W_OK)?)
}

pub(super) fn is_terminal(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Draws a result, as each path says; on a page with its text and all of it as JSON, where that is HTML.
pub fn draw<T: Serialize>(
    plots: &[PathBuf],
    result: &T,
    figure: impl Fn(&T) -> Figure,
    text: impl Fn(&T) -> String,
) -> Result<()> {
    for path in plots {
        let figure = figure(result);
        if is_terminal(path) {
            say!("{}", figure.text(TERMINAL.0, TERMINAL.1));
            continue;
        }
        let bytes = match ending(path) {
            Some("svg") => figure.svg()?.into_bytes(),
            Some("png") => figure.png()?,
            _ => page(&figure, &text(result), result)?.into_bytes(),
        };
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A page that needs nothing else.
fn page<T: Serialize>(figure: &Figure, text: &str, result: &T) -> Result<String> {
    let json = serde_json::to_string(result).context("cannot write the result as JSON")?;
    let escape = |text: &str| {
        let text = text.replace('&', "&amp;");
        text.replace('<', "&lt;").replace('>', "&gt;")
    };
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body style=\"font-family:sans-serif\">\n{svg}\n<pre>{text}</pre>\n\
         <script type=\"application/json\" id=\"result\">{json}</script>\n</body></html>\n",
        title = escape(&figure.title),
        svg = figure.svg()?,
        text = escape(text),
        json = json.replace("</", "<\\/"),
    ))
}

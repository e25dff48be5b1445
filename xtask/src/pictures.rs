//! `cargo xtask pictures`: draws the pictures of docs/src that the program makes. Seeds are fixed; what a picture shows of this
//! machine's speed differs from run to run.
//!
//! Drawings by hand are in docs/src/drawings.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;
use evlbi_testkit::{Room, cargo, command};

use crate::run::well;

const DOCS: &str = "docs/src";

/// A picture, and the lines of a shell that draw a file of its name in the working directory. `$TREE` is the workspace.
const PICTURES: [(&str, &str); 9] = [
    (
        "demo.svg",
        "evlbi demo --rate 64M --duration 10s --json --plot demo.svg",
    ),
    (
        "pictures/fringe.svg",
        "evlbi sky $TREE/examples/sky-three-stations.toml --out sky
         evlbi fringe sky/Ef.vdif sky/Jb.vdif --freq 4.98G --delay 0 --delay -0.765ms,-1.3e-7 --out .
         mv fringe-*.svg fringe.svg",
    ),
    (
        "pictures/loss-curve.svg",
        "evlbi sky $TREE/examples/sky-three-stations.toml --out sky
         evlbi loss-curve sky/Ef.vdif sky/Jb.vdif --freq 4.98G --delay 0 --delay -0.765ms,-1.3e-7 --loss 0.5%..20% \
             --shed random --replace nothing,fill --out curves
         mv curves/one-random.svg loss-curve.svg",
    ),
    (
        "pictures/map.svg",
        "evlbi sky $TREE/xtask/pictures/mark4.toml --out sky
         evlbi loss-curve sky/Ef.vdif sky/Jb.m4 --map --loss 5%,10%,15%,20%,30% --shed random --replace fill --knows headers \
             --integration 800ms --channels 64 --out curves
         mv curves/map.svg map.svg",
    ),
    (
        "pictures/loss-by-place.svg",
        "evlbi path run $TREE/xtask/pictures/lossy.toml -- sh -c '
             evlbi path exec jive -- evlbi respond --bind 0.0.0.0:8620 --token T &
             sleep 1
             evlbi probe udp jive:8620 --token T --rate 20M,40M --buffer 4KiB --duration 3s --plot loss-by-place.svg'",
    ),
    (
        "pictures/sweep.svg",
        "evlbi path run $TREE/xtask/pictures/full.toml -- sh -c '
             evlbi path exec jive -- evlbi respond --bind 0.0.0.0:8620 --token T &
             sleep 1
             evlbi probe udp jive:8620 --token T --size 472,1472 --spacing 200us..2ms:100us --count 500 --plot sweep.svg'",
    ),
    // The costs are those that distribute.md shows.
    (
        "pictures/cluster.svg",
        "evlbi plan distribute --costs 3.0442,0.15331 --cores 64 --json --plot cluster.svg",
    ),
    ("page-light.png", "sh $TREE/xtask/pictures/page.sh page-light.png 1200 1700 light"),
    ("page-phone-dark.png", "sh $TREE/xtask/pictures/page.sh page-phone-dark.png 390 1400 dark"),
];

#[derive(Args)]
pub struct PicturesArgs {
    /// Draw only pictures whose names contain this
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

/// Draws them with this tree's program.
///
/// # Errors
/// If the program cannot be built, or a command fails.
pub fn run(args: &PicturesArgs) -> Result<()> {
    well(cargo().args(["build", "--package", "evlbi"]))?;
    let this = std::env::current_exe()?;
    let programs = this.parent().context("no directory of programs")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    let tree = std::env::current_dir()?;
    for (picture, lines) in PICTURES {
        if !picture.contains(&args.only) {
            continue;
        }
        println!("{picture}\n  {lines}");
        let room = Room::new();
        let mut shell = command("sh");
        shell.args(["-ec", lines]).current_dir(room.folder());
        well(shell.env("PATH", &path).env("TREE", &tree))?;
        let to = Path::new(DOCS).join(picture);
        let name = to.file_name().context("no file name")?;
        let drawn = room.folder().join(name);
        ensure!(drawn.exists(), "{} was not drawn", drawn.display());
        fs::create_dir_all(to.parent().context("no directory")?)?;
        fs::copy(&drawn, &to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Every file below a directory with one of these endings.
    fn files(below: &Path, endings: &[&str], all: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(below).expect("a directory").flatten() {
            let path = entry.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if path.is_dir() {
                files(&path, endings, all);
            } else if ending.is_some_and(|ending| endings.contains(&ending)) {
                all.push(path);
            }
        }
    }

    #[test]
    fn every_picture_exists_and_is_on_a_page() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(DOCS);
        let (mut pages, mut pictures) = (Vec::new(), Vec::new());
        files(&docs, &["md"], &mut pages);
        files(&docs, &["svg", "png"], &mut pictures);
        pages.push(docs.join("../../README.md"));
        let pages = pages
            .iter()
            .map(|page| fs::read_to_string(page).expect("a page"));
        let pages: String = pages.collect();
        for (picture, _) in PICTURES {
            assert!(
                docs.join(picture).exists(),
                "cargo xtask pictures --only {picture}"
            );
        }
        for picture in pictures {
            let name = picture.strip_prefix(&docs).expect("a picture of the docs");
            assert!(
                pages.contains(&format!("{})", name.display())),
                "{}",
                name.display()
            );
        }
    }
}

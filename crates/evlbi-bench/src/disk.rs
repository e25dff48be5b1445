//! The writer from memory, compared with plain large writes to the same disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use evlbi_net::file::{Durability, Writer, WriterOptions};

use crate::net::{JUMBO, JUMBO_FRAME, NetArgs};
use crate::stage::{Stage, ours};
use crate::table::{Aim, Figure, Table, median};

const BYTES: usize = 2 << 30;
const PIECE: usize = 16 << 20;

pub fn run(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    // On the disk of the checkout: /tmp may be memory.
    let folder = tempfile::tempdir_in("target")?;
    let path = folder.path().join("bench.vdif");
    from_memory(&path, args, table)?;
    std::fs::remove_file(&path)?;
    stage.wire(JUMBO)?;
    let sink = path.to_string_lossy().into_owned();
    let mut highest: f64 = 0.0;
    for rate in [2.0, 4.0, 8.0, 12.0, 16.0] {
        let run = ours(stage, JUMBO_FRAME, Some(rate), args.seconds, &sink, &[])?;
        eprintln!(
            "    end to end at {rate:4.1} Gbit/s: {:6.2} Gbit/s came, {} datagrams lost",
            run.received, run.lost
        );
        if run.lost == 0 {
            highest = highest.max(run.received);
        }
    }
    let what = "from the network to the disk, without loss";
    table.add(Figure::new(what, highest, "Gbit/s"));
    Ok(())
}

fn from_memory(path: &Path, args: &NetArgs, table: &mut Table) -> Result<()> {
    let data = vec![0x5a; PIECE];
    let (mut plain, mut mine) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        plain.push(timed(|| {
            let mut file = File::create(path)?;
            for _ in 0..BYTES / PIECE {
                file.write_all(&data)?;
            }
            Ok(file.sync_data()?)
        })?);
        mine.push(timed(|| {
            let options = WriterOptions {
                durability: Durability::End,
                ..WriterOptions::default()
            };
            let mut writer = Writer::create(path, options)?;
            for _ in 0..BYTES / PIECE {
                writer.write(&data)?;
            }
            writer.finish()?;
            Ok(())
        })?);
    }
    table.version("plain writes", "of 16 MiB");
    let figure = Figure::new(
        "the writer, from memory to the disk",
        median(&mut mine),
        "GB/s",
    );
    let figure = figure.beside("plain writes", median(&mut plain));
    table.add(figure.aim(Aim::RatioAtLeast(0.9)));
    Ok(())
}

/// Returns the speed for `BYTES`, in GB/s.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(BYTES as f64 / 1e9 / start.elapsed().as_secs_f64())
}

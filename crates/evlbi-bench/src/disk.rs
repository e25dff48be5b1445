//! The writer from memory, beside plain large writes to the same disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use evlbi_net::file::{Durability, Writer, WriterOptions};

use super::stage::{Stage, ours};
use super::{JUMBO, JUMBO_FRAME, NetArgs, median, verdict};

const BYTES: usize = 2 << 30;
const PIECE: usize = 16 << 20;

pub fn run(stage: &Stage, args: &NetArgs) -> Result<()> {
    let path = Path::new("target").join("bench.vdif");
    let data = vec![0x5a; PIECE];
    let (mut plain, mut mine) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        plain.push(timed(|| {
            let mut file = File::create(&path)?;
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
            let mut writer = Writer::create(&path, options)?;
            for _ in 0..BYTES / PIECE {
                writer.write(&data)?;
            }
            writer.finish()?;
            Ok(())
        })?);
    }
    let (plain, mine) = (median(&mut plain), median(&mut mine));
    println!("  plain writes of 16 MiB      {plain:6.2} GB/s, forced to the disk at the end");
    println!("  the writer                  {mine:6.2} GB/s, likewise");
    println!(
        "  ratio                       {:6.2}   aim 0.9: {}",
        mine / plain,
        verdict(mine >= 0.9 * plain)
    );
    stage.wire(JUMBO)?;
    let sink = path.to_string_lossy().into_owned();
    for rate in [2.0, 4.0, 8.0, 12.0, 16.0] {
        let run = ours(stage, JUMBO_FRAME, Some(rate), args.seconds, &sink, &[])?;
        println!(
            "  end to end at {rate:4.1} Gbit/s     {:6.2} Gbit/s came, {} datagrams lost",
            run.received, run.lost
        );
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// GB/s of `BYTES`.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(BYTES as f64 / 1e9 / start.elapsed().as_secs_f64())
}

//! Writes a gaps file while frames are dropped, so that it takes no memory however long the recording is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Gaps, SequenceGap, TimeGap};
use evlbi_wire::vdif::StreamKey;

/// Writes the document.
pub struct GapsWriter {
    file: BufWriter<File>,
    frame_rate: Option<FrameRate>,
    /// Rest of the document, after the list.
    tail: String,
    /// Runs that may continue.
    runs: HashMap<StreamKey, TimeGap>,
    packets: Option<SequenceGap>,
    count: u64,
}

impl GapsWriter {
    /// Writes the start of `document`, whose own lists are empty; `list` is the name of the list to write.
    pub fn new(file: File, document: &Gaps, list: &str) -> io::Result<GapsWriter> {
        let text = serde_json::to_string(document)?;
        let before = format!("\"{list}\":[");
        // The lists come after all text that a user chose.
        let at = text.rfind(&before).map_or(0, |at| at + before.len());
        let (head, tail) = text.split_at(at);
        let mut file = BufWriter::new(file);
        file.write_all(head.as_bytes())?;
        Ok(GapsWriter {
            file,
            frame_rate: document.frame_rate,
            tail: tail.to_string(),
            runs: HashMap::new(),
            packets: None,
            count: 0,
        })
    }

    /// Adds a gap; joins it with the previous one of its thread if it follows directly.
    pub fn add(&mut self, gap: TimeGap) -> io::Result<()> {
        if let Some(run) = self.runs.get_mut(&gap.key) {
            if run.bytes == gap.bytes && after(run, self.frame_rate) == Some(gap.start) {
                run.frames += gap.frames;
                return Ok(());
            }
            let run = std::mem::replace(run, gap);
            return self.write(&run);
        }
        self.runs.insert(gap.key, gap);
        Ok(())
    }

    /// Adds a packet by its number; numbers must increase.
    pub fn add_packet(&mut self, number: u64) -> io::Result<()> {
        if let Some(run) = &mut self.packets
            && run.last + 1 == number
        {
            run.last = number;
            return Ok(());
        }
        let next = SequenceGap {
            first: number,
            last: number,
        };
        match self.packets.replace(next) {
            Some(run) => self.write(&run),
            None => Ok(()),
        }
    }

    /// Writes the end of the document; returns the number of gaps in it.
    pub fn finish(mut self) -> io::Result<u64> {
        let mut runs: Vec<TimeGap> = self.runs.drain().map(|(_, run)| run).collect();
        runs.sort_by_key(|run| (run.start.second, run.start.frame, run.key));
        for run in runs {
            self.write(&run)?;
        }
        if let Some(run) = self.packets.take() {
            self.write(&run)?;
        }
        writeln!(self.file, "\n{}", self.tail)?;
        self.file.flush()?;
        Ok(self.count)
    }

    fn write(&mut self, gap: &impl serde::Serialize) -> io::Result<()> {
        let separator: &[u8] = if self.count == 0 { b"\n" } else { b",\n" };
        self.file.write_all(separator)?;
        serde_json::to_writer(&mut self.file, gap)?;
        self.count += 1;
        Ok(())
    }
}

/// Returns the time of the frame that follows the run.
fn after(run: &TimeGap, rate: Option<FrameRate>) -> Option<FrameTime> {
    if let Some(rate) = rate {
        return Some(FrameTime::from_index(run.indices(rate).end, rate));
    }
    Some(FrameTime {
        second: run.start.second,
        frame: run.start.frame.checked_add(run.frames.try_into().ok()?)?,
    })
}

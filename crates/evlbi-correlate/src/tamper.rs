//! Damages frames between a file and the correlator, as a lossy path and a reader that searches for headers would.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use evlbi_core::shed::{Replace, Shed, Unit};
use evlbi_fx::loss::packets::Step;
use evlbi_fx::unpack::Recorded;
use serde::Serialize;

use super::arrived::Arrived;

/// Treatment of frames whose header is lost, by their reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Search {
    /// It continues by prediction, as this program's decoder does: the frame keeps its time and its other data.
    #[default]
    Flywheel,
    /// It drops such a frame, and this many after it: it needs more headers until it is in step again.
    Drop(u32),
    /// It keeps up to `missing` such frames in a row. At the next one it drops frames until `needed` in a row have a header, and keeps the
    /// last of them.
    Hold {
        /// Number of frames in a row.
        missing: u32,
        /// Number of headers in a row, from 1.
        needed: u32,
    },
}

impl Search {
    /// Returns the need for headers.
    pub(crate) fn step(self) -> Step {
        let (missing, needed) = match self {
            Search::Flywheel => (None, 1),
            Search::Drop(more) => (Some(0), more.saturating_add(1)),
            Search::Hold { missing, needed } => (Some(missing), needed),
        };
        Step { missing, needed }
    }
}

/// Reason why a header search cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid header search `{0}`: give flywheel, drop, drop:N to drop N more frames after each frame without a header, or hold:M:N to keep up to M of them in a row and then drop frames until N in a row have a header"
)]
pub struct SearchError(String);

impl FromStr for Search {
    type Err = SearchError;

    fn from_str(text: &str) -> Result<Search, SearchError> {
        let invalid = || SearchError(text.to_owned());
        let number = |text: &str| text.parse::<u32>().map_err(|_| invalid());
        match text.split(':').collect::<Vec<&str>>()[..] {
            ["flywheel"] => Ok(Search::Flywheel),
            ["drop"] => Ok(Search::Drop(0)),
            ["drop", more] => Ok(Search::Drop(number(more)?)),
            ["hold", missing, needed] => Ok(Search::Hold {
                missing: number(missing)?,
                needed: number(needed).and_then(|it| match it {
                    0 => Err(invalid()),
                    needed => Ok(needed),
                })?,
            }),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Search::Flywheel => f.write_str("flywheel"),
            Search::Drop(0) => f.write_str("drop"),
            Search::Drop(more) => write!(f, "drop:{more}"),
            Search::Hold { missing, needed } => write!(f, "hold:{missing}:{needed}"),
        }
    }
}

impl From<Search> for String {
    fn from(search: Search) -> String {
        search.to_string()
    }
}

/// How frames are damaged, and what their reader does about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage {
    /// Replacement for what is shed.
    pub(crate) replace: Replace,
    /// Length of the packets of a frame that are shed, header included; `None` sheds whole frames, of which a replacement keeps the
    /// header.
    pub(crate) packet: Option<usize>,
    /// Treatment of frames whose header is lost.
    pub(crate) search: Search,
}

/// A stage that sheds frames or packets of one station and replaces them.
pub struct Tamper {
    shed: Shed,
    damage: Damage,
    seed: u64,
    /// Whether the reader drops frames until it has found enough headers.
    is_out_of_step: bool,
    /// Frames without a header up to the current one, and frames with one, in a row.
    run: [u32; 2],
    /// Bytes of samples so far.
    bytes: u64,
    missing: u64,
    replaced: u64,
    /// The current frame, damaged, and its damaged bytes.
    frame: Vec<u8>,
    parts: Vec<Range<usize>>,
}

/// Effect of tampering on a station's frames, as fractions from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tampered {
    /// Frames or packets that were shed.
    pub shed: f64,
    /// Samples that the reader did not get, or dropped.
    pub missing: f64,
    /// Samples that the reader got replaced.
    pub replaced: f64,
    /// Both.
    pub lost: f64,
}

impl Tamper {
    /// Creates a stage with the policy `shed`.
    pub(crate) fn new(shed: Shed, damage: Damage, seed: u64) -> Tamper {
        Tamper {
            shed,
            damage,
            seed,
            is_out_of_step: false,
            run: [0; 2],
            bytes: 0,
            missing: 0,
            replaced: 0,
            frame: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Returns the effect so far.
    pub(crate) fn done(&self) -> Tampered {
        let fraction = |bytes: u64| bytes as f64 / self.bytes.max(1) as f64;
        Tampered {
            shed: self.shed.report().fraction,
            missing: fraction(self.missing),
            replaced: fraction(self.replaced),
            lost: fraction(self.missing + self.replaced),
        }
    }

    /// Passes a frame or its replacement to `push`: whether it is invalid, and its samples.
    pub(crate) fn take(&mut self, frame: &Arrived<'_>, push: &mut dyn FnMut(bool, Recorded<'_>)) {
        let Damage {
            replace, search, ..
        } = self.damage;
        let (header, samples) = (frame.header.len(), frame.samples.samples());
        let unit = Unit::new(frame.key, Some(frame.time), samples);
        self.decide(&unit, header, samples.len());
        let all = samples.len() as u64;
        self.bytes += all;
        // A frame that is marked invalid has its header.
        let is_cut =
            replace != Replace::Invalid && self.parts.iter().any(|part| part.start < header);
        if self.is_dropped(search, is_cut) {
            self.missing += all;
            return;
        }
        if self.parts.is_empty() {
            push(frame.invalid, frame.samples.clone());
            return;
        }
        let in_samples = |at: usize| at.saturating_sub(header);
        let lost = self
            .parts
            .iter()
            .map(|part| in_samples(part.end) - in_samples(part.start));
        let lost = lost.sum::<usize>() as u64;
        match replace {
            Replace::Invalid => {
                self.missing += all;
                push(true, frame.samples.clone());
            }
            Replace::Nothing => {
                self.missing += lost;
                let parts = self.parts.iter_mut();
                parts.for_each(|part| *part = in_samples(part.start)..in_samples(part.end));
                if lost < all {
                    push(frame.invalid, frame.samples.clone().without(&self.parts));
                }
            }
            Replace::Fill | Replace::Random => {
                self.replaced += lost;
                self.frame.clear();
                let (bytes, place) = frame.samples.with_context();
                self.frame.extend_from_slice(frame.header);
                self.frame.extend_from_slice(&bytes[place.start..]);
                for part in &self.parts {
                    let number = in_samples(part.start) as u64;
                    let bytes = &mut self.frame[part.clone()];
                    unit.replace(replace, self.seed, number, 0, bytes);
                }
                let samples = header..header + samples.len();
                if let Some(samples) = Recorded::new(&self.frame, samples) {
                    push(frame.invalid, samples);
                }
            }
        }
    }

    /// Decides which bytes of a frame are shed.
    fn decide(&mut self, unit: &Unit, header: usize, samples: usize) {
        self.parts.clear();
        let length = header + samples;
        let Some(packet) = self.damage.packet else {
            if self.shed.decide(unit) {
                let start = match self.damage.replace {
                    Replace::Nothing => 0,
                    _ => header,
                };
                self.parts.push(start..length);
            }
            return;
        };
        for start in (0..length).step_by(packet.max(1)) {
            if self.shed.decide(unit) {
                let end = length.min(start + packet);
                match self.parts.last_mut() {
                    Some(part) if part.end == start => part.end = end,
                    _ => self.parts.push(start..end),
                }
            }
        }
    }

    /// Returns whether the reader drops the next frame, of which the header is lost or not.
    fn is_dropped(&mut self, search: Search, is_cut: bool) -> bool {
        let Step { missing, needed } = search.step();
        let [misses, found] = self.run;
        self.run = match is_cut {
            true => [misses.saturating_add(1), 0],
            false => [0, found.saturating_add(1)],
        };
        let [misses, found] = self.run;
        self.is_out_of_step = match self.is_out_of_step {
            false => missing.is_some_and(|missing| misses > missing),
            true => found < needed,
        };
        self.is_out_of_step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_searches_are_read_as_they_are_shown() {
        let hold = Search::Hold {
            missing: 2,
            needed: 1,
        };
        for search in [Search::Flywheel, Search::Drop(0), Search::Drop(3), hold] {
            assert_eq!(search.to_string().parse(), Ok(search));
        }
        for bad in [
            "",
            "drop:",
            "drop:-1",
            "fly",
            "hold",
            "hold:2",
            "hold:2:0",
            "hold:2:1:1",
        ] {
            assert!(bad.parse::<Search>().is_err(), "{bad}");
        }
    }
}

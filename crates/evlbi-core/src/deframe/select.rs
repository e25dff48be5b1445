//! Selects the frames of some stations and threads of a stream that several share, and outputs them. What identifies a stream among
//! others belongs here.

use std::collections::BTreeSet;

use evlbi_wire::fill;
use evlbi_wire::validity::TimeGap;
use evlbi_wire::vdif::{StationId, StreamKey};
use serde::{Deserialize, Serialize};

use super::rate::Tick;
use super::{Chunk, Deframer, Frame, FrameState, Sink, Span};

/// Maximum number of stations and threads that are listed.
const MAX_SEEN: usize = 1024;

/// Stations and threads whose frames are output. The default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selected {
    /// Stations; `None` for all.
    pub stations: Option<Vec<StationId>>,
    /// Threads; empty for all.
    pub threads: Vec<u16>,
}

impl Selected {
    /// Selects one station and thread.
    pub fn of(key: StreamKey) -> Selected {
        Selected {
            stations: Some(vec![key.station]),
            threads: vec![key.thread],
        }
    }

    /// Returns whether all frames are selected.
    pub fn is_all(&self) -> bool {
        self.stations.is_none() && self.threads.is_empty()
    }

    /// Returns whether the frames of this station and thread are selected. Frames without a known one are selected only with all others.
    pub fn has(&self, key: Option<StreamKey>) -> bool {
        self.is_all() || key.is_some_and(|key| self.has_station(key) && self.has_thread(key))
    }

    /// Returns the station, if one alone is selected.
    pub fn only_station(&self) -> Option<StationId> {
        match self.stations.as_deref() {
            Some([station]) => Some(*station),
            _ => None,
        }
    }

    /// Returns whether the station is a selected one.
    fn has_station(&self, key: StreamKey) -> bool {
        let stations = self.stations.as_ref();
        stations.is_none_or(|stations| stations.contains(&key.station))
    }

    fn has_thread(&self, key: StreamKey) -> bool {
        self.threads.is_empty() || self.threads.contains(&key.thread)
    }
}

impl Deframer {
    /// Returns the stations and threads that arrived, the first ones; nothing if all are selected.
    pub fn seen(&self) -> &BTreeSet<StreamKey> {
        &self.seen
    }

    /// Returns whether a frame is selected, and notes its stream.
    pub(super) fn select(&mut self, key: Option<StreamKey>, state: FrameState) -> bool {
        let has_arrived = !matches!(state, FrameState::Lost | FrameState::Odd);
        if let Some(key) = key.filter(|_| has_arrived && self.seen.len() < MAX_SEEN) {
            self.seen.insert(key);
        }
        self.settings.selected.has(key)
    }

    /// Lists a gap, unless it is of a stream that is not selected. `next` is the time of the frame after it.
    pub(super) fn list(&mut self, gap: TimeGap, next: Tick) {
        if self.settings.selected.has(Some(gap.key)) {
            self.gaps.add(gap, next);
        }
    }

    /// Outputs what was taken.
    pub(super) fn hand_over(&mut self, span: &mut Span<'_>) {
        let place = span.place();
        let (with_next, taken) = match self.scratch.is_empty() {
            true => {
                let next = place + span.context();
                (&span.bytes.all()[span.from..next], place - span.from)
            }
            false => (&self.scratch[..], self.scratch.len()),
        };
        let mut piece = Chunk {
            bytes: &with_next[..taken],
            with_next,
            frames: &[],
            layout: self.layout(),
            frame_rate: self.frame_rate(),
        };
        let mut length = taken;
        if self.settings.selected.is_all() {
            if length > 0 {
                piece.frames = &self.frames;
                (span.sink)(piece);
            }
        } else {
            length = put_runs(piece, &mut self.frames, span.sink);
            self.counts.unselected_bytes += (taken - length) as u64;
            self.counts.unselected_frames += self.unselected as u64;
        }
        if length > 0 {
            self.count(length);
        }
        self.unselected = 0;
        self.frames.clear();
        self.scratch.clear();
        span.from = place;
    }
}

/// Outputs each run of consecutive `frames` of a piece; returns the number of bytes output. Leaves the frames with their places in these.
fn put_runs(piece: Chunk<'_>, frames: &mut [Frame], sink: Sink<'_>) -> usize {
    let mut length = 0;
    for run in frames.chunk_by_mut(|one, next| one.bytes.end == next.bytes.start) {
        let [Frame { bytes: first, .. }, ..] = run else {
            continue;
        };
        let (start, mut end) = (first.start, first.end);
        for Frame { bytes: place, .. } in run.iter_mut() {
            end = place.end;
            *place = place.start - start..place.end - start;
        }
        length += end - start;
        let next = piece.with_next.len().min(end + fill::CONTEXT);
        sink(Chunk {
            bytes: &piece.bytes[start..end],
            with_next: &piece.with_next[start..next],
            frames: run,
            ..piece
        });
    }
    length
}

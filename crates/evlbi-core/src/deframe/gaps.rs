//! List of missing frames, as runs of consecutive frames of a thread.

use std::collections::HashMap;

use evlbi_wire::validity::TimeGap;
use evlbi_wire::vdif::StreamKey;

use super::rate::Tick;

/// Maximum number of runs in the list; later ones are only counted.
const MAX_GAPS: usize = 1 << 16;

/// Missing frames so far.
#[derive(Clone, Debug, Default)]
pub(super) struct GapLog {
    /// Runs in the order of their first frames.
    pub gaps: Vec<TimeGap>,
    /// Last run of each thread: its index, and the time of the frame that would continue it.
    last: HashMap<StreamKey, (usize, Tick)>,
    /// Number of runs that were not kept.
    pub overflow: u64,
}

impl GapLog {
    /// Adds a run. `next` is the time of the frame after it in the same thread.
    pub fn add(&mut self, missing: TimeGap, next: Tick) {
        if let Some((index, expected)) = self.last.get_mut(&missing.key)
            && *expected == Tick::from(missing.start)
            && let Some(run) = self.gaps.get_mut(*index)
            && run.cause == missing.cause
            && run.bytes == missing.bytes
        {
            run.frames += missing.frames;
            *expected = next;
            return;
        }
        if self.gaps.len() >= MAX_GAPS {
            self.overflow += 1;
            return;
        }
        self.last.insert(missing.key, (self.gaps.len(), next));
        self.gaps.push(missing);
    }
}

#[cfg(test)]
mod tests {
    use evlbi_wire::time::FrameTime;
    use evlbi_wire::validity::Cause;

    use super::*;

    fn frame(number: u32) -> TimeGap {
        TimeGap {
            key: StreamKey::default(),
            start: FrameTime {
                second: 7,
                frame: number,
            },
            frames: 1,
            first_byte: Some(100 * u64::from(number)),
            bytes: None,
            cause: Cause::Lost,
        }
    }

    fn next(missing: &TimeGap) -> Tick {
        let FrameTime { second, frame } = missing.start;
        FrameTime {
            second,
            frame: frame + 1,
        }
        .into()
    }

    #[test]
    fn a_run_is_of_one_cause_and_one_part() {
        let mut log = GapLog::default();
        let source = Cause::Source;
        let part = || Some(8..16);
        for missing in [
            frame(0),
            frame(1),
            TimeGap {
                cause: source,
                ..frame(2)
            },
            TimeGap {
                bytes: part(),
                ..frame(3)
            },
            TimeGap {
                bytes: part(),
                ..frame(4)
            },
            frame(6),
        ] {
            let next = next(&missing);
            log.add(missing, next);
        }
        let runs: Vec<_> = log
            .gaps
            .iter()
            .map(|run| (run.start.frame, run.frames, run.first_byte))
            .collect();
        let expected = [
            (0, 2, Some(0)),
            (2, 1, Some(200)),
            (3, 2, Some(300)),
            (6, 1, Some(600)),
        ];
        assert_eq!(runs, expected);
        assert_eq!(log.overflow, 0);
    }

    #[test]
    fn runs_beyond_those_that_are_kept_are_counted() {
        let mut log = GapLog::default();
        for number in 0..MAX_GAPS as u32 + 3 {
            let missing = frame(2 * number);
            let next = next(&missing);
            log.add(missing, next);
        }
        assert_eq!((log.gaps.len(), log.overflow), (MAX_GAPS, 3));
    }
}

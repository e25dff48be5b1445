//! Distribution of loss over time: constant, in episodes, or in periodic episodes.

use serde::Serialize;

/// Minimum number of runs of loss for any judgement.
const ENOUGH: u64 = 10;
/// Mean length of a run of loss, in datagrams, from which on runs are outages: few of these suffice for a judgement.
const OUTAGE: f64 = 50.0;
/// Minimum number of windows for any judgement.
const WINDOWS: usize = 4;
/// Loss is constant unless the variation of its runs between windows exceeds chance by this many standard deviations.
const SURE: f64 = 5.0;
/// Episodes are periodic if the times between their starts differ by at most this fraction of their mean...
const ALIKE: f64 = 0.1;
/// ...or by a window at either end, and if there are at least this many such times.
const REPEATED: usize = 2;

/// Datagrams sent and lost in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Start, in seconds.
    pub begin: f64,
    /// End, in seconds.
    pub end: f64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams of these that were lost.
    pub lost: u64,
    /// Runs of consecutive losses that start in it: losses in a row are one event.
    pub runs: u64,
}

/// Distribution of loss over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "pattern")]
pub enum Pattern {
    /// No loss.
    None,
    /// Too little loss, or too short a time, for a judgement.
    Unknown,
    /// The same at all times.
    Constant,
    /// In episodes.
    Episodes(Episodes),
    /// In periodic episodes.
    Periodic {
        /// Seconds from the start of an episode to that of the next.
        period: f64,
        /// The episodes.
        #[serde(flatten)]
        episodes: Episodes,
    },
}

/// Periods with more loss than others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Episodes {
    /// Number of episodes.
    pub count: usize,
    /// Mean length, in seconds.
    pub length: f64,
    /// Loss fraction within them.
    pub loss: f64,
    /// Loss fraction outside of them.
    pub loss_outside: f64,
    /// Mean time from the start of an episode to that of the next, in seconds; 0 for one.
    pub apart: f64,
}

impl Pattern {
    /// Returns the pattern of consecutive windows.
    pub fn of(windows: &[Window]) -> Pattern {
        let (sent, lost) = sums(windows.iter());
        if lost == 0 {
            return Pattern::None;
        }
        let heard: Vec<Window> = windows.iter().copied().filter(|one| one.sent > 0).collect();
        let events: u64 = heard.iter().map(|window| window.runs).sum();
        let quiet = heard.iter().filter(|window| window.lost == 0).count();
        let are_outages = lost as f64 >= OUTAGE * events as f64 && 2 * quiet >= heard.len();
        if heard.len() < WINDOWS || events < ENOUGH && !are_outages {
            return Pattern::Unknown;
        }
        if !are_outages && is_constant(&heard, events, sent) {
            return Pattern::Constant;
        }
        let bad = bad(&heard, are_outages);
        let all: Vec<(bool, Window)> = bad.into_iter().zip(heard.iter().copied()).collect();
        let runs = all.chunk_by(|a, b| a.0 == b.0).filter(|run| run[0].0);
        let runs: Vec<&[(bool, Window)]> = runs.collect();
        let begins: Vec<f64> = runs.iter().map(|run| run[0].1.begin).collect();
        let ends = runs.iter().map(|run| run[run.len() - 1].1.end);
        let lengths = ends.zip(&begins).map(|(end, begin)| end - begin);
        let (in_sent, in_lost) = sums(runs.concat().iter().map(|(_, window)| window));
        let apart = match begins.as_slice() {
            [first, .., last] => (last - first) / (begins.len() - 1) as f64,
            _ => 0.0,
        };
        let episodes = Episodes {
            count: runs.len(),
            length: mean(lengths),
            loss: in_lost as f64 / in_sent.max(1) as f64,
            loss_outside: (lost - in_lost) as f64 / (sent - in_sent).max(1) as f64,
            apart,
        };
        let window = heard[0].end - heard[0].begin;
        let allowed = (ALIKE * apart).max(1.5 * window).min(apart / 3.0);
        let steps: Vec<f64> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let are_alike = steps.iter().all(|step| (step - apart).abs() <= allowed);
        if steps.len() < REPEATED || !are_alike {
            return Pattern::Episodes(episodes);
        }
        Pattern::Periodic {
            period: apart,
            episodes,
        }
    }
}

fn sums<'a>(windows: impl Iterator<Item = &'a Window>) -> (u64, u64) {
    windows.fold((0, 0), |(sent, lost), window| {
        (sent + window.sent, lost + window.lost)
    })
}

/// Returns the mean; 0 for no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

/// Returns the loss fraction.
fn rate(window: &Window) -> f64 {
    window.lost as f64 / window.sent as f64
}

/// Returns whether the number of events varies between windows only by chance: by the index of dispersion, which is one for a Poisson
/// distribution.
fn is_constant(windows: &[Window], events: u64, sent: u64) -> bool {
    let mean = events as f64 / sent as f64;
    let expected = |window: &Window| mean * window.sent as f64;
    let squares = windows.iter().map(|window| {
        let off = window.runs as f64 - expected(window);
        off * off / expected(window)
    });
    let n = windows.len() as f64;
    let rarity: f64 = windows.iter().map(|window| 1.0 / expected(window)).sum();
    let spread = (2.0 * n + rarity).sqrt();
    squares.sum::<f64>() - (n - 1.0) < SURE * spread
}

/// Returns which windows belong to an episode: those with heavy loss, and neighbours of these with more than light loss. Any part of an
/// outage counts.
fn bad(windows: &[Window], are_outages: bool) -> Vec<bool> {
    let rates: Vec<f64> = windows.iter().map(rate).collect();
    if are_outages {
        return rates.iter().map(|rate| *rate > 0.0).collect();
    }
    let threshold = threshold(windows);
    let quiet = rates.iter().copied().filter(|rate| *rate <= threshold);
    let low = (threshold + mean(quiet)) / 2.0;
    let mut bad: Vec<bool> = rates.iter().map(|rate| *rate > threshold).collect();
    for at in 1..bad.len() {
        bad[at] |= bad[at - 1] && rates[at] > low;
    }
    for at in (1..bad.len()).rev() {
        bad[at - 1] |= bad[at] && rates[at - 1] > low;
    }
    bad
}

/// Returns the threshold between heavy and light loss: halfway between the means of the windows above and below it.
fn threshold(windows: &[Window]) -> f64 {
    let most = windows.iter().map(rate).fold(0.0, f64::max);
    let mut threshold = most / 2.0;
    for _ in 0..20 {
        let rates = windows.iter().map(rate);
        let (above, below): (Vec<f64>, Vec<f64>) = rates.partition(|rate| *rate > threshold);
        threshold = (mean(above.into_iter()) + mean(below.into_iter())) / 2.0;
    }
    threshold
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Returns `count` windows of a second with 10,000 datagrams each, with a loss fraction that depends on the time.
    fn windows(count: usize, loss: impl Fn(usize) -> f64, seed: u64) -> Vec<Window> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..count)
            .map(|second| {
                let chances = (0..10_000).filter(|_| random.random_bool(loss(second)));
                let lost = chances.count() as u64;
                Window {
                    begin: second as f64,
                    end: second as f64 + 1.0,
                    sent: 10_000,
                    lost,
                    runs: lost,
                }
            })
            .collect()
    }

    #[test]
    fn constant_loss_is_constant() {
        for seed in 0..50 {
            let all = windows(100, |_| 0.001, seed);
            assert_eq!(Pattern::of(&all), Pattern::Constant, "{seed}");
        }
        assert_eq!(Pattern::of(&windows(100, |_| 0.0, 1)), Pattern::None);
        assert_eq!(Pattern::of(&windows(100, |_| 2e-6, 1)), Pattern::Unknown);
        assert_eq!(Pattern::of(&windows(2, |_| 0.01, 1)), Pattern::Unknown);
        assert_eq!(Pattern::of(&[]), Pattern::None);
    }

    #[test]
    fn a_broken_fibre_breaks_at_times() {
        // 5 s of 1 % loss, at odd times.
        let times = [10, 31, 70, 85];
        let loss =
            |second: usize| match times.iter().any(|from| (*from..from + 5).contains(&second)) {
                true => 0.01,
                false => 0.0,
            };
        let Pattern::Episodes(all) = Pattern::of(&windows(100, loss, 3)) else {
            panic!("no episodes");
        };
        assert_eq!((all.count, all.length, all.loss_outside), (4, 5.0, 0.0));
        assert!((all.loss - 0.01).abs() < 0.001);
    }

    /// Nothing gets through for a while, repeatedly; a window that starts in an outage has the rest of the run.
    #[test]
    fn outages_are_episodes_however_few() {
        let outage = |lost: [(usize, u64); 2]| {
            let mut all = windows(480, |_| 0.0, 1);
            for (at, lost) in lost {
                (all[at].lost, all[at].runs) = (lost, u64::from(at % 2 == 0));
            }
            Pattern::of(&all)
        };
        let Pattern::Episodes(one) = outage([(100, 4000), (101, 2000)]) else {
            panic!("no episode");
        };
        assert_eq!((one.count, one.length, one.loss), (1, 2.0, 0.3));
        let mut all = windows(480, |_| 0.0, 1);
        for at in (5..480).step_by(32) {
            (all[at].lost, all[at].runs) = (4000, 1);
        }
        assert!(matches!(Pattern::of(&all), Pattern::Periodic { period, .. } if period == 32.0));
    }

    #[test]
    fn recurring_loss_has_a_period() {
        // Every 17 minutes for 12 s, in windows of 30 s.
        let loss = |window: usize| match (window * 30) % 1020 < 30 {
            true => 0.004,
            false => 0.0,
        };
        let mut all = windows(480, loss, 5);
        for window in &mut all {
            (window.begin, window.end) = (window.begin * 30.0, window.end * 30.0);
        }
        let Pattern::Periodic { period, episodes } = Pattern::of(&all) else {
            panic!("no period");
        };
        assert!((period - 1020.0).abs() < 1.0, "{period}");
        assert_eq!(episodes.count, 15);
        // A background does not hide it.
        let loss = |second: usize| if second % 20 < 4 { 0.02 } else { 0.0005 };
        let pattern = Pattern::of(&windows(200, loss, 5));
        assert!(
            matches!(pattern, Pattern::Periodic { period, episodes } if (period - 20.0).abs() < 0.1 && episodes.loss_outside > 3e-4),
            "{pattern:?}"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_too_odd(all in proptest::collection::vec((0u64..1000, 0u64..1000, 0u64..1000), 0..50)) {
            let windows: Vec<Window> = all.iter().enumerate().map(|(at, (sent, lost, runs))| Window {
                begin: at as f64, end: at as f64 + 1.0, sent: *sent, lost: *lost.min(sent), runs: *runs.min(lost),
            }).collect();
            let _ = Pattern::of(&windows);
        }
    }
}

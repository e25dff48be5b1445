//! Processors that are lent to other machines.

/// How much of the time they were, from a moment on.
pub struct Stolen {
    /// Time of all processors so far, and of it what went to other machines, in ticks.
    begun: [u64; 2],
}

impl Stolen {
    pub fn watch() -> Stolen {
        Stolen { begun: ticks() }
    }

    /// Whether more than this part of the time went to other machines, which is said: what was measured meanwhile is not the
    /// program's alone.
    pub fn is_over(&self, limit: f64) -> bool {
        let now = ticks();
        let [all, stolen] = [0, 1].map(|place| (now[place] - self.begun[place]) as f64);
        let part = stolen / all.max(1.0);
        if part > limit {
            eprintln!(
                "skipped in part: {:.1} % of the processors' time went to other machines",
                part * 100.0
            );
        }
        part > limit
    }
}

/// All of `/proc/stat`'s first line, and the eighth of its numbers.
fn ticks() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().next().unwrap().split_whitespace().skip(1);
    let numbers: Vec<u64> = line.map(|number| number.parse().unwrap()).collect();
    [numbers.iter().take(8).sum(), numbers[7]]
}

//! State of the host during a scene: its stalls, and CPU time taken by other machines and programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::stage::children_cpu;

/// Sleep between two wake-ups of the watch.
const NAP: Duration = Duration::from_millis(2);
/// Minimum delay in seconds that it records.
const NOTED: f64 = 0.005;
/// Fraction of the CPU time given to other machines above which a figure is excused.
const STOLEN: f64 = 0.01;

/// State of the host while a scene was played.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub seconds: f64,
    /// Stalls: end of each in seconds after the start, and its length in seconds.
    pub stalls: Vec<(f64, f64)>,
    /// Fraction of the CPU time that went to other machines.
    pub stolen: f64,
    /// Fraction of the CPU time that was busy.
    pub busy: f64,
    /// Part of that which was used neither by the scene's programs nor by the kernel on their behalf.
    pub others: f64,
}

impl Host {
    pub fn longest(&self) -> f64 {
        self.stalls
            .iter()
            .map(|(_, length)| *length)
            .fold(0.0, f64::max)
    }

    /// Returns the excuses for a figure that misses its expectation.
    pub fn excuses(&self, stall: f64) -> Vec<String> {
        let mut excuses = Vec::new();
        if self.longest() > stall {
            excuses.push(format!(
                "the host stood still for {:.0} ms",
                self.longest() * 1e3
            ));
        }
        if self.stolen > STOLEN {
            let part = self.stolen * 100.0;
            excuses.push(format!(
                "{part:.1} % of the processors' time went to other machines"
            ));
        }
        excuses
    }

    pub fn words(&self) -> String {
        let stalls = match self.stalls.len() {
            0 => format!("no stall over {:.0} ms", NOTED * 1e3),
            1 => format!("one stall of {:.0} ms", self.longest() * 1e3),
            several => format!("{several} stalls up to {:.0} ms", self.longest() * 1e3),
        };
        format!(
            "{:.0} s, {stalls}, {:.1} % stolen, processors {:.0} % busy, {:.0} % with other programs",
            self.seconds,
            self.stolen * 100.0,
            self.busy * 100.0,
            self.others * 100.0
        )
    }

    pub fn json(&self) -> Value {
        let stalls = self.stalls.iter();
        json!({
            "seconds": self.seconds,
            "stalls": stalls.map(|(at, length)| json!({"at": at, "seconds": length})).collect::<Vec<_>>(),
            "longest_stall": self.longest(),
            "stolen": self.stolen,
            "busy": self.busy,
            "other_programs": self.others,
        })
    }
}

/// Watches the host.
pub struct Watch {
    begun: Instant,
    ticks: Ticks,
    children: f64,
    is_over: Arc<AtomicBool>,
    naps: JoinHandle<Vec<(f64, f64)>>,
}

impl Watch {
    pub fn begin() -> Result<Watch> {
        let begun = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let naps = std::thread::spawn(move || {
            let mut stalls = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                std::thread::sleep(NAP);
                let late = asleep.elapsed().saturating_sub(NAP).as_secs_f64();
                if late > NOTED {
                    stalls.push((begun.elapsed().as_secs_f64(), late));
                }
            }
            stalls
        });
        Ok(Watch {
            begun,
            ticks: Ticks::read()?,
            children: children_cpu(),
            is_over,
            naps,
        })
    }

    pub fn end(self) -> Result<Host> {
        self.is_over.store(true, Ordering::Relaxed);
        let stalls = self.naps.join().unwrap_or_default();
        let now = Ticks::read()?;
        let all = (now.all - self.ticks.all).max(1) as f64;
        let part = |now: u64, before: u64| (now - before) as f64 / all;
        // A tick is 10 ms. Interrupts are nobody's.
        let own = (children_cpu() - self.children) * 100.0 / all;
        Ok(Host {
            seconds: self.begun.elapsed().as_secs_f64(),
            stalls,
            stolen: part(now.stolen, self.ticks.stolen),
            busy: part(now.busy, self.ticks.busy),
            others: (part(now.programs, self.ticks.programs) - own).max(0.0),
        })
    }
}

/// Time of all CPUs since boot, in ticks.
struct Ticks {
    all: u64,
    busy: u64,
    /// Time of programs and of the kernel on their behalf.
    programs: u64,
    stolen: u64,
}

impl Ticks {
    fn read() -> Result<Ticks> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat is empty")?;
        let fields = line.split_whitespace().skip(1);
        let fields: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        // User, nice, system, idle, waiting, interrupts, softirqs, stolen.
        let [user, nice, system, idle, waiting, hard, soft, stolen] = fields[..]
            .get(..8)
            .and_then(|fields| fields.try_into().ok())
            .context("/proc/stat has too few fields")?;
        Ok(Ticks {
            all: user + nice + system + idle + waiting + hard + soft + stolen,
            busy: user + nice + system + hard + soft,
            programs: user + nice + system,
            stolen,
        })
    }
}

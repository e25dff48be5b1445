//! Counters of this host before, during and after a test.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Signal, Thread};
use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use serde::{Deserialize, Serialize};

/// Initial interval between samples.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of samples; above it, every second one is dropped and the interval doubles.
const MAX: usize = 120;

/// Counters of a host over a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Observed {
    /// Name and version of the kernel, as shown by `uname`.
    pub kernel: String,
    /// Counters at the start.
    pub before: Counters,
    /// Their change until the end.
    pub change: Counters,
    /// Length of the period, in seconds.
    pub seconds: f64,
    /// Samples in between: the change since the previous sample, or since the start.
    pub during: Vec<Sample>,
}

/// Counters up to a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// Seconds since the start.
    pub at: f64,
    /// Change since the previous sample.
    pub change: Counters,
}

/// Samples the counters as long as it exists.
pub struct Observer {
    before: Counters,
    begun: Nanos,
    clock: Clock,
    read: Arc<dyn Fn() -> io::Result<Counters> + Send + Sync>,
    /// Ends the thread.
    stop: Arc<Signal>,
    samples: Option<Thread<Vec<(f64, Counters)>>>,
}

impl Observer {
    /// Starts sampling the run's host, in a separate thread in the namespace of the current one.
    ///
    /// # Errors
    /// The system's error if /proc cannot be read or no thread can be started.
    pub fn start(run: &Run) -> io::Result<Observer> {
        let own = run.clone();
        Observer::looking(EVERY, run.clock(), move || own.counters())
    }

    fn looking(
        mut every: Duration,
        clock: &Clock,
        read: impl Fn() -> io::Result<Counters> + Send + Sync + 'static,
    ) -> io::Result<Observer> {
        let (before, begun) = (read()?, clock.now());
        let stop = Arc::<Signal>::default();
        let stopped = Arc::clone(&stop);
        let read = Arc::new(read);
        let (own, look) = (clock.clone(), Arc::clone(&read));
        let samples = clock.spawn("counters", move || {
            let mut samples = Vec::new();
            let mut next = begun.plus(every.into());
            while !stopped.wait(&own, next) {
                next = own.now().plus(every.into());
                let Ok(now) = look() else {
                    continue;
                };
                samples.push((own.now().since(begun).as_secs_f64(), now));
                if samples.len() == MAX {
                    samples = samples.into_iter().skip(1).step_by(2).collect();
                    every *= 2;
                }
            }
            samples
        })?;
        Ok(Observer {
            before,
            begun,
            clock: clock.clone(),
            read,
            stop,
            samples: Some(samples),
        })
    }

    /// Takes a last sample.
    ///
    /// # Errors
    /// The system's error if /proc cannot be read.
    pub fn finish(mut self) -> io::Result<Observed> {
        let after = (self.read)()?;
        let seconds = self.clock.now().since(self.begun).as_secs_f64();
        self.stop.give();
        let samples = self.samples.take().map(Thread::wait);
        let samples = samples.and_then(Result::ok).unwrap_or_default();
        let mut last = &self.before;
        let mut during = Vec::with_capacity(samples.len());
        for (at, counters) in &samples {
            let change = counters.since(last);
            during.push(Sample { at: *at, change });
            last = counters;
        }
        Ok(Observed {
            kernel: kernel(),
            change: after.since(&self.before),
            during,
            seconds,
            before: self.before.clone(),
        })
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.give();
    }
}

fn kernel() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    let words = [read("ostype"), read("osrelease")];
    let words: Vec<String> = words.into_iter().flatten().collect();
    words.join(" ").replace('\n', "")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn events_during_the_test_are_counted() {
        let (look, looks) = mpsc::channel();
        let read = move || {
            let read = Counters::read();
            look.send(()).unwrap();
            read
        };
        let every = Duration::from_millis(1);
        let observer = Observer::looking(every, &Clock::real(), read).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 100], address).unwrap();
        }
        // All samples that it has started by now are complete, except the last.
        let begun = looks.try_iter().count();
        assert!(begun > 0);
        looks.iter().take(2).for_each(drop);
        let observed = observer.finish().unwrap();
        assert!(observed.change.udp.out_datagrams >= 10);
        assert!(observed.kernel.starts_with("Linux "), "{}", observed.kernel);
        let during = observed.during.iter();
        assert!(
            during
                .clone()
                .is_sorted_by(|before, after| before.at <= after.at)
        );
        assert!(observed.during[0].at >= every.as_secs_f64());
        let sent: u64 = during.map(|sample| sample.change.udp.out_datagrams).sum();
        assert!(sent >= 10, "{sent}");
    }
}

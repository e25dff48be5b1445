//! Threads and time: the core and priority of a thread, CPU time, clocks, and exact waits.

use std::ffi::{c_int, c_long};
use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use evlbi_core::time::Nanos;
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

/// Margin before the moment at which a sleeping thread wakes; it spins the rest. Waking takes tens of microseconds, sometimes more.
const SPIN: Nanos = Nanos(60_000);

/// Returns the time of the monotonic clock.
#[inline]
pub(crate) fn now() -> Nanos {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns UTC in nanoseconds since 1970, by this host's clock.
#[inline]
pub(crate) fn utc() -> u64 {
    clock(libc::CLOCK_REALTIME).0
}

/// Returns the CPU time that the current thread has used.
pub(crate) fn thread_time() -> Nanos {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time that all threads of the program have used.
pub fn process_time() -> Nanos {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

#[inline]
fn clock(id: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec, exclusively borrowed. These clocks always exist.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// How a thread waits for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Polls the clock all the time: exact, but occupies a whole core.
    Spin,
    /// Sleeps while the moment is more than 60 us away, and spins the rest. Exact if the scheduler wakes the thread in time; set the
    /// timer slack first ([`sharpen_timers`]).
    SleepThenSpin,
    /// Sleeps: late by the time that waking takes, but the cheapest.
    Sleep,
}

/// Waits until the monotonic clock reaches `moment`; returns its time then. Returns at once if the moment has passed.
#[inline]
pub(crate) fn wait_until(moment: Nanos, waiting: Waiting) -> Nanos {
    let mut time = now();
    let wake = match waiting {
        Waiting::Spin => time,
        Waiting::SleepThenSpin => Nanos(moment.0.saturating_sub(SPIN.0)),
        Waiting::Sleep => moment,
    };
    if wake > time {
        sleep_until(wake);
    }
    // No pause instruction: under a hypervisor it can cost more than the required accuracy.
    while time < moment {
        time = now();
    }
    time
}

fn sleep_until(moment: Nanos) {
    let time = libc::timespec {
        tv_sec: (moment.0 / 1_000_000_000) as libc::time_t,
        tv_nsec: (moment.0 % 1_000_000_000) as c_long,
    };
    // SAFETY: the pointer is to a timespec that lives through the call; a null remainder is allowed with an absolute time. A signal may
    // end the sleep early: the caller checks the clock.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const time,
            std::ptr::null_mut(),
        )
    };
}

/// Sleep of a receiver when nothing is waiting. With [`sharpen_timers`] it wakes at most about 50 us late; at 30 Gbit/s a socket buffer
/// of 16 MiB holds 4 ms.
pub const NAP: Duration = Duration::from_micros(50);

/// Makes the current thread's sleeps end on time (timer slack of 1 ns instead of 50 us).
///
/// # Errors
/// Returns the kernel's error.
pub fn sharpen_timers() -> io::Result<()> {
    Ok(set_current_timer_slack(Some(NonZeroU64::MIN))?)
}

/// Returns the cores that the current thread may run on.
///
/// # Errors
/// Returns the kernel's error.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let cores = 0..CpuSet::MAX_CPU;
    Ok(cores.filter(|&core| set.is_set(core)).collect())
}

/// Restricts the current thread to `core`.
///
/// # Errors
/// Returns [`io::ErrorKind::InvalidInput`] if this process may not use that core.
pub fn pin(core: usize) -> io::Result<()> {
    let cores = allowed_cores()?;
    if !cores.contains(&core) {
        let message = format!("core {core} is not among those allowed here: {cores:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs the current thread before all others that are not real-time (SCHED_FIFO, `priority` 1 to 99). Warns if it would spin into the
/// kernel's limit on real-time threads.
///
/// # Errors
/// Returns [`io::ErrorKind::PermissionDenied`] without CAP_SYS_NICE or a sufficient limit (`ulimit -r`).
pub fn set_real_time(priority: u8, waiting: Waiting) -> io::Result<()> {
    schedule(libc::SCHED_FIFO, priority)?;
    if waiting == Waiting::Spin
        && let Some(share) = real_time_share()
        && share < 1.0
    {
        tracing::warn!(
            "a real-time thread that spins is stopped for {:.0} % of the time, in one piece: \
             sysctl -w kernel.sched_rt_runtime_us=-1 allows it everything",
            100.0 * (1.0 - share)
        );
    }
    Ok(())
}

/// Sets the nice value of the current thread: -20 (highest priority) to 19.
///
/// # Errors
/// Returns [`io::ErrorKind::PermissionDenied`] if the value is lowered without CAP_SYS_NICE.
pub fn set_nice(nice: i8) -> io::Result<()> {
    // Linux changes the calling thread, not its process.
    Ok(setpriority_process(None, nice.into())?)
}

/// Returns the current thread to the ordinary scheduler, after [`set_real_time`].
///
/// # Errors
/// Returns the kernel's error.
pub fn set_ordinary() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)?;
    // The kernel has reset the timer slack.
    sharpen_timers()
}

fn schedule(policy: c_int, priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: c_int::from(priority),
    };
    // SAFETY: the pointer is to the parameters, which live through the call.
    succeed(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }).map(drop)
}

/// Returns the fraction of time that the kernel grants to real-time threads (`kernel.sched_rt_runtime_us`).
pub fn real_time_share() -> Option<f64> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    let runtime = read("sched_rt_runtime_us")?;
    let period = read("sched_rt_period_us").filter(|&period| period > 0)?;
    Some(match runtime {
        ..0 => 1.0,
        _ => runtime as f64 / period as f64,
    })
}

/// Returns the result of a system call, or its error.
pub(crate) fn succeed(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_ends_before_its_moment() {
        for waiting in [Waiting::Spin, Waiting::SleepThenSpin, Waiting::Sleep] {
            for wait in [0, 1_000, 50_000, 300_000] {
                let moment = now().plus(Nanos(wait));
                let woken = wait_until(moment, waiting);
                assert!(woken >= moment);
                assert!(now() >= woken);
            }
            let begun = now();
            assert!(wait_until(Nanos(1), waiting) >= begun);
        }
    }

    #[test]
    fn a_thread_runs_where_it_is_pinned() {
        let cores = allowed_cores().unwrap();
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(allowed_cores().unwrap(), [last]);
            // SAFETY: sched_getcpu only returns a number.
            assert_eq!(unsafe { libc::sched_getcpu() }, last as c_int);
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cores().unwrap(), cores);
        let error = pin(1_000_000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn cpu_time_is_the_threads_own() {
        std::thread::spawn(|| {
            let before = thread_time();
            wait_until(now().plus(Nanos(2_000_000)), Waiting::Spin);
            assert!(thread_time() > before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn real_time_is_granted_or_refused_with_a_reason() {
        std::thread::spawn(|| {
            sharpen_timers().unwrap();
            match set_real_time(1, Waiting::SleepThenSpin) {
                Ok(()) => {
                    // SAFETY: only a number is passed and returned.
                    assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_FIFO);
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
            }
        })
        .join()
        .unwrap();
    }
}

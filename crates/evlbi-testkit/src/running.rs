//! Processes that tests start: marked as the run's, and ended with their test.

use std::ffi::OsStr;
use std::fs;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::Signal;

use crate::leftovers;
use crate::until::{until, until_some};

/// Returns a command that starts a program, marked as this run's and without the defaults of this user.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    crate::need::watch();
    let mut command = Command::new(program);
    command.env(leftovers::MARK, leftovers::mark());
    command.env("EVLBI_CONFIG", "");
    command
}

/// Returns a command that starts cargo from a program that cargo runs. It removes the variables with which cargo described that
/// program's package: build scripts would see a change, and `ring`, with all that depends on it, would be compiled again.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Copies a program so that it can be run at once. Another process makes the copy: if this one did, a process that a parallel test
/// starts at that moment would inherit the open file, and Linux refuses to run a file that is open for writing.
///
/// # Panics
/// Panics if it cannot be copied.
pub fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    let copied = command("cp").args([from.as_ref(), to.as_ref()]).output();
    let copied = copied.expect("cp");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "{said}");
}

/// A process that does not outlive a failing test.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Sends a signal. After SIGSTOP it waits until all threads are stopped, since the kernel stops them one by one.
    ///
    /// # Panics
    /// Panics if the process does not exist any more.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let process = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(process, signal).expect("the process is there");
        if signal == Signal::SIGSTOP {
            until("all threads stop", || self.stands_still());
        }
    }

    fn stands_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0.id()));
        threads.into_iter().flatten().flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_none_or(|(_, fields)| fields.starts_with('T'))
        })
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// Panics if it does not end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        until_some("a process ends", || {
            self.0.try_wait().expect("waiting for a child works")
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! Programs whose wall clock is wrong: a small preloaded library shifts the UTC of the program and of the kernel's receive timestamps.
//! The monotonic clock, by which programs wait, is unchanged.

use std::process::Command;

use crate::need::need;
use crate::room::Room;
use crate::running::command;

const SOURCE: &str = include_str!("shifted.c");

/// A wall clock that is wrong.
#[derive(Clone, Debug)]
pub struct Shifted {
    variables: [(&'static str, String); 2],
}

impl Shifted {
    /// Returns a clock that is `offset` seconds ahead when the program starts, and gains `skew` seconds per second from then on. `None`
    /// without a C compiler; the calling test is then skipped. The library is in `room`, which must exist until the program has
    /// started.
    ///
    /// # Panics
    /// Panics if the compiler fails.
    #[must_use]
    #[track_caller]
    pub fn new(room: &Room, offset: f64, skew: f64) -> Option<Shifted> {
        if !need(&["cc"]) {
            return None;
        }
        let source = room.write("shifted.c", SOURCE);
        let library = room.path("shifted.so");
        let flags = ["-shared", "-fPIC", "-O2", "-o", &library, &source, "-ldl"];
        let compiled = command("cc").args(flags).output().expect("cc starts");
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let clock = format!("{:.0} {skew:e}", offset * 1e9);
        Some(Shifted {
            variables: [("LD_PRELOAD", library), ("EVLBI_TEST_CLOCK", clock)],
        })
    }

    /// Makes a program that has not been started see this clock.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let variables = self.variables.iter();
        command.envs(variables.map(|(name, value)| (name, value)))
    }

    /// Returns the prefix for a command in a shell.
    #[must_use]
    pub fn prefix(&self) -> String {
        let variables = self.variables.iter();
        let pairs = variables.map(|(name, value)| format!(" {name}='{value}'"));
        format!("env{}", pairs.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date` of the coreutils, unchanged and with its clock 30 years ahead.
    #[test]
    fn a_programs_clock_is_shifted() {
        const YEARS: f64 = 30.0 * 365.25 * 86400.0;
        let room = Room::new();
        let Some(shifted) = Shifted::new(&room, YEARS, 0.0) else {
            return;
        };
        let said = |command: &mut Command| -> f64 {
            let output = command.output().expect("it starts");
            let text = String::from_utf8(output.stdout).expect("text");
            text.trim().parse().expect("seconds since 1970")
        };
        let date = || {
            let mut date = command("date");
            date.arg("+%s.%N");
            date
        };
        let before = said(&mut date());
        let by_environment = said(shifted.apply(&mut date()));
        let line = format!("{} date +%s.%N", shifted.prefix());
        let by_prefix = said(command("sh").args(["-c", &line]));
        let after = said(&mut date());
        let expected = before + YEARS..=after + YEARS;
        assert!(expected.contains(&by_environment), "{by_environment}");
        assert!(expected.contains(&by_prefix), "{by_prefix}");
        assert!(by_environment <= by_prefix);
    }
}

//! The next run removes the leftovers of a killed run; what belongs to a running one stays.

use std::path::Path;
use std::process::{Command, Stdio};

use evlbi_testkit::{Lines, Room, Running, command, leftovers, until};
use nix::sys::signal::Signal;

use crate::another_run;

/// Returns a process that waits for its standard input to end.
fn waiting() -> Running {
    let mut shell = command("/bin/sh");
    shell.args(["-c", "read line"]).stdin(Stdio::piped());
    Running(shell.spawn().expect("a shell"))
}

#[test]
#[ignore = "run and killed by the test below"]
fn makes_things_and_waits() {
    let (room, process) = (Room::new(), waiting());
    println!("made {} {}", process.0.id(), room.folder().display());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Returns whether the process does not exist any more, or is a zombie.
fn is_gone(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, fields)| fields.starts_with('Z'))
}

#[test]
fn a_killed_runs_are_removed_and_a_living_runs_stay() {
    let room = Room::new();
    let mine = waiting();
    let mut run = another_run(&room, "leftovers::makes_things_and_waits");
    run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Running(run.spawn().expect("it starts"));
    let made = Lines::of(run.0.stdout.take().expect("a pipe"))
        .find_map(|line| Some(line.split_once("made ")?.1.to_owned()))
        .expect("it prints what it has made");
    let (process, folder) = made.split_once(' ').expect("a process and a directory");

    // While it lives, nothing of it is touched.
    leftovers::remove();
    assert!(!is_gone(process));
    assert!(Path::new(folder).is_dir());

    run.signal(Signal::SIGKILL);
    run.wait();
    leftovers::remove();
    until("the process is killed", || is_gone(process));
    assert!(!Path::new(folder).exists());
    assert!(!is_gone(&mine.0.id().to_string()));
    assert!(room.folder().is_dir());
}

#[test]
fn processes_without_a_mark_are_left_alone() {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read line"]).stdin(Stdio::piped());
    shell.env_remove(leftovers::MARK);
    let stranger = Running(shell.spawn().expect("a shell"));
    leftovers::remove();
    assert!(!is_gone(&stranger.0.id().to_string()));
}

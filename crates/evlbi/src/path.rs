//! `evlbi path`: hosts on this machine, joined by a path that delays, limits and loses as a plan says.

mod control;
mod plan;
mod relay;
mod report;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_net::path::container;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cli::{PathCommand, PathExecArgs, PathRunArgs, PathSetArgs, PathShowArgs};
use crate::output::{self, Results};

pub use self::control::SOCKET;

/// How often it is looked whether a command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Does as the command says.
pub fn run(command: &PathCommand) -> Result<()> {
    match command {
        PathCommand::Run(args) => run_command(args),
        PathCommand::Up(args) => up(&args.plan),
        PathCommand::Down(args) => down(args.path.as_deref()),
        PathCommand::Show(args) => show(args),
        PathCommand::Set(args) => set(args),
        PathCommand::Exec(args) => exec(args),
        PathCommand::Relay(args) => relay::run(args),
    }
}

/// The program again, as the first process of a container.
fn relay(plan: &Path, socket: &Path) -> Result<Command> {
    // What is wrong with the plan is said before anything is made.
    plan::read(plan)?;
    container::contain()?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command
        .args(["path", "relay"])
        .arg(plan)
        .arg("--socket")
        .arg(socket);
    Ok(command)
}

fn run_command(args: &PathRunArgs) -> Result<()> {
    let socket = control::new_socket(&args.plan, true)?;
    let mut relay = relay(&args.plan, &socket)?;
    for (option, file) in [("--json", &args.json), ("--log", &args.log)] {
        if let Some(file) = file {
            output::check_new([file.as_path()], args.force)?;
            relay.arg(option).arg(file);
        }
    }
    relay.arg("--").args(&args.command);
    container::leave_interrupts_to_others();
    let mut tie = container::end_with_us(&mut relay)?;
    container::notice_termination();
    let status = relay
        .spawn()
        .and_then(|mut relay| {
            let terminate = |_: &Child| {
                // It ends the command, and then itself.
                let _ = tie.write_all(&[0]);
            };
            wait(&mut relay, container::is_terminated, terminate, || ())
        })
        .context("cannot start the relay")?;
    // A relay that was killed could not.
    let _ = std::fs::remove_file(&socket);
    std::process::exit(exit_code(status));
}

/// What a shell says of it.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn up(plan: &Path) -> Result<()> {
    let socket = control::new_socket(plan, false)?;
    let mut relay = relay(plan, &socket)?;
    container::outlive_terminal(&mut relay);
    let mut relay = relay
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start the relay")?;
    let mut ready = String::new();
    if let Some(stdout) = relay.stdout.take() {
        BufReader::new(stdout).read_line(&mut ready)?;
    }
    if ready.trim() != "ready" {
        let _ = relay.wait();
        // It has said why.
        std::process::exit(1);
    }
    let name = socket.file_stem().unwrap_or_default().to_string_lossy();
    let mut results = Results::default();
    results.line(&format!(
        "{name} is up: `evlbi path exec HOST -- COMMAND`, `evlbi path show`, `evlbi path down`"
    ));
    results.end()
}

fn down(name: Option<&str>) -> Result<()> {
    let state = control::ask_to_end(name, &json!({ "do": "down" }))?;
    crate::say::text(&report::text(&report::State::read(&state)?));
    Ok(())
}

fn show(args: &PathShowArgs) -> Result<()> {
    loop {
        let (state, _) = control::ask(args.path.as_deref(), &json!({ "do": "show" }))?;
        let shown = if args.json {
            format!("{state}\n")
        } else {
            report::text(&report::State::read(&state)?)
        };
        let mut out = std::io::stdout();
        if out
            .write_all(shown.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            // Nobody reads on.
            return Ok(());
        }
        match args.every {
            Some(every) => std::thread::sleep(every),
            None => return Ok(()),
        }
    }
}

fn set(args: &PathSetArgs) -> Result<()> {
    let mut values = toml::Table::new();
    for pair in &args.values {
        let (key, value) = pair
            .split_once('=')
            .with_context(|| format!("`{pair}` changes nothing; write KEY=VALUE, as loss=5%"))?;
        values.insert(key.to_owned(), value.into());
    }
    let request = json!({ "do": "set", "cell": args.cell, "values": values });
    control::ask(args.path.as_deref(), &request)?;
    Ok(())
}

fn exec(args: &PathExecArgs) -> Result<()> {
    let request = json!({ "do": "enter", "host": args.host });
    let (answer, namespaces) = control::ask(args.path.as_deref(), &request)?;
    let here = std::env::current_dir().context("this folder is gone")?;
    let Some((program, arguments)) = args.command.split_first() else {
        bail!("there is no command");
    };
    container::enter(namespaces).with_context(|| format!("cannot enter {}", args.host))?;
    container::leave_interrupts_to_others();
    container::notice_termination();
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(here)
        .env(SOCKET, string(&answer, "socket")?)
        .spawn()
        .with_context(|| format!("cannot run {program} on {}", args.host))?;
    let status = wait(&mut child, container::is_terminated, terminate, || ())?;
    std::process::exit(exit_code(status));
}

/// Waits for the end of a process. `terminate` is called once if it is to end before, and `look` all the time.
fn wait(
    child: &mut Child,
    is_unwanted: impl Fn() -> bool,
    terminate: impl FnOnce(&Child),
    mut look: impl FnMut(),
) -> std::io::Result<ExitStatus> {
    let mut terminate = Some(terminate);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if is_unwanted()
            && let Some(terminate) = terminate.take()
        {
            terminate(child);
        }
        look();
        std::thread::sleep(LOOK);
    }
}

/// Sends a process SIGTERM. Its number is nobody else's before it is waited for.
fn terminate(child: &Child) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
}

/// The folder of the sockets of this user's paths.
fn room() -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = std::fs::metadata("/proc/self")?.uid();
    let make = |base: PathBuf| -> Result<PathBuf> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&base)
            .with_context(|| format!("cannot make {}", base.display()))?;
        let owner = std::fs::metadata(&base)?.uid();
        if owner != user {
            bail!("{} belongs to somebody else", base.display());
        }
        Ok(base)
    };
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR") {
        return make(PathBuf::from(folder).join("evlbi"));
    }
    // Root of a user namespace may not write everywhere.
    let of_root = (user == 0).then(|| make(PathBuf::from("/run/evlbi")));
    match of_root {
        Some(Ok(base)) => Ok(base),
        _ => make(std::env::temp_dir().join(format!("evlbi-{user}"))),
    }
}

/// A text of a JSON value.
fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("the request has no {key}"))
}

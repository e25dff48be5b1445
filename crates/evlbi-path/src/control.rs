//! How commands reach a path that is up: a line of JSON over a socket of its own, and one back.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_net::path::container;
use serde_json::Value;

/// In the environment of commands that run on a path: its socket.
pub const SOCKET: &str = "EVLBI_PATH";
/// What a socket is called behind the path's name.
const ENDING: &str = "path";
/// A relay answers within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// And a request comes within this time.
const ASKING: Duration = Duration::from_secs(5);
/// Longest request or answer.
const LONGEST: usize = 1 << 20;

/// A socket for a path of a plan; of those that stay up, each plan has one.
pub fn new_socket(plan: &Path, is_run: bool) -> Result<PathBuf> {
    let room = super::room()?;
    let stem = plan.file_stem().unwrap_or_default().to_string_lossy();
    let name = match is_run {
        true => format!("{stem}.{}", std::process::id()),
        false => stem.into_owned(),
    };
    let socket = room.join(format!("{name}.{ENDING}"));
    if connect(&socket)?.is_some() {
        bail!("{name} is up already; take it down with `evlbi path down {name}`");
    }
    Ok(socket)
}

/// Connects to a path that is up. A socket that was left behind by a relay that was killed is removed.
fn connect(socket: &Path) -> Result<Option<UnixStream>> {
    let connected = UnixStream::connect(socket);
    if let Err(error) = &connected
        && error.kind() == ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(socket)?;
    }
    Ok(connected.ok())
}

/// The socket of the path that is meant: the one named, the one that this command runs on, or the only one.
fn find(name: Option<&str>) -> Result<UnixStream> {
    if name.is_none()
        && let Some(socket) = std::env::var_os(SOCKET)
    {
        return UnixStream::connect(&socket)
            .with_context(|| format!("cannot reach the path of {}", socket.to_string_lossy()));
    }
    let room = super::room()?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&room)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let shown = path.file_stem().unwrap_or_default().to_string_lossy();
        if let Ok(Some(stream)) = connect(&path) {
            found.push((shown.into_owned(), stream));
        }
    }
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let names = names.join(", ");
    if let Some(name) = name {
        found.retain(|(other, _)| other == name);
    }
    match (found.len(), name) {
        (1, _) => Ok(found.remove(0).1),
        (0, Some(name)) if names.is_empty() => bail!("no path {name} is up"),
        (0, Some(name)) => bail!("no path {name} is up: there are {names}"),
        (0, None) => bail!("no path is up; `evlbi path up PLAN.toml` makes one"),
        _ => bail!("several paths are up: {names}; name one with --path"),
    }
}

/// Asks a path for something; gives its answer, and what came with it.
pub fn ask(name: Option<&str>, request: &Value) -> Result<(Value, Vec<OwnedFd>)> {
    ask_over(&find(name)?, request)
}

/// Asks a path for something that ends it, and waits until it has ended.
pub fn ask_to_end(name: Option<&str>, request: &Value) -> Result<Value> {
    let stream = find(name)?;
    let (answer, _) = ask_over(&stream, request)?;
    // It holds the connection until then.
    std::io::Read::read_to_end(&mut &stream, &mut Vec::new()).context("the path does not end")?;
    Ok(answer)
}

fn ask_over(stream: &UnixStream, request: &Value) -> Result<(Value, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    container::send(stream, format!("{request}\n").as_bytes(), &[])?;
    let mut answer = vec![0; LONGEST];
    let (mut read, descriptors) =
        container::receive(stream, &mut answer).context("the path does not answer")?;
    while read > 0 && answer[read - 1] != b'\n' {
        let (more, _) = container::receive(stream, &mut answer[read..])?;
        if more == 0 {
            break;
        }
        read += more;
    }
    if read == 0 {
        bail!("the path has ended");
    }
    let answer: Value = serde_json::from_slice(&answer[..read]).context("the path's answer")?;
    match answer["error"].as_str() {
        Some(error) => bail!("{error}"),
        None => Ok((answer, descriptors)),
    }
}

/// The request that came over a connection.
pub fn request(stream: &UnixStream) -> Result<Value> {
    stream.set_read_timeout(Some(ASKING))?;
    let mut line = String::new();
    let bounded = std::io::Read::take(stream, LONGEST as u64);
    BufReader::new(bounded).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Answers a request.
pub fn answer(stream: &UnixStream, answer: &Value, descriptors: &[OwnedFd]) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let text = format!("{answer}\n");
    let bytes = text.as_bytes();
    // A socket takes so much at once.
    let (first, rest) = bytes.split_at(bytes.len().min(1 << 16));
    container::send(stream, first, descriptors)?;
    std::io::Write::write_all(&mut &*stream, rest)?;
    Ok(())
}

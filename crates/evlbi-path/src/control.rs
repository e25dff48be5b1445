//! Requests to a running path: a line of JSON over its socket, and one line in reply.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_net::netns::Unavailable;
use evlbi_net::path::container;
use serde_json::Value;

use super::file::SpecError;

/// Environment variable of commands that run on a path: its socket.
pub const SOCKET: &str = "EVLBI_PATH";
/// Extension of a socket's name, after the path's name.
const ENDING: &str = "path";
/// Timeout for a relay's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a client's request.
const ASKING: Duration = Duration::from_secs(5);
/// Maximum length of a request or answer, in bytes.
const MAX: usize = 1 << 20;

/// Reason why a path cannot be asked, or refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The directory of the sockets cannot be created.
    #[error("cannot create {}", path.display())]
    Folder {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory of the sockets belongs to another user.
    #[error("{} belongs to another user", .0.display())]
    Foreign(PathBuf),
    /// A path of this name is running.
    #[error("{0} is up already")]
    IsUp(String),
    /// The path on which this process runs has ended.
    #[error("cannot reach the path of {socket}")]
    Gone {
        /// The path's socket.
        socket: String,
        /// The system's error.
        source: io::Error,
    },
    /// No path of this name is running.
    #[error("no path {name} is up{}", if others.is_empty() { String::new() } else { format!("; available: {others}") })]
    Unknown {
        /// The name.
        name: String,
        /// Names of the running paths, separated by commas.
        others: String,
    },
    /// No path is running.
    #[error("no path is up")]
    NoneUp,
    /// Several paths are running, and no name was given.
    #[error("several paths are up: {0}")]
    Several(String),
    /// A path does not complete a request in time.
    #[error("the path does not {doing}")]
    Silent {
        /// The action that it did not complete, e.g. `answer`.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// It ended in the meantime.
    #[error("the path has ended")]
    Ended,
    /// Its answer is invalid.
    #[error("invalid answer of the path")]
    Answer(#[source] serde_json::Error),
    /// It refuses the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// Another error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

type Result<T, E = ControlError> = std::result::Result<T, E>;

/// Reason why a request fails, which is sent to the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It names something that does not exist.
    #[error("{0}")]
    Refused(String),
    /// It cannot be read or answered.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is invalid JSON, or has another form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A cell does not accept the values.
    #[error("{0}")]
    Spec(#[from] SpecError),
    /// A host cannot be examined.
    #[error("{0}")]
    Unavailable(#[from] Unavailable),
}

/// Returns the directory of the sockets of this user's paths.
fn room() -> Result<PathBuf, ControlError> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = std::fs::metadata("/proc/self")?.uid();
    let make = |base: PathBuf| -> Result<PathBuf, ControlError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&base)
            .map_err(|source| ControlError::Folder {
                path: base.clone(),
                source,
            })?;
        let owner = std::fs::metadata(&base)?.uid();
        if owner != user {
            return Err(ControlError::Foreign(base));
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

/// Returns a socket for a path of a plan. Each plan has at most one path that stays up.
pub fn new_socket(plan: &Path, is_run: bool) -> Result<PathBuf> {
    let room = room()?;
    let stem = plan.file_stem().unwrap_or_default().to_string_lossy();
    let name = match is_run {
        true => format!("{stem}.{}", std::process::id()),
        false => stem.into_owned(),
    };
    let socket = room.join(format!("{name}.{ENDING}"));
    if connect(&socket)?.is_some() {
        return Err(ControlError::IsUp(name));
    }
    Ok(socket)
}

/// Connects to a running path. Removes a socket left behind by a killed relay.
fn connect(socket: &Path) -> Result<Option<UnixStream>> {
    let connected = UnixStream::connect(socket);
    if let Err(error) = &connected
        && error.kind() == ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(socket)?;
    }
    Ok(connected.ok())
}

/// Connects to a path: the one named, the one that this command runs on, or the only one.
fn find(name: Option<&str>) -> Result<UnixStream> {
    if name.is_none()
        && let Some(socket) = std::env::var_os(SOCKET)
    {
        return UnixStream::connect(&socket).map_err(|source| ControlError::Gone {
            socket: socket.to_string_lossy().into_owned(),
            source,
        });
    }
    let room = room()?;
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
        (0, Some(name)) => Err(ControlError::Unknown {
            name: name.to_owned(),
            others: names,
        }),
        (0, None) => Err(ControlError::NoneUp),
        _ => Err(ControlError::Several(names)),
    }
}

/// Sends a request to a path; returns its answer, and the descriptors sent with it.
pub fn ask(name: Option<&str>, request: &Value) -> Result<(Value, Vec<OwnedFd>)> {
    ask_over(&find(name)?, request)
}

/// Sends a request that ends a path, and waits for its end.
pub fn ask_to_end(name: Option<&str>, request: &Value) -> Result<Value> {
    let stream = find(name)?;
    let (answer, _) = ask_over(&stream, request)?;
    // It keeps the connection open until then.
    let ended = io::Read::read_to_end(&mut &stream, &mut Vec::new());
    ended.map_err(silent("end"))?;
    Ok(answer)
}

fn ask_over(stream: &UnixStream, request: &Value) -> Result<(Value, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    container::send(stream, format!("{request}\n").as_bytes(), &[])?;
    let mut answer = vec![0; MAX];
    let (mut read, descriptors) =
        container::receive(stream, &mut answer).map_err(silent("answer"))?;
    while read > 0 && answer[read - 1] != b'\n' {
        let (more, _) = container::receive(stream, &mut answer[read..])?;
        if more == 0 {
            break;
        }
        read += more;
    }
    if read == 0 {
        return Err(ControlError::Ended);
    }
    let answer: Value = serde_json::from_slice(&answer[..read]).map_err(ControlError::Answer)?;
    match answer["error"].as_str() {
        Some(error) => Err(ControlError::Refused(error.to_owned())),
        None => Ok((answer, descriptors)),
    }
}

fn silent(doing: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |source| ControlError::Silent { doing, source }
}

/// Returns a text field of a JSON value, or an error that names the missing field.
pub fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    let text = value[key].as_str();
    text.ok_or_else(|| format!("the request has no {key}"))
}

/// Reads the request from a connection.
pub fn request(stream: &UnixStream) -> Result<Value, RequestError> {
    stream.set_read_timeout(Some(ASKING))?;
    let mut line = String::new();
    let bounded = io::Read::take(stream, MAX as u64);
    BufReader::new(bounded).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Sends the answer to a request.
pub fn answer(
    stream: &UnixStream,
    answer: &Value,
    descriptors: &[OwnedFd],
) -> Result<(), RequestError> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let text = format!("{answer}\n");
    let bytes = text.as_bytes();
    // A socket accepts only this much at once.
    let (first, rest) = bytes.split_at(bytes.len().min(1 << 16));
    container::send(stream, first, descriptors)?;
    io::Write::write_all(&mut &*stream, rest)?;
    Ok(())
}

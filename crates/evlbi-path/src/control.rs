//! How commands reach a path that is up: a line of JSON over a socket of its own, and one back.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_net::netns::Unavailable;
use evlbi_net::path::container;
use serde_json::Value;

use super::file::SpecError;

/// In the environment of commands that run on a path: its socket.
pub const SOCKET: &str = "EVLBI_PATH";
/// What a socket is called behind the path's name.
const ENDING: &str = "path";
/// A relay answers within this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// And a request comes within this time.
const ASKING: Duration = Duration::from_secs(5);
/// Longest request or answer.
const MAX: usize = 1 << 20;

/// Why a path cannot be asked, or what it refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The folder of the sockets cannot be made.
    #[error("cannot make {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The folder of the sockets is another user's.
    #[error("{} belongs to somebody else", .0.display())]
    Foreign(PathBuf),
    /// A path of this name is up.
    #[error("{0} is up already")]
    IsUp(String),
    /// The path on which this process runs has gone.
    #[error("cannot reach the path of {socket}")]
    Gone {
        /// The path's socket.
        socket: String,
        /// What the system says.
        source: io::Error,
    },
    /// No path of this name is up. It is said which are.
    #[error("no path {name} is up{}", if others.is_empty() { String::new() } else { format!(": there are {others}") })]
    Unknown {
        /// The name.
        name: String,
        /// Names of the paths that are up, with commas between them.
        others: String,
    },
    /// No path is up.
    #[error("no path is up")]
    NoneUp,
    /// Several paths are up, and none was named.
    #[error("several paths are up: {0}")]
    Several(String),
    /// A path does not do in time what it was asked for.
    #[error("the path does not {doing}")]
    Silent {
        /// What it does not do, as `answer`.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// It has ended meanwhile.
    #[error("the path has ended")]
    Ended,
    /// Its answer is damaged.
    #[error("the path's answer")]
    Answer(#[source] serde_json::Error),
    /// It refuses what it was asked for, and says why.
    #[error("{0}")]
    Refused(String),
    /// The system refuses something else.
    #[error("{0}")]
    System(#[from] io::Error),
}

type Result<T, E = ControlError> = std::result::Result<T, E>;

/// Why a request is not answered as it was meant: who asked is told so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It asks for something that there is not.
    #[error("{0}")]
    Refused(String),
    /// It cannot be read or answered.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is no JSON, or of another form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A cell cannot have the values.
    #[error("{0}")]
    Spec(#[from] SpecError),
    /// A host cannot be looked into.
    #[error("{0}")]
    Unavailable(#[from] Unavailable),
}

/// The folder of the sockets of this user's paths.
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

/// A socket for a path of a plan; of those that stay up, each plan has one.
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

/// Asks a path for something; gives its answer, and what came with it.
pub fn ask(name: Option<&str>, request: &Value) -> Result<(Value, Vec<OwnedFd>)> {
    ask_over(&find(name)?, request)
}

/// Asks a path for something that ends it, and waits until it has ended.
pub fn ask_to_end(name: Option<&str>, request: &Value) -> Result<Value> {
    let stream = find(name)?;
    let (answer, _) = ask_over(&stream, request)?;
    // It holds the connection until then.
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

/// A text of a JSON value; else what is missing.
pub fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    let text = value[key].as_str();
    text.ok_or_else(|| format!("the request has no {key}"))
}

/// The request that came over a connection.
pub fn request(stream: &UnixStream) -> Result<Value, RequestError> {
    stream.set_read_timeout(Some(ASKING))?;
    let mut line = String::new();
    let bounded = io::Read::take(stream, MAX as u64);
    BufReader::new(bounded).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Answers a request.
pub fn answer(
    stream: &UnixStream,
    answer: &Value,
    descriptors: &[OwnedFd],
) -> Result<(), RequestError> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let text = format!("{answer}\n");
    let bytes = text.as_bytes();
    // A socket takes so much at once.
    let (first, rest) = bytes.split_at(bytes.len().min(1 << 16));
    container::send(stream, first, descriptors)?;
    io::Write::write_all(&mut &*stream, rest)?;
    Ok(())
}

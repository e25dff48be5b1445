//! Network namespaces: hosts of their own within this one.
//!
//! A namespace is held by a descriptor and has no name; it goes, with its devices, when the
//! descriptor and the last socket in it are closed. Each thread is in one namespace, a new thread and
//! a child process begin in their parent's, and a socket stays in the one it was opened in.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Why there are no namespaces here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// This process may not make them.
    #[error("network namespaces need root or unprivileged user namespaces: {0}")]
    NotPermitted(io::Error),
    /// The kernel refused something else.
    #[error("cannot make a network namespace: {0}")]
    Kernel(#[from] io::Error),
    /// A tap device, which a host on an emulated path has, cannot be had.
    #[error("cannot open /dev/net/tun: {0}")]
    Tap(io::Error),
    /// A host on an emulated path cannot have a setting.
    #[error("cannot set {name} of {host} to {value}: {source}")]
    Setting {
        /// Its name below `net.ipv4`.
        name: String,
        /// The host.
        host: String,
        /// What was to be set.
        value: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program that sets them up is not installed.
    #[error("`{0}` is not installed")]
    NoTool(&'static str),
    /// A program that sets them up failed.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// What was run.
        command: String,
        /// What it said.
        message: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new one, with a loopback interface that is up and nothing else.
    ///
    /// # Errors
    /// [`Unavailable`], which names the reason.
    pub fn new() -> Result<Namespace, Unavailable> {
        let made = thread::spawn(|| {
            // SAFETY: no descriptors are unshared; the call concerns this short-lived thread alone.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net").map(Namespace)
        });
        let made = made.join();
        let made = made.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        use io::ErrorKind::{PermissionDenied, StorageFull};
        let namespace = made.map_err(|error| match error.kind() {
            // No room: user.max_net_namespaces is the limit of what a user may have.
            PermissionDenied | StorageFull => Unavailable::NotPermitted(error),
            _ => Unavailable::Kernel(error),
        })?;
        namespace.command("ip", &["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// What it is held by.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Moves the current thread into the namespace for good.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }

    /// Calls `inside` in the namespace, on a thread of its own, and waits for what it returns.
    ///
    /// # Errors
    /// What the kernel says when the namespace cannot be entered.
    ///
    /// # Panics
    /// When `inside` does.
    pub fn run<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let result = scope.spawn(|| self.enter().map(|()| inside())).join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a program in the namespace and returns what it printed.
    ///
    /// # Errors
    /// [`Unavailable::NoTool`] when it is not installed, [`Unavailable::Tool`] when it fails.
    pub fn command(&self, program: &'static str, args: &[&str]) -> Result<String, Unavailable> {
        let output = self.run(|| Command::new(program).args(args).output())?;
        let output = output.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unavailable::NoTool(program),
            _ => Unavailable::Kernel(error),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Unavailable::Tool {
            command: format!("{program} {}", args.join(" ")),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

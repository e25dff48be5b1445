//! Network namespaces: separate hosts within this one.
//!
//! A namespace has no name; a descriptor keeps it alive. The kernel removes it and its devices when that descriptor and its last socket
//! are closed. Each thread is in one namespace, new threads and child processes inherit their parent's, and a socket stays in the
//! namespace it was opened in.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Reason why namespaces are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// This process may not create them.
    #[error("network namespaces need root or unprivileged user namespaces: {0}")]
    NotPermitted(io::Error),
    /// The kernel refused for another reason.
    #[error("cannot create a network namespace: {0}")]
    Kernel(#[from] io::Error),
    /// A tap device for a host on an emulated path cannot be created.
    #[error("cannot open /dev/net/tun: {0}")]
    Tap(io::Error),
    /// A setting of a host on an emulated path cannot be made.
    #[error("cannot set {name} of {host} to {value}: {source}")]
    Setting {
        /// Its name below `net.ipv4`.
        name: String,
        /// The host.
        host: String,
        /// The value.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program that configures them is not installed.
    #[error("`{0}` is not installed")]
    NoTool(&'static str),
    /// A program that configures them failed.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// The command.
        command: String,
        /// Its output.
        message: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Creates a namespace whose only interface is loopback, which is up.
    ///
    /// # Errors
    /// Returns [`Unavailable`], which names the reason.
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
            // Out of space: user.max_net_namespaces limits the namespaces of a user.
            PermissionDenied | StorageFull => Unavailable::NotPermitted(error),
            _ => Unavailable::Kernel(error),
        })?;
        namespace.command("ip", &["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the descriptor that keeps it alive.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Moves the current thread into the namespace for good.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }

    /// Calls `inside` in the namespace, on a thread of its own, and returns its result.
    ///
    /// # Errors
    /// Returns the kernel's error if the namespace cannot be entered.
    ///
    /// # Panics
    /// Panics if `inside` does.
    pub fn run<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let result = scope.spawn(|| self.enter().map(|()| inside())).join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a program in the namespace and returns what it printed.
    ///
    /// # Errors
    /// Returns [`Unavailable::NoTool`] if it is not installed, [`Unavailable::Tool`] if it fails.
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

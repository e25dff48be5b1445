//! Container of a path's processes: user, PID and mount namespaces, so that the kernel ends all of them with the relay, however that
//! ends.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, PipeWriter, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{getegid, geteuid, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::clock::Clock;
use crate::cpu::succeed;
use crate::netns::Unavailable;

/// Kinds of namespaces that a process enters to join a path, in this order.
const KINDS: [(&str, LinkNameSpaceType); 4] = [
    ("user", LinkNameSpaceType::User),
    ("mnt", LinkNameSpaceType::Mount),
    ("pid", LinkNameSpaceType::ProcessID),
    ("net", LinkNameSpaceType::Network),
];

/// Makes the next child process PID 1 of a new container: when it ends, all its descendants end. If this process lacks the privilege,
/// it becomes root of a user namespace of its own. Call it only while there is one thread.
///
/// # Errors
/// Returns [`Unavailable`], which names what is missing.
pub fn contain() -> Result<(), Unavailable> {
    let kinds = UnshareFlags::NEWPID | UnshareFlags::NEWNS;
    // SAFETY: no descriptors are unshared.
    match unsafe { unshare_unsafe(kinds) } {
        Ok(()) => return Ok(()),
        Err(Errno::PERM | Errno::ACCESS) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let (user, group) = (geteuid(), getegid());
    // SAFETY: no descriptors are unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | kinds) }
        .map_err(|error| Unavailable::NotPermitted(error.into()))?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(())
}

/// Mounts `file` over `over` for this process and its descendants.
///
/// # Errors
/// Returns the kernel's error.
pub fn bind(file: &Path, over: &str) -> io::Result<()> {
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", alone)?;
    Ok(mount_bind(file, over)?)
}

/// Descriptor that [`end_with_us`] leaves for [`end_with_parent`] to watch.
const TIE: RawFd = 3;

/// Lets the process that `command` starts notice that this one has ended, however it did, and each byte that is written to the returned
/// pipe. Keep the pipe open.
///
/// # Errors
/// Returns the kernel's error.
pub fn end_with_us(command: &mut Command) -> io::Result<PipeWriter> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: between fork and exec only dup2 and fcntl are called, which are safe there; the closure keeps the reader alive.
    unsafe {
        command.pre_exec(move || {
            let tied = match reader.as_raw_fd() {
                TIE => libc::fcntl(TIE, libc::F_SETFD, 0),
                other => libc::dup2(other, TIE),
            };
            succeed(tied).map(drop)
        })
    };
    Ok(writer)
}

/// Ends this process when the one that started it by [`end_with_us`] ends. As PID 1 of its container, it takes the whole container with
/// it. Calls `heard` for each byte that arrives from there.
///
/// # Errors
/// Returns an error if this process was not started that way.
#[expect(clippy::exit, reason = "to end this process is what it is for")]
pub fn end_with_parent(heard: impl Fn() + Send + 'static) -> io::Result<()> {
    // SAFETY: only numbers are passed; the descriptor is not used otherwise.
    succeed(unsafe { libc::fcntl(TIE, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, as fcntl has shown, and nothing else owns it.
    let mut tie = File::from(unsafe { OwnedFd::from_raw_fd(TIE) });
    let watch = move || {
        while tie.read_exact(&mut [0]).is_ok() {
            heard();
        }
        std::process::exit(1);
    };
    Clock::real().spawn::<()>("tie", watch).map(drop)
}

static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// Catches SIGTERM, which [`is_terminated`] then reports. A second one ends the process at once.
pub fn notice_termination() {
    extern "C" fn notice(_: libc::c_int) {
        if IS_TERMINATED.swap(true, Ordering::Relaxed) {
            // SAFETY: it never returns, and may be called in a handler.
            unsafe { libc::_exit(130) };
        }
    }
    let handler = notice as extern "C" fn(libc::c_int);
    // SAFETY: the handler calls only what is allowed in one. Child processes do not inherit it.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

/// Returns whether SIGTERM has arrived.
pub fn is_terminated() -> bool {
    IS_TERMINATED.load(Ordering::Relaxed)
}

/// Makes the process that `command` starts keep running when the terminal is closed.
pub fn outlive_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only setsid is called, which is safe there.
    unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
}

/// Redirects standard output and error to nowhere, so that no reader waits for them.
///
/// # Errors
/// Returns the kernel's error.
pub fn fall_silent() -> io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    Ok(dup2_stderr(&nowhere)?)
}

/// Leaves Ctrl-C to the command that runs inside: this process ignores it, its children receive it as usual.
pub fn leave_interrupts_to_others() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing. Unlike SIG_IGN, child processes do not inherit a handler.
    unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
}

/// Returns the namespaces that a process must enter to join a host: those of this process, and the host's network.
///
/// # Errors
/// Returns the kernel's error.
pub fn namespaces(network: &File) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    for (kind, _) in &KINDS[..3] {
        all.push(File::open(format!("/proc/self/ns/{kind}"))?.into());
    }
    all.push(network.try_clone()?.into());
    Ok(all)
}

/// Moves this process into the namespaces that [`namespaces`] returned; its next child process is in all of them. Call it only while
/// there is one thread.
///
/// # Errors
/// Returns the kernel's error.
pub fn enter(namespaces: Vec<OwnedFd>) -> io::Result<()> {
    for ((kind, flag), namespace) in KINDS.iter().zip(namespaces) {
        let namespace = File::from(namespace);
        let there = namespace.metadata()?;
        let here = std::fs::metadata(format!("/proc/self/ns/{kind}"))?;
        if (there.dev(), there.ino()) == (here.dev(), here.ino()) {
            continue;
        }
        move_into_link_name_space(namespace.as_fd(), Some(*flag))?;
    }
    Ok(())
}

/// Maximum number of descriptors sent at once.
const MAX: usize = 8;
/// Buffer for this many descriptors.
type Room = [MaybeUninit<u8>; cmsg_space!(ScmRights(MAX))];

/// Sends bytes and descriptors.
///
/// # Errors
/// Returns the kernel's error.
pub fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let descriptors = descriptors.iter().take(MAX).map(AsFd::as_fd);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
    let mut room: Room = [MaybeUninit::uninit(); _];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    // If a socket has a timeout, stopping and continuing the process interrupts the call too.
    let part = [IoSlice::new(bytes)];
    let sent = retry_on_intr(|| sendmsg(stream, &part, &mut control, SendFlags::NOSIGNAL))?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives what [`send`] sent: bytes, up to the length of `bytes`, and descriptors.
///
/// # Errors
/// Returns the kernel's error.
pub fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut room: Room = [MaybeUninit::uninit(); _];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let part = &mut [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(stream, part, &mut control, flags))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn descriptors_are_passed() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"what is in it").unwrap();
        file.rewind().unwrap();
        send(
            &near,
            b"two of them",
            &[file.into(), File::open("/dev/null").unwrap().into()],
        )
        .unwrap();
        let mut bytes = [0; 64];
        let (read, descriptors) = receive(&far, &mut bytes).unwrap();
        assert_eq!(&bytes[..read], b"two of them");
        assert_eq!(descriptors.len(), 2);
        let mut text = String::new();
        File::from(descriptors.into_iter().next().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "what is in it");
        send(&near, b"none", &[]).unwrap();
        let (read, descriptors) = receive(&far, &mut bytes).unwrap();
        assert_eq!((&bytes[..read], descriptors.len()), (&b"none"[..], 0));
    }
}

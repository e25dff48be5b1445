//! What keeps a path's processes together: namespaces of users, processes and mounts, so that all of it ends with the
//! relay, however that ends.

use std::fs::File;
use std::io::{self, PipeWriter, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::netns::Unavailable;

/// Kinds of namespaces that a process enters to be a path's, in this order.
const KINDS: [(&str, libc::c_int); 4] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
];

fn succeed(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The next process that this one starts, and all that come of it, end when that one does. Where that takes more than
/// this process may, it becomes the root of a user namespace of its own. Only while there is one thread.
///
/// # Errors
/// [`Unavailable`], which names what is missing.
pub fn contain() -> Result<(), Unavailable> {
    // SAFETY: only a number is passed.
    let contained = succeed(unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) });
    match contained {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error.into()),
    }
    // SAFETY: both calls only return numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let all = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS;
    // SAFETY: only a number is passed.
    succeed(unsafe { libc::unshare(all) }).map_err(Unavailable::NotPermitted)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(())
}

/// `file` lies over `over` for this process and those that come of it.
///
/// # Errors
/// What the kernel says.
pub fn bind(file: &Path, over: &str) -> io::Result<()> {
    let path = |path: &Path| {
        std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)
    };
    let (file, over, root) = (path(file)?, path(Path::new(over))?, path(Path::new("/"))?);
    // SAFETY: the pointers are to strings that live through the calls, or null where the kernel allows it.
    unsafe {
        succeed(libc::mount(
            std::ptr::null(),
            root.as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        ))?;
        succeed(libc::mount(
            file.as_ptr(),
            over.as_ptr(),
            std::ptr::null(),
            libc::MS_BIND,
            std::ptr::null(),
        ))
    }
}

/// Where [`end_with_us`] leaves the descriptor that [`end_with_parent`] watches.
const TIE: RawFd = 3;

/// The process that `command` starts learns that this one has ended, however it did, and of each byte that is written to what is
/// returned, which is to be kept.
///
/// # Errors
/// What the kernel says.
pub fn end_with_us(command: &mut Command) -> io::Result<PipeWriter> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: between fork and exec only dup2 and fcntl are called, which are safe there; the reader lives in the closure.
    unsafe {
        command.pre_exec(move || {
            if reader.as_raw_fd() == TIE {
                return succeed(libc::fcntl(TIE, libc::F_SETFD, 0));
            }
            succeed(libc::dup2(reader.as_raw_fd(), TIE))
        })
    };
    Ok(writer)
}

/// This process ends when the one that started it by [`end_with_us`] does. As it is the first of its container, so does
/// all else in that. `heard` is called for each byte that comes from there.
///
/// # Errors
/// When that was not so.
pub fn end_with_parent(heard: impl Fn() + Send + 'static) -> io::Result<()> {
    // SAFETY: only numbers are passed; the descriptor is not used otherwise.
    succeed(unsafe { libc::fcntl(TIE, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, as that has shown, and nobody else's.
    let mut tie = File::from(unsafe { OwnedFd::from_raw_fd(TIE) });
    std::thread::Builder::new()
        .name("tie".into())
        .spawn(move || {
            while tie.read_exact(&mut [0]).is_ok() {
                heard();
            }
            std::process::exit(1);
        })
        .map(|_| ())
}

static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// SIGTERM is for this process to act upon, which learns of it from [`is_terminated`]. A second one ends it at once.
pub fn notice_termination() {
    extern "C" fn notice(_: libc::c_int) {
        if IS_TERMINATED.swap(true, Ordering::Relaxed) {
            // SAFETY: it never returns, and may be called in a handler.
            unsafe { libc::_exit(130) };
        }
    }
    let handler = notice as extern "C" fn(libc::c_int);
    // SAFETY: the handler calls only what may be called in one. What is started does not inherit it.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

/// Whether SIGTERM has come.
pub fn is_terminated() -> bool {
    IS_TERMINATED.load(Ordering::Relaxed)
}

/// The process that `command` starts goes on when the terminal is closed.
pub fn outlive_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only setsid is called, which is safe there.
    unsafe { command.pre_exec(|| succeed(libc::setsid())) };
}

/// Nothing more is said, so that nobody waits for it: standard output and error lead nowhere from now on.
///
/// # Errors
/// What the kernel says.
pub fn fall_silent() -> io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    for descriptor in [1, 2] {
        // SAFETY: only numbers are passed; the descriptor is open.
        succeed(unsafe { libc::dup2(nowhere.as_raw_fd(), descriptor) })?;
    }
    Ok(())
}

/// Ctrl-C is for the command that runs inside, not for this process; what it starts gets it as usual.
pub fn leave_interrupts_to_others() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing. A handler, unlike SIG_IGN, is not inherited by what is started.
    unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
}

/// The namespaces that a process needs to enter a host: those of this process, and the host's network.
///
/// # Errors
/// What the kernel says.
pub fn namespaces(network: &File) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    for (kind, _) in &KINDS[..3] {
        all.push(File::open(format!("/proc/self/ns/{kind}"))?.into());
    }
    all.push(network.try_clone()?.into());
    Ok(all)
}

/// Moves this process into namespaces that [`namespaces`] gave; the next process that it starts is in all of them. Only
/// while there is one thread.
///
/// # Errors
/// What the kernel says.
pub fn enter(namespaces: Vec<OwnedFd>) -> io::Result<()> {
    for ((kind, flag), namespace) in KINDS.iter().zip(namespaces) {
        let namespace = File::from(namespace);
        let (there, here) = (
            namespace.metadata()?,
            std::fs::metadata(format!("/proc/self/ns/{kind}"))?,
        );
        if (there.dev(), there.ino()) == (here.dev(), here.ino()) {
            continue;
        }
        // SAFETY: only numbers are passed; the descriptor is open as long as `namespace` lives.
        succeed(unsafe { libc::setns(namespace.as_raw_fd(), *flag) })?;
    }
    Ok(())
}

/// Longest list of descriptors that is sent.
const MOST: usize = 8;

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends bytes and descriptors.
///
/// # Errors
/// What the kernel says.
pub fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors
        .iter()
        .take(MOST)
        .map(AsRawFd::as_raw_fd)
        .collect();
    let length = size_of_val(raw.as_slice()) as u32;
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a message header is plain data for which all zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !raw.is_empty() {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: only a length is computed.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the control buffer is aligned and long enough for a header and `MOST` descriptors, so the first
        // header lies in it, and its data behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(
                raw.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                length as usize,
            );
        }
    }
    let sent = uninterrupted(|| {
        // SAFETY: the message points to memory that lives through the call.
        unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
    })?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Calls once more when a signal came first: also a process that is stopped and goes on is interrupted where a socket has a timeout.
fn uninterrupted(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Receives what [`send`] sent: up to so many bytes, and descriptors.
///
/// # Errors
/// What the kernel says.
pub fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a message header is plain data for which all zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let read = uninterrupted(|| {
        // SAFETY: the message points to memory that is exclusively borrowed through the call.
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer with headers and whole descriptors, which are ours now.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            for place in 0..length / size_of::<RawFd>() {
                let mut raw: RawFd = -1;
                std::ptr::copy_nonoverlapping(
                    libc::CMSG_DATA(header).add(place * size_of::<RawFd>()),
                    (&raw mut raw).cast::<u8>(),
                    size_of::<RawFd>(),
                );
                descriptors.push(OwnedFd::from_raw_fd(raw));
            }
        }
    }
    Ok((read, descriptors))
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

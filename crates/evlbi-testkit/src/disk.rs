//! Small disks, to be filled up.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::fstatvfs;

use crate::need::{Kind, skip};
use crate::netns::as_root_of_its_own;
use crate::room::Room;

/// Calls `inside` with the directory of a disk of this many MiB, which is visible only to that thread and the processes that it starts.
/// `test` is the name of the test, from [`name!`](crate::name). If this user may not mount, the test runs as root of a user namespace
/// of its own, or is skipped.
///
/// # Panics
/// Panics if `inside` does, or if mounting fails for a reason other than a permission.
#[track_caller]
pub fn small(mebibytes: usize, test: &str, inside: impl FnOnce(&Path) + Send) {
    if !as_root_of_its_own(test) {
        return;
    }
    let room = Room::new();
    let mounted = std::thread::scope(|scope| {
        let mounted = scope.spawn(|| {
            mount_at(room.folder(), mebibytes)?;
            inside(room.folder());
            Ok(())
        });
        mounted
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    match mounted {
        Ok(()) => {}
        Err(Errno::EPERM | Errno::EACCES) => skip(Kind::Tool, "mounts (CAP_SYS_ADMIN)"),
        Err(error) => panic!("cannot mount a tmpfs: {error}"),
    }
}

/// Writes to `file` until its disk has at most `left` bytes free. Others may write there at the same time.
///
/// # Panics
/// Panics if the file cannot be written for another reason than a full disk.
pub fn fill(file: &Path, left: u64) {
    let mut file = File::create(file).expect("a file");
    let free = |file: &File| {
        let disk = fstatvfs(file).expect("the state of a disk");
        disk.blocks_available() * disk.fragment_size()
    };
    while free(&file) > left {
        match file.write_all(&[0; 4096]) {
            Ok(()) => {}
            Err(full) if full.kind() == ErrorKind::StorageFull => return,
            Err(error) => panic!("cannot write: {error}"),
        }
    }
}

fn mount_at(folder: &Path, mebibytes: usize) -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    let size = format!("size={mebibytes}m");
    mount(
        Some("tmpfs"),
        folder,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(&*size),
    )
}

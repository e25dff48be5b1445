//! Small disks, which fill up.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::need::{Kind, skip};
use crate::netns::as_root_of_its_own;
use crate::room::Room;

/// Calls `inside` with the folder of a disk of so many MiB, which nobody sees but that thread and the processes that it starts.
/// The test is called `test`, which [`name!`](crate::name) gives; where this user may not mount, it runs as the root of a user
/// namespace of its own, or is skipped.
///
/// # Panics
/// When `inside` does, and when mounting fails for another reason than a permission.
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

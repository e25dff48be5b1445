//! Memory that is mapped twice in a row: what runs over the end continues at the beginning.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Returns the page size in bytes.
pub(super) fn page() -> usize {
    // SAFETY: sysconf only returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096)
}

pub(super) struct Mirror {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a Mirror is plain memory, not bound to a thread; the callers of `slice_mut` promise who may touch which part.
unsafe impl Send for Mirror {}
// SAFETY: as above.
unsafe impl Sync for Mirror {}

impl Mirror {
    /// Allocates `length` bytes of touched memory, a multiple of the page size. Slow: about two seconds per GiB.
    pub(super) fn new(length: usize) -> io::Result<Mirror> {
        Mirror::of(length, true)
    }

    /// Allocates memory like [`Mirror::new`], but touches each page only when it is needed.
    pub(super) fn untouched(length: usize) -> io::Result<Mirror> {
        Mirror::of(length, false)
    }

    fn of(length: usize, is_touched: bool) -> io::Result<Mirror> {
        let file = anonymous_file(length, is_touched)?;
        let base = reserve(2 * length)?;
        let mirror = Mirror { base, length };
        for half in [base.as_ptr(), base.as_ptr().wrapping_add(length)] {
            map_over(half, length, &file, is_touched)?;
        }
        Ok(mirror)
    }

    /// Returns the number of bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the bytes from `start` on, which may run over the end into the beginning.
    ///
    /// # Safety
    /// While the slice lives, nothing else may touch these bytes, under either address.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises that nothing else refers to the bytes"
    )]
    pub(super) unsafe fn slice_mut(&self, start: usize, length: usize) -> &mut [u8] {
        assert!(
            start < self.length && length <= self.length,
            "outside the ring"
        );
        // SAFETY: the range is within the two mappings, whose bytes are initialised by the kernel; the caller promises that it is not
        // aliased.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), length) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), 2 * self.length) };
    }
}

/// Creates a file in memory of `length` bytes. With `is_touched` it is allocated now, so that a lack of memory is an error here and not
/// a signal at the first access. More than the host has available is not even tried: the kernel would kill programs to get it.
fn anonymous_file(length: usize, is_touched: bool) -> io::Result<OwnedFd> {
    if available().is_some_and(|available| length as u64 > available) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"evlbi ring".as_ptr(), libc::MFD_CLOEXEC) };
    succeed(fd)?;
    // SAFETY: the kernel just returned this descriptor, and nothing else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: only numbers are passed.
    succeed(unsafe {
        match is_touched {
            true => libc::fallocate(file.as_raw_fd(), 0, 0, length),
            false => libc::ftruncate(file.as_raw_fd(), length),
        }
    })?;
    Ok(file)
}

/// Returns the bytes that programs can still allocate without swapping (`MemAvailable` of /proc/meminfo).
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Reserves addresses that nothing else is mapped to.
fn reserve(length: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let base = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    mapped(base)
}

/// Maps the file to reserved addresses; with `is_touched`, maps all its pages now, so that no access faults later.
fn map_over(place: *mut u8, length: usize, file: &OwnedFd, is_touched: bool) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let populate = if is_touched { libc::MAP_POPULATE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | populate;
    // SAFETY: the range is within what `reserve` set aside for this mapping.
    let base = unsafe { libc::mmap(place.cast(), length, protection, flags, file.as_raw_fd(), 0) };
    mapped(base).map(|_| ())
}

fn mapped(base: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

fn succeed(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_end_continues_at_the_start() {
        let mirror = Mirror::new(2 * page()).unwrap();
        assert_eq!(mirror.length(), 2 * page());
        // SAFETY: the slices live one after the other.
        unsafe {
            mirror.slice_mut(2 * page() - 2, 4).copy_from_slice(b"wrap");
            assert_eq!(mirror.slice_mut(0, 2), b"ap");
            mirror.slice_mut(0, 2).copy_from_slice(b"it");
            assert_eq!(mirror.slice_mut(2 * page() - 2, 4), b"writ");
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let exabyte = 1usize << 60;
        assert!(available().unwrap() < exabyte as u64);
        let error = Mirror::new(exabyte).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}

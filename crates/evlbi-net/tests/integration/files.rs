//! Recordings on real file systems.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

use evlbi_net::clock::Clock;
use evlbi_net::file::{Durability, Reader, ReaderOptions, Writer, WriterOptions};
use evlbi_net::ring::Reserve;
use evlbi_testkit::{Room, command, disk, name};
use proptest::prelude::*;

/// Returns bytes that depend on their position.
fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect()
}

fn options(cached: bool) -> WriterOptions {
    WriterOptions {
        cached,
        ..WriterOptions::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_file_holds_the_written_bytes(
        cached: bool,
        pieces in proptest::collection::vec(
            prop_oneof![0..5000usize, Just(4096), Just(262_144), 200_000..1_500_000usize],
            0..12,
        ),
        start in 0..4096usize,
    ) {
        let directory = Room::on_disk();
        let path = directory.folder().join("recording");
        let all = content(start + pieces.iter().sum::<usize>());
        let mut writer = Writer::create(&path, options(cached)).unwrap();
        let mut at = start;
        for piece in pieces {
            writer.write(&all[at..at + piece]).unwrap();
            at += piece;
            prop_assert!(writer.written() <= (at - start) as u64);
            prop_assert!(writer.written() + (1 << 20) > (at - start) as u64);
        }
        prop_assert_eq!(writer.finish().unwrap(), (at - start) as u64);
        prop_assert!(fs::read(&path).unwrap() == all[start..at]);
        // Unused reserved space is free again.
        let used = fs::metadata(&path).unwrap().blocks() * 512;
        prop_assert!(used <= (at - start) as u64 + 65_536, "{} bytes of disk", used);
    }
}

#[test]
fn spans_of_a_ring_go_directly_to_the_disk() {
    const SLOT: usize = 1464;
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let (mut producer, mut consumer) = Reserve::new(SLOT * 3000)
        .unwrap()
        .ring::<()>(SLOT, 1)
        .unwrap();
    let all = content(SLOT * 20_000);
    let mut writer = Writer::create(&path, WriterOptions::default()).unwrap();
    let mut direct = File::options();
    let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(&path);
    assert_eq!(writer.is_direct(), direct.is_ok());
    let mut position = 0;
    for (step, data) in all.chunks(SLOT).enumerate() {
        producer.place(step as u64, data).unwrap();
        producer.publish(step as u64 + 1);
        if step % 1777 == 1776 {
            let span = consumer.span();
            writer.write(span.data).unwrap();
            position = span.first + (span.data.len() / SLOT) as u64;
            consumer.free(position);
        }
    }
    assert_eq!(position, 20_000 / 1777 * 1777);
    writer.write(consumer.span().data).unwrap();
    assert_eq!(writer.finish().unwrap(), all.len() as u64);
    assert!(fs::read(&path).unwrap() == all);
}

#[test]
fn data_is_forced_out_when_asked_for() {
    let directory = Room::on_disk();
    for cached in [true, false] {
        for durability in [Durability::End, Durability::Every(1 << 20)] {
            let path = directory.folder().join("recording");
            let options = WriterOptions {
                durability,
                ..options(cached)
            };
            let all = content(3_000_001);
            let mut writer = Writer::create(&path, options).unwrap();
            for piece in all.chunks(700_000) {
                writer.write(piece).unwrap();
            }
            assert_eq!(writer.finish().unwrap(), all.len() as u64);
            assert!(fs::read(&path).unwrap() == all);
        }
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_a_whole_file() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let all = content(3_000_001);
    let mut writer = Writer::create(&path, WriterOptions::default()).unwrap();
    writer.write(&all).unwrap();
    drop(writer);
    assert!(fs::read(&path).unwrap() == all);
}

#[test]
fn an_old_file_is_emptied() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    fs::write(&path, content(5000)).unwrap();
    let writer = Writer::create(&path, WriterOptions::default()).unwrap();
    assert_eq!(writer.finish().unwrap(), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn files_that_cannot_be_created_are_named() {
    let error = Writer::create(Path::new("/no/such/place"), WriterOptions::default()).unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
}

#[test]
fn more_than_two_gibibytes_in_one_piece() {
    // Zeros that are never touched.
    let huge = vec![0u8; (2 << 30) + 12_345];
    let mut writer = Writer::create(Path::new("/dev/null"), WriterOptions::default()).unwrap();
    writer.write(&huge).unwrap();
    assert_eq!(writer.finish().unwrap(), huge.len() as u64);
}

#[test]
fn pipes_are_written_to() {
    let directory = Room::on_disk();
    let path = directory.folder().join("pipe");
    let made = command("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let all = content(1_000_000);
    let reader = {
        let path = path.clone();
        thread::spawn(move || fs::read(path).unwrap())
    };
    let options = WriterOptions {
        durability: Durability::End,
        ..options(false)
    };
    let mut writer = Writer::create(&path, options).unwrap();
    writer.write(&all).unwrap();
    assert_eq!(writer.finish().unwrap(), all.len() as u64);
    assert!(reader.join().unwrap() == all);
}

#[test]
fn a_full_device_is_an_error_that_names_it() {
    let mut writer = Writer::create(Path::new("/dev/full"), WriterOptions::default()).unwrap();
    let error = writer.write(&content(5000)).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(error.written, 0);
    assert!(error.to_string().contains("/dev/full"), "{error}");
}

#[test]
fn a_disk_that_fills_up_keeps_what_fitted() {
    disk::small(4, name!(), |place| {
        for cached in [true, false] {
            let path = place.join("recording");
            let all = content(6 << 20);
            let mut writer = Writer::create(&path, options(cached)).unwrap();
            let error = all
                .chunks(300_000)
                .find_map(|piece| writer.write(piece).err())
                .unwrap();
            assert_eq!(error.source.raw_os_error(), Some(libc::ENOSPC), "{error}");
            assert!(error.written > 2 << 20);
            let kept = writer.finish().unwrap();
            assert_eq!(kept, error.written);
            assert!(fs::read(&path).unwrap() == all[..kept as usize]);
            fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn a_limit_on_file_length_is_an_error() {
    const INNER: &str = "EVLBI_TEST_FILE_LIMIT";
    let Ok(path) = std::env::var(INNER) else {
        let directory = Room::on_disk();
        let script = "trap '' XFSZ; ulimit -f 2000; exec \"$0\" \"$@\"";
        let output = command("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name!()])
            .env(INNER, directory.folder().join("recording"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        // A wrong name would run nothing.
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{said}");
        return;
    };
    for cached in [true, false] {
        let mut writer = Writer::create(Path::new(&path), options(cached)).unwrap();
        let all = content(4 << 20);
        let error = all
            .chunks(300_000)
            .find_map(|piece| writer.write(piece).err())
            .unwrap();
        assert_eq!(error.source.raw_os_error(), Some(libc::EFBIG), "{error}");
        let kept = writer.finish().unwrap() as usize;
        // `ulimit -f` counts in 512 or 1024 bytes.
        assert!(kept <= 2000 * 1024);
        assert!(fs::read(&path).unwrap() == all[..kept]);
    }
}

fn read_all(reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(block) = reader.next_block() {
        all.extend_from_slice(&block.unwrap());
    }
    all
}

/// Returns a real clock, with which files are read ahead, and a virtual one, with which they are not.
fn clocks() -> [Clock; 2] {
    [Clock::real(), Clock::simulated(0)]
}

#[test]
fn a_file_is_read_in_whole_units() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let lengths = [0, 1, 99, 100, 101, 1000, 12_345];
    let all = lengths.map(|length| clocks().map(|clock| (length, clock)));
    for (length, clock) in all.into_iter().flatten() {
        let all = content(length);
        fs::write(&path, &all).unwrap();
        for (block, unit) in [
            (1, 1),
            (50, 100),
            (100, 100),
            (350, 100),
            (1 << 20, 100),
            (64, 7),
        ] {
            let options = ReaderOptions {
                block,
                unit,
                blocks: 3,
                ..ReaderOptions::default()
            };
            let mut reader = Reader::open(&path, options, &clock).unwrap();
            let whole = length / unit * unit;
            let mut read = Vec::new();
            while let Some(block) = reader.next_block() {
                let block = block.unwrap();
                assert_eq!(block.len() % unit, 0);
                assert_eq!(block.pass, 0);
                read.extend_from_slice(&block);
            }
            assert_eq!(read, all[..whole]);
        }
    }
}

#[test]
fn a_part_is_read_again_and_again() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let all = content(10_000);
    fs::write(&path, &all).unwrap();
    for clock in clocks() {
        let options = ReaderOptions {
            block: 600,
            blocks: 2,
            unit: 100,
            start: 50,
            length: Some(2050),
            repeats: Some(3),
        };
        let mut reader = Reader::open(&path, options, &clock).unwrap();
        let mut passes = Vec::new();
        let mut read = Vec::new();
        while let Some(block) = reader.next_block() {
            let block = block.unwrap();
            passes.push((block.pass, block.len()));
            read.extend_from_slice(&block);
        }
        assert_eq!(read, all[50..2050].repeat(3));
        assert_eq!(passes[3..6], [(0, 200), (1, 600), (1, 600)]);

        let forever = ReaderOptions {
            repeats: None,
            ..options
        };
        let mut reader = Reader::open(&path, forever, &clock).unwrap();
        for _ in 0..1000 {
            assert!(reader.next_block().unwrap().is_ok());
        }
    }
}

#[test]
fn blocks_may_outlive_their_reader() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let all = content(1000);
    fs::write(&path, &all).unwrap();
    let options = ReaderOptions {
        block: 100,
        blocks: 4,
        ..ReaderOptions::default()
    };
    let mut reader = Reader::open(&path, options, &Clock::real()).unwrap();
    let first = reader.next_block().unwrap().unwrap();
    let second = reader.next_block().unwrap().unwrap();
    drop(reader);
    assert_eq!(*first, all[..100]);
    drop(first);
    assert_eq!(*second, all[100..200]);
}

#[test]
fn beyond_four_gibibytes() {
    let directory = Room::on_disk();
    let path = directory.folder().join("recording");
    let file = File::create(&path).unwrap();
    let far = 5u64 << 30;
    file.write_all_at(b"the end", far).unwrap();
    let options = ReaderOptions {
        start: far - 3,
        ..ReaderOptions::default()
    };
    let mut reader = Reader::open(&path, options, &Clock::real()).unwrap();
    assert_eq!(read_all(&mut reader), b"\0\0\0the end");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = Room::on_disk();
    let open = |path: &Path| Reader::open(path, ReaderOptions::default(), &Clock::real());
    let error = open(directory.folder()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let missing = directory.folder().join("missing");
    let error = open(&missing).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");

    // A file that shrinks while it is read: the existing data is returned, then the error.
    let path = directory.folder().join("recording");
    for clock in clocks() {
        fs::write(&path, content(1000)).unwrap();
        let options = ReaderOptions {
            block: 100,
            blocks: 2,
            ..ReaderOptions::default()
        };
        let mut reader = Reader::open(&path, options, &clock).unwrap();
        let held = reader.next_block().unwrap().unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(350)
            .unwrap();
        drop(held);
        let mut errors = 0;
        let mut read = 100;
        while let Some(block) = reader.next_block() {
            match block {
                Ok(block) => read += block.len(),
                Err(error) => {
                    assert_eq!(error.offset, 300);
                    assert_eq!(error.source.kind(), io::ErrorKind::UnexpectedEof);
                    errors += 1;
                }
            }
        }
        assert_eq!((read, errors), (300, 1));
    }
}

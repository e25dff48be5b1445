//! Recordings go through `evlbi send` and `evlbi recv` over real sockets, and a relay that harms them.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{Recv, assert_numbers, each, number, recordings, send};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn recordings_arrive_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 3] = [
        &[],
        &["--mtu", "1500"],
        &["--mtu", "1500", "--cut", "plain"],
    ];
    let runs: Vec<(PathBuf, usize)> = recordings()
        .into_iter()
        .flat_map(|path| (0..ways.len()).map(move |way| (path.clone(), way)))
        .collect();
    each(&runs, |(path, way)| {
        let out = folder
            .path()
            .join(format!("{way}-{}", path.file_name().unwrap().display()));
        let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
        let sent = send(text(path), &recv.url(), ways[*way]);
        let result = recv.finish();
        let what = format!("{} with {:?}", path.display(), ways[*way]);
        eprintln!("{what}");
        let count = number(&sent, "sent");
        assert_numbers(
            &result,
            &[
                ("received", count),
                ("unique", count),
                ("lost", 0),
                ("duplicates", 0),
                ("reordered", 0),
                ("foreign", 0),
                ("lost_frames", 0),
            ],
        );
        let before = fs::read(path).unwrap();
        let after = fs::read(&out).unwrap();
        let cut = before.len() - number(&sent, "truncated_bytes") as usize;
        let padded = number(&sent, "padded_bytes") as usize;
        assert!(
            after.len() >= padded,
            "{what}: {} bytes {result:#}",
            after.len()
        );
        assert!(
            after[..after.len() - padded] == before[..cut],
            "{what}: {} bytes become {} {sent:#} {result:#}",
            before.len(),
            after.len()
        );
    });
}

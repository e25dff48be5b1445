//! Refused options of streams between programs of one host, over Unix sockets.

use evlbi_testkit::Room;
use evlbi_testkit::result::{assert_numbers, assert_schema};
use evlbi_wire::pattern;

use crate::live::support::{Recv, evlbi, send, try_send};

const FRAME: usize = 8032;
/// More than sockets hold.
const FRAMES: u32 = 5000;

fn pattern(room: &Room) -> String {
    let rate = pattern::frame_rate(1250);
    let frames = pattern::frames(FRAME, 1_700_000_000, rate, FRAMES).unwrap();
    room.write("in.vdif", frames)
}

fn url(room: &Room) -> String {
    format!("unix://{}", room.path("socket"))
}

fn recv(url: &str, to: &str) -> Recv {
    let mut command = evlbi();
    command.args(["recv", url, "--json", "--ring", "64MiB", "--to", to]);
    Recv::listening_on_paths(&mut command, 1)
}

/// An option without effect is refused, and so is a path that is in use.
#[test]
fn options_without_effect_are_refused() {
    let room = Room::new();
    let source = pattern(&room);
    let url = url(&room);
    let first = recv(&url, "null");
    for option in [["--window", "1MiB"], ["--buffer", "1MiB"]] {
        let mut command = evlbi();
        command.args(["recv", &url, "--to", "null"]).args(option);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(
            said.contains(&format!("{} has no effect on unix://", option[0])),
            "{said}"
        );
    }
    let output = try_send(&source, &url, &["--mtu", "9000"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--mtu has no effect on unix://"), "{said}");
    let second = evlbi()
        .args(["recv", &url, "--to", "null"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another program listens there"), "{said}");
    assert_eq!(second.status.code(), Some(1), "{said}");
    // A client that only connected ended nothing.
    send(&source, &url, &[]);
    let result = first.finish();
    assert_schema(&result, "evlbi.recv/1");
    assert_numbers(&result, &[("unique", FRAMES.into()), ("lost", 0)]);
}

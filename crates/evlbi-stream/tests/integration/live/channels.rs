//! A live stream that is split into channels.

use evlbi_net::run::Run;
use evlbi_stream::send::SendOptions;
use evlbi_stream::split::split;
use evlbi_testkit::Room;
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::result::{assert_numbers, number, shown};
use evlbi_wire::validity::Gaps;

use super::support::{HERE, Recv, send, sending};
use crate::turn::{key, shape, splits, thread};

fn gaps(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(&format!("{name}.gaps.json"))).unwrap()
}

/// Two receivers get the same stream, of which frames are missing: one splits it, the other records it to be split.
#[test]
fn a_live_stream_is_split_like_its_recording() {
    let room = Room::new();
    // Two frames become one of each channel; the headers do not contain the rate.
    let input = room.write("in.vdif", thread(shape(1008, 4, 2), key(0)));
    assert_fits(150, 1040 + 8);
    let receive = |to: &str| {
        let recv = Recv::start(HERE, room.path(to));
        let options = SendOptions {
            shed: "random:20%".parse().unwrap(),
            mtu: Some(1500),
            ..sending(&input, &recv.url())
        };
        let sent = number(&send(&options), "sent");
        assert!((1..150).contains(&sent));
        let result = recv.finish_after(sent);
        assert_numbers(&result, &[("unique", sent), ("unwritten_bytes", 0)]);
        assert!(number(&result, "lost_frames") > 0);
        result
    };
    receive("whole.vdif");
    let live = receive("live-{station}-{channel}.vdif");
    let to = room.path("file-{station}-{channel}.vdif");
    shown(split(
        &splits(&room.path("whole.vdif"), &to),
        &Run::silent(),
    ));
    for channel in 0..4 {
        let names = ["live", "file"].map(|name| format!("{name}-Ef-{channel}.vdif"));
        let [ours, theirs] = names.each_ref().map(|name| room.read(name));
        assert!(ours == theirs, "channel {channel}");
        let [mut ours, theirs] = names.each_ref().map(|name| gaps(&room, name));
        assert_eq!(ours.file.as_ref(), Some(&names[0]));
        ours.file.clone_from(&theirs.file);
        assert!(!theirs.time.is_empty());
        assert_eq!(ours, theirs, "channel {channel}");
        let listed = live["files"][channel]["gaps_file"].as_str().unwrap();
        assert_eq!(listed, room.path(&format!("{}.gaps.json", names[0])));
    }
}

//! Damaged, mixed and mislabelled recordings in `drop`, `split`, `join`, `send` and `recv`: their messages, and the data that they keep.
//!
//! Put further kinds of bad input of these commands here, as rows of the table.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::{
    MARK4, Make, Skies, VDIF, a_second_late, evlbi, joined, mark4, on, on_of, two_stations,
};
use crate::live::support::Recv;

/// Commands, with IN for the recording and OUT for the output, whose station, thread or channel is that of station On.
type Command = &'static [&'static str];
const DROP: Command = &["drop", "IN", "OUT", "--shed", "none", "--replace", "fill"];
const SPLIT: Command = &["split", "IN", "--to", "OUT-{station}-{channel}"];
const STATIONS: Command = &["split", "IN", "--to", "OUT-{station}"];
const JOIN: Command = &["join", "@vdif/Ef.vdif", "IN", "--to", "OUT"];
const THREADS: Command = &["join", "@vdif/Ef.vdif", "IN", "--to", "OUT", "--threads"];
const SEND: Command = &["send", "IN", "--to", "OUT", "--max"];
const PACED: Command = &["send", "IN", "--to", "OUT"];
const RECV: Command = &["recv", "FROM", "--to", "OUT"];

/// Output.
enum Kept {
    /// None.
    Nothing,
    /// These bytes.
    Bytes(Make),
    /// That of the same command with this recording, without the settings.
    Like(Make),
}

use Kept::{Bytes, Like, Nothing};

/// One kind of bad input.
struct Case {
    name: &'static str,
    command: Command,
    /// File name of the recording, and its settings; of a stream only the settings.
    input: &'static str,
    make: Make,
    /// Exit status.
    status: i32,
    /// Texts within what is printed.
    says: &'static [&'static str],
    kept: Kept,
}

fn part(skies: &Skies) -> Option<Vec<u8>> {
    on_of(skies, 150 * VDIF)
}

fn cut(skies: &Skies) -> Option<Vec<u8>> {
    on_of(skies, 150 * VDIF + 10)
}

fn two_lengths(skies: &Skies) -> Option<Vec<u8>> {
    joined(
        skies,
        "vdif/On.vdif",
        100 * VDIF,
        "frames/On.vdif",
        50 * 2032,
    )
}

fn mark4_and_vdif(skies: &Skies) -> Option<Vec<u8>> {
    joined(skies, "formats/On.m4", 34 * MARK4, "formats/Ef.vdif", 0)
}

fn mark4_part(skies: &Skies) -> Option<Vec<u8>> {
    mark4(skies).map(|bytes| bytes[..34 * MARK4].to_vec())
}

fn two_bits(skies: &Skies) -> Option<Vec<u8>> {
    joined(skies, "vdif/On.vdif", 100 * VDIF, "bits/On.vdif", 50 * VDIF)
}

fn first_hundred(skies: &Skies) -> Option<Vec<u8>> {
    on_of(skies, 100 * VDIF)
}

fn damaged(skies: &Skies) -> Option<Vec<u8>> {
    let mut bytes = on(skies)?;
    bytes[90 * VDIF..][..32].fill(0xff);
    Some(bytes)
}

fn late(skies: &Skies) -> Option<Vec<u8>> {
    on(skies).and_then(a_second_late)
}

fn empty(_: &Skies) -> Option<Vec<u8>> {
    Some(Vec::new())
}

fn text(_: &Skies) -> Option<Vec<u8>> {
    Some(b"no recording at all, but quite a few bytes of text".to_vec())
}

fn mark5b(skies: &Skies) -> Option<Vec<u8>> {
    Some(skies.read("formats/Jb.m5b"))
}

/// Returns the table: name, command, input and how to make it, exit status, message, output.
#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let row = |name, command, input, make: Make, status, says: &'static [&'static str], kept| Case {
        name, command, input, make, status, says, kept,
    };
    vec![
        // Truncated.
        row("empty, drop", DROP, "On.vdif", empty, 1, &["is empty: record or copy it again"], Nothing),
        row("empty, split", SPLIT, "On.vdif", empty, 1, &["is empty: record or copy it again"], Nothing),
        row("empty, join", JOIN, "On.vdif", empty, 1, &["is empty: record or copy it again"], Nothing),
        row("empty, send", SEND, "On.vdif", empty, 1, &["is empty: record or copy it again"], Nothing),
        row("cut, drop", DROP, "On.vdif", cut, 0, &["10 bytes of a truncated last frame"], Bytes(part)),
        row("cut, split", SPLIT, "On.vdif", cut, 0, &["10 bytes of a truncated last frame"], Like(part)),
        row("cut, join", THREADS, "On.vdif", cut, 0, &["last frame is truncated to 10 bytes at byte 154800", "copy the file again"], Like(part)),
        row("cut, send", SEND, "On.vdif", cut, 0, &["the last 10 bytes of", "are not a whole frame"], Bytes(part)),
        row("cut, recv", RECV, "", cut, 0, &["\"frames\": 150"], Bytes(part)),
        row("one frame of Mark 4", SPLIT, "On.m4", |it| mark4(it).map(|it| it[..MARK4].to_vec()), 1, &["neither VDIF, Mark 5B nor Mark 4: `evlbi inspect`"], Nothing),
        row("text, split", SPLIT, "On.vdif", text, 1, &["neither VDIF, Mark 5B nor Mark 4: `evlbi inspect`"], Nothing),
        row("text, join", JOIN, "On.vdif", text, 1, &["is not VDIF", "`evlbi inspect` shows what it contains"], Nothing),
        row("text, send", PACED, "On.vdif", text, 1, &["raw data without timestamps", "give --rate or --max"], Nothing),
        row("no file, drop", DROP, "On.vdif", |_| None, 1, &["cannot open", "No such file"], Nothing),
        row("no file, split", SPLIT, "On.vdif", |_| None, 1, &["cannot open", "No such file"], Nothing),
        row("no file, join", JOIN, "On.vdif", |_| None, 1, &["cannot open", "No such file"], Nothing),
        row("no file, send", SEND, "On.vdif", |_| None, 1, &["cannot open", "No such file"], Nothing),
        row("a directory, drop", DROP, "", |_| None, 1, &["is a directory: give a recording"], Nothing),
        row("a directory, split", SPLIT, "", |_| None, 1, &["is a directory: give a recording"], Nothing),
        row("a directory, join", JOIN, "", |_| None, 1, &["is a directory: give a recording"], Nothing),
        row("a directory, send", SEND, "", |_| None, 1, &["is a directory: give a recording"], Nothing),
        // Damaged within.
        row("a header, drop", DROP, "On.vdif", damaged, 0, &[], Bytes(damaged)),
        row("a header, split", SPLIT, "On.vdif", damaged, 0, &[], Like(on)),
        row("a header, join", THREADS, "On.vdif", damaged, 0, &[], Like(on)),
        row("a header, send", SEND, "On.vdif", damaged, 0, &[], Bytes(damaged)),
        row("a header, recv", RECV, "", damaged, 0, &["\"odd_headers\": 1"], Bytes(damaged)),
        // Mixed.
        row("two lengths, drop", DROP, "On.vdif", two_lengths, 0, &["from byte 103200 on, it is VDIF with frames of 2032 bytes", "cut the file there"], Bytes(first_hundred)),
        row("two lengths, split", SPLIT, "On.vdif", two_lengths, 0, &["from byte 103200 on, it is VDIF with frames of 2032 bytes", "cut the file there"], Like(first_hundred)),
        row("two lengths, join", THREADS, "On.vdif", two_lengths, 0, &["from byte 103200 on, it is VDIF with frames of 2032 bytes", "cut the file there"], Like(first_hundred)),
        row("two lengths, send", SEND, "On.vdif", two_lengths, 0, &["from byte 103200 on, it is VDIF with frames of 2032 bytes", "cut the file there"], Bytes(first_hundred)),
        row("two lengths, recv", RECV, "", two_lengths, 0, &[], Bytes(two_lengths)),
        row("Mark 4 and VDIF, drop", DROP, "On.m4", mark4_and_vdif, 0, &["from byte 680000 on, it is VDIF with frames of 8032 bytes"], Bytes(mark4_part)),
        row("Mark 4 and VDIF, split", SPLIT, "On.m4#name=On", mark4_and_vdif, 0, &["from byte 680000 on, it is VDIF with frames of 8032 bytes"], Like(mark4_part)),
        row("Mark 4 and VDIF, send", SEND, "On.m4", mark4_and_vdif, 0, &["from byte 680000 on, it is VDIF with frames of 8032 bytes"], Bytes(mark4_part)),
        row("Mark 4 and VDIF, recv", RECV, "", mark4_and_vdif, 0, &[], Bytes(mark4_and_vdif)),
        row("two numbers of bits, split", SPLIT, "On.vdif", two_bits, 0, &["50 frames are left out, from byte 103200 on", "`evlbi inspect"], Like(first_hundred)),
        row("two numbers of bits, join", THREADS, "On.vdif", two_bits, 0, &["50 frames are left out, from byte 103200 on", "`evlbi inspect"], Like(first_hundred)),
        row("two numbers of bits, drop", DROP, "On.vdif", two_bits, 0, &[], Bytes(two_bits)),
        // Mislabelled.
        row("Mark 5B as VDIF", SPLIT, "On.m5b#format=VDIF_1000-2-1-1", mark5b, 1, &["but the frames are Mark 5B: correct the format after `#`"], Nothing),
        row("Mark 5B without a label", SPLIT, "On.m5b", mark5b, 1, &["do not contain the number of channels and bits: add them", "#format="], Nothing),
        row("Mark 4 as VDIF", JOIN, "On.vdif", mark4, 1, &["is not VDIF: only VDIF can be joined"], Nothing),
        row("VDIF with a label", SPLIT, "On.vdif#format=VDIF_1000-2-1-1", on, 1, &["only station, thread and channels have an effect: leave out the others"], Nothing),
        row("a label, drop", DROP, "On.vdif#format=VDIF_1000-2-1-1", on, 1, &["`format` after `#` cannot be used here", "leave it out"], Nothing),
        row("a label, send", SEND, "On.vdif#format=VDIF_1000-2-1-1", on, 1, &["`format` after `#` cannot be used here", "leave it out"], Nothing),
        row("by the file's name", DROP, "On.m4", on, 0, &[], Bytes(on)),
        // Wrong rate, and wrong bits.
        row("a faster station", THREADS, "On.vdif", |it| Some(it.read("fast/On.vdif")), 1, &["1000 frames per second, but", "500 frames per second: join only recordings that are alike"], Nothing),
        row("other bits", JOIN, "On.vdif", |it| Some(it.read("bits/On.vdif")), 1, &["250 frames per second, but", "join only recordings that are alike"], Nothing),
        row("rate of Mark 5B", SPLIT, "On.m5b#format=Mark5B-4-8-2", mark5b, 1, &["50 frames per second are not a multiple of 4: correct --frame-rate, or the format after `#`"], Nothing),
        // Wrong times.
        row("a second late", JOIN, "On.vdif", late, 1, &["On.vdif starts 1 s after", "give recordings of the same time, or --threads"], Nothing),
        row("another year, drop", DROP, "On.m4#year=2023", mark4, 1, &["cannot be of 2023: by its headers it begins at 2024-01-01T12:00:00Z: correct #year"], Nothing),
        row("another year, split", SPLIT, "On.m4#year=2023", mark4, 1, &["cannot be of 2023", "correct #year"], Nothing),
        row("another year, send", SEND, "On.m4#year=2023", mark4, 1, &["cannot be of 2023", "correct #year"], Nothing),
        // Two stations of one name, or in one recording.
        row("a station twice", THREADS, "On.vdif", |it| Some(it.read("vdif/Ef.vdif")), 1, &["both contain thread 0 of station Ef: leave --threads out"], Nothing),
        row("a file twice", &["join", "IN", "IN", "--to", "OUT"], "On.vdif", on, 1, &["is given twice: give it once"], Nothing),
        row("two stations, split", STATIONS, "On.vdif", two_stations, 0, &[], Bytes(on)),
        row("two stations, drop", DROP, "On.vdif#station=On", two_stations, 0, &[], Bytes(on)),
        row("two stations, send", SEND, "On.vdif#station=On", two_stations, 0, &[], Bytes(on)),
        row("two stations, recv", RECV, "#station=On", two_stations, 0, &["\"unselected_frames\": 200"], Bytes(on)),
        // Selections that are not there.
        row("no station, drop", DROP, "On.vdif#station=Xx", on, 1, &["it has no station Xx: it contains On: correct the selection"], Nothing),
        row("no thread, send", SEND, "On.vdif#thread=3", on, 1, &["it has no thread 3: it contains 0: correct the selection"], Nothing),
        row("no station, recv", RECV, "#station=Xx", on, 1, &["it has no station Xx: it contains On: correct the selection"], Nothing),
        row("no channel", &["split", "IN", "--to", "OUT", "--channels", "9"], "On.vdif", on, 1, &["there is no channel 9: the channels are 0"], Nothing),
        row("two stations, split", STATIONS, "On.vdif#station=On", two_stations, 0, &[], Bytes(on)),
        row("two stations, join", THREADS, "On.vdif#station=On", two_stations, 0, &[], Like(on)),
        row("no station, split", STATIONS, "On.vdif#station=Xx", on, 1, &["it has no station Xx: it contains On: correct the selection"], Nothing),
        row("no thread, join", THREADS, "On.vdif#thread=3", on, 1, &["it has no thread 3: it contains 0: correct the selection"], Nothing),
        row("text, select", SEND, "On.vdif#thread=0", text, 1, &["neither VDIF, Mark 5B nor Mark 4: `evlbi inspect"], Nothing),
        row("no such setting, drop", DROP, "On.vdif#thred=3", on, 2, &["unknown setting `thred` after `#`: known are station, thread"], Nothing),
        row("no such setting, join", JOIN, "On.vdif#thred=3", on, 2, &["unknown setting `thred` after `#`"], Nothing),
        row("no such setting, recv", RECV, "#thred=3", on, 2, &["unknown setting `thred` after `#`"], Nothing),
    ]
}

/// Runs a command on the recording `input` in a directory, or on a stream of these bytes. Returns its exit status, what it printed, and
/// its output, if there is one.
fn run(
    skies: &Skies,
    command: Command,
    folder: &str,
    input: &str,
    bytes: Option<Vec<u8>>,
) -> (i32, String, Option<Vec<u8>>) {
    let (name, settings) = input
        .split_once('#')
        .map_or((input, String::new()), |(name, it)| {
            (name, format!("#{it}"))
        });
    std::fs::create_dir(skies.0.path(folder)).unwrap();
    if command[0] == "recv" {
        return received(skies, folder, &settings, &bytes.unwrap());
    }
    if let Some(bytes) = bytes {
        skies.0.write(&format!("{folder}/{name}"), bytes);
    }
    let input = format!("@{folder}/{name}{settings}");
    let out = format!("{folder}/out");
    let (to, sent) = match command[0] {
        "send" => {
            let (to, sent) = listen();
            (to, Some(sent))
        }
        _ => (format!("@{out}"), None),
    };
    let words = command
        .iter()
        .map(|word| word.replace("IN", &input).replace("OUT", &to));
    let words: Vec<String> = words.collect();
    let line = skies.line(&words.iter().map(String::as_str).collect::<Vec<&str>>());
    let output = evlbi(&line.iter().map(String::as_str).collect::<Vec<&str>>());
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let made = match sent {
        Some(sent) => sent(),
        None => ["out", "out-On", "out-On-0", "out-On-0U"]
            .iter()
            .find_map(|name| std::fs::read(skies.0.path(&format!("{folder}/{name}"))).ok()),
    };
    (output.status.code().unwrap(), said.concat(), made)
}

/// Listens for a sender. Returns the URL, and a function that returns what was sent, if anything.
fn listen() -> (String, impl FnOnce() -> Option<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let listening = std::thread::spawn(move || {
        let mut sent = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
        sent
    });
    let sent = move || {
        // A sender that has failed has not connected.
        let _ = TcpStream::connect(at);
        Some(listening.join().unwrap()).filter(|sent| !sent.is_empty())
    };
    (format!("tcp://{at}"), sent)
}

/// Records a stream of these bytes, with these settings.
fn received(
    skies: &Skies,
    folder: &str,
    settings: &str,
    bytes: &[u8],
) -> (i32, String, Option<Vec<u8>>) {
    let out = skies.0.path(&format!("{folder}/out"));
    let from = format!("tcp://127.0.0.1:0{settings}");
    if settings.contains("thred") {
        let output = evlbi(&["recv", &from, "--to", &out]);
        return (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
            None,
        );
    }
    let recv = Recv::start(&from, Path::new(&out), &[]);
    let mut stream = TcpStream::connect(recv.address()).unwrap();
    // A receiver that refuses the stream may close it.
    let _ = stream.write_all(bytes);
    drop(stream);
    let received = recv.end();
    let said = received.stdout + &received.stderr;
    (
        received.status.code().unwrap(),
        said,
        std::fs::read(out).ok(),
    )
}

/// Checks a case in a directory of this name.
fn check(skies: &Skies, folder: &str, case: &Case) {
    let Case {
        name,
        command,
        input,
        ..
    } = case;
    let (status, said, made) = run(skies, command, folder, input, (case.make)(skies));
    assert_eq!(status, case.status, "{name}: {said}");
    assert!(!said.contains("panicked"), "{name}: {said}");
    for part in case.says {
        assert!(said.contains(part), "{name}: {part} is not in: {said}");
    }
    let has_error = status == 1 || said.contains("evlbi: warning");
    if has_error && command[0] != "recv" {
        let path = format!("{folder}/{}", input.split('#').next().unwrap());
        assert!(said.contains(&path), "{name}: {path} is not in: {said}");
    }
    let expected = match case.kept {
        Nothing => None,
        Bytes(make) => make(skies),
        Like(make) => {
            let folder = format!("{folder}-like");
            let (status, said, made) = run(skies, command, &folder, input, make(skies));
            assert!(status == 0 && made.is_some(), "{name}: {said}");
            made
        }
    };
    assert!(made == expected, "{name}: other output: {said}");
}

#[test]
fn bad_input_is_named_and_the_rest_is_carried() {
    let skies = Skies::new();
    for (index, case) in cases().iter().enumerate() {
        check(&skies, &index.to_string(), case);
    }
}

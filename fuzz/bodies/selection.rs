//! Any text as an input with settings, and as a name of outputs: what is read is the same after writing it and reading it again, and no
//! station makes a name of another directory.

use std::path::Path;

use evlbi_stream::selection::{ChannelId, Selection};
use evlbi_stream::split::Channels;
use evlbi_stream::template::Template;
use evlbi_wire::vdif::{StationId, StreamKey};

/// Reads a station, a thread and a line each of an input, a name of outputs, and channels.
pub fn run(data: &[u8]) {
    let Some((&[high, low, thread], text)) = data.split_first_chunk() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    input(next());
    let key = StreamKey {
        station: StationId::from_code([high, low]),
        thread: u16::from(thread),
    };
    name(next(), key);
    let channels = next();
    let _ = channels.parse::<Channels>();
    if let Ok(channel) = channels.parse::<ChannelId>() {
        assert_eq!(channel.to_string().parse(), Ok(channel));
    }
}

fn input(text: &str) {
    let Ok((address, selection)) = Selection::split(text) else {
        return;
    };
    let written = selection.join(&address);
    let again = Selection::split(&written);
    assert_eq!(again, Ok((address, selection.clone())), "{written}");
    let _ = (selection.is_part(), selection.streams());
    let latest = selection.read_at(1_700_000_000);
    assert!(selection.is_year_of(latest) || selection.year.is_none());
}

fn name(text: &str, key: StreamKey) {
    let Ok(template) = Template::new(text) else {
        return;
    };
    let other = StreamKey {
        station: StationId(key.station.0 ^ 1),
        thread: key.thread ^ 1,
    };
    let channel = Some(ChannelId::Number(usize::from(key.thread)));
    let names = [key, other].map(|key| template.name(key, channel));
    let places = [key, other].map(|key| template.place(key, channel));
    let parts = |name: &str| Path::new(name).components().count();
    assert_eq!(parts(&names[0]), parts(&names[1]));
    assert_eq!(places[0] == places[1], names[0] == names[1], "{text}");
    assert!(!template.is_one() || names[0] == text);
    assert!(!names[0].contains(['{', '}']));
}

//! Any bytes as a stream of Mark 4: headers, channels and times do not contradict each other, and every byte is taken once.

use evlbi_core::deframe::{Deframer, Format, Settings};
use evlbi_wire::mark4::{Channels, Header, Order, Relative, Tracks, find, has_sync};

pub fn run(data: &[u8]) {
    let Some((&control, stream)) = data.split_first() else {
        return;
    };
    let tracks = Tracks::ALL[usize::from(control) % 4];
    for start in find(stream, tracks).take(16) {
        assert!(has_sync(&stream[start..], tracks));
        let header = Header::parse(&stream[start..], tracks).expect("its sync word is undamaged");
        head(&header, &stream[start..]);
    }
    if let Ok(header) = Header::parse(stream, tracks) {
        head(&header, stream);
    }
    let _ = Relative::find(stream);
    deframe(stream, control);
}

fn head(header: &Header, bytes: &[u8]) {
    let mut again = vec![0; header.count().header_length()];
    header.emit(&mut again);
    assert_eq!(again, bytes[..again.len()]);
    if let Ok(code) = header.time_code() {
        for reference in [i64::MIN, 0, 1_700_000_000, i64::MAX] {
            assert!(
                code.second(reference)
                    .is_none_or(|second| second <= reference.saturating_add(86_400))
            );
        }
        let mut timed = header.clone();
        timed.set_time_code(code);
        assert!(timed.is_intact());
        assert_eq!(timed.time_code(), Ok(code));
    }
    if let Ok(channels) = Channels::of(header) {
        let order = Order::of(&channels);
        let whole = bytes.len() / header.count().bytes() * header.count().bytes();
        let (mut vdif, mut tracks) = (Vec::new(), Vec::new());
        order.to_vdif(bytes, &mut vdif);
        order.to_tracks(&vdif, &mut tracks);
        assert_eq!(tracks, bytes[..whole]);
    }
}

fn deframe(stream: &[u8], control: u8) {
    let mut deframer = Deframer::new(Settings {
        format: Some(Format::Mark4),
        hold: 100_000,
        latest: 1_700_000_000,
        ..Settings::default()
    });
    let step = 1000 * (1 + usize::from(control));
    let (mut from, mut to, mut handed_over) = (0, 0, 0u64);
    while from < stream.len() {
        to = (to + step).min(stream.len());
        let ended = to == stream.len();
        from += deframer.walk(&stream[from..to], ended, &mut |chunk| {
            handed_over += chunk.bytes.len() as u64;
        });
    }
    let counts = deframer.counts();
    assert_eq!(counts.bytes, handed_over);
    assert_eq!(counts.bytes + counts.trimmed_bytes, stream.len() as u64);
}

//! A stream of any bytes with any gaps: every byte is taken once, and the counts add up.

use evlbi_core::deframe::{Deframer, Holes, Settings};

pub fn run(data: &[u8]) {
    let Some((&control, stream)) = data.split_first() else {
        return;
    };
    let slot = 1 + usize::from(control) * 8;
    let mut bytes = stream.to_vec();
    let mut deframer = Deframer::new(Settings {
        hold: 4096,
        ..Settings::default()
    });
    let mut handed_over = 0u64;
    let mut from = 0;
    let mut to = 0;
    while from < bytes.len() {
        to = (to + slot * 7).min(bytes.len());
        let ended = to == bytes.len();
        let mut holes = Holes::new();
        for start in (from..to).step_by(slot) {
            if bytes[start] & 0x0f == 0x0f {
                holes.missing(start - from..(start + slot).min(to) - from);
            }
        }
        let taken = deframer.push(&mut bytes[from..to], &holes, ended, &mut |chunk| {
            handed_over += chunk.bytes.len() as u64;
        });
        assert!(taken <= to - from);
        from += taken;
        if ended {
            assert_eq!(from, to, "all is taken at the end");
        }
    }
    let counts = deframer.counts();
    assert_eq!(counts.bytes, handed_over);
    assert_eq!(
        counts.frames,
        counts.whole
            + counts.source_invalid
            + counts.lost_frames
            + counts.partial
            + counts.odd_headers
    );
}

//! The fill pattern in any bytes: the runs are complete, in order and separate.

use evlbi_wire::fill;

pub fn run(payload: &[u8]) {
    let word = fill::PATTERN.to_le_bytes();
    let mut end = 0;
    for run in fill::find(payload) {
        assert!(end <= run.start);
        let half = if payload[run.start..].starts_with(&word) {
            0
        } else {
            2
        };
        let (before, after) = (&payload[end..run.start + half], &payload[run.end..]);
        let whole = &payload[run.start + half..run.end];
        assert!(whole.len() >= fill::MIN_RUN && whole.len().is_multiple_of(2));
        assert!(fill::is_fill(whole));
        assert_eq!(before.ends_with(&word[2..]), half == 2);
        assert!(!whole.len().is_multiple_of(4) || !after.starts_with(&word[..2]));
        end = run.end;
    }
    let mut filled = payload.to_vec();
    fill::make(&mut filled);
    assert_eq!(fill::is_fill(&filled), !filled.is_empty());
    assert_eq!(
        fill::is_fill(payload),
        !payload.is_empty() && payload == filled
    );
}

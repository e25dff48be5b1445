//! The fill pattern in any bytes: the runs are complete, in order and separate.

use evlbi_wire::fill;

pub fn run(payload: &[u8]) {
    let word = fill::PATTERN.to_le_bytes();
    let mut end = None;
    for run in fill::find(payload) {
        assert!(run.len().is_multiple_of(4));
        assert!(run.len() >= fill::MIN_RUN);
        assert!(end.is_none_or(|end| end < run.start));
        assert!(fill::is_fill(&payload[run.clone()]));
        assert!(!payload[run.end..].starts_with(&word));
        assert!(!payload[..run.start].ends_with(&word));
        end = Some(run.end);
    }
    let mut filled = payload.to_vec();
    fill::make(&mut filled);
    assert_eq!(fill::is_fill(&filled), !filled.is_empty());
    assert_eq!(
        fill::is_fill(payload),
        !payload.is_empty() && payload == filled
    );
}

//! Any text as a shedding policy: parsed, printed and parsed again, then applied.

use evlbi_core::shed::{Policy, Shed, Stream, Unit};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(policy) = text.parse::<Policy>() else {
        return;
    };
    assert_eq!(policy.to_string().parse().as_ref(), Ok(&policy), "{text}");
    let stream = Stream {
        rate: None,
        unit_bytes: 8032,
        wire_bytes: 8106,
        threads: vec![0, 1],
        frame_rate: FrameRate::new(1000),
    };
    let Ok(mut shed) = Shed::new(policy, 1, &stream) else {
        return;
    };
    for frame in 0..1000 {
        let time = FrameTime { second: 0, frame };
        shed.decide(&Unit::new(StreamKey::default(), Some(time), &[]));
    }
    let report = shed.report();
    assert_eq!(report.offered, 1000);
    assert!(report.shed <= report.offered);
}

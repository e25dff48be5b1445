//! Any bytes as a Mark 5B frame, read with the time in the last eight of them as reference.

use evlbi_wire::mark5b::{HEADER_LEN, Header};
use evlbi_wire::time::FrameRate;

pub fn run(data: &[u8]) {
    let Ok(header) = Header::parse(data) else {
        return;
    };
    assert_eq!(header.to_bytes(), data[..HEADER_LEN]);
    let _ = (header.fraction(), format!("{header:?}"));
    times(
        header,
        data.last_chunk()
            .map_or(0, |last| i64::from_le_bytes(*last)),
    );
}

fn times(header: Header, reference: i64) {
    let Ok(time) = header.time(reference) else {
        return;
    };
    let rate = FrameRate::new(1 << 15).expect("not zero");
    let mut again = header;
    again
        .set_time(time, rate)
        .expect("the frame number has 15 bits");
    // At the limits of i64 the nearest day is out of range.
    if reference.unsigned_abs() < 1 << 62 {
        assert_eq!(again.time(reference).map(|time| time.frame), Ok(time.frame));
        assert_eq!(again.time(time.second), Ok(time));
    }
    assert_eq!(again.crc(), again.computed_crc());
}

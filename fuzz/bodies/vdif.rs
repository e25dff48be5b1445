//! Any bytes as a VDIF frame: what is parsed is written unchanged.

use evlbi_wire::vdif::Header;

pub fn run(data: &[u8]) {
    let Ok(header) = Header::parse(data) else {
        return;
    };
    let len = header.len();
    assert_eq!(header.to_bytes()[..len], data[..len]);
    times(header);
    extended(header);
    let shape = header.shape();
    let _ = (
        shape.check(),
        shape.samples_per_frame(),
        header.key().station.to_string(),
    );
    let _ = format!("{header:?}");
}

fn times(header: Header) {
    let mut again = header;
    again
        .set_time(header.time())
        .expect("the time of a header fits a header");
    assert_eq!(again, header);
    if let Some(rate) = header.frame_rate() {
        let _ = header.time().rfc3339(rate);
    }
}

fn extended(header: Header) {
    let Some(extended) = header.extended() else {
        assert!(header.is_legacy());
        return;
    };
    let _ = extended.to_string();
    let mut again = header;
    again
        .set_extended(&extended)
        .expect("what a header says fits a header");
    assert_eq!(again.extended(), Some(extended));
    assert_eq!(again.sample_rate(), header.sample_rate());
}

//! The extended user data of a VDIF header in words.

use evlbi_wire::vdif::{ALMA_SYNC, Extended, Header, SYNC};
use serde_json::{Value, json};

/// Version and fields; none in a legacy header.
pub fn describe(header: &Header) -> Option<Value> {
    let intact = |sync: u32| sync == SYNC;
    Some(match header.extended()? {
        Extended::Nict {
            complex_rate,
            sync,
            das,
        } => json!({
            "version": 1,
            "name": "NICT",
            "complex_samples_per_second": complex_rate,
            "sync_intact": intact(sync),
            "das": printable(&das.to_le_bytes()),
        }),
        Extended::Alma {
            polarisation,
            quadrant,
            correlator,
            sync,
            status,
            serial,
        } => json!({
            "version": 2,
            "name": "ALMA",
            "polarisation": polarisation,
            "quadrant": quadrant,
            "correlator": correlator,
            "sync_intact": sync == ALMA_SYNC,
            "status": status,
            "serial": serial,
        }),
        Extended::Nrao {
            complex_rate,
            sync,
            tuning,
            unit,
            input,
            sub_band,
            upper,
            revision: (major, minor),
            personality,
        } => json!({
            "version": 3,
            "name": "NRAO",
            "complex_samples_per_second": complex_rate,
            "sync_intact": intact(sync),
            "tuning_hz": f64::from(tuning) * 1e6 / f64::from(1 << 24),
            "unit": unit,
            "input": input,
            "sub_band": sub_band,
            "side_band": if upper { "upper" } else { "lower" },
            "revision": format!("{major}.{minor}"),
            "personality": personality,
        }),
        Extended::Merged {
            mask_length,
            sync,
            mask,
        } => json!({
            "version": 4,
            "name": "merged threads",
            "sync_intact": intact(sync),
            "mask_length": mask_length,
            "mask": format!("{mask:#x}"),
        }),
        Extended::Mark5b(inner) => json!({
            "version": 0xab,
            "name": "Mark 5B",
            "frame_number": inner.frame_number(),
            "user": inner.user(),
            "test_vector": inner.is_test_vector(),
            "day": inner.day().ok(),
            "second_of_day": inner.second_of_day().ok(),
            "crc_agrees": inner.crc() == inner.computed_crc(),
        }),
        Extended::Other { version, words } => json!({
            "version": version,
            "words": words.map(|word| format!("{word:#010x}")),
        }),
    })
}

/// Text as far as it is ASCII.
fn printable(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    bytes[..end].escape_ascii().to_string()
}

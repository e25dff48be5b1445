//! Describes the extended user data of a VDIF header.

use evlbi_wire::vdif::{ALMA_SYNC, Extended, Header, SYNC};
use serde_json::{Value, json};

/// Returns version and fields; `None` for a legacy header.
pub fn describe(header: &Header) -> Option<Value> {
    let intact = |sync: u32| sync == SYNC;
    Some(match header.extended()? {
        Extended::Nict(nict) => json!({
            "version": 1,
            "name": "NICT",
            "complex_samples_per_second": nict.complex_rate,
            "sync_intact": intact(nict.sync),
            "das": printable(&nict.das.to_le_bytes()),
        }),
        Extended::Alma(alma) => json!({
            "version": 2,
            "name": "ALMA",
            "polarisation": alma.polarisation,
            "quadrant": alma.quadrant,
            "correlator": alma.correlator,
            "sync_intact": alma.sync == ALMA_SYNC,
            "status": alma.status,
            "serial": alma.serial,
        }),
        Extended::Nrao(nrao) => json!({
            "version": 3,
            "name": "NRAO",
            "complex_samples_per_second": nrao.complex_rate,
            "sync_intact": intact(nrao.sync),
            "tuning_hz": f64::from(nrao.tuning) * 1e6 / f64::from(1 << 24),
            "unit": nrao.unit,
            "input": nrao.input,
            "sub_band": nrao.sub_band,
            "side_band": if nrao.upper { "upper" } else { "lower" },
            "revision": format!("{}.{}", nrao.revision.0, nrao.revision.1),
            "personality": nrao.personality,
        }),
        Extended::Merged(merged) => json!({
            "version": 4,
            "name": "merged threads",
            "sync_intact": intact(merged.sync),
            "mask_length": merged.mask_length,
            "mask": format!("{:#x}", merged.mask),
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

/// Returns the ASCII part of a text.
fn printable(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    bytes[..end].escape_ascii().to_string()
}

//! Inputs of fuzz targets with damage, for property tests.

use proptest::prelude::*;

use super::corpus::{self, Target};

/// Returns an input of one of these targets, shortened by at most `cut` bytes and with at most `changed` changed bytes.
pub fn damaged(targets: &[Target], cut: usize, changed: usize) -> impl Strategy<Value = Vec<u8>> {
    let inputs: Vec<_> = targets
        .iter()
        .flat_map(|(target, _)| corpus::inputs(target))
        .map(|(_, bytes)| bytes)
        .collect();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..=changed);
    (prop::sample::select(inputs), 0..=cut, changes).prop_map(|(mut bytes, cut, changes)| {
        bytes.truncate(bytes.len().saturating_sub(cut));
        for (index, value) in changes {
            if !bytes.is_empty() {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
        }
        bytes
    })
}

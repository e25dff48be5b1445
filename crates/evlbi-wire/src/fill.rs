//! The fill pattern 0x11223344, which replaces missing data.
//!
//! jive5ab, DiFX and SFXC recognise it. It is written in 32-bit little-endian words.

use std::ops::Range;

/// Fill pattern as one 32-bit word.
pub const PATTERN: u32 = 0x1122_3344;

/// Overwrites `bytes` with the pattern, starting with a whole word.
pub fn make(bytes: &mut [u8]) {
    make_from(bytes, 0);
}

/// Overwrites `bytes` with the pattern, starting `offset` bytes into it.
pub fn make_from(bytes: &mut [u8], offset: usize) {
    let mut word = WORD;
    word.rotate_left(offset % 4);
    let mut chunks = bytes.chunks_exact_mut(4);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word);
    }
    for (byte, pattern) in chunks.into_remainder().iter_mut().zip(word) {
        *byte = pattern;
    }
}

/// Minimum run of the pattern that [`find`] reports, in bytes. Random data matches one word in 2^32, and practically never four
/// words in a row.
pub const MIN_RUN: usize = 16;

const WORD: [u8; 4] = PATTERN.to_le_bytes();

/// Two words of the pattern.
const PAIR: u64 = (PATTERN as u64) << 32 | PATTERN as u64;

/// Finds every run of at least [`MIN_RUN`] bytes of the pattern in `payload`, and returns their byte ranges in ascending order.
/// Words are aligned to multiples of four bytes from the start of `payload`.
pub fn find(payload: &[u8]) -> Runs<'_> {
    Runs { payload, from: 0 }
}

/// Returns whether `payload` is not empty and consists of the pattern only.
pub fn is_fill(payload: &[u8]) -> bool {
    let mut pairs = payload.chunks_exact(8);
    !payload.is_empty() && pairs.all(is_pair) && PAIR.to_le_bytes().starts_with(pairs.remainder())
}

/// Iterator over the runs that [`find`] finds.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    payload: &'a [u8],
    /// Position up to which runs were reported; a multiple of 8.
    from: usize,
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        loop {
            // Any run of MIN_RUN bytes contains a whole aligned pair, so searching for pairs is enough.
            let pair = self.payload[self.from..]
                .chunks_exact(8)
                .position(is_pair)?;
            let run = self.run_around(self.from + 8 * pair);
            // Skip the pair in which the run ended. Only its second word could belong to a later run, and that run searches
            // backwards for it.
            self.from = run.end.next_multiple_of(8).min(self.payload.len());
            if run.len() >= MIN_RUN {
                return Some(run);
            }
        }
    }
}

impl Runs<'_> {
    /// Returns the run whose first aligned pair is at `pair`.
    fn run_around(&self, pair: usize) -> Range<usize> {
        let before = &self.payload[..pair];
        let start = pair - if before.ends_with(&WORD) { 4 } else { 0 };
        let after = &self.payload[pair..];
        let pairs = after.chunks_exact(8).take_while(|pair| is_pair(pair));
        let end = pair + 8 * pairs.count();
        let odd = self.payload[end..].starts_with(&WORD);
        start..end + if odd { 4 } else { 0 }
    }
}

fn is_pair(bytes: &[u8]) -> bool {
    bytes == PAIR.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(payload: &[u8]) -> Vec<Range<usize>> {
        find(payload).collect()
    }

    /// Finds the runs by definition, word by word.
    fn plain_runs(payload: &[u8]) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut open: Option<Range<usize>> = None;
        for (number, word) in payload.chunks(4).enumerate() {
            let here = 4 * number..4 * number + 4;
            match (word == WORD, &mut open) {
                (true, Some(run)) => run.end = here.end,
                (true, None) => open = Some(here),
                (false, _) => runs.extend(open.take()),
            }
        }
        runs.extend(open);
        runs.retain(|run| run.len() >= MIN_RUN);
        runs
    }

    #[test]
    fn the_pattern_matches_what_peers_write() {
        let mut bytes = [0; 10];
        make(&mut bytes);
        assert_eq!(
            bytes,
            [0x44, 0x33, 0x22, 0x11, 0x44, 0x33, 0x22, 0x11, 0x44, 0x33]
        );
        assert!(is_fill(&bytes));
        assert!(!is_fill(&bytes[1..]));
        assert!(!is_fill(&[]));
    }

    #[test]
    fn runs_are_found_wherever_a_word_starts() {
        for start in (0..64).step_by(4) {
            for words in 0..20 {
                let mut payload = [0x5au8; 160];
                let end = start + 4 * words;
                make(&mut payload[start..end]);
                let expected: Vec<_> = (words >= 4).then_some(start..end).into_iter().collect();
                assert_eq!(runs(&payload), expected);
            }
        }
    }

    #[test]
    fn a_run_off_the_words_is_none() {
        let mut payload = [0u8; 64];
        make(&mut payload[2..50]);
        assert_eq!(runs(&payload), []);
    }

    #[test]
    fn runs_reach_to_the_edges() {
        let mut payload = [0u8; 8007];
        make(&mut payload);
        assert!(runs(&payload).into_iter().eq(std::iter::once(0..8004)));
        assert!(is_fill(&payload));
        payload[8006] ^= 1;
        assert!(!is_fill(&payload));
        payload[4000] ^= 1;
        assert_eq!(runs(&payload), [0..4000, 4004..8004]);
    }

    proptest! {
        #[test]
        fn runs_are_those_of_the_definition(
            words in prop::collection::vec(prop::bool::weighted(0.8), 0..200),
            rest in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let word = |fill: bool| if fill { WORD } else { [0x44, 0x33, 0x22, 0x12] };
            let mut payload: Vec<u8> = words.iter().flat_map(|fill| word(*fill)).collect();
            payload.extend(rest);
            prop_assert_eq!(runs(&payload), plain_runs(&payload));
        }

        #[test]
        fn pieces_make_the_pattern_that_the_whole_has(cuts in prop::collection::vec(0usize..40, 1..20)) {
            let mut pieces = vec![0u8; cuts.iter().sum()];
            let mut offset = 0;
            for cut in cuts {
                make_from(&mut pieces[offset..offset + cut], offset);
                offset += cut;
            }
            prop_assert_eq!(is_fill(&pieces), !pieces.is_empty());
        }
    }
}

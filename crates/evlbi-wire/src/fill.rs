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

/// Minimum run of the pattern that [`find`] reports, in bytes: two words. A single word is in random data once in 2^32 words, and two
/// practically never.
pub const MIN_RUN: usize = 8;

/// Bytes before and after a piece of data that show whether a run of the pattern continues there: two words and a half.
pub const CONTEXT: usize = 12;

const WORD: [u8; 4] = PATTERN.to_le_bytes();

/// The four words that are inside the pattern, by the place of their first byte in it.
const TURNED: [u32; 4] = [
    PATTERN,
    PATTERN.rotate_right(8),
    PATTERN.rotate_right(16),
    PATTERN.rotate_right(24),
];

/// Words that are compared together: the compiler vectorises small, simple loops.
const TOGETHER: usize = 8;

/// Two words of the pattern.
const PAIR: u64 = (PATTERN as u64) << 32 | PATTERN as u64;

/// Finds every run of two or more whole words of the pattern in `payload`, and returns their byte ranges in ascending order. A run may
/// start at any byte. A half word before or after the whole ones belongs to it: datagrams that are replaced have even lengths, but need
/// not contain whole words. Beside a run, other data look like a half word once in 2^16.
pub fn find(payload: &[u8]) -> Runs<'_> {
    Runs { payload, from: 0 }
}

/// Returns whether `payload` is not empty and consists of the pattern only.
pub fn is_fill(payload: &[u8]) -> bool {
    let mut pairs = payload.chunks_exact(8);
    let is_pair = |bytes: &[u8]| bytes == PAIR.to_le_bytes();
    !payload.is_empty() && pairs.all(is_pair) && PAIR.to_le_bytes().starts_with(pairs.remainder())
}

/// Returns whether `payload` ends with a whole or half word of the pattern: a run may begin there and continue after it.
pub fn may_continue(payload: &[u8]) -> bool {
    let (first, second) = WORD.split_at(2);
    payload.ends_with(first) || payload.ends_with(second)
}

/// Iterator over the runs that [`find`] finds.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    payload: &'a [u8],
    /// Position up to which runs were reported.
    from: usize,
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        loop {
            // Two words at any byte contain a whole aligned word of the payload, turned.
            let (place, phase) = self.next_turned()?;
            let Range { mut start, mut end } = self.run_around(place, phase);
            if end - start >= MIN_RUN {
                let (first, second) = WORD.split_at(2);
                start -= usize::from(self.payload[self.from..start].ends_with(second)) * 2;
                end += usize::from(self.payload[end..].starts_with(first)) * 2;
                self.from = end;
                return Some(start..end);
            }
            // What follows starts no earlier than a byte after the last word.
            self.from = end.max(place + 4);
        }
    }
}

impl Runs<'_> {
    /// Returns the place of the next aligned word that is inside the pattern, and its phase.
    fn next_turned(&self) -> Option<(usize, usize)> {
        let begin = self.from.next_multiple_of(4).min(self.payload.len());
        let (words, _) = self.payload[begin..].as_chunks::<4>();
        let phase = |word: &[u8; 4]| {
            let word = u32::from_le_bytes(*word);
            TURNED.iter().position(|turned| *turned == word)
        };
        let has_none = |words: &&[[u8; 4]]| {
            let words = words.iter().map(|word| u32::from_le_bytes(*word));
            let hits = words.map(|word| TURNED.iter().fold(false, |hit, it| hit | (*it == word)));
            !hits.fold(false, |any, hit| any | hit)
        };
        let skipped = words.chunks(TOGETHER).take_while(has_none).count() * TOGETHER;
        let rest = words.get(skipped..)?;
        let (place, phase) = (0..)
            .zip(rest)
            .find_map(|(place, word)| Some((place, phase(word)?)))?;
        Some((begin + 4 * (skipped + place), phase))
    }

    /// Returns the run of whole words around the word at `place`, whose first byte is byte `phase` of the pattern.
    fn run_around(&self, place: usize, phase: usize) -> Range<usize> {
        // Where the next whole word starts: in this one, unless it is whole itself.
        let first = place + (4 - phase) % 4;
        let before = self.payload[self.from..first.min(self.payload.len())].rchunks_exact(4);
        let start = first - 4 * before.take_while(|word| **word == WORD).count();
        let after = self.payload.get(first..).unwrap_or_default();
        let after = after.chunks_exact(4).take_while(|word| **word == WORD);
        start..first + 4 * after.count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(payload: &[u8]) -> Vec<Range<usize>> {
        find(payload).collect()
    }

    /// Finds the runs by definition, byte by byte.
    fn plain_runs(payload: &[u8]) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let (mut at, mut free) = (0, 0);
        while at < payload.len() {
            let words = payload[at..].chunks_exact(4);
            let mut end = at + 4 * words.take_while(|word| **word == WORD).count();
            if end - at >= 8 {
                let is_half = at >= free + 2 && payload[at - 2..at] == WORD[2..];
                let start = at - if is_half { 2 } else { 0 };
                end += if payload[end..].starts_with(&WORD[..2]) {
                    2
                } else {
                    0
                };
                runs.push(start..end);
                free = end;
            }
            at = end.max(at + 1);
        }
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
    fn runs_are_found_wherever_they_start() {
        for start in 0..64 {
            for words in 0..20 {
                let mut payload = [0x5au8; 160];
                let end = start + 4 * words;
                make(&mut payload[start..end]);
                let expected: Vec<_> = (words >= 2).then_some(start..end).into_iter().collect();
                assert_eq!(runs(&payload), expected);
            }
        }
    }

    /// 1250-byte datagrams of a stream start with half a word, or end with one.
    #[test]
    fn half_words_belong_to_a_run_and_single_bytes_do_not() {
        let mut payload = [0u8; 64];
        make_from(&mut payload[2..51], 2);
        assert_eq!(runs(&payload), std::slice::from_ref(&(2..50)));
        for lost in 0..8 {
            let mut payload = [0x5au8; 10_000];
            let place = lost * 1250..(lost + 1) * 1250;
            make_from(&mut payload[place.clone()], place.start);
            assert_eq!(runs(&payload), [place]);
        }
        let mut payload = [0u8; 12];
        make_from(&mut payload[2..10], 2);
        assert_eq!(runs(&payload), []);
    }

    #[test]
    fn runs_reach_to_the_edges() {
        let mut payload = [0u8; 8007];
        make(&mut payload);
        assert!(runs(&payload).into_iter().eq(std::iter::once(0..8006)));
        assert!(is_fill(&payload));
        payload[8006] ^= 1;
        assert!(!is_fill(&payload));
        payload[4000] ^= 1;
        assert_eq!(runs(&payload), [0..4000, 4002..8006]);
    }

    proptest! {
        #[test]
        fn runs_are_those_of_the_definition(
            parts in prop::collection::vec((prop::bool::weighted(0.7), 1usize..24), 0..60),
        ) {
            let mut payload = Vec::new();
            for (is_fill, length) in parts {
                let begin = payload.len();
                payload.resize(begin + length, 0x44);
                if is_fill {
                    make(&mut payload[begin..]);
                }
            }
            prop_assert_eq!(runs(&payload), plain_runs(&payload));
        }

        /// Where no run may continue, the bytes after the payload do not change its runs of whole and half words.
        #[test]
        fn the_last_bytes_show_whether_a_run_may_continue(
            before in prop::collection::vec(prop::sample::select(vec![0u8, 0x44, 0x33, 0x22, 0x11]), 0..12),
            half in 0usize..2,
            halves in 0usize..6,
            (from, after) in (0usize..2, 0usize..CONTEXT + 1),
        ) {
            let mut bytes = before;
            let begin = bytes.len();
            bytes.resize(begin + 2 * halves, 0);
            make_from(&mut bytes[begin..], 2 * half);
            let end = bytes.len();
            bytes.resize(end + after, 0);
            make_from(&mut bytes[end..], 2 * from);
            let in_payload = |run: &Range<usize>| run.end.min(end).saturating_sub(run.start);
            let seen: usize = runs(&bytes).iter().map(in_payload).sum();
            let alone: usize = runs(&bytes[..end]).iter().map(Range::len).sum();
            prop_assert!(seen == alone || may_continue(&bytes[..end]), "{seen} and {alone} bytes");
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

//! Damage: bytes and texts changed with a seed, reproducibly.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Values for damaged lengths and counts.
const EXTREMES: [u32; 8] = [
    0,
    1,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x00ff_ffff,
    0x0100_0000,
    0xffff_fff8,
];

/// Returns the random numbers for a round of something with a name: the same, whatever else runs.
#[must_use]
pub fn random(seed: u64, name: &str, round: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&round.to_le_bytes());
    for (place, byte) in name.bytes().enumerate() {
        let at = 16 + place % 16;
        key[at] = key[at].rotate_left(3) ^ byte;
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns this many random bytes.
pub fn bytes(random: &mut impl Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Returns one of these.
///
/// # Panics
/// Panics if there is none.
pub fn pick<'a, T>(random: &mut impl Rng, all: &'a [T]) -> &'a T {
    &all[random.random_range(0..all.len())]
}

/// Returns the same bytes with one to six kinds of damage.
pub fn damage(random: &mut impl Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.random_range(1..=6) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let at = random.random_range(0..bytes.len());
        let end = (at + random.random_range(1..=64)).min(bytes.len());
        match random.random_range(0..8) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => random.fill_bytes(&mut bytes[at..end]),
            3 => extreme(random, &mut bytes, at),
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..end)),
            6 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            // Headers are at the start.
            _ => {
                let at = at % 64.min(bytes.len());
                extreme(random, &mut bytes, at);
            }
        }
    }
    bytes
}

fn extreme(random: &mut impl Rng, bytes: &mut [u8], at: usize) {
    let value = pick(random, &EXTREMES).to_le_bytes();
    for (byte, value) in bytes[at..].iter_mut().zip(value) {
        *byte = value;
    }
}

/// Returns a text with other numbers, and with lines that are missing, moved, cut or duplicated. It invents no words: one could be the
/// name of a host, which a program would look up.
pub fn damage_text(random: &mut impl Rng, text: &str) -> String {
    const NUMBERS: [&str; 8] = [
        "0",
        "-1",
        "1e308",
        "nan",
        "18446744073709551616",
        "99999999999999999999999999h",
        "\"\"",
        "[[[[[[[[[[[[]]]]]]]]]]]]",
    ];
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..lines.len());
        match random.random_range(0..5) {
            0 => drop(lines.remove(at)),
            1 => {
                let line = lines[at].clone();
                lines.insert(at, line);
            }
            2 => {
                let half = lines[at].len() / 2;
                lines[at].truncate(half);
            }
            3 => {
                let other = random.random_range(0..lines.len());
                lines.swap(at, other);
            }
            _ => {
                if let Some((key, _)) = lines[at].split_once('=') {
                    lines[at] = format!("{key}= {}", pick(random, &NUMBERS));
                }
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_damage_and_another_seed_another() {
        let [one, again, other] = [3, 3, 4].map(|seed| {
            let mut random = random(seed, "datagrams", 0);
            let damaged = [0; 50].map(|_| damage(&mut random, &[7; 200]));
            (damaged, damage_text(&mut random, "a = 1\nb = 2\nc = 3"))
        });
        assert_eq!(one, again);
        assert_ne!(one, other);
    }
}

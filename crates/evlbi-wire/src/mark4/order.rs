//! The order of the bits of samples: on tracks, and as in VDIF.

use super::channels::Channels;

/// Changes the order of bits from that of tracks to that of VDIF with several channels, and back: for each sample time the channels
/// in their order, and the sign as the higher bit of two.
#[derive(Clone, Debug)]
pub struct Order {
    /// Bytes of a bit time.
    bytes: usize,
    /// For each byte of a bit time on tracks and each value of it, the bits of VDIF that it sets.
    to_vdif: Vec<[u64; 256]>,
    /// The same from VDIF to tracks.
    to_tracks: Vec<[u64; 256]>,
}

impl Order {
    /// Makes the order of these channels.
    pub fn of(channels: &Channels) -> Order {
        let (bits, fan_out) = (channels.bits(), channels.fan_out());
        let count = channels.channels().len();
        let mut pairs = Vec::new();
        for sub_sample in 0..fan_out {
            for channel in 0..count {
                for bit in 0..bits {
                    let vdif = (sub_sample * count + channel) * bits + (bits - 1 - bit);
                    pairs.push((channels.place(channel, bit, sub_sample), vdif));
                }
            }
        }
        let tables = |moves: &mut dyn Iterator<Item = (usize, usize)>| {
            let mut tables = vec![[0u64; 256]; channels.tracks().bytes()];
            for (from, to) in moves {
                for (value, bits) in tables[from / 8].iter_mut().enumerate() {
                    *bits |= (value as u64 >> (from % 8) & 1) << to;
                }
            }
            tables
        };
        Order {
            bytes: channels.tracks().bytes(),
            to_vdif: tables(&mut pairs.iter().copied()),
            to_tracks: tables(&mut pairs.iter().map(|(track, vdif)| (*vdif, *track))),
        }
    }

    /// Appends to `vdif` the samples in `tracks`, which are whole bit times of a payload; the rest of an incomplete one is left out.
    pub fn to_vdif(&self, tracks: &[u8], vdif: &mut Vec<u8>) {
        self.reorder(&self.to_vdif, tracks, vdif);
    }

    /// Appends to `tracks` the samples in `vdif`: the inverse of [`Order::to_vdif`].
    pub fn to_tracks(&self, vdif: &[u8], tracks: &mut Vec<u8>) {
        self.reorder(&self.to_tracks, vdif, tracks);
    }

    fn reorder(&self, tables: &[[u64; 256]], from: &[u8], to: &mut Vec<u8>) {
        to.reserve(from.len());
        match self.bytes {
            1 => reorder::<1>(tables, from, to),
            2 => reorder::<2>(tables, from, to),
            4 => reorder::<4>(tables, from, to),
            _ => reorder::<8>(tables, from, to),
        }
    }
}

fn reorder<const N: usize>(tables: &[[u64; 256]], from: &[u8], to: &mut Vec<u8>) {
    let Some(tables) = tables.first_chunk::<N>() else {
        return;
    };
    let (times, _) = from.as_chunks::<N>();
    let begin = to.len();
    to.resize(begin + times.len() * N, 0);
    let (out, _) = to[begin..].as_chunks_mut::<N>();
    for (out, bytes) in out.iter_mut().zip(times) {
        let of = |(table, byte): (&[u64; 256], &u8)| table[usize::from(*byte)];
        let bits = tables.iter().zip(bytes).map(of);
        let bits = bits.fold(0, |all, bits| all | bits).to_le_bytes();
        out.copy_from_slice(&bits[..N]);
    }
}

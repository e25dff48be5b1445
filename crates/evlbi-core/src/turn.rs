//! Corner turn: payloads in which the channels of each sample time stand side by side, to one payload per channel, and back.
//!
//! Put here what changes the order of samples in memory. Which frames belong together is decided by `evlbi-stream`; the order of
//! bits on tracks is in [`evlbi_wire::mark4`].
//!
//! The bits of a block of words are numbered by the word (upper bits of the number) and the place in the word (lower six bits). A
//! turn rotates some of the bits of these numbers. It is done by exchanges of one bit of the word with one bit of the place: each
//! is one step of masks and shifts for all pairs of words, and one per bit suffices.
//!
//! ```
//! use evlbi_core::turn::Turn;
//!
//! // Two channels of four bits: the lower half of each byte is channel 0.
//! let turn = Turn::new(4, 2).ok_or("cannot be turned")?;
//! let mut channels = [0; 16];
//! turn.split(&[0x21; 16], &mut channels);
//! assert_eq!(channels, [[0x11; 8], [0x22; 8]].concat()[..]);
//! let mut payload = [0; 16];
//! turn.join(&channels, &mut payload);
//! assert_eq!(payload, [0x21; 16]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
mod tests;

/// Maximum number of channels.
pub const MAX_CHANNELS: usize = 64;

/// Bytes of a word.
const WORD: usize = 8;

/// Exchange of one bit of the number of the word with one bit of the place in it.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// Distance of two words of a pair.
    distance: usize,
    /// Distance in the word, in bits.
    shift: u32,
    /// Places in the word for which the bit is zero.
    mask: u64,
}

impl Exchange {
    /// Makes the exchange of bit `in_word` of the place with bit `of_words` of the number of the word.
    fn new(in_word: usize, of_words: usize) -> Exchange {
        let places = (0..64).filter(|place| place >> in_word & 1 == 0);
        Exchange {
            distance: 1 << of_words,
            shift: 1 << in_word,
            mask: places.fold(0, |mask, place| mask | 1 << place),
        }
    }

    #[inline]
    fn of<const N: usize>(self, words: &mut [u64; N]) {
        for pairs in words.chunks_exact_mut(2 * self.distance) {
            let (low, high) = pairs.split_at_mut(self.distance);
            for (low, high) in low.iter_mut().zip(high) {
                let changed = ((*low >> self.shift) ^ *high) & self.mask;
                *high ^= changed;
                *low ^= changed << self.shift;
            }
        }
    }
}

/// Corner turn for one number of channels and one width of samples.
#[derive(Clone, Debug)]
pub struct Turn {
    channels: usize,
    /// Words per sample of a channel, if that is at least one word.
    sample_words: usize,
    exchanges: Vec<Exchange>,
    /// Channel of each word after the exchanges.
    order: Vec<usize>,
}

impl Turn {
    /// Makes the turn of `channels` channels (1 to [`MAX_CHANNELS`]) with `width` bits per sample, both components included. A
    /// group of adjacent channels counts as one if its width is that of all. Returns `None` if one of the numbers is not a power
    /// of two, or there are more channels.
    pub fn new(width: usize, channels: usize) -> Option<Turn> {
        if !width.is_power_of_two() || !channels.is_power_of_two() || channels > MAX_CHANNELS {
            return None;
        }
        let (width_bits, channel_bits) = (log2(width).min(6), log2(channels));
        // Bits of the number of a bit: of the place (0 to 5), of the word (6 and up). Those of the sample time are to be the
        // lowest after those of the sample itself, and those of the channel the highest.
        let time_bits = 6 - width_bits;
        let wanted = |place: usize| match place - width_bits {
            place if place < time_bits => width_bits + channel_bits + place,
            place => width_bits + place - time_bits,
        };
        let mut now: Vec<usize> = (0..6 + channel_bits).collect();
        let mut exchanges = Vec::new();
        let holds = |now: &[usize], wanted| now.iter().position(|bit| *bit == wanted);
        let next = |now: &[usize]| {
            (width_bits..6).find_map(|place| {
                let from = holds(now, wanted(place))?;
                (from >= 6).then_some((place, from))
            })
        };
        while let Some((place, from)) = next(&now) {
            now.swap(place, from);
            exchanges.push(Exchange::new(place, from - 6));
        }
        let order = (0..channels).map(|word| {
            let bits = (0..channel_bits).filter_map(|bit| {
                let place = holds(&now, wanted(6 + bit))?;
                Some((word >> (place - 6) & 1) << bit)
            });
            bits.sum()
        });
        Some(Turn {
            channels,
            sample_words: width.div_ceil(64),
            order: order.collect(),
            exchanges,
        })
    }

    /// Returns the number of bytes of which a payload must be a multiple.
    pub fn unit(&self) -> usize {
        WORD * self.sample_words * self.channels
    }

    /// Writes the channels of `payload` one after another to `channels`, which has the same length. Whole [units](Turn::unit) are
    /// turned; the rest is left out.
    pub fn split(&self, payload: &[u8], channels: &mut [u8]) {
        match self.channels {
            1 => copy(payload, channels),
            _ if self.exchanges.is_empty() => self.copy_words(payload, channels, true),
            2 => self.split_blocks::<2>(payload, channels),
            4 => self.split_blocks::<4>(payload, channels),
            8 => self.split_blocks::<8>(payload, channels),
            16 => self.split_blocks::<16>(payload, channels),
            32 => self.split_blocks::<32>(payload, channels),
            _ => self.split_blocks::<64>(payload, channels),
        }
    }

    /// Writes to `payload` the samples of `channels`, which lie one after another: the inverse of [`Turn::split`].
    pub fn join(&self, channels: &[u8], payload: &mut [u8]) {
        match self.channels {
            1 => copy(channels, payload),
            _ if self.exchanges.is_empty() => self.copy_words(channels, payload, false),
            2 => self.join_blocks::<2>(channels, payload),
            4 => self.join_blocks::<4>(channels, payload),
            8 => self.join_blocks::<8>(channels, payload),
            16 => self.join_blocks::<16>(channels, payload),
            32 => self.join_blocks::<32>(channels, payload),
            _ => self.join_blocks::<64>(channels, payload),
        }
    }

    fn split_blocks<const N: usize>(&self, payload: &[u8], channels: &mut [u8]) {
        let Some(order) = self.order.first_chunk::<N>() else {
            return;
        };
        let (from, _) = payload.as_chunks::<WORD>();
        let length = channels.len() / N / WORD;
        let (to, _) = channels.as_chunks_mut::<WORD>();
        for (at, block) in from.as_chunks::<N>().0.iter().take(length).enumerate() {
            let mut words = block.map(u64::from_le_bytes);
            for exchange in &self.exchanges {
                exchange.of(&mut words);
            }
            for (word, channel) in words.iter().zip(order) {
                to[channel * length + at] = word.to_le_bytes();
            }
        }
    }

    fn join_blocks<const N: usize>(&self, channels: &[u8], payload: &mut [u8]) {
        let Some(order) = self.order.first_chunk::<N>() else {
            return;
        };
        let length = channels.len() / N / WORD;
        let (from, _) = channels.as_chunks::<WORD>();
        let (to, _) = payload.as_chunks_mut::<WORD>();
        let blocks = to.as_chunks_mut::<N>().0.iter_mut().take(length);
        for (at, block) in blocks.enumerate() {
            let mut words = order.map(|channel| u64::from_le_bytes(from[channel * length + at]));
            for exchange in self.exchanges.iter().rev() {
                exchange.of(&mut words);
            }
            *block = words.map(u64::to_le_bytes);
        }
    }

    /// Turns samples of whole words.
    fn copy_words(&self, from: &[u8], to: &mut [u8], splits: bool) {
        let sample = WORD * self.sample_words;
        let times = from.len().min(to.len()) / self.unit();
        for time in 0..times {
            for channel in 0..self.channels {
                let beside = (time * self.channels + channel) * sample;
                let apart = (channel * times + time) * sample;
                let (source, target) = match splits {
                    true => (beside, apart),
                    false => (apart, beside),
                };
                to[target..target + sample].copy_from_slice(&from[source..source + sample]);
            }
        }
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    let length = from.len().min(to.len());
    to[..length].copy_from_slice(&from[..length]);
}

fn log2(number: usize) -> usize {
    number.trailing_zeros() as usize
}

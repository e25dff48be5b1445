//! Frames of a simulated station, in the order in which it would record them.

use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::Header;

use super::Station;
use super::signal::{Channel, Transforms};

/// Generator of the frames of a station, one after the other.
pub struct Generator {
    station: Station,
    threads: Vec<Thread>,
    /// Number of the next frame, counting all threads.
    next: u64,
}

/// One thread: the header of its next frame, and samples that are not in frames yet.
struct Thread {
    header: Header,
    channels: Vec<Channel>,
    block: u64,
    /// Components of a block for one channel.
    components: Vec<f32>,
    /// Components of a block for all channels, interleaved.
    interleaved: Vec<f32>,
    packed: Vec<u8>,
    /// Number of bytes of `packed` that are in frames already.
    taken: usize,
}

impl Generator {
    pub(super) fn new(station: Station) -> Generator {
        let per_thread = station.channels.len() / station.headers.len();
        let transforms = Transforms::new(station.shape.complex);
        let threads = station
            .headers
            .iter()
            .zip(station.channels.chunks(per_thread))
            .map(|(header, plans)| Thread {
                header: *header,
                channels: plans
                    .iter()
                    .map(|plan| Channel::new(plan.clone(), &transforms))
                    .collect(),
                block: 0,
                components: vec![0.0; Channel::COMPONENTS],
                interleaved: vec![0.0; Channel::COMPONENTS * per_thread],
                packed: Vec::new(),
                taken: 0,
            })
            .collect();
        Generator {
            station,
            threads,
            next: 0,
        }
    }

    /// Returns the number of remaining frames.
    pub fn remaining(&self) -> u64 {
        self.station.total_frames() - self.next
    }

    /// Writes the next frames to the start of `frames`, as many whole ones as fit and remain. Returns their length in bytes: zero
    /// at the end, or if no frame fits.
    pub fn fill(&mut self, frames: &mut [u8]) -> usize {
        let length = self.station.frame_length();
        let count = self.remaining().min((frames.len() / length) as u64) as usize;
        for frame in frames.chunks_exact_mut(length).take(count) {
            self.write(frame);
        }
        count * length
    }

    fn write(&mut self, frame: &mut [u8]) {
        let threads = self.threads.len() as u64;
        let station = &self.station;
        let thread = &mut self.threads[(self.next % threads) as usize];
        let first = station.start().index(station.frame_rate);
        let index = first + (self.next / threads) as i64;
        thread
            .header
            .set_time(FrameTime::from_index(index, station.frame_rate))
            .unwrap_or_else(|error| unreachable!("the plan has checked the times: {error}"));
        thread.header.emit(frame);
        let mut payload = &mut frame[thread.header.len()..];
        while !payload.is_empty() {
            if thread.taken == thread.packed.len() {
                thread.sample_block(station);
            }
            let fresh = &thread.packed[thread.taken..];
            let count = fresh.len().min(payload.len());
            payload[..count].copy_from_slice(&fresh[..count]);
            thread.taken += count;
            payload = &mut payload[count..];
        }
        self.next += 1;
    }
}

impl Thread {
    fn sample_block(&mut self, station: &Station) {
        let channels = self.channels.len();
        for (at, channel) in self.channels.iter_mut().enumerate() {
            channel.fill(self.block, &mut self.components);
            if station.shape.complex {
                interleave::<2>(&self.components, &mut self.interleaved, at, channels);
            } else {
                interleave::<1>(&self.components, &mut self.interleaved, at, channels);
            }
        }
        let bits = self.interleaved.len() * usize::from(station.shape.bits);
        self.packed.resize(bits / 8, 0);
        station
            .codec
            .encode(&self.interleaved, 1.0, &mut self.packed);
        self.block += 1;
        self.taken = 0;
    }
}

/// Writes the samples of a channel, of `N` components each, to the place `at` of every complete sample.
fn interleave<const N: usize>(channel: &[f32], all: &mut [f32], at: usize, channels: usize) {
    let (samples, _) = channel.as_chunks::<N>();
    let (places, _) = all.as_chunks_mut::<N>();
    let places = places.iter_mut().skip(at).step_by(channels);
    for (place, sample) in places.zip(samples) {
        *place = *sample;
    }
}

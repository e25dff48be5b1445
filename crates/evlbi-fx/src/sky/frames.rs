//! Frames of a simulated station, in the order in which it would record them.

use evlbi_wire::mark4::{self, Order, TimeCode};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::{mark5b, vdif};

use super::Station;
use super::signal::{Channel, Transforms};

/// Generator of the frames of a station, one after the other.
pub struct Generator {
    station: Station,
    threads: Vec<Thread>,
    /// Number of the next frame, counting all threads.
    next: u64,
}

/// Header of the next frame of a thread, and how its samples follow.
#[derive(Clone, Debug)]
pub(super) enum Head {
    Vdif(vdif::Header),
    Mark5b(mark5b::Header),
    Mark4(Box<Tracks>),
}

/// Frames of Mark 4.
#[derive(Clone, Debug)]
pub(super) struct Tracks {
    pub header: mark4::Header,
    pub order: Order,
    pub is_modulated: bool,
}

impl Head {
    /// Sets the time of the next frame. Returns whether the time fits a header.
    pub fn set_time(&mut self, time: FrameTime, rate: FrameRate) -> bool {
        match self {
            Head::Vdif(header) => header.set_time(time).is_ok(),
            Head::Mark5b(header) => header.set_time(time, rate).is_ok(),
            Head::Mark4(tracks) => {
                let micros = u64::from(time.frame) * 1_000_000 / u64::from(rate.get());
                let code = TimeCode::new(time.second, micros as u32);
                code.map(|code| tracks.header.set_time_code(code)).is_some()
            }
        }
    }
}

/// One thread: the header of its next frame, and samples that are not in frames yet.
struct Thread {
    head: Head,
    channels: Vec<Channel>,
    block: u64,
    /// Components of a block for one channel.
    components: Vec<f32>,
    /// Components of a block for all channels, interleaved.
    interleaved: Vec<f32>,
    packed: Vec<u8>,
    /// Number of bytes of `packed` that are in frames already.
    taken: usize,
    /// Samples of a frame of Mark 4, before they are on tracks.
    of_frame: Vec<u8>,
    on_tracks: Vec<u8>,
}

impl Generator {
    pub(super) fn new(station: Station) -> Generator {
        let per_thread = station.channels.len() / station.heads.len();
        let transforms = Transforms::new(station.complex);
        let threads = station
            .heads
            .iter()
            .zip(station.channels.chunks(per_thread))
            .map(|(head, plans)| Thread {
                head: head.clone(),
                channels: plans
                    .iter()
                    .map(|plan| Channel::new(plan.clone(), &transforms))
                    .collect(),
                block: 0,
                components: vec![0.0; Channel::COMPONENTS],
                interleaved: vec![0.0; Channel::COMPONENTS * per_thread],
                packed: Vec::new(),
                taken: 0,
                of_frame: Vec::new(),
                on_tracks: Vec::new(),
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
        let time = FrameTime::from_index(index, station.frame_rate);
        thread.write(time, station, frame);
        self.next += 1;
    }
}

impl Thread {
    fn write(&mut self, time: FrameTime, station: &Station, frame: &mut [u8]) {
        let is_set = self.head.set_time(time, station.frame_rate);
        debug_assert!(is_set, "the plan has checked the times");
        let header = match &self.head {
            Head::Vdif(header) => {
                header.emit(frame);
                header.len()
            }
            Head::Mark5b(header) => {
                header.emit(frame);
                mark5b::HEADER_LEN
            }
            Head::Mark4(_) => return self.write_tracks(station, frame),
        };
        self.sample(station, &mut frame[header..]);
    }

    /// Writes a frame of Mark 4, in which the header replaces samples.
    fn write_tracks(&mut self, station: &Station, frame: &mut [u8]) {
        let mut samples = std::mem::take(&mut self.of_frame);
        samples.resize(frame.len(), 0);
        self.sample(station, &mut samples);
        if let Head::Mark4(tracks) = &self.head {
            self.on_tracks.clear();
            tracks.order.to_tracks(&samples, &mut self.on_tracks);
            frame.copy_from_slice(&self.on_tracks);
            if tracks.is_modulated {
                let count = tracks.header.count();
                mark4::modulate(&mut frame[count.header_length()..], count);
            }
            tracks.header.emit(frame);
        }
        self.of_frame = samples;
    }

    /// Fills a payload with the next samples.
    fn sample(&mut self, station: &Station, mut payload: &mut [u8]) {
        while !payload.is_empty() {
            if self.taken == self.packed.len() {
                self.sample_block(station);
            }
            let fresh = &self.packed[self.taken..];
            let count = fresh.len().min(payload.len());
            payload[..count].copy_from_slice(&fresh[..count]);
            self.taken += count;
            payload = &mut payload[count..];
        }
    }

    fn sample_block(&mut self, station: &Station) {
        let channels = self.channels.len();
        for (at, channel) in self.channels.iter_mut().enumerate() {
            channel.fill(self.block, &mut self.components);
            if station.complex {
                interleave::<2>(&self.components, &mut self.interleaved, at, channels);
            } else {
                interleave::<1>(&self.components, &mut self.interleaved, at, channels);
            }
        }
        let bits = self.interleaved.len() * usize::from(station.codec.bits());
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

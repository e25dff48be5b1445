//! Whole recordings of simulated stations, in memory.

use evlbi_fx::codec::Codec;
use evlbi_fx::sky::Station;
use evlbi_wire::vdif::Header;

/// Generates the whole recording of a station.
pub fn generate(station: &Station) -> Vec<u8> {
    let mut frames = vec![0; station.total_frames() as usize * station.frame_length()];
    assert_eq!(station.generator().fill(&mut frames), frames.len());
    frames
}

/// Returns the values that a station records: for each channel, in order of time, complex ones interleaved.
pub fn decode(station: &Station) -> Vec<Vec<f32>> {
    decode_file(&generate(station), station.channels() as u64)
}

/// Returns the values in a file that has `channels` channels in all threads together.
pub fn decode_file(bytes: &[u8], channels: u64) -> Vec<Vec<f32>> {
    let shape = Header::parse(bytes).unwrap().shape();
    let group = if shape.complex { 2 } else { 1 };
    let per_thread = shape.channels() as usize;
    let mut channels = vec![Vec::new(); channels as usize];
    let mut values = vec![0.0; shape.payload_length() * 8 / usize::from(shape.bits)];
    for frame in bytes.chunks_exact(shape.frame_length) {
        let header = Header::parse(frame).unwrap();
        let codec = Codec::of(&header).unwrap();
        let payload = &frame[header.len()..];
        assert_eq!(codec.decode(payload, &mut values), values.len());
        let first = usize::from(header.key().thread) * per_thread;
        for complete in values.chunks_exact(group * per_thread) {
            for (channel, own) in complete.chunks_exact(group).enumerate() {
                channels[first + channel].extend_from_slice(own);
            }
        }
    }
    channels
}

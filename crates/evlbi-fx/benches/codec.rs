//! Speed of decoding and encoding samples: `cargo bench -p evlbi-fx --bench codec`.

#![allow(clippy::disallowed_methods, reason = "measuring is its job")]

use std::hint::black_box;
use std::time::Instant;

use evlbi_fx::codec::Codec;

/// Length of a payload that stays in the cache, like one that has just arrived.
const PAYLOAD: usize = 8000;
const ROUNDS: usize = 5000;

fn main() {
    let payload: Vec<u8> = (0..PAYLOAD).map(|n| (n * 167) as u8).collect();
    for bits in [1, 2, 4, 8] {
        let codec = Codec::vdif(bits).expect("these bits are known");
        let mut values = vec![0.0; codec.components(PAYLOAD)];
        let mut again = vec![0; PAYLOAD];
        let components = (values.len() * ROUNDS) as f64;
        let decode = nanoseconds(|| {
            black_box(codec.decode(black_box(&payload), &mut values));
        });
        let encode = nanoseconds(|| {
            black_box(codec.encode(black_box(&values), codec.sigma(), &mut again));
        });
        println!(
            "{bits} bits: decode {:.3} ns, encode {:.3} ns per component",
            decode / components,
            encode / components
        );
    }
}

fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        work();
    }
    begin.elapsed().as_secs_f64() * 1e9
}

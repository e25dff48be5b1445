//! Products of the spectra, and their sums while blocks are correlated.

use std::collections::BTreeSet;

use pulp::Arch;
use rustfft::num_complex::Complex64;

use super::Spectra;
use super::kernel::{Multiply, MultiplyFour, TILE};
use super::setup::Setup;
use super::sums::Sums;

/// Products in groups, and their sums. What a group needs is near each other: two inputs and two others have four products.
pub struct Products {
    groups: Vec<Group>,
    /// Index of each product among those of the setup, in the order of the groups.
    order: Vec<usize>,
    /// Sums in the order of the groups, tile after tile of channels: real and imaginary parts.
    sums: Vec<[[f64; TILE]; 2]>,
}

/// Inputs whose products are calculated together.
enum Group {
    /// A conj(B).
    One([usize; 2]),
    /// A conj(B), A conj(D), C conj(B) and C conj(D), for the inputs A, C, B and D.
    Four([usize; 4]),
}

impl Products {
    /// Groups the products of a setup.
    pub fn new(setup: &Setup) -> Products {
        let products = setup.products().iter();
        let pairs = products.map(|product| [product.a, product.b].map(|input| setup.index(input)));
        // Those that are left, by the first input and by the second one, and the index of each.
        let mut left: BTreeSet<[usize; 3]> = BTreeSet::new();
        let mut turned: BTreeSet<[usize; 2]> = BTreeSet::new();
        for (place, [a, b]) in pairs.enumerate() {
            left.insert([a, b, place]);
            turned.insert([b, a]);
        }
        let (mut groups, mut order) = (Vec::new(), Vec::new());
        while let Some(&[a, b, place]) = left.first() {
            let find = |[a, b]: [usize; 2]| left.range([a, b, 0]..[a, b + 1, 0]).next().copied();
            let mut of_a = left.range([a, b + 1, 0]..[a + 1, 0, 0]);
            let of_b = || turned.range([b, a + 1]..[b + 1, 0]).map(|[_, c]| *c);
            let found = of_a
                .find_map(|&ad| of_b().find_map(|c| Some([ad, find([c, b])?, find([c, ad[1]])?])));
            let group = match found {
                Some([ad, cb, cd]) => {
                    groups.push(Group::Four([a, cb[0], b, ad[1]]));
                    vec![[a, b, place], ad, cb, cd]
                }
                None => {
                    groups.push(Group::One([a, b]));
                    vec![[a, b, place]]
                }
            };
            for product in group {
                left.remove(&product);
                order.push(product[2]);
            }
        }
        let tiles = setup.channels().div_ceil(TILE);
        Products {
            groups,
            sums: vec![[[0.0; TILE]; 2]; tiles * order.len()],
            order,
        }
    }

    /// Adds all products of a tile of the first `count` blocks.
    pub fn add(&mut self, arch: Arch, spectra: &[Spectra], tile: usize, count: usize) {
        let each = self.order.len();
        let mut sums = self.sums[tile * each..][..each].iter_mut();
        let of = |input: usize| spectra[input].tile(tile, count);
        for group in &self.groups {
            match group {
                Group::One([a, b]) => {
                    let (a, b) = (of(*a), of(*b));
                    let sums = sums.next().expect("sums of a product");
                    arch.dispatch(Multiply { a, b, sums });
                }
                Group::Four([a, c, b, d]) => {
                    let (four, rest) = sums
                        .into_slice()
                        .split_first_chunk_mut()
                        .expect("sums of four products");
                    sums = rest.iter_mut();
                    arch.dispatch(MultiplyFour {
                        a: [of(*a), of(*c)],
                        b: [of(*b), of(*d)],
                        sums: four,
                    });
                }
            }
        }
    }

    /// Moves the sums into those of a setup.
    pub fn collect(&mut self, sums: &mut Sums) {
        for (tile, from) in self.sums.chunks_mut(self.order.len()).enumerate() {
            for (product, from) in self.order.iter().zip(from) {
                let values = &mut sums.products[*product].values[tile * TILE..];
                let [re, im] = std::mem::replace(from, [[0.0; TILE]; 2]);
                for ((value, re), im) in values.iter_mut().zip(re).zip(im) {
                    *value = Complex64::new(re, im);
                }
            }
        }
    }
}

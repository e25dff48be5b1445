//! Values of codes, and tables of the values in a byte.

/// Upper level of 2-bit samples if the lower one is 1: the mean of Gaussian noise beyond a threshold of one sigma, over its mean
/// below. `baseband` uses this number; the one for the best threshold, 0.98 sigma, is 3.336, and the difference does not affect
/// any measured quantity.
pub const HIGH: f32 = 3.316_505;

/// Rms of noise with the levels 1 and [`HIGH`].
pub(super) const SIGMA_2: f32 = 2.174_564;
/// Levels per sigma of 4-bit samples.
pub(super) const STEPS_4: f32 = 2.95;
/// Levels per sigma of 8-bit samples.
pub(super) const STEPS_8: f32 = 35.5;

pub(super) static VDIF_1: [f32; 2] = [-1.0, 1.0];
pub(super) static VDIF_2: [f32; 4] = [-HIGH, -1.0, 1.0, HIGH];
/// Code 8 is zero.
pub(super) static VDIF_4: [f32; 16] = linear(8.0, STEPS_4);
/// Zero is between the codes 127 and 128.
pub(super) static VDIF_8: [f32; 256] = linear(127.5, STEPS_8);
/// The range is that of 8 bits.
pub(super) static VDIF_3: [f32; 8] = linear(3.5, STEPS_8 / 32.0);
pub(super) static VDIF_5: [f32; 32] = linear(15.5, STEPS_8 / 8.0);
pub(super) static VDIF_6: [f32; 64] = linear(31.5, STEPS_8 / 4.0);
pub(super) static VDIF_7: [f32; 128] = linear(63.5, STEPS_8 / 2.0);
pub(super) static MARK5B_1: [f32; 2] = [1.0, -1.0];
pub(super) static MARK5B_2: [f32; 4] = [-HIGH, 1.0, -1.0, HIGH];

pub(super) static VDIF_1_TABLE: [[f32; 8]; 256] = table(&VDIF_1);
pub(super) static VDIF_2_TABLE: [[f32; 4]; 256] = table(&VDIF_2);
pub(super) static VDIF_4_TABLE: [[f32; 2]; 256] = table(&VDIF_4);
pub(super) static VDIF_8_TABLE: [[f32; 1]; 256] = table(&VDIF_8);
pub(super) static MARK5B_1_TABLE: [[f32; 8]; 256] = table(&MARK5B_1);
pub(super) static MARK5B_2_TABLE: [[f32; 4]; 256] = table(&MARK5B_2);

const fn linear<const N: usize>(zero: f32, steps: f32) -> [f32; N] {
    let mut levels = [0.0; N];
    let mut code = 0;
    while code < N {
        levels[code] = (code as f32 - zero) / steps;
        code += 1;
    }
    levels
}

/// Makes a table of the `N` values of each byte.
const fn table<const N: usize>(levels: &[f32]) -> [[f32; N]; 256] {
    let bits = 8 / N;
    let mut table = [[0.0; N]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut place = 0;
        while place < N {
            table[byte][place] = levels[byte >> (place * bits) & (levels.len() - 1)];
            place += 1;
        }
        byte += 1;
    }
    table
}

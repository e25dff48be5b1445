//! Vector instructions of the CPU. The last digits of results depend on them.

use std::fmt;
use std::sync::Arc;

use pulp::Arch;
use rustfft::{Fft, FftNum, FftPlanner, FftPlannerScalar};
use serde::{Deserialize, Serialize};

/// Vector instructions that calculations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Simd {
    /// None, on any CPU.
    Scalar,
    /// AVX2 and FMA of x86-64.
    Avx2,
    /// AVX-512 of x86-64.
    Avx512,
    /// Those of AArch64.
    Neon,
}

impl Simd {
    /// All, in ascending order of speed.
    pub const ALL: [Simd; 4] = [Simd::Scalar, Simd::Avx2, Simd::Avx512, Simd::Neon];

    /// Returns the fastest that this CPU has.
    pub fn best() -> Simd {
        let there = Simd::ALL.into_iter().rev().find(|simd| simd.is_there());
        there.unwrap_or(Simd::Scalar)
    }

    /// Returns whether this CPU has them.
    pub fn is_there(self) -> bool {
        self.arch().is_some()
    }

    /// Returns how kernels are compiled for them; `None` if this CPU lacks them.
    pub(crate) fn arch(self) -> Option<Arch> {
        match self {
            Simd::Scalar => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "aarch64")]
            Simd::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            #[allow(unreachable_patterns, reason = "depends on the CPU's architecture")]
            _ => None,
        }
    }

    /// Returns a Fourier transform of this many points that uses them.
    pub(crate) fn transform<T: FftNum>(self, points: usize) -> Arc<dyn Fft<T>> {
        match self {
            Simd::Scalar => FftPlannerScalar::new().plan_fft_forward(points),
            // The others each have one way to transform.
            _ => FftPlanner::new().plan_fft_forward(points),
        }
    }

    /// Returns their name.
    pub fn name(self) -> &'static str {
        match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
            Simd::Neon => "neon",
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

//! Fringe search: the residual delay and rate in the visibilities of a baseline, and the signal there.
//!
//! With `V = A conj(B)` a station B that is late by tau relative to the model rotates the visibilities by `2 pi (nu + f) tau(t)`,
//! where nu is the reference frequency and f a channel's frequency above it. So the delay of B minus that of A is a positive
//! slope of phase over frequency, and its rate one over time.

use std::f64::consts::{PI, TAU};

use rustfft::num_complex::{Complex32, Complex64};
use serde::Serialize;

use crate::simd::Simd;

/// Maximum number of steps of the refinement, each of which doubles the digits.
const MAX_STEPS: usize = 12;
/// Maximum fraction of the channels that lines may take.
const LINES: f64 = 0.05;

/// Visibilities of one product.
#[derive(Clone, Copy, Debug)]
pub struct Visibilities<'a> {
    /// Sums, not averages: period after period, with the channels in order.
    pub values: &'a [Complex32],
    /// Number of channels.
    pub channels: usize,
    /// Spacing of the channels, Hz.
    pub channel_width_hz: f64,
    /// Frequency of the first channel above the reference frequency, Hz.
    pub first_channel_hz: f64,
    /// Sky frequency at which phase and rate are given, Hz; zero if unknown.
    pub reference_hz: f64,
    /// Spacing of the periods, s.
    pub period_s: f64,
    /// Variance of each component of the sum of all values.
    pub noise: f64,
    /// Vector instructions of the search.
    pub simd: Simd,
}

/// Search window: half widths about zero. The default is everything that can be distinguished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Window {
    /// Delay, s.
    pub delay_s: Option<f64>,
    /// Rate at the reference frequency, Hz.
    pub rate_hz: Option<f64>,
}

/// Result of a fringe search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fringe {
    /// Delay of the second station minus that of the first, s.
    pub delay_s: f64,
    /// Its standard error.
    pub delay_error_s: f64,
    /// Rate of change of the phase at the reference frequency, Hz.
    pub rate_hz: f64,
    /// Its standard error.
    pub rate_error_hz: f64,
    /// Phase at the reference frequency and the middle time, rad.
    pub phase_rad: f64,
    /// Its standard error.
    pub phase_error_rad: f64,
    /// Magnitude of the sum of all values after delay and rate are compensated.
    pub amplitude: f64,
    /// Amplitude divided by the noise of each component.
    pub snr: f64,
    /// Probability that noise alone has such a peak anywhere in the window.
    pub false_alarm: f64,
    /// Whether a few strong channels contribute most of it, as with phase-calibration tones, interference or a maser; `None` if
    /// there are too few channels (20) to tell.
    pub in_lines: Option<bool>,
    /// Searched window: half widths of the delay in s and of the rate in Hz.
    pub window: (f64, f64),
}

/// Finds the strongest fringe in the window. With only one period or channel, the rate or the delay cannot be searched and stays
/// zero.
pub fn search(visibilities: &Visibilities<'_>, window: &Window) -> Fringe {
    let grid = Grid::new(visibilities, window);
    let (delay, rate) = grid.peak(visibilities);
    let (delay, rate) = refine(visibilities, &grid, delay, rate);
    measure(visibilities, &grid, delay, rate)
}

/// Returns the signal at the delay and the rate of another fringe, with the window of that.
pub fn at(visibilities: &Visibilities<'_>, known: &Fringe) -> Fringe {
    let window = Window {
        delay_s: Some(known.window.0),
        rate_hz: Some(known.window.1),
    };
    let grid = Grid::new(visibilities, &window);
    measure(visibilities, &grid, known.delay_s, known.rate_hz)
}

fn measure(visibilities: &Visibilities<'_>, grid: &Grid, delay: f64, rate: f64) -> Fringe {
    let [sum, ..] = moments(visibilities, delay, rate);
    let amplitude = sum.norm();
    let snr = match visibilities.noise.sqrt() {
        noise if noise > 0.0 => amplitude / noise,
        _ => 0.0,
    };
    // Dimensions that are not searched have no error.
    let error = |half: f64, width: f64| match TAU * (width / 12f64.sqrt()) * snr {
        slope if half > 0.0 && slope != 0.0 => 1.0 / slope,
        _ => 0.0,
    };
    let bandwidth = visibilities.channels as f64 * visibilities.channel_width_hz;
    let time = visibilities.periods() as f64 * visibilities.period_s;
    Fringe {
        delay_s: delay,
        delay_error_s: error(grid.delay, bandwidth),
        rate_hz: rate,
        rate_error_hz: error(grid.rate, time),
        phase_rad: sum.arg(),
        phase_error_rad: if snr > 0.0 { (1.0 / snr).min(PI) } else { PI },
        amplitude,
        snr,
        false_alarm: false_alarm(snr, 2.0 * grid.delay * bandwidth, 2.0 * grid.rate * time),
        in_lines: is_in_lines(visibilities, delay, rate),
        window: (grid.delay, grid.rate),
    }
}

/// Returns whether less than half of the amplitude is left without the strongest channels. In a fringe that is equally strong in
/// all channels they contribute `LINES` of it, and at most four times that if noise hides the fringe in each channel.
fn is_in_lines(visibilities: &Visibilities<'_>, delay: f64, rate: f64) -> Option<bool> {
    let mut channels = sums_by_channel(visibilities, delay, rate);
    let all: Complex64 = channels.iter().sum();
    channels.sort_by(|a, b| b.norm_sqr().total_cmp(&a.norm_sqr()));
    let strongest = (channels.len() as f64 * LINES) as usize;
    if strongest == 0 {
        return None;
    }
    let rest: Complex64 = channels[strongest..].iter().sum();
    // In phase with the sum.
    Some((rest * all.conj()).re < 0.5 * all.norm_sqr())
}

/// Calculates the false-alarm probability, `1 - (1 - exp(-SNR^2 / 2))^n`, for n independent trials.
///
/// The window has `a` cells of the size 1 / B and `b` of 1 / T. There are more trials than a * b, as the peak is found wherever
/// it is between them: n is such that for high peaks the probability is the expected Euler characteristic of a chi-square field
/// of two degrees of freedom (Worsley 1994, Advances in Applied Probability 26, 13), with variances `(2 pi B)^2 / 12` and `(2 pi
/// T)^2 / 12` of its slopes.
fn false_alarm(snr: f64, a: f64, b: f64) -> f64 {
    // Above that it is 0 in any window.
    let snr = snr.min(100.0);
    let along = (TAU / 12.0).sqrt() * snr * (a + b);
    let across = TAU / 12.0 * (snr * snr - 1.0).max(0.0) * a * b;
    let trials = (1.0 + along + across).max(a.max(1.0) * b.max(1.0));
    let one = (-snr * snr / 2.0).exp();
    0.0 - (trials * (-one).ln_1p()).exp_m1()
}

/// Returns the sum of each period, with delay and rate compensated.
pub fn by_period(visibilities: &Visibilities<'_>, fringe: &Fringe) -> Vec<Complex64> {
    sums_by_period(visibilities, fringe.delay_s, fringe.rate_hz)
}

fn sums_by_period(visibilities: &Visibilities<'_>, delay: f64, rate: f64) -> Vec<Complex64> {
    let factors = visibilities.channel_factors(delay);
    let rows = visibilities.rows().enumerate();
    rows.map(|(period, row)| {
        let sum: Complex64 = row.iter().zip(&factors).map(|(v, f)| wide(*v) * f).sum();
        sum * turn(-rate * visibilities.time(period))
    })
    .collect()
}

/// Returns the sum of each channel, with delay and rate compensated.
fn sums_by_channel(visibilities: &Visibilities<'_>, delay: f64, rate: f64) -> Vec<Complex64> {
    let mut sums = vec![Complex64::default(); visibilities.channels];
    for (period, row) in visibilities.rows().enumerate() {
        let factor = turn(-rate * visibilities.time(period));
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += wide(*value) * factor;
        }
    }
    let factors = visibilities.channel_factors(delay);
    sums.iter().zip(factors).map(|(sum, f)| sum * f).collect()
}

/// Returns the amplitude over the delay in s at the rate found, eight points per cell, over the window.
pub fn over_delay(visibilities: &Visibilities<'_>, fringe: &Fringe) -> Vec<(f64, f64)> {
    let sums = sums_by_channel(visibilities, 0.0, fringe.rate_hz);
    profile(
        visibilities.simd,
        &sums,
        visibilities.channel_width_hz,
        fringe.window.0,
    )
}

/// Returns the amplitude over the rate in Hz at the delay found, eight points per cell, over the window.
pub fn over_rate(visibilities: &Visibilities<'_>, fringe: &Fringe) -> Vec<(f64, f64)> {
    let sums = sums_by_period(visibilities, fringe.delay_s, 0.0);
    profile(
        visibilities.simd,
        &sums,
        visibilities.period_s,
        fringe.window.1,
    )
}

impl Visibilities<'_> {
    /// Returns the number of periods.
    pub fn periods(&self) -> usize {
        self.values.len() / self.channels.max(1)
    }

    fn rows(&self) -> impl Iterator<Item = &[Complex32]> {
        self.values.chunks_exact(self.channels.max(1))
    }

    fn frequency(&self, channel: usize) -> f64 {
        self.first_channel_hz + channel as f64 * self.channel_width_hz
    }

    /// Returns the middle of a period, relative to the middle of all.
    fn time(&self, period: usize) -> f64 {
        (period as f64 - (self.periods() as f64 - 1.0) / 2.0) * self.period_s
    }

    fn channel_factors(&self, delay: f64) -> Vec<Complex64> {
        (0..self.channels)
            .map(|channel| turn(-self.frequency(channel) * delay))
            .collect()
    }
}

/// Grid of the coarse search.
struct Grid {
    /// Half widths of the window.
    delay: f64,
    rate: f64,
    /// Number of points of the transforms over channels and periods.
    delays: usize,
    rates: usize,
}

impl Grid {
    fn new(visibilities: &Visibilities<'_>, window: &Window) -> Grid {
        let widest = |count: usize, step: f64, asked: Option<f64>| {
            if count < 2 || step <= 0.0 {
                return 0.0;
            }
            let all = 0.5 / step;
            asked.map_or(all, |asked| asked.abs().min(all))
        };
        let points = |count: usize| (2 * count).next_power_of_two();
        let (channels, periods) = (visibilities.channels, visibilities.periods());
        Grid {
            delay: widest(channels, visibilities.channel_width_hz, window.delay_s),
            rate: widest(periods, visibilities.period_s, window.rate_hz),
            delays: points(channels),
            rates: points(periods),
        }
    }

    /// Returns the spacing of the points.
    fn steps(&self, visibilities: &Visibilities<'_>) -> (f64, f64) {
        (
            1.0 / (self.delays as f64 * visibilities.channel_width_hz),
            1.0 / (self.rates as f64 * visibilities.period_s),
        )
    }

    /// Returns delay and rate of the highest point in the window.
    fn peak(&self, visibilities: &Visibilities<'_>) -> (f64, f64) {
        let (delay_step, rate_step) = self.steps(visibilities);
        let delays = inside(self.delays, delay_step, self.delay);
        let rates = inside(self.rates, rate_step, self.rate);
        let periods = visibilities.periods();
        let over_channels = visibilities.simd.transform::<f32>(self.delays);
        let over_periods = visibilities.simd.transform::<f32>(self.rates);
        // By delay, then by period.
        let mut columns = vec![Complex32::default(); delays.len() * periods];
        let mut row = vec![Complex32::default(); self.delays];
        for (period, values) in visibilities.rows().enumerate() {
            row.fill(Complex32::default());
            row[..values.len()].copy_from_slice(values);
            over_channels.process(&mut row);
            for (place, bin) in delays.iter().enumerate() {
                columns[place * periods + period] = row[*bin];
            }
        }
        let mut best = (-1.0, 0, 0);
        let mut column = vec![Complex32::default(); self.rates];
        for (place, delay) in delays.iter().enumerate() {
            column.fill(Complex32::default());
            column[..periods].copy_from_slice(&columns[place * periods..][..periods]);
            over_periods.process(&mut column);
            for rate in &rates {
                let power = column[*rate].norm_sqr();
                if power > best.0 {
                    best = (power, *delay, *rate);
                }
            }
        }
        let (_, delay, rate) = best;
        (
            signed(delay, self.delays) * delay_step,
            signed(rate, self.rates) * rate_step,
        )
    }
}

/// Returns the bins of a transform that are within a half width.
fn inside(points: usize, step: f64, half: f64) -> Vec<usize> {
    (0..points)
        .filter(|bin| signed(*bin, points).abs() * step <= half * (1.0 + 1e-9))
        .collect()
}

fn signed(bin: usize, points: usize) -> f64 {
    bin as f64 - f64::from(bin > points / 2) * points as f64
}

/// Returns the sum at a delay and a rate, and its derivatives: by delay, by rate, by delay twice, by both and by rate twice. They
/// are sums over all values times powers of -2 pi i f and -2 pi i t.
fn moments(visibilities: &Visibilities<'_>, delay: f64, rate: f64) -> [Complex64; 6] {
    let factors = visibilities.channel_factors(delay);
    let middle = visibilities.frequency(visibilities.channels / 2);
    let zero = Complex64::default();
    let mut of = [zero; 6];
    for (period, row) in visibilities.rows().enumerate() {
        let mut sums = [zero; 3];
        for (channel, (value, factor)) in row.iter().zip(&factors).enumerate() {
            let value = wide(*value) * factor;
            let f = visibilities.frequency(channel) - middle;
            sums[0] += value;
            sums[1] += value * f;
            sums[2] += value * (f * f);
        }
        let t = visibilities.time(period);
        let factor = turn(-rate * t);
        let [a, b, c] = sums.map(|sum| sum * factor);
        let parts = [a, b, a * t, c, b * t, a * t * t];
        for (sum, part) in of.iter_mut().zip(parts) {
            *sum += part;
        }
    }
    // Frequencies relative to the middle do not change the magnitude of the sum.
    let i = Complex64::new(0.0, -TAU);
    let factors = [Complex64::ONE, i, i, i * i, i * i, i * i];
    std::array::from_fn(|at| factors[at] * of[at])
}

/// Refines the highest point of the grid by Newton's method to the maximum between its neighbours.
fn refine(visibilities: &Visibilities<'_>, grid: &Grid, delay: f64, rate: f64) -> (f64, f64) {
    let (delay_step, rate_step) = grid.steps(visibilities);
    let (mut at, mut found) = ((delay, rate), moments(visibilities, delay, rate));
    for _ in 0..MAX_STEPS {
        let [
            sum,
            by_delay,
            by_rate,
            by_delay_twice,
            by_both,
            by_rate_twice,
        ] = found;
        let real = |a: Complex64, b: Complex64| (a * b.conj()).re;
        // Derivatives of the logarithm of half the squared magnitude, times that value: a peak is nearly Gaussian, so its
        // logarithm is nearly the parabola that Newton's method assumes.
        let half = sum.norm_sqr() / 2.0;
        let slope = [real(by_delay, sum), real(by_rate, sum)];
        let curve = [
            real(by_delay_twice, sum) + by_delay.norm_sqr() - slope[0] * slope[0] / half,
            real(by_both, sum) + real(by_delay, by_rate) - slope[0] * slope[1] / half,
            real(by_rate_twice, sum) + by_rate.norm_sqr() - slope[1] * slope[1] / half,
        ];
        let (searches_delay, searches_rate) = (grid.delay > 0.0, grid.rate > 0.0);
        let (d, r) = match (searches_delay, searches_rate) {
            (true, true) => {
                let determinant = curve[0] * curve[2] - curve[1] * curve[1];
                if !(determinant > 0.0 && curve[0] < 0.0) {
                    break;
                }
                let step = (
                    (curve[1] * slope[1] - curve[2] * slope[0]) / determinant,
                    (curve[1] * slope[0] - curve[0] * slope[1]) / determinant,
                );
                // If one leaves the window, the maximum over the other is next to its edge.
                let edge = |at: f64, step: f64, half: f64| (at + step).clamp(-half, half) - at;
                if (at.1 + step.1).abs() > grid.rate {
                    let r = edge(at.1, step.1, grid.rate);
                    let d = -(slope[0] + curve[1] * r) / curve[0];
                    (d, r)
                } else if (at.0 + step.0).abs() > grid.delay {
                    let d = edge(at.0, step.0, grid.delay);
                    let r = -(slope[1] + curve[1] * d) / curve[2];
                    (d, r)
                } else {
                    step
                }
            }
            (true, false) if curve[0] < 0.0 => (-slope[0] / curve[0], 0.0),
            (false, true) if curve[2] < 0.0 => (0.0, -slope[1] / curve[2]),
            _ => break,
        };
        let next = (
            (at.0 + d).clamp(-grid.delay, grid.delay),
            (at.1 + r).clamp(-grid.rate, grid.rate),
        );
        let strays = (next.0 - delay).abs() > delay_step || (next.1 - rate).abs() > rate_step;
        if strays || !(d.is_finite() && r.is_finite()) {
            break;
        }
        let then = moments(visibilities, next.0, next.1);
        if then[0].norm_sqr() < sum.norm_sqr() {
            break;
        }
        (at, found) = (next, then);
        if d.abs() < 1e-6 * delay_step && r.abs() < 1e-6 * rate_step {
            break;
        }
    }
    at
}

/// Returns the magnitude of the transform of `sums`, eight points per cell, within a half width.
fn profile(simd: Simd, sums: &[Complex64], step: f64, half: f64) -> Vec<(f64, f64)> {
    let points = (8 * sums.len()).next_power_of_two().max(2);
    let mut line = sums.to_vec();
    line.resize(points, Complex64::default());
    simd.transform(points).process(&mut line);
    let cell = 1.0 / (points as f64 * step);
    let mut shown: Vec<(f64, f64)> = inside(points, cell, half)
        .into_iter()
        .map(|bin| (signed(bin, points) * cell, line[bin].norm()))
        .collect();
    shown.sort_by(|a, b| a.0.total_cmp(&b.0));
    shown
}

fn turn(turns: f64) -> Complex64 {
    Complex64::cis(TAU * turns)
}

fn wide(value: Complex32) -> Complex64 {
    Complex64::new(f64::from(value.re), f64::from(value.im))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const WIDTH: f64 = 1e5;
    const PERIOD: f64 = 0.01;

    /// A fringe of unit amplitude in each value, and noise of a given variance in each component.
    fn fringe(
        (periods, channels): (usize, usize),
        (delay, rate, phase): (f64, f64, f64),
        noise: f64,
        seed: u64,
    ) -> Vec<Complex32> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut gauss = || {
            let (u, v): (f64, f64) = (random.random(), random.random());
            (-2.0 * f64::ln(1.0 - u) * noise).sqrt() * Complex64::cis(TAU * v)
        };
        let mut values = Vec::new();
        for period in 0..periods {
            let t = (period as f64 - (periods as f64 - 1.0) / 2.0) * PERIOD;
            for channel in 0..channels {
                let turns = channel as f64 * WIDTH * delay + rate * t;
                let value = Complex64::cis(TAU * turns + phase) + gauss();
                values.push(Complex32::new(value.re as f32, value.im as f32));
            }
        }
        values
    }

    fn of(values: &[Complex32], channels: usize, noise: f64) -> Visibilities<'_> {
        Visibilities {
            values,
            channels,
            channel_width_hz: WIDTH,
            first_channel_hz: 0.0,
            reference_hz: 5e9,
            period_s: PERIOD,
            noise: noise * values.len() as f64,
            simd: Simd::best(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_fringe_is_found_between_the_points_of_the_grid(
            delay in -4.5e-6..4.5e-6f64,
            rate in -45.0..45.0f64,
            phase in -3.0..3.0f64,
            periods in 5usize..70,
            channels in 5usize..70,
        ) {
            let values = fringe((periods, channels), (delay, rate, phase), 0.0, 1);
            let found = search(&of(&values, channels, 1e-4), &Window::default());
            prop_assert!((found.amplitude / values.len() as f64 - 1.0).abs() < 1e-5);
            prop_assert!((found.delay_s - delay).abs() < 1e-11, "{} {delay}", found.delay_s);
            prop_assert!((found.rate_hz - rate).abs() < 1e-4, "{} {rate}", found.rate_hz);
            let off = Complex64::cis(found.phase_rad - phase).arg();
            prop_assert!(off.abs() < 1e-3, "{off}");
        }
    }

    #[test]
    fn errors_are_what_noise_makes() {
        let truth = (1.234e-6, 7.89, 0.5);
        let (mut delays, mut phases, mut predicted) = (0.0, 0.0, (0.0, 0.0));
        for seed in 0..60 {
            let values = fringe((32, 64), truth, 20.0, seed);
            let found = search(&of(&values, 64, 20.0), &Window::default());
            assert!((found.snr / 10.1 - 1.0).abs() < 0.5, "{}", found.snr);
            assert!(found.false_alarm < 1e-3);
            delays += (found.delay_s - truth.0).powi(2) / 60.0;
            // At the reference frequency, half a band from where the phase is most accurate.
            phases += (found.phase_rad - truth.2).powi(2) / 60.0;
            predicted = (found.delay_error_s, found.phase_error_rad);
        }
        assert!((delays.sqrt() / predicted.0 - 1.0).abs() < 0.35);
        assert!(phases.sqrt() < 3.0 * predicted.1);
    }

    #[test]
    fn noise_alone_is_not_a_fringe() {
        let values = fringe((32, 64), (0.0, 0.0, 0.0), 1e6, 3);
        let found = search(&of(&values, 64, 1e6), &Window::default());
        assert!(found.false_alarm > 0.01 && found.snr < 6.0, "{found:?}");
    }

    #[test]
    fn nothing_outside_the_window_is_found() {
        let values = fringe((32, 64), (2e-6, 20.0, 0.0), 0.01, 1);
        let window = Window {
            delay_s: Some(1e-6),
            rate_hz: Some(10.0),
        };
        let found = search(&of(&values, 64, 0.01), &window);
        assert!(found.delay_s.abs() <= 1e-6 && found.rate_hz.abs() <= 10.0);
        assert!(found.amplitude < 0.2 * values.len() as f64);
        assert_eq!(found.window, (1e-6, 10.0));
        let visibilities = of(&values, 64, 0.01);
        assert!(
            over_delay(&visibilities, &found)
                .iter()
                .all(|(delay, _)| delay.abs() <= 1e-6)
        );
    }

    /// The maximum in a window is at its edge if the fringe is outside: in rate, or in delay.
    #[test]
    fn a_narrow_window_of_one_does_not_keep_the_other_coarse() {
        let truth = (1.234e-6, 0.789, 0.5);
        let values = fringe((32, 64), truth, 0.0, 1);
        let visibilities = of(&values, 64, 1e-3);
        let windows = [(None, Some(0.01)), (Some(1.2e-6), None)];
        let [slow, near] = windows.map(|(delay_s, rate_hz)| {
            let window = Window { delay_s, rate_hz };
            search(&visibilities, &window)
        });
        assert!((slow.delay_s - truth.0).abs() < 1e-10, "{slow:?}");
        assert!((slow.rate_hz - 0.01).abs() < 1e-9, "{slow:?}");
        assert!((near.rate_hz - truth.1).abs() < 1e-3, "{near:?}");
        assert!((near.delay_s - 1.2e-6).abs() < 1e-12, "{near:?}");
    }

    #[test]
    fn one_period_or_channel_and_nothing_at_all() {
        let values = fringe((1, 64), (1e-6, 0.0, 0.3), 0.0, 1);
        let found = search(&of(&values, 64, 1e-3), &Window::default());
        assert!((found.delay_s - 1e-6).abs() < 1e-11 && found.rate_hz == 0.0);
        let values = fringe((64, 1), (0.0, 5.0, 0.3), 0.0, 1);
        let found = search(&of(&values, 1, 1e-3), &Window::default());
        assert!((found.rate_hz - 5.0).abs() < 1e-5 && found.delay_s == 0.0);
        for values in [vec![], vec![Complex32::default(); 64]] {
            let found = search(&of(&values, 16, 0.0), &Window::default());
            assert_eq!((found.amplitude, found.snr), (0.0, 0.0));
            assert!(found.delay_s.is_finite() && found.false_alarm.is_finite());
            let _ = over_rate(&of(&values, 16, 0.0), &found);
        }
    }

    #[test]
    fn lines_differ_from_a_fringe_in_all_channels() {
        // A fringe in all channels, with much noise; and in every 25th channel only.
        let values = fringe((16, 256), (1e-6, 7.0, 0.4), 8.0, 3);
        let all = search(&of(&values, 256, 1e-3), &Window::default());
        assert!(all.snr > 6.0 && all.in_lines == Some(false), "{all:?}");
        let lines: Vec<Complex32> = fringe((16, 256), (1e-6, 7.0, 0.4), 0.0, 1)
            .into_iter()
            .zip(&fringe((16, 256), (1e-6, 7.0, 0.4), 8.0, 3))
            .enumerate()
            .map(|(place, (signal, noisy))| {
                let strength = if place % 256 % 25 == 3 { 20.0 } else { -1.0 };
                noisy + signal * strength
            })
            .collect();
        let few = search(&of(&lines, 256, 1e-3), &Window::default());
        assert!(few.snr > 6.0 && few.in_lines == Some(true), "{few:?}");
    }

    #[test]
    fn sums_by_period_and_channel_are_in_phase() {
        let values = fringe((16, 32), (1e-6, 7.0, 0.4), 0.0, 1);
        let visibilities = of(&values, 32, 1e-3);
        let found = search(&visibilities, &Window::default());
        for sum in by_period(&visibilities, &found) {
            assert!((sum.norm() - 32.0).abs() < 1e-3 && (sum.arg() - 0.4).abs() < 1e-3);
        }
        for sum in sums_by_channel(&visibilities, found.delay_s, found.rate_hz) {
            assert!((sum.norm() - 16.0).abs() < 1e-3 && (sum.arg() - 0.4).abs() < 1e-3);
        }
        let highest = |profile: Vec<(f64, f64)>| {
            profile
                .into_iter()
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .unwrap()
        };
        assert!((highest(over_delay(&visibilities, &found)).0 - 1e-6).abs() < 2e-8);
        assert!((highest(over_rate(&visibilities, &found)).0 - 7.0).abs() < 0.5);
    }
}

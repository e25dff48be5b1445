//! Compares the simulated flow with that of a Linux kernel, for each algorithm: windows during the recovery from a loss, and
//! recovery times. The traces in `data/tcp` contain the command that recorded them.

use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{Algorithm, Counting, Full, Scene};

const RATE: u64 = 256_000_000;
const SEGMENT: u32 = 1448;
/// Window of BBR while it probes the round-trip time, in segments.
const PROBE_WINDOW: f64 = 4.0;

/// Sample of a trace.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: f64,
    window: f64,
    threshold: f64,
    round_trip: f64,
    sent_again: u64,
    /// Acknowledgements, and segments that they covered, if the trace has them.
    acks: Option<(f64, f64)>,
}

fn trace(name: &str) -> Vec<Row> {
    let path = format!(
        "{}/tests/integration/data/tcp/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let values: Vec<f64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect();
            Row {
                at: values[0],
                window: values[1],
                threshold: values[2],
                round_trip: values[3] * 1e-6,
                sent_again: values[5] as u64,
                acks: values
                    .get(7)
                    .map(|bytes| (values[6], bytes / f64::from(SEGMENT))),
            }
        })
        .collect()
}

/// Returns the time between a trace's samples.
fn every(rows: &[Row]) -> f64 {
    rows[1].at - rows[0].at
}

/// Returns the segments per acknowledgement while the flow recovers from a loss; two if the trace does not contain them, as the
/// algorithm counts segments.
fn per_ack(rows: &[Row], lost: f64, recovery: f64) -> f64 {
    let during = rows
        .iter()
        .filter(|row| row.at > lost && row.at < lost + recovery);
    let mut known = during.filter_map(|row| row.acks);
    match (known.next(), known.next_back()) {
        (Some(first), Some(last)) => (last.1 - first.1) / (last.0 - first.0),
        _ => 2.0,
    }
}

/// Returns the flow of the traces, over a path with this round-trip time and these losses, for this many seconds.
fn scene(algorithm: Algorithm, round_trip: f64, loss: Loss, length: f64) -> Scene {
    let delay = Law::Delay {
        delay: Nanos::from_secs_f64(round_trip / 2.0),
        jitter: Nanos(0),
        shape: Shape::Normal,
        reorders: false,
    };
    Scene {
        rate: BitRate::new(RATE).unwrap(),
        segment: SEGMENT,
        algorithm,
        counting: Counting::Segments,
        per_ack: 2.0,
        buffer: 256 << 20,
        full: Full::Block,
        window: None,
        there: vec![Law::Loss(loss), delay.clone()],
        back: vec![delay],
        seed: 1,
        length: Nanos::from_secs_f64(length),
        every: Nanos::from_secs_f64(1e-3),
    }
}

/// Simulates the losses of a trace, with samples at the trace's times.
fn simulate(
    algorithm: Algorithm,
    trace: &[Row],
    losses: &[f64],
    begin: f64,
    per_ack: f64,
) -> Vec<f64> {
    let origin = trace[0].at;
    let round_trip = trace[0].round_trip;
    // A loss shows as a retransmission, on average half a sample earlier, a round trip after the segment was sent.
    let times = losses.iter().map(|at| {
        let left = at - origin - every(trace) / 2.0 - round_trip;
        Nanos::from_secs_f64(left)
    });
    let scene = Scene {
        per_ack,
        window: Some(begin),
        ..scene(
            algorithm,
            round_trip,
            Loss::At(times.collect()),
            trace.last().unwrap().at - origin,
        )
    };
    let mut windows = Vec::new();
    scene.run(|sample| windows.push(sample.window));
    let at = |row: &Row| ((row.at - origin) * 1e3).round() as usize;
    let last = windows.len() - 1;
    trace.iter().map(|row| windows[at(row).min(last)]).collect()
}

/// Returns when the window is first large enough for the rate again after a loss made it too small, in seconds after the loss, or
/// 0 if it never is.
fn recovery(rows: &[Row], windows: &[f64], lost: f64) -> f64 {
    let need = RATE as f64 / 8.0 * rows[0].round_trip / f64::from(SEGMENT);
    let both = rows.iter().zip(windows);
    let after = both.skip_while(|(row, _)| row.at < lost + 2.0 * every(rows));
    let mut small = after.skip_while(|(_, window)| **window >= need);
    let found = small.find(|(_, window)| **window >= need);
    found.map_or(0.0, |(row, _)| row.at - lost)
}

/// For each algorithm: the factor of the window at the first loss, and the number of the loss whose recovery is compared.
#[test]
fn windows_are_the_kernels() {
    let mut wrong = Vec::new();
    for (algorithm, name, kept, which) in [
        (Algorithm::Reno, "reno", 0.5, 3),
        (Algorithm::Cubic, "cubic", 0.7, 3),
        (Algorithm::Bic, "bic", 0.8, 5),
        (Algorithm::HTcp, "htcp", 0.5, 4),
        (Algorithm::HighSpeed, "highspeed", 0.65, 4),
        (Algorithm::Scalable, "scalable", 0.875, 7),
        (Algorithm::Westwood, "westwood", 1.0, 4),
    ] {
        let rows = trace(name);
        let again = rows.windows(2);
        let losses: Vec<f64> = again
            .filter(|pair| pair[1].sent_again > pair[0].sent_again)
            .map(|pair| pair[1].at)
            .collect();
        let lost = losses[which - 1];
        let kernels: Vec<f64> = rows.iter().map(|row| row.window).collect();
        // The window of slow start keeps growing while the loss is detected: start with the window that the kernel reduced.
        let theirs = recovery(&rows, &kernels, lost);
        let per_ack = per_ack(&rows, lost, theirs);
        let reduced = rows.iter().find(|row| row.sent_again > 0).unwrap();
        let windows = simulate(algorithm, &rows, &losses, reduced.threshold / kept, per_ack);
        let ours = recovery(&rows, &windows, lost);
        // The round trip in which the window shrinks belongs to the reduction, not to the recovery.
        let over = rows.iter().zip(&windows).filter(|(row, _)| {
            row.at >= lost + 2.0 * every(&rows) && row.at <= lost + theirs.max(0.3)
        });
        let (sum, count) = over.fold((0.0, 0), |(sum, count), (row, window)| {
            (sum + (window / row.window - 1.0).powi(2), count + 1)
        });
        let rms = (sum / f64::from(count)).sqrt();
        println!(
            "{name:>9}: {count} samples, {per_ack:.2} per ack, window RMS {:.1} %, recovery {theirs:.3} s, simulated {ours:.3} s",
            rms * 100.0
        );
        // A trace cannot resolve times finer than its samples.
        if rms > 0.1 || (ours - theirs).abs() > (0.1 * theirs).max(every(&rows)) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Returns when a window begins and ends to be that of a probe of the round-trip time.
fn probes(windows: &[(f64, f64)]) -> Vec<[f64; 2]> {
    let is_small = |(_, window): &(f64, f64)| *window <= PROBE_WINDOW;
    let changes = windows
        .windows(2)
        .filter(|pair| is_small(&pair[0]) != is_small(&pair[1]));
    let times: Vec<f64> = changes.map(|pair| pair[1].0).collect();
    times
        .chunks_exact(2)
        .map(|pair| [pair[0], pair[1]])
        .collect()
}

/// BBR empties the path for as long and as often as the kernel's, to within the trace's samples.
#[test]
fn probes_are_the_kernels() {
    let rows = trace("bbr");
    let kernels: Vec<(f64, f64)> = rows.iter().map(|row| (row.at, row.window)).collect();
    let mut ours = Vec::new();
    let none = Loss::At([].into());
    scene(Algorithm::Bbr, rows[0].round_trip, none, 22.0)
        .run(|sample| ours.push((sample.at.as_secs_f64(), sample.window)));
    let [kernels, ours] = [kernels, ours].map(|windows| {
        let [[first, end], [second, last]] = probes(&windows)[..] else {
            panic!("not two probes");
        };
        [end - first, second - end, last - second]
    });
    println!("probe, pause, probe: kernel {kernels:.3?} s, simulated {ours:.3?} s");
    for (kernel, own) in kernels.iter().zip(&ours) {
        assert!((kernel - own).abs() < every(&rows), "{kernel} {own}");
    }
}

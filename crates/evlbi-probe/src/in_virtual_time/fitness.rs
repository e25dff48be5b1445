//! Standard tests of a path, and the verdict on it.

use evlbi_core::path::{Law, Loss};

use super::{Path, bottleneck, delay};
use crate::capacity::Limit;
use crate::fitness::{self, MAX_LOSS, Next, ProbeFitness, ProbeFitnessOptions};

fn probed(laws: &[Law], rate: &str, reverse: bool) -> ProbeFitness {
    let path = Path {
        is_logged: false,
        ..Path::of(laws)
    };
    let (found, _) = path.play(|scene| {
        let options = ProbeFitnessOptions {
            target: scene.target(),
            rate: rate.parse().ok(),
            reverse,
        };
        fitness::probe(&options, &scene.near).unwrap()
    });
    assert!(
        found.failed.is_empty() && !found.interrupted,
        "{:?}",
        found.failed
    );
    found
}

#[test]
fn a_path_with_room_is_fit_in_both_directions() {
    let path = [bottleneck(30_000_000, 200_000), delay(5)];
    for reverse in [false, true] {
        let found = probed(&path, "20M", reverse);
        let verdict = &found.verdict;
        let fits = (verdict.udp_fits, verdict.tcp_fits);
        assert_eq!(fits, (Some(true), Some(true)), "{verdict:?}");
        assert_eq!(verdict.udp_loss, Some(0.0));
        assert_eq!((verdict.limit, verdict.next), (Limit::Asked, Next::Send));
        // At the requested rate, and no higher one.
        let sent = found.udp.unwrap().points[0].rate_sent;
        assert!((19.9e6..20.1e6).contains(&sent), "{sent}");
        assert_eq!(
            found.latency.points[0].received,
            found.latency.points[0].sent
        );
    }
}

#[test]
fn a_narrow_path_is_fit_for_the_rate_it_carries() {
    let found = probed(&[bottleneck(20_000_000, 50_000), delay(5)], "40M", false);
    let verdict = &found.verdict;
    assert_eq!((verdict.fits(), verdict.limit), (Some(false), Limit::Path));
    // Nine tenths of the payload of 20 Mbit/s, to the precision of the search.
    let udp = verdict.udp.unwrap();
    assert!((0.84 * 19.6e6..0.92 * 20e6).contains(&udp), "{udp}");
    assert_eq!(verdict.udp_loss, Some(0.0));
}

#[test]
fn a_lossy_path_is_fit_for_nothing_by_udp() {
    let loss = Law::Loss(Loss::Random { fraction: 0.05 });
    let found = probed(&[loss, delay(5)], "10M", false);
    let verdict = &found.verdict;
    assert_eq!((verdict.udp, verdict.udp_fits), (None, Some(false)));
    assert_eq!((verdict.limit, verdict.next), (Limit::Path, Next::FindLoss));
    let capacity = found.capacity.unwrap();
    assert_eq!(capacity.rate, None);
    assert!(
        capacity
            .trials
            .iter()
            .all(|trial| trial.point.as_ref().unwrap().loss > MAX_LOSS)
    );
}

//! Flows on good and bad paths. Times are those of the emulated path, so every run is the same.

mod fairness;
mod invariants;
mod messages;
mod paths;
mod properties;
mod world;

use std::sync::Arc;

use evlbi_core::path::{Law, Loss};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::Accounts;
use proptest::prelude::ProptestConfig;

use self::world::{Scene, World, delay};

/// When the path of [`changing`] changes, on the clock of the world: 19.5 s after the start of the data.
const CHANGE: f64 = 26.0;

/// Cases of a property: as many in the gate, and more with `PROPTEST_CASES` above the usual 256.
fn cases(usual: u32) -> u32 {
    usual * ProptestConfig::default().cases.div_ceil(256)
}

fn at(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

/// A bottleneck with a buffer of this many packets.
fn bottleneck(bits: u64, packets: u64) -> Law {
    Law::Rate {
        rate: BitRate::new(bits).unwrap(),
        buffer: packets * 1500,
        overhead: 24,
        mark: None,
    }
}

/// Returns the bits per second on the wire of a part of the scene's data.
fn wire(scene: &Scene, part: f64) -> u64 {
    (scene.settings.rate as f64 * part * (1424.0 + 50.0 + 24.0) / 1424.0) as u64
}

/// A law without effect, to be replaced later.
fn nothing() -> Law {
    Law::Loss(Loss::At(Arc::new([])))
}

/// A flow whose path gets this law at [`CHANGE`].
fn changing(law: impl Fn(&Scene) -> Law) -> Scene {
    let mut scene = Scene::tenth();
    scene.there = vec![nothing(), delay(7_500)];
    scene.changes = vec![(at(CHANGE), 0, law(&scene))];
    scene
}

/// Ends the flows. Checks that both ends of each agree, and that their sums hold. Returns the accounts of the first.
fn accounts(world: &mut World) -> Accounts {
    let all = world.finish();
    for (here, there) in &all {
        assert_eq!(here, there);
        assert_eq!(here.offered, here.sent + here.shed + here.not_sent);
        assert_eq!(here.sent, here.unique + here.lost);
        assert_eq!(here.lost, here.host + here.network + here.unattributed);
    }
    all[0].0
}

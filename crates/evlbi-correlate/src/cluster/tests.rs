//! Known answers, and properties.

use proptest::prelude::*;

use super::*;

fn rate(bps: u64) -> BitRate {
    BitRate::new(bps).unwrap()
}

/// Plans with costs of 1.5 ns of a station and 0.1 ns of a baseline, and nodes of 32 cores.
fn plan(options: ClusterOptions) -> ClusterPlan {
    let costs = Costs {
        station_ns: 1.5,
        baseline_ns: 0.1,
    };
    let cores = options.cores.or(Some(32));
    let options = ClusterOptions { cores, ..options };
    calculate(&options, costs, None)
}

fn one(stations: u32, bps: u64, options: &ClusterOptions) -> Row {
    let options = ClusterOptions {
        stations: vec![stations],
        rate: vec![rate(bps)],
        ..options.clone()
    };
    plan(options).rows[0]
}

fn assert_close(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 1e-12,
        "{found}, not {expected}"
    );
}

/// 1 Gbit/s of 2 bits are 0.5 GS/s of each station.
#[test]
fn four_stations_at_1_gbit_per_second() {
    let row = one(4, GIGA, &ClusterOptions::default());
    assert_eq!(row.baselines, 6);
    assert_close(row.cores, 0.5 * (4.0 * 1.5 + 6.0 * 0.1));
    assert_eq!((row.nodes, row.limit), (1, Limit::Cores));
    assert_close(row.site_bps, 4e9);
    // Two streams of each baseline.
    assert_close(row.by_baseline_bps, 12e9);
    assert_close(row.node_bps, 4.4e9);
    assert_close(row.link_load, 0.044);
    assert_eq!(row.site_links, 1);
    assert_close(row.node_hours, 3.3 / 32.0);
    assert_eq!(row.hours, None);
}

#[test]
fn twenty_stations_at_32_gbit_per_second() {
    let options = ClusterOptions {
        nodes: Some(50),
        ..ClusterOptions::default()
    };
    let row = one(20, 32 * GIGA, &options);
    assert_close(row.cores, 16.0 * (20.0 * 1.5 + 190.0 * 0.1));
    // 784 cores, and 704 Gbit/s with the guards.
    assert_eq!((row.nodes_by_cores, row.nodes_by_link), (25, 8));
    assert_eq!((row.nodes, row.limit), (25, Limit::Cores));
    assert_eq!(row.site_links, 7);
    assert_close(row.by_baseline_bps, 380.0 * 32e9);
    // 360 parts are 8 rounds of 50 nodes, of 245 s each.
    assert_close(row.hours.unwrap(), 8.0 * 245.0 / 3600.0);
}

#[test]
fn a_slow_link_limits_nodes_and_hours() {
    let options = ClusterOptions {
        link: rate(GIGA),
        nodes: Some(7),
        duration: Duration::from_secs(100),
        ..ClusterOptions::default()
    };
    let row = one(4, GIGA, &options);
    // 44 Gbit of a part take 44 s.
    assert_eq!((row.nodes, row.limit), (5, Limit::Link));
    assert_close(row.node_hours, 440.0 / 3600.0);
    // Ten parts are two rounds of seven nodes.
    assert_close(row.hours.unwrap(), 88.0 / 3600.0);
    assert_eq!(row.site_links, 4);
    assert_close(row.link_load, 0.88);
}

/// The table of section 6.2 of the EXPReS report, with 132 streams of 12 stations, and n by multicast.
#[test]
fn streams_by_baseline_are_those_of_the_report() {
    let options = ClusterOptions {
        stations: (2..=12).collect(),
        rate: vec![rate(GIGA)],
        ..ClusterOptions::default()
    };
    let plan = plan(options);
    let streams = |of: fn(&Row) -> f64| -> Vec<f64> {
        let rates = plan.rows.iter().map(of);
        rates.map(|bps| bps / GIGA as f64).collect()
    };
    assert_eq!(
        streams(|row| row.by_baseline_bps),
        [
            2.0, 6.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0, 90.0, 110.0, 132.0
        ]
    );
    let stations: Vec<f64> = (2..=12).map(f64::from).collect();
    assert_eq!(streams(|row| row.site_bps), stations);
    assert_eq!(plan.rows[2].baselines, 6);
}

/// A part is not longer than the observation.
#[test]
fn short_observations_are_one_part() {
    let options = ClusterOptions {
        duration: Duration::from_secs(2),
        nodes: Some(3),
        ..ClusterOptions::default()
    };
    let plan = plan(options);
    assert_eq!((plan.parts, plan.part_s), (1, 2.0));
    for row in plan.rows {
        assert_close(row.hours.unwrap(), row.node_hours);
    }
}

#[test]
fn costs_follow_from_two_numbers_of_stations() {
    let costs = Costs::of(2, 2.0 * 1.5 + 0.1, 8, 8.0 * 1.5 + 28.0 * 0.1).unwrap();
    assert_close(costs.station_ns, 1.5);
    assert_close(costs.baseline_ns, 0.1);
    // Eight stations cannot cost less than four times as much as two.
    assert_eq!(Costs::of(2, 3.0, 8, 12.0), None);
    assert_eq!(Costs::of(2, 3.0, 8, f64::NAN), None);
    // Products cannot cost everything.
    assert_eq!(Costs::of(2, 1.0, 8, 100.0), None);
}

#[test]
fn costs_are_read_as_they_are_printed() {
    let costs: Costs = "1.5, 0.09".parse().unwrap();
    assert_eq!(costs.to_string().parse(), Ok(costs));
    for text in ["", "1.5", "1.5,0", "-1,0.1", "1.5,NaN", "1,2,3", "inf,1"] {
        let error = text.parse::<Costs>().unwrap_err().to_string();
        assert!(error.contains("1.5,0.09"), "{error}");
    }
}

#[test]
fn texts_and_tables_state_where_costs_are_from() {
    let mut plan = plan(ClusterOptions::default());
    let given = text(&plan);
    assert!(given.contains("costs as given, not measured: 1.5000 ns"));
    assert!(given.contains("a node: 32 cores; a link of 100.000 Gbit/s"));
    assert!(given.contains("1h in 360 parts of 10s, each of which reads 1 s more"));
    assert_eq!(given.lines().count(), 5 + 35);
    assert_eq!(csv(&plan).unwrap().lines().count(), 1 + 35);
    let panels = figure(&plan).panels;
    let curves = panels.iter().map(|panel| panel.series.len());
    assert_eq!(curves.collect::<Vec<_>>(), [5, 5, 5]);
    plan.cores_assumed = true;
    plan.measured = Some(Measured {
        cpu: None,
        simd: Simd::Scalar,
        channels: 64,
        rotation: Rotation::Blocks,
        rounds: 9,
        is_optimised: false,
    });
    let measured = text(&plan);
    for said in [
        "costs measured on this host, on one thread: 1.5000 ns",
        "unknown CPU; scalar instructions; 64 channels; fringes stopped block by block; median of 9",
        "a debug build",
        "--costs 1.5000,0.10000",
        "32 cores, assumed to be as this host",
    ] {
        assert!(measured.contains(said), "{said}: {measured}");
    }
}

#[test]
fn the_cpu_is_named_if_the_kernel_names_it() {
    let text = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags : fpu\nmodel name : other\n";
    assert_eq!(measure::model(text).unwrap(), "Fast CPU @ 3 GHz");
    assert_eq!(measure::model("Features : fp asimd\nmodel name :\n"), None);
}

#[test]
fn bits_that_no_recording_has_are_refused() {
    let options = ClusterOptions {
        bits: 3,
        ..ClusterOptions::default()
    };
    let error = super::plan(&options, &Run::silent()).unwrap_err();
    assert!(matches!(error, ClusterError::Bits(3)));
}

#[test]
fn a_stopped_run_measures_nothing() {
    let run = Run::silent();
    run.stop();
    let error = super::plan(&ClusterOptions::default(), &run).unwrap_err();
    assert!(matches!(error, ClusterError::Interrupted));
}

proptest! {
    /// More stations or a higher rate never need fewer nodes or hours, and nodes have the cores and links that are needed.
    #[test]
    fn more_data_never_need_less(
        stations in 2u32..60,
        bps in 1_000_000u64..100_000_000_000,
        more in 0u32..5,
        faster in 0u64..10_000_000_000,
        cores in 1u32..200,
        link in 100_000_000u64..400_000_000_000,
        nodes in 1u32..100,
        part in 1u64..100,
    ) {
        let options = ClusterOptions {
            cores: Some(cores),
            link: rate(link),
            nodes: Some(nodes),
            part: Duration::from_secs(part),
            ..ClusterOptions::default()
        };
        let row = one(stations, bps, &options);
        let larger = one(stations + more, bps + faster, &options);
        prop_assert!(larger.nodes >= row.nodes && larger.site_links >= row.site_links);
        prop_assert!(larger.node_hours >= row.node_hours && larger.hours >= row.hours);
        prop_assert!(row.nodes as f64 * f64::from(cores) >= row.cores * (1.0 - 1e-12));
        prop_assert!(row.link_load <= 1.0 + 1e-12);
        prop_assert!(row.by_baseline_bps >= row.site_bps);
        // Nodes may wait at the end, but none is faster than its share.
        prop_assert!(row.hours.unwrap() * f64::from(nodes) >= row.node_hours * (1.0 - 1e-12));
        prop_assert_eq!(row.nodes, row.nodes_by_cores.max(row.nodes_by_link));
    }
}

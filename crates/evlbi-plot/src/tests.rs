//! Figures of any values are drawn as valid SVG, PNG and text.

use proptest::prelude::*;

use super::*;

fn one(points: Vec<(f64, f64)>, style: Style) -> Figure {
    Figure {
        title: "A <title> & \u{1}more".to_string(),
        panels: vec![Panel {
            title: "panel".to_string(),
            x: Axis::new("x", Unit::Si("s")),
            y: Axis::new("y", Unit::Bare),
            series: vec![Series {
                name: "the \"name\"".to_string(),
                error: Some(vec![0.5; points.len()]),
                points,
                style,
                ..Series::default()
            }],
        }],
    }
}

/// Checks every picture of a figure.
fn check(figure: &Figure) {
    let svg = figure.svg().unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        assert!(texts.contains(&series.name.as_str()), "{texts:?}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"));

    let file = figure.png().unwrap();
    let decoder = png::Decoder::new(std::io::Cursor::new(&file));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), canvas::png_size(figure));
    let drawn = pixels.iter().any(|part| *part != 255);
    assert!(drawn || figure.panels.is_empty(), "an empty picture");

    for width in [0, 1, 5, 30, 80, 200] {
        let text = figure.text(width, 40);
        let fits = |line: &str| line.chars().count() <= width;
        assert!(text.lines().all(fits), "{text}");
    }
}

#[test]
fn a_line_in_text_goes_where_the_points_are() {
    let mut figure = one(vec![(0.0, 0.0), (1.0, 10.0)], Style::Line);
    figure.panels[0].series[0].error = None;
    let expected = [
        "A <title> & more",
        "panel: y  ⠒ the \"name\"",
        "10 ┤                ⣀⡠⠔⠚",
        "   │           ⣀⠤⠔⠊⠉",
        " 5 ┤     ⢀⣀⠤⠒⠊⠉",
        " 0 ┤⣀⡠⠤⠒⠉⠁",
        "   └┬──────────────────┬",
        "    0                  1",
        "           x (s)",
    ];
    assert_eq!(figure.text(24, 9).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn bars_stand_on_names_and_have_labels() {
    let mut figure = one(vec![(0.0, 10.0), (2.0, 5.0)], Style::Bars(0.5));
    let panel = &mut figure.panels[0];
    panel.x = Axis {
        names: ["sent", "lost", "received"].map(str::to_owned).to_vec(),
        ..Axis::new("place", Unit::Bare)
    };
    panel.series[0].error = None;
    panel.series[0].labels = vec!["ten".to_owned(), "five".to_owned()];
    let svg = figure.svg().unwrap();
    for text in ["sent", "lost", "received", "ten", "five"] {
        assert!(svg.contains(&format!("\n{text}\n")), "{text}: {svg}");
    }
    let expected = [
        "A <title> & more",
        "panel: y  ⠒ the \"name\"",
        "10 ┤   ⣿⣿⣿⣿⣿⣿⡇",
        "   │   ⣿⣿⣿⣿⣿⣿⡇",
        " 5 ┤   ⣿⣿⣿⣿⣿⣿⡇                 ⣿⣿⣿⣿⣿⣿⡇",
        " 0 ┤   ⣿⣿⣿⣿⣿⣿⡇                 ⣿⣿⣿⣿⣿⣿⡇",
        "   └──────┬───────────┬───────────┬─────",
        "        sent        lost      received",
        "                   place",
    ];
    assert_eq!(figure.text(40, 9).lines().collect::<Vec<_>>(), expected);
    for (value, width) in [(f64::NAN, 0.5), (0.0, f64::NAN), (-1.0, -9.0), (1e300, 0.0)] {
        let panel = &mut figure.panels[0];
        panel.y.log = !panel.y.log;
        panel.series[0].points = vec![(value, 1.0), (0.0, value), (7.0, 1.0)];
        panel.series[0].style = Style::Bars(width);
        check(&figure);
    }
}

#[test]
fn odd_data_is_drawn_too() {
    evlbi_testkit::watch();
    let nan = f64::NAN;
    for style in [Style::Line, Style::Dots] {
        for points in [
            vec![],
            vec![(1.0, 2.0)],
            vec![(nan, nan), (1.0, nan), (f64::INFINITY, 1.0)],
            vec![(0.0, 5.0), (1.0, 5.0)],
            vec![(0.0, 0.0), (0.0, 0.0)],
            vec![(0.0, f64::MAX), (1.0, f64::MIN), (2.0, f64::MIN_POSITIVE)],
            vec![(1.0, 1.0), (1.0 + f64::EPSILON, 1.0 + f64::EPSILON)],
            vec![(-1.0, -3.0), (nan, 0.0), (1.0, 1e12)],
            (0..100_000)
                .map(|x| (f64::from(x), f64::from(x % 777)))
                .collect(),
        ] {
            let mut figure = one(points, style);
            check(&figure);
            figure.panels[0].y.log = true;
            check(&figure);
            figure.panels[0].x.range = Some((3.0, 3.0));
            check(&figure);
        }
    }
    check(&Figure::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_axis_has_a_few_ticks_within_it(
        values in prop::collection::vec(any::<f64>(), 0..5),
        log: bool,
        unit in prop::sample::select(vec![Unit::Bare, Unit::Si("s"), Unit::Degrees]),
        ticks in 0..20usize,
    ) {
        let axis = Axis { log, ..Axis::new("label", unit) };
        let scale = Scale::new(&axis, values.iter().copied(), true, ticks);
        prop_assert!(scale.ticks().len() <= 10 * ticks.max(1) + 10);
        for (place, label) in scale.ticks() {
            prop_assert!((-1e-3..1.001).contains(place), "{place} {label} {scale:?}");
        }
        for value in values {
            prop_assert!(scale.place(value).is_none_or(f64::is_finite));
        }
    }
}

#[test]
fn ticks_are_round_and_units_have_prefixes() {
    let show = |axis: &Axis, values: &[f64], margin| {
        let scale = Scale::new(axis, values.iter().copied(), margin, 5);
        let labels: Vec<&str> = scale
            .ticks()
            .iter()
            .map(|(_, label)| label.as_str())
            .collect();
        format!("{}: {}", scale.label(), labels.join(" "))
    };
    let delay = Axis::new("delay", Unit::Si("s"));
    assert_eq!(
        show(&delay, &[-4e-6, 4e-6], false),
        "delay (µs): -4 -2 0 2 4"
    );
    assert_eq!(
        show(&delay, &[0.0, 7200.0], false),
        "delay (s): 0 2000 4000 6000"
    );
    let frequency = Axis::new("frequency", Unit::Si("Hz"));
    assert_eq!(
        show(&frequency, &[8.4e9, 8.416e9], false),
        "frequency (GHz): 8.400 8.405 8.410 8.415"
    );
    let amplitude = Axis::new("amplitude", Unit::Bare);
    assert_eq!(
        show(&amplitude, &[1e-5, 1e-4], true),
        "amplitude (10^-6): 0 20 40 60 80 100"
    );
    assert_eq!(
        show(&amplitude, &[3.0, 41.0], true),
        "amplitude: 0 10 20 30 40"
    );
    let phase = Axis {
        range: Some((-180.0, 180.0)),
        ..Axis::new("phase", Unit::Degrees)
    };
    assert_eq!(show(&phase, &[], true), "phase (deg): -180 -90 0 90 180");
    let log = Axis {
        log: true,
        ..Axis::new("count", Unit::Bare)
    };
    assert_eq!(show(&log, &[0.3, 3.0], false), "count: 0.5 1 2");
    assert_eq!(
        show(&log, &[0.0, 1.0, 1e4], false),
        "count: 1 10 100 1000 10000"
    );
}

#[test]
fn values_are_formatted_to_two_digits_of_their_error() {
    assert_eq!(measured(1.23456e-6, 5.3e-11, "s"), "1.234560 ± 0.000053 µs");
    assert_eq!(measured(-0.1234, 0.0021, "Hz"), "-123.4 ± 2.1 mHz");
    assert_eq!(measured(0.0, 0.0, "s"), "0.000000 s");
    assert_eq!(measured(f64::NAN, f64::NAN, "s"), "NaN s");
}

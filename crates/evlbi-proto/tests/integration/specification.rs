//! The specification in the documentation has the numbers of the code.

use evlbi_core::time::Nanos;
use evlbi_proto::safe::message::{
    BEAT, Beat, CODE, HEADER, Header, MAX_RUNS, MAX_SETS, Message, PROBE, REPORT, RUN, Received,
    Report, Run, SET, probe, read,
};
use evlbi_proto::safe::*;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/safeudp.md");
    std::fs::read_to_string(path).unwrap()
}

/// Returns the cells of the table rows of a section.
fn rows<'p>(page: &'p str, title: &str) -> Vec<Vec<&'p str>> {
    let start = page
        .find(title)
        .unwrap_or_else(|| panic!("no section {title}"));
    let section = &page[start + title.len()..];
    let end = section.find("\n#").unwrap_or(section.len());
    let rows = section[..end].lines().filter(|line| line.starts_with("| "));
    rows.skip(1)
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Fields follow each other without gaps, up to `end`; then come `each` bytes for each further entry.
fn assert_layout(page: &str, title: &str, (start, end, each): (usize, usize, usize)) {
    let mut next = start;
    for row in rows(page, title) {
        assert_eq!(row[0].parse::<usize>().unwrap(), next, "{title}: {row:?}");
        match row[1].strip_suffix(" each") {
            Some(length) => assert_eq!((next, length.parse()), (end, Ok(each)), "{title}"),
            None => next += row[1].parse::<usize>().unwrap(),
        }
    }
    assert_eq!(next, end, "{title}");
}

/// The page has these bytes in words of eight, four per line.
fn assert_vector(page: &str, bytes: &[u8]) {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = |line: &[u8]| line.chunks(8).map(word).collect::<Vec<String>>().join(" ");
    let vector = bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n");
    assert!(page.contains(&format!("\n{vector}\n")), "{vector}");
}

#[test]
fn fields_are_where_the_specification_says() {
    let page = page();
    assert_layout(&page, "### 4.1", (0, HEADER, 0));
    assert_layout(&page, "### 4.3", (HEADER, BEAT, SET));
    assert_layout(&page, "### 4.4", (HEADER, REPORT, RUN));
    let key = Key::new(&[7; 32]);
    let header = Header {
        flow: 1,
        number: 2,
        departure: Nanos(3),
        ..Header::default()
    };
    assert_eq!(PROBE, HEADER + CODE);
    assert_vector(&page, &probe(&header, 0, &key));
    // The fields whose places a reader cannot guess, by numbers that no other field has.
    let beat = Beat {
        header,
        instance: 4,
        first: 5,
        next: 20,
        declared: 19,
        shed: 11,
        not_sent: 7,
        probes: 13,
        rate: 14,
        round_trip: Nanos(15),
        kept: 16,
        size: 17,
        state: State::Held,
        sets: vec![
            Set::run(3, 8),
            Set {
                first: 9,
                end: 19,
                stride: 4,
                length: 2,
            },
        ],
    };
    let bytes = beat.write(&key);
    assert_vector(&page, &bytes);
    assert_eq!(read(&bytes, &key), Ok(Message::Beat(beat)));
    let number = |at: usize, length: usize| {
        let bytes = &bytes[at..at + length];
        bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    for (name, value) in [
        ("offered", 20),
        ("declared", 19),
        ("shed", 11),
        ("not sent", 7),
        ("probes sent", 13),
        ("bits of data per second", 14),
        ("R; 0", 15),
        ("fraction of the data", 16),
        ("bytes of data in", 17),
        ("state (", 6),
        ("number of sets", 2),
    ] {
        let rows = rows(&page, "### 4.3");
        let row = rows.iter().find(|row| row[2].starts_with(name)).unwrap();
        let at = row[0].parse().unwrap();
        assert_eq!(number(at, row[1].parse().unwrap()), value, "{name}");
    }
    let report = Report {
        header,
        instance: 4,
        beat: 12,
        beat_departure: Nanos(13),
        beat_arrival: Nanos(14),
        held: Nanos(15),
        covered: 30,
        missed: 20,
        host: 5,
        unattributed: 6,
        shed: 7,
        highest: 31,
        arrivals: Received {
            received: 21,
            unique: 22,
            duplicates: 23,
            reordered: 24,
            late: 25,
            bytes: 26,
            marked: 27,
            capable: 28,
        },
        probe_highest: 9,
        probes: 8,
        runs: [(10, 3), (15, 2)]
            .map(|(first, length)| Run { first, length })
            .into(),
    };
    let bytes = report.write(&key);
    assert_vector(&page, &bytes);
    assert_eq!(read(&bytes, &key), Ok(Message::Report(report)));
    let number = |at: usize| u64::from(bytes[at + 7]);
    for (place, value) in [
        (5, 30),
        (6, 20),
        (7, 5),
        (8, 6),
        (9, 7),
        (10, 31),
        (12, 9),
        (13, 8),
    ] {
        let rows = rows(&page, "### 4.4");
        assert_eq!(
            number(rows[place][0].parse().unwrap()),
            value,
            "{:?}",
            rows[place]
        );
    }
}

#[test]
fn constants_are_those_of_the_specification() {
    let page = page();
    let ms = |span: Nanos| format!("{} ms", span.0 / 1_000_000);
    let s = |span: Nanos| format!("{} s", span.0 / 1_000_000_000);
    let steps = STEPS.map(|step| step.to_string()).join(", ");
    for text in [
        format!("in sixteenths: {steps} |"),
        format!("Beat (sender, every {}", ms(BEAT_INTERVAL)),
        format!("Report (receiver, every max({}, R)", ms(REPORT_INTERVAL)),
        format!("number of sets, at most {MAX_SETS} |"),
        format!("number of runs, at most {MAX_RUNS} |"),
        format!("more than {EVENT_ROUND_TRIPS} R after"),
        format!("V = max({}, {WINDOW_ROUND_TRIPS} R)", s(MIN_WINDOW)),
        format!("q > {SEVERE_FLOWS}, or f > {SEVERE_LOSS}"),
        format!("{WEIGHT} by default, from {MIN_WEIGHT} to {MAX_WEIGHT}"),
        format!("if none has arrived after {}", s(START)),
        format!("max({}, {RAMP_ROUND_TRIPS} R) each", s(RAMP_TIME)),
        format!("no action for {}", s(HOST_GRACE)),
        format!("({} by default", s(GRACE)),
        format!("H = {} (up", s(MIN_HOLD)),
        format!("H doubles (up to {})", s(MAX_HOLD)),
        format!(
            "After {}, doubled with each stop up to {}",
            s(MIN_BREAK),
            s(MAX_BREAK)
        ),
        format!("for max({}, {SILENT_REPORTS} reports + 2 R)", s(SILENCE)),
        format!("for {}: breaker", s(STOP)),
        format!("A number is due {} after", ms(HOLD)),
        format!("blocks of {} are kept", ms(BLOCK)),
        format!(
            "at most 1,000 reports of {} bytes per second",
            REPORT + CODE
        ),
    ] {
        assert!(page.contains(&text), "{text}");
    }
    let timers = rows(&page, "### 7.1").concat().join(" | ");
    for text in [
        format!("{}; max({}, R)", ms(BEAT_INTERVAL), ms(REPORT_INTERVAL)),
        format!("after a beat | {}", ms(HOLD)),
        format!("the flow fails | {}", s(START)),
        format!("max({}, {RAMP_ROUND_TRIPS} R);", s(RAMP_TIME)),
        format!("max({}, {WINDOW_ROUND_TRIPS} R);", s(MIN_WINDOW)),
        format!("by default | {}", s(GRACE)),
        format!("are shed | {}", s(HOST_GRACE)),
        format!("{}, {}; 0.4 H", s(MIN_HOLD), s(MAX_HOLD)),
        format!(
            "max({}, {SILENT_REPORTS} reports + 2 R), {}",
            s(SILENCE),
            s(STOP)
        ),
        format!("at most | {}, {}", s(MIN_BREAK), s(MAX_BREAK)),
    ] {
        assert!(timers.contains(&text), "{text}: {timers}");
    }
    let numbers = [CLEAN_WINDOWS, BAD_WINDOWS, LAST_WINDOWS, SEVERE_WINDOWS];
    assert_eq!(
        (numbers, TRIAL_BAD_WINDOWS, TRIAL_WINDOWS),
        ([3, 3, 5, 2], 2, 5)
    );
    assert_eq!(RAMP, [0.125, 0.25, 0.5, 1.0]);
    for row in rows(&page, "## 7") {
        let number: u8 = row[0].parse().unwrap();
        assert_eq!(State::from_byte(number).map(State::name), Some(row[1]));
    }
    assert_eq!(rows(&page, "## 7").len(), 10);
}

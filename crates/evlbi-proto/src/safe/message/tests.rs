//! Messages are read as written, and anything else is rejected.

use proptest::prelude::*;

use super::*;

fn key() -> Key {
    Key::new(&[7; 32])
}

fn beat() -> impl Strategy<Value = Beat> {
    let sets = proptest::collection::vec((1u64..1000, 1u64..1000, 1u32..50), 0..MAX_SETS);
    (any::<[u64; 8]>(), any::<u32>(), any::<u16>(), 0u8..10, sets).prop_map(
        |(numbers, flags, size, state, sets)| {
            let [
                flow,
                number,
                departure,
                instance,
                first,
                probes,
                rate,
                round_trip,
            ] = numbers;
            let mut end = 0;
            let sets: Vec<Set> = sets
                .into_iter()
                .map(|(gap, length, stride)| {
                    let first = end + gap;
                    end = first + length;
                    let is_run = stride % 3 == 0;
                    Set {
                        first,
                        end,
                        stride: if is_run { 0 } else { stride },
                        length: if is_run { 0 } else { stride.div_ceil(2) },
                    }
                })
                .collect();
            Beat {
                header: Header {
                    flags,
                    flow,
                    number,
                    departure: Nanos(departure),
                },
                instance,
                first,
                next: end + 10,
                declared: end,
                shed: end / 2,
                not_sent: end / 3,
                probes,
                rate,
                round_trip: Nanos(round_trip),
                kept: flags % 1_000_000_001,
                size,
                state: State::from_byte(state).unwrap(),
                sets,
            }
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let runs = proptest::collection::vec((0u64..4, 1u32..3), 0..MAX_RUNS);
    (
        any::<[u64; 8]>(),
        any::<[u64; 8]>(),
        any::<[u32; 6]>(),
        runs,
    )
        .prop_map(|(numbers, arrivals, small, runs)| {
            let [
                flow,
                number,
                departure,
                instance,
                beat,
                beat_departure,
                beat_arrival,
                held,
            ] = numbers;
            let [
                received,
                unique,
                duplicates,
                reordered,
                late,
                bytes,
                marked,
                capable,
            ] = arrivals;
            let [host, unattributed, shed, covered, probes, flags] = small;
            let [host, unattributed, shed] = [host, unattributed, shed].map(u64::from);
            let missed = host + unattributed + 6;
            Report {
                header: Header {
                    flags,
                    flow,
                    number,
                    departure: Nanos(departure),
                },
                instance,
                beat,
                beat_departure: Nanos(beat_departure),
                beat_arrival: Nanos(beat_arrival),
                held: Nanos(held),
                covered: missed + shed + u64::from(covered),
                missed,
                host,
                unattributed,
                shed,
                highest: number,
                arrivals: Received {
                    received,
                    unique,
                    duplicates,
                    reordered,
                    late,
                    bytes,
                    marked,
                    capable,
                },
                probe_highest: u64::from(probes) * 2,
                probes: u64::from(probes),
                runs: runs
                    .into_iter()
                    .map(|(first, length)| Run { first, length })
                    .collect(),
            }
        })
}

fn message() -> impl Strategy<Value = (Vec<u8>, Message)> {
    let probes =
        (any::<[u64; 3]>(), 0usize..2000).prop_map(|([flow, number, departure], length)| {
            let header = Header {
                flags: 0,
                flow,
                number,
                departure: Nanos(departure),
            };
            (probe(&header, length, &key()), Message::Probe(header))
        });
    prop_oneof![
        beat().prop_map(|beat| (beat.write(&key()), Message::Beat(beat))),
        report().prop_map(|report| (report.write(&key()), Message::Report(report))),
        probes,
    ]
}

/// Bytes made with Python's hmac and struct: the same fields, and the first 16 bytes of the code.
#[test]
fn messages_have_these_bytes() {
    let header = Header {
        flags: 0,
        flow: 1,
        number: 2,
        departure: Nanos(3),
    };
    let bytes = probe(&header, 0, &key());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "4556475000000000",
            "0000000000000001",
            "0000000000000002",
            "0000000000000003",
            "05bb15c23561030ce71477b48fb4d03e",
        )
    );
}

proptest! {
    #[test]
    fn messages_are_read_as_written((bytes, message) in message()) {
        prop_assert!(bytes.len() <= 2000);
        prop_assert_eq!(read(&bytes, &key()), Ok(message));
    }

    /// One bit changed, bytes cut or added, another key: none is accepted. The filler of probes is free.
    #[test]
    fn changed_messages_are_rejected((bytes, message) in message(), place: prop::sample::Index, bit in 0u8..8, cut in 1usize..40) {
        let other = Key::new(&[8; 32]);
        prop_assert_eq!(read(&bytes, &other), Err(Rejected::Forged));
        let mut changed = bytes.clone();
        let covered = match message {
            Message::Probe(_) => PROBE,
            _ => bytes.len(),
        };
        changed[place.index(covered)] ^= 1 << bit;
        prop_assert!(read(&changed, &key()).is_err());
        let shorter = &bytes[..covered.saturating_sub(cut)];
        prop_assert!(read(shorter, &key()).is_err());
        if covered == bytes.len() && covered != PROBE {
            let longer = [&bytes[..], &[0; 3]].concat();
            prop_assert!(read(&longer, &key()).is_err());
        }
    }

    #[test]
    fn other_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..1200), name in 0usize..4) {
        let mut bytes = bytes;
        let names = [BEAT_NAME, REPORT_NAME, PROBE_NAME];
        if let (Some(name), true) = (names.get(name), bytes.len() >= 4) {
            bytes[..4].copy_from_slice(name);
        }
        prop_assert!(read(&bytes, &key()).is_err());
    }
}

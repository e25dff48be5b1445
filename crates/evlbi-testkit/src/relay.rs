//! A relay between a sender and a receiver on loopback: it damages the stream, and knows the ground truth.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;

use evlbi_core::path::{Impairment, Path};
use evlbi_net::udp::{self, Listen, Receiver, ReceiverOptions};
use serde_json::Value;

use crate::processor;
use crate::result::{assert_numbers, number};
use crate::until::WATCHDOG;

/// Datagrams that a relay forwarded: their numbers in the order of departure, duplicates included.
#[derive(Debug, Default)]
pub struct Passed {
    /// All of them.
    pub numbers: Vec<u64>,
}

/// Ground truth of a relay: the receiver's account is compared with it.
#[derive(Debug, PartialEq, Eq)]
pub struct Truth {
    /// Lowest number that was forwarded.
    pub first: u64,
    /// Highest number that was forwarded.
    pub last: u64,
    /// Number of forwarded datagrams.
    pub received: u64,
    /// Number of them without duplicates.
    pub unique: u64,
    /// Number of missing ones between the first and the last.
    pub lost: u64,
    /// Number of duplicates.
    pub duplicates: u64,
    /// Number of datagrams that left after one with a higher number.
    pub reordered: u64,
    /// Lengths of runs of missing numbers, and the count of each length.
    pub runs: Vec<(u64, u64)>,
    /// The missing numbers.
    pub missing: Vec<u64>,
}

impl Passed {
    /// Returns the number of forwarded datagrams.
    pub fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Returns the ground truth.
    ///
    /// # Panics
    /// Panics if nothing was forwarded.
    pub fn truth(&self) -> Truth {
        let mut seen = BTreeSet::new();
        let (mut duplicates, mut reordered) = (0, 0);
        for &number in &self.numbers {
            let behind = seen.last().is_some_and(|last| number < *last);
            if !seen.insert(number) {
                duplicates += 1;
            } else if behind {
                reordered += 1;
            }
        }
        let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
        let missing: Vec<u64> = (first..=last).filter(|n| !seen.contains(n)).collect();
        let mut runs = BTreeMap::new();
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            *runs.entry(run.len() as u64).or_default() += 1;
        }
        Truth {
            first,
            last,
            received: self.numbers.len() as u64,
            unique: seen.len() as u64,
            lost: missing.len() as u64,
            duplicates,
            reordered,
            runs: runs.into_iter().collect(),
            missing,
        }
    }
}

impl Truth {
    /// Asserts that every number of the receiver's result equals the ground truth, and that nothing was lost in this host.
    #[track_caller]
    pub fn agrees_with(&self, result: &Value) {
        assert_numbers(
            result,
            &[
                ("first_seq", self.first),
                ("last_seq", self.last),
                ("expected", self.unique + self.lost),
                ("received", self.received),
                ("unique", self.unique),
                ("lost", self.lost),
                ("duplicates", self.duplicates),
                ("reordered", self.reordered),
                ("foreign", 0),
                ("restarts", 0),
                ("late", 0),
                ("host_lost", 0),
                ("network_lost", self.lost),
                ("unattributed", 0),
                ("ring_full", 0),
            ],
        );
        let runs: Vec<(u64, u64)> = result["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| (number(run, "length"), number(run, "count")))
            .collect();
        assert_eq!(runs, self.runs);
        let intervals: Vec<u64> = result["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|gap| number(gap, "first")..=number(gap, "last"))
            .collect();
        assert_eq!(intervals, self.missing);
    }
}

/// A running relay between a sender and a receiver.
pub struct Relay {
    /// Address at which it receives datagrams.
    pub address: SocketAddr,
    handle: JoinHandle<Passed>,
}

impl Relay {
    /// Forwards numbered datagrams to `to`, damaged by `impairment`, until as many have arrived as there are up to number `last`. The
    /// first and the last number are spared, so that no head or tail is lost.
    pub fn start(to: SocketAddr, impairment: Impairment, seed: u64, last: u64) -> Relay {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = Listen::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut receiver = Receiver::bind(&[here], &ReceiverOptions::default()).unwrap();
        let address = receiver.local_addresses().next().unwrap();
        let handle = std::thread::spawn(move || {
            processor::stay();
            let mut path = Path::new(impairment, seed);
            let mut passed = Passed::default();
            let mut pass = |packet: &[u8]| {
                passed.numbers.push(sequence(packet));
                socket.send_to(packet, to).unwrap();
            };
            let mut received = udp::Received::new();
            let mut left = last + 1;
            while left > 0 {
                assert!(
                    receiver.wait(WATCHDOG).unwrap(),
                    "{left} datagrams do not come"
                );
                receiver.receive(&mut received).unwrap();
                for datagram in received.batch().datagrams() {
                    left -= 1;
                    let number = sequence(datagram.bytes);
                    if number == 0 || number == last {
                        path.flush(&mut pass);
                        pass(datagram.bytes);
                    } else {
                        path.push(number, datagram.bytes, &mut pass);
                    }
                }
            }
            path.flush(&mut pass);
            passed
        });
        Relay { address, handle }
    }

    /// Returns the URL to send to.
    pub fn url(&self) -> String {
        format!("udp://{}", self.address)
    }

    /// Waits until everything was forwarded or damaged; returns what was forwarded.
    pub fn finish(self) -> Passed {
        self.handle.join().unwrap()
    }
}

fn sequence(packet: &[u8]) -> u64 {
    u64::from_le_bytes(packet[..8].try_into().unwrap())
}

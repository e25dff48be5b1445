//! A relay between a sender and a receiver on loopback: it harms what it passes on, and knows the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;

use evlbi_core::path::{Impairment, Path};
use evlbi_net::udp::{self, Listen, Receiver, ReceiverOptions};
use serde_json::Value;

use crate::processor;
use crate::result::{assert_numbers, number};
use crate::until::WATCHDOG;

/// What a relay did: the numbers in the order in which they left, second copies included.
#[derive(Debug, Default)]
pub struct Passed {
    /// All of them.
    pub numbers: Vec<u64>,
}

/// What left the relay: the receiver's account is compared with it.
#[derive(Debug, PartialEq, Eq)]
pub struct Truth {
    /// Lowest number that left.
    pub first: u64,
    /// Highest number that left.
    pub last: u64,
    /// How many datagrams left.
    pub received: u64,
    /// How many of them were no second copy.
    pub unique: u64,
    /// How many between the first and the last did not leave.
    pub lost: u64,
    /// How many were second copies.
    pub duplicates: u64,
    /// How many left behind one of a higher number.
    pub reordered: u64,
    /// Lengths of runs of numbers that did not leave, and how many there are of each.
    pub runs: Vec<(u64, u64)>,
    /// The numbers that did not leave.
    pub missing: Vec<u64>,
}

impl Passed {
    /// How many datagrams left.
    pub fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// The truth of it.
    ///
    /// # Panics
    /// When nothing left.
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
    /// Every number of the receiver's result equals the truth, and nothing was lost in this host.
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

/// A relay at work between a sender and a receiver.
pub struct Relay {
    /// Where it takes datagrams.
    pub address: SocketAddr,
    handle: JoinHandle<Passed>,
}

impl Relay {
    /// Passes numbered datagrams on to `to`, harmed as `impairment` says, until as many have come as there are up to number
    /// `last`. The first and the last number are spared, so that the truth has no lost head or tail.
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

    /// Where to send to.
    pub fn url(&self) -> String {
        format!("udp://{}", self.address)
    }

    /// All that was sent has been passed on or harmed; what was it?
    pub fn finish(self) -> Passed {
        self.handle.join().unwrap()
    }
}

fn sequence(packet: &[u8]) -> u64 {
    u64::from_le_bytes(packet[..8].try_into().unwrap())
}

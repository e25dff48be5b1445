//! Attribution of lost datagrams to places, by the counters of both hosts during the test.

use serde::{Deserialize, Serialize};

/// Place on the path where a datagram can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossLocation {
    /// The sending host: its kernel refused it, or the queue before the NIC was full.
    SenderHost,
    /// The sending NIC or its driver.
    SenderNic,
    /// The receiving NIC, because the host did not fetch it in time.
    ReceiverNic,
    /// The receiving kernel, before socket lookup: the backlog of a CPU was full.
    ReceiverBacklog,
    /// The receiving kernel: the program had not made room in the socket's buffer in time.
    ReceiverSocket,
}

/// A counter that may have counted lost datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Place of the counter.
    pub place: LossLocation,
    /// Its count.
    pub counted: u64,
    /// Maximum number of datagrams per count: more than one if the kernel handles joined datagrams.
    pub each: u64,
    /// Whether it counts only this stream, or nothing else was there to count.
    pub is_ours: bool,
}

/// Number of lost datagrams by place. The places sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attribution {
    /// In the sending host, before its NIC.
    pub sender_host: u64,
    /// In the sending NIC.
    pub sender_nic: u64,
    /// Between the NICs: not counted by any host.
    pub network: u64,
    /// In the receiving NIC.
    pub receiver_nic: u64,
    /// In the receiving kernel's backlog.
    pub receiver_backlog: u64,
    /// In the receiving socket's buffer.
    pub receiver_socket: u64,
    /// At an unknown place.
    pub unattributed: u64,
}

impl Attribution {
    /// Assigns `lost` datagrams to the suspects, in the order of the path. Counts that may include others' packets are not assigned,
    /// nor more than the loss.
    pub fn new(lost: u64, suspects: &[Suspect]) -> Attribution {
        let mut all = Attribution::default();
        let mut rest = lost;
        // Certain counts first: a counter of the whole host must not claim the known drops of a socket.
        let (ours, others): (Vec<Suspect>, Vec<Suspect>) =
            suspects.iter().partition(|suspect| suspect.is_ours);
        for suspect in ours.into_iter().chain(others) {
            let counted = suspect.counted;
            let most = rest.min(counted.saturating_mul(suspect.each.max(1)));
            let least = rest.min(counted) * u64::from(suspect.is_ours);
            *all.at(suspect.place) += least;
            all.unattributed += most - least;
            rest -= most;
        }
        all.network = rest;
        all
    }

    fn at(&mut self, place: LossLocation) -> &mut u64 {
        match place {
            LossLocation::SenderHost => &mut self.sender_host,
            LossLocation::SenderNic => &mut self.sender_nic,
            LossLocation::ReceiverNic => &mut self.receiver_nic,
            LossLocation::ReceiverBacklog => &mut self.receiver_backlog,
            LossLocation::ReceiverSocket => &mut self.receiver_socket,
        }
    }

    /// Returns the losses in either host or its NIC.
    pub fn in_hosts(&self) -> u64 {
        self.sender_host
            + self.sender_nic
            + self.receiver_nic
            + self.receiver_backlog
            + self.receiver_socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn suspect(place: LossLocation, counted: u64, each: u64, is_ours: bool) -> Suspect {
        Suspect {
            place,
            counted,
            each,
            is_ours,
        }
    }

    #[test]
    fn losses_that_no_host_counted_are_the_networks() {
        let all = Attribution::new(100, &[]);
        assert_eq!((all.network, all.in_hosts(), all.unattributed), (100, 0, 0));
        let suspects = [
            suspect(LossLocation::SenderHost, 10, 1, true),
            suspect(LossLocation::ReceiverSocket, 30, 1, true),
        ];
        let all = Attribution::new(100, &suspects);
        assert_eq!(
            (all.sender_host, all.receiver_socket, all.network),
            (10, 30, 60)
        );
    }

    #[test]
    fn losses_that_may_be_of_other_flows_are_not_attributed() {
        let suspects = [
            suspect(LossLocation::ReceiverBacklog, 50, 1, false),
            suspect(LossLocation::ReceiverSocket, 30, 1, true),
        ];
        let all = Attribution::new(40, &suspects);
        assert_eq!(
            (all.receiver_socket, all.unattributed, all.network),
            (30, 10, 0)
        );
        // Drops of up to 40 joined datagrams each.
        let all = Attribution::new(100, &[suspect(LossLocation::ReceiverSocket, 2, 40, true)]);
        assert_eq!(
            (all.receiver_socket, all.unattributed, all.network),
            (2, 78, 20)
        );
    }

    proptest! {
        #[test]
        fn the_parts_sum_to_the_whole(
            lost: u64, counted: [u64; 5], each in 0u64..100, ours in 0u8..32,
        ) {
            let places = [LossLocation::SenderHost, LossLocation::SenderNic, LossLocation::ReceiverNic, LossLocation::ReceiverBacklog, LossLocation::ReceiverSocket];
            let suspects: Vec<Suspect> = places.iter().enumerate()
                .map(|(at, place)| suspect(*place, counted[at], each, ours >> at & 1 == 1))
                .collect();
            let all = Attribution::new(lost, &suspects);
            prop_assert_eq!(lost, all.in_hosts() + all.network + all.unattributed);
        }
    }
}

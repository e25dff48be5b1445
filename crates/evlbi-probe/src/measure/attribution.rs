//! Where lost datagrams were lost, by what both hosts counted meanwhile.

use serde::{Deserialize, Serialize};

/// Where on its way a datagram can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossLocation {
    /// In the sending host: its kernel refused it, or the queue before the card was full.
    SenderHost,
    /// In the sending card or its driver.
    SenderNic,
    /// In the receiving card, from which the host did not fetch it in time.
    ReceiverNic,
    /// In the receiving kernel, before a socket was found for it: the backlog of a core was full.
    ReceiverBacklog,
    /// In the receiving kernel: the program had not made room in the socket's buffer in time.
    ReceiverSocket,
}

/// A counter that may have counted what was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Where it counts.
    pub place: LossLocation,
    /// What it counted.
    pub counted: u64,
    /// Datagrams that one of these may stand for: more than one where the kernel handles them joined.
    pub each: u64,
    /// Whether it counts this stream alone, or nothing else was there that it could have counted.
    pub is_ours: bool,
}

/// Where the lost datagrams were lost. The parts sum to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attribution {
    /// In the sending host, before its card.
    pub sender_host: u64,
    /// In the sending card.
    pub sender_nic: u64,
    /// Between the cards: what no counter of a host accounts for.
    pub network: u64,
    /// In the receiving card.
    pub receiver_nic: u64,
    /// In the receiving kernel's backlog.
    pub receiver_backlog: u64,
    /// In the receiving socket's buffer.
    pub receiver_socket: u64,
    /// What the counters cannot tell.
    pub unattributed: u64,
}

impl Attribution {
    /// Tells the places of `lost` datagrams by the suspects, those along the way first. What a suspect may have counted of
    /// others' packets is not attributed, and no more than was lost is.
    pub fn new(lost: u64, suspects: &[Suspect]) -> Attribution {
        let mut all = Attribution::default();
        let mut rest = lost;
        // What is certain comes first: a counter of the whole host must not take what a socket is known to have dropped.
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

    /// Lost in either host or its card.
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
    fn what_no_host_counted_the_network_lost() {
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
    fn what_may_be_others_is_not_attributed() {
        let suspects = [
            suspect(LossLocation::ReceiverBacklog, 50, 1, false),
            suspect(LossLocation::ReceiverSocket, 30, 1, true),
        ];
        let all = Attribution::new(40, &suspects);
        assert_eq!(
            (all.receiver_socket, all.unattributed, all.network),
            (30, 10, 0)
        );
        // A drop of up to 40 joined datagrams.
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

//! What a cell does to packets, as the plan says.

use std::sync::Arc;

use crate::rate::BitRate;
use crate::time::Nanos;

/// Bytes on an Ethernet of each packet besides its header: check sequence, preamble and gap.
pub const ETHERNET_OVERHEAD: u32 = 24;

/// The law of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Packets come later.
    Delay {
        /// All of them by so much.
        delay: Nanos,
        /// And each by something of its own.
        jitter: Nanos,
        /// How that is distributed.
        shape: Shape,
        /// Whether a packet may overtake another by it.
        reorders: bool,
    },
    /// Packets leave one after the other, at a bit rate, and wait in a buffer.
    Rate {
        /// Bits per second on the wire.
        rate: BitRate,
        /// Bytes that may wait; what finds no room is dropped (drop tail).
        buffer: u64,
        /// Bytes on the wire of each packet besides those that are seen here.
        overhead: u32,
        /// Packets that would wait longer are marked, if they may be (ECN).
        mark: Option<Nanos>,
    },
    /// Longer packets are dropped.
    Mtu {
        /// Longest packet in bytes, without link-layer header.
        bytes: u32,
        /// Whether the sender is told (ICMP).
        tells: bool,
    },
    /// Packets are lost.
    Loss(Loss),
    /// What exceeds a rate is dropped: a token bucket.
    Police {
        /// Bits per second.
        rate: BitRate,
        /// Bytes that may come at once.
        burst: u64,
        /// As in [`Law::Rate`].
        overhead: u32,
    },
    /// Packets are delivered twice.
    Duplicate {
        /// Fraction.
        fraction: f64,
    },
    /// Packets are held back.
    Reorder {
        /// Fraction.
        fraction: f64,
        /// Until what has happened.
        until: Until,
    },
    /// A bit is changed.
    Corrupt {
        /// Fraction of the packets.
        fraction: f64,
    },
    /// Congestion is marked, where packets may be marked.
    Mark {
        /// Fraction of the packets.
        fraction: f64,
    },
}

/// Distribution of a jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// From zero to the jitter, each as likely.
    Uniform,
    /// The absolute value of a normal deviate of that standard deviation.
    Normal,
    /// Pareto of shape 3 from zero on, whose mean is the jitter: rarely much later.
    Pareto,
}

/// How long a packet is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until so many later packets have passed, or for a tenth of a second if none come.
    Passed(u32),
    /// For so long.
    Time(Nanos),
}

/// Which packets are lost.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// One in so many, from the `first` (counted from 0) on.
    Every {
        /// Distance of the lost packets.
        period: u64,
        /// Number of the first one.
        first: u64,
    },
    /// The next packet at or after each of these times since the start, ascending.
    At(Arc<[Nanos]>),
    /// Each by itself.
    Random {
        /// Fraction.
        fraction: f64,
    },
    /// The model of Gilbert and Elliott: a good and a bad state, changing with these probabilities at each packet.
    Bursts {
        /// From good to bad.
        begins: f64,
        /// From bad to good.
        ends: f64,
        /// Loss in the good state.
        good: f64,
        /// Loss in the bad state.
        bad: f64,
    },
    /// A fraction within times that come and go.
    Within {
        /// When.
        times: Times,
        /// Fraction.
        fraction: f64,
    },
    /// A fraction while packets come faster than this, as a switch that cannot keep up at line rate.
    Above {
        /// Bits per second.
        rate: BitRate,
        /// Time over which the rate is looked at.
        window: Nanos,
        /// As in [`Law::Rate`].
        overhead: u32,
        /// Fraction.
        fraction: f64,
    },
}

/// Times that come and go, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Once.
    Once {
        /// Beginning.
        from: Nanos,
        /// End.
        to: Nanos,
    },
    /// Every period.
    Periodic {
        /// Distance of the beginnings.
        period: Nanos,
        /// How long each time.
        length: Nanos,
        /// First beginning.
        first: Nanos,
    },
    /// By chance, exponentially distributed.
    Episodes {
        /// Mean length.
        on: Nanos,
        /// Mean time between them.
        off: Nanos,
    },
}

impl Law {
    /// Whether packets may leave in another order than they came in.
    pub fn disorders(&self) -> bool {
        match self {
            Law::Delay { reorders, .. } => *reorders,
            Law::Reorder { .. } => true,
            _ => false,
        }
    }
}

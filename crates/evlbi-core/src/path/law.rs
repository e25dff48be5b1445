//! Effects of a cell on packets, as given by the plan.

use std::sync::Arc;

use crate::rate::BitRate;
use crate::time::Nanos;

/// Bytes on Ethernet for each packet besides its header: check sequence, preamble and gap.
pub const ETHERNET_OVERHEAD: u32 = 24;

/// Law of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Packets are delayed.
    Delay {
        /// Delay of all packets.
        delay: Nanos,
        /// Scale of the random delay added to each packet.
        jitter: Nanos,
        /// Distribution of the random delay.
        shape: Shape,
        /// Whether packets may overtake each other.
        reorders: bool,
    },
    /// Packets leave one after the other at a bit rate, and wait in a buffer.
    Rate {
        /// Bits per second on the wire.
        rate: BitRate,
        /// Size of the buffer in bytes; packets that find no room are dropped (drop tail).
        buffer: u64,
        /// Bytes on the wire of each packet besides the length seen here.
        overhead: u32,
        /// Maximum wait; packets that would wait longer are marked, if they may be (ECN).
        mark: Option<Nanos>,
    },
    /// Longer packets are dropped.
    Mtu {
        /// Maximum length of a packet in bytes, without link-layer header.
        bytes: u32,
        /// Whether the sender gets an ICMP message.
        tells: bool,
    },
    /// Packets are lost.
    Loss(Loss),
    /// Packets above a rate are dropped: a token bucket.
    Police {
        /// Bits per second.
        rate: BitRate,
        /// Bytes that may arrive at once.
        burst: u64,
        /// As in [`Law::Rate`].
        overhead: u32,
    },
    /// Packets are duplicated.
    Duplicate {
        /// Fraction of the packets.
        fraction: f64,
    },
    /// Packets are held back.
    Reorder {
        /// Fraction of the packets.
        fraction: f64,
        /// When they are released.
        until: Until,
    },
    /// One bit is changed.
    Corrupt {
        /// Fraction of the packets.
        fraction: f64,
    },
    /// Congestion is marked on packets that may be marked.
    Mark {
        /// Fraction of the packets.
        fraction: f64,
    },
}

/// Distribution of a jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Uniform from zero to the jitter.
    Uniform,
    /// Absolute value of a normal deviate whose standard deviation is the jitter.
    Normal,
    /// Pareto of shape 3 from zero on, whose mean is the jitter: rarely much larger.
    Pareto,
}

/// Release of a packet that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When this many later packets have passed, or after 0.1 s if they do not arrive.
    Passed(u32),
    /// After this time.
    Time(Nanos),
}

/// Choice of lost packets.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Every `period`-th packet, starting with `first` (counted from 0).
    Every {
        /// Distance between lost packets.
        period: u64,
        /// Number of the first lost packet.
        first: u64,
    },
    /// The next packet at or after each of these times since the start, ascending.
    At(Arc<[Nanos]>),
    /// Each packet independently.
    Random {
        /// Fraction.
        fraction: f64,
    },
    /// Gilbert-Elliott model: a good and a bad state, which change with these probabilities at each packet.
    Bursts {
        /// Probability of good to bad.
        begins: f64,
        /// Probability of bad to good.
        ends: f64,
        /// Loss fraction in the good state.
        good: f64,
        /// Loss fraction in the bad state.
        bad: f64,
    },
    /// A fraction of the packets during certain times.
    Within {
        /// Times of loss.
        times: Times,
        /// Loss fraction.
        fraction: f64,
    },
    /// A fraction while packets arrive faster than a rate, as in a switch that cannot keep up at line rate.
    Above {
        /// Bits per second.
        rate: BitRate,
        /// Time over which the rate is measured.
        window: Nanos,
        /// As in [`Law::Rate`].
        overhead: u32,
        /// Loss fraction.
        fraction: f64,
    },
}

/// Recurring or single times since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Once.
    Once {
        /// Start.
        from: Nanos,
        /// End.
        to: Nanos,
    },
    /// Once per period.
    Periodic {
        /// Time between two starts.
        period: Nanos,
        /// Duration of each.
        length: Nanos,
        /// First start.
        first: Nanos,
    },
    /// At random, exponentially distributed.
    Episodes {
        /// Mean duration.
        on: Nanos,
        /// Mean time between two episodes.
        off: Nanos,
    },
}

impl Law {
    /// Returns whether packets may leave in another order than they entered.
    pub fn disorders(&self) -> bool {
        match self {
            Law::Delay { reorders, .. } => *reorders,
            Law::Reorder { .. } => true,
            _ => false,
        }
    }
}

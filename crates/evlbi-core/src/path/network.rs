//! Lines of cells, routes over them, and the packets in flight: what happens when, without a clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::cell::{Cell, Identity, Outcome};
use super::item::Item;
use super::law::Law;
use super::train::{Piece, Train};
use crate::time::Nanos;

/// Packet that leaves the network.
#[derive(Debug)]
pub enum Output<P> {
    /// Segments reached the end of their route.
    Delivered {
        /// Number of the route.
        route: usize,
        /// Packet.
        packet: P,
        /// Segments, and when they arrive.
        piece: Piece,
    },
    /// A segment was longer than a cell allows; its sender must get an ICMP message.
    TooLong {
        /// Packet.
        packet: P,
        /// Maximum length, without link-layer header.
        longest: u32,
    },
}

/// Identifier of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellId {
    stage: usize,
    cell: usize,
}

/// Lines of cells, and the packets in flight on them.
#[derive(Debug)]
pub struct Network<P> {
    /// Cells that are passed one after the other.
    stages: Vec<Vec<Cell<P>>>,
    routes: Vec<Vec<usize>>,
    events: BinaryHeap<Event<P>>,
    /// Number of events so far: events at the same time are handled in the order in which they were added.
    count: u64,
    /// Buffers for items while they pass the cells of a stage, and for what a cell outputs, kept between calls.
    items: Vec<Item<P>>,
    outcome: Outcome<P>,
}

/// Line: what packets pass in one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    stages: Vec<usize>,
    /// Cells of the line, in order.
    pub cells: Vec<CellId>,
}

#[derive(Debug)]
struct Event<P> {
    at: Nanos,
    number: u64,
    what: What<P>,
}

#[derive(Debug)]
enum What<P> {
    Arrives(Item<P>),
    /// Packets are held back until now at the latest.
    Wakes(CellId),
}

impl<P: Clone + Identity> Default for Network<P> {
    fn default() -> Network<P> {
        Network::new()
    }
}

impl<P: Clone + Identity> Network<P> {
    /// Makes an empty network.
    pub fn new() -> Network<P> {
        Network {
            stages: Vec::new(),
            routes: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
            items: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Adds a line of these laws, whose random choices follow from `seed`.
    pub fn line(&mut self, laws: impl IntoIterator<Item = Law>, seed: u64) -> Line {
        let mut line = Line::default();
        let mut open = false;
        for (number, law) in laws.into_iter().enumerate() {
            if !open {
                line.stages.push(self.stages.len());
                self.stages.push(Vec::new());
            }
            // Later cells must see packets in their new order.
            open = !law.disorders();
            let stage = self.stages.len() - 1;
            let cells = &mut self.stages[stage];
            line.cells.push(CellId {
                stage,
                cell: cells.len(),
            });
            let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            cells.push(Cell::new(law, mixed.wrapping_add(number as u64)));
        }
        line
    }

    /// Adds a route over lines.
    pub fn route(&mut self, lines: &[&Line]) -> usize {
        let stages = lines.iter().flat_map(|line| line.stages.iter().copied());
        self.routes.push(stages.collect());
        self.routes.len() - 1
    }

    /// Returns a cell.
    pub fn cell(&self, id: CellId) -> &Cell<P> {
        &self.stages[id.stage][id.cell]
    }

    /// Returns a cell for changes. A law that lets packets overtake may only replace one that does not if no other cell of the
    /// line follows: otherwise, give the cell that law in the plan.
    pub fn cell_mut(&mut self, id: CellId) -> &mut Cell<P> {
        &mut self.stages[id.stage][id.cell]
    }

    /// Sends segments of a packet at their time. [`Network::advance`] outputs the result.
    pub fn offer(&mut self, route: usize, packet: P, train: Train, piece: Piece, link_header: u32) {
        let item = Item {
            packet,
            train,
            piece,
            link_header,
            route,
            position: 0,
        };
        self.push(piece.at, What::Arrives(item));
    }

    /// Returns when the next event is due.
    pub fn next(&self) -> Option<Nanos> {
        self.events.peek().map(|event| event.at)
    }

    /// Handles all events due by `now`; packets that leave go to `output`, in order of time.
    pub fn advance(&mut self, now: Nanos, mut output: impl FnMut(Output<P>)) {
        while self.next().is_some_and(|next| next <= now) {
            let Some(event) = self.events.pop() else {
                return;
            };
            match event.what {
                What::Arrives(item) => self.arrive(item, &mut output),
                What::Wakes(id) => {
                    let mut outcome = Outcome::default();
                    self.cell_mut(id).wake(event.at, &mut outcome);
                    // A cell that holds packets back is the last of its stage.
                    if let Some(wake) = outcome.wake {
                        self.push(wake, What::Wakes(id));
                    }
                    for item in outcome.passed {
                        self.continue_route(item);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, item: Item<P>, output: &mut impl FnMut(Output<P>)) {
        let Some(stage) = self.routes[item.route].get(item.position).copied() else {
            output(Output::Delivered {
                route: item.route,
                packet: item.packet,
                piece: item.piece,
            });
            return;
        };
        let mut items = std::mem::take(&mut self.items);
        let mut outcome = std::mem::take(&mut self.outcome);
        items.push(item);
        for cell in 0..self.stages[stage].len() {
            let id = CellId { stage, cell };
            for item in items.drain(..) {
                self.cell_mut(id).take(item, &mut outcome);
            }
            if let Some(wake) = outcome.wake.take() {
                self.push(wake, What::Wakes(id));
            }
            for (item, longest) in outcome.refused.drain(..) {
                output(Output::TooLong {
                    packet: item.packet,
                    longest,
                });
            }
            std::mem::swap(&mut items, &mut outcome.passed);
        }
        for item in items.drain(..) {
            self.continue_route(item);
        }
        (self.items, self.outcome) = (items, outcome);
    }

    fn continue_route(&mut self, mut item: Item<P>) {
        item.position += 1;
        self.push(item.piece.at, What::Arrives(item));
    }

    fn push(&mut self, at: Nanos, what: What<P>) {
        self.count += 1;
        self.events.push(Event {
            at,
            number: self.count,
            what,
        });
    }
}

impl<P> PartialEq for Event<P> {
    fn eq(&self, other: &Event<P>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Event<P> {}

impl<P> PartialOrd for Event<P> {
    fn partial_cmp(&self, other: &Event<P>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Event<P> {
    /// Orders the earliest event as the greatest, for a max-heap.
    fn cmp(&self, other: &Event<P>) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

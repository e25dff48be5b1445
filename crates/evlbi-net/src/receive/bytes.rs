//! A byte stream on its way into the ring: read directly into the ring's memory, and released byte by byte.

use std::io;
use std::sync::mpsc;

use evlbi_core::admission::Streams;
use evlbi_core::deframe;
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::ring::{Consumer, Producer, Reserve};
use crate::run::Run;
use crate::transport::{Incoming, Peer, Read};

use super::{Came, ReceiveOptions, ReceiveReport, Snapshot};

/// Maximum number of refused peers that are named.
const MAX_SAID: u64 = 10;
/// Maximum number of bytes per read.
const BLOCK: usize = 1 << 20;

/// Reader of a byte stream.
pub struct Bytes {
    streams: Streams,
    run: Run,
    ring: Ring,
    to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    bytes: u64,
}

enum Ring {
    /// Nothing has arrived.
    Reserve(Option<Reserve>),
    /// The data of this peer goes there.
    Open(Peer, Producer<Event>),
}

impl Bytes {
    pub fn new(
        options: &ReceiveOptions,
        reserve: Reserve,
        to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
        run: Run,
    ) -> Bytes {
        let settings = deframe::Settings {
            format: options.wanted.format,
            frame_length: options.wanted.frame_length,
            ..deframe::Settings::default()
        };
        Bytes {
            streams: Streams::new(settings),
            run,
            ring: Ring::Reserve(Some(reserve)),
            to_consumer,
            bytes: 0,
        }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.ring, Ring::Open(..))
    }

    pub fn has_room(&mut self) -> bool {
        match &mut self.ring {
            Ring::Open(_, producer) => !producer.room().is_empty(),
            Ring::Reserve(_) => true,
        }
    }

    pub fn receive(&mut self, incoming: &mut dyn Incoming, now: Nanos) -> io::Result<Came> {
        let Ring::Open(peer, producer) = &mut self.ring else {
            return self.choose(incoming, now);
        };
        let room = producer.room();
        let max = room.len().min(BLOCK);
        Ok(match incoming.read(*peer, &mut room[..max])? {
            Read::Bytes(count) => {
                let handed = producer.published() + count as u64;
                producer.publish(handed);
                self.bytes += count as u64;
                Came {
                    taken: count as u64,
                    // The count decides how to wait: whether more than a nap's worth arrives at once.
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    is_stream: true,
                    ..Came::default()
                }
            }
            Read::Nothing => Came {
                is_empty: true,
                ..Came::default()
            },
            Read::Closed => Came {
                is_empty: true,
                is_closed: true,
                ..Came::default()
            },
        })
    }

    /// Reads from all peers until one of them sends the stream.
    fn choose(&mut self, incoming: &mut dyn Incoming, now: Nanos) -> io::Result<Came> {
        let batch = incoming.receive(now)?;
        let is_empty = batch.is_empty();
        for message in batch.messages {
            let bytes = &batch.memory[message.range.clone()];
            self.streams.hear(message.peer, bytes, !message.truncated);
        }
        let stream = self.streams.decide();
        while let Some(peer) = self.dismiss(stream.is_some()) {
            incoming.verdict(peer, false);
        }
        if let (Some(peer), Ring::Reserve(reserve)) = (stream, &mut self.ring) {
            incoming.verdict(peer, true);
            if let Some(reserve) = reserve.take() {
                let (producer, consumer) = reserve.stream(1);
                // If the consumer has ended, the program is ending.
                let _ = self.to_consumer.send((consumer, 0));
                self.ring = Ring::Open(peer, producer);
            }
        }
        Ok(Came {
            is_empty,
            count: u32::from(stream.is_some()),
            ..Came::default()
        })
    }

    /// Returns the next peer that does not send the stream.
    fn dismiss(&mut self, all: bool) -> Option<Peer> {
        let dismissed = self.streams.dismiss(all)?;
        let is_named = self.streams.refused() <= MAX_SAID;
        if dismissed.bytes > 0 && !dismissed.frames && is_named {
            self.run.say(format_args!(
                "{} sent {} bytes without frames: not a stream, ignored",
                dismissed.peer, dismissed.bytes
            ));
        }
        Some(dismissed.peer)
    }

    pub fn show(&self, live: &mut Snapshot) {
        live.bytes = self.bytes;
        live.refused_connections = self.streams.refused();
        if let Ring::Open(_, producer) = &self.ring {
            live.ring_fill = producer.gauge().fill();
        }
    }

    /// Refuses the remaining peers, which sent no stream.
    pub fn end(&mut self) {
        while self.dismiss(true).is_some() {}
    }

    pub fn report(self, report: ReceiveReport) -> ReceiveReport {
        ReceiveReport {
            refused: self.streams.others().to_vec(),
            sender: match &self.ring {
                Ring::Open(peer, _) => Some(*peer),
                Ring::Reserve(_) => None,
            },
            ..report
        }
    }
}

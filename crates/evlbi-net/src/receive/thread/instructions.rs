//! Datagrams from a socket through admission and order to their places in the ring.

use evlbi_testkit::instructions::{Frames, measured, units};
use evlbi_wire::vtp;

use super::*;
use crate::receive::Numbers;
use crate::udp::{Head, ReceiverOptions, Sender, SenderOptions};

const FRAME: usize = 1032;
/// Datagrams of a round: one message of the kernel, which arrives as a whole.
const ROUND: u64 = 48;

#[test]
fn admit() {
    let options = ReceiveOptions {
        listen: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()],
        socket: ReceiverOptions::default(),
        numbering: Box::new(Numbers),
        wanted: Default::default(),
        window: 1 << 20,
        hold: Duration::from_millis(100),
        ring: 16 << 20,
        idle: None,
        duration: None,
        source: None,
        cpu: None,
        priority: None,
    };
    let receiver = Receiver::bind(&options.listen, &options.socket).expect("a socket");
    let address = receiver.local_addresses().next().expect("an address");
    let mut sender = Sender::connect(address, &SenderOptions::default()).expect("a sender");
    let (to_consumer, from_thread) = mpsc::channel();
    let mut thread = Loop::new(Work {
        reserve: Reserve::new(options.ring).expect("memory"),
        options,
        receiver,
        to_consumer,
        stop: Arc::default(),
        watch: Arc::default(),
        started: Nanos(0),
    });
    let mut frames = Frames::new(&[b"Ef"], 1, FRAME, 4000);
    let mut batch = Batch::new();
    let mut consumer = None;
    let units = units(4 * ROUND);
    for round in 0..units / ROUND {
        let bytes = frames.take(ROUND as usize);
        let mut train = sender.batch();
        for (number, frame) in (round * ROUND..).zip(bytes.chunks(FRAME)) {
            let mut head = Head::new();
            head.append(&vtp::header(number));
            train.push(head, frame);
        }
        train.send().expect("loopback");
        while !thread.receiver.wait(PATIENCE).expect("a socket") {}
        let now = Nanos((round + 1) * 1_000_000);
        measured(|| {
            let count = thread.receiver.receive(&mut batch);
            thread.take(&batch, now);
            thread.sweep(now, count.is_ok_and(|count| count == 0), &batch);
            thread.begin();
            let handed = thread.admission.advance(now);
            thread.hand_on(handed);
        });
        let consumer = consumer.get_or_insert_with(|| from_thread.recv().expect("a ring").0);
        let span = consumer.span();
        let end = span.first + (span.data.len() / FRAME) as u64;
        assert_eq!(end, (round + 1) * ROUND);
        consumer.free(end);
    }
    assert_eq!(thread.admission.counters().unique, units / ROUND * ROUND);
}

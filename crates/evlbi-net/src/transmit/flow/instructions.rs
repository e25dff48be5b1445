//! Frames with new times that leave in bursts of datagrams with sequence numbers.

use std::net::UdpSocket;

use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Stream};
use evlbi_testkit::instructions::{Frames, measured, units};

use super::*;
use crate::transmit::LoopSource;
use crate::transport::{OutOptions, Url};

const FRAME: usize = 8032;
/// Data per datagram when jive5ab cuts such a frame for an MTU of 1500.
const DATA: usize = 1004;

#[test]
fn burst() {
    // It receives what its buffer holds, and the kernel drops the rest.
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = receiver.local_addr().expect("an address");
    let run = Run::silent();
    let to: Url = format!("udp://{address}").parse().expect("a URL");
    let outlet = to.open_out(&OutOptions::default(), &run);
    let units = units(1024);
    let frames = Frames::new(&[b"Ef"], 1, FRAME, 4000).take(64);
    let rate = BitRate::new(1_000_000_000_000).expect("a rate");
    let stream = Stream {
        rate: Some(rate),
        unit_bytes: FRAME as u64,
        wire_bytes: FRAME as u64,
        threads: vec![0],
        frame_rate: FrameRate::new(4000),
    };
    let options = FlowOptions {
        to: String::new(),
        frame_length: FRAME,
        datagram_data: DATA,
        vdif: true,
        frame_rate: FrameRate::new(4000),
        sequence: Some(0),
        stream: None,
        clock: Clock::Rate(rate),
        start: run.clock().now(),
        end: None,
        burst: 32,
        shed: Shed::new(Policy::None, 0, &stream).expect("nothing is shed"),
        safe: None,
        shed_packets: false,
        replace: Replace::Nothing,
        replacement: Vec::new(),
    };
    // From the second pass on frames get new times.
    let source = Box::new(LoopSource::new(frames, 64, units * DATA as u64));
    let outlet = outlet.expect("a sender");
    let mut flow = Flow::new(source, outlet, options, Sent::new()).expect("frames");
    let now = run.clock().now();
    while measured(|| {
        let next = flow.next(now, &run);
        flow.send_train(&run);
        !matches!(next, Next::Over)
    }) {}
    let report = flow.finish(now, &run);
    assert_eq!((report.live.offered, report.live.sent), (units, units));
}

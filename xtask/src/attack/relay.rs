//! A stream from `evlbi send` to `evlbi recv`, with hostile datagrams in between. A relay forwards each datagram and sends, at its
//! place, the datagrams of a script, from the stream's own socket or from another.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_net::udp::{Listen, Received, Receiver, ReceiverOptions};
use evlbi_wire::{pattern, vtp};

use super::program::{Program, count};
use super::scene::{LIMIT, Scene, wait_for};

/// Length of the streams' frames in bytes, which is the data of a datagram.
pub const FRAME: usize = 1032;
/// Frames of a stream: all of them fit into a receiver's socket.
pub const FRAMES: usize = 240;
/// Bit rate of the streams: they last half a second.
const RATE: &str = "4M";
/// Maximum datagrams in flight to a receiver that it has not counted yet.
const WINDOW: u64 = 32;

/// A stream, frame by frame.
pub struct Stream {
    pub frames: Vec<u8>,
    /// First sequence number.
    pub base: u64,
}

impl Stream {
    pub fn new(base: u64) -> Result<Stream> {
        let frames = pattern::frames(
            FRAME,
            1_700_000_000,
            pattern::frame_rate(25_600),
            FRAMES as u32,
        );
        Ok(Stream {
            frames: frames.context("the pattern")?,
            base,
        })
    }

    pub fn frame(&self, frame: usize) -> &[u8] {
        &self.frames[frame * FRAME..][..FRAME]
    }

    /// Returns a frame with a number that is `ahead` of its own.
    pub fn ahead(&self, frame: usize, ahead: u64) -> Vec<u8> {
        let number = self.base.wrapping_add(frame as u64).wrapping_add(ahead);
        numbered(number, self.frame(frame))
    }
}

/// Returns a datagram with its sequence number.
pub fn numbered(number: u64, data: &[u8]) -> Vec<u8> {
    [&vtp::header(number)[..], data].concat()
}

/// One step of an attack.
pub enum Step {
    /// Send a datagram from the stream's own address: a forged one.
    Forge(Vec<u8>),
    /// Send a datagram from another address.
    Send(Vec<u8>),
    /// Send nothing for a while.
    Wait(Duration),
    /// Send nothing until the receiver has noticed the silence.
    Silence,
}

/// Steps, each before the stream's datagram with this index; the last ones after the stream.
pub type Script = Vec<(usize, Step)>;

/// Datagrams sent to the receiver.
#[derive(Default)]
pub struct Sent {
    /// Datagrams of the stream.
    pub stream: u64,
    /// Other datagrams.
    pub hostile: u64,
    /// Source address of those from another address.
    pub other: Option<SocketAddr>,
}

impl Sent {
    pub fn all(&self) -> u64 {
        self.stream + self.hostile
    }
}

struct Relay<'a> {
    recv: &'a Program,
    same: UdpSocket,
    other: UdpSocket,
    sent: Sent,
}

fn socket(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(to)?;
    Ok(socket)
}

impl Scene {
    /// Sends a stream with `evlbi send` to `recv` together with a script's datagrams, and waits until all of it has arrived.
    pub fn relay(
        &mut self,
        recv: &mut Program,
        scheme: &str,
        stream: &Stream,
        script: Script,
    ) -> Result<Sent> {
        let to = recv.address()?;
        let here = Listen::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let receiver = Receiver::bind(&[here], &ReceiverOptions::default())?;
        let address = receiver.local_addresses().next().context("no address")?;
        let mut relay = Relay {
            recv,
            same: socket(to)?,
            other: socket(to)?,
            sent: Sent::default(),
        };
        relay.sent.other = Some(relay.other.local_addr()?);
        let mut steps: VecDeque<(usize, Step)> = script.into();
        relay.steps(&mut steps, 0)?;
        let source = self.room.write("source.vdif", &stream.frames);
        let to = format!("{scheme}://{address}");
        let base = stream.base.to_string();
        let mut send = vec![
            "send", &source, "--to", &to, "--rate", RATE, "--mtu", "9000", "--json",
        ];
        if scheme == "udp" {
            send.extend(["--sequence", &base]);
        }
        let sender = self.start(&send)?;
        relay.pass_on(receiver, &mut steps)?;
        let sender = sender.end(LIMIT)?.json()?;
        self.same("sent by evlbi send", count(&sender, "sent")?, FRAMES as u64);
        self.same("passed on", relay.sent.stream, FRAMES as u64);
        let all = relay.sent.all();
        // If not everything arrives, the counts show it.
        let _ = wait_for("all arrives", Duration::from_secs(20), || {
            (relay.recv.arrived(0) >= all).then_some(())
        });
        Ok(relay.sent)
    }
}

impl Relay<'_> {
    fn pass_on(
        &mut self,
        mut receiver: Receiver,
        steps: &mut VecDeque<(usize, Step)>,
    ) -> Result<()> {
        let mut received = Received::new();
        let mut passed = 0;
        while passed < FRAMES && receiver.wait(LIMIT)? {
            receiver.receive(&mut received)?;
            for datagram in received.batch().datagrams() {
                self.steps(steps, passed)?;
                self.same.send(datagram.bytes)?;
                self.sent.stream += 1;
                passed += 1;
                self.keep_pace();
            }
        }
        self.steps(steps, FRAMES)
    }

    /// Runs the steps before a datagram of the stream.
    fn steps(&mut self, steps: &mut VecDeque<(usize, Step)>, before: usize) -> Result<()> {
        while steps.front().is_some_and(|(at, _)| *at <= before) {
            match steps.pop_front() {
                Some((_, Step::Forge(datagram))) => {
                    self.same.send(&datagram)?;
                    self.sent.hostile += 1;
                }
                Some((_, Step::Send(datagram))) => {
                    self.other.send(&datagram)?;
                    self.sent.hostile += 1;
                }
                Some((_, Step::Wait(time))) => std::thread::sleep(time),
                Some((_, Step::Silence)) => self.silence()?,
                None => {}
            }
            self.keep_pace();
        }
        Ok(())
    }

    /// Waits until the receiver has counted what is in flight, so that no buffer overflows, however long it stalls.
    fn keep_pace(&self) {
        let all = self.sent.all();
        if all.is_multiple_of(WINDOW) {
            let _ = wait_for("datagrams arrive", Duration::from_secs(5), || {
                (self.recv.arrived(0) + WINDOW >= all).then_some(())
            });
        }
    }

    fn silence(&self) -> Result<()> {
        wait_for("the stream is silent", LIMIT, || {
            let status = self.recv.status().ok()?;
            (status["receiving"][0]["is_streaming"] == false).then_some(())
        })
    }
}

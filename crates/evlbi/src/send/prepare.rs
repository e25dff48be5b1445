//! A flow before it is sent: the source, the sockets, and how it is cut.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::pace::ByRate;
use evlbi_core::packetise::{Family, Rule, payload_length};
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{self, Replace, Shed, Stream, wire_bytes, wire_bytes_of_segment};
use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use evlbi_net::transmit::{Clock, Flow, FlowOptions, Outlet, Sent};
use evlbi_net::udp::{MAX_SEGMENTS, Sender, SenderOptions};
use evlbi_wire::{fill, vtp};

use super::changes::{Changes, check_fit};
use super::seen::Seen;
use super::{Pace, SendOptions};
use crate::recording;
use crate::source::Input;
use crate::url::{Scheme, Url};

/// From making ready to the first departure.
const WAIT_FOR_START: Nanos = Nanos(20_000_000);
/// Random bytes of which each replaced datagram takes a piece of its own.
const RANDOM_BYTES: usize = 1 << 20;

/// A flow that is ready to go.
pub struct Prepared {
    pub flow: Flow,
    pub seen: Seen,
    /// MTU that its datagrams are made for, in bytes.
    pub mtu: Option<usize>,
    /// Bytes before the first whole frame of the source, and behind its last.
    pub leading: u64,
    pub truncated: u64,
    /// Bytes of fill pattern that complete the last datagram.
    pub padded: u64,
}

/// Reads what has to be known of the source, and makes the sockets.
pub fn prepare(options: &SendOptions, run: &Run) -> Result<Prepared> {
    check_fit(&options.shed, options.replace)?;
    let input = Input::open(&options.source, options.frame_rate, options.pace.rate())?;
    let plain = options.cut == Rule::Plain || input.frame_length().is_none();
    let (clock, rate) = clock(options, &input, plain)?;
    let total = input
        .length()
        .map(|length| length.saturating_mul(options.repeat));
    let (outlets, segment) = connect(options, total)?;
    let (mtu, unit, datagram_data) = cut(options, &input, &outlets, plain)?;
    let (leading, truncated) = (input.leading(), input.truncated());
    let stream = Stream {
        rate,
        unit_bytes: match options.shed_packets {
            false => unit as u64,
            true => datagram_data as u64,
        },
        wire_bytes: {
            let family = family(options.to.addresses().map_err(|e| anyhow!(e))?[0]);
            let datagram = match options.to.scheme {
                Scheme::Udp => wire_bytes(datagram_data + vtp::HEADER_LEN, family),
                Scheme::Pudp => wire_bytes(datagram_data, family),
                Scheme::Tcp => {
                    let whole = wire_bytes_of_segment(segment, family) * datagram_data as u64;
                    whole.div_ceil(segment as u64)
                }
            };
            match options.shed_packets {
                false => datagram * (unit / datagram_data) as u64,
                true => datagram,
            }
        },
        // Data cut as bytes has no threads and times to choose by.
        threads: if plain { Vec::new() } else { threads(&input) },
        frame_rate: input.frame_rate().filter(|_| !plain),
    };
    let shed = Shed::new(options.shed.clone(), options.seed, &stream)?;
    let burst = options.burst.length(rate, datagram_data);
    let vdif = input.is_vdif() && !plain;
    if plain && input.is_vdif() && options.repeat > 1 {
        bail!("frames cut as bytes cannot be re-timed; repeat without --cut plain");
    }
    let frame_rate = input.frame_rate();
    let key = input.keys().first().copied().unwrap_or_default();
    let first = shed::Unit::new(key, None, &[]);
    let (source, padded) = input.into_source(unit, options.repeat)?;
    let start = start(options.start, run);
    let sent = Sent::new();
    let changes = Changes {
        rates: rate.map(BitRate::get).into_iter().collect(),
        sent: Arc::clone(&sent),
        stream,
        policy: options.shed.clone(),
        replace: options.replace,
        seed: options.seed,
        burst: options.burst,
        datagram_data,
        has_rate: options.pace.rate().is_some(),
    };
    let flow = Flow::new(
        source,
        outlets,
        FlowOptions {
            frame_length: unit,
            datagram_data,
            vdif,
            frame_rate,
            sequence: (options.to.scheme == Scheme::Udp).then_some(options.sequence),
            clock,
            start,
            end: options.duration.map(|duration| start.plus(duration.into())),
            burst,
            shed,
            shed_packets: options.shed_packets,
            replace: options.replace,
            replacement: replacement(options.replace, options.seed, first, datagram_data),
        },
        sent,
    )?;
    let padded = match options.to.scheme {
        Scheme::Tcp => 0,
        Scheme::Udp | Scheme::Pudp => padded,
    };
    Ok(Prepared {
        flow,
        seen: Seen::new(changes, total, run),
        mtu,
        leading,
        truncated,
        padded,
    })
}

/// When the first frame leaves.
fn start(asked: Option<jiff::Timestamp>, run: &Run) -> Nanos {
    let clock = run.clock();
    let soon = clock.now().plus(WAIT_FOR_START);
    let Some(asked) = asked else {
        return soon;
    };
    let ahead = asked.as_nanosecond() - i128::from(clock.utc());
    match u64::try_from(ahead) {
        Ok(ahead) => clock.now().plus(Nanos(ahead)).max(soon),
        Err(_) => {
            run.warn(format_args!(
                "--start {asked} is over, so the data leaves at once"
            ));
            soon
        }
    }
}

/// What sets the times, and the bit rate that comes of it.
fn clock(options: &SendOptions, input: &Input, plain: bool) -> Result<(Clock, Option<BitRate>)> {
    match options.pace {
        Pace::Max => return Ok((Clock::None, None)),
        Pace::Rate(rate) => return Ok((Clock::Rate(ByRate::new(rate)), Some(rate))),
        Pace::RealTime => {}
    }
    let unknown = || match input.frame_length() {
        Some(_) => anyhow!(
            "the frame rate of {} cannot be told, so not when its frames are due: give --frame-rate N, or a --rate, or --max",
            options.source
        ),
        None => anyhow!(
            "{} is raw data (no frames of VDIF or Mark 5B are in it), which has no times: give a --rate, or --max",
            options.source
        ),
    };
    let frame_rate = input.frame_rate().ok_or_else(unknown)?;
    let rate = input.rate().ok_or_else(unknown)?;
    let clock = if plain || !input.is_vdif() {
        Clock::Rate(ByRate::new(rate))
    } else {
        Clock::Time(recording::by_time(frame_rate, input.keys()))
    };
    Ok((clock, Some(rate)))
}

/// What it leaves by, and the length of a segment in bytes where that is TCP.
fn connect(options: &SendOptions, total: Option<u64>) -> Result<(Vec<Outlet>, usize)> {
    let addresses = options.to.addresses().map_err(|error| anyhow!(error))?;
    if options.to.scheme == Scheme::Tcp {
        let connection = TcpStream::connect(addresses[0])
            .with_context(|| format!("cannot connect to {}", options.to))?;
        connection.set_nodelay(true)?;
        let segment = socket2::SockRef::from(&connection).tcp_mss()? as usize;
        let outlet = Outlet::tcp(connection, total.unwrap_or(u64::MAX))?;
        return Ok((vec![outlet], segment.max(1)));
    }
    let outlets = addresses
        .into_iter()
        .map(|address| open_sender(address, &options.to, options).map(Outlet::Udp));
    Ok((outlets.collect::<Result<_>>()?, 0))
}

fn open_sender(address: SocketAddr, url: &Url, options: &SendOptions) -> Result<Sender> {
    let mut options = SenderOptions {
        interface: url.interface.clone(),
        hops: url.ttl.and_then(|ttl| u8::try_from(ttl).ok()),
        max_segments: if options.offload { MAX_SEGMENTS } else { 1 },
        ..SenderOptions::default()
    };
    if let Some(buffer) = options.host.buffer {
        options.buffer = usize::try_from(buffer)?;
    }
    let sender = Sender::connect(address, &options)?;
    if let Some(remedy) = &sender.buffer().remedy {
        tracing::info!("send buffer: {remedy}");
    }
    Ok(sender)
}

fn family(address: SocketAddr) -> Family {
    if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

/// The MTU, the unit in which the source is read, and the data of a datagram.
fn cut(
    options: &SendOptions,
    input: &Input,
    outlets: &[Outlet],
    plain: bool,
) -> Result<(Option<usize>, usize, usize)> {
    let header = match options.to.scheme {
        Scheme::Udp => vtp::HEADER_LEN,
        Scheme::Pudp => 0,
        Scheme::Tcp => {
            let unit = input.frame_length().unwrap_or(8192);
            return Ok((None, unit, unit));
        }
    };
    let Some(Outlet::Udp(sender)) = outlets.first() else {
        bail!("no socket to send by");
    };
    let mtu = match options.mtu {
        Some(mtu) => mtu,
        None => sender
            .path_mtu()
            .context("cannot ask for the MTU of the route; give --mtu")?,
    };
    let family = family(sender.destination());
    if !plain {
        let frame = input.frame_length().unwrap_or(0);
        let data = payload_length(frame, mtu, family, header, Rule::Frames)?;
        if header == 0 && data < frame {
            bail!(
                "pudp:// carries whole frames, and {frame} bytes do not fit an MTU of {mtu}: without sequence numbers fragments cannot be put in order; use udp:// or a larger --mtu"
            );
        }
        return Ok((Some(mtu), frame, data));
    }
    let data = payload_length(8, mtu, family, header, Rule::Plain)?;
    Ok((Some(mtu), data, data))
}

fn threads(input: &Input) -> Vec<u16> {
    let mut threads: Vec<u16> = input.keys().iter().map(|key| key.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

fn replacement(replace: Replace, seed: u64, first: shed::Unit, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    match replace {
        Replace::Nothing | Replace::Invalid => bytes.clear(),
        Replace::Fill => fill::make(&mut bytes),
        Replace::Random => {
            bytes.resize(RANDOM_BYTES + length, 0);
            first.fill_random(seed, 0, &mut bytes);
        }
    }
    bytes
}

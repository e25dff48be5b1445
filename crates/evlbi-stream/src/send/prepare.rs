//! Prepares a flow: the source, the transport, and the cutting into datagrams.

use std::collections::BTreeSet;
use std::sync::Arc;

use evlbi_core::pace::ByTime;
use evlbi_core::packetise::{Rule, payload_length};
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{self, Replace, Shed, Stream};
use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use evlbi_net::safe::{SafeSending, Shown};
use evlbi_net::transmit::{Clock, Flow, FlowOptions, Sent};
use evlbi_net::transport::{Carries, Limits, Numbers, OutOptions};
use evlbi_wire::vtp;

use super::changes::{Changes, check_fit};
use super::seen::Seen;
use super::{Pace, SendError, SendOptions, ahead, safe};
use crate::source::{Input, LeftOut};

/// Time between preparation and the first datagram.
const WAIT_FOR_START: Nanos = Nanos(20_000_000);
/// Size of a piece of raw data in a byte stream, in bytes.
const BLOCK: usize = 8192;
/// Random bytes; each replaced datagram takes a different piece of them.
const RANDOM_BYTES: usize = 1 << 20;

/// A flow that is ready to start.
pub struct Prepared {
    pub flow: Flow,
    /// Bit rate of the data; `None` for the maximum.
    pub rate: Option<BitRate>,
    /// Data per datagram, in bytes.
    pub datagram_data: usize,
    pub seen: Seen,
    /// MTU of its datagrams, in bytes.
    pub mtu: Option<usize>,
    /// Bytes before the first whole frame of the source, and after its last.
    pub leading: u64,
    pub truncated: u64,
    /// Counts of what is not selected.
    pub left_out: Arc<LeftOut>,
    /// Bytes of fill pattern that complete the last datagram.
    pub padded: u64,
    /// State of SafeUDP, if it is used.
    pub safe: Option<Shown>,
}

/// Checks the options without opening anything; returns those of the transport.
///
/// # Errors
/// Returns an error if an option has no effect on the transport, or a generated source has no rate.
pub fn out_options(options: &SendOptions) -> Result<OutOptions, SendError> {
    let with = OutOptions {
        buffer: options.host.buffer.map(usize::try_from).transpose()?,
        mtu: options.mtu,
        sequence: options.sequence,
        single: !options.offload,
        marks: options.safe.is_some(),
    };
    with.check(&options.to)?;
    // Before anything is connected.
    if options.safe.is_some() && !options.to.can_be_safe() {
        return Err(SendError::SafeTransport(options.to.to_string()));
    }
    if options.cut == Rule::Plain && options.to.transport().service().carries == Carries::Bytes {
        return Err(SendError::NoDatagrams(options.to.scheme()));
    }
    if options.lacks_rate() {
        return Err(SendError::PatternRate(options.source.clone()));
    }
    Ok(with)
}

/// Inspects the source and opens the sockets.
pub fn prepare(options: &SendOptions, run: &Run) -> Result<Prepared, SendError> {
    check_fit(&options.shed, options.replace)?;
    let with = out_options(options)?;
    let (rate, second) = (options.pace.rate(), run.clock().second());
    let (source, selection) = (&options.source, &options.selection);
    let input = Input::open(source, selection, options.frame_rate, rate, second)?;
    let plain = options.cut == Rule::Plain || input.frame_length.is_none();
    if plain && selection.is_part() {
        return Err(SendError::SelectedBytes);
    }
    let (clock, rate) = clock(options, &input, plain)?;
    let total = input.length;
    let total = total.map(|length| length.saturating_mul(options.repeat));
    let service = options.to.transport().service();
    let outlet = options.to.open_out(&with, run)?;
    let header = match service.numbers {
        Numbers::InBand => vtp::HEADER_LEN,
        Numbers::FromFrames | Numbers::InOrder => 0,
    };
    let is_stream = service.carries == Carries::Bytes;
    let (mtu, unit, datagram_data) = match is_stream {
        true => {
            let unit = input.frame_length.unwrap_or(BLOCK);
            (None, unit, unit)
        }
        false => cut(&input, &outlet.limits(), service.numbers, header, plain)?,
    };
    let datagram = outlet.wire_bytes(datagram_data + header);
    let (unit_bytes, wire_bytes) = match options.shed_packets {
        false => (unit, datagram * (unit / datagram_data) as u64),
        true => (datagram_data, datagram),
    };
    let (leading, truncated) = (input.leading, input.truncated);
    let threads: BTreeSet<u16> = input.keys.iter().map(|key| key.thread).collect();
    let stream = Stream {
        rate,
        unit_bytes: unit_bytes as u64,
        wire_bytes,
        // Data cut as bytes has no threads and times to choose by.
        threads: match plain {
            true => Vec::new(),
            false => threads.into_iter().collect(),
        },
        frame_rate: input.frame_rate.filter(|_| !plain),
    };
    let shed = Shed::new(options.shed.clone(), options.seed, &stream)?;
    let safe = safe::open(options, &*outlet, (rate, datagram_data, &stream), run)?;
    let shown = safe.as_ref().map(SafeSending::shown);
    let burst = options.burst.length(rate, datagram_data);
    let vdif = input.is_vdif && !plain;
    if plain && input.is_vdif && options.repeat > 1 {
        return Err(SendError::Untimed);
    }
    let frame_rate = input.frame_rate;
    let key = input.keys.first().copied().unwrap_or_default();
    let first = shed::Unit::new(key, None, &[]);
    let left_out = Arc::clone(&input.left_out);
    let (source, padded) = input.into_source(unit, options.repeat, run)?;
    let start = start(options.start, run);
    let sent = Sent::new();
    let changes = Changes {
        rates: rate.map(BitRate::get).into_iter().collect(),
        sent: Arc::clone(&sent),
        stream,
        datagram_data,
        options: options.clone(),
    };
    let flow = Flow::new(
        source,
        outlet,
        FlowOptions {
            to: options.to.to_string(),
            frame_length: unit,
            datagram_data,
            vdif,
            frame_rate,
            sequence: (header > 0).then_some(options.sequence.unwrap_or(0)),
            stream: is_stream.then_some(total.unwrap_or(u64::MAX)),
            clock,
            start,
            end: options.duration.map(|duration| start.plus(duration.into())),
            burst,
            shed,
            shed_packets: options.shed_packets,
            safe: safe.map(Box::new),
            replace: options.replace,
            replacement: replacement(options.replace, options.seed, first, datagram_data),
        },
        sent,
    )?;
    Ok(Prepared {
        flow,
        rate,
        datagram_data,
        seen: Seen::new(changes, total, shown.clone(), run),
        mtu,
        leading,
        truncated,
        left_out,
        padded: if is_stream { 0 } else { padded },
        safe: shown,
    })
}

/// Returns the time of the first frame.
fn start(asked: Option<jiff::Timestamp>, run: &Run) -> Nanos {
    let clock = run.clock();
    let soon = clock.now().plus(WAIT_FOR_START);
    let Some(asked) = asked else {
        return soon;
    };
    if let Some(ahead) = ahead(asked, run) {
        return clock.now().plus(ahead).max(soon);
    }
    let why = run.explain(&SendError::StartOver(asked));
    run.warn(format_args!("{why}; sending starts at once"));
    soon
}

/// Returns the timing of the flow and its bit rate.
fn clock(
    options: &SendOptions,
    input: &Input,
    plain: bool,
) -> Result<(Clock, Option<BitRate>), SendError> {
    match options.pace {
        Pace::Max => return Ok((Clock::None, None)),
        Pace::Rate(rate) => return Ok((Clock::Rate(rate), Some(rate))),
        Pace::RealTime => {}
    }
    let source = options.source.clone();
    let unknown = || match input.frame_length {
        Some(_) => SendError::RateUnknown(source),
        None => SendError::NoTimes(source),
    };
    let rates = input.frame_rate.zip(input.rate());
    let (frame_rate, rate) = rates.ok_or_else(unknown)?;
    let clock = match plain || !input.is_vdif {
        true => Clock::Rate(rate),
        false => Clock::Time(ByTime::new(frame_rate, input.keys.len())),
    };
    Ok((clock, Some(rate)))
}

/// Returns the MTU, the unit in which the source is read, and the bytes of data per datagram.
fn cut(
    input: &Input,
    limits: &Limits,
    numbers: Numbers,
    header: usize,
    plain: bool,
) -> Result<(Option<usize>, usize, usize), SendError> {
    let mtu = limits.mtu.ok_or(SendError::MtuUnknown)?;
    if plain {
        let data = payload_length(8, mtu, limits.family, header, Rule::Plain)?;
        return Ok((Some(mtu), data, data));
    }
    let frame = input.frame_length.unwrap_or(0);
    let data = payload_length(frame, mtu, limits.family, header, Rule::Frames)?;
    if numbers == Numbers::FromFrames && data < frame {
        return Err(SendError::LongFrame { frame, mtu });
    }
    Ok((Some(mtu), frame, data))
}

fn replacement(replace: Replace, seed: u64, first: shed::Unit, length: usize) -> Vec<u8> {
    let mut bytes = match replace {
        Replace::Nothing | Replace::Invalid => return Vec::new(),
        Replace::Fill => vec![0; length],
        Replace::Random => vec![0; RANDOM_BYTES + length],
    };
    first.replace(replace, seed, 0, 0, &mut bytes);
    bytes
}

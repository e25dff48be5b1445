//! `evlbi recv`.

mod result;
mod tcp;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::deframe::{self, Partial, Wanted};
use evlbi_net::file::{Durability, Over};
use evlbi_net::host;
use evlbi_net::receive::{
    self, Ended, Numbering, Numbers, Opening, ReceiveOptions, ReceiveReport, Receiving, Watch,
};
use evlbi_net::udp::{Listen, ReceiverOptions};
use evlbi_wire::time::FrameRate;
use parking_lot::Mutex;

use self::result::{Beside, HostDelta, RecvResult, finish, text};
use crate::cli::{FsyncChoice, PartialChoice, RecvArgs};
use crate::drain::{self, Drained, Shown};
use crate::numbering::FrameNumbers;
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::recording;
use crate::sink::{self, Files, Sink};
use crate::steer::{self, Receiving as Status};
use crate::units::{show_count, show_rate, show_size};
use crate::url::Scheme;

/// Least memory of the ring.
const LEAST_RING: u64 = 64 << 20;
/// Memory of the ring where nothing is said.
const USUAL_RING: u64 = 256 << 20;
/// The window where nothing is said.
const USUAL_WINDOW: u64 = 64 << 20;
/// Bytes between two calls that force data onto the disk.
const OFTEN: u64 = 256 << 20;

/// Receives until the stream ends, the time is over or Ctrl-C.
pub fn run(args: &RecvArgs) -> Result<()> {
    let settings = settings(args);
    if args.to == "-" {
        bail!(
            "--to - cannot be used: standard output carries the result; name a file, or a named pipe (mkfifo)"
        );
    }
    let (args, left) = with_free_names(args)?;
    let args = &args;
    check_outputs(args)?;
    if let Some(left) = &left {
        say!(
            "evlbi: {} was left unfinished by a receiver that was killed, and is kept; recording to {}",
            left.display(),
            args.to
        );
    }
    // From here on Ctrl-C ends with everything written.
    interrupt();
    let mut result = if args.from.scheme == Scheme::Tcp {
        tcp::receive(args, settings)?
    } else {
        receive_datagrams(args, settings)?
    };
    result.left_unfinished = left;
    let is_empty = result.is_empty();
    if is_empty {
        remove_empty(args, &mut result);
    } else if let Some(path) = result_path(args)
        && let Err(error) = output::replace_json(&path, &result)
    {
        let write_error = &mut result.sink.write_error;
        write_error.get_or_insert(output::explain(&error));
    }
    output::print(args.json, &result, text)?;
    if let (Some(length), Some(deframe::Format::Raw)) = (args.frame, result.format) {
        say!(
            "evlbi: no frames of --frame {length} bytes were found, so the data was recorded as it came; leave --frame out to have the length learnt"
        );
    }
    if result.foreign_header > 0 {
        say!(
            "evlbi: {} datagrams were of a station, thread or time that was not there when the stream began, and are not recorded",
            show_count(result.foreign_header)
        );
    }
    let others = result.refused.iter().filter(|refused| refused.frames);
    let others: Vec<String> = others
        .map(|other| match other.datagrams {
            // Over TCP.
            0 => other.sender.to_string(),
            count => format!("{} ({} datagrams)", other.sender, show_count(count)),
        })
        .collect();
    if let Some(error) = result.error.as_ref().or(result.sink.write_error.as_ref()) {
        bail!("{error}");
    }
    if is_empty && result.ended != Ended::Stopped {
        match nothing_but(result.foreign, args) {
            Some(others) => bail!("no stream arrived, so nothing was recorded: {others}"),
            None => bail!("no data arrived, so nothing was recorded"),
        }
    }
    if result
        .sink
        .check
        .as_ref()
        .is_some_and(|check| check.corrupted > 0)
    {
        bail!("the test pattern did not arrive as it was sent");
    }
    if !others.is_empty() {
        bail!(
            "frames of other senders came to the same port and were not recorded: {}; name the one to record with --source ADDRESS, and give each a port of its own",
            others.join(", ")
        );
    }
    Ok(())
}

/// What came where no stream did, and what may be the cause.
fn nothing_but(datagrams: u64, args: &RecvArgs) -> Option<String> {
    let count = show_count(datagrams);
    match args.from.scheme {
        _ if datagrams == 0 => None,
        _ if args.source.is_some() => Some(format!(
            "{count} datagrams arrived, but they are not from --source, or no stream of it"
        )),
        Scheme::Pudp => Some(format!(
            "{count} datagrams arrived, but none is a whole VDIF frame: send each frame in one datagram, or use udp:// for datagrams \
             with sequence numbers"
        )),
        _ => Some(format!(
            "{count} datagrams arrived, but none begins a stream: send at least 8 consecutive sequence numbers with VDIF or Mark 5B \
             frames, or 64 without frames"
        )),
    }
}

/// What is known beforehand of the frames of a stream.
pub fn settings(args: &RecvArgs) -> deframe::Settings {
    deframe::Settings {
        frame_length: args.frame,
        frame_rate: args.frame_rate,
        fill: args.fill,
        partial: match args.partial {
            PartialChoice::Invalid => Partial::Whole,
            PartialChoice::Keep => Partial::Keep,
        },
        reference: recording::now(),
        ..deframe::Settings::default()
    }
}

/// The arguments with names that are free, where a killed receiver left its recording under the wanted one, which is returned too.
/// What such a receiver left is kept, whatever is forced.
fn with_free_names(args: &RecvArgs) -> Result<(RecvArgs, Option<PathBuf>)> {
    let first = Path::new(&args.to);
    if !sink::is_left_unfinished(&args.to)? {
        return Ok((args.clone(), None));
    }
    for number in 2_u32.. {
        let path = numbered(first, number);
        // Another receiver may have begun with it.
        let to = path.to_str().context("a path that is not UTF-8")?;
        if sink::is_left_unfinished(to)? || path.exists() || !sink::those_of(to).is_empty() {
            continue;
        }
        let gaps = args.gaps.as_deref().map(|gaps| numbered(gaps, number));
        let args = RecvArgs {
            to: to.to_owned(),
            gaps,
            ..args.clone()
        };
        let beside = [gaps_path(&args), result_path(&args)];
        if beside.iter().flatten().all(|path| !path.exists()) {
            return Ok((args, Some(first.to_owned())));
        }
    }
    bail!("no name is free beside {}", first.display())
}

/// `NAME-2.vdif` of `NAME.vdif`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    let mut numbered = path.with_file_name(name);
    if let Some(ending) = path.extension() {
        numbered.add_extension(ending);
    }
    numbered
}

/// An empty file would only keep the next attempt from its name.
fn remove_empty(args: &RecvArgs, result: &mut RecvResult) {
    let Some(recording) = Sink::recording(&args.to).filter(|path| !output::is_special(path)) else {
        return;
    };
    let is_there = |path: &Path| path.metadata().is_ok_and(|file| file.len() > 0);
    if sink::those_of(&args.to).iter().any(|path| is_there(path)) {
        return;
    }
    let beside = [gaps_path(args), result_path(args)];
    for path in [recording].into_iter().chain(beside.into_iter().flatten()) {
        if path.is_file() {
            let _ = std::fs::remove_file(path);
        }
    }
    result.forget_files();
}

/// Nothing that is there already may be lost, whatever the files are called.
fn check_outputs(args: &RecvArgs) -> Result<()> {
    let recording = match args.to.as_str() {
        "null" | "check" => None,
        to if to.contains('{') => {
            // Folders may hold files of stations that are not in this stream.
            let is_in_folders = Path::new(to)
                .parent()
                .is_some_and(|folder| folder.to_str().is_some_and(|folder| folder.contains('{')));
            if let Some(file) = sink::those_of(to).first()
                && !args.force
                && !is_in_folders
            {
                bail!(
                    "{} exists and may be one of the files that {to} is split into; give --force to overwrite it",
                    file.display()
                );
            }
            None
        }
        to => Some(Path::new(to)),
    };
    let beside = [gaps_path(args), result_path(args)];
    let beside = beside.iter().flatten().map(PathBuf::as_path);
    output::check_new(recording.into_iter().chain(beside), args.force)
}

/// Opened once the sockets are: a port in use must not cost an older recording.
fn open_sink(args: &RecvArgs, over: Over) -> Result<Sink> {
    let durability = match args.fsync {
        FsyncChoice::None => Durability::Kernel,
        FsyncChoice::End => Durability::End,
        FsyncChoice::Often => Durability::Every(OFTEN),
    };
    let files = Files {
        durability,
        force: args.force,
        over,
    };
    Sink::open(&args.to, files)
}

fn receive_datagrams(args: &RecvArgs, settings: deframe::Settings) -> Result<RecvResult> {
    let before = host::Counters::read().ok();
    let options = options(args, settings.frame_rate)?;
    let sizes = (options.ring, options.window);
    let (receiving, opening) = receive::start(options)?;
    let (seen, interrupted) = (receiving.watch(), interrupt());
    let over = Over::new(move || interrupted.load(Ordering::Relaxed) || seen.has_ended());
    let sink = open_sink(args, over)?;
    for address in receiving.addresses() {
        steer::say_listening(*address);
    }
    if let Some(remedy) = receiving.buffer().and_then(|buffer| buffer.remedy.as_ref()) {
        say!("evlbi: warning: {remedy}");
    }
    let (report, drained) = watch(args, receiving, opening, settings, sink)?;
    let host = before.and_then(|before| {
        let delta = host::Counters::read().ok()?.since(&before);
        Some(HostDelta {
            softnet_dropped: delta.softnet.iter().map(|core| core.dropped).sum(),
            udp: delta.udp,
            udp6: delta.udp6,
        })
    });
    finish(args, report, drained, host, Some(sizes))
}

/// How a stream is received.
pub fn options(args: &RecvArgs, frame_rate: Option<FrameRate>) -> Result<ReceiveOptions> {
    let numbering: Box<dyn Numbering> = match args.from.scheme {
        Scheme::Pudp => Box::new(FrameNumbers::new(frame_rate)),
        _ => Box::new(Numbers),
    };
    let listen = args
        .from
        .addresses()
        .map_err(|error| anyhow!(error))?
        .into_iter()
        .map(|address| Listen {
            address,
            source: args.from.source,
            interface: args.from.interface.clone(),
        })
        .collect();
    let mut socket = ReceiverOptions {
        join: !args.no_gro,
        stamps: true,
        ..ReceiverOptions::default()
    };
    if let Some(buffer) = args.host.buffer {
        socket.buffer = usize::try_from(buffer)?;
    }
    let (ring, window) = match (args.ring, args.window) {
        (Some(ring), window) => (ring, window.unwrap_or(USUAL_WINDOW.min(ring / 4))),
        (None, window) => {
            let window = window.unwrap_or(USUAL_WINDOW);
            (window.saturating_mul(4).max(USUAL_RING), window)
        }
    };
    if ring < LEAST_RING {
        bail!(
            "--ring is at least {}; {} were asked for",
            show_size(LEAST_RING),
            show_size(ring)
        );
    }
    if window > ring / 4 * 3 {
        bail!(
            "a --window of {} needs a --ring of a third more, or none given; {} were asked for",
            show_size(window),
            show_size(ring)
        );
    }
    Ok(ReceiveOptions {
        listen,
        socket,
        numbering,
        wanted: Wanted {
            format: None,
            frame_length: args.frame,
        },
        window,
        hold: args.hold,
        ring: usize::try_from(ring)?,
        idle: args.idle,
        duration: args.duration,
        source: args.source,
        cpu: args.host.cpu,
        priority: args.host.priority,
    })
}

/// Empties the ring in a thread of its own and shows what happens, until the receiver ends.
fn watch(
    args: &RecvArgs,
    receiving: Receiving,
    opening: Opening,
    settings: deframe::Settings,
    sink: Sink,
) -> Result<(ReceiveReport, Drained)> {
    let interrupted = interrupt();
    let seen = receiving.watch();
    let stop = receiving.stop_switch();
    let start = Instant::now();
    let shown: Arc<Mutex<Shown>> = Arc::default();
    let drainer = std::thread::Builder::new().name("sink".into()).spawn({
        let shown = Arc::clone(&shown);
        move || drain::watched(&opening, settings, sink, &shown)
    })?;
    let total = args.duration.map(|duration| duration.as_millis() as u64);
    steer::on_status({
        let seen = Arc::clone(&seen);
        move || {
            Watch::refresh([&*seen]);
            tell(&seen, None);
        }
    });
    let mut progress = Progress::new(total);
    let mut beside = Beside::default();
    let mut before = (0, Instant::now());
    let mut rate = 0.0;
    loop {
        // Looked at once more when it has ended: then the counts are the last.
        let has_ended = receiving.is_finished();
        if interrupted.load(Ordering::Relaxed) {
            stop.store(true, Ordering::Relaxed);
        }
        if progress.is_due() || has_ended {
            let live = seen.last();
            if !has_ended {
                rate = (live.bytes - before.0) as f64 * 8.0 / before.1.elapsed().as_secs_f64();
                before = (live.bytes, Instant::now());
            }
            tell(&seen, Some(rate));
            if has_ended {
                break;
            }
            beside.write(args, Status::of(&live, rate), &shown.lock());
            progress.show(start.elapsed().as_millis() as u64, &line(&live, rate, args));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    progress.finish();
    match drainer.join() {
        Ok(drained) => Ok((receiving.join(), drained)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Writes down how the stream is, at the rate of before if none is given.
fn tell(seen: &Watch, rate: Option<f64>) {
    steer::tell(|status| {
        // Read here, so that no older counters take the place of newer ones.
        let live = seen.last();
        let before = status
            .receiving
            .first()
            .map_or(0.0, |before| before.rate_bps);
        status.receiving = vec![Status::of(&live, rate.unwrap_or(before))];
    });
}

fn line(live: &receive::Live, rate: f64, args: &RecvArgs) -> String {
    let counters = &live.counters;
    if counters.received == 0 {
        return match nothing_but(live.foreign + live.undecided, args) {
            Some(others) => format!("waiting for a stream: {others}"),
            None => "waiting for a stream".into(),
        };
    }
    let share = counters.lost as f64 * 100.0 / counters.expected.max(1) as f64;
    format!(
        "{}  lost {} ({share:.3} %)  ring {:.0} %{}",
        show_rate(rate),
        show_count(counters.lost),
        live.ring_fill * 100.0,
        if live.streaming { "" } else { "  silent" },
    )
}

/// The result stands beside the recording too, and says while it grows how it is.
fn result_path(args: &RecvArgs) -> Option<PathBuf> {
    let recording = Sink::recording(&args.to)?;
    let is_device = output::is_special(&recording);
    let path = output::result_beside(&recording);
    // A folder that is not there is reported when its file is made.
    let folder = path.parent()?;
    let has_folder = folder.as_os_str().is_empty() || folder.is_dir();
    (!is_device && has_folder).then_some(path)
}

fn gaps_path(args: &RecvArgs) -> Option<PathBuf> {
    args.gaps.clone().or_else(|| {
        let recording = Sink::recording(&args.to)?;
        let is_device = output::is_special(&recording);
        (!is_device).then(|| output::gaps_beside(&recording))
    })
}

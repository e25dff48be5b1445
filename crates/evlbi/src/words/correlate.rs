//! Errors of evlbi-correlate.

use std::error::Error;
use std::time::Duration;

use evlbi_correlate::chunks::ChunkError;
use evlbi_correlate::distribute::DistributeError;
use evlbi_correlate::fringe::FringeError;
use evlbi_correlate::loss_curve::LossCurveError;
use evlbi_correlate::{
    CorrelateOptions, DelayTerms, NoFringe, OffModel, PlanError, RecordingError, StreamError,
    Stretch, VisibilityError, WindowError,
};
use evlbi_fx::correlator::{CHANNELS, SetupError};
use evlbi_stream::samples::SamplesError;
use evlbi_wire::units::{show_hertz, show_seconds, span};

/// Returns what to try where no fringe was found, in a line each. `options` say how the recordings were correlated; `None` if
/// only their visibilities were searched.
pub fn no_fringe(without: &NoFringe, options: Option<&CorrelateOptions>) -> String {
    let mut texts = Vec::new();
    if !without.without_data.is_empty() {
        let mut text = format!("no common data on {}", without.without_data.join(", "));
        if !without.times.is_empty() {
            text += &format!(" ({})", without.times.join("; "));
        }
        text += &format!(": {WRONG_TIMES}");
        texts.push(text);
    }
    if !without.baselines.is_empty() {
        texts.push(no_fringe_in_data(without, options));
    }
    texts.join("\n")
}

/// Remedy for recordings that have no data at the same time.
const WRONG_TIMES: &str = "`evlbi inspect FILE` shows the times and the invalid frames of a recording; correct a wrong clock with --delay, e.g. --delay 0 --delay 1s, and a wrong year of Mark 4 or Mark 5B with #year=YEAR";

/// Returns what to try where there is data but no fringe.
fn no_fringe_in_data(without: &NoFringe, options: Option<&CorrelateOptions>) -> String {
    let baselines = without.baselines.join(", ");
    let (delay, rate) = (show_seconds(without.delay_s), show_hertz(without.rate_hz));
    let searched = format!("no fringe on {baselines} within {delay} and {rate}; try:");
    let again = "correlate again with --model or --delay; more --channels widen the window of delays, a shorter --integration that of rates";
    let ways = options.map_or_else(|| vec![again.into()], |options| ways(without, options));
    listed(searched, &ways)
}

/// Returns what to try where one integration of this many seconds hides the rate of a fringe.
pub fn only_integration(seconds: f64) -> String {
    let shorter = Duration::try_from_secs_f64(seconds / 20.0).unwrap_or_default();
    format!(
        "one integration: no rate can be found; correlate with a shorter --integration, e.g. --integration {}",
        span(shorter)
    )
}

/// Returns what to try where fringes are off the model, in a line each.
pub fn off_model(off: &OffModel) -> String {
    let mut ways = vec![match &off.delays {
        Some(delays) => format!(
            "{}, which has the delay and the rate that were found",
            delay_options(delays)
        ),
        None if !off.knows_frequency => {
            "--freq HZ: with the sky frequency, the rate is that of a delay".to_owned()
        }
        None => "the delay and the rate that were found in --delay or --model".to_owned(),
    }];
    if off.is_all {
        let wider = match off.wider_hz {
            Some(wider) => format!("--rate-window {wider}Hz"),
            None => "fewer --channels and a wider --rate-window".to_owned(),
        };
        let searched = show_hertz(off.rate_hz);
        ways.push(format!(
            "{wider} if the SNR does not rise then: the rate may be an alias of one beyond the {searched} that were searched"
        ));
    }
    let baselines = off.baselines.join(", ");
    listed(format!("fringe off the model on {baselines}; try:"), &ways)
}

/// Returns a heading and what to try, in a line each.
fn listed(heading: String, ways: &[String]) -> String {
    let lines = ways.iter().map(|way| format!("\n  - {way}"));
    lines.fold(heading, |text, line| text + &line)
}

fn ways(without: &NoFringe, options: &CorrelateOptions) -> Vec<String> {
    let is_default = options.polarisations == CorrelateOptions::default().polarisations;
    let polarisations = match is_default {
        _ if options.model.is_some() || without.bands == 1 => None,
        true => Some("--polarisations RL or 8R8L, if the bands are of two polarisations"),
        false if options.cross_hands => None,
        false => Some("--cross-hands, if the stations name their polarisations differently"),
    };
    let model = match options.model {
        Some(_) => {
            "--delay TERMS for each station: the offset of its clock, which adds to the model"
        }
        None => {
            "--model FILE (X.im of DiFX, the plan of `evlbi sky`), or --delay TERMS for each station"
        }
    };
    let is_late = |terms: &DelayTerms| terms.0.iter().any(|term| *term != 0.0);
    let sign = "--delay with the opposite sign: it is positive if the station receives later";
    let more = [
        match options.delay_window {
            Some(_) => "a wider --delay-window, or none",
            None => "more --channels, which widen the window of delays",
        },
        match options.rate_window {
            Some(_) => "a wider --rate-window, or none",
            None => "a shorter --integration, which widens the window of rates",
        },
    ];
    let data = match options.stretch {
        Stretch::All => "longer recordings: the SNR grows with the square root of their length",
        _ => "all of the recordings, without --last",
    };
    let mut ways = vec![model.to_owned()];
    if options.delay.iter().any(is_late) {
        ways.extend(delays_of_others(&without.stations, &options.delay));
        ways.push(sign.to_owned());
    }
    let clock = "--delay of a whole second, e.g. --delay 0 --delay 1s: a recorder's clock may be off by seconds, which no window covers";
    let more = more.into_iter().chain(polarisations).chain([clock, data]);
    ways.extend(more.map(str::to_owned));
    ways
}

/// Returns the options that give the delays to the stations behind the first, and whose they are now; `None` if all stations have one.
fn delays_of_others(stations: &[String], delays: &[DelayTerms]) -> Option<String> {
    let others = stations.get(1..=delays.len())?.join(", ");
    let now = stations[..delays.len()].join(", ");
    let zero = DelayTerms(Vec::new());
    let shifted = delay_options([&zero].into_iter().chain(delays));
    Some(format!(
        "{shifted}, which is for {others}: the given --delay applies to {now}"
    ))
}

/// Returns the options for these delays of the stations, in order.
fn delay_options<'t>(delays: impl IntoIterator<Item = &'t DelayTerms>) -> String {
    let options = delays.into_iter().map(|terms| format!("--delay {terms}"));
    options.collect::<Vec<String>>().join(" ")
}

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_window))
        .or_else(|| error.downcast_ref().and_then(of_plan))
        .or_else(|| error.downcast_ref().and_then(of_setup))
        .or_else(|| error.downcast_ref().and_then(of_stream))
        .or_else(|| error.downcast_ref().and_then(of_loss_curve))
        .or_else(|| error.downcast_ref().and_then(of_samples))
        .or_else(|| error.downcast_ref().and_then(of_recording))
        .or_else(|| error.downcast_ref().and_then(of_visibilities))
        .or_else(|| error.downcast_ref().and_then(of_fringe))
        .or_else(|| error.downcast_ref().and_then(of_chunks))
        .or_else(|| error.downcast_ref().and_then(of_distribute))
}

fn of_chunks(error: &ChunkError) -> Option<String> {
    let remedy = match error {
        ChunkError::Edited(_) | ChunkError::Contradicts(_) => {
            "make it again by `evlbi plan chunks`"
        }
        ChunkError::Memory(_) => "give a larger --memory, fewer --channels or fewer --threads",
        ChunkError::Version { .. } => {
            "use that version, or make the plan and all parts again with this one"
        }
        ChunkError::Changed { .. } | ChunkError::ChangedText(_) => {
            "restore it, or make the plan and all parts again"
        }
        ChunkError::NoParts(_) => "`evlbi correlate --plan FILE --part K --out DIR` makes a part",
        ChunkError::Damaged { .. } => {
            "correlate the part again by `evlbi correlate --plan FILE --part K --out DIR`, which replaces it"
        }
        ChunkError::Differ { .. } => {
            "a host or a disk is faulty, or its program is another one: delete both, and correlate the part again on a third host"
        }
        ChunkError::Simd { .. } => {
            "correlate one of them again with the --simd of the other, or accept that by `evlbi merge --mixed-simd`"
        }
        ChunkError::Sines { .. } => {
            "correlate one of them again on the other's host, or accept that by `evlbi merge --mixed-simd`"
        }
        ChunkError::OtherPlan(_) => "give each plan its own directory",
        ChunkError::Missing { .. } => "correlate them, or give --partial, which makes gaps of them",
        _ => return None,
    };
    Some(format!("{error}: {remedy}"))
}

fn of_distribute(error: &DistributeError) -> Option<String> {
    let DistributeError::Engine { command, why, .. } = error else {
        return None;
    };
    let remedy = match command.as_str() {
        "sbatch" | "squeue" if why.starts_with("cannot be run") => {
            "install the commands of Slurm, or run this on a host that has them"
        }
        command
            if command.ends_with("evlbi_dask") && why.contains("No module named evlbi_dask") =>
        {
            "install the package with `pip install ./python/evlbi_dask`, and name its Python with --python"
        }
        _ => return None,
    };
    Some(format!("{error}: {remedy}"))
}

fn of_recording(error: &RecordingError) -> Option<String> {
    Some(match error {
        RecordingError::Damaged { damage, .. } => match damage.other_frames {
            0 => format!("{error} (`evlbi inspect FILE` shows more)"),
            _ => format!(
                "{error} (`evlbi inspect FILE` shows them; select with #station=CODE or #thread=N)"
            ),
        },
        _ => return None,
    })
}

fn of_samples(error: &SamplesError) -> Option<String> {
    Some(match error {
        SamplesError::NoRate => format!("{error}: give --sample-rate"),
        SamplesError::NoFormat(_) => {
            format!("{error}: add them to its name, e.g. #format=Mark5B-1024-16-2")
        }
        SamplesError::Channels(_) => format!(
            "{error}: if the tracks are in the usual order, add their format to its name, e.g. #format=MKIV1_4-512-8-2"
        ),
        SamplesError::Raw | SamplesError::Header => format!(
            "{error}: `evlbi inspect FILE` shows what it contains; a truncated file needs two whole frames"
        ),
        SamplesError::OtherFormat { .. } => {
            format!("{error}: correct the format after `#`, or leave it out")
        }
        SamplesError::NotModulated(_) => format!("{error}: leave out `modulated` after `#`"),
        SamplesError::NotThere { .. } => format!("{error}: correct the selection after `#`"),
        SamplesError::OtherRate { .. } | SamplesError::Rate(_) => {
            format!("{error}: correct --sample-rate or the format after `#`")
        }
        _ => return None,
    })
}

fn of_visibilities(error: &VisibilityError) -> Option<String> {
    Some(match error {
        VisibilityError::NoDescription { .. } => format!(
            "{error}: give the directory that `evlbi correlate --out` wrote, or JOB.difx with JOB.input next to it"
        ),
        VisibilityError::SeveralCentres { .. } => format!("{error}: give one of its files"),
        VisibilityError::AlikeBands { .. } => {
            format!("{error}: give --polarisations, e.g. RL or 8X8Y, or other frequencies")
        }
        _ => return None,
    })
}

fn of_fringe(error: &FringeError) -> Option<String> {
    Some(match error {
        FringeError::NoDirectory(_) => {
            format!(
                "{error}: give what `evlbi correlate --out` or DiFX wrote, or two or more recordings"
            )
        }
        _ => return None,
    })
}

fn of_window(error: &WindowError) -> Option<String> {
    match error {
        WindowError::Delay {
            max_s,
            asked_s,
            channels,
        } => {
            let remedy = match CHANNELS.contains(channels) {
                true => format!("correlate with --channels {channels}"),
                false => "put most of the delay into --delay or --model".to_owned(),
            };
            let [asked, max] = [asked_s, max_s].map(|delay| show_seconds(*delay));
            Some(format!(
                "--delay-window {asked} is too wide: the channels resolve {max}; {remedy}"
            ))
        }
        WindowError::Rate { max_hz, asked_hz } => Some(format!(
            "--rate-window {} is too wide: the resolution allows {}; correlate with fewer --channels and a shorter --integration",
            show_hertz(*asked_hz),
            show_hertz(*max_hz)
        )),
        _ => None,
    }
}

fn of_plan(error: &PlanError) -> Option<String> {
    match error {
        PlanError::TooManyDelays { delays, recordings } => Some(format!(
            "--delay was given {delays} times for {recordings} recordings: give it at most once per recording"
        )),
        PlanError::NoFrequency => Some(
            "a --delay that changes with time needs the sky frequency: give --freq, e.g. 4.9GHz"
                .into(),
        ),
        PlanError::TooFewFrequencies(given) => Some(format!(
            "--freq names {given} frequencies for more bands: give one, or one per band"
        )),
        PlanError::BothSidebands(station) => Some(format!(
            "station {station} has channels of both sidebands: give --freq for each channel, or --channel-table"
        )),
        PlanError::Polarisations { .. } => Some(format!(
            "{error}: give --polarisations with smaller blocks, e.g. 4X4Y for 8 bands"
        )),
        PlanError::NoRow {
            station,
            thread,
            channel,
        } => Some(format!(
            "--channel-table has no row for thread {thread}, channel {channel} of station {station}: add one, or select other channels with #channels=LIST"
        )),
        PlanError::NoOverlap(_) => Some(format!("{error}: {WRONG_TIMES}")),
        PlanError::NoCommonBand { .. } => Some(format!(
            "{error}: correct --channel-table, --freq or --polarisations, or leave the station out"
        )),
        PlanError::SameName(_) => Some(format!("{error}, e.g. #name=Da")),
        PlanError::UnknownInverted { station, stations } => Some(format!(
            "unknown station {station} in --invert: the stations are {}",
            stations.join(", ")
        )),
        PlanError::UnknownStation { station, stations } => Some(format!(
            "unknown station {station} in --flag: the stations are {}",
            stations.join(", ")
        )),
        _ => None,
    }
}

fn of_setup(error: &SetupError) -> Option<String> {
    match error {
        SetupError::Bandwidth { .. } => Some(format!(
            "{error}: if a sample rate is wrong, correct --sample-rate or the format after `#`"
        )),
        _ => None,
    }
}

fn of_stream(error: &StreamError) -> Option<String> {
    let words = match error {
        StreamError::Flags => {
            "--flag cannot be used with --live: the times of streams are not known beforehand"
        }
        StreamError::Visibilities => {
            "--live cannot write visibilities: record the streams with `evlbi recv` and correlate the recordings"
        }
        _ => return None,
    };
    Some(words.into())
}

fn of_loss_curve(error: &LossCurveError) -> Option<String> {
    match error {
        LossCurveError::NoStation {
            station,
            recordings,
        } => Some(format!(
            "--station {station} is not among the {recordings} recordings"
        )),
        LossCurveError::Kept { given, recordings } => Some(format!(
            "--kept has {given} fractions for {recordings} recordings: give one for each"
        )),
        LossCurveError::NoPackets => {
            Some("--packet needs --unit packet: whole frames are shed otherwise".into())
        }
        LossCurveError::Packet { packet, frame } => Some(format!(
            "--packet {packet}: frames of {frame} bytes do not consist of whole packets of this length; give a divisor of {frame}"
        )),
        LossCurveError::LeftOut(_) => Some(format!("{error}: give only the others")),
        LossCurveError::NoFringe { .. } => Some(format!(
            "{error}: find it first with `evlbi correlate`, which lists what to try"
        )),
        _ => None,
    }
}

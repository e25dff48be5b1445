//! Points of a sweep: parses lists of sizes, and of rates or spacings.

use std::fmt;
use std::str::FromStr;

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_wire::units;

use crate::measure::{Spacing, Stream};

/// Maximum number of points of a sweep.
pub const MAX_POINTS: usize = 10_000;

/// UDP payloads in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes(pub Vec<usize>);

/// Bits of UDP payload per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates(pub Vec<BitRate>);

/// Nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Spacings(pub Vec<u64>);

/// Returns each given value, or `None` once if there is none.
pub(crate) fn each<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    match values {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let sizes = values(text, units::size)?;
        let sizes = sizes.into_iter().map(|size| size as usize);
        Ok(Sizes(sizes.collect()))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&sizes.join(","))
    }
}

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Rates, String> {
        let rate = |text: &str| match text.parse::<BitRate>() {
            Ok(rate) => Ok(rate.get()),
            Err(error) => Err(error.to_string()),
        };
        let rates = values(text, rate)?;
        Ok(Rates(rates.into_iter().filter_map(BitRate::new).collect()))
    }
}

impl FromStr for Spacings {
    type Err = String;

    fn from_str(text: &str) -> Result<Spacings, String> {
        let time = |text: &str| -> Result<u64, String> {
            let text = units::with_unit(text, "duration", ["us", "ms"])?;
            Ok(Nanos::from(units::duration(text)?).0)
        };
        values(text, time).map(Spacings)
    }
}

/// `1,2,3`, `0..50:5` (both ends included) and both mixed.
fn values<E: Into<String>>(
    text: &str,
    value: impl Fn(&str) -> Result<u64, E>,
) -> Result<Vec<u64>, String> {
    let value = |text| value(text).map_err(Into::into);
    let mut all = Vec::new();
    for part in text.split(',') {
        let Some((from, rest)) = part.split_once("..") else {
            all.push(value(part)?);
            continue;
        };
        let (to, step) = rest.split_once(':').ok_or_else(|| {
            format!("no step in `{part}`: give FROM..TO:STEP, e.g. 0..50us:0.5us")
        })?;
        let (from, to, step) = (value(from)?, value(to)?, value(step)?);
        if step == 0 || to < from {
            return Err(format!(
                "invalid range `{part}`: give FROM..TO:STEP with TO not below FROM and STEP above 0"
            ));
        }
        if (to - from) / step >= MAX_POINTS as u64 {
            return Err(format!("`{part}` has more than {MAX_POINTS} points"));
        }
        all.extend((from..=to).step_by(step as usize));
    }
    Ok(all)
}

/// Returns the streams of a sweep: each size at every rate, or every spacing. Without a count they end by time.
pub(crate) fn streams(
    sizes: &Sizes,
    rates: Option<&Rates>,
    spacings: Option<&Spacings>,
    burst: u32,
    count: Option<u64>,
) -> Vec<Stream> {
    let spacings: Vec<Spacing> = match (rates, spacings) {
        (Some(Rates(all)), _) => all.iter().copied().map(Spacing::BitsPerSecond).collect(),
        (None, Some(Spacings(all))) => all.iter().copied().map(Spacing::Nanoseconds).collect(),
        (None, None) => vec![Spacing::Nanoseconds(0)],
    };
    let mut streams = Vec::new();
    for size in &sizes.0 {
        for spacing in &spacings {
            streams.push(Stream {
                size: *size,
                spacing: *spacing,
                burst,
                count: count.unwrap_or(u64::MAX),
            });
        }
    }
    streams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        let sizes: Sizes = "64,512,1472".parse().unwrap();
        assert_eq!(
            (&*sizes.0, &*sizes.to_string()),
            (&[64, 512, 1472][..], "64,512,1472")
        );
        let spacings: Spacings = "0..2us:0.5us,10us".parse().unwrap();
        assert_eq!(spacings.0, [0, 500, 1000, 1500, 2000, 10_000]);
        let rates: Rates = "100M..300M:100M".parse().unwrap();
        let bits: Vec<u64> = rates.0.iter().map(|rate| rate.get()).collect();
        assert_eq!(bits, [100_000_000, 200_000_000, 300_000_000]);
        for bad in [
            "",
            "0..50us",
            "5us..1us:1us",
            "0..1us:0us",
            "0..1h:1ns",
            "x",
        ] {
            assert!(bad.parse::<Spacings>().is_err(), "{bad}");
        }
        assert_eq!("0".parse(), Ok(Spacings(vec![0])));
        for bare in ["10", "0..10:1us", "1us,10"] {
            let error = bare.parse::<Spacings>().unwrap_err();
            assert!(error.contains("add a unit, e.g. 10us"), "{bare}: {error}");
        }
    }

    #[test]
    fn every_size_has_every_spacing() {
        let [sizes, spacings] = ["64,1472", "0us,10us"];
        let (sizes, spacings) = (sizes.parse().unwrap(), spacings.parse().unwrap());
        let all = streams(&sizes, None, Some(&spacings), 1, None);
        let shown: Vec<(usize, Spacing)> = all.iter().map(|one| (one.size, one.spacing)).collect();
        let [none, ten] = [0, 10_000].map(Spacing::Nanoseconds);
        assert_eq!(shown, [(64, none), (64, ten), (1472, none), (1472, ten)]);
        let counted = streams(&sizes, None, Some(&spacings), 1, Some(7));
        assert!(counted.iter().all(|stream| stream.count == 7));
    }
}

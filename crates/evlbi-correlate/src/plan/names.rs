//! Names of the stations.

use std::collections::HashSet;
use std::path::Path;

use evlbi_stream::selection::Selection;
use evlbi_wire::vdif::StationId;

use super::{Placed, PlanError};
use crate::shape::Shape;

/// Checks that the names which settings give differ.
pub fn check_given<'s>(selections: impl Iterator<Item = &'s Selection>) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    let mut given = selections.filter_map(|selection| selection.name.as_ref());
    match given.find(|name| !seen.insert(*name)) {
        Some(name) => Err(PlanError::SameName(name.clone())),
        None => Ok(()),
    }
}

/// Returns names for the stations: the given ones, else their codes or, without a code, the names of the files. If these are alike, all
/// that are not given are those of the files.
pub(super) fn names(files: &[String], shapes: &[Placed<'_>]) -> Result<Vec<String>, PlanError> {
    check_given(shapes.iter().map(|(_, shape)| &shape.selection))?;
    let given = |shape: &Shape| shape.selection.name.clone();
    let differ = |names: &Vec<String>| HashSet::<&String>::from_iter(names).len() == names.len();
    let numbered = |number: usize| format!("station {}", number + 1);
    let stem = |number: usize| {
        // A stream has no file.
        let file = files.get(number).filter(|file| !file.contains("://"))?;
        let (path, _) = Selection::split(file).ok()?;
        let stem = Path::new(&path).file_stem()?;
        Some(stem.to_string_lossy().into_owned())
    };
    let by = |name: &dyn Fn(usize, &Shape) -> Option<String>| -> Vec<String> {
        let names = shapes.iter().map(|(number, shape)| {
            let name = given(shape).or_else(|| name(*number, shape));
            name.unwrap_or_else(|| numbered(*number))
        });
        names.collect()
    };
    let codes = by(&|number, shape| match has_code(shape) {
        true => Some(shape.station.to_string()),
        false => stem(number),
    });
    if differ(&codes) {
        return Ok(codes);
    }
    let stems = by(&|number, _| stem(number));
    Ok(match differ(&stems) {
        true => stems,
        false => by(&|_, _| None),
    })
}

/// Describes two inputs of one station, and how they are called instead of by its code; `None` if there are none.
pub fn twice(files: &[String], shapes: &[Placed<'_>]) -> Option<String> {
    let names = names(files, shapes).ok()?;
    let code = |index: usize| {
        let (_, shape) = shapes[index];
        let given = shape.selection.name.clone();
        given.or_else(|| has_code(shape).then(|| shape.station.to_string()))
    };
    let mut pairs = (0..shapes.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let (a, b) = pairs.find(|(a, b)| code(*a).is_some() && code(*a) == code(*b))?;
    let [first, second] = [a, b].map(|index| &files[shapes[index].0]);
    Some(format!(
        "{first} and {second} are both of station {}: they are called {} and {}; to name one, add #name=NAME to it",
        code(a)?,
        names[a],
        names[b]
    ))
}

/// Returns whether the frames of an input have the code of a station.
fn has_code(shape: &Shape) -> bool {
    shape.station != StationId::default()
}

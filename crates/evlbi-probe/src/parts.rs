//! A result written to disk as it grows: a line of JSON for each part once that is known, and the whole result as the last line.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evlbi_net::run::{Run, explain};
use serde::Serialize;
use serde_json::json;

/// A result, and whether it could be written to its file.
#[derive(Debug)]
pub struct Measured<R> {
    /// The result, complete or up to an interruption.
    pub result: R,
    /// Whether all of it is in the requested file, if there is one.
    pub written: Result<(), WriteError>,
}

/// First line of the file of a result that grows.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartsHead {
    /// Name and version of the file's format.
    pub schema: &'static str,
    /// Schema of the result, which is the last line.
    pub of: String,
    /// The responder, as given in the options.
    pub target: String,
    /// Start of the test, in UTC (RFC 3339).
    pub begun: String,
}

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
#[non_exhaustive]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// File of a result that grows. A failure to write does not end the test; [`Parts::finish`] reports it.
pub struct Parts {
    file: Option<(File, PathBuf)>,
    failed: Option<WriteError>,
}

impl Parts {
    /// Starts a result of this schema, if a file is requested.
    pub fn begin(
        path: Option<&Path>,
        schema: &str,
        target: &str,
        run: &Run,
    ) -> Result<Parts, WriteError> {
        let file = path.map(|path| match File::create(path) {
            Ok(file) => Ok((file, path.to_owned())),
            Err(source) => {
                let path = path.to_owned();
                Err(WriteError { path, source })
            }
        });
        let mut parts = Parts {
            file: file.transpose()?,
            failed: None,
        };
        parts.line(&json!(PartsHead {
            schema: "evlbi.probe.parts/1",
            of: schema.to_owned(),
            target: target.to_owned(),
            begun: super::now(run),
        }));
        Ok(parts)
    }

    /// Adds a part.
    pub fn add<T: Serialize>(&mut self, name: &str, part: &T) {
        if self.file.is_some() {
            self.line(&json!({ name: part }));
        }
    }

    /// Adds the whole result.
    pub fn finish<R: Serialize>(mut self, result: R) -> Measured<R> {
        self.add("result", &result);
        Measured {
            result,
            written: self.failed.map_or(Ok(()), Err),
        }
    }

    fn line(&mut self, line: &serde_json::Value) {
        let Some((file, path)) = &mut self.file else {
            return;
        };
        // In one write, so that only the last line can be incomplete.
        if let Err(source) = file.write_all(format!("{line}\n").as_bytes()) {
            let path = path.clone();
            let error = WriteError { path, source };
            tracing::warn!("{}; the test continues without it", explain(&error));
            self.failed = Some(error);
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use evlbi_testkit::Room;
    use serde_json::Value;

    use super::*;

    #[test]
    fn known_results_are_on_the_disk() {
        let room = Room::new();
        let path = room.path("parts");
        let lines = || -> Vec<Value> {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            lines.collect()
        };
        let mut parts = Parts::begin(
            Some(Path::new(&path)),
            "evlbi.some/1",
            "jive",
            &Run::silent(),
        )
        .unwrap();
        assert_eq!(
            (lines().len(), &lines()[0]["of"]),
            (1, &json!("evlbi.some/1"))
        );
        parts.add("point", &7);
        assert_eq!(lines()[1], json!({"point": 7}));
        parts.finish(json!([7])).written.unwrap();
        assert_eq!(lines()[2], json!({"result": [7]}));
    }

    #[test]
    fn a_full_disk_ends_no_test() {
        let full = Some(Path::new("/dev/full"));
        let mut parts = Parts::begin(full, "evlbi.some/1", "jive", &Run::silent()).unwrap();
        parts.add("point", &7);
        assert!(
            parts
                .finish(7)
                .written
                .unwrap_err()
                .to_string()
                .contains("/dev/full")
        );
        let mut none = Parts::begin(None, "evlbi.some/1", "jive", &Run::silent()).unwrap();
        none.add("point", &7);
        none.finish(7).written.unwrap();
    }
}

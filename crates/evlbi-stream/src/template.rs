//! Names of files by station, thread and channel.

use evlbi_wire::vdif::{StationId, StreamKey};

use crate::selection::ChannelId;

/// Maximum number of files per stream or recording. Damaged headers must not fill a directory.
pub const MAX_FILES: usize = 256;

/// A name with an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown placeholder in `{0}`: use {{station}}, {{thread}} or {{channel}}")]
#[non_exhaustive]
pub struct TemplateError(pub String);

/// Station, thread and channel of a file, as far as its name contains them.
pub type Place = (Option<StationId>, Option<u16>, Option<ChannelId>);

/// Template of the names of files, which may contain `{station}`, `{thread}` and `{channel}`.
pub struct Template {
    text: String,
    has_station: bool,
    has_thread: bool,
    has_channel: bool,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// Returns an error if it contains another placeholder.
    pub fn new(text: &str) -> Result<Template, TemplateError> {
        let names = ["{station}", "{thread}", "{channel}"];
        let rest = names
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(name, "-"));
        if rest.contains(['{', '}']) {
            return Err(TemplateError(text.to_owned()));
        }
        let [has_station, has_thread, has_channel] = names.map(|name| text.contains(name));
        Ok(Template {
            text: text.to_owned(),
            has_station,
            has_thread,
            has_channel,
        })
    }

    /// Returns whether there is one file per channel.
    pub fn has_channel(&self) -> bool {
        self.has_channel
    }

    /// Returns whether all goes to one file.
    pub fn is_one(&self) -> bool {
        !(self.has_station || self.has_thread || self.has_channel)
    }

    /// Returns what distinguishes the file of a thread or channel from others.
    pub fn place(&self, key: StreamKey, channel: Option<ChannelId>) -> Place {
        let station = self.has_station.then_some(key.station);
        let thread = self.has_thread.then_some(key.thread);
        (station, thread, channel.filter(|_| self.has_channel))
    }

    /// Returns the name of the file of a thread or channel.
    pub fn name(&self, key: StreamKey, channel: Option<ChannelId>) -> String {
        let channel = channel.map(|channel| channel.to_string());
        self.text
            .replace("{station}", &station_name(key.station))
            .replace("{thread}", &key.thread.to_string())
            .replace("{channel}", channel.as_deref().unwrap_or_default())
    }
}

/// Returns a station's name for its file. The number 10 becomes 010, so that it differs from the characters `10`.
fn station_name(station: StationId) -> String {
    match station.0 {
        number @ 10..=99 => format!("{number:03}"),
        _ => station.to_string(),
    }
}

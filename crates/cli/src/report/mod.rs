//! The results of `blkmq bench`, and every way to show them.
//!
//! The runner fills a [`model::Report`]; [`render`] turns it into text, fio's JSON, CSV or one HTML page. All formats
//! read the same plain data, so they cannot disagree. [`warnings`] says when a report is unreliable, [`findings`]
//! interprets its figures.
//!
//! Usage: [`model::Machine::detect`] and [`open`] before the first run, [`Output::write`] after each.

mod figures;
pub mod findings;
pub mod job;
pub mod model;
pub mod queue;
pub mod warnings;

mod csv;
pub mod html;
mod json;
pub mod label;
pub mod markup;
pub mod number;
mod output;
#[cfg(test)]
pub(crate) mod sample;
pub mod svg;
pub mod table;
pub mod terse;

use blkmq_terminal::output::width;
pub use csv::quoted;
use model::Report;
pub use output::{Output, OutputError, open, open_as};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The form of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text for a terminal; fio's name for it is `normal`.
    Normal,
    /// fio's JSON.
    Json,
    /// fio's JSON with every bucket of the latencies, `json+`.
    JsonPlus,
    /// A line for each job.
    Csv,
    /// One page with plots.
    Html,
    /// fio's terse lines.
    Terse(terse::Version),
}

impl Format {
    /// Every format with its name on the command line.
    pub const ALL: [(&'static str, Self); 6] = [
        ("normal", Self::Normal),
        ("json", Self::Json),
        ("json+", Self::JsonPlus),
        ("csv", Self::Csv),
        ("html", Self::Html),
        ("terse", Self::Terse(terse::Version::V3)),
    ];

    /// The file name extensions that imply a format.
    pub const ENDINGS: &str = ".html, .htm, .json, .csv, .txt";

    /// The format implied by a file name's extension, or `None`.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("json") => Some(Self::Json),
            Some("csv") => Some(Self::Csv),
            Some("html" | "htm") => Some(Self::Html),
            Some("txt") => Some(Self::Normal),
            _ => None,
        }
    }
}

/// A format that does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFormat(pub String);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Format::ALL.map(|(name, _)| name).join(", ");
        write!(f, "no output format '{}'; accepted: {names}", self.0)
    }
}

impl std::error::Error for UnknownFormat {}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

/// The version for programs that read fio's output: fio's, whose schema is used, and ours.
#[must_use]
pub fn as_fio(version: &str) -> String {
    format!("fio-3.33-blkmq-{version}")
}

/// Formats the report, ending in a newline; text has the terminal's width.
#[must_use]
pub fn render(report: &Report, format: Format) -> String {
    match format {
        Format::Normal => table::render(report, width()),
        Format::Json => json::render(report, json::Detail::Plain),
        Format::JsonPlus => json::render(report, json::Detail::Bins),
        Format::Csv => csv::render(report),
        Format::Html => html::render(report),
        Format::Terse(version) => terse::render(report, version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_files_suggest_them() {
        for (name, format) in Format::ALL {
            assert_eq!(name.parse(), Ok(format));
        }
        let error = "xml".parse::<Format>().unwrap_err();
        let expected = "no output format 'xml'; accepted: normal, json, json+, csv, html, terse";
        assert_eq!(error.to_string(), expected);
        assert_eq!(Format::of_path(Path::new("a.b/x.JSON")), Some(Format::Json));
        assert_eq!(Format::of_path(Path::new("x.txt")), Some(Format::Normal));
        assert_eq!(Format::of_path(Path::new("x.pdf")), None);
        for ending in Format::ENDINGS.split(", ") {
            assert!(Format::of_path(Path::new(&format!("x{ending}"))).is_some(), "{ending}");
        }
    }

    #[test]
    fn every_format_of_every_report_ends_in_a_newline() {
        let reports =
            [Report::default(), sample::single(), sample::comparison(), sample::hostile()];
        for report in &reports {
            for (name, format) in Format::ALL {
                let text = render(report, format);
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}: {text:?}");
            }
        }
    }
}

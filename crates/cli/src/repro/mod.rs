//! `blkmq repro`: the published claims that this project grew out of, measured again on this machine.
//!
//! For each [`Name`](name::Name) there is what was published ([`published`]), which runs show it here ([`cases`]), and
//! what came of them ([`model`]); [`render`] shows both beside each other as text, JSON or a page. Nothing here
//! measures: every case is a command line of `blkmq bench`, and whoever runs it fills a [`model::Point`].

pub mod args;
pub mod cases;
mod findings;
mod html;
mod json;
pub mod metric;
pub mod model;
pub mod name;
mod plot;
pub mod published;
#[cfg(test)]
mod sample;
mod table;
mod text;

use crate::report::Format;
use model::Repro;

/// What was found, in the given format, ending in a newline; as text for the two that `blkmq repro` does not know.
pub fn render(repro: &Repro, format: Format) -> String {
    match format {
        Format::Json => json::render(repro),
        Format::Html => html::render(repro),
        Format::Normal | Format::JsonPlus | Format::Csv => text::render(repro),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_another_text_that_ends_in_a_newline() {
        let formats = [Format::Normal, Format::Json, Format::Html];
        for repro in [Repro::default(), sample::both(), sample::hostile()] {
            let texts = formats.map(|format| render(&repro, format));
            for text in &texts {
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
            }
            let starts = texts.map(|text| text.chars().next());
            assert!(starts[1] == Some('{') && starts[2] == Some('<'));
        }
    }
}

//! `blkmq repro`: the published claims that this project grew out of, measured again on this machine.
//!
//! A [`claim`] is a data file: the published figures, and a study of `blkmq experiment` that shows it here. [`measure`]
//! runs the points of the studies, and the pages [`text`], [`html`] and [`json`] show the answers beside the published
//! figures.

pub mod args;
mod calls;
mod claim;
mod html;
mod json;
mod measure;
mod memory_disk;
#[cfg(test)]
mod sample;
mod text;

use crate::Failure;
use crate::report::model::Partial;
use crate::report::{self, Format};
use args::Wanted;
use blkmq_terminal::interrupt::Stop;
use blkmq_terminal::screen;
use measure::Repro;

/// Measures the claims of `wanted`, and writes the page if requested. Returns the text to print, and the verdict: an
/// error if the page could not be written, or a signal ended the measurement.
///
/// # Errors
/// If a claim cannot be measured here, or the page cannot be opened.
pub fn run(wanted: &Wanted, command: String) -> Result<(String, Result<(), Failure>), Failure> {
    let stop = Stop::on_signals();
    // The page is opened before the minutes of measuring are spent.
    let page = wanted.report.as_deref().map(report::open).transpose()?;
    let repro = measure::measure(wanted, command, &stop)?;
    let mut text = render(&repro, wanted.format);
    if let (Some(mut file), Some(path)) = (page, &wanted.report) {
        if let Err(e) = file.write_text(&render(&repro, Format::Html)) {
            return Ok((text, Err(Failure::Results(e.to_string()))));
        }
        if wanted.format == Format::Normal {
            text.push_str(&format!("\nThe same with plots: {}\n", path.display()));
        }
    }
    let verdict = match repro.partial {
        Some(Partial { done, planned, signal: Some(signal) }) => {
            Err(Failure::Interrupted(signal, format!("{done} of {planned} runs are whole")))
        }
        _ => Ok(()),
    };
    Ok((text, verdict))
}

/// Formats the results, ending in a newline; as text for formats that `blkmq repro` does not support.
fn render(repro: &Repro, format: Format) -> String {
    match format {
        Format::Json => json::render(repro),
        Format::Html => html::render(repro),
        Format::Normal | Format::JsonPlus | Format::Csv | Format::Terse(_) => {
            text::render(repro, screen::width())
        }
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

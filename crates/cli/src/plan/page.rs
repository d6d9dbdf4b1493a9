//! The page that is written beside a text: a file of results is looked at again, and plots show more.

use super::Plan;
use crate::report::Format;
use std::path::PathBuf;

impl Plan {
    /// Adds the page `FILE.html` to results that go to `FILE` as text, if no other report is asked for. Nothing is added
    /// to a pipe or a device.
    pub fn add_page(&mut self) {
        let Some(output) = self.output.as_ref().filter(|_| self.report.is_none()) else { return };
        let is_file = output.metadata().map_or(true, |it| it.is_file());
        if self.format == Format::Normal && is_file {
            let mut name = output.clone().into_os_string();
            name.push(".html");
            self.report = Some(PathBuf::from(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Request};
    use crate::plan::Time;

    #[test]
    fn a_text_in_a_file_has_a_page_beside_it() {
        for (line, page) in [
            ("--output=/tmp/none-such.txt", Some("/tmp/none-such.txt.html")),
            ("--output=/tmp/none-such.txt --report=x.json", Some("x.json")),
            ("--output=/tmp/none-such.txt --output-format=json", None),
            ("--output=/dev/null", None),
            ("", None),
        ] {
            let line = format!("--rw=read --size=1m {line}");
            let words = Vec::from_iter(line.split_whitespace().map(String::from));
            let Ok(Request::Plan(mut plan)) = args::parse(&words, Time::Real) else {
                panic!("{line}")
            };
            plan.add_page();
            assert_eq!(plan.report, page.map(PathBuf::from), "{line}");
            assert_eq!(plan.draws(), page.is_some_and(|page| page.ends_with(".html")));
        }
    }
}

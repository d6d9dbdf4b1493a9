//! Text of a given width: lines, paragraphs and tables. No line exceeds the width, so that no terminal breaks a line
//! within a word.

use crate::text_table::{TextTable, printable};
use unicode_width::UnicodeWidthStr;

/// The maximum width of a paragraph, for legibility.
const PROSE: usize = 100;

/// The indent of continuation lines, in columns.
const HANGING: usize = 4;

/// Units, which stay on the line of the number before them.
const UNITS: [&str; 15] = [
    "ns", "us", "ms", "s", "min", "B", "KiB", "MiB", "GiB", "TiB", "KiB/s", "MiB/s", "GiB/s",
    "B/s", "%",
];

/// Text under construction.
#[derive(Debug)]
pub struct Paper {
    text: String,
    width: usize,
}

impl Paper {
    /// Creates paper of `width` columns.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    /// The width in columns.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Adds text as it is.
    pub fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a letter as it is.
    pub fn push(&mut self, letter: char) {
        self.text.push(letter);
    }

    /// Adds a table, split into parts if it is wider than the paper.
    pub fn table(&mut self, table: &TextTable) {
        self.text.push_str(&table.render_within(self.width));
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    /// Adds `text` after `lead` in lines of at most `width` columns; continuation lines are indented by `indent`.
    fn wrap(&mut self, lead: &str, text: &str, indent: usize, width: usize) {
        let mut line = lead.to_owned();
        let mut is_empty = true;
        for word in words(text) {
            let mut word = word.as_str();
            let gap = usize::from(!is_empty);
            if line.width() + gap + word.width() > width && !is_empty {
                self.line(&line);
                (line, is_empty) = (" ".repeat(indent), true);
            }
            if !is_empty {
                line.push(' ');
            }
            // A word longer than a line, such as a path.
            while line.width() + word.width() > width {
                let room = width.saturating_sub(line.width()).max(1);
                let end = word.char_indices().nth(room).map_or(word.len(), |(at, _)| at);
                line.push_str(&word[..end]);
                word = &word[end..];
                if word.is_empty() {
                    break;
                }
                self.line(&line);
                line = " ".repeat(indent);
            }
            line.push_str(word);
            is_empty = false;
        }
        self.line(&line);
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// Splits a text into words; a number and its unit are one word.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let bare = word.trim_end_matches([',', ';', '.', ':', ')', ']']);
        match words.last_mut() {
            Some(last) if last.ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&bare) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Adds a line of `text` indented by `indent` spaces, broken between words if it is too long.
pub fn push_line(out: &mut Paper, indent: usize, text: &str) {
    let (text, lead) = (printable(text), " ".repeat(indent));
    if indent + text.width() <= out.width {
        out.line(&format!("{lead}{text}"));
    } else {
        out.wrap(&lead, &text, indent + HANGING, out.width);
    }
}

/// Adds a command line that a shell can read: a long one continues after a backslash, never within quotes.
pub fn push_command(out: &mut Paper, indent: usize, line: &str) {
    let (line, mut text) = (printable(line), " ".repeat(indent));
    let mut is_empty = true;
    for word in shell_words(&line) {
        let gap = usize::from(!is_empty);
        // The backslash and the space before it.
        if !is_empty && text.width() + gap + word.width() + 2 > out.width {
            out.line(&format!("{text} \\"));
            (text, is_empty) = (" ".repeat(indent + HANGING), true);
        }
        if !is_empty {
            text.push(' ');
        }
        text.push_str(word);
        is_empty = false;
    }
    out.line(&text);
}

/// Splits a command line into words, with their quotes.
fn shell_words(line: &str) -> Vec<&str> {
    let mut quote = None;
    let words = line.split(move |c: char| {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            _ => {}
        }
        c == ' ' && quote.is_none()
    });
    words.filter(|word| !word.is_empty()).collect()
}

/// Adds a paragraph; continuation lines are aligned with the text after `lead`.
pub fn paragraph(out: &mut Paper, lead: &str, text: &str) {
    out.wrap(lead, &printable(text), lead.len(), out.width.min(PROSE));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(width: usize, write: impl FnOnce(&mut Paper)) -> Vec<String> {
        let mut paper = Paper::new(width);
        write(&mut paper);
        paper.finish().lines().map(String::from).collect()
    }

    #[test]
    fn a_command_goes_on_behind_a_backslash_and_never_within_quotes() {
        let line = "blkmq bench --name='a b  c' --rw=read --size=1m";
        let text = lines(24, |paper| push_command(paper, 2, line));
        let expected = [
            "  blkmq bench \\",
            "      --name='a b  c' \\",
            "      --rw=read \\",
            "      --size=1m",
        ];
        assert_eq!(text, expected);
        assert_eq!(lines(80, |paper| push_command(paper, 0, line)), [line]);
    }

    #[test]
    fn paragraphs_wrap_under_themselves_and_are_no_wider_than_can_be_read() {
        for (width, most) in [(60, 60), (80, 80), (100, 100), (200, 100)] {
            let lines = lines(width, |out| paragraph(out, "Note: ", &"word ".repeat(60)));
            assert!(lines.iter().all(|l| l.len() <= most && !l.ends_with(' ')), "{lines:?}");
            assert!(lines[0].len() > most - 6 && lines[1].starts_with("      word"), "{lines:?}");
        }
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        let text = "It took 17.6 ms, and 4.00 KiB/s (12.5 %).";
        for width in 14..60 {
            let lines = lines(width, |out| paragraph(out, "", text));
            for line in &lines {
                let first = line.split(' ').next().unwrap_or_default();
                assert!(!["ms,", "KiB/s", "%)."].contains(&first), "{lines:?}");
            }
        }
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_is_broken() {
        let path = format!("/{}", "x".repeat(150));
        let lines = lines(60, |out| paragraph(out, "Note: ", &format!("see {path} there")));
        assert!(lines.iter().all(|line| line.len() <= 60), "{lines:?}");
        let all: String = lines.iter().map(|line| line.trim_start()).collect();
        assert!(all.contains(&path), "{lines:?}");
    }

    #[test]
    fn a_line_that_fits_stays_as_it_is() {
        assert_eq!(lines(60, |out| push_line(out, 2, "a:   b")), ["  a:   b"]);
        let long = lines(60, |out| push_line(out, 2, "share=1.0%, ".repeat(8).trim_end()));
        assert!(long.len() == 2 && long[1].starts_with("      share"), "{long:?}");
    }
}

//! Columns of text, aligned with spaces: for terminals, mails and diffs. Knows nothing of benchmarks.

use unicode_width::UnicodeWidthStr;

/// The edge to which the cells of a column are aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// Rows under a heading.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: Vec<(String, Align)>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// The table as lines: heading, rule, rows. No line ends in a space.
    #[must_use]
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|c| {
                let cells = self.rows.iter().map(|row| row[c].width());
                cells.chain([self.columns[c].0.width()]).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        self.line(&mut out, &heading, &widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.line(&mut out, &rule, &widths);
        for row in &self.rows {
            self.line(&mut out, row, &widths);
        }
        out
    }

    fn line(&self, out: &mut String, cells: &[String], widths: &[usize]) {
        let padded =
            cells.iter().zip(widths).zip(&self.columns).map(|((cell, &width), (_, align))| {
                // The formatter counts letters, of which some are two columns wide and some none.
                let space = " ".repeat(width - cell.width());
                match align {
                    Align::Left => format!("{cell}{space}"),
                    Align::Right => format!("{space}{cell}"),
                }
            });
        out.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
}

/// Text that cannot move a terminal's cursor, change its colour or start a line: control characters become `?`.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table =
            TextTable::new(vec![("name".into(), Align::Left), ("IOPS".into(), Align::Right)]);
        table.row(&["a".into(), "1".into()]);
        table.row(&["longer\n".into(), "12.3k".into()]);
        let expected = "name      IOPS\n-------  -----\na            1\nlonger?  12.3k\n";
        assert_eq!(table.render(), expected);
    }

    /// A path in a table may hold letters that are two columns wide, or none.
    #[test]
    fn a_cell_is_as_wide_as_a_terminal_shows_it() {
        let mut table =
            TextTable::new(vec![("file".into(), Align::Left), ("n".into(), Align::Right)]);
        for cell in ["\u{65e5}\u{672c}", "e\u{301}t\u{e9}", "abcde"] {
            table.row(&[cell.into(), "1".into()]);
        }
        let expected = "file   n\n-----  -\n\u{65e5}\u{672c}   1\ne\u{301}t\u{e9}    1\nabcde  1\n";
        assert_eq!(table.render(), expected);
    }
}

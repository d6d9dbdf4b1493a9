//! Columns of text, aligned with spaces: for terminals, mails and diffs. Knows nothing of benchmarks.

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
                let cells = self.rows.iter().map(|row| row[c].chars().count());
                cells.chain([self.columns[c].0.chars().count()]).max().unwrap_or(0)
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
                match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
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
}

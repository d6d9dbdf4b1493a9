//! Text of a given width: lines, paragraphs and tables. No line exceeds the width, so that no terminal breaks a line
//! within a word. Tables are columns of text, aligned with spaces, for terminals, mails and diffs.

use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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

    /// Adds `words` after `lead` in lines of at most `width` columns; continuation lines are indented by `indent`.
    /// `end` ends each line but the last; with such an end, words are never broken.
    fn wrap<'a>(
        &mut self,
        lead: &str,
        words: impl IntoIterator<Item = &'a str>,
        indent: usize,
        width: usize,
        end: &str,
    ) {
        let mut line = lead.to_owned();
        let mut is_empty = true;
        for mut word in words {
            if !is_empty && line.width() + 1 + word.width() + end.width() > width {
                self.line(&format!("{line}{end}"));
                (line, is_empty) = (" ".repeat(indent), true);
            }
            if !is_empty {
                line.push(' ');
            }
            // A word longer than a line, such as a path.
            while end.is_empty() && line.width() + word.width() > width {
                let room = width.saturating_sub(line.width()).max(1);
                let at = word.char_indices().nth(room).map_or(word.len(), |(at, _)| at);
                line.push_str(&word[..at]);
                word = &word[at..];
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
        out.wrap(&lead, words(&text).iter().map(String::as_str), indent + HANGING, out.width, "");
    }
}

/// Adds a command line that a shell can read: a long one continues after a backslash, never within quotes.
pub fn push_command(out: &mut Paper, indent: usize, line: &str) {
    let (line, lead) = (printable(line), " ".repeat(indent));
    out.wrap(&lead, shell_words(&line), indent + HANGING, out.width, " \\");
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
    let words = words(&printable(text));
    out.wrap(lead, words.iter().map(String::as_str), lead.len(), out.width.min(PROSE), "");
}

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
    /// The number of leading columns that identify a row.
    keys: usize,
}

/// The number of spaces between columns.
const GAP: usize = 2;
/// The minimum width to which a cell of words is cut.
const SHORTEST: usize = 8;

impl TextTable {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(columns: Vec<(String, Align)>) -> Self {
        let keys = columns.iter().take_while(|(_, align)| *align == Align::Left).count();
        Self { columns, rows: Vec::new(), keys: keys.max(1) }
    }

    /// Sets the number of leading columns that identify a row. By default these are the leading columns of words.
    pub fn keys(&mut self, keys: usize) {
        self.keys = keys;
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// Renders the table in lines of at most `most` columns: heading, rule, rows. No line ends in a space. A wider table
    /// is split into parts, one below the other. Each part begins with the columns that identify the rows, with long
    /// cells shortened. Any other cell is shortened only if it does not fit a part alone.
    #[must_use]
    pub fn render_within(&self, most: usize) -> String {
        let mut widths = self.widths();
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let mut out = String::new();
        if total(&all, &widths) <= most {
            self.part(&mut out, &all, &widths);
            return out;
        }
        let (keys, figures) = all.split_at(self.keys.min(all.len()));
        let least = keys.iter().map(|at| widths[*at].min(SHORTEST) + GAP).sum::<usize>();
        for at in figures {
            self.shorten(&[*at], most.saturating_sub(least), &mut widths);
        }
        let differs =
            |column: &usize| self.rows.windows(2).any(|it| it[0][*column] != it[1][*column]);
        let varying: Vec<usize> = keys.iter().copied().filter(differs).collect();
        let mut shown = keys.to_vec();
        // Key columns leave half of a part to figures, and enough room for the widest figure.
        let widest = figures.iter().map(|at| widths[*at]).max().unwrap_or(0);
        let room = most.saturating_sub(widest + GAP);
        self.shorten(keys, if figures.len() > 1 { room.min(most / 2) } else { room }, &mut widths);
        let mut left = figures.iter().copied().peekable();
        loop {
            while let Some(next) =
                left.next_if(|next| total(&shown, &widths) + GAP + widths[*next] <= most)
            {
                shown.push(next);
            }
            self.part(&mut out, &shown, &widths);
            let Some(next) = left.next() else { return out };
            out.push('\n');
            shown.clone_from(&varying);
            // As many key columns as leave room for a figure.
            while total(&shown, &widths) + GAP + widths[next] > most && shown.len() > 1 {
                shown.pop();
            }
            shown.push(next);
        }
    }

    /// Narrows these columns, the widest column of words first, until they fit or none can be shortened.
    fn shorten(&self, columns: &[usize], most: usize, widths: &mut [usize]) {
        let words = |at: &&usize| self.columns[**at].1 == Align::Left;
        while total(columns, widths) > most {
            let widest = columns.iter().filter(words).max_by_key(|at| widths[**at]);
            let Some(&widest) = widest.filter(|at| widths[**at] > SHORTEST) else { return };
            widths[widest] -= 1;
        }
    }

    fn widths(&self) -> Vec<usize> {
        let width = |c: usize| {
            let cells = self.rows.iter().map(|row| row[c].width());
            cells.chain([self.columns[c].0.width()]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }

    /// Renders the columns `shown` of all rows.
    fn part(&self, out: &mut String, shown: &[usize], widths: &[usize]) {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        self.line(out, &heading, shown, widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.line(out, &rule, shown, widths);
        for row in &self.rows {
            self.line(out, row, shown, widths);
        }
    }

    fn line(&self, out: &mut String, cells: &[String], shown: &[usize], widths: &[usize]) {
        let padded = shown.iter().map(|&at| {
            let cell = shortened(&cells[at], widths[at]);
            // The formatter counts characters, some of which are two columns wide and some zero.
            let space = " ".repeat(widths[at].saturating_sub(cell.width()));
            match self.columns[at].1 {
                Align::Left => format!("{cell}{space}"),
                Align::Right => format!("{space}{cell}"),
            }
        });
        out.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
}

/// The width of these columns on the terminal.
fn total(columns: &[usize], widths: &[usize]) -> usize {
    let gaps = GAP * columns.len().saturating_sub(1);
    columns.iter().map(|at| widths[*at]).sum::<usize>() + gaps
}

/// The cell, or its beginning and end if it is wider than `most`: cells may differ at either end.
fn shortened(cell: &str, most: usize) -> Cow<'_, str> {
    if cell.width() <= most {
        return Cow::Borrowed(cell);
    }
    let room = most.saturating_sub(3);
    let (mut head, mut tail) = (String::new(), String::new());
    let fits = |text: &str, c: char, room: usize| text.width() + c.width().unwrap_or(0) <= room;
    for c in cell.chars() {
        if !fits(&head, c, room.div_ceil(2)) {
            break;
        }
        head.push(c);
    }
    for c in cell.chars().rev() {
        if !fits(&tail, c, room / 2) {
            break;
        }
        tail.insert(0, c);
    }
    format!("{head}...{tail}").into()
}

/// Returns text that cannot move the cursor, change colours or start a line: control characters become `?`.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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

    #[test]
    fn columns_are_aligned() {
        let mut table =
            TextTable::new(vec![("name".into(), Align::Left), ("IOPS".into(), Align::Right)]);
        table.row(&["a".into(), "1".into()]);
        table.row(&["longer\n".into(), "12.3k".into()]);
        let expected = "name      IOPS\n-------  -----\na            1\nlonger?  12.3k\n";
        assert_eq!(table.render_within(usize::MAX), expected);
    }

    /// A path in a table may contain characters that are two columns wide, or zero.
    #[test]
    fn a_cell_is_as_wide_as_a_terminal_shows_it() {
        let mut table =
            TextTable::new(vec![("file".into(), Align::Left), ("n".into(), Align::Right)]);
        for cell in ["\u{65e5}\u{672c}", "e\u{301}t\u{e9}", "abcde"] {
            table.row(&[cell.into(), "1".into()]);
        }
        let expected = "file   n\n-----  -\n\u{65e5}\u{672c}   1\ne\u{301}t\u{e9}    1\nabcde  1\n";
        assert_eq!(table.render_within(usize::MAX), expected);
    }

    #[test]
    fn a_table_that_is_too_wide_is_in_parts_that_name_their_rows() {
        let names = ["name", "of all", "first", "second", "third"];
        let align = |at| if at < 2 { Align::Left } else { Align::Right };
        let columns = names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), align(at)));
        let mut table = TextTable::new(columns.collect());
        for row in [["a", "same", "1", "2", "3"], ["b", "same", "10", "20", "30"]] {
            table.row(&row.map(String::from));
        }
        let wide = "name  of all  first  second  third\n";
        assert!(table.render_within(34).starts_with(wide), "{}", table.render_within(34));
        let expected = "name  of all  first  second\n----  ------  -----  ------\n\
                        a     same        1       2\nb     same       10      20\n\n\
                        name  third\n----  -----\na         3\nb        30\n";
        assert_eq!(table.render_within(33), expected);
    }

    /// Columns in different parts share no line, so they do not compete for width.
    #[test]
    fn words_that_fit_a_part_are_whole() {
        let columns = ["name", "n", "access", "cache", "limits"];
        let align = |name| if name == "n" { Align::Right } else { Align::Left };
        let columns = columns.map(|name| (name.to_owned(), align(name)));
        let mut table = TextTable::new(columns.to_vec());
        let limits = "rbps=10485760 riops=500";
        table.row(&["gold", "1000000", "read-write", "writethrough", limits].map(String::from));
        let text = table.render_within(40);
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
        for whole in ["gold  1000000  read-write  writethrough", limits] {
            assert!(text.contains(whole), "{whole}:\n{text}");
        }
    }

    #[test]
    fn a_long_name_is_shortened_and_keeps_its_ends() {
        let mut table =
            TextTable::new(vec![("device".into(), Align::Left), ("IOPS".into(), Align::Right)]);
        table.row(&[format!("null,{},size=7", "x".repeat(90)), "12.3k".into()]);
        let text = table.render_within(60);
        assert!(text.lines().all(|line| line.len() == 60), "{text}");
        assert!(text.contains("null,x") && text.contains("...") && text.contains("x,size=7  "));
        assert_eq!(table.render_within(usize::MAX).lines().next().map(str::len), Some(109));
    }

    #[test]
    fn a_long_name_leaves_room_for_several_figures() {
        let figures = (0..12).map(|n| (format!("figure{n}"), Align::Right));
        let mut table =
            TextTable::new([("device".into(), Align::Left)].into_iter().chain(figures).collect());
        for end in ["a", "b"] {
            let mut row = vec![format!("stripe:[uring:/srv/{}][uring:/srv/{end}]", "x".repeat(90))];
            row.extend((0..12).map(|n| n.to_string()));
            table.row(&row);
        }
        let text = table.render_within(80);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.matches("device").count(), 3, "{text}");
    }
}

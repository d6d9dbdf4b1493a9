//! [`Rarely`]: limits lines of the log that a hostile client could cause by the thousand.

use blkmq::{Instant, Nanos};

/// The minimum time between two lines.
const EVERY: Nanos = Nanos::from_millis(1000);

/// A kind of line, written at most once a second.
#[derive(Debug, Default)]
pub(crate) struct Rarely {
    /// The earliest time of the next line.
    next: Option<Instant>,
    /// The number of lines omitted since the last one.
    left_out: u64,
}

impl Rarely {
    /// Writes a line, or counts it as omitted. `line` is called with the number of lines omitted before it.
    pub(crate) fn log(&mut self, now: Instant, line: impl FnOnce(u64)) {
        if self.next.is_some_and(|next| now < next) {
            self.left_out += 1;
            return;
        }
        line(std::mem::take(&mut self.left_out));
        self.next = Some(now + EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_second_are_counted_by_the_next_one() {
        let mut lines = Vec::new();
        let mut kind = Rarely::default();
        for millisecond in [0, 1, 999, 1000, 1001, 5000] {
            let now = Instant::from_nanos(millisecond * 1_000_000);
            kind.log(now, |left_out| lines.push((millisecond, left_out)));
        }
        assert_eq!(lines, [(0, 0), (1000, 2), (5000, 1)]);
    }
}

//! Finds the known words that an unknown word was probably meant to be.

/// Up to three of the `known` words that begin with `word` or differ from it by few typing errors; best first.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (word.len() / 3).clamp(1, 4);
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|candidate| {
            let begins = word.len() >= 3 && candidate.starts_with(word);
            let cost = if begins { 0 } else { distance(word, candidate) };
            (cost <= limit).then_some((cost, candidate))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, candidate)| candidate).take(3).collect()
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let swap = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_and_beginnings_are_understood() {
        let known = ["iodepth", "iodepth_low", "numjobs", "bs", "rw"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("iodpeth"), ["iodepth"]);
        assert_eq!(near("numjob"), ["numjobs"]);
        assert_eq!(near("iode"), ["iodepth", "iodepth_low"]);
        assert_eq!(near("b"), ["bs"]);
        assert!(near("checkpoint").is_empty());
    }

    #[test]
    fn a_swap_costs_one() {
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

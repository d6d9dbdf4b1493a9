//! Suggests known words for an unknown one.

use strsim::osa_distance;

/// Returns up to three of the `known` words that begin with `word` or differ from it by few typing errors; best match
/// first.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (word.len() / 3).clamp(1, 4);
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|candidate| {
            let begins = word.len() >= 3 && candidate.starts_with(word);
            let cost = if begins { 0 } else { osa_distance(word, candidate) };
            (cost <= limit).then_some((cost, candidate))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, candidate)| candidate).take(3).collect()
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
        assert_eq!(near("wr"), ["rw"], "a swap of neighbours is one error");
        assert!(near("checkpoint").is_empty());
    }
}

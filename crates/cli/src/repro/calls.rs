//! Kicks in quick succession, and when each way of waking serves the last of them.

use crate::report::number::nanos;
use blkmq_core::{Instant, Nanos};
use blkmq_engine::KickMode;
use blkmq_engine::calls::{self, Call};

/// The time until a worker arrives.
const COMES: Nanos = Nanos::from_micros(50);
/// The delays that calls a microsecond apart allow for their pass, in nanoseconds: now, in 3 ms and now.
const DELAYS: [u64; 3] = [0, 3_000_000, 0];
const WAYS: [(&str, KickMode); 3] =
    [("before", KickMode::Always), ("as proposed", KickMode::Flag), ("ours", KickMode::Coalesced)];

/// The outcome for each way, as a sentence.
pub fn outcome() -> String {
    let calls = Vec::from_iter(
        (0..)
            .zip(DELAYS)
            .map(|(n, delay)| Call { at: Instant::from_nanos(n * 1_000), delay: Nanos(delay) }),
    );
    let last = calls[DELAYS.len() - 1].at;
    let clauses = WAYS.map(|(word, kick)| {
        let passes = calls::passes(kick, &calls, COMES);
        let times = passes.iter().map(|at| nanos(at.as_nanos() as f64));
        let times = Vec::from_iter(times).join(" and ");
        let answer = match passes.iter().find(|at| **at >= last) {
            Some(at) => format!("{} later", nanos((*at - last).0 as f64)),
            None => "never".into(),
        };
        format!("{word} (kick={kick}) {answer}, with passes after {times}")
    });
    format!(
        "Where a pass is called for now, in 3 ms and now, a microsecond apart, the last call is answered: {}.",
        clauses.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_lets_the_last_call_wait() {
        let text = outcome();
        for clause in [
            "before (kick=always) 48.0 us later",
            "as proposed (kick=flag) 3.05 ms later",
            "ours (kick=coalesced) 48.0 us later",
        ] {
            assert!(text.contains(clause), "{text}");
        }
    }
}

//! Shrinks a failure: the same failure with fewer CPUs, fewer I/Os, and fewer features switched on.
//!
//! Tries one change after another and keeps it if the run still fails in the same way, beginning with those that make
//! runs short. Ends when no change is left, or after a number of runs. The seed is part of the scenario: if a change
//! makes the failure disappear, small seeds are tried with it, since another stream of I/Os may show the failure as
//! well.

use super::{Failure, Replay, run};
use crate::Scenario;
use crate::scenario::{FIELDS, Field, Kind};
use blkmq_device::registry::{self, Argument};

/// Other seeds tried with each change.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Numbers not farther from the plain one than this are tried one by one.
const NEAR: u64 = 64;

/// A shrunk failure.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smaller failure, of the same kind.
    pub failure: Box<Failure>,
    /// The number of runs that shrinking took.
    pub runs: u32,
}

/// Makes `failure` smaller in at most `most` runs.
#[must_use]
pub fn shrink(failure: Box<Failure>, most: u32) -> Shrunk {
    let mut search = Search { best: failure, runs: 0, most };
    while search.round() {}
    Shrunk { failure: search.best, runs: search.runs }
}

struct Search {
    best: Box<Failure>,
    runs: u32,
    most: u32,
}

impl Search {
    /// Tries to reduce every field once. Returns true if any became smaller and there are runs left.
    fn round(&mut self) -> bool {
        let mut smaller = false;
        for field in FIELDS.iter().filter(|field| field.key != "seed") {
            // Repeated while it helps: a number is halved, a list loses one item after another.
            while self.runs < self.most && self.reduce(field) {
                smaller = true;
            }
        }
        smaller && self.runs < self.most
    }

    /// Tries smaller values of one field.
    fn reduce(&mut self, field: &Field) -> bool {
        let now = field.text(&self.best.replay.scenario);
        let smaller = smaller(field, &now);
        smaller.iter().any(|value| {
            let mut scenario = self.best.replay.scenario.clone();
            field.set(&mut scenario, value).is_ok() && self.attempt(&scenario)
        })
    }

    /// Keeps `scenario`, or a variant with another seed, if it fails in the same way.
    fn attempt(&mut self, scenario: &Scenario) -> bool {
        if scenario.check().is_err() {
            return false;
        }
        let own = scenario.seed;
        std::iter::once(own).chain(SEEDS.into_iter().filter(|seed| *seed != own)).any(|seed| {
            if self.runs == self.most {
                return false;
            }
            self.runs += 1;
            let scenario = Scenario { seed, ..scenario.clone() };
            let found = run(&Replay { scenario, bug: self.best.replay.bug }).err();
            let found = found.filter(|found| found.cause.is_like(&self.best.cause));
            found.map(|found| self.best = found).is_some()
        })
    }
}

/// Smaller values of a field that has the value `now`, the smallest first.
fn smaller(field: &Field, now: &str) -> Vec<String> {
    let plain = field.text(&Scenario::plain());
    let mut values = match field.kind {
        Kind::Number { .. } => smaller_numbers(&plain, now),
        Kind::Word { .. } => vec![plain],
        Kind::List { .. } => shorter_lists(plain, now),
    };
    values.retain(|value| value != now);
    values
}

/// The plain number; a number half way to it; an eighth of the way; one less, unless that would take too many runs.
fn smaller_numbers(plain: &str, now: &str) -> Vec<String> {
    let number = |text: &str| text.parse().expect("it was printed as a number");
    let (plain, now): (u64, u64) = (number(plain), number(now));
    let mut values = vec![plain];
    if now > plain {
        values.extend([plain + (now - plain) / 2, now - ((now - plain) / 8).max(1)]);
        values.extend((now - plain <= NEAR).then(|| now - 1));
        values.dedup();
    }
    values.iter().map(u64::to_string).collect()
}

/// The plain list; a device without the device around it; the list without one of its items.
fn shorter_lists(plain: String, now: &str) -> Vec<String> {
    let (around, inside) = match now.split_once(':') {
        Some((around, inside)) if stands_around(around) => (Some(around), inside),
        _ => (None, now),
    };
    let mut lists = vec![plain];
    lists.extend(around.map(|_| inside.to_owned()));
    let wrap = |list: String| around.map_or(list.clone(), |around| format!("{around}:{list}"));
    lists.extend(without_one(inside).map(wrap));
    if let Some(around) = around {
        lists.extend(without_one(around).map(|list| format!("{list}:{inside}")));
    }
    lists
}

/// Returns whether `text` begins the description of a device that wraps another one.
fn stands_around(text: &str) -> bool {
    let name = text.split(',').next().unwrap_or_default();
    registry::find(name).is_some_and(|factory| factory.argument == Argument::Device)
}

fn without_one(list: &str) -> impl Iterator<Item = String> {
    let items: Vec<&str> = list.split(',').collect();
    (0..items.len()).map(move |at| {
        let mut rest = items.clone();
        rest.remove(at);
        rest.join(",")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists_become_smaller() {
        assert_eq!(smaller_numbers("1", "9"), ["1", "5", "8"]);
        assert_eq!(smaller_numbers("0", "32"), ["0", "16", "28", "31"]);
        assert_eq!(smaller_numbers("0", "8000"), ["0", "4000", "7000"]);
        assert_eq!(smaller_numbers("64", "2"), ["64"]);
        let lists = |now| shorter_lists("null".to_owned(), now).join(" ");
        assert_eq!(lists("a=1,b=2"), "null b=2 a=1");
        let faulty = "null null,bs=512 faults,times=1:bs=512 faults,times=1:null times=1:null,bs=512 \
                      faults:null,bs=512";
        assert_eq!(lists("faults,times=1:null,bs=512"), faulty);
        assert_eq!(lists("null,resource=1:5:0:1"), "null resource=1:5:0:1 null");
    }
}

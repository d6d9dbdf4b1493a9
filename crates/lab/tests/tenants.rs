//! Shared by the tests of two tenants: a tree with a group for each, and the I/Os of a client that are in flight.

use blkmq_core::{GroupId, Instant, Nanos};
use blkmq_engine::{Completion, GroupSpec, GroupTree, Io, Promise};
use blkmq_lab::Payload;

/// A tree of two groups, by name and promise, and their numbers.
pub fn pair(groups: [(&str, &str); 2]) -> (GroupTree, [GroupId; 2]) {
    let spec = |(name, words): (&str, &str)| GroupSpec {
        name: name.into(),
        promise: Promise::default().set(words).expect("right"),
        ..GroupSpec::default()
    };
    let tree = GroupTree::of(groups.map(spec).into()).expect("a tree");
    let numbers = groups.map(|(name, _)| tree.find(name).expect("there"));
    (tree, numbers)
}

/// The I/Os in flight, by cookie, and the times at which they were submitted.
#[derive(Default)]
pub struct Flights(Vec<(u64, Instant)>);

impl Flights {
    pub fn begin(&mut self, now: Instant, io: &Io<Payload>) {
        self.0.push((io.cookie, now));
    }

    /// The latency of an I/O that has ended.
    pub fn end(&mut self, now: Instant, completion: &Completion<Payload>) -> Nanos {
        assert_eq!(completion.result, Ok(()), "nothing fails here");
        let at = self.0.iter().position(|(cookie, _)| *cookie == completion.cookie);
        let (_, begun) = self.0.swap_remove(at.expect("it is in flight"));
        now.since(begun)
    }
}

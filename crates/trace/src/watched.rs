//! A policy with observers, which see its calls and answers and change nothing. The environment of a watched policy
//! forwards every call, and records the answers that the policy got.
//!
//! Only answers that can change the decisions of the policy are recorded: whether it got a token, and values and levels
//! that differ from the previous ones.

use blkmq_core::{HwQueue, Instant, IoMeta, Owner, RequestId};
use blkmq_sched::{
    Admission, At, Bypass, Cx, Done, Facts, Fresh, GroupChange, Grown, Note, Observed, Observer,
    Pick, PolicyEnv, Scheduler, StatsLevel, Used,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A call of a policy, with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// The policy took a request in.
    Insert {
        /// The request.
        rq: RequestId,
        /// The place of the insertion.
        at: At,
        /// Its metadata.
        meta: IoMeta,
    },
    /// The policy was asked for the next request.
    Pick {
        /// The hardware queue to pick for.
        hw: HwQueue,
        /// The answer.
        answer: Pick,
    },
    /// An issued request has finished.
    Completed {
        /// The completion.
        done: Done,
    },
    /// A held request was withdrawn.
    Withdraw {
        /// The request.
        rq: RequestId,
    },
    /// A held request was fused into another.
    Absorbed {
        /// The request that remains.
        into: RequestId,
        /// The request that is gone.
        gone: RequestId,
        /// The present metadata of the request that remains.
        meta: IoMeta,
    },
    /// A held request has grown.
    Grown {
        /// The request.
        rq: RequestId,
        /// The side.
        edge: Grown,
        /// Its present metadata.
        meta: IoMeta,
    },
    /// The policy was asked whether an I/O may join a held request.
    MayMerge {
        /// The request.
        into: RequestId,
        /// The I/O.
        io: IoMeta,
        /// The answer.
        answer: bool,
    },
    /// The policy was asked whether front merges should be looked for.
    FrontMerges {
        /// The answer.
        answer: bool,
    },
    /// The policy was asked for the number of slots that I/O other than sync reads may hold.
    AsyncDepth {
        /// The answer; `None` for any number.
        answer: Option<u32>,
    },
    /// The policy was asked whether an I/O may have a slot.
    Admits {
        /// The I/O.
        io: IoMeta,
        /// Slots in use.
        used: Used,
        /// The answer.
        answer: bool,
    },
    /// The tree of groups has changed.
    Regroup(GroupChange),
    /// An owner has gone.
    Left(Owner),
    /// The policy learns this from its environment in the next call.
    Heard(Heard),
    /// An attribute was set.
    Set {
        /// Its name.
        name: &'a str,
        /// The value.
        value: i64,
        /// Whether the policy has an attribute of that name.
        answer: bool,
    },
}

/// An answer that a policy got from its environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The policy asked for a token.
    Token {
        /// The pool of tokens.
        pool: u32,
        /// Whether the policy got a token.
        there: bool,
    },
    /// A value differs from the one that the policy last read; at the first read, from 0.
    Value {
        /// The index of the value.
        index: u32,
        /// The value.
        value: u64,
    },
    /// The level of statistics about groups differs from the previous one; off at first.
    Level(StatsLevel),
    /// Whether the queue is frozen has changed since the policy last asked; not frozen at first.
    Draining(bool),
}

/// An observer of a policy, which sees each call after the policy, with its answer.
pub trait PolicyWatch: Send {
    /// A call; the table of `cx` has its requests.
    fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>);
    /// A call without a time: the policy was asked for its properties, or an attribute was set.
    fn told(&mut self, _entry: &Entry<'_>) {}
}

/// Wraps `policy` with observers, called in this order. They stay as long as the policy.
pub fn watched(
    policy: Box<dyn Scheduler>,
    watches: Vec<Box<dyn PolicyWatch>>,
) -> Box<dyn Scheduler> {
    Box::new(Observed::new(policy, Watches::new(watches, false)))
}

/// Wraps `policy` with an observer that is dropped when the engine asks for the policy's [release](Scheduler::release).
pub fn watched_for_a_while(
    policy: Box<dyn Scheduler>,
    watch: Box<dyn PolicyWatch>,
) -> Box<dyn Scheduler> {
    Box::new(Observed::new(policy, Watches::new(vec![watch], true)))
}

struct Watches {
    /// A cell, because some calls borrow the policy shared.
    watches: RefCell<Vec<Box<dyn PolicyWatch>>>,
    memory: Memory,
    /// Whether the observers may be removed.
    for_a_while: bool,
}

/// Calls the policy with an environment that records, and passes the recorded answers to the observers.
macro_rules! spied {
    ($watches:ident, $policy:ident, $cx:ident, $call:ident($($argument:expr),*)) => {{
        let env = Spied { env: $cx.env, memory: &$watches.memory };
        let answer = $policy.$call(&$cx.through(&env), $($argument),*);
        $watches.memory.take_all(|heard| $watches.tell($cx, Entry::Heard(heard)));
        answer
    }};
}

impl Watches {
    fn new(watches: Vec<Box<dyn PolicyWatch>>, for_a_while: bool) -> Self {
        Self { watches: RefCell::new(watches), memory: Memory::default(), for_a_while }
    }

    fn tell(&self, cx: &Cx<'_>, entry: Entry<'_>) {
        self.watches.borrow_mut().iter_mut().for_each(|watch| watch.called(cx, &entry));
    }

    fn tell_untimed(&self, entry: Entry<'_>) {
        self.watches.borrow_mut().iter_mut().for_each(|watch| watch.told(&entry));
    }

    fn tell_inserted(&self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.tell(cx, Entry::Insert { rq, at, meta: *cx.requests.get(rq) });
    }

    /// Reports requests that were inserted and picked in one call as the separate calls that it stands for. A request
    /// that stays held has all tokens that the policy asked for.
    fn tell_admitted(
        &self,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        picks: impl Iterator<Item = Pick>,
        tokens: Vec<Heard>,
    ) {
        for rq in fresh.rqs {
            self.tell_inserted(cx, *rq, At::Tail);
        }
        let is_one = fresh.rqs.len() == 1;
        let mut tokens = tokens.into_iter();
        for pick in picks {
            for token in tokens.by_ref().take(if is_one { usize::MAX } else { 1 }) {
                self.tell(cx, Entry::Heard(token));
            }
            self.tell(cx, Entry::Pick { hw: fresh.hw, answer: pick });
        }
    }
}

impl Observer for Watches {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        let facts = policy.facts();
        self.tell_untimed(Entry::FrontMerges { answer: facts.front_merges });
        self.tell_untimed(Entry::AsyncDepth { answer: facts.async_depth });
        match facts.bypass {
            Bypass::Never => facts,
            Bypass::Untold | Bypass::Told => Facts { bypass: Bypass::Told, ..facts },
        }
    }

    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        spied!(self, policy, cx, insert(rq, at));
        self.tell_inserted(cx, rq, at);
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let answer = spied!(self, policy, cx, pick(hw));
        self.tell(cx, Entry::Pick { hw, answer });
        answer
    }

    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        let env = Spied { env: cx.env, memory: &self.memory };
        let admission = policy.admit(&cx.through(&env), fresh, order);
        let mut tokens = Vec::new();
        self.memory.take_all(|heard| match heard {
            Heard::Token { .. } => tokens.push(heard),
            state => self.tell(cx, Entry::Heard(state)),
        });
        match (admission, fresh.rqs) {
            (Admission::Refused, _) => {}
            (Admission::Held(pick), _) => {
                self.tell_admitted(cx, fresh, std::iter::once(pick), tokens);
            }
            (Admission::Issued, rqs) => {
                let picks = order[..rqs.len()].iter().map(|at| Pick::Issue(rqs[usize::from(*at)]));
                self.tell_admitted(cx, fresh, picks, tokens);
            }
        }
        admission
    }

    fn passed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        if policy.facts().bypass == Bypass::Told {
            spied!(self, policy, cx, passed(rq, hw));
        }
        self.tell_inserted(cx, rq, At::Tail);
        self.tell(cx, Entry::Pick { hw, answer: Pick::Issue(rq) });
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        spied!(self, policy, cx, completed(done));
        self.tell(cx, Entry::Completed { done: *done });
    }

    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        spied!(self, policy, cx, withdraw(rq));
        self.tell(cx, Entry::Withdraw { rq });
    }

    fn absorbed(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        into: RequestId,
        gone: RequestId,
    ) {
        spied!(self, policy, cx, absorbed(into, gone));
        self.tell(cx, Entry::Absorbed { into, gone, meta: *cx.requests.get(into) });
    }

    fn may_merge(&self, policy: &dyn Scheduler, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let answer = spied!(self, policy, cx, may_merge(into, io));
        self.tell(cx, Entry::MayMerge { into, io: *io, answer });
        answer
    }

    fn grown(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        spied!(self, policy, cx, grown(rq, edge));
        self.tell(cx, Entry::Grown { rq, edge, meta: *cx.requests.get(rq) });
    }

    fn admits(&self, policy: &dyn Scheduler, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        let answer = spied!(self, policy, cx, admits(io, used));
        self.tell(cx, Entry::Admits { io: *io, used, answer });
        answer
    }

    fn regroup(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, change: GroupChange) {
        spied!(self, policy, cx, regroup(change));
        self.tell(cx, Entry::Regroup(change));
    }

    fn owner_gone(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, owner: Owner) {
        spied!(self, policy, cx, owner_gone(owner));
        self.tell(cx, Entry::Left(owner));
    }

    fn set_attribute(&mut self, policy: &mut dyn Scheduler, name: &str, value: i64) -> bool {
        let answer = policy.set_attribute(name, value);
        self.tell_untimed(Entry::Set { name, value, answer });
        answer
    }

    fn may_leave(&self) -> bool {
        self.for_a_while
    }
}

/// The last answers that a policy got from its environment, and the new ones since the last
/// [`take_all`](Self::take_all).
#[derive(Default)]
struct Memory {
    values: RefCell<BTreeMap<usize, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    heard: RefCell<Vec<Heard>>,
}

impl Memory {
    /// Passes the answers since the last call to `look`.
    fn take_all(&self, look: impl FnMut(Heard)) {
        self.heard.borrow_mut().drain(..).for_each(look);
    }
}

/// An environment that records its answers in a [`Memory`].
struct Spied<'a> {
    env: &'a dyn PolicyEnv,
    memory: &'a Memory,
}

impl PolicyEnv for Spied<'_> {
    fn take(&self, pool: usize) -> bool {
        let there = self.env.take(pool);
        self.memory.heard.borrow_mut().push(Heard::Token { pool: pool as u32, there });
        there
    }

    fn take_all(&self, pool: usize, n: u32) -> bool {
        let there = self.env.take_all(pool, n);
        if there {
            let one = Heard::Token { pool: pool as u32, there };
            self.memory.heard.borrow_mut().extend((0..n).map(|_| one));
        }
        there
    }

    fn count(&self, counter: usize) {
        self.env.count(counter);
    }

    fn value(&self, index: usize) -> u64 {
        let value = self.env.value(index);
        let known = self.memory.values.borrow_mut().insert(index, value).unwrap_or(0);
        if known != value {
            self.memory.heard.borrow_mut().push(Heard::Value { index: index as u32, value });
        }
        value
    }

    fn review_by(&self, at: Instant) {
        self.env.review_by(at);
    }

    fn note(&self, note: &Note) {
        self.env.note(note);
    }

    fn stats(&self) -> StatsLevel {
        let level = self.env.stats();
        if self.memory.level.replace(level) != level {
            self.memory.heard.borrow_mut().push(Heard::Level(level));
        }
        level
    }

    fn is_draining(&self) -> bool {
        let draining = self.env.is_draining();
        if self.memory.draining.replace(draining) != draining {
            self.memory.heard.borrow_mut().push(Heard::Draining(draining));
        }
        draining
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Op;
    use blkmq_sched::testkit::{Driver, LocalEnv};
    use blkmq_sched::{Options, PLUG, Requests, registry};
    use std::sync::{Arc, Mutex};

    /// Records the calls as words.
    struct Words(Arc<Mutex<Vec<String>>>);

    impl PolicyWatch for Words {
        fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>) {
            let words = match *entry {
                Entry::Heard(Heard::Token { pool, there }) => format!("token {pool} {there}"),
                Entry::Insert { at, meta, .. } => format!("{at:?} {}", meta.sector),
                Entry::Pick { hw, answer: Pick::Issue(rq) } => {
                    format!("queue {} {}", hw.0, cx.requests.get(rq).sector)
                }
                Entry::Pick { answer, .. } => panic!("{answer:?}"),
                _ => return,
            };
            self.0.lock().unwrap().push(words);
        }
    }

    /// The calls that an observer sees when a plug of reads of these sectors leaves immediately.
    fn told(scheduler: &str, sectors: &[u64]) -> Vec<String> {
        let factory = registry::find(scheduler).unwrap();
        let (shape, options) = (Driver::shape(8), Options::defaults(factory.attributes));
        let env = LocalEnv::of(factory, &shape, &options);
        let words = Arc::new(Mutex::new(Vec::new()));
        let watches: Vec<Box<dyn PolicyWatch>> = vec![Box::new(Words(Arc::clone(&words)))];
        let mut policy = watched((factory.build)(&shape, &options), watches);
        assert!(policy.facts().takes_plugs);
        let mut requests = Requests::new(8);
        let alloc = |sector: &u64| requests.alloc(IoMeta::new(Op::Read, *sector, 8)).unwrap();
        let rqs: Vec<RequestId> = sectors.iter().map(alloc).collect();
        let used = Used { of: 8, all: 0, limited: 0, unsynced: 0 };
        let fresh = Fresh { rqs: &rqs, hw: HwQueue(3), used: Some(used) };
        let cx = Cx::new(Instant::ZERO, &requests, &env);
        assert_eq!(policy.admit(&cx, &fresh, &mut [0; PLUG]), Admission::Issued);
        words.lock().unwrap().clone()
    }

    #[test]
    fn a_plug_that_leaves_at_once_is_told_as_insertions_and_picks() {
        let inserted = ["Tail 64", "Tail 8", "Tail 32"];
        let sorted = ["queue 3 8", "queue 3 32", "queue 3 64"];
        assert_eq!(told("mq-deadline", &[64, 8, 32]), [inserted, sorted].concat());
        let tokens = ["token 0 true", "queue 3 64", "token 0 true", "queue 3 8", "token 0 true"];
        let expected = [&inserted[..], &tokens[..], &["queue 3 32"]].concat();
        assert_eq!(told("kyber", &[64, 8, 32]), expected);
    }
}

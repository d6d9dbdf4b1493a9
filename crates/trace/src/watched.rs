//! A policy with observers beside it, which see its calls and its answers, and change nothing.

use crate::spied::{Heard, Memory, Spied};
use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Owner, RequestId};
use blkmq_sched::{
    At, Bypass, Capacity, Cx, DepthLimits, Done, GroupChange, Grown, Pick, Scheduler, Used,
    WholePlug,
};
use std::cell::RefCell;

/// An observer beside a policy. Every call comes after the policy's own, with its answer.
pub trait PolicyWatch: Send {
    /// During the next call, the policy gets this answer from its environment.
    fn heard(&mut self, _now: Instant, _what: Heard) {}
    /// The policy was asked whether `io` may have a slot, and gave this answer.
    fn admits(&mut self, _cx: &Cx<'_>, _io: &IoMeta, _used: Used, _answer: bool) {}
    /// The policy was told of a change of groups.
    fn regrouped(&mut self, _cx: &Cx<'_>, _change: GroupChange) {}
    /// The policy was told that an owner has gone.
    fn owner_gone(&mut self, _cx: &Cx<'_>, _owner: Owner) {}
    /// The policy took `rq` in.
    fn inserted(&mut self, _cx: &Cx<'_>, _rq: RequestId, _at: At) {}
    /// The policy was asked for a request for `hw`, and gave this answer.
    fn asked(&mut self, _cx: &Cx<'_>, _hw: HwQueue, _answer: Pick) {}
    /// The policy was told of a completion.
    fn completed(&mut self, _cx: &Cx<'_>, _done: &Done) {}
    /// `rq` was withdrawn.
    fn withdrawn(&mut self, _cx: &Cx<'_>, _rq: RequestId) {}
    /// `gone` became part of `into`.
    fn absorbed(&mut self, _cx: &Cx<'_>, _into: RequestId, _gone: RequestId) {}
    /// `rq` has grown.
    fn grown(&mut self, _cx: &Cx<'_>, _rq: RequestId, _edge: Grown) {}
    /// The policy was asked whether `io` may join `into`, and gave this answer.
    fn may_merge(&mut self, _cx: &Cx<'_>, _into: RequestId, _io: &IoMeta, _answer: bool) {}
    /// The policy was asked whether front merges should be looked for.
    fn front_merges(&mut self, _answer: bool) {}
    /// The policy was asked for its caps.
    fn depth_limits(&mut self, _answer: DepthLimits) {}
    /// An attribute was set; `answer` says whether the policy has it.
    fn attribute_set(&mut self, _name: &str, _value: i64, _answer: bool) {}
}

/// `inner` with observers beside it, called in this order. They stay as long as the policy.
pub fn watched(
    inner: Box<dyn Scheduler>,
    watches: Vec<Box<dyn PolicyWatch>>,
) -> Box<dyn Scheduler> {
    Box::new(Watched::new(inner, watches, false))
}

/// `inner` with an observer beside it that goes when the engine asks for the policy's [release](Scheduler::release).
pub fn watched_for_a_while(
    inner: Box<dyn Scheduler>,
    watch: Box<dyn PolicyWatch>,
) -> Box<dyn Scheduler> {
    Box::new(Watched::new(inner, vec![watch], true))
}

struct Watched {
    inner: Box<dyn Scheduler>,
    /// In a cell because some calls take the policy by shared reference.
    watches: RefCell<Vec<Box<dyn PolicyWatch>>>,
    memory: Memory,
    /// The observers may be taken away.
    for_a_while: bool,
}

/// Calls the policy with an environment that remembers, and passes the remembered answers to the observers.
macro_rules! spied {
    ($watched:ident, $cx:ident, $call:ident($($argument:expr),*)) => {{
        let env = Spied { env: $cx.env, memory: &$watched.memory };
        let answer = $watched.inner.$call(&$cx.through(&env), $($argument),*);
        $watched.memory.take_all(|heard| $watched.tell(|watch| watch.heard($cx.now, heard)));
        answer
    }};
}

impl Watched {
    fn new(
        inner: Box<dyn Scheduler>,
        watches: Vec<Box<dyn PolicyWatch>>,
        for_a_while: bool,
    ) -> Self {
        let watches = RefCell::new(watches);
        Self { inner, watches, memory: Memory::default(), for_a_while }
    }

    fn tell(&self, what: impl Fn(&mut dyn PolicyWatch)) {
        self.watches.borrow_mut().iter_mut().for_each(|watch| what(&mut **watch));
    }

    /// Tells of a plug that was inserted and picked in one call, as of the calls that it stands for.
    fn tell_plug(&self, cx: &Cx<'_>, plug: &WholePlug<'_>, order: &[u8], tokens: Vec<Heard>) {
        for rq in plug.rqs {
            self.tell(|watch| watch.inserted(cx, *rq, At::Tail));
        }
        let mut tokens = tokens.into_iter();
        for at in &order[..plug.rqs.len()] {
            if let Some(token) = tokens.next() {
                self.tell(|watch| watch.heard(cx.now, token));
            }
            let rq = plug.rqs[usize::from(*at)];
            self.tell(|watch| watch.asked(cx, plug.hw, Pick::Issue(rq)));
        }
    }
}

impl Scheduler for Watched {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        spied!(self, cx, insert(rq, at));
        self.tell(|watch| watch.inserted(cx, rq, at));
    }

    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = spied!(self, cx, pick(hw));
        self.tell(|watch| watch.asked(cx, hw, pick));
        pick
    }

    fn insert_and_pick_all(&mut self, cx: &Cx<'_>, plug: &WholePlug<'_>, order: &mut [u8]) -> bool {
        let env = Spied { env: cx.env, memory: &self.memory };
        let picked = self.inner.insert_and_pick_all(&cx.through(&env), plug, order);
        let mut tokens = Vec::new();
        self.memory.take_all(|heard| match heard {
            Heard::Token { .. } => tokens.push(heard),
            state => self.tell(|watch| watch.heard(cx.now, state)),
        });
        if picked {
            self.tell_plug(cx, plug, order, tokens);
        }
        picked
    }

    fn picks_plugs(&self) -> bool {
        self.inner.picks_plugs()
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        spied!(self, cx, completed(done));
        self.tell(|watch| watch.completed(cx, done));
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        spied!(self, cx, withdraw(rq));
        self.tell(|watch| watch.withdrawn(cx, rq));
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        spied!(self, cx, absorbed(into, gone));
        self.tell(|watch| watch.absorbed(cx, into, gone));
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.inner.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let answer = spied!(self, cx, may_merge(into, io));
        self.tell(|watch| watch.may_merge(cx, into, io, answer));
        answer
    }

    fn front_merges(&self) -> bool {
        let answer = self.inner.front_merges();
        self.tell(|watch| watch.front_merges(answer));
        answer
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        spied!(self, cx, grown(rq, edge));
        self.tell(|watch| watch.grown(cx, rq, edge));
    }

    fn depth_limits(&self) -> DepthLimits {
        let answer = self.inner.depth_limits();
        self.tell(|watch| watch.depth_limits(answer));
        answer
    }

    fn limits_slots(&self) -> bool {
        self.inner.limits_slots()
    }

    fn shares_by_group(&self) -> bool {
        self.inner.shares_by_group()
    }

    fn capacity(&self) -> Option<Capacity> {
        self.inner.capacity()
    }

    fn bounds_device(&self) -> bool {
        self.inner.bounds_device()
    }

    fn charged(&self, rq: RequestId) -> Option<Nanos> {
        self.inner.charged(rq)
    }

    fn notes_groups(&self) -> bool {
        self.inner.notes_groups()
    }

    fn admits(&self, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        let answer = spied!(self, cx, admits(io, used));
        self.tell(|watch| watch.admits(cx, io, used, answer));
        answer
    }

    fn bypass(&self) -> Bypass {
        match self.inner.bypass() {
            Bypass::Never => Bypass::Never,
            Bypass::Untold | Bypass::Told => Bypass::Told,
        }
    }

    fn passed(&mut self, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        if self.inner.bypass() == Bypass::Told {
            spied!(self, cx, passed(rq, hw));
        }
        self.tell(|watch| watch.inserted(cx, rq, At::Tail));
        self.tell(|watch| watch.asked(cx, hw, Pick::Issue(rq)));
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        spied!(self, cx, regroup(change));
        self.tell(|watch| watch.regrouped(cx, change));
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        spied!(self, cx, owner_gone(owner));
        self.tell(|watch| watch.owner_gone(cx, owner));
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.inner.attribute(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let answer = self.inner.set_attribute(name, value);
        self.tell(|watch| watch.attribute_set(name, value, answer));
        answer
    }

    fn release(&mut self) -> Option<Box<dyn Scheduler>> {
        self.for_a_while.then(|| std::mem::replace(&mut self.inner, Box::new(Gone)))
    }
}

/// In the place of a policy that was released. The engine drops it without another call.
struct Gone;

impl Scheduler for Gone {
    fn insert(&mut self, _: &Cx<'_>, _: RequestId, _: At) {
        unreachable!("the policy was released");
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        unreachable!("the policy was released");
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {
        unreachable!("the policy was released");
    }

    fn withdraw(&mut self, _: &Cx<'_>, _: RequestId) {
        unreachable!("the policy was released");
    }

    fn absorbed(&mut self, _: &Cx<'_>, _: RequestId, _: RequestId) {
        unreachable!("the policy was released");
    }

    fn inspect(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Op;
    use blkmq_sched::testkit::{Driver, LocalEnv};
    use blkmq_sched::{Options, PLUG, Requests, registry};
    use std::sync::{Arc, Mutex};

    /// The calls, as words.
    struct Words(Arc<Mutex<Vec<String>>>);

    impl PolicyWatch for Words {
        fn heard(&mut self, _: Instant, what: Heard) {
            let Heard::Token { pool, there } = what else { return };
            self.0.lock().unwrap().push(format!("token {pool} {there}"));
        }
        fn inserted(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
            self.0.lock().unwrap().push(format!("{at:?} {}", cx.requests.get(rq).sector));
        }
        fn asked(&mut self, cx: &Cx<'_>, hw: HwQueue, answer: Pick) {
            let Pick::Issue(rq) = answer else { panic!("{answer:?}") };
            let sector = cx.requests.get(rq).sector;
            self.0.lock().unwrap().push(format!("queue {} {sector}", hw.0));
        }
    }

    /// The calls that an observer is told of when a plug of reads of these sectors leaves at once.
    fn told(scheduler: &str, sectors: &[u64]) -> Vec<String> {
        let factory = registry::find(scheduler).unwrap();
        let (shape, options) = (Driver::shape(8), Options::defaults(factory.attributes));
        let env = LocalEnv::of(factory, &shape, &options);
        let words = Arc::new(Mutex::new(Vec::new()));
        let watches: Vec<Box<dyn PolicyWatch>> = vec![Box::new(Words(Arc::clone(&words)))];
        let mut policy = watched((factory.build)(&shape, &options), watches);
        assert!(policy.picks_plugs());
        let mut requests = Requests::new(8);
        let alloc = |sector: &u64| requests.alloc(IoMeta::new(Op::Read, *sector, 8)).unwrap();
        let rqs: Vec<RequestId> = sectors.iter().map(alloc).collect();
        let used = Used { of: 8, all: 0, limited: 0, unsynced: 0 };
        let plug = WholePlug { rqs: &rqs, hw: HwQueue(3), used };
        let cx = Cx::new(Instant::ZERO, &requests, &env);
        assert!(policy.insert_and_pick_all(&cx, &plug, &mut [0; PLUG]));
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

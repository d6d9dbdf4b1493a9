//! `rationed`: first come, first served, with a token for each request from a pool that all instances share. It is for
//! tests of the engine's support for policies with shared state.

use crate::index::Fifo;
use crate::{
    At, Attribute, Common, Cx, Done, Factory, Governor, Pick, Scheduler, Scope, Shape, Unit,
};
use alloc::boxed::Box;
use blkmq_core::{HwQueue, Instant, Nanos, RequestId};

/// The line that it would have in the registry.
pub const FACTORY: Factory = Factory {
    name: "rationed",
    summary: "first come, first served, within a common ration",
    scope: Scope::HwQueue,
    attributes: &[
        Attribute {
            name: "tokens",
            unit: Unit::Count,
            default: 1,
            min: 0,
            max: 1024,
            help: "requests at the device at once",
        },
        Attribute {
            name: "more",
            unit: Unit::Count,
            default: 0,
            min: 0,
            max: 1024,
            help: "tokens added for each thousand completions",
        },
    ],
    common: Some(Common {
        tokens: &[1],
        counters: 1,
        values: 1,
        governor: |_, _| Box::new(Counting { completed: 0, tokens: 0, more: 0 }),
    }),
    build: |shape: &Shape, options| {
        let told = [options.get("tokens"), options.get("more")];
        Box::new(Rationed { queue: Fifo::new(shape.slots), told })
    },
};

/// The time from a completion to the governor's review.
pub const REVIEW: Nanos = Nanos::from_millis(1);

struct Rationed {
    queue: Fifo,
    /// The attributes, which the governor handles.
    told: [i64; 2],
}

const NAMES: [&str; 2] = ["tokens", "more"];

impl Scheduler for Rationed {
    fn insert(&mut self, _: &Cx<'_>, rq: RequestId, at: At) {
        match at {
            At::Head => self.queue.push_front(rq),
            At::Tail => self.queue.push_back(rq),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if self.queue.is_empty() {
            return Pick::Empty;
        }
        if !cx.env.take(0) {
            return Pick::WaitToken;
        }
        self.queue.pop_front().map_or(Pick::Empty, Pick::Issue)
    }

    fn completed(&mut self, cx: &Cx<'_>, _: &Done) {
        cx.env.count(0);
        cx.env.review_by(cx.now + REVIEW);
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.queue.remove(rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, _into: RequestId, gone: RequestId) {
        self.queue.remove(gone);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        NAMES.iter().position(|own| *own == name).map(|at| self.told[at])
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let at = NAMES.iter().position(|own| *own == name);
        at.map(|at| self.told[at] = value).is_some()
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.queue.len() as u64);
    }
}

struct Counting {
    completed: u64,
    tokens: u32,
    more: u64,
}

impl Counting {
    fn decide(&self, tokens: &mut [u32], values: &mut [u64]) {
        tokens[0] = self.tokens + (self.completed / 1000 * self.more) as u32;
        values[0] = self.completed;
    }
}

impl Governor for Counting {
    fn review(&mut self, _: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]) {
        self.completed += grown[0];
        self.decide(tokens, values);
    }

    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]) {
        match name {
            "tokens" => self.tokens = value as u32,
            "more" => self.more = value as u64,
            other => unreachable!("'{other}' is not in the table"),
        }
        self.decide(tokens, values);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("completed", self.completed);
    }
}

//! Exact replay: the same calls to the same policy, every answer compared.

use super::env::Recorded;
use super::groups::Groups;
use super::{Call, Entry, Instance, LogError};
use blkmq_core::{IoMeta, Op, RequestId};
use blkmq_sched::{At, Cx, Factory, OptionError, Options, Pick, Requests, Scheduler, registry};
use std::collections::VecDeque;
use std::fmt;

/// Calls before a difference that are shown with it.
const CONTEXT: usize = 8;

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// Calls that were made.
    pub calls: u64,
    /// Answers that were compared.
    pub answers: u64,
    /// The first answer that differs, if there is one. The replay stops there.
    pub difference: Option<Difference>,
}

/// An answer that differs from the recorded one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Number of the call, from 0.
    pub call: u64,
    /// The call with the recorded answer.
    pub recorded: String,
    /// The call with the answer of the replay.
    pub replayed: String,
    /// Calls before it, the oldest first.
    pub before: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "call {} is answered differently:", self.call)?;
        self.before.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        writeln!(f, "  - {}    (recorded)", self.recorded)?;
        write!(f, "  + {}    (replayed)", self.replayed)
    }
}

/// Why a log cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// It cannot be read.
    Log(LogError),
    /// Its policy does not exist; with a list of those that do.
    Policy(String),
    /// An option is not the policy's.
    Option(OptionError),
    /// A call breaks the contract between engine and policy, so that no engine has recorded it.
    Contract {
        /// Number of the call, from 0.
        call: u64,
        /// The breach.
        what: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(e) => e.fmt(f),
            Self::Policy(name) => {
                let names: Vec<&str> = registry::ALL.iter().map(|factory| factory.name).collect();
                write!(f, "the log is of a scheduler '{name}'; there are: {}", names.join(", "))
            }
            Self::Option(e) => write!(f, "the log is of another version of its scheduler: {e}"),
            Self::Contract { call, what } => {
                write!(f, "call {call} of the log cannot have been made: {what}")
            }
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<LogError> for ReplayError {
    fn from(e: LogError) -> Self {
        Self::Log(e)
    }
}

/// Makes the calls of `instance` to a new policy of its kind, until an answer differs.
///
/// # Errors
/// If the log cannot be read, or was not made by this program's engine and policies.
pub fn replay(instance: &Instance<'_>) -> Result<Replayed, ReplayError> {
    let factory = registry::find(instance.policy);
    let factory = factory.ok_or_else(|| ReplayError::Policy(instance.policy.into()))?;
    let mut options = Options::defaults(factory.attributes);
    for (name, value) in &instance.options {
        options.set(name, &value.to_string()).map_err(ReplayError::Option)?;
    }
    let policy = (factory.build)(&instance.shape, &options);
    let mut stage = Stage::new(factory, policy, instance.shape.slots);
    let mut replayed = Replayed { calls: 0, answers: 0, difference: None };
    let mut before = VecDeque::with_capacity(CONTEXT);
    for call in instance.calls() {
        let call = call?;
        stage
            .check(&call.entry)
            .map_err(|what| ReplayError::Contract { call: replayed.calls, what })?;
        let answer = stage.make(&call);
        replayed.answers += u64::from(answer.is_some());
        if let Some(entry) = answer.filter(|entry| *entry != call.entry) {
            replayed.difference = Some(Difference {
                call: replayed.calls,
                recorded: call.to_string(),
                replayed: Call { entry, ..call }.to_string(),
                before: before.iter().map(Call::to_string).collect(),
            });
            return Ok(replayed);
        }
        if let Some(wish) = stage.unheard(&call.entry) {
            replayed.difference = Some(Difference {
                call: replayed.calls,
                recorded: call.to_string(),
                replayed: wish,
                before: before.iter().map(Call::to_string).collect(),
            });
            return Ok(replayed);
        }
        stage.follow(&call.entry);
        replayed.calls += 1;
        if before.len() == CONTEXT {
            before.pop_front();
        }
        before.push_back(call);
    }
    Ok(replayed)
}

/// The place of a request according to the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Nowhere,
    Held(RequestId),
    Issued(RequestId),
}

/// A policy and the requests that it learns of.
struct Stage {
    factory: &'static Factory,
    policy: Box<dyn Scheduler>,
    env: Recorded,
    /// All slots are in use at all times, so that each of them can be given any name.
    requests: Requests,
    names: Box<[RequestId]>,
    places: Box<[Place]>,
    groups: Groups,
}

impl Stage {
    fn new(factory: &'static Factory, policy: Box<dyn Scheduler>, slots: u32) -> Self {
        let mut requests = Requests::new(slots);
        let empty = IoMeta::new(Op::Read, 0, 0);
        let names = (0..slots).map(|_| requests.alloc(empty).expect("as many as there are slots"));
        let names: Box<[RequestId]> = names.collect();
        Self {
            factory,
            policy,
            env: Recorded::default(),
            requests,
            names,
            places: vec![Place::Nowhere; slots as usize].into(),
            groups: Groups::default(),
        }
    }

    /// Checks that an engine could have made this call.
    fn check(&self, entry: &Entry<'_>) -> Result<(), String> {
        let place = |rq: RequestId| self.places[rq.index()];
        let held = |rq: RequestId| match place(rq) {
            Place::Held(known) if known == rq => Ok(()),
            place => Err(format!("{rq:?} is not held; its slot: {place:?}")),
        };
        match *entry {
            Entry::Insert { rq, at, .. } => match (place(rq), at) {
                (Place::Nowhere, _) => Ok(()),
                (Place::Issued(known), At::Head) if known == rq => Ok(()),
                (place, _) => Err(format!("{rq:?} is inserted at the {at:?}; its slot: {place:?}")),
            },
            Entry::Pick { answer: Pick::Issue(rq), .. } | Entry::Withdraw { rq } => held(rq),
            Entry::Grown { rq, .. } | Entry::MayMerge { into: rq, .. } => held(rq),
            Entry::Absorbed { into, gone, .. } => {
                if into == gone {
                    return Err(format!("{into:?} absorbs itself"));
                }
                held(into)?;
                held(gone)
            }
            Entry::Completed { done } => match place(done.rq) {
                Place::Issued(known) if known == done.rq => Ok(()),
                place => Err(format!("{:?} ends; its slot: {place:?}", done.rq)),
            },
            Entry::Set { name, value, answer } => {
                let known = self.factory.attributes.iter().find(|known| known.name == name);
                let fits = known.is_none_or(|known| (known.min..=known.max).contains(&value));
                if fits && known.is_some() >= answer {
                    Ok(())
                } else {
                    Err(format!("{name}={value} is no attribute of {}", self.factory.name))
                }
            }
            Entry::Regroup(change) => self.groups.check(change),
            Entry::Pick { .. }
            | Entry::FrontMerges { .. }
            | Entry::AsyncDepth { .. }
            | Entry::Admits { .. }
            | Entry::Left(_)
            | Entry::Heard(_) => Ok(()),
        }
    }

    /// Makes the call; if the call has an answer, returns the entry with this policy's answer.
    fn make<'a>(&mut self, call: &Call<'a>) -> Option<Entry<'a>> {
        match call.entry {
            Entry::Insert { rq, meta, .. } | Entry::Grown { rq, meta, .. } => self.set(rq, meta),
            Entry::Absorbed { into, meta, .. } => self.set(into, meta),
            _ => {}
        }
        let cx = Cx::new(call.now, &self.requests, &self.env);
        let policy = &mut *self.policy;
        match call.entry {
            Entry::Insert { rq, at, .. } => policy.insert(&cx, rq, at),
            Entry::Completed { done } => policy.completed(&cx, &done),
            Entry::Withdraw { rq } => policy.withdraw(&cx, rq),
            Entry::Absorbed { into, gone, .. } => policy.absorbed(&cx, into, gone),
            Entry::Grown { rq, edge, .. } => policy.grown(&cx, rq, edge),
            Entry::Regroup(change) => policy.regroup(&cx, change),
            Entry::Left(owner) => policy.owner_gone(&cx, owner),
            Entry::Heard(heard) => self.env.will_say(heard),
            Entry::Admits { io, used, .. } => {
                return Some(Entry::Admits { io, used, answer: policy.admits(&cx, &io, used) });
            }
            Entry::Pick { hw, .. } => {
                return Some(Entry::Pick { hw, answer: policy.pick(&cx, hw) });
            }
            Entry::MayMerge { into, io, .. } => {
                return Some(Entry::MayMerge {
                    into,
                    io,
                    answer: policy.may_merge(&cx, into, &io),
                });
            }
            Entry::FrontMerges { .. } => {
                return Some(Entry::FrontMerges { answer: policy.facts().front_merges });
            }
            Entry::AsyncDepth { .. } => {
                return Some(Entry::AsyncDepth { answer: policy.facts().async_depth });
            }
            Entry::Set { name, value, .. } => {
                return Some(Entry::Set { name, value, answer: policy.set_attribute(name, value) });
            }
        }
        None
    }

    /// The policy's questions to its outside that differ from the recorded ones, in either direction.
    fn unheard(&mut self, entry: &Entry<'_>) -> Option<String> {
        if matches!(entry, Entry::Heard(_)) { None } else { self.env.left_over() }
    }

    /// Gives the slot of `rq` this name and metadata.
    fn set(&mut self, rq: RequestId, meta: IoMeta) {
        let name = &mut self.names[rq.index()];
        // A slot that is freed and immediately taken again is the same slot in its next generation.
        while *name != rq {
            self.requests.free(*name);
            *name = self.requests.alloc(meta).expect("one was given back just now");
        }
        *self.requests.get_mut(rq) = meta;
    }

    /// Updates the places of requests, and the groups, after the call.
    fn follow(&mut self, entry: &Entry<'_>) {
        let (rq, place) = match *entry {
            Entry::Insert { rq, .. } => (rq, Place::Held(rq)),
            Entry::Pick { answer: Pick::Issue(rq), .. } => (rq, Place::Issued(rq)),
            Entry::Withdraw { rq } | Entry::Absorbed { gone: rq, .. } => (rq, Place::Nowhere),
            Entry::Completed { done } => (done.rq, Place::Nowhere),
            Entry::Regroup(change) => return self.groups.follow(change),
            _ => return,
        };
        self.places[rq.index()] = place;
    }
}

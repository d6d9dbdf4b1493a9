//! The conditions that must hold in a run, checked from the reports of the witnesses around the policy and the device,
//! and of the world.
//!
//! The first violation is kept, since witnesses are called from inside the engine and cannot end a run; the world
//! checks after each event. A panic of the engine is a violation too, and needs no oracle. A hash of all events makes
//! two runs comparable bit for bit: FNV-1a over 64-bit words, not for secrets. Do not change it lightly: hashes of old
//! runs may be recorded somewhere.

use crate::Payload;
use crate::client::{Found, Memory};
use crate::contents::Contents;
use crate::ledger::{Bio, Ledger, Rates, Seen};
use crate::order::{Asking, Neighbours, Order, Picked, Promises, Seam};
use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, IoError, IoFlags, IoResult, Nanos, Op, SubmitterId, Tag};
use blkmq_engine::{Busy, Completion, DeviceShape, GroupTree, Io};
use blkmq_sched::Pick;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The kind of an event in the hash; the first word of each.
#[derive(Clone, Copy)]
enum Kind {
    Push,
    Arrive,
    Finish,
    PutBack,
    End,
    Act,
    Cancel,
}

/// The shared evidence of all witnesses; clones share it.
#[derive(Clone)]
pub(crate) struct Oracle(Arc<Mutex<Evidence>>);

/// The evidence of all witnesses together.
pub(crate) struct Evidence {
    hash: EventHash,
    pub(crate) ledger: Ledger,
    order: Order,
    neighbours: Neighbours,
    pub(crate) promises: Promises,
    pub(crate) asking: Asking,
    pub(crate) rates: Rates,
    /// The contents of a device that stores; `None` after they were taken.
    pub(crate) contents: Option<Contents>,
    shape: DeviceShape,
    /// The most requests at the device, if there is a limit besides its tags.
    pub(crate) budget: Option<u32>,
    /// Driver tags at the device, by hardware queue, or all under 0 if they are shared.
    tags: BTreeSet<(u16, Tag)>,
    /// Hardware queues with a request that the device refused and has not taken since.
    refused: BTreeSet<u16>,
    /// Requests that the device wanted back later, at the tail, and has not taken since.
    tails: BTreeSet<(u16, Tag)>,
    /// By pool: the tokens in use at the last check, and the number of all tokens.
    tokens: Vec<(u32, u32)>,
    /// The number of times that the device had no room.
    pub(crate) busy: u64,
    /// The queue is held: nothing is issued, and so nothing is late.
    held: bool,
    violation: Option<Violation>,
}

/// The device's answer to an offered request.
pub(crate) enum Answer {
    Accepted,
    Done(Return),
    Busy(Busy),
}

/// The next step of a request that the device returned.
#[derive(Clone, Copy)]
pub(crate) enum Return {
    /// It has ended.
    Done(IoResult),
    /// It goes back to its elevator.
    Again,
    /// It stays with its hardware queue, behind the requests that wait there.
    Tail,
    /// It stays with its hardware queue, ahead of the requests that wait there, and will be offered again as runs.
    Apart,
}

/// A request offered to the device.
pub(crate) struct Offer {
    pub(crate) now: Instant,
    pub(crate) hw: HwQueue,
    pub(crate) tag: Tag,
    pub(crate) what: Picked,
    pub(crate) flags: IoFlags,
    pub(crate) bios: Vec<Seen>,
    /// If the tag is that of a request that is being repeated: whether this is the next run of that request.
    pub(crate) run: Option<bool>,
}

impl Oracle {
    /// An oracle for a queue with `elevators` elevators around a device of this shape, with this many budgets. `slack`:
    /// how late a CPU may be.
    pub(crate) fn new(
        (shape, budget): (DeviceShape, Option<u32>),
        groups: &GroupTree,
        elevators: u16,
        slack: Nanos,
    ) -> Self {
        let mut ledger = Ledger::new(shape.limits, shape.cache);
        if groups.has_goals() {
            ledger.shortens = true;
        }
        Self(Arc::new(Mutex::new(Evidence {
            hash: EventHash::new(),
            ledger,
            order: Order::new(shape.hw_queues),
            neighbours: Neighbours::default(),
            promises: Promises::new(shape.hw_queues, slack),
            asking: Asking::new(elevators, shape.hw_queues, slack),
            rates: Rates::new(groups),
            contents: None,
            shape,
            budget,
            tags: BTreeSet::new(),
            refused: BTreeSet::new(),
            tails: BTreeSet::new(),
            tokens: Vec::new(),
            busy: 0,
            held: false,
            violation: None,
        })))
    }

    /// Reads or adds to the evidence. A planted bug may have made a witness panic; its evidence is still valid.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Evidence) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Evidence {
    fn note(&mut self, kind: Kind, at: Instant, words: [u64; 3]) {
        let [a, b, c] = words;
        self.hash.note(&[kind as u64, at.as_nanos(), a, b, c]);
    }

    /// The violation, if there has been one.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Advances the time to `now`, and checks all deadlines.
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.held {
            return;
        }
        judge(&mut self.violation, self.promises.check(now));
        judge(&mut self.violation, self.asking.check(now));
    }

    /// Begins or ends a hold, in which no request need be issued.
    pub(crate) fn hold(&mut self, now: Instant, held: bool) {
        self.held = held;
        self.promises.put_off(now);
        self.asking.put_off(now);
    }

    /// The queue now has `elevators` elevators, whose policies have not answered yet, and this many budgets.
    pub(crate) fn rebuilt(&mut self, elevators: u16, budget: Option<u32>) {
        self.budget = budget;
        self.tokens.clear();
        self.asking = self.asking.anew(elevators);
    }

    /// Groups have latency goals from now on.
    pub(crate) fn has_goals(&mut self) {
        self.ledger.shortens = true;
    }

    /// The queue is frozen: checks that the device holds no request.
    pub(crate) fn check_frozen(&mut self) {
        if !self.is_idle() {
            let at_device = (self.tags.len() + self.refused.len() + self.tails.len()) as u32;
            judge(&mut self.violation, Err(Violation::NotFrozen { at_device }));
        }
    }

    /// The participant numbered `who` is about to act.
    pub(crate) fn acts(&mut self, now: Instant, who: u64) {
        self.note(Kind::Act, now, [who, 0, 0]);
    }

    /// `by` is about to push `io`. Returns `io` as the engine will get it.
    pub(crate) fn announced(&mut self, by: SubmitterId, io: Io<Payload>) -> Io<Payload> {
        let (cookie, payload) = self.ledger.next();
        let io = Io { cookie, payload, ..io };
        self.ledger.announce(by, io);
        if let Some(contents) = &mut self.contents {
            contents.announced(&io);
        }
        io
    }

    /// The device stores; `contents` is the knowledge about it in its life number `life`.
    pub(crate) fn keep(&mut self, contents: Contents, life: u32) {
        self.contents = Some(contents);
        self.ledger.life = life;
    }

    /// The memory of I/Os: whether they carry bytes, and how it is laid out.
    pub(crate) fn memory(&self) -> Memory {
        Memory { stores: self.contents.is_some(), range: self.ledger.takes.range }
    }

    /// The engine took `io`.
    pub(crate) fn pushed(&mut self, now: Instant, by: SubmitterId, io: Io<Payload>) {
        self.ledger.pushed(io.cookie);
        self.note(Kind::Push, now, [by.0.into(), io.sector, io.sectors.into()]);
    }

    /// The engine did not take `io`.
    pub(crate) fn refused(&mut self, io: &Io<Payload>) {
        judge(&mut self.violation, self.ledger.withdraw(io.cookie));
        if let Some(contents) = &mut self.contents {
            contents.withdrawn(io);
        }
    }

    /// The submitter requests the cancellation of the I/O with this cookie.
    pub(crate) fn asked_to_cancel(&mut self, now: Instant, by: SubmitterId, cookie: u64) {
        self.note(Kind::Cancel, now, [by.0.into(), cookie, 0]);
        judge(&mut self.violation, self.ledger.unwanted(cookie));
    }

    /// Returns whether the device holds no request, and no refused or requeued request waits for it.
    fn is_idle(&self) -> bool {
        self.tags.is_empty() && self.refused.is_empty() && self.tails.is_empty()
    }

    /// The policy was asked for `hw`. `what` is the request that it picked, if any, and its seams.
    pub(crate) fn asked(
        &mut self,
        now: Instant,
        hw: HwQueue,
        answer: Pick,
        what: Option<(Picked, Vec<Seam>)>,
    ) {
        let idle = self.is_idle();
        self.asking.asked(now, hw, answer, idle);
        if let Some((what, seams)) = what {
            self.order.picked(hw, what, seams);
        }
    }

    /// The device was offered a request and has answered.
    pub(crate) fn offered(&mut self, offer: &Offer, answer: &Answer) {
        let &Offer { now, hw, tag, what, flags, ref bios, run } = offer;
        let taken = !matches!(answer, Answer::Busy(_));
        self.note(Kind::Arrive, now, [hw.0.into(), what.sector, taken.into()]);
        let form = self.ledger.check_request(hw, (what.op, flags), what.sector, bios);
        judge(&mut self.violation, form);
        if let Some(is_next) = run {
            // The request bypasses the policy, and the requests that wait for the device.
            let wrong = Violation::OutOfOrder { hw, picked: None, arrived: what.sector };
            judge(&mut self.violation, if is_next { Ok(()) } else { Err(wrong) });
        } else if what.op != Op::Flush {
            let owned = |bio: &Seen| self.ledger.io(bio.cookie).map(|(io, _)| (io.owner, *bio));
            let owned: Vec<_> = bios.iter().filter_map(owned).collect();
            let order = self
                .order
                .arrived(hw, what, taken)
                .and_then(|seams| self.neighbours.check(hw, what.sector, &owned, &seams));
            judge(&mut self.violation, order);
        }
        let resource = matches!(answer, Answer::Busy(Busy::Resource));
        self.promises.offered(hw, now, resource);
        self.asking.busy();
        if !taken {
            self.busy += 1;
            self.refused.insert(hw.0);
            return;
        }
        self.refused.remove(&hw.0);
        self.tails.remove(&(hw.0, tag));
        if what.op == Op::Flush {
            self.ledger.durable.flush_began(hw, tag);
        }
        for bio in bios {
            if let Some(group) = self.ledger.group_of_new(bio) {
                judge(&mut self.violation, self.rates.arrived(now, group, (what.op, bio.sectors)));
            }
            judge(&mut self.violation, self.ledger.taken(bio));
        }
        if let Answer::Done(how) = answer {
            if matches!(how, Return::Apart) {
                self.tails.insert((hw.0, tag));
                self.promises.offered(hw, now, true);
            }
            self.gave_back(now, (hw, tag), bios.iter().map(Seen::bio), *how);
        } else {
            self.take_tag(hw, tag);
        }
    }

    fn tag_key(&self, hw: HwQueue, tag: Tag) -> (u16, Tag) {
        if self.shape.shared_tags { (0, tag) } else { (hw.0, tag) }
    }

    fn take_tag(&mut self, hw: HwQueue, tag: Tag) {
        let key = self.tag_key(hw, tag);
        if !self.tags.insert(key) {
            judge(&mut self.violation, Err(Violation::TagTwice { hw, tag }));
        }
        let used = self.tags.len() as u32;
        let sets = if self.shape.shared_tags { 1 } else { self.shape.hw_queues.into() };
        let depth = self.shape.hw_queue_depth * sets;
        for (what, of) in [("driver tags", Some(depth)), ("budgets", self.budget)] {
            if let Some(of) = of.filter(|of| used > *of) {
                judge(&mut self.violation, Err(Violation::TooMany { what, used, of }));
            }
        }
    }

    /// The device returned the request `what` under `tag`, made of `bios`.
    pub(crate) fn returned(
        &mut self,
        now: Instant,
        (hw, tag): (HwQueue, Tag),
        what: Picked,
        bios: Vec<Bio>,
        how: Return,
    ) {
        let key = self.tag_key(hw, tag);
        self.tags.remove(&key);
        if matches!(how, Return::Tail | Return::Apart) {
            if what.op != Op::Flush && matches!(how, Return::Tail) {
                self.order.picked(hw, what, Vec::new());
            }
            // The request waits among the refused ones, and as long as if it had been refused; a request that the
            // device takes before it does not change that.
            self.tails.insert((hw.0, tag));
            self.promises.offered(hw, now, true);
        }
        self.gave_back(now, (hw, tag), bios, how);
    }

    /// The device has given these bios back, with a result or to be offered again.
    fn gave_back(
        &mut self,
        now: Instant,
        (hw, tag): (HwQueue, Tag),
        bios: impl IntoIterator<Item = Bio>,
        how: Return,
    ) {
        let result = if let Return::Done(result) = how { Some(result) } else { None };
        self.ledger.durable.gave_back(hw, tag, result);
        for bio in bios {
            let (kind, word, verdict) = match result {
                Some(result) => (Kind::Finish, errno(result), self.ledger.served(bio, result)),
                None => (Kind::PutBack, bio.sector, self.ledger.put_back(bio)),
            };
            self.note(kind, now, [hw.0.into(), bio.cookie, word]);
            judge(&mut self.violation, verdict);
        }
        if self.is_idle() {
            self.asking.idle(now, hw);
        }
    }

    /// Submitter `by` reaped a completion. If the device stores, `found` is the data of a read.
    pub(crate) fn ended(
        &mut self,
        now: Instant,
        by: SubmitterId,
        completion: &Completion<Payload>,
        found: &[Found],
    ) {
        self.note(Kind::End, now, [by.0.into(), completion.cookie, errno(completion.result)]);
        judge(&mut self.violation, self.ledger.end(by, completion));
        if let Some(contents) = &mut self.contents
            && let Some((io, seen)) = self.ledger.io(completion.cookie)
        {
            let verdict = match completion.result {
                Err(IoError::CANCELLED) if !seen => {
                    contents.withdrawn(&io);
                    Ok(())
                }
                result => contents.ended(&io, result, found),
            };
            judge(&mut self.violation, verdict);
        }
    }

    /// Checks that no more are in use than exist.
    pub(crate) fn check_use(&mut self, what: &'static str, used: u32, of: u32) {
        if used > of {
            judge(&mut self.violation, Err(Violation::TooMany { what, used, of }));
        }
    }

    /// Checks each pool of tokens, given (tokens in use, all tokens). After a reduction too many may be in use, but
    /// their number must not grow.
    pub(crate) fn check_tokens(&mut self, pools: &[(u32, u32)]) {
        // Nothing is known about a new pool: it may have had more tokens at first.
        self.tokens.resize(pools.len(), (0, u32::MAX));
        for (pool, &(out, of)) in pools.iter().enumerate() {
            // Some tokens may have been taken between the last check and a reduction.
            let (out_before, of_before) = std::mem::replace(&mut self.tokens[pool], (out, of));
            self.check_use("tokens", out, of.max(of_before).max(out_before));
        }
    }

    /// The number of I/Os that have not ended.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.ledger.submitted() - self.ledger.ended) as u32
    }

    /// The hash of the run so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }
}

/// Keeps the first violation.
fn judge(first: &mut Option<Violation>, verdict: Result<(), Violation>) {
    if let Err(violation) = verdict {
        first.get_or_insert(violation);
    }
}

fn errno(result: IoResult) -> u64 {
    result.map_or_else(|error| error.0.into(), |()| 0)
}

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventHash(u64);

impl EventHash {
    /// The hash of no events.
    pub(crate) fn new() -> Self {
        Self(OFFSET)
    }

    /// Adds one event, in words. Events of one kind have the same number of words, and begin with their kind.
    pub(crate) fn note(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    /// The value of the hash.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_fnv_1a_of_the_bytes() {
        let mut hash = EventHash::new();
        hash.note(&[u64::from_le_bytes(*b"foobar\0\0")]);
        let expected = b"foobar\0\0"
            .iter()
            .fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
        assert_eq!(hash.get(), expected);
    }

    #[test]
    fn order_counts() {
        let of = |words: &[u64]| {
            let mut hash = EventHash::new();
            words.iter().for_each(|word| hash.note(&[*word]));
            hash
        };
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
    }
}

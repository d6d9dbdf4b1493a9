//! The shared state of one hardware queue: its driver tags, and the words by which its pump informs elevators and
//! waiting threads.
//!
//! The pump owns the device side (`dispatch/pump.rs`).

use crate::Inflight;
use crate::shared::duties::Duties;
use crate::shared::stats::PumpCounters;
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU64, FairShare, Level, Mutex, MutexGuard, Ordering, Pending,
    PoisonError, Restart, TagBatch, TagSet, TagSetShape, Weak,
};
use blkmq_core::{Instant, Tag};
use crossbeam_utils::CachePadded;
use std::fmt;

/// The divisor of the busy average: the old value has this weight less one.
const EWMA_WEIGHT: u8 = 8;

/// A busy dispatch adds this, before the division.
const EWMA_FACTOR: u8 = 16;

pub(crate) struct Hctx {
    pub(crate) tags: Tags,
    /// Shared by all lanes of a hardware queue.
    pub(crate) restart: Arc<CachePadded<Restart>>,
    /// The fill level of the outbox.
    level: Level<Inflight>,
    status: CachePadded<PumpStatus>,
    pub(crate) counters: Arc<CachePadded<PumpCounters>>,
}

/// The state of a pump: written by the pump, read by runners and waiting threads.
struct PumpStatus {
    busy: DispatchBusy,
    /// Requests that the device refused wait in the pump, and none may overtake them.
    stuck: AtomicBool,
    /// The device holds requests, and its descriptor signals completions.
    signals: AtomicBool,
    /// The time at which the pump next has work without a kick, in nanoseconds; `u64::MAX` for never.
    next_event: AtomicU64,
}

/// The exponential average of "the device had no room" (`spec/framework.md` 8.2). Readers only compare it with zero.
#[derive(Default)]
pub(crate) struct DispatchBusy(AtomicU8);

impl DispatchBusy {
    /// Adds the result of a dispatch. One writer at a time.
    #[inline]
    pub(crate) fn note(&self, busy: bool) {
        let old = self.0.load(Ordering::Relaxed);
        if old != 0 || busy {
            let new = (old * (EWMA_WEIGHT - 1) + if busy { EWMA_FACTOR } else { 0 }) / EWMA_WEIGHT;
            self.0.store(new, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Hctx {
    pub(crate) fn new(
        tags: Tags,
        level: Level<Inflight>,
        restart: Arc<CachePadded<Restart>>,
        counters: Arc<CachePadded<PumpCounters>>,
    ) -> Self {
        Self {
            tags,
            level,
            restart,
            status: CachePadded::new(PumpStatus {
                busy: DispatchBusy::default(),
                stuck: AtomicBool::new(false),
                signals: AtomicBool::new(false),
                next_event: AtomicU64::new(u64::MAX),
            }),
            counters,
        }
    }

    pub(crate) fn busy(&self) -> &DispatchBusy {
        &self.status.busy
    }

    /// Returns whether requests that the device refused wait in the pump.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.status.stuck.load(Ordering::Acquire)
    }

    pub(crate) fn set_stuck(&self, stuck: bool) {
        if self.is_stuck() != stuck {
            self.status.stuck.store(stuck, Ordering::Release);
        }
    }

    /// Returns whether requests wait in the outbox. A hint: a pump may be about to take them.
    #[inline]
    pub(crate) fn has_sent(&self) -> bool {
        self.level.waits()
    }

    /// Returns whether the device holds requests, so that a check may find completions, although no thread needs to
    /// stay awake for it. A hint: a sleeping thread watches the device's descriptor in any case.
    #[inline]
    pub(crate) fn signals(&self) -> bool {
        self.status.signals.load(Ordering::Relaxed)
    }

    pub(crate) fn set_signals(&self, signals: bool) {
        if self.signals() != signals {
            self.status.signals.store(signals, Ordering::Relaxed);
        }
    }

    /// The time at which the pump next has work without a kick: an event of the device, or a timeout of a request
    /// there. `None` for never.
    #[inline]
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match self.status.next_event.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    pub(crate) fn set_next_event(&self, at: Option<Instant>) {
        let ns = at.map_or(u64::MAX, Instant::as_nanos);
        if self.status.next_event.load(Ordering::Relaxed) != ns {
            self.status.next_event.store(ns, Ordering::Release);
        }
    }
}

/// The most queues that can share a set of tags.
pub const MAX_TAG_USERS: u16 = 256;

/// A set of driver tags for several queues, each of which may have its fair share (`spec/framework.md` section 3.1):
/// with five busy queues and 32 tags, seven each. Queues that have used no tag for a while are not counted. All clones
/// share one set.
///
/// Pass it to each queue by [`Config::tags`](crate::Config::tags). All hardware queues of all these queues take their
/// tags from this set, so no two requests at their devices have the same tag.
#[derive(Clone)]
pub struct SharedTags(Arc<Set>);

struct Set {
    tags: Arc<TagSet>,
    seats: Mutex<Vec<Seat>>,
    /// Queues that must be kicked because tags were returned.
    owed: Pending,
}

/// The place of one queue in the set.
enum Seat {
    Free,
    /// Reserved for a queue that is being built.
    Reserved,
    Taken(Weak<dyn Member>),
}

/// A queue as seen by the other queues that share its tags.
pub(crate) trait Member: Send + Sync {
    /// Notifies the queue that tags were returned for which it has registered.
    fn tags_came_back(&self);
}

impl fmt::Debug for SharedTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTags").field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl PartialEq for SharedTags {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl SharedTags {
    /// A set of `depth` tags for up to `queues` queues at a time.
    ///
    /// # Panics
    /// If the depth is 0 or above [`MAX_HW_QUEUE_DEPTH`](crate::MAX_HW_QUEUE_DEPTH), or there are no queues or more
    /// than [`MAX_TAG_USERS`].
    #[must_use]
    pub fn new(depth: u32, queues: u16) -> Self {
        assert!((1..=crate::MAX_HW_QUEUE_DEPTH).contains(&depth), "{depth} is no number of tags");
        assert!((1..=MAX_TAG_USERS).contains(&queues), "{queues} is no number of queues");
        let shape = TagSetShape { users: queues, ..TagSetShape::new(depth, queues) };
        Self(Arc::new(Set {
            tags: Arc::new(TagSet::new(&shape)),
            seats: Mutex::new((0..queues).map(|_| Seat::Free).collect()),
            owed: Pending::new(queues),
        }))
    }

    /// The number of tags.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.tags.depth()
    }

    /// The number of tags in use by all queues.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.0.tags.in_use()
    }

    /// The number of tags that each counted queue may have at present; `None` while no queue is counted.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        self.0.tags.fair_share().and_then(FairShare::limit)
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.0.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for a queue; `None` if none is free.
    pub(crate) fn reserve(&self) -> Option<Membership> {
        let mut seats = self.seats();
        let user = seats.iter().position(|seat| matches!(seat, Seat::Free))?;
        seats[user] = Seat::Reserved;
        // At most 256.
        Some(Membership { tags: self.clone(), user: user as u16 })
    }

    /// The number of further queues that can join.
    #[must_use]
    pub fn room(&self) -> usize {
        self.seats().iter().filter(|seat| matches!(seat, Seat::Free)).count()
    }

    /// Kicks the queues that must be kicked. The caller holds no run and no lock.
    fn call(&self) {
        self.0.owed.take(|user| {
            let member = match &self.seats()[usize::from(user)] {
                Seat::Taken(member) => member.upgrade(),
                Seat::Free | Seat::Reserved => None,
            };
            if let Some(member) = member {
                member.tags_came_back();
            }
        });
    }
}

/// A queue's place in a shared set, which becomes free when this is dropped.
pub(crate) struct Membership {
    pub(crate) tags: SharedTags,
    pub(crate) user: u16,
}

impl Membership {
    /// Connects the place to the queue, which has been built and may be kicked.
    pub(crate) fn take(&self, queue: Weak<dyn Member>) {
        self.tags.seats()[usize::from(self.user)] = Seat::Taken(queue);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tags.seats()[usize::from(self.user)] = Seat::Free;
        let Set { tags, owed, .. } = &*self.tags.0;
        tags.deactivate(self.user, &mut |user| owed.set(user));
        self.tags.call();
    }
}

/// The driver tags of a hardware queue: a set of its own, a set for all hardware queues of its queue, or a set for
/// several queues ([`SharedTags`]), as the disks behind one host adapter share its commands.
///
/// An elevator that finds no tag registers, and is kicked when tags are returned. Where several queues share a set, the
/// queue registers with the set, and its elevators register with the queue. A queue that returns tags may have to kick
/// another queue; like every call out of the engine, it does so while it holds no run and no lock.
#[derive(Clone)]
pub(crate) struct Tags {
    set: Arc<TagSet>,
    among: Among,
}

/// The other users of the same set.
#[derive(Clone)]
enum Among {
    /// No other user.
    Undivided,
    /// The other hardware queues of the queue; elevators register by their numbers.
    Hctxs,
    /// Other queues; the number of this queue is `user`.
    Queues { tags: SharedTags, user: u16 },
}

impl Tags {
    /// Tags of one hardware queue, or of all if they share one set.
    pub(crate) fn new(depth: u32, shards: u16, shared: bool) -> Self {
        let set = Arc::new(TagSet::new(&TagSetShape::new(depth, shards)));
        Self { set, among: if shared { Among::Hctxs } else { Among::Undivided } }
    }

    /// Tags of a set that other queues use too.
    pub(crate) fn of(tags: &SharedTags, user: u16) -> Self {
        Self { set: Arc::clone(&tags.0.tags), among: Among::Queues { tags: tags.clone(), user } }
    }

    /// Tags in use by this hardware queue and the others that share its tags. For a set of several queues, the tags
    /// that this queue holds.
    pub(crate) fn in_use(&self) -> u32 {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.in_use(),
            Among::Queues { user, .. } => {
                self.set.fair_share().expect("they are divided").held(*user)
            }
        }
    }

    /// Takes a tag. The search starts at `hint`, where the last tag was found.
    #[inline]
    pub(crate) fn get(&self, hint: &mut u32) -> Option<Tag> {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.get(hint),
            Among::Queues { .. } => self.get_batch(hint, 1)?.pop(),
        }
    }

    /// Takes up to `want` tags. The search starts at `hint`, where the last tags were found.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut u32, want: u32) -> Option<TagBatch> {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.get_batch(hint, want),
            Among::Queues { user, .. } => self.set.get_batch_for(*user, hint, want),
        }
    }

    /// Registers the elevator `shard` to be kicked when tags are returned: in the set, or in `waiting` if other queues
    /// use the set too. The caller must try once more afterwards.
    #[cold]
    pub(crate) fn wait(&self, shard: u16, waiting: &Pending, now: Instant) {
        match &self.among {
            Among::Undivided => {}
            Among::Hctxs => self.set.wait(shard),
            Among::Queues { tags, user } => {
                waiting.set(shard);
                self.set.wait(*user);
                // Perhaps only this queue's share is used up, while idle queues leave theirs unused.
                self.set.deactivate_idle(now, &mut |user| tags.0.owed.set(user));
            }
        }
    }

    /// Returns tags. `waiting` has the elevators of this queue that wait for tags shared with other queues.
    #[inline]
    pub(crate) fn put(&self, back: &[Tag], waiting: &Pending, duties: &mut Duties) {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.put(back, &mut |shard| duties.kick(shard)),
            Among::Queues { tags, user } => self.set.put(back, &mut |other| {
                if other == *user {
                    waiting.take(|shard| duties.kick(shard));
                } else {
                    tags.0.owed.set(other);
                }
            }),
        }
    }

    /// Returns the tag of a request that was at the device when its queue ended.
    pub(crate) fn put_abandoned(&self, back: Tag) {
        if let Among::Queues { tags, .. } = &self.among {
            self.set.put(&[back], &mut |other| tags.0.owed.set(other));
        }
    }

    /// Kicks other queues, if any must be kicked.
    #[inline]
    pub(crate) fn call_others(&self) {
        if let Among::Queues { tags, .. } = &self.among
            && tags.0.owed.any()
        {
            tags.call();
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn s16_05_ewma_rises_and_decays_as_specified() {
        let busy = DispatchBusy::default();
        let mut up = vec![busy.get()];
        for _ in 0..9 {
            busy.note(true);
            up.push(busy.get());
        }
        assert_eq!(up, [0, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
        let mut down = Vec::new();
        for _ in 0..8 {
            busy.note(false);
            down.push(busy.get());
        }
        assert_eq!(down, [7, 6, 5, 4, 3, 2, 1, 0]);
        busy.note(false);
        assert_eq!(busy.get(), 0);
    }
}

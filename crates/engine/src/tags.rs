//! Driver tags as a hardware queue has them: its own, those of all hardware queues of its queue, or those of several
//! queues ([`SharedTags`]), as the disks behind one host adapter share its commands.
//!
//! Who finds none registers, and is called when some come back. Among several queues it is the queue that registers
//! with the set, and its elevators with the queue. A queue that gives tags back may have to call another one; it
//! does so when it holds nothing any more, like all calls to the outside.

use crate::queue::Root;
use crate::shared::{Shard, Shared};
use crate::sync::{
    Arc, FairShare, Mutex, MutexGuard, Pending, PoisonError, TagBatch, TagSet, TagSetShape, Weak,
};
use blkmq_core::{Instant, SubmitterId, Tag};
use std::fmt;

/// The most queues that one set of tags can be for.
pub const MAX_TAG_USERS: u16 = 256;

/// A set of driver tags for several queues, each of which may have its fair share of it
/// (`spec/framework.md` section 3.1): with five busy queues and 32 tags, seven each. Queues that have used none
/// for a while are not counted. Clones are the same set.
///
/// To be given to each queue with [`Config::tags`](crate::Config::tags). The tags of all hardware queues of all of
/// them are of this set, so no two requests at their devices have the same one.
#[derive(Clone)]
pub struct SharedTags(Arc<Set>);

struct Set {
    tags: Arc<TagSet>,
    seats: Mutex<Vec<Seat>>,
    /// Queues that are to be called.
    owed: Pending,
}

/// A queue's place.
enum Seat {
    Free,
    /// For a queue that is being built.
    Reserved,
    Taken(Weak<dyn Member>),
}

/// A queue, to others that share its tags.
trait Member: Send + Sync {
    /// Tags have come back, for which it has registered.
    fn tags_came_back(&self);
}

impl<P: Send + 'static> Member for Root<P> {
    fn tags_came_back(&self) {
        let q = self.current();
        let mut wakes = Vec::new();
        q.tags_came_back(&mut wakes);
        q.wake(&wakes);
    }
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
    /// `depth` tags for up to `queues` queues at a time.
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

    /// Tags in all.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.tags.depth()
    }

    /// Tags in use, of all queues.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.0.tags.in_use()
    }

    /// What each queue that is counted may have at present; `None` while none is.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        self.0.tags.fair_share().and_then(FairShare::limit)
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.0.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a place for a queue, if there is one.
    pub(crate) fn reserve(&self) -> Option<Membership> {
        let mut seats = self.seats();
        let user = seats.iter().position(|seat| matches!(seat, Seat::Free))?;
        seats[user] = Seat::Reserved;
        // At most 256.
        Some(Membership { tags: self.clone(), user: user as u16 })
    }

    /// How many more queues it has room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.seats().iter().filter(|seat| matches!(seat, Seat::Free)).count()
    }

    /// Calls the queues that are owed a call. By who holds nothing.
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

/// A queue's place among those who share a set. It is free again when this is dropped.
pub(crate) struct Membership {
    pub(crate) tags: SharedTags,
    pub(crate) user: u16,
}

impl Membership {
    /// The queue is there, and may be called.
    pub(crate) fn take<P: Send + 'static>(&self, root: Weak<Root<P>>) {
        self.tags.seats()[usize::from(self.user)] = Seat::Taken(root);
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

/// A hardware queue's way to its driver tags.
#[derive(Clone)]
pub(crate) struct Tags {
    set: Arc<TagSet>,
    among: Among,
}

/// Who else takes tags of the same set.
#[derive(Clone)]
enum Among {
    /// Nobody.
    Nobody,
    /// The other hardware queues of the queue; elevators register by their numbers.
    Hctxs,
    /// Other queues; this one's number is `user`.
    Queues { tags: SharedTags, user: u16 },
}

impl Tags {
    /// Tags of one hardware queue, or of all if they are shared.
    pub(crate) fn new(depth: u32, shards: u16, shared: bool) -> Self {
        let set = Arc::new(TagSet::new(&TagSetShape::new(depth, shards)));
        Self { set, among: if shared { Among::Hctxs } else { Among::Nobody } }
    }

    /// Tags of a set that other queues use, too.
    pub(crate) fn of(tags: &SharedTags, user: u16) -> Self {
        Self { set: Arc::clone(&tags.0.tags), among: Among::Queues { tags: tags.clone(), user } }
    }

    /// Tags in use, by whomever.
    pub(crate) fn in_use(&self) -> u32 {
        match &self.among {
            Among::Nobody | Among::Hctxs => self.set.in_use(),
            Among::Queues { user, .. } => {
                self.set.fair_share().expect("they are divided").held(*user)
            }
        }
    }

    /// Takes up to `want` tags. `hint` is where the last ones were found.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut u32, want: u32) -> Option<TagBatch> {
        match &self.among {
            Among::Nobody | Among::Hctxs => self.set.get_batch(hint, want),
            Among::Queues { user, .. } => self.set.get_batch_for(*user, hint, want),
        }
    }

    /// Has `shard` called when others give tags back; it tries once more now.
    #[cold]
    pub(crate) fn wait<P: Send>(&self, q: &Shared<P>, shard: &Shard, now: Instant) {
        match &self.among {
            Among::Nobody => {}
            Among::Hctxs => self.set.wait(shard.index),
            Among::Queues { tags, user } => {
                q.tag_wait.set(shard.index);
                self.set.wait(*user);
                // It may be only its share that is used up, and that of others of no use to them.
                self.set.deactivate_idle(now, &mut |user| tags.0.owed.set(user));
            }
        }
    }

    /// Gives tags back. `wakes` gets who is to be woken for it.
    #[inline]
    pub(crate) fn put<P: Send>(&self, q: &Shared<P>, back: &[Tag], wakes: &mut Vec<SubmitterId>) {
        match &self.among {
            Among::Nobody | Among::Hctxs => {
                self.set.put(back, &mut |shard| wakes.extend(q.kick_shard(shard)));
            }
            Among::Queues { tags, user } => self.set.put(back, &mut |other| {
                if other == *user {
                    q.tags_came_back(wakes);
                } else {
                    tags.0.owed.set(other);
                }
            }),
        }
    }

    /// Gives back what a queue that goes away had at its device.
    pub(crate) fn put_abandoned(&self, back: Tag) {
        if let Among::Queues { tags, .. } = &self.among {
            self.set.put(&[back], &mut |other| tags.0.owed.set(other));
        }
    }

    /// Calls other queues, if any are to be called.
    #[inline]
    pub(crate) fn call_others(&self) {
        if let Among::Queues { tags, .. } = &self.among
            && tags.0.owed.any()
        {
            tags.call();
        }
    }
}

impl<P: Send> Shared<P> {
    /// Tags have come back to the set that this queue shares with others: kicks the elevators that wait for some.
    pub(crate) fn tags_came_back(&self, wakes: &mut Vec<SubmitterId>) {
        self.tag_wait.take(|shard| wakes.extend(self.kick_shard(shard)));
    }
}

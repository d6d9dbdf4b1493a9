//! [`Replies`]: the replies of librbd, sorted out to the hardware queues of an image.
//!
//! Librbd has one queue of finished I/Os for an image, and one descriptor that it rings. Whichever hardware queue looks
//! takes the replies that are there, and puts those to another into that one's inbox.

use crate::sys::{Image, Reply};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Tickets of a hardware queue.
pub(crate) const TICKETS: usize = crate::options::MAX_DEPTH as usize;
/// Looks without a reply after which the descriptor is emptied though no ring is owed. A librbd that rings without a
/// reply would keep threads awake.
const PATIENCE: u32 = 64;

/// The replies to all hardware queues of an image.
pub(crate) struct Replies {
    image: Arc<Image>,
    sorting: Mutex<Sorting>,
    /// Of each hardware queue; none if there is but one.
    inboxes: Vec<Inbox>,
}

/// The state of the thread that sorts.
#[derive(Default)]
struct Sorting {
    /// Replies that were taken and whose ring was not: librbd adds a reply first and rings then.
    owed: u64,
    /// Looks since a reply was found.
    in_vain: u32,
}

/// The replies that another hardware queue has found.
struct Inbox {
    /// Ringing and emptying are under its lock: the bell is rung while there is a reply, and at no other time.
    replies: Mutex<Vec<Reply>>,
    bell: OwnedFd,
}

/// A hardware queue's view of them.
pub(crate) struct Mine {
    all: Arc<Replies>,
    number: usize,
    /// Around the descriptor of the image and the inbox's; `None` if there is no inbox.
    either: Option<OwnedFd>,
}

/// No code panics under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { replies: Mutex::default(), bell })
    }

    fn put(&self, reply: Reply) {
        let mut replies = lock(&self.replies);
        if replies.is_empty() {
            ring(&self.bell);
        }
        replies.push(reply);
    }

    fn take(&self, out: &mut Vec<Reply>) {
        let mut replies = lock(&self.replies);
        if !replies.is_empty() {
            read(self.bell.as_fd());
            out.append(&mut replies);
        }
    }
}

fn ring(bell: &OwnedFd) {
    // The counter holds more than there are replies, so there is room.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Empties an eventfd; returns how often it was rung.
fn read(bell: BorrowedFd<'_>) -> u64 {
    let mut rung = [0; 8];
    match rustix::io::retry_on_intr(|| rustix::io::read(bell, &mut rung[..])) {
        Ok(8) => u64::from_ne_bytes(rung),
        // Not rung.
        _ => 0,
    }
}

impl Replies {
    /// # Errors
    /// Without descriptors.
    pub(crate) fn new(image: Arc<Image>, hw_queues: u16) -> io::Result<Arc<Self>> {
        let count = if hw_queues > 1 { hw_queues } else { 0 };
        let inboxes = (0..count).map(|_| Inbox::new()).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { image, sorting: Mutex::default(), inboxes }))
    }

    /// Takes the replies that librbd has: those to hardware queue `number` into `out`.
    fn sort(&self, number: usize, out: &mut Vec<Reply>) {
        let mut sorting = match self.sorting.try_lock() {
            Ok(sorting) => sorting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another queue sorts, and rings for our replies. For a reply after its last look librbd rings.
            Err(TryLockError::WouldBlock) => return,
        };
        loop {
            let found = self.image.poll(|reply| {
                let of = reply.ticket / TICKETS;
                match self.inboxes.get(of).filter(|_| of != number) {
                    Some(inbox) => inbox.put(reply),
                    None => out.push(reply),
                }
            });
            sorting.owed += found as u64;
            if found > 0 {
                sorting.in_vain = 0;
                continue;
            }
            sorting.in_vain += 1;
            if sorting.owed == 0 && sorting.in_vain < PATIENCE {
                return;
            }
            let rung = read(self.image.bell());
            if rung == 0 {
                // The thread of librbd is about to ring; the next look takes it.
                sorting.in_vain = 0;
                return;
            }
            // A ring of which the reply is not taken yet: that is looked for again.
            sorting.owed = sorting.owed.saturating_sub(rung);
        }
    }
}

impl Mine {
    /// # Errors
    /// Without descriptors.
    pub(crate) fn new(all: &Arc<Replies>, number: usize) -> io::Result<Self> {
        let either = match all.inboxes.get(number) {
            None => None,
            Some(inbox) => {
                let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for bell in [all.image.bell(), inbox.bell.as_fd()] {
                    epoll::add(&either, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                }
                Some(either)
            }
        };
        Ok(Self { all: Arc::clone(all), number, either })
    }

    /// Takes the replies to this hardware queue.
    pub(crate) fn take(&self, out: &mut Vec<Reply>) {
        self.all.sort(self.number, out);
        if let Some(inbox) = self.all.inboxes.get(self.number) {
            inbox.take(out);
        }
    }

    /// Readable while there is a reply to take.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_ref().map_or_else(|| self.all.image.bell(), OwnedFd::as_fd)
    }
}

//! [`Replies`]: distributes librbd's replies to the hardware queues of an image.
//!
//! For each image librbd has one queue of finished I/Os, and one descriptor that it signals. The hardware queue that
//! polls it takes all replies, and moves those of other hardware queues to their inboxes.

use crate::sys::{Image, Reply};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The number of tickets of a hardware queue.
pub(crate) const TICKETS: usize = crate::options::MAX_DEPTH as usize;
/// The number of polls without a reply after which the descriptor is emptied even though no signal is owed. Otherwise a
/// librbd that signals without a reply would keep threads awake.
const PATIENCE: u32 = 64;

/// The replies to all hardware queues of an image.
pub(crate) struct Replies {
    image: Arc<Image>,
    sorting: Mutex<Sorting>,
    /// The inboxes of the hardware queues; empty if there is only one queue.
    inboxes: Vec<Inbox>,
}

/// The state of the hardware queue that distributes.
#[derive(Default)]
struct Sorting {
    /// Replies taken whose signal has not been consumed: librbd adds a reply first and signals then.
    owed: u64,
    /// Consecutive polls without a reply.
    in_vain: u32,
}

/// The replies that another hardware queue has found.
struct Inbox {
    /// Signalled and emptied under this lock, so that the bell is readable exactly while there is a reply.
    replies: Mutex<Vec<Reply>>,
    bell: OwnedFd,
}

/// The access of one hardware queue to its replies.
pub(crate) struct Mine {
    all: Arc<Replies>,
    number: usize,
    /// Becomes readable with the descriptor of the image or that of the inbox; `None` if there is no inbox.
    either: Option<OwnedFd>,
}

/// The locks are never poisoned: no code panics while holding them.
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
    // The counter cannot overflow: it is bounded by the number of replies.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Empties an eventfd. Returns the number of signals.
fn read(bell: BorrowedFd<'_>) -> u64 {
    let mut rung = [0; 8];
    match rustix::io::retry_on_intr(|| rustix::io::read(bell, &mut rung[..])) {
        Ok(8) => u64::from_ne_bytes(rung),
        // No signal.
        _ => 0,
    }
}

impl Replies {
    /// # Errors
    /// If the system refuses descriptors.
    pub(crate) fn new(image: Arc<Image>, hw_queues: u16) -> io::Result<Arc<Self>> {
        let count = if hw_queues > 1 { hw_queues } else { 0 };
        let inboxes = (0..count).map(|_| Inbox::new()).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { image, sorting: Mutex::default(), inboxes }))
    }

    /// Takes all replies from librbd, and moves those of hardware queue `number` to `out`.
    fn sort(&self, number: usize, out: &mut Vec<Reply>) {
        let mut sorting = match self.sorting.try_lock() {
            Ok(sorting) => sorting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another queue distributes, and signals our inbox. Librbd signals replies that come after its last poll.
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
                // Librbd's thread has added the reply and is about to signal; the next poll consumes the signal.
                sorting.in_vain = 0;
                return;
            }
            // The reply of this signal may not have been taken: poll again.
            sorting.owed = sorting.owed.saturating_sub(rung);
        }
    }
}

impl Mine {
    /// # Errors
    /// If the system refuses descriptors.
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

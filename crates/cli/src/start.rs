//! Starts threads that begin together or not at all: a gate that can be cancelled.
//!
//! A barrier waits for ever if one of its threads could not be started, or panics before it. Here each thread holds a
//! [`Ticket`]; a ticket that is dropped before its use cancels the gate for all threads. The threads that wait at the
//! gate return, and the caller gets the reason.

use std::any::Any;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Why threads did not do their work.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A thread could not be started.
    #[error(
        "only {started} of {wanted} threads could be started: {why} (ulimit -u and -v bound them; accepted: \
         a smaller numjobs)"
    )]
    Spawn {
        /// The number of threads started before.
        started: usize,
        /// The number of threads that were to be started.
        wanted: usize,
        /// The system's error.
        why: io::Error,
    },
    /// A thread panicked.
    #[error("thread {thread} panicked: {message}")]
    Panic {
        /// The number of the thread.
        thread: usize,
        /// The message of the panic.
        message: String,
    },
}

/// A source of threads.
pub trait Spawn {
    /// Starts a thread that runs `work`.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    fn spawn<'scope, T: Send + 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>;
}

/// Threads of the operating system.
pub struct Threads;

impl Spawn for Threads {
    fn spawn<'scope, T: Send + 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Builder::new().spawn_scoped(scope, work)
    }
}

/// The number of threads that are still missing, or that the start is cancelled.
enum State {
    Missing(usize),
    Cancelled,
}

/// Lets all threads pass when the last of them arrives.
struct Gate {
    state: Mutex<State>,
    turned: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is harmless: each change is one store.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right of one thread to pass the gate, and its duty to arrive there.
pub struct Ticket<'a> {
    gate: &'a Gate,
    used: bool,
}

impl Ticket<'_> {
    /// Waits until all threads have arrived. False if one of them never will.
    #[must_use]
    pub fn pass(mut self) -> bool {
        self.used = true;
        let mut state = self.gate.state();
        if let State::Missing(left) = &mut *state {
            *left -= 1;
            self.gate.turned.notify_all();
        }
        loop {
            match *state {
                State::Missing(0) => return true,
                State::Cancelled => return false,
                State::Missing(_) => {
                    state = self.gate.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.used {
            *self.gate.state() = State::Cancelled;
            self.gate.turned.notify_all();
        }
    }
}

/// Runs all of `works` in parallel, each on a separate thread, and waits for them. Each thread passes the gate with its
/// ticket before it begins, and returns `None` if the gate is cancelled.
///
/// # Errors
/// If a thread cannot be started; then no thread has begun its work. If a thread panics; then the others have run to
/// their end.
pub fn together<T: Send>(
    spawner: &mut impl Spawn,
    works: Vec<impl FnOnce(Ticket<'_>) -> Option<T> + Send>,
) -> Result<Vec<T>, StartError> {
    let wanted = works.len();
    let gate = Gate { state: Mutex::new(State::Missing(wanted)), turned: Condvar::new() };
    std::thread::scope(|scope| {
        let (mut handles, mut failed) = (Vec::with_capacity(wanted), None);
        for work in works {
            let ticket = Ticket { gate: &gate, used: false };
            // A thread that could not be started drops its ticket.
            match spawner.spawn(scope, move || work(ticket)) {
                Ok(handle) => handles.push(handle),
                Err(why) => {
                    failed = Some(StartError::Spawn { started: handles.len(), wanted, why });
                    break;
                }
            }
        }
        let mut parts = Vec::with_capacity(wanted);
        for (thread, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(part) => parts.extend(part),
                Err(panic) if failed.is_none() => {
                    failed = Some(StartError::Panic { thread, message: text(&*panic) });
                }
                Err(_) => {}
            }
        }
        failed.map_or(Ok(parts), Err)
    })
}

/// The message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A source with a limited number of threads.
    struct Few(usize);

    impl Spawn for Few {
        fn spawn<'scope, T: Send + 'scope>(
            &mut self,
            scope: &'scope Scope<'scope, '_>,
            work: impl FnOnce() -> T + Send + 'scope,
        ) -> io::Result<ScopedJoinHandle<'scope, T>> {
            match self.0.checked_sub(1) {
                None => Err(io::Error::from_raw_os_error(11)),
                Some(left) => {
                    self.0 = left;
                    Threads.spawn(scope, work)
                }
            }
        }
    }

    #[test]
    fn all_begin_together_and_answer_in_their_order() {
        let there = AtomicU32::new(0);
        let work = |n: u32| {
            let there = &there;
            move |ticket: Ticket<'_>| {
                there.fetch_add(1, Ordering::SeqCst);
                ticket.pass().then(|| (n, there.load(Ordering::SeqCst)))
            }
        };
        let parts = together(&mut Threads, (0..4).map(work).collect()).expect("four threads");
        assert_eq!(parts, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    }

    /// Regression test: with `thread::scope` and a barrier this hung, because the threads already started waited for
    /// the one that could not be.
    #[test]
    fn where_one_cannot_be_started_none_begins_and_none_hangs() {
        for few in 0..4 {
            let begun = AtomicU32::new(0);
            let work =
                |ticket: Ticket<'_>| ticket.pass().then(|| begun.fetch_add(1, Ordering::SeqCst));
            let error = together(&mut Few(few), vec![&work; 4]).expect_err("one is missing");
            assert!(
                matches!(error, StartError::Spawn { started, wanted: 4, .. } if started == few),
                "{error}"
            );
            assert_eq!(begun.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_panic_on_the_way_to_the_gate_sends_the_others_home() {
        let begun = AtomicU32::new(0);
        let work = |n: u32| {
            let begun = &begun;
            move |ticket: Ticket<'_>| {
                assert!(n != 2, "no room for number {n}");
                ticket.pass().then(|| begun.fetch_add(1, Ordering::SeqCst))
            }
        };
        let error = together(&mut Threads, (0..4).map(work).collect()).expect_err("a panic");
        assert_eq!(error.to_string(), "thread 2 panicked: no room for number 2");
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    }
}

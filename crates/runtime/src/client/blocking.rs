//! [`Blocking`]: one call at a time, which another thread may cancel.

use super::{Client, Summons};
use crate::SubmitErrorKind;
use crate::planted::{self, Planted};
use crate::port::Mutex;
use crate::waiting::Threads;
use blkmq_core::{InSectors, IoError, IoResult, Payload, SubmitterId};
use blkmq_engine::{Io, Refused};
use std::fmt;
use std::sync::Arc;

/// Why a blocking call has no result.
#[non_exhaustive]
pub enum CallError<P> {
    /// The queue did not take the I/O.
    Refused(Refused<P>),
    /// A device panicked while it had the I/O, and did not give it back. The I/O may have been done. Its payload is not
    /// returned, because the device may still write to it.
    Lost,
}

impl<P> CallError<P> {
    /// The reason without the I/O.
    #[must_use]
    pub fn why(&self) -> SubmitErrorKind {
        match self {
            Self::Refused(refused) => SubmitErrorKind::Refused(refused.why),
            Self::Lost => SubmitErrorKind::Lost,
        }
    }

    /// The refusal; `None` if the I/O was lost.
    pub fn into_refused(self) -> Option<Refused<P>> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Lost => None,
        }
    }

    /// The I/O; `None` if it may have been done.
    pub fn into_io(self) -> Option<Io<P>> {
        match self {
            Self::Refused(refused) => Some(refused.into_io()),
            Self::Lost => None,
        }
    }
}

impl<P> fmt::Debug for CallError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallError({:?})", self.why())
    }
}

impl<P> fmt::Display for CallError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Lost => {
                f.write_str("the device panicked while it had the I/O, which may have been done")
            }
        }
    }
}

impl<P> std::error::Error for CallError<P> {}

/// Submits one I/O at a time: [`call`](Self::call) returns when it is done. A [`Canceller`] cancels it from another
/// thread.
#[derive(Debug)]
pub struct Blocking<P> {
    client: Client<P>,
    /// Shared with the cancellers; `None` until the first one is made.
    calls: Option<Arc<Calls>>,
}

/// Cancels calls of a [`Blocking`] client from another thread. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Canceller {
    calls: Arc<Calls>,
    threads: Arc<Threads>,
    id: SubmitterId,
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}

impl Canceller {
    /// Requests cancellation of the I/O of the current call. The I/O is cancelled if it still waits alone, as
    /// [`Client::cancel`] says, and its result says whether it was. Later calls are not affected. Never waits.
    pub fn cancel(&self) {
        if self.calls.ask() && !planted::is(Planted::CancelsInSilence) {
            self.threads.wake_submitter(self.id);
        }
    }
}

/// The current call, and whether it is to be cancelled.
#[derive(Debug, Default)]
struct Calls(Mutex<Call>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Call {
    #[default]
    None,
    UnderWay,
    Unwanted,
}

impl Calls {
    fn set(&self, call: Call) -> Call {
        std::mem::replace(&mut *self.0.lock().expect("no code of others runs under the lock"), call)
    }

    /// Marks the current call as unwanted. Returns false if there is none.
    fn ask(&self) -> bool {
        let mut call = self.0.lock().expect("no code of others runs under the lock");
        let is_under_way = *call != Call::None;
        if is_under_way {
            *call = Call::Unwanted;
        }
        is_under_way
    }
}

/// A client that waits for its call checks for cancellation as well. A canceller marks the call before it wakes the
/// client, and the client checks after it has announced that it parks.
impl Summons for Calls {
    fn rang(&self) -> bool {
        *self.0.lock().expect("no code of others runs under the lock") == Call::Unwanted
    }

    fn listen(&self) -> bool {
        self.rang()
    }
}

impl<P: Payload> Blocking<P> {
    pub(crate) fn new(client: Client<P>) -> Self {
        Self { client, calls: None }
    }

    /// A handle by which other threads cancel calls of this client.
    pub fn canceller(&mut self) -> Canceller {
        let calls = Arc::clone(self.calls.get_or_insert_default());
        let (threads, id) = self.client.waker();
        Canceller { calls, threads, id }
    }

    /// Submits `io` and waits for it. Returns the result and the payload.
    ///
    /// # Blocking
    /// Until the I/O has ended: without bound. A [`Canceller`] ends it while the I/O has not reached the device.
    ///
    /// # Errors
    /// Returns the I/O if the device could not take it, if it would have more parts than the client has credit for, or
    /// if the queue is poisoned. There is no other lack of credit, because there is one I/O at a time. An I/O that a
    /// device had when it panicked may be lost.
    pub fn call(&mut self, io: Io<P>) -> Result<(IoResult, P), CallError<P>> {
        let Some(calls) = self.calls.clone() else {
            self.client.push(io).map_err(CallError::Refused)?;
            let mut answer = None;
            self.client.wait(1, 1, |done| answer = Some((done.result, done.payload)));
            return answer.ok_or(CallError::Lost);
        };
        calls.set(Call::UnderWay);
        let answer = self.call_unless_unwanted(io, &calls);
        calls.set(Call::None);
        answer
    }

    fn call_unless_unwanted(
        &mut self,
        io: Io<P>,
        calls: &Calls,
    ) -> Result<(IoResult, P), CallError<P>> {
        let cookie = io.cookie;
        self.client.push(io).map_err(CallError::Refused)?;
        let mut answer = None;
        loop {
            self.client.wait_or(calls, |done| answer = Some((done.result, done.payload)));
            if answer.is_some() || self.client.lost().is_some() {
                return answer.ok_or(CallError::Lost);
            }
            // Requested only once: the completion says whether the I/O was cancelled.
            if calls.set(Call::UnderWay) == Call::Unwanted {
                self.client.cancel(cookie);
            }
        }
    }

    /// Makes all completed writes durable.
    ///
    /// # Blocking
    /// As [`call`](Self::call).
    ///
    /// # Errors
    /// The error of the device.
    pub fn flush(&mut self) -> IoResult
    where
        P: Default,
    {
        match self.call(Io::flush()) {
            Ok((result, _)) => result,
            // A flush has no sector or length that could be refused.
            Err(CallError::Refused(_) | CallError::Lost) => Err(IoError::POISONED),
        }
    }
}

impl<P: Payload> Blocking<P> {
    /// Reads as many bytes as `payload` carries into it, from `at` on. The payload must allow reads into it, as
    /// [`Buffer`](blkmq_core::Buffer) does.
    ///
    /// # Blocking
    /// As [`call`](Self::call).
    ///
    /// # Errors
    /// As [`call`](Self::call), and if the length of the payload is not whole sectors.
    pub fn read(&mut self, at: impl InSectors, payload: P) -> Result<(IoResult, P), CallError<P>> {
        self.call(Io::read(at, payload))
    }

    /// Writes the bytes of `payload` from `at` on. Durable after the next [`flush`](Self::flush).
    ///
    /// # Blocking
    /// As [`call`](Self::call).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&mut self, at: impl InSectors, payload: P) -> Result<(IoResult, P), CallError<P>> {
        self.call(Io::write(at, payload))
    }
}

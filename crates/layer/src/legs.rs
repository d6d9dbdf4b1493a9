//! [`Legs`]: all legs of a layer, with the layer's own I/Os in flight.

#![forbid(unsafe_code)]

use crate::layer::OwnIo;
#[cfg(target_os = "linux")]
use crate::leg::Bells;
use crate::leg::Leg;
use crate::lent::{Own, Part};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoError, IoFlags, IoResult, Op, SECTOR_SIZE};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{BlockDevice, Io};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The upper half of the cookie of a layer's own I/O; tags are lower.
const OWN: u64 = u32::MAX as u64;

/// The answer of a leg.
pub(crate) enum Answer {
    /// The answer to the piece with this cookie.
    Piece(u64, IoResult),
    Own(OwnIo, IoResult),
}

pub(crate) struct Legs {
    /// Declared, and so dropped, before the descriptors of their devices.
    all: Box<[Leg]>,
    #[cfg(target_os = "linux")]
    bells: Bells,
    /// Answers that have not been looked at: cookie and result.
    answers: VecDeque<(u64, IoResult)>,
    /// The layer's own I/Os, by the lower half of their cookies.
    own: Vec<Option<(OwnIo, Own)>>,
}

impl Legs {
    /// # Errors
    /// If the system refuses resources for the queues of a leg.
    pub(crate) fn new(devices: &[&dyn BlockDevice<Part>]) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let mut bells = Bells::new();
        let leg = |device: &&dyn BlockDevice<Part>| {
            Leg::new(
                *device,
                #[cfg(target_os = "linux")]
                &mut bells,
            )
        };
        let all = devices.iter().map(leg).collect::<io::Result<_>>()?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            bells,
            ..Self::of(all)
        })
    }

    fn of(all: Box<[Leg]>) -> Self {
        Self {
            all,
            #[cfg(target_os = "linux")]
            bells: Bells::new(),
            answers: VecDeque::new(),
            own: Vec::new(),
        }
    }

    /// A function that makes another leg on the same device; `None` unless there is one leg, whose only queue can make
    /// another one.
    pub(crate) fn another(&self) -> Option<impl Fn() -> io::Result<Self> + Send + Sync + 'static> {
        let [leg] = &*self.all else { return None };
        let origin = Arc::clone(leg.origin.as_ref()?);
        Some(move || {
            #[cfg(target_os = "linux")]
            let mut bells = Bells::new();
            let leg = Leg::another(
                &origin,
                #[cfg(target_os = "linux")]
                &mut bells,
            )?;
            Ok(Self {
                #[cfg(target_os = "linux")]
                bells,
                ..Self::of([leg].into())
            })
        })
    }

    /// The sleeping place of a thread that has the only leg to itself; `None` if the leg has no such place.
    #[cfg(target_os = "linux")]
    pub(crate) fn berth(&self) -> Option<Arc<dyn Berth>> {
        let [leg] = &*self.all else { return None };
        leg.berth.clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Sends an I/O of a request.
    pub(crate) fn send(&mut self, leg: usize, io: Io<Part>) {
        self.all[leg].send(io);
    }

    pub(crate) fn send_own(&mut self, mut io: OwnIo) {
        let free = self.own.iter().position(Option::is_none).unwrap_or(self.own.len());
        let bytes = std::mem::replace(&mut io.bytes, AlignedBuf::empty());
        let sectors = (bytes.len() / SECTOR_SIZE as usize) as u32;
        let (own, part) = Own::lend(bytes, io.op == Op::Read);
        let sent = Io::new(io.op, io.sector, sectors, OWN << 32 | free as u64, part);
        // The payload has its own bytes, and the payloads of its neighbours may have none.
        self.all[io.leg].send(Io { flags: io.flags | IoFlags::NOMERGE, ..sent });
        if free == self.own.len() {
            self.own.push(None);
        }
        self.own[free] = Some((io, own));
    }

    /// Returns whether a leg has work to do even without requests.
    pub(crate) fn have_own_work(&self) -> bool {
        self.all.iter().any(|leg| leg.has_own_work)
    }

    /// Returns whether an I/O of the layer itself is in flight.
    pub(crate) fn has_own(&self) -> bool {
        self.own.iter().any(Option::is_some)
    }

    /// Submits the I/Os that were sent to the legs. Returns whether there were any.
    pub(crate) fn submit(&mut self, now: Instant) -> bool {
        let mut were_any = false;
        for leg in &mut self.all {
            let answers = &mut self.answers;
            were_any |= leg.submit(now, |cookie, error| answers.push_back((cookie, Err(error))));
        }
        were_any
    }

    /// Does the work of the legs that is due. Returns whether more work may be due at the same time, besides the
    /// answers.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let mut has_more = false;
        for leg in &mut self.all {
            let answers = &mut self.answers;
            has_more |= leg.poll(now, |done| answers.push_back((done.cookie, done.result)));
        }
        has_more
    }

    /// The oldest answer, removed from the queue; `None` if there is none.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        let (cookie, result) = self.answers.pop_front()?;
        if cookie >> 32 != OWN {
            return Some(Answer::Piece(cookie, result));
        }
        let own = self.own[(cookie & OWN) as usize].take();
        let (mut io, own) = own.expect("an I/O that was sent");
        // The completion owns the part, and has been dropped with it.
        let bytes = own.take_back();
        let result = if bytes.is_some() { result } else { Err(IoError::IO) };
        io.bytes = bytes.unwrap_or_else(AlignedBuf::empty);
        Some(Answer::Own(io, result))
    }

    /// Ends the queues of the legs; each waits for the requests in its device.
    pub(crate) fn end(&mut self) {
        self.all = Box::default();
        self.answers.clear();
        self.own.clear();
    }

    /// The earliest time at which a leg has work; `None` if a leg has to be polled.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.all.iter().map(Leg::next_event).try_fold(Instant::MAX, |at, leg| Some(at.min(leg?)))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.bells.fd()
    }

    /// Waits until a leg has work, or until `until`, where only this thread drives the legs. `now` is the caller's idea
    /// of the time. Returns a time that the clock has reached: the end of a wait that was not interrupted, otherwise
    /// `now`.
    pub(crate) fn wait(&self, now: Instant, until: Instant) -> Instant {
        let Some(next) = self.next_event() else {
            std::thread::yield_now();
            return now;
        };
        let next = next.min(until).max(now);
        #[cfg(target_os = "linux")]
        if let Some(fd) = self.bells.fd() {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let left = std::time::Duration::from_nanos((next - now).0);
            let left = Timespec::try_from(left).ok();
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let is_over = poll(&mut fds, left.as_ref()).is_ok_and(|ready| ready == 0);
            return if is_over { next } else { now };
        }
        next
    }
}

/// Carries out `ios` on devices that no queue uses, and waits for them for `within` at most.
///
/// # Errors
/// If the system refuses resources for the queues of a leg.
pub(crate) fn carry_out(
    devices: &[&dyn BlockDevice<Part>],
    ios: Vec<OwnIo>,
    within: Instant,
) -> io::Result<Vec<(OwnIo, IoResult)>> {
    let mut legs = Legs::new(devices)?;
    let count = ios.len();
    ios.into_iter().for_each(|io| legs.send_own(io));
    let (mut now, mut done) = (Instant::ZERO, Vec::new());
    legs.submit(now);
    while done.len() < count && now < within {
        let has_more = legs.poll(now);
        done.extend(std::iter::from_fn(|| match legs.next_answer()? {
            Answer::Own(io, result) => Some((io, result)),
            Answer::Piece(..) => unreachable!("there are no requests"),
        }));
        if !(has_more | legs.submit(now)) {
            now = legs.wait(now, within);
        }
    }
    Ok(done)
}

//! [`Legs`]: all legs of a layer, with the I/Os of the layer's own that are under way.

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

/// The upper half of the cookie of an I/O of the layer's own; no tag is as high.
const OWN: u64 = u32::MAX as u64;

/// The answer of a leg.
pub(crate) enum Answer {
    /// To a piece with this cookie.
    Piece(u64, IoResult),
    Own(OwnIo, IoResult),
}

pub(crate) struct Legs {
    /// Before the descriptors of their devices.
    all: Box<[Leg]>,
    #[cfg(target_os = "linux")]
    bells: Bells,
    /// Answers that were not looked at yet: a cookie, and a result.
    answers: VecDeque<(u64, IoResult)>,
    /// I/Os of the layer's own, by the lower half of their cookies.
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

    /// The means to make another leg on the same device, if there is one, with one queue that can make another.
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

    /// Where a thread sleeps that has the only leg to itself, if that has such a place.
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
        // Its payload has bytes, which those of its neighbours may not have.
        self.all[io.leg].send(Io { flags: io.flags | IoFlags::NOMERGE, ..sent });
        if free == self.own.len() {
            self.own.push(None);
        }
        self.own[free] = Some((io, own));
    }

    /// Returns whether a leg has work without requests.
    pub(crate) fn have_own_work(&self) -> bool {
        self.all.iter().any(|leg| leg.has_own_work)
    }

    /// Returns whether an I/O of the layer's own is under way.
    pub(crate) fn has_own(&self) -> bool {
        self.own.iter().any(Option::is_some)
    }

    /// Hands the I/Os that were sent to the legs. Returns whether there were any.
    pub(crate) fn submit(&mut self, now: Instant) -> bool {
        let mut were_any = false;
        for leg in &mut self.all {
            let answers = &mut self.answers;
            were_any |= leg.submit(now, |cookie, error| answers.push_back((cookie, Err(error))));
        }
        were_any
    }

    /// Does the work of the legs that is due. Returns whether more may be due at the same time, beside the answers.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let mut has_more = false;
        for leg in &mut self.all {
            let answers = &mut self.answers;
            has_more |= leg.poll(now, |done| answers.push_back((done.cookie, done.result)));
        }
        has_more
    }

    /// The oldest answer that has come.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        let (cookie, result) = self.answers.pop_front()?;
        if cookie >> 32 != OWN {
            return Some(Answer::Piece(cookie, result));
        }
        let own = self.own[(cookie & OWN) as usize].take();
        let (mut io, own) = own.expect("an I/O that was sent");
        // A completion has its part, which is dropped with it.
        let bytes = own.take_back();
        let result = if bytes.is_some() { result } else { Err(IoError::IO) };
        io.bytes = bytes.unwrap_or_else(AlignedBuf::empty);
        Some(Answer::Own(io, result))
    }

    /// Ends the queues of the legs, which wait for the requests in their devices.
    pub(crate) fn end(&mut self) {
        self.all = Box::default();
        self.answers.clear();
        self.own.clear();
    }

    /// The time of the first leg; `None` if one has to be polled.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.all.iter().map(Leg::next_event).try_fold(Instant::MAX, |at, leg| Some(at.min(leg?)))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.bells.fd()
    }

    /// Waits for a leg, for `until` at most, where there is no thread but this one to drive them. Returns a time that is no later than
    /// the clock's, if `now` is none: only whole waits count.
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

/// Carries out `ios` on devices that no queue uses, and waits for them until `within` is over.
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

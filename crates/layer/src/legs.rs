//! [`Legs`]: all legs of a layer, with the layer's own I/Os in flight. A [`Leg`] is a device below a layer, behind a queue
//! of the engine, driven by the thread that drives the layer.

#![forbid(unsafe_code)]

use crate::layer::OwnIo;
use crate::lent::{Own, Part};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoError, IoFlags, IoResult, Op, SECTOR_SIZE};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{
    Another, BlockDevice, Completion, Config, DeviceShape, Io, Queue, Refusal, Submitter,
};
use std::collections::VecDeque;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
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

/// I/Os of a layer that the engine holds for one leg. Further I/Os wait in the leg.
const CREDIT: u32 = 1024;

struct Leg {
    /// Declared, and so dropped, before the queue, which ends when both are gone.
    submitter: Submitter<Part>,
    _queue: Queue<Part>,
    /// I/Os that wait for credit, in the order in which the layer sent them.
    waiting: VecDeque<Io<Part>>,
    /// The completions of the device come without a signal and at no known time.
    is_polled: bool,
    /// The device has work to do even without requests.
    has_own_work: bool,
    /// The last flush has driven the device, and completions have not been polled since.
    has_turned: bool,
    /// Makes another leg on the same device; `None` if the device cannot make another queue.
    origin: Option<Arc<Origin>>,
    /// The sleeping place of a thread that has the layer to itself.
    #[cfg(target_os = "linux")]
    berth: Option<Arc<dyn Berth>>,
}

/// A device that makes queues for one submitter each.
struct Origin {
    shape: DeviceShape,
    another: Another<Part>,
}

/// Descriptors that become readable when any leg has completions.
#[cfg(target_os = "linux")]
struct Bells {
    epoll: Option<OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Bells {
    fn new() -> Self {
        Self { epoll: None }
    }

    fn add(&mut self, bell: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        use rustix::event::epoll;
        let all = match &mut self.epoll {
            Some(all) => all,
            none => none.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        epoll::add(all, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Readable while any of the descriptors is; `None` if no leg has one.
    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.epoll.as_ref().map(AsFd::as_fd)
    }
}

impl Leg {
    /// # Errors
    /// If the system refuses resources for the queues of the device.
    fn new(
        device: &dyn BlockDevice<Part>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        Self::of(
            device.config()?,
            None,
            #[cfg(target_os = "linux")]
            bells,
        )
    }

    /// Another leg on the same device.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    fn another(
        origin: &Arc<Origin>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        Self::of(
            Config::new(origin.shape, vec![(origin.another)()?]),
            Some(origin),
            #[cfg(target_os = "linux")]
            bells,
        )
    }

    fn of(
        mut config: Config<Part>,
        origin: Option<&Arc<Origin>>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        let shape = config.device;
        let first = config.queues.first().and_then(|queue| queue.another());
        let new = |another| Arc::new(Origin { shape, another });
        let origin = origin.cloned().or_else(|| first.map(new));
        #[cfg(target_os = "linux")]
        let berth = match &origin {
            Some(_) => config.queues[0].berth().transpose()?.map(Arc::from),
            None => None,
        };
        let mut is_polled = false;
        for queue in &config.queues {
            let has_time = queue.next_event().is_some();
            #[cfg(target_os = "linux")]
            let has_time = match queue.event_fd() {
                Some(bell) => {
                    bells.add(bell)?;
                    true
                }
                None => has_time,
            };
            is_polled |= !has_time;
        }
        let has_own_work = config.queues.iter().any(|queue| queue.has_own_work());
        (config.submitters, config.depth) = (1, CREDIT);
        let queue = Queue::new(config.own_lanes()).map_err(io::Error::other)?;
        let submitter = queue.submitter().map_err(io::Error::other)?;
        Ok(Self {
            submitter,
            _queue: queue,
            waiting: VecDeque::new(),
            is_polled,
            has_own_work,
            has_turned: false,
            origin,
            #[cfg(target_os = "linux")]
            berth,
        })
    }

    /// Sends an I/O, behind the waiting ones.
    fn send(&mut self, io: Io<Part>) {
        self.waiting.push_back(io);
    }

    /// Submits waiting I/Os for which there is credit. Passes the cookie and the error of each I/O that the queue
    /// refuses to `over`. Returns whether any I/O was submitted or refused.
    fn submit(&mut self, now: Instant, mut over: impl FnMut(u64, IoError)) -> bool {
        let mut were_any = false;
        while let Some(io) = self.waiting.pop_front() {
            let cookie = io.cookie;
            match self.submitter.push(now, io) {
                Ok(()) => self.has_turned = true,
                Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => {
                    self.waiting.push_front(refused.into_io());
                    break;
                }
                Err(refused) => {
                    let unsupported = matches!(refused.why, Refusal::Unsupported { .. });
                    over(
                        cookie,
                        if unsupported { IoError::NOT_SUPPORTED } else { IoError::INVALID },
                    );
                }
            }
            were_any = true;
        }
        self.submitter.flush(now);
        were_any
    }

    /// Does the work that is due, and passes the completions to `over`. Returns whether more work may be due at the
    /// same time.
    fn poll(&mut self, now: Instant, over: impl FnMut(Completion<Part>)) -> bool {
        // Driving the device again would submit entries that the flush has left for the thread to submit as it goes to
        // sleep.
        if !std::mem::take(&mut self.has_turned) {
            self.submitter.poll(now);
        }
        let ended = self.submitter.reap(u32::MAX, over);
        let rests = self.submitter.prepare_park(now).is_some();
        self.submitter.unpark();
        let is_dead = self.submitter.is_poisoned() && self.submitter.in_flight() == 0;
        ended > 0 || !(rests || is_dead)
    }

    /// When the leg has work without a signal; `None` if it has to be polled.
    fn next_event(&self) -> Option<Instant> {
        if self.is_polled && self.submitter.in_flight() > 0 {
            return None;
        }
        Some(self.submitter.next_deadline().unwrap_or(Instant::MAX))
    }
}

//! [`LayerQueue`]: the hardware queue of a device that is a layer; and [`Legs`]: all legs of the layer, with the
//! layer's own I/Os in flight. A [`Leg`] is a device below a layer, behind a queue of the engine, driven by the thread
//! that drives the layer.

#![forbid(unsafe_code)]

use crate::lent::{Lent, Own, Part};
use crate::{Codec, Layer, OwnIo, Piece, Plan, Request, Step};
use blkmq_buf::{AlignedBuf, IoBuf};
use blkmq_core::{Instant, IoError, IoFlags, IoResult, Nanos, Op, Payload, SECTOR_SIZE};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{
    Another, BioTable, BlockDevice, Completion, Config, DeviceQueue, DeviceShape, Enqueued,
    Finished, Inflight, Io, Queue, Refusal, Submitter, Verdict,
};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most rounds over the legs in one call; the caller must then call again.
const ROUNDS: u32 = 64;
/// How long the end of a queue waits for the layer's own I/Os.
const PATIENCE: Nanos = Nanos::from_secs(5);
/// Flags that a request passes to its pieces. A flush before or after it is a separate request.
const PASSED: [IoFlags; 3] = [IoFlags::SYNC, IoFlags::FUA, IoFlags::NOUNMAP];

/// The hardware queue of a layer.
struct LayerQueue {
    layer: Box<dyn Layer>,
    legs: Legs,
    /// Makes the layer of each further queue to the same legs; `None` if the queues would have to share a layer.
    layers: Option<Layers>,
    /// Open requests, by driver tag.
    open: Box<[Option<Open>]>,
    /// All pieces of a request, answered or not, by driver tag. Unused lists are empty, and keep their capacity.
    pieces: Box<[Vec<Piece>]>,
    /// Empty between calls.
    plan: Plan,
    /// Tags of requests that the layer has released, which may be done.
    released: Vec<usize>,
    /// The last call left work that is due.
    has_more: bool,
    /// A call is in progress, or has panicked.
    is_inside: bool,
    /// The time of the last call.
    now: Instant,
}

impl std::fmt::Debug for LayerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerQueue").field("legs", &self.legs.len()).finish_non_exhaustive()
    }
}

/// Makes layers that share no state.
pub(crate) type Layers = Arc<dyn Fn() -> Box<dyn Layer> + Send + Sync>;

/// A request whose pieces are in flight.
struct Open {
    lent: Lent,
    request: Request,
    /// The number of pieces without an answer, plus one while the layer holds the request.
    pending: u32,
    result: IoResult,
    /// `from` of the piece whose error is `result`.
    failed_at: u32,
}

/// The hardware queue of a device with this shape: `layer` in front of `legs`.
///
/// # Errors
/// If the system refuses resources for the queues of a leg.
///
/// # Panics
/// If the shape has more than one hardware queue: a layer has one.
pub fn queue<P: IoBuf>(
    shape: &DeviceShape,
    layer: Box<dyn Layer>,
    legs: &[&dyn BlockDevice<Part>],
) -> io::Result<Box<dyn DeviceQueue<P>>> {
    assert_eq!(shape.hw_queues, 1, "hardware queues of a layer");
    let mut queue = LayerQueue::new(shape.hw_queue_depth, layer, Legs::new(legs)?);
    // Sends the layer's first own I/Os, whose answers make the descriptor readable.
    queue.pass(Instant::ZERO);
    Ok(Box::new(queue))
}

/// Like [`queue`], for a layer without I/Os of its own. Each client may have such a queue.
pub(crate) fn lane<P: IoBuf>(
    shape: &DeviceShape,
    layers: Layers,
    legs: &[&dyn BlockDevice<Part>],
) -> io::Result<Box<dyn DeviceQueue<P>>> {
    let queue = LayerQueue::new(shape.hw_queue_depth, layers(), Legs::new(legs)?);
    Ok(Box::new(LayerQueue { layers: Some(layers), ..queue }))
}

fn passed(flags: IoFlags) -> IoFlags {
    let all = PASSED.into_iter().filter(|flag| flags.contains(*flag));
    all.fold(IoFlags::NONE, IoFlags::union)
}

/// The numbers of the blocks of a request.
fn blocks(codec: &dyn Codec, request: &Request) -> Range<u64> {
    let block = codec.block() as u64 / u64::from(SECTOR_SIZE);
    let first = request.sector / block;
    first..first + u64::from(request.sectors) / block
}

fn encode(codec: &mut dyn Codec, request: &Request, plain: &Part, stored: &mut [u8]) -> IoResult {
    let mut block = vec![0; codec.block()];
    let places = stored.chunks_exact_mut(codec.stored());
    for (nth, (at, place)) in blocks(codec, request).zip(places).enumerate() {
        plain.write_to(nth * block.len(), &mut block)?;
        codec.encode(at, &block, place);
    }
    Ok(())
}

fn decode(codec: &mut dyn Codec, request: &Request, plain: &Part, stored: &[u8]) -> IoResult {
    let mut block = vec![0; codec.block()];
    let mut result = Ok(());
    for (nth, (at, place)) in
        blocks(codec, request).zip(stored.chunks_exact(codec.stored())).enumerate()
    {
        // Every block is checked, so that each faulty one is reported.
        match codec.decode(at, place, &mut block) {
            Ok(()) => plain.read_from(nth * block.len(), &block)?,
            Err(error) => result = Err(error),
        }
    }
    result
}

impl Open {
    /// Sends a piece to its leg, with the bytes that it moves.
    fn send(&mut self, tag: usize, piece: Piece, pieces: &mut Vec<Piece>, legs: &mut Legs) {
        let moves_data = piece.op == self.request.op && self.request.moves_data();
        assert!(moves_data || !matches!(piece.op, Op::Read | Op::Write));
        let part = if moves_data {
            let bytes = |sectors: u32| sectors as usize * SECTOR_SIZE as usize;
            self.lent.part(bytes(piece.from), bytes(piece.sectors))
        } else {
            Part::default()
        };
        let cookie = (tag as u64) << 32 | pieces.len() as u64;
        let io = Io::new(piece.op, piece.sector, piece.sectors, cookie, part);
        legs.send(piece.leg, Io { flags: passed(piece.flags), ..io });
        pieces.push(piece);
        self.pending += 1;
    }

    /// Notes the result of the piece at `from`; the error with the lowest `from` counts.
    fn note(&mut self, result: IoResult, from: u32) {
        if result.is_err() && (self.result.is_ok() || from < self.failed_at) {
            (self.result, self.failed_at) = (result, from);
        }
    }
}

impl LayerQueue {
    fn new(depth: u32, layer: Box<dyn Layer>, legs: Legs) -> Self {
        Self {
            layer,
            legs,
            layers: None,
            open: (0..depth).map(|_| None).collect(),
            pieces: (0..depth).map(|_| Vec::new()).collect(),
            plan: Plan::default(),
            released: Vec::new(),
            has_more: false,
            is_inside: false,
            now: Instant::ZERO,
        }
    }

    /// Carries out the plan, made for the request of this tag, or for none.
    fn carry_out(&mut self, tag: Option<usize>) {
        if let Some(tag) = tag {
            let open = self.open[tag].as_mut().expect("a request that is here");
            open.pending += u32::from(std::mem::take(&mut self.plan.is_held));
            for piece in self.plan.pieces.drain(..) {
                open.send(tag, piece, &mut self.pieces[tag], &mut self.legs);
            }
        }
        for step in self.plan.steps.drain(..) {
            match step {
                Step::Send(tag, piece) => {
                    let open = self.open[tag].as_mut().expect("a request that is held");
                    open.send(tag, piece, &mut self.pieces[tag], &mut self.legs);
                }
                Step::Release(tag, result) => {
                    let open = self.open[tag].as_mut().expect("a request that is held");
                    open.pending -= 1;
                    open.note(result, u32::MAX);
                    self.released.push(tag);
                }
                Step::Own(io) => self.legs.send_own(io),
            }
        }
    }

    /// Notes an answer. Returns its request if that is done.
    fn answered(&mut self, answer: Answer) -> Option<(Inflight, IoResult)> {
        let (cookie, result) = match answer {
            Answer::Piece(cookie, result) => (cookie, result),
            Answer::Own(io, result) => {
                self.layer.own_answered(io, result, &mut self.plan);
                self.carry_out(None);
                return None;
            }
        };
        let (tag, number) = ((cookie >> 32) as usize, (cookie & u64::from(u32::MAX)) as usize);
        let open = self.open[tag].as_mut().expect("an answer to a request that is here");
        let piece = self.pieces[tag][number];
        open.pending -= 1;
        self.plan.id = tag;
        let result = self.layer.answered(&open.request, &piece, result, &mut self.plan);
        open.note(result, piece.from);
        self.carry_out(Some(tag));
        self.finished(tag)
    }

    /// Removes the request of this tag, and returns it, if it is done.
    fn finished(&mut self, tag: usize) -> Option<(Inflight, IoResult)> {
        let open = self.open[tag].take_if(|open| open.pending == 0)?;
        self.pieces[tag].clear();
        let Open { mut lent, request, mut result, .. } = open;
        // Every part was returned with its completion.
        if result.is_ok()
            && request.op == Op::Read
            && let Some(codec) = self.layer.codec()
        {
            result = lent.convert(|plain, stored| decode(codec, &request, plain, stored));
        }
        Some((lent.release()?, result))
    }

    /// Notifies the layer of the time, and submits its own I/Os.
    fn pass(&mut self, now: Instant) {
        self.layer.passed(now, &mut self.plan);
        if !self.plan.steps.is_empty() {
            self.carry_out(None);
            self.legs.submit(now);
        }
    }

    /// Processes answers from the legs. Passes the requests that are done to `over`.
    fn take_answers(&mut self, mut over: impl FnMut(Inflight, IoResult)) {
        while let Some(answer) = self.legs.next_answer() {
            if let Some((rq, result)) = self.answered(answer) {
                over(rq, result);
            }
        }
        while let Some(tag) = self.released.pop() {
            if let Some((rq, result)) = self.finished(tag) {
                over(rq, result);
            }
        }
    }

    /// Lets the layer end its work, unless a request is open or a call has panicked.
    fn close(&mut self) {
        if self.is_inside || self.open.iter().any(Option::is_some) {
            return;
        }
        self.layer.close(&mut self.plan);
        self.carry_out(None);
        let (mut now, until) = (self.now, self.now + PATIENCE);
        self.legs.submit(now);
        while self.legs.has_own() && now < until {
            let has_more = self.legs.poll(now);
            self.take_answers(|_, _| unreachable!("there are no requests"));
            if !(has_more | self.legs.submit(now)) {
                now = self.legs.wait(now, until);
            }
        }
    }
}

impl<P: IoBuf> DeviceQueue<P> for LayerQueue {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let request = Request::of(&rq);
        let tag = rq.tag().0 as usize;
        let mut lent = match Lent::new(bios, rq) {
            Ok(lent) => lent,
            Err((rq, error)) => return Enqueued::Done(rq, Err(error)),
        };
        if request.moves_data()
            && let Some(codec) = self.layer.codec()
        {
            lent.stand_in(blocks(codec, &request).count() * codec.stored());
            if request.op == Op::Write
                && let Err(error) =
                    lent.convert(|plain, stored| encode(codec, &request, plain, stored))
            {
                let rq = lent.release().expect("no part was lent");
                return Enqueued::Done(rq, Err(error));
            }
        }
        self.is_inside = true;
        self.plan.id = tag;
        self.layer.begin(&request, &mut self.plan);
        let open = Open { lent, request, pending: 0, result: Ok(()), failed_at: 0 };
        self.open[tag] = Some(open);
        self.carry_out(Some(tag));
        self.is_inside = false;
        self.has_more |= !self.released.is_empty();
        match self.finished(tag) {
            Some((rq, result)) => Enqueued::Done(rq, result),
            None => Enqueued::Accepted,
        }
    }

    fn commit(&mut self, now: Instant) {
        self.legs.submit(now);
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.now = now;
        self.is_inside = true;
        self.pass(now);
        for _ in 0..ROUNDS {
            self.has_more = self.legs.poll(now);
            self.take_answers(|rq, result| {
                out.push(Finished { rq, verdict: Verdict::Done(result) });
            });
            self.has_more |= self.legs.submit(now);
            if !self.has_more {
                break;
            }
        }
        self.is_inside = false;
    }

    /// The earliest time of the legs. A leg has its own timeout for its pieces.
    fn next_event(&self) -> Option<Instant> {
        if self.has_more {
            return None;
        }
        self.legs.next_event()
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.legs.event_fd()
    }

    fn has_own_work(&self) -> bool {
        self.layer.has_own_ios() || self.legs.have_own_work()
    }

    fn another(&self) -> Option<Another<P>> {
        let (layers, legs) = (self.layers.clone()?, self.legs.another()?);
        let depth = self.open.len() as u32;
        Some(Box::new(move || {
            let queue = Self::new(depth, layers(), legs()?);
            Ok(Box::new(Self { layers: Some(Arc::clone(&layers)), ..queue }))
        }))
    }

    #[cfg(target_os = "linux")]
    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        let berth = self.legs.berth()?;
        Some(Ok(Box::new(berth)))
    }

    /// Ends the queues of the legs; each waits for the requests in its device.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.close();
        self.legs.end();
        let all = std::mem::take(&mut self.open).into_iter().flatten();
        out.extend(all.filter_map(|open| open.lent.release()));
    }
}

/// The upper half of the cookie of a layer's own I/O; tags are lower.
const OWN: u64 = u32::MAX as u64;

/// The answer of a leg.
enum Answer {
    /// The answer to the piece with this cookie.
    Piece(u64, IoResult),
    Own(OwnIo, IoResult),
}

pub(crate) struct Legs {
    /// Declared, and so dropped, before the descriptors of their devices.
    all: Box<[Leg]>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has descriptors"))]
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
        let mut bells = Bells::default();
        let leg = |device: &&dyn BlockDevice<Part>| Leg::new(device.config()?, None, &mut bells);
        let all = devices.iter().map(leg).collect::<io::Result<_>>()?;
        Ok(Self::of(all, bells))
    }

    fn of(all: Box<[Leg]>, bells: Bells) -> Self {
        Self { all, bells, answers: VecDeque::new(), own: Vec::new() }
    }

    /// A function that makes another leg on the same device; `None` unless there is one leg, whose only queue can make
    /// another one.
    pub(crate) fn another(&self) -> Option<impl Fn() -> io::Result<Self> + Send + Sync + 'static> {
        let [leg] = &*self.all else { return None };
        let origin = Arc::clone(leg.origin.as_ref()?);
        Some(move || {
            let mut bells = Bells::default();
            let config = Config::new(origin.shape, vec![(origin.another)()?]);
            let leg = Leg::new(config, Some(&origin), &mut bells)?;
            Ok(Self::of([leg].into(), bells))
        })
    }

    /// The sleeping place of a thread that has the only leg to itself; `None` if the leg has no such place.
    #[cfg(target_os = "linux")]
    fn berth(&self) -> Option<Arc<dyn Berth>> {
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

    fn send_own(&mut self, mut io: OwnIo) {
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
    fn have_own_work(&self) -> bool {
        self.all.iter().any(|leg| leg.has_own_work)
    }

    /// Returns whether an I/O of the layer itself is in flight.
    fn has_own(&self) -> bool {
        self.own.iter().any(Option::is_some)
    }

    /// Submits the I/Os that were sent to the legs. Returns whether there were any.
    fn submit(&mut self, now: Instant) -> bool {
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
    fn next_answer(&mut self) -> Option<Answer> {
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
    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
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

/// Descriptors that become readable when any leg has completions. Only Linux has them.
#[derive(Default)]
struct Bells {
    #[cfg(target_os = "linux")]
    epoll: Option<OwnedFd>,
}

impl Bells {
    /// Adds the descriptor of `queue`. Returns whether its completions come without a signal and at no known time.
    fn add(&mut self, queue: &dyn DeviceQueue<Part>) -> io::Result<bool> {
        #[cfg(target_os = "linux")]
        if let Some(bell) = queue.event_fd() {
            use rustix::event::epoll;
            let all = match &mut self.epoll {
                Some(all) => all,
                none => none.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            };
            epoll::add(all, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            return Ok(false);
        }
        Ok(queue.next_event().is_none())
    }

    /// Readable while any of the descriptors is; `None` if no leg has one.
    #[cfg(target_os = "linux")]
    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.epoll.as_ref().map(AsFd::as_fd)
    }
}

impl Leg {
    /// # Errors
    /// If the system refuses resources for the queues of the device.
    fn new(
        mut config: Config<Part>,
        origin: Option<&Arc<Origin>>,
        bells: &mut Bells,
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
            is_polled |= bells.add(&**queue)?;
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

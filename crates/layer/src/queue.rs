//! [`LayerQueue`]: the hardware queue of a device that is a layer.

#![forbid(unsafe_code)]

use crate::layer::{Codec, Layer, Piece, Plan, Request, Step};
use crate::legs::{Answer, Legs};
use crate::lent::{Lent, Part};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoFlags, IoResult, Nanos, Op, Payload, SECTOR_SIZE};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{
    Another, BioTable, BlockDevice, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io,
    Verdict,
};
use std::io;
use std::ops::Range;
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

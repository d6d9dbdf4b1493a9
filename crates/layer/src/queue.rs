//! [`LayerQueue`]: the hardware queue of a device that is a layer.

#![forbid(unsafe_code)]

use crate::layer::{Codec, Layer, Piece, Plan, Request};
#[cfg(target_os = "linux")]
use crate::leg::Bells;
use crate::leg::Leg;
use crate::lent::{Lent, Part};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoFlags, IoResult, Op, Payload, SECTOR_SIZE};
use blkmq_engine::{
    BioTable, BlockDevice, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io, Verdict,
};
use std::io;
use std::ops::Range;

/// Rounds over the legs in one call, after which the caller has to come again.
const ROUNDS: u32 = 64;
/// Of the flags of a request, those that its pieces have, too. A flush before or after it is a request of its own.
const PASSED: [IoFlags; 3] = [IoFlags::SYNC, IoFlags::FUA, IoFlags::NOUNMAP];

/// The hardware queue of a layer.
struct LayerQueue {
    layer: Box<dyn Layer>,
    legs: Box<[Leg]>,
    #[cfg(target_os = "linux")]
    bells: Bells,
    /// By driver tag.
    open: Box<[Option<Open>]>,
    /// Empty between calls.
    plan: Plan,
    /// Answers that were not looked at yet: a cookie, and a result.
    answers: Vec<(u64, IoResult)>,
    /// The last call has left work that is due.
    has_more: bool,
}

impl std::fmt::Debug for LayerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerQueue").field("legs", &self.legs.len()).finish_non_exhaustive()
    }
}

/// A request whose pieces are under way.
struct Open {
    lent: Lent,
    request: Request,
    /// All of its pieces, whether answered or not.
    pieces: Vec<Piece>,
    pending: u32,
    result: IoResult,
    /// The place of the error in `result`, if there is one.
    failed_at: u32,
}

/// The hardware queue of a device of this shape: `layer` in front of `legs`.
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
    #[cfg(target_os = "linux")]
    let mut bells = Bells::new();
    let leg = |device: &&dyn BlockDevice<Part>| {
        Leg::new(
            *device,
            #[cfg(target_os = "linux")]
            &mut bells,
        )
    };
    let legs = legs.iter().map(leg).collect::<io::Result<_>>()?;
    Ok(Box::new(LayerQueue {
        layer,
        legs,
        #[cfg(target_os = "linux")]
        bells,
        open: (0..shape.hw_queue_depth).map(|_| None).collect(),
        plan: Plan::default(),
        answers: Vec::new(),
        has_more: false,
    }))
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
        // All blocks are looked at, so that each that is wrong is named.
        match codec.decode(at, place, &mut block) {
            Ok(()) => plain.read_from(nth * block.len(), &block)?,
            Err(error) => result = Err(error),
        }
    }
    result
}

impl LayerQueue {
    /// Sends the pieces in `plan`, for the request of this tag.
    fn send(&mut self, tag: usize) {
        let open = self.open[tag].as_mut().expect("pieces belong to a request that is here");
        for piece in self.plan.pieces.drain(..) {
            let moves_data = piece.op == open.request.op && open.request.moves_data();
            assert!(moves_data || !matches!(piece.op, Op::Read | Op::Write));
            let part = if moves_data {
                let bytes = |sectors: u32| sectors as usize * SECTOR_SIZE as usize;
                open.lent.part(bytes(piece.from), bytes(piece.sectors))
            } else {
                Part::default()
            };
            let cookie = (tag as u64) << 32 | open.pieces.len() as u64;
            let io = Io::new(piece.op, piece.sector, piece.sectors, cookie, part);
            self.legs[piece.leg].send(Io { flags: passed(piece.flags), ..io });
            open.pieces.push(piece);
            open.pending += 1;
        }
    }

    /// Takes notice of the answer to a piece. Returns its request, if that is done.
    fn answered(&mut self, cookie: u64, result: IoResult) -> Option<Finished> {
        let (tag, number) = ((cookie >> 32) as usize, (cookie & u64::from(u32::MAX)) as usize);
        let open = self.open[tag].as_mut().expect("an answer to a request that is here");
        let piece = open.pieces[number];
        open.pending -= 1;
        let result = self.layer.answered(&open.request, &piece, result, &mut self.plan);
        if result.is_err() && (open.result.is_ok() || piece.from < open.failed_at) {
            (open.result, open.failed_at) = (result, piece.from);
        }
        self.send(tag);
        self.finished(tag)
    }

    /// Takes the request of this tag out, if it is done.
    fn finished(&mut self, tag: usize) -> Option<Finished> {
        let open = self.open[tag].take_if(|open| open.pending == 0)?;
        let Open { mut lent, request, mut result, .. } = open;
        // Every part was returned with its completion.
        if result.is_ok()
            && request.op == Op::Read
            && let Some(codec) = self.layer.codec()
        {
            result = lent.convert(|plain, stored| decode(codec, &request, plain, stored));
        }
        let rq = lent.release()?;
        Some(Finished { rq, verdict: Verdict::Done(result) })
    }

    /// Hands the pieces that were sent to the legs.
    fn submit(&mut self, now: Instant) {
        let answers = &mut self.answers;
        for leg in &mut self.legs {
            leg.submit(now, |cookie, error| answers.push((cookie, Err(error))));
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
        self.layer.begin(&request, &mut self.plan);
        let (pieces, result) = (Vec::new(), Ok(()));
        let open = Open { lent, request, pieces, pending: 0, result, failed_at: 0 };
        self.open[tag] = Some(open);
        self.send(tag);
        match self.finished(tag) {
            Some(Finished { rq, .. }) => Enqueued::Done(rq, result),
            None => Enqueued::Accepted,
        }
    }

    fn commit(&mut self, now: Instant) {
        self.submit(now);
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        for _ in 0..ROUNDS {
            self.has_more = false;
            let answers = &mut self.answers;
            for leg in &mut self.legs {
                self.has_more |= leg.poll(now, |done| answers.push((done.cookie, done.result)));
            }
            let answers = std::mem::take(&mut self.answers);
            self.has_more |= !answers.is_empty();
            out.extend(
                answers.iter().filter_map(|(cookie, result)| self.answered(*cookie, *result)),
            );
            if !self.has_more {
                return;
            }
            self.submit(now);
        }
    }

    /// The times of the legs. Each leg has a timeout of its own for its pieces.
    fn next_event(&self) -> Option<Instant> {
        if self.has_more {
            return None;
        }
        self.legs.iter().map(Leg::next_event).try_fold(Instant::MAX, |at, leg| Some(at.min(leg?)))
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.bells.fd()
    }

    /// Ends the queues of the legs, which wait for the requests in their devices.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.legs = Box::default();
        self.answers.clear();
        let all = std::mem::take(&mut self.open).into_iter().flatten();
        out.extend(all.filter_map(|open| open.lent.release()));
    }
}

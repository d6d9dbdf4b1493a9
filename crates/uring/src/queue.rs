//! [`UringQueue`]: one hardware queue of a file, with a ring of its own. Its [`Places`] are one for each request in
//! flight, made when it is first needed.
//!
//! A request takes a place, and the number of the place is the user data of its entries. `commit` submits all entries
//! in one system call. `reap` reads the completion ring, which is shared memory, and makes a system call only to submit
//! requests again.
//!
//! *Invariant: while the kernel has the number of a place, the place is not free and its token stays in it.* The
//! crate's page (`lib.rs`) draws the conclusions.
//!
//! Memory is proportional to the peak number of requests in flight, whatever the depth: a queue begins without places,
//! and a place begins without a list of pieces of memory. A place keeps its list for the next request, so a steady load
//! allocates nothing. The place used last is used next, so a small load uses few places.

use crate::parts::{self, Files, Kind, Order, Part, ZeroBy};
use crate::request::Request;
use crate::ring::{Place, Ring};
use crate::{OpenError, Options, target};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::{Instant, IoError, IoResult, Tag};
use blkmq_engine::{
    Another, Berth, BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use blkmq_threads::{RETRY_DELAY, Step};
use io_uring::cqueue;
use std::collections::VecDeque;
use std::io;
use std::ops::{Index, IndexMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One hardware queue of an open file.
pub struct UringQueue {
    ring: Ring,
    /// With `iopoll`, the ring of reads and writes. Its descriptor never becomes readable, so waiting threads poll.
    polled: Option<Ring>,
    files: Files,
    /// The parts for another queue.
    origin: Arc<Origin>,
    /// The place where the owner sleeps, if each client may have such a queue.
    place: Option<Place>,
    alignment: target::Alignment,
    /// The method of writing zeroes that may leave holes.
    zero: ZeroBy,
    places: Places,
    /// Requests to be submitted again: the time from which on, and the place, the earliest first.
    later: VecDeque<(Instant, u32)>,
    /// The time from which on entries are submitted again that the kernel has refused; `None` without such entries.
    resubmit: Option<Instant>,
    /// The present turn has left entries for the sleep of the owner.
    has_left: bool,
    /// For tests: replacements of the kernel's answers, one after another.
    #[cfg(test)]
    answers: tests::Answers,
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.places.depth())
            .field("inside", &self.inside())
            .finish_non_exhaustive()
    }
}

/// The parts from which a queue is made.
pub(crate) struct Origin {
    pub(crate) parts: Vec<Part>,
    pub(crate) order: Order,
    pub(crate) options: Options,
    pub(crate) pools: Vec<BufferPool>,
}

impl UringQueue {
    pub(crate) fn new(origin: Arc<Origin>) -> Result<Self, OpenError> {
        let Origin { parts, order, options, pools } = &*origin;
        let depth = options.hw_queue_depth;
        let mut ring = Ring::new(depth)?;
        let mut polled = options.iopoll.then(|| Ring::polled(depth)).transpose()?;
        for ring in [&mut ring].into_iter().chain(&mut polled).filter(|_| options.fixed) {
            ring.register_files(parts.iter().map(|part| &*part.target.file))?;
            ring.register_buffers(pools)?;
        }
        let has_place = options.hw_queues.is_none() && polled.is_none() && ring.has_berths();
        let place = has_place.then(|| Place::new(&ring)).transpose();
        Ok(Self {
            place: place.map_err(OpenError::ring("make a place to sleep"))?,
            ring,
            polled,
            files: Files::new(parts, *order, options.fixed),
            alignment: parts::alignment(parts),
            zero: parts::zeroes(parts),
            places: Places::new(depth),
            later: VecDeque::new(),
            resubmit: None,
            has_left: false,
            origin,
            #[cfg(test)]
            answers: tests::Answers::default(),
        })
    }

    /// The number of requests held.
    fn inside(&self) -> usize {
        self.places.taken()
    }

    /// The number of requests that the kernel has, or that are on their way to it.
    fn at_kernel(&self) -> usize {
        self.inside() - self.later.len()
    }

    /// Puts the request of place `at` into the submission queue.
    #[inline]
    fn push(&mut self, at: u32) {
        let place = &self.places[at];
        let entry = place.entry(self.files.at(place.file()).descriptor).user_data(at.into());
        let ring = match &mut self.polled {
            Some(polled) if place.moves_data() => polled,
            _ => &mut self.ring,
        };
        // SAFETY: the entry points to the list of pieces in the place, and through it to payloads. The list does not
        // change while the kernel has the place's number: it is refilled only when the place is free, and advanced
        // only by an answer. The payloads stay until the engine has their token again. The token is in the place, and
        // safe code gets it by `release`, after the kernel's answer, or by `abandon`, after `quiesce`. A forgotten
        // queue keeps list and token for ever. Adding places does not move lists. There is at most one entry for each
        // place, and each ring was made for as many entries as there can be places.
        unsafe { ring.push(&entry) };
    }

    fn submit(&mut self, now: Instant) {
        // The kernel refuses for a temporary lack of memory or of room for completions. Entries that it has not taken
        // stay in the submission queue.
        let is_due = self.polled.is_none() || self.ring.waiting() > 0;
        let refused = (is_due && self.ring.submit().is_err()) | self.look();
        self.resubmit = refused.then_some(now + RETRY_DELAY);
        if let Some(place) = &self.place {
            place.take_left();
        }
    }

    /// With `iopoll`, submits reads and writes and looks for their completions. Returns whether the kernel refused.
    #[inline]
    fn look(&self) -> bool {
        self.polled.as_ref().is_some_and(|polled| polled.submit().is_err())
    }

    /// The oldest completion.
    #[inline]
    fn pop(&mut self) -> Option<cqueue::Entry> {
        let polled = self.polled.as_mut().and_then(Ring::pop);
        polled.or_else(|| self.ring.pop())
    }

    /// Takes all available answers. `over` gets the places of finished requests, with their results. Unfinished
    /// requests are pushed again. Returns whether any were pushed.
    #[inline]
    fn take(&mut self, now: Instant, mut over: impl FnMut(&mut Self, u32, IoResult)) -> bool {
        let mut pushed = false;
        while let Some(completion) = self.pop() {
            if let Some(place) = &mut self.place
                && let Some(asks) = place.notice(&completion, &mut self.ring)
            {
                pushed |= asks;
                continue;
            }
            let at = completion.user_data() as u32;
            let answer = completion.result();
            #[cfg(test)]
            let answer = self.answers.bend(answer);
            let request = &mut self.places[at];
            match request.judge(answer, &self.files, self.alignment.block) {
                Step::Done(result) => {
                    self.look_at_end(at, result);
                    over(self, at, result);
                }
                Step::Again => {
                    self.push(at);
                    pushed = true;
                }
                Step::Later => self.later.push_back((now + RETRY_DELAY, at)),
            }
        }
        pushed
    }

    /// As [`DeviceQueue::reap`].
    fn take_finished(&mut self, now: Instant, out: &mut Vec<Finished>) {
        if self.polled.is_some() && self.at_kernel() > 0 {
            self.look();
        }
        let mut pushed = self.take(now, |queue, at, result| {
            out.push(Finished { rq: queue.release(at), verdict: Verdict::Done(result) });
        });
        while let Some((from, at)) = self.later.front().copied()
            && from <= now
        {
            self.later.pop_front();
            self.push(at);
            pushed = true;
        }
        if let Some(place) = &mut self.place {
            pushed |= place.attend(&mut self.ring);
            // Entries that this turn has left are not submitted here.
            pushed |= !std::mem::take(&mut self.has_left) && place.has_left();
        }
        if pushed || self.resubmit.is_some_and(|from| from <= now) {
            self.submit(now);
        }
    }

    /// Finds the end of the file again if the request of place `at` has failed: it may have met a new end.
    #[inline]
    fn look_at_end(&self, at: u32, result: IoResult) {
        if result == Err(IoError::IO) {
            self.files.at(self.places[at].file()).present.find_end();
        }
    }

    /// Frees the place `at`.
    #[inline]
    fn release(&mut self, at: u32) -> Inflight {
        let rq = self.places[at].rq.take();
        self.places.give_back(at);
        rq.expect("a place whose number the kernel had holds a request")
    }

    /// Waits until the kernel has released every buffer, whatever the results of the I/Os.
    ///
    /// The kernel may cancel I/Os that it has not begun. I/Os at the disk must end there. If waiting for the ring
    /// fails, this polls, since completions still arrive.
    fn quiesce(&mut self) {
        let mut ended = 0;
        if self.at_kernel() > 0 {
            self.ring.cancel();
        }
        while self.at_kernel() > ended {
            let waited = match &self.polled {
                None => self.ring.submit_and_wait(),
                Some(polled) => self.ring.submit().and(polled.submit()),
            };
            if waited.is_err() {
                std::thread::yield_now();
            }
            while let Some(completion) = self.pop() {
                ended += usize::from(completion.user_data() <= u32::MAX.into());
            }
        }
        // The kernel has no place, including those that have just ended.
        self.later.clear();
        self.resubmit = None;
    }
}

impl<P: IoBuf> DeviceQueue<P> for UringQueue {
    #[inline]
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let kind = Kind::of(&rq, self.zero);
        let stretch = match self.files.admit(&rq, kind) {
            Ok(admitted) => admitted,
            Err(refused) => return Enqueued::Done(rq, Err(refused)),
        };
        let Some(at) = self.places.next() else {
            // All places are taken, so a completion will follow.
            return Enqueued::Busy(rq, Busy::DevResource);
        };
        let place = &mut self.places[at];
        place.begin(&rq, kind, stretch);
        if kind.moves_data() {
            if let Err(e) = place.gather(bios, &rq, self.alignment.memory) {
                return Enqueued::Done(rq, Err(e));
            }
            place.find_fixed(&self.ring);
        }
        let at = self.places.take();
        self.places[at].rq = Some(rq);
        if kind.moves_data() && self.files.is_in_memory(self.places[at].file()) {
            let step = self.places[at].perform(&self.files, self.alignment.block);
            if let Step::Done(result) = step {
                self.look_at_end(at, result);
                return Enqueued::Done(self.release(at), result);
            }
            self.later.push_back((now + RETRY_DELAY, at));
        } else {
            self.push(at);
        }
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        if let Some(place) = &self.place
            && self.resubmit.is_none()
            && place.leave(self.ring.waiting())
        {
            self.has_left = true;
            return;
        }
        self.submit(now);
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.take_finished(now, out);
    }

    /// A disk does not give back an I/O that it has begun, and the request stays until the kernel has released the
    /// memory. So the kernel is asked to cancel it, and the timer begins again.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let has_it = |place: &Request| place.rq.as_ref().is_some_and(|rq| rq.tag() == tag);
        let at = self.places.position(has_it).expect("the engine asks about what is here");
        if let Some(waiting) = self.later.iter().position(|(_, place)| *place == at) {
            // The kernel does not have it.
            self.later.remove(waiting);
            return Expiry::Done(self.release(at), Err(IoError::TIMED_OUT));
        }
        self.places[at].given_up = true;
        self.ring.cancel_one(at);
        Expiry::ResetTimer
    }

    /// The time of the next retry. Other events become readable on the descriptor.
    fn next_event(&self) -> Option<Instant> {
        let later = self.later.front().map(|(from, _)| *from);
        later.into_iter().chain(self.resubmit).min()
    }

    /// The descriptor of the ring, readable while it has completions. `None` with a polled ring.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.polled.is_none().then(|| self.ring.fd())
    }

    /// Another queue with a ring of its own, unless the number of hardware queues is given.
    fn another(&self) -> Option<Another<P>> {
        self.place.as_ref()?;
        let origin = Arc::clone(&self.origin);
        Some(Box::new(move || {
            let another = Self::new(Arc::clone(&origin));
            another.map(|queue| Box::new(queue) as _).map_err(io::Error::from)
        }))
    }

    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        self.place.as_ref().map(|place| Ok(place.berth()))
    }

    /// Waits for the kernel. This call alone may take long.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.quiesce();
        out.extend(self.places.iter_mut().filter_map(|place| place.rq.take()));
        self.places.give_back_all();
    }
}

impl Drop for UringQueue {
    /// Waits for the kernel as `abandon` does, since lists of pieces, and perhaps registered pools, are freed with the
    /// queue. The engine calls `abandon` first. Otherwise requests that are still held are dropped, which is reported,
    /// and their payloads stay in the engine's table.
    fn drop(&mut self) {
        self.quiesce();
    }
}

/// The most entries (16 bytes) of all lists of free places: 64 requests of 1024 pieces each, the most that one call
/// takes. A load above that has megabytes of data in flight, beside which an allocation is negligible.
const KEPT: usize = 64 << 10;
/// Like [`KEPT`], for each place of a deeper queue, so that lists of usual lengths are kept at any depth.
const KEPT_EACH: usize = 16;

/// Places for at most `depth` requests.
struct Places {
    /// When this grows, the places move, but not their lists of pieces.
    all: Vec<Request>,
    /// Free places, taken from the end: the place used last, which is still in the cache, is used next.
    free: Vec<u32>,
    depth: u32,
    /// Room in the lists of free places, in entries.
    kept: usize,
    /// The maximum of `kept`.
    most_kept: usize,
}

impl Places {
    /// Begins without places. Allocates nothing.
    fn new(depth: u32) -> Self {
        let most_kept = KEPT.max(KEPT_EACH * depth as usize);
        Self { all: Vec::new(), free: Vec::new(), depth, kept: 0, most_kept }
    }

    /// The number of requests that it can hold.
    fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of taken places.
    fn taken(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The place that [`take`](Self::take) takes next; `None` if all are taken.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        match self.free.last() {
            Some(at) => Some(*at),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let at = self.all.len() as u32;
        if at == self.depth {
            return None;
        }
        self.all.push(Request::new());
        // Reserving here lets `give_back` never allocate.
        self.free.reserve(self.all.len());
        self.free.push(at);
        Some(at)
    }

    /// Takes the place that [`next`](Self::next) has named.
    ///
    /// # Panics
    /// If it has named none.
    #[inline]
    fn take(&mut self) -> u32 {
        let at = self.free.pop().expect("a place that was named is free");
        self.kept -= self.all[at as usize].counted();
        at
    }

    /// Makes the place `at` free again.
    #[inline]
    fn give_back(&mut self, at: u32) {
        let place = &mut self.all[at as usize];
        place.count();
        if self.kept + place.counted() > self.most_kept {
            place.forget_list();
        }
        self.kept += place.counted();
        self.free.push(at);
    }

    /// All places, free or not.
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.all.iter_mut()
    }

    /// The number of the first place for which `wanted` is true.
    fn position(&self, wanted: impl FnMut(&Request) -> bool) -> Option<u32> {
        self.all.iter().position(wanted).map(|at| at as u32)
    }

    /// Makes all places free.
    fn give_back_all(&mut self) {
        *self = Self::new(self.depth);
    }

    /// Room in all lists, in entries of 16 bytes.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.all.iter().map(Request::room).sum()
    }

    /// The number of places made.
    #[cfg(test)]
    fn made(&self) -> usize {
        self.all.len()
    }
}

impl Index<u32> for Places {
    type Output = Request;

    #[inline]
    fn index(&self, at: u32) -> &Request {
        &self.all[at as usize]
    }
}

impl IndexMut<u32> for Places {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Request {
        &mut self.all[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use blkmq_buf::AlignedBuf;
    use blkmq_core::{Nanos, Op};
    use blkmq_engine::{BlockDevice, Config, DeviceShape, Io, Queue, Submitter};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::{Arc, Mutex};

    const BLOCK: usize = 4096;
    const T0: Instant = Instant::ZERO;

    /// Turns an answer into another one.
    type Bend = fn(i32) -> i32;

    /// Replacements of the kernel's answers, one after another; later answers are left unchanged.
    #[derive(Clone, Default)]
    pub(super) struct Answers(Arc<Mutex<VecDeque<Bend>>>);

    impl Answers {
        fn of(answers: &[Bend]) -> Self {
            Self(Arc::new(Mutex::new(answers.iter().copied().collect())))
        }

        pub(super) fn bend(&self, answer: i32) -> i32 {
            self.0.lock().unwrap().pop_front().map_or(answer, |bend| bend(answer))
        }

        fn left(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }

    /// A queue around a file of 16 blocks, and the file. Every byte of a block is the block's number.
    struct Rig {
        queue: Queue<AlignedBuf>,
        answers: Answers,
        path: std::path::PathBuf,
    }

    impl Rig {
        /// `None`, and a line that names the test, if there is no io_uring here.
        fn new(test: &str, answers: &[Bend]) -> Option<Self> {
            Self::with_timeout(test, answers, Nanos(u64::MAX))
        }

        /// Like [`new`](Self::new), but with a timeout for each request.
        fn with_timeout(test: &str, answers: &[Bend], timeout: Nanos) -> Option<Self> {
            Self::of(test, answers, timeout, false)
        }

        fn of(test: &str, answers: &[Bend], timeout: Nanos, is_in_memory: bool) -> Option<Self> {
            let path = std::env::temp_dir().join(format!("blkmq-{test}-{}", std::process::id()));
            let bytes = Vec::from_iter((0..16).flat_map(|n| [n; BLOCK]));
            std::fs::write(&path, bytes).expect("a small file");
            let options = Options { hw_queue_depth: 8, ..Options::default() };
            if let Err(e) = Ring::new(1) {
                println!("skipped {test}: {e}");
                return None;
            }
            let target = Target::open(&path, &options).expect("it opens");
            let target = Target { is_in_memory, ..target };
            let part = Part::whole(0, target.clone());
            let origin =
                Origin { parts: vec![part], order: Order::Sequence, options, pools: Vec::new() };
            let mut queue = UringQueue::new(Arc::new(origin)).expect("a small ring");
            queue.answers = Answers::of(answers);
            let answers = queue.answers.clone();
            let shape = DeviceShape {
                hw_queues: 1,
                hw_queue_depth: 8,
                shared_tags: false,
                budget: None,
                limits: target.limits,
                cache: target.cache,
                timeout,
            };
            let queue = Queue::new(Config::new(shape, vec![Box::new(queue) as _])).expect("valid");
            Some(Self { queue, answers, path })
        }

        fn submit(&self, io: Io<AlignedBuf>) -> Submitter<AlignedBuf> {
            self.again(self.queue.submitter().expect("one was asked for"), io)
        }

        fn again(
            &self,
            mut submitter: Submitter<AlignedBuf>,
            io: Io<AlignedBuf>,
        ) -> Submitter<AlignedBuf> {
            submitter.push(T0, io).expect("there is credit");
            submitter.flush(T0);
            submitter
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn read(n: u64, blocks: u32) -> Io<AlignedBuf> {
        Io::new(Op::Read, n * 8, blocks * 8, n, AlignedBuf::new(blocks as usize * BLOCK))
    }

    /// The kernel would pass I/O on such a file to a thread of its own, whose waking takes longer than the copy.
    #[test]
    fn a_file_in_memory_is_read_and_written_in_the_call() {
        let test = "a_file_in_memory_is_read_and_written_in_the_call";
        let Some(rig) = Rig::of(test, &[], Nanos(u64::MAX), true) else { return };
        let reap = |submitter: &mut Submitter<AlignedBuf>| {
            let mut all = Vec::new();
            submitter
                .reap(8, |mut done| all.push((done.result, done.payload.as_mut_slice().to_vec())));
            all
        };
        let mut submitter = rig.submit(read(3, 2));
        let expected = [vec![3; BLOCK], vec![4; BLOCK]].concat();
        assert_eq!(reap(&mut submitter), [(Ok(()), expected)]);
        let mut data = AlignedBuf::new(BLOCK);
        data.as_mut_slice().fill(77);
        let mut submitter = rig.again(submitter, Io::new(Op::Write, 40, 8, 0, data));
        assert_eq!(reap(&mut submitter).len(), 1);
        assert_eq!(
            std::fs::read(&rig.path).expect("it is there")[5 * BLOCK..6 * BLOCK],
            [77; BLOCK]
        );
        let file = std::fs::File::options().write(true).open(&rig.path).expect("it is there");
        file.set_len(8 * BLOCK as u64).expect("it can be cut");
        let mut submitter = rig.again(submitter, read(12, 1));
        assert_eq!(reap(&mut submitter)[0].0, Err(IoError::IO));
    }

    /// Polls at `now` until at most `left` answers remain. The disk takes real time.
    fn await_answers(rig: &Rig, submitter: &mut Submitter<AlignedBuf>, now: Instant, left: usize) {
        for _ in 0..50_000_000_u64 {
            if rig.answers.left() <= left {
                return;
            }
            submitter.poll(now);
            std::thread::yield_now();
        }
        panic!("the kernel has not answered");
    }

    /// Polls at `now` until the I/O is done. The disk takes real time.
    fn finish(submitter: &mut Submitter<AlignedBuf>, now: Instant) -> (IoResult, AlignedBuf) {
        let mut answer = None;
        for _ in 0..50_000_000_u64 {
            submitter.poll(now);
            submitter.reap(1, |done| answer = Some((done.result, done.payload)));
            if let Some(answer) = answer {
                return answer;
            }
            std::thread::yield_now();
        }
        panic!("the read has not come back");
    }

    fn holds(buf: &mut AlignedBuf, first: u8) -> bool {
        buf.as_mut_slice()
            .chunks(BLOCK)
            .zip(first..)
            .all(|(block, n)| block.iter().all(|b| *b == n))
    }

    #[test]
    fn a_short_read_goes_on() {
        let short: [Bend; 2] = [|_| 5000, |all| all - 1];
        let Some(rig) = Rig::new("a_short_read_goes_on", &short) else { return };
        let mut submitter = rig.submit(read(3, 4));
        let (result, mut buf) = finish(&mut submitter, T0);
        assert!(result.is_ok() && holds(&mut buf, 3));
    }

    #[test]
    fn nothing_is_the_end_of_the_file() {
        let Some(rig) = Rig::new("nothing_is_the_end_of_the_file", &[|_| 5000, |_| 0]) else {
            return;
        };
        let mut submitter = rig.submit(read(3, 4));
        assert_eq!(finish(&mut submitter, T0).0, Err(IoError::IO));
    }

    /// In virtual time: the retry is due exactly a millisecond later, and the submitter gets that time.
    #[test]
    fn what_the_kernel_could_not_do_is_tried_again_a_millisecond_later() {
        let test = "what_the_kernel_could_not_do";
        let answers: [Bend; 3] = [|_| -libc::EAGAIN, |_| -libc::ECANCELED, |all| all];
        let Some(rig) = Rig::new(test, &answers) else { return };
        let mut submitter = rig.submit(read(5, 2));
        let mut now = T0;
        for left in [2, 1] {
            await_answers(&rig, &mut submitter, now, left);
            assert_eq!(submitter.next_deadline(), Some(now + RETRY_DELAY));
            assert!(submitter.prepare_park(now).is_some(), "until then it may sleep");
            submitter.unpark();
            now += RETRY_DELAY;
            assert!(submitter.prepare_park(now).is_none(), "then it is due");
            submitter.poll(now);
        }
        let (result, mut buf) = finish(&mut submitter, now);
        assert!(result.is_ok() && holds(&mut buf, 5));
    }

    /// A queue that ends need not wait for requests that are to be tried again, which the kernel does not have.
    #[test]
    fn a_queue_can_go_while_something_waits_to_be_tried_again() {
        let test = "a_queue_can_go_while_something_waits";
        let Some(rig) = Rig::new(test, &[|_| -libc::EAGAIN]) else { return };
        let mut submitter = rig.submit(read(5, 2));
        await_answers(&rig, &mut submitter, T0, 0);
        drop((submitter, rig));
    }

    /// The kernel does not have the request, so it can be returned.
    #[test]
    fn what_waits_to_be_tried_again_comes_back_when_its_time_is_up() {
        let test = "what_waits_to_be_tried_again_comes_back";
        let timeout = Nanos(RETRY_DELAY.0 / 2);
        let Some(rig) = Rig::with_timeout(test, &[|_| -libc::EAGAIN], timeout) else { return };
        let mut submitter = rig.submit(read(5, 2));
        await_answers(&rig, &mut submitter, T0, 0);
        submitter.poll(T0 + timeout);
        let mut result = None;
        submitter.reap(1, |done| result = Some(done.result));
        assert_eq!(result, Some(Err(IoError::TIMED_OUT)));
        let (result, _) = finish(&mut rig.again(submitter, read(5, 2)), T0 + timeout);
        assert_eq!(result, Ok(()), "its place is free again");
    }

    /// The kernel has the request when it times out, and is asked to cancel it.
    #[test]
    fn what_the_kernel_gives_up_has_timed_out() {
        let test = "what_the_kernel_gives_up_has_timed_out";
        let answers: [Bend; 2] = [|_| -libc::EAGAIN, |_| -libc::ECANCELED];
        let Some(rig) = Rig::with_timeout(test, &answers, RETRY_DELAY) else { return };
        let mut submitter = rig.submit(read(5, 2));
        await_answers(&rig, &mut submitter, T0, 1);
        // One turn submits it again and cancels it.
        submitter.poll(T0 + RETRY_DELAY);
        assert_eq!(rig.queue.stats().timeouts, 1);
        assert_eq!(finish(&mut submitter, T0 + RETRY_DELAY).0, Err(IoError::TIMED_OUT));
    }

    /// A device that drops its inner queue without returning its requests.
    struct Dropping(Option<UringQueue>);

    impl Dropping {
        fn inside(&mut self) -> &mut dyn DeviceQueue<AlignedBuf> {
            self.0.as_mut().expect("it is there until the end")
        }
    }

    impl DeviceQueue<AlignedBuf> for Dropping {
        fn enqueue(&mut self, now: Instant, bios: &BioTable<AlignedBuf>, rq: Inflight) -> Enqueued {
            self.inside().enqueue(now, bios, rq)
        }

        fn commit(&mut self, now: Instant) {
            self.inside().commit(now);
        }

        fn reap(&mut self, _: Instant, _: &BioTable<AlignedBuf>, _: &mut Vec<Finished>) {}

        fn abandon(&mut self, _: &mut Vec<Inflight>) {
            // Dropped requests are reported, one of them by a panic.
            let queue = self.0.take();
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(queue)));
        }
    }

    /// After the drop of a queue the kernel has no requests of it, and does not overwrite later contents of buffers.
    #[test]
    fn a_queue_that_is_dropped_with_requests_waits_for_the_kernel() {
        const LEN: usize = 64 * BLOCK;
        let test = "a_queue_that_is_dropped_with_requests_waits";
        let path = std::env::temp_dir().join(format!("blkmq-{test}-{}", std::process::id()));
        let options =
            Options { size_bytes: Some(2 << 20), hw_queue_depth: 8, ..Options::default() };
        if let Err(e) = Ring::new(1) {
            println!("skipped {test}: {e}");
            return;
        }
        let pool = BufferPool::new(8, LEN);
        let device = crate::UringDevice::open(&path, &options).expect("it is laid out");
        for round in 0..4 {
            let reads = Options { readonly: true, ..options.clone() };
            let target = Target::open(&path, &reads).expect("it opens");
            let part = Part::whole(0, target);
            let origin = Origin {
                parts: vec![part],
                order: Order::Sequence,
                options: options.clone(),
                pools: Vec::new(),
            };
            let inside = UringQueue::new(Arc::new(origin)).expect("a small ring");
            let queues = vec![Box::new(Dropping(Some(inside))) as _];
            let queue = Queue::new(Config::new(device.shape, queues)).expect("valid");
            let mut submitter = queue.submitter().expect("one was asked for");
            for n in 0..8 {
                let Some(buf) = pool.take() else { break };
                let sectors = (LEN / 512) as u32;
                // The order prevents merges.
                let read = Io::new(Op::Read, n * 3 % 8 * u64::from(sectors), sectors, n, buf);
                submitter.push(T0, read).expect("there is credit");
            }
            submitter.flush(T0);
            drop(submitter);
            drop(queue);
            // The buffers that the engine has freed, perhaps none.
            let mut back = Vec::from_iter(std::iter::from_fn(|| pool.take()));
            back.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0xab));
            let other = Queue::new(device.config().expect("a ring")).expect("valid");
            let mut submitter = other.submitter().expect("one was asked for");
            for n in 0..8 {
                let io = read(n * LEN as u64 / BLOCK as u64, 64);
                submitter.push(T0, io).expect("there is credit");
                submitter.flush(T0);
                assert_eq!(finish(&mut submitter, T0).0, Ok(()));
            }
            let untouched =
                back.iter_mut().all(|buf| buf.as_mut_slice().iter().all(|b| *b == 0xab));
            assert!(untouched, "round {round}");
        }
        let _ = std::fs::remove_file(&path);
    }

    /// A turn of another thread may take the call for a thread that is about to sleep on its ring. The caller has taken
    /// the sleeper's mark, so without a second call the sleeper would miss any later completion that such a turn takes.
    #[test]
    fn a_call_that_another_thread_takes_is_passed_on() {
        let test = "a_call_that_another_thread_takes_is_passed_on";
        let path = std::env::temp_dir().join(format!("blkmq-{test}-{}", std::process::id()));
        std::fs::write(&path, [0; BLOCK]).expect("a small file");
        if !Ring::new(1).is_ok_and(|ring| ring.has_berths()) {
            println!("skipped {test}: no io_uring with places to sleep");
            return;
        }
        let options = Options { hw_queue_depth: 1, ..Options::default() };
        let target = Target::open(&path, &options).expect("it opens");
        let part = Part::whole(0, target);
        let origin =
            Origin { parts: vec![part], order: Order::Sequence, options, pools: Vec::new() };
        let mut queue = UringQueue::new(Arc::new(origin)).expect("a small ring");
        let berth = DeviceQueue::<AlignedBuf>::berth(&queue);
        let berth = berth.expect("it has one").expect("the system has descriptors");
        let queue = &mut queue;
        let turn = |queue: &mut UringQueue| queue.take_finished(T0, &mut Vec::new());
        let is_called = |wait: i64| {
            let mut fds = [PollFd::from_borrowed_fd(berth.fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: wait, tv_nsec: 0 })) == Ok(1)
        };
        assert!(!berth.attend(), "no turn has asked for calls yet");
        turn(queue);
        assert!(berth.attend() && !is_called(0));
        berth.call();
        assert!(is_called(5));
        std::thread::scope(|scope| {
            scope.spawn(|| turn(queue));
        });
        assert!(is_called(5), "the call is lost");
        turn(queue);
        assert!(!is_called(0), "the sleeper has taken notice");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(berth.attend(), "the poll of another living thread will do");
                berth.call();
                assert!(is_called(5));
                turn(queue);
            });
        });
        assert!(!is_called(0), "a task that has moved to another thread has taken notice");
        std::fs::remove_file(path).expect("it was made above");
    }

    /// Takes `count` places, gives each `pieces` pieces that do not touch, and gives all places back.
    fn round(places: &mut Places, count: usize, pieces: usize) {
        let mut taken = Vec::new();
        for _ in 0..count {
            places.next().expect("one is free");
            let at = places.take();
            places[at].clear();
            (1..=pieces).for_each(|n| places[at].add(std::ptr::without_provenance_mut(n << 20), 8));
            taken.push(at);
        }
        assert_eq!(places.taken(), count);
        taken.into_iter().for_each(|at| places.give_back(at));
        assert_eq!(places.taken(), 0);
    }

    /// Lists for the most pieces at every place would take 160 MiB at the largest depth and 1024 segments, and 2.9 GB
    /// resident with 64 queues.
    #[test]
    fn memory_is_in_proportion_to_what_was_in_flight() {
        let mut places = Places::new(10_240);
        assert_eq!((places.made(), places.room()), (0, 0), "an idle queue");
        round(&mut places, 32, 1);
        assert!(places.made() == 32 && places.room() <= 32 * 4, "{}", places.room());
        round(&mut places, 2, 1024);
        assert!(places.made() == 32 && places.room() <= 2 * 1024 + 30 * 4, "{}", places.room());
    }

    #[test]
    fn a_steady_load_allocates_nothing() {
        let mut places = Places::new(10_240);
        for (count, pieces) in [(128, 3), (64, 1024), (10_240, 16)] {
            round(&mut places, count, pieces);
            let (made, room) = (places.made(), places.room());
            for _ in 0..3 {
                round(&mut places, count, pieces);
                assert_eq!((places.made(), places.room()), (made, room), "{count} of {pieces}");
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        for (depth, most) in [(128, KEPT), (10_240, KEPT_EACH * 10_240)] {
            let mut places = Places::new(depth);
            for pieces in [1, 1024, 5, 1024] {
                round(&mut places, depth as usize, pieces);
                assert!(places.room() <= most, "{} above {most}", places.room());
                assert_eq!(places.kept, places.room(), "as counted");
            }
        }
    }

    #[test]
    fn there_are_as_many_as_the_depth_and_the_last_one_is_used_next() {
        let mut places = Places::new(2);
        let take = |places: &mut Places| places.next().map(|_| places.take());
        let both = [take(&mut places), take(&mut places)];
        assert_eq!((both, take(&mut places)), ([Some(0), Some(1)], None));
        places.give_back(0);
        places.give_back(1);
        assert_eq!(take(&mut places), Some(1));
    }
}

//! A device that answers as the test decides, one that stores the data of writes, one with a script, and a queue around
//! them. The script has the fate of each attempt, its time, and the answer to `timed_out`; the device records when the
//! engine asks.

use blkmq_core::{
    GroupId, GroupIndex, HwQueue, Instant, IoError, IoFlags, IoResult, Limits, Nanos, Op, Payload,
    Rng, SubmitterId, Tag,
};
use blkmq_engine::{
    Access, BioTable, Busy, Change, ChangeError, Config, DeviceQueue, DeviceShape, EditError,
    Enqueued, Expiry, Finished, GroupTree, Host, Inflight, Io, KickMode, Modes, Plan, Queue,
    StatsMode, Submitter, Verdict, WriteCache,
};
use blkmq_sched::{
    Bypass, Cx, Factory, Facts, Observed, Observer, Options, Pick, Scheduler, Shape, registry,
};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// One request as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub op: Op,
    pub flags: IoFlags,
    pub sector: u64,
    pub sectors: u32,
    pub bios: u32,
    pub hw: u16,
    pub at: Instant,
}

/// The behaviour of the device, which a test may change at any time.
#[derive(Default)]
pub struct Control {
    /// Answers to the next requests: `None` accepts. After the last one, every request is accepted.
    pub script: VecDeque<Option<Busy>>,
    /// Finish within the call.
    pub inline: bool,
    /// Finish this many requests at the next reap.
    pub finish: usize,
    /// Finish the newest first.
    pub newest_first: bool,
    /// Requeue this many requests at the next reap instead.
    pub requeue: usize,
    /// Hold at most this many requests; 0 for no limit.
    pub room: usize,
    /// Finish each request this long after it arrived, without further instruction, and announce the time.
    pub service: Option<Nanos>,
    /// Never name a time, as a device with interrupts.
    pub interrupts: bool,
    /// Give random answers.
    pub moods: Option<Moods>,
    pub result: Option<IoResult>,
    pub arrivals: Vec<Arrival>,
    /// The number of requests at the device, over all hardware queues.
    pub inside: usize,
    pub most_inside: usize,
}

/// Probabilities, in percent, of the answers of a random device.
pub struct Moods {
    pub rng: Rng,
    pub resource: u64,
    /// Only while the device holds a request; otherwise it could not keep the promise.
    pub dev_resource: u64,
    /// Instead of finishing the request.
    pub requeue: u64,
}

impl Moods {
    fn refuse(&mut self, holds_something: bool) -> Option<Busy> {
        let drawn = self.rng.below(100);
        if drawn < self.resource {
            Some(Busy::Resource)
        } else if drawn < self.resource + self.dev_resource && holds_something {
            Some(Busy::DevResource)
        } else {
            None
        }
    }
}

#[derive(Clone, Default)]
pub struct Handle(Arc<Mutex<Control>>);

impl Handle {
    pub fn with<R>(&self, f: impl FnOnce(&mut Control) -> R) -> R {
        f(&mut self.0.lock().expect("no test panics while holding it"))
    }

    pub fn sectors(&self) -> Vec<u64> {
        self.with(|c| c.arrivals.iter().map(|a| a.sector).collect())
    }

    pub fn finish(&self, n: usize) {
        self.with(|c| c.finish = n);
    }
}

struct TestQueue {
    control: Handle,
    /// The descriptor to watch while the device holds requests. The engine only asks whether there is one.
    #[cfg(target_os = "linux")]
    event_fd: Option<std::fs::File>,
    /// The requests, each with the time at which it ends without further instruction.
    inside: VecDeque<(Instant, Inflight)>,
}

impl<P> DeviceQueue<P> for TestQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.control.with(|c| {
            if let Some(Some(why)) = c.script.pop_front() {
                return Enqueued::Busy(rq, why);
            }
            if c.room > 0 && self.inside.len() >= c.room {
                return Enqueued::Busy(rq, Busy::DevResource);
            }
            let held = !self.inside.is_empty();
            if let Some(why) = c.moods.as_mut().and_then(|moods| moods.refuse(held)) {
                return Enqueued::Busy(rq, why);
            }
            assert_eq!(rq.bios(bios).count() as u32, rq.bio_count());
            let total: u32 = rq.bios(bios).map(|b| b.sectors).sum();
            assert_eq!(total, rq.sectors(), "a request is as long as its bios");
            c.arrivals.push(Arrival {
                op: rq.op(),
                flags: rq.flags(),
                sector: rq.sector(),
                sectors: rq.sectors(),
                bios: rq.bio_count(),
                hw: rq.hw().0,
                at: now,
            });
            c.inside += 1;
            c.most_inside = c.most_inside.max(c.inside);
            if c.inline {
                c.inside -= 1;
                return Enqueued::Done(rq, c.result.unwrap_or(Ok(())));
            }
            self.inside.push_back((c.service.map_or(Instant::MAX, |service| now + service), rq));
            Enqueued::Accepted
        })
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.control.with(|c| {
            while let Some((until, _)) = self.inside.front() {
                let ended = *until <= now;
                if !ended && c.finish + c.requeue == 0 {
                    break;
                }
                let next =
                    if c.newest_first { self.inside.pop_back() } else { self.inside.pop_front() };
                let (_, rq) = next.expect("there is a front, and so a back");
                c.inside -= 1;
                let back =
                    c.requeue > 0 || c.moods.as_mut().is_some_and(|m| m.rng.chance(m.requeue, 100));
                c.requeue = c.requeue.saturating_sub(1);
                let verdict = if back {
                    Verdict::Requeue
                } else {
                    c.finish -= usize::from(!ended);
                    Verdict::Done(c.result.unwrap_or(Ok(())))
                };
                out.push(Finished { rq, verdict });
            }
        });
    }

    fn next_event(&self) -> Option<Instant> {
        let ends = || self.inside.front().map_or(Instant::MAX, |(until, _)| *until);
        self.control.with(|c| (c.service.is_some() || c.interrupts).then(ends))
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.event_fd.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.inside.drain(..).map(|(_, rq)| rq));
    }
}

pub fn shape(hw_queues: u16, depth: u32) -> DeviceShape {
    DeviceShape {
        hw_queues,
        hw_queue_depth: depth,
        shared_tags: false,
        budget: None,
        limits: Limits::default(),
        cache: WriteCache::Through,
        // These devices keep requests until the test acts.
        timeout: Nanos(u64::MAX),
    }
}

/// A configuration around a test device.
pub fn config(shape: DeviceShape) -> (Config<u32>, Handle) {
    config_of(shape, |control| TestQueue {
        control,
        #[cfg(target_os = "linux")]
        event_fd: None,
        inside: VecDeque::new(),
    })
}

/// Like [`config`], with a device that has a descriptor to watch.
#[cfg(target_os = "linux")]
pub fn watched_config(shape: DeviceShape) -> (Config<u32>, Handle) {
    config_of(shape, |control| TestQueue {
        control,
        event_fd: Some(std::fs::File::open("/dev/null").expect("every Linux has it")),
        inside: VecDeque::new(),
    })
}

fn config_of(shape: DeviceShape, new: impl Fn(Handle) -> TestQueue) -> (Config<u32>, Handle) {
    let handle = Handle::default();
    let queues = (0..shape.hw_queues).map(|_| Box::new(new(handle.clone())) as _).collect();
    (Config::new(shape, queues), handle)
}

/// `none`, which calls `first` before each pick.
pub fn before_each_pick(shape: &Shape, options: &Options, first: fn()) -> Box<dyn Scheduler> {
    let none = registry::find("none").expect("registered");
    Box::new(Observed::new((none.build)(shape, options), BeforePick(first)))
}

struct BeforePick(fn());

impl Observer for BeforePick {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, ..policy.facts() }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        (self.0)();
        policy.pick(cx, hw)
    }
}

pub fn deadline() -> &'static Factory {
    registry::find("mq-deadline").expect("registered")
}

/// Every [`Access`].
pub fn accesses() -> [Access; 4] {
    Access::ALL.map(|(_, access)| access)
}

/// Every [`Access`] with each of its combinations of modes.
pub fn ways() -> impl Iterator<Item = (Access, Modes)> {
    accesses().into_iter().flat_map(|access| {
        let all = move |kick| {
            access.dispatch().iter().flat_map(move |dispatch| {
                access.insert().iter().flat_map(move |insert| {
                    access.merge().iter().map(move |merge| Modes {
                        dispatch: Some(*dispatch),
                        insert: Some(*insert),
                        merge: Some(*merge),
                        kick: Some(kick),
                    })
                })
            })
        };
        KickMode::ALL.into_iter().flat_map(move |(_, kick)| all(kick)).map(move |m| (access, m))
    })
}

/// A call of a queue to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Submitter(SubmitterId),
    Pump(HwQueue),
}

/// A host that only records its calls.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    fn note(&self, call: Call) {
        self.0.lock().expect("no test panics while holding it").push(call);
    }

    /// The calls since the last time.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().expect("no test panics while holding it"))
    }
}

impl Host for Calls {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.note(Call::Submitter(submitter));
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.note(Call::Pump(hw));
    }
}

pub fn write(sector: u64, sectors: u32) -> Io<u32> {
    Io::new(Op::Write, sector, sectors, sector, sector as u32)
}

pub fn read(sector: u64, sectors: u32) -> Io<u32> {
    Io::new(Op::Read, sector, sectors, sector, sector as u32)
}

/// Submits each I/O separately, with a flush after it.
pub fn submit_each(
    submitter: &mut Submitter<u32>,
    now: Instant,
    ios: impl IntoIterator<Item = Io<u32>>,
) {
    for io in ios {
        submitter.push(now, io).expect("there is credit");
        submitter.flush(now);
    }
}

/// Polls and reaps until nothing is in flight, advancing time to the next deadline. Returns the cookies in order of
/// completion. Panics if that takes more than `steps` steps.
pub fn drain(submitter: &mut Submitter<u32>, now: &mut Instant, steps: u32) -> Vec<u64> {
    let mut done = Vec::new();
    for _ in 0..steps {
        submitter.poll(*now);
        submitter.reap(u32::MAX, |c| {
            assert_eq!(c.payload, c.cookie as u32, "the payload comes back with its cookie");
            done.push(c.cookie);
        });
        if submitter.in_flight() == 0 {
            return done;
        }
        *now = submitter.next_deadline().map_or(*now, |at| at.max(*now));
    }
    panic!("{} I/Os still in flight after {steps} steps", submitter.in_flight());
}

/// Checks that nothing is in use, and that the counters agree.
pub fn assert_at_rest<P: Send + 'static>(queue: &Queue<P>, hw_queues: u16) {
    let stats = queue.stats();
    assert_eq!(stats.submitted, stats.completed + stats.dropped, "{stats:?}");
    let requests = stats.submitted - stats.merges.total() - stats.cancelled.total();
    let requests = requests.checked_add_signed(stats.flushes.surplus());
    assert_eq!(Some(stats.completed_requests), requests, "{stats:?}");
    assert_eq!(stats.dispatched, stats.completed_requests + stats.requeues, "{stats:?}");
    assert_eq!(stats.issued, stats.dispatched + stats.tail_requeues + stats.runs, "{stats:?}");
    assert!((0..hw_queues).all(|hw| queue.tags_in_use(HwQueue(hw)) == 0));
    assert_eq!(queue.budgets_in_use(), 0);
    assert!(queue.tokens().iter().all(|(out, _)| *out == 0));
}

/// Changes the queue to `to`.
pub fn replan<P: Send + 'static>(queue: &Queue<P>, to: Plan) -> Result<Change<P>, ChangeError> {
    let edited = queue.edit(|plan| {
        *plan = to;
        Ok::<(), Infallible>(())
    });
    edited.map_err(|error| match error {
        EditError::Change(error) => error,
        EditError::Edit(never) => match never {},
    })
}

/// The groups `a` and `b`, the same in every queue that has them.
pub fn two_groups() -> &'static GroupTree {
    static TREE: OnceLock<GroupTree> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut groups = GroupTree::default();
        groups.add("a", "/").expect("free");
        groups.add("b", "/").expect("free");
        groups
    })
}

/// The id of `a` for 1, of `b` for 2.
pub fn group(index: u16) -> GroupId {
    two_groups().at(GroupIndex(index)).expect("one of two").id
}

/// A queue that counts times, with the groups `a` and `b` and two submitters. Its device takes `service` per request,
/// and at most `depth` requests.
pub fn grouped(
    service: Nanos,
    scheduler: &str,
    depth: u32,
    change: impl Fn(&mut Config<u32>),
) -> (Queue<u32>, Vec<Submitter<u32>>) {
    let (config, device) = config(shape(1, depth));
    device.with(|c| c.service = Some(service));
    let groups = two_groups().clone();
    let stats = StatsMode { times: true, ..StatsMode::default() };
    let policy = registry::find(scheduler).expect("registered");
    let mut config = Config { submitters: 2, depth: 64, groups, stats, ..config }.scheduler(policy);
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitters = (0..2).map(|_| queue.submitter().expect("there are two")).collect();
    (queue, submitters)
}

/// One request as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    pub op: Op,
    pub sector: u64,
    pub sectors: u32,
    pub segments: u16,
    pub flags: IoFlags,
    pub bios: u32,
}

/// The storage behind the queue.
#[derive(Default)]
pub struct Disk {
    pub memory: Vec<u8>,
    /// Sectors that fail, and their errors.
    pub bad: Vec<(u64, IoError)>,
    /// Hold requests instead of finishing them.
    pub holds: bool,
    /// Finish the newest requests first.
    pub backwards: bool,
    pub taken: Vec<Taken>,
}

#[derive(Clone)]
pub struct DiskHandle(Arc<Mutex<Disk>>);

impl DiskHandle {
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while holding it")
    }

    /// First sectors and lengths of the requests since the last call.
    pub fn requests(&self) -> Vec<(u64, u32)> {
        self.lock().taken.drain(..).map(|taken| (taken.sector, taken.sectors)).collect()
    }
}

struct Store {
    disk: DiskHandle,
    inside: Vec<(Inflight, IoResult)>,
}

impl Disk {
    fn transfer<P: Payload>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        rq.bios(bios).try_for_each(|bio| {
            let covers = |at: u64| (bio.sector..bio.sector + u64::from(bio.sectors)).contains(&at);
            if let Some((_, error)) = self.bad.iter().find(|(at, _)| covers(*at)) {
                return Err(*error);
            }
            let start = bio.sector as usize * 512;
            let memory = &mut self.memory[start..][..bio.sectors as usize * 512];
            match rq.op() {
                Op::Read | Op::Write
                    if bio.payload.data_len().is_none_or(|n| n != memory.len()) =>
                {
                    Err(IoError::INVALID)
                }
                Op::Read => bio.payload.read_from(0, memory),
                Op::Write => bio.payload.write_to(0, memory),
                Op::Discard | Op::WriteZeroes => {
                    memory.fill(0);
                    Ok(())
                }
                Op::Flush => Ok(()),
            }
        })
    }
}

impl<P: Payload> DeviceQueue<P> for Store {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let mut disk = self.disk.lock();
        disk.taken.push(Taken {
            op: rq.op(),
            sector: rq.sector(),
            sectors: rq.sectors(),
            segments: rq.segments(),
            flags: rq.flags(),
            bios: rq.bio_count(),
        });
        let result = disk.transfer(bios, &rq);
        self.inside.push((rq, result));
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        let disk = self.disk.lock();
        if disk.holds {
            return;
        }
        if disk.backwards {
            self.inside.reverse();
        }
        let finished = |(rq, result)| Finished { rq, verdict: Verdict::Done(result) };
        out.extend(self.inside.drain(..).map(finished));
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.inside.drain(..).map(|(rq, _)| rq));
    }
}

/// A configuration around a device of one hardware queue that stores `sectors` sectors.
pub fn storing<P: Payload>(mut shape: DeviceShape, sectors: u64) -> (Config<P>, DiskHandle) {
    shape.limits.capacity = sectors;
    let memory = vec![0; sectors as usize * 512];
    let disk = DiskHandle(Arc::new(Mutex::new(Disk { memory, ..Disk::default() })));
    let store = Store { disk: disk.clone(), inside: Vec::new() };
    (Config::new(shape, vec![Box::new(store)]), disk)
}

/// The fate of one attempt to hand a request to the device.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    Refuse(Busy),
    Inline(IoResult),
    Take(Fate),
}

/// The fate of a request at the device.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// The request ends this much later; `Nanos(u64::MAX)` for never.
    pub after: Nanos,
    pub end: End,
    /// How often the device resets the timer before it gives up the request.
    pub resets: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Answer(Verdict),
    /// The request is finished, but the device notices only when it is asked: an interrupt was missed.
    Missed(IoResult),
}

impl Fate {
    pub const LOST: Self =
        Self { after: Nanos(u64::MAX), end: End::Answer(Verdict::Done(Ok(()))), resets: 0 };

    pub fn after(after: Nanos, verdict: Verdict) -> Self {
        Self { after, end: End::Answer(verdict), resets: 0 }
    }
}

pub fn ok(after: Nanos) -> Attempt {
    Attempt::Take(Fate::after(after, Verdict::Done(Ok(()))))
}

/// The device's answer to the query for its next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// The true time.
    When,
    /// `None`: it cannot tell.
    Nothing,
    /// `Instant::MAX`: it will interrupt, so there is no event to wait for.
    Never,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The device returned the request before its deadline.
    Reaped,
    /// The device returned the request in the very turn in which its deadline passed.
    Tie,
    /// The request timed out.
    TimedOut,
    /// The request had finished, as the device noticed when it was asked.
    Found,
    /// The device wanted the request again later.
    Requeued,
    RequeuedTail,
    /// The device answered within the call and never held the request.
    Inline,
}

/// One event that the device saw or caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Taken { sector: u64, at: Instant },
    Refused { sector: u64, at: Instant },
    Asked { sector: u64, at: Instant },
    Over { sector: u64, outcome: Outcome, result: IoResult },
}

type Attempts = Box<dyn FnMut(u64) -> Attempt + Send>;

/// The script of a test, and its log.
pub struct Book {
    attempts: Attempts,
    pub says: Says,
    pub events: Vec<Event>,
}

#[derive(Clone)]
pub struct Oracle(Arc<Mutex<Book>>);

impl Oracle {
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("a test that panics is over")
    }

    /// The times at which the device was asked about the request at `sector`.
    pub fn asked(&self, sector: u64) -> Vec<Instant> {
        let of = |event: &Event| match event {
            Event::Asked { sector: s, at } if *s == sector => Some(*at),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }

    /// The requests that the device took, and when.
    pub fn taken(&self) -> Vec<(u64, Instant)> {
        let of = |event: &Event| match event {
            Event::Taken { sector, at } => Some((*sector, *at)),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }

    /// How the attempts ended, in order.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let of = |event: &Event| match event {
            Event::Over { outcome, .. } => Some(*outcome),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }
}

struct Held {
    rq: Inflight,
    until: Instant,
    end: End,
    resets: u32,
    deadline: Instant,
}

struct Fated {
    oracle: Oracle,
    timeout: Nanos,
    held: Vec<Held>,
    now: Instant,
}

impl Fated {
    /// Logs a request that leaves the device.
    fn over(&self, rq: &Inflight, outcome: Outcome, result: IoResult) {
        self.oracle.book().events.push(Event::Over { sector: rq.sector(), outcome, result });
    }
}

impl<P> DeviceQueue<P> for Fated {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        assert!(now >= self.now, "time runs backwards");
        self.now = now;
        assert!(self.held.iter().all(|held| held.rq.tag() != rq.tag()), "its tag is in use");
        let sector = rq.sector();
        let mut book = self.oracle.book();
        let attempt = (book.attempts)(sector);
        if let Attempt::Refuse(why) = attempt {
            book.events.push(Event::Refused { sector, at: now });
            return Enqueued::Busy(rq, why);
        }
        book.events.push(Event::Taken { sector, at: now });
        drop(book);
        match attempt {
            Attempt::Inline(result) => {
                self.over(&rq, Outcome::Inline, result);
                return Enqueued::Done(rq, result);
            }
            Attempt::Take(Fate { after, end, resets }) => {
                let (until, deadline) = (now + after, now + self.timeout);
                self.held.push(Held { rq, until, end, resets, deadline });
            }
            Attempt::Refuse(_) => unreachable!("answered above"),
        }
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.now = now;
        let ready = |held: &mut Held| held.until <= now && matches!(held.end, End::Answer(_));
        let ready: Vec<Held> = self.held.extract_if(.., ready).collect();
        for Held { rq, end, deadline, .. } in ready {
            let End::Answer(verdict) = end else { unreachable!("sorted out above") };
            let (outcome, result) = match verdict {
                Verdict::Done(result) if deadline <= now => (Outcome::Tie, result),
                Verdict::Done(result) => (Outcome::Reaped, result),
                Verdict::Requeue => (Outcome::Requeued, Ok(())),
                Verdict::RequeueTail => (Outcome::RequeuedTail, Ok(())),
            };
            self.over(&rq, outcome, result);
            out.push(Finished { rq, verdict });
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        assert_eq!(now, self.now, "in the same turn as the reap before");
        let at = self.held.iter().position(|held| held.rq.tag() == tag);
        let at = at.unwrap_or_else(|| panic!("asked about tag {}, which is not here", tag.0));
        let held = &mut self.held[at];
        assert!(held.deadline <= now, "asked too early, or twice for one expiry");
        let missed = matches!(held.end, End::Missed(_));
        assert!(missed || held.until > now, "asked about what has just been finished");
        let sector = held.rq.sector();
        self.oracle.book().events.push(Event::Asked { sector, at: now });
        let (outcome, result) = match held.end {
            End::Missed(result) if held.until <= now => (Outcome::Found, result),
            _ if held.resets > 0 => {
                held.resets -= 1;
                held.deadline = now + self.timeout;
                return Expiry::ResetTimer;
            }
            _ => (Outcome::TimedOut, Err(IoError::TIMED_OUT)),
        };
        let held = self.held.swap_remove(at);
        self.over(&held.rq, outcome, result);
        Expiry::Done(held.rq, result)
    }

    /// The engine calls this at the end of each turn.
    fn next_event(&self) -> Option<Instant> {
        let in_time = self.held.iter().all(|held| held.deadline > self.now);
        assert!(in_time, "the turn is over, a deadline has passed, and no thread has checked it");
        match self.oracle.book().says {
            Says::Nothing => None,
            Says::Never => Some(Instant::MAX),
            Says::When => {
                let comes = self.held.iter().filter(|held| matches!(held.end, End::Answer(_)));
                Some(comes.map(|held| held.until).min().unwrap_or(Instant::MAX))
            }
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..).map(|held| held.rq));
    }
}

/// A configuration around such a device. `attempts` decides each attempt, given its sector.
pub fn fated(
    shape: DeviceShape,
    attempts: impl FnMut(u64) -> Attempt + Send + 'static,
) -> (Config<u32>, Oracle) {
    let says = Says::When;
    let book = Book { attempts: Box::new(attempts), says, events: Vec::new() };
    let oracle = Oracle(Arc::new(Mutex::new(book)));
    let queue = |_| {
        let (oracle, timeout) = (oracle.clone(), shape.timeout);
        Box::new(Fated { oracle, timeout, held: Vec::new(), now: Instant::ZERO }) as _
    };
    let queues = (0..shape.hw_queues).map(queue).collect();
    (Config::new(shape, queues), oracle)
}

/// Like [`fated`], with a list of attempts; after the last of them, every attempt is answered within the call.
pub fn scripted(
    shape: DeviceShape,
    script: impl IntoIterator<Item = Attempt>,
) -> (Config<u32>, Oracle) {
    let mut script: VecDeque<Attempt> = script.into_iter().collect();
    fated(shape, move |_| script.pop_front().unwrap_or(Attempt::Inline(Ok(()))))
}

pub const HW: HwQueue = HwQueue(0);

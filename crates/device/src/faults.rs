//! Faults around any device: errors, refusals, requeues, and late, lost and reordered answers; and the parameters of
//! faults.
//!
//! Their page (`doc/faults.md`) gives the meaning and the limits of each. The inner device does not see the faults; all
//! of its answers pass through [`Faulty`]. A request that is held back here is returned at a time announced by
//! `next_event`, or with the next answer that the inner device owes; a lost request is returned when it times out and
//! the engine asks for it. So the promises of the inner device are kept, and so are the DEV_RESOURCE answers given
//! here, which always announce a time.
//!
//! At most one fault applies to an attempt, in the order of the table of parameters; later fault points do not count
//! that attempt.

use crate::basics::parameter;
use crate::basics::{About, Argument, Description, Pair};
use crate::fault::{self, Chance, Fault, FaultPoint};
use crate::null::{DEV_RESOURCE_DELAY, REQUEST_TIMEOUT};
use crate::{DeviceError, ParamError, Parameter};
use blkmq_core::{Given, HwQueue, Instant, IoError, Nanos, Op, Rng, Tag, Unit};
use blkmq_engine::{
    BioTable, Busy, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry, Finished, Inflight,
    Verdict,
};
use std::collections::BTreeMap;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "faults",
    summary: "errors, busy answers, requeues, late and lost answers around any other device",
    argument: Argument::Device,
    parameters: &PARAMETERS,
};

/// The parameters in `given`, and notes on them.
pub(crate) fn parameters(
    given: &Description<'_>,
) -> Result<(FaultsParams, Vec<String>), DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    FaultsParams::parse(&given.pairs).map_err(refused)
}

/// The way in which a request is passed to the inner device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passing {
    /// Normally: the fate of its answer is drawn when the inner device takes it.
    Untouched,
    /// With failure: the answer is replaced by an error.
    Failing,
}

/// A hardware queue with injected faults.
pub struct Faulty<P> {
    inner: Box<dyn DeviceQueue<P>>,
    draw: Draw,
    errno: IoError,
    /// The number of requests in the inner device.
    inside: u32,
    /// The fates of their answers, by driver tag.
    fates: Box<[Fate]>,
    /// Whether the inner device has been given a request since its doorbell was rung.
    unrung: bool,
    /// Answers due at a certain time, numbered to keep the order of answers with equal times.
    held: BTreeMap<(Instant, u64), Finished>,
    number: u64,
    /// Lost requests; few.
    lost: Vec<Inflight>,
    /// Answers that wait until they are overtaken. Empty if the inner device holds no request.
    waiting: Vec<Finished>,
    /// How the last refused request was passed to the inner device. It is retried next, and passed in the same way: a
    /// new draw might hold it back here, and the time that the inner device announced would pass without a request.
    refused: Option<Passing>,
    /// When the request refused last may come again, if it was refused here and not by the inner device.
    retry_at: Option<Instant>,
    /// Scratch space; empty between calls.
    reaped: Vec<Finished>,
}

impl<P: 'static> Faulty<P> {
    /// Puts faults around the hardware queues of a device of this shape.
    #[must_use]
    pub fn wrap(
        params: &FaultsParams,
        shape: &DeviceShape,
        queues: DeviceQueues<P>,
    ) -> DeviceQueues<P> {
        let wrap = |(hw, inner)| {
            Box::new(Self {
                inner,
                draw: Draw::new(params, HwQueue(hw)),
                errno: params.errno,
                inside: 0,
                fates: vec![Fate::Pass; shape.hw_queue_depth as usize].into(),
                unrung: false,
                held: BTreeMap::new(),
                number: 0,
                lost: Vec::new(),
                waiting: Vec::new(),
                refused: None,
                retry_at: None,
                reaped: Vec::new(),
            }) as Box<dyn DeviceQueue<P>>
        };
        (0..).zip(queues).map(wrap).collect()
    }
}

impl<P> Faulty<P> {
    /// Holds `rq` until the first reap from `until` on, which returns it with `verdict`.
    fn hold(&mut self, until: Instant, rq: Inflight, verdict: Verdict) -> Enqueued {
        self.held.insert((until, self.number), Finished { rq, verdict });
        self.number += 1;
        Enqueued::Accepted
    }

    /// Hands `rq` to the inner device.
    fn pass(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight, how: Passing) -> Enqueued {
        let tag = rq.tag();
        let answer = self.inner.enqueue(now, bios, rq);
        if let Enqueued::Busy(..) = answer {
            self.refused = Some(how);
            return answer;
        }
        let fate = match how {
            Passing::Untouched => self.draw.taken(),
            Passing::Failing => Fate::Fail,
        };
        let Enqueued::Done(rq, result) = answer else {
            self.fates[tag.0 as usize] = fate;
            self.inside += 1;
            self.unrung = true;
            return answer;
        };
        match fate {
            Fate::Pass => Enqueued::Done(rq, result),
            Fate::Fail => Enqueued::Done(rq, Err(self.errno)),
            Fate::Late(by) => self.hold(now + by, rq, Verdict::Done(result)),
            // All other answers of this call overtake it.
            Fate::Overtaken => self.hold(now, rq, Verdict::Done(result)),
        }
    }

    /// Returns an answer of the inner device, or holds it back.
    fn answer(&mut self, now: Instant, done: Finished, out: &mut Vec<Finished>) {
        self.inside -= 1;
        let fate = std::mem::take(&mut self.fates[done.rq.tag().0 as usize]);
        // A requeued request arrives again, with a new fate.
        let requeued = !matches!(done.verdict, Verdict::Done(_));
        match fate {
            Fate::Late(by) if !requeued => _ = self.hold(now + by, done.rq, done.verdict),
            Fate::Overtaken if !requeued => self.waiting.push(done),
            Fate::Fail if !requeued => {
                self.pass_out(
                    Finished { rq: done.rq, verdict: Verdict::Done(Err(self.errno)) },
                    out,
                );
            }
            _ => self.pass_out(done, out),
        }
    }

    /// Returns whether the inner device has a descriptor that reports its completions.
    fn is_watched(&self) -> bool {
        #[cfg(target_os = "linux")]
        let watched = self.inner.event_fd().is_some();
        #[cfg(not(target_os = "linux"))]
        let watched = false;
        watched
    }

    /// Returns an answer, followed by the answers that waited to be overtaken, the latest first.
    fn pass_out(&mut self, done: Finished, out: &mut Vec<Finished>) {
        out.push(done);
        out.extend(self.waiting.drain(..).rev());
    }
}

impl<P> DeviceQueue<P> for Faulty<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.retry_at = None;
        if let Some(how) = self.refused.take() {
            return self.pass(now, bios, rq, how);
        }
        match self.draw.attempt(rq.op()) {
            Some(Strike::Resource) => Enqueued::Busy(rq, Busy::Resource),
            Some(Strike::DevResource) => {
                self.retry_at = Some(now + DEV_RESOURCE_DELAY);
                Enqueued::Busy(rq, Busy::DevResource)
            }
            Some(Strike::Requeue) => self.hold(now, rq, Verdict::Requeue),
            Some(Strike::Lose) => {
                self.lost.push(rq);
                Enqueued::Accepted
            }
            Some(Strike::FailUndone) => self.hold(now, rq, Verdict::Done(Err(self.errno))),
            Some(Strike::FailDone) => self.pass(now, bios, rq, Passing::Failing),
            None => self.pass(now, bios, rq, Passing::Untouched),
        }
    }

    fn commit(&mut self, now: Instant) {
        if std::mem::take(&mut self.unrung) {
            self.inner.commit(now);
        }
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            out.push(first.remove());
        }
        let mut reaped = std::mem::take(&mut self.reaped);
        self.inner.reap(now, bios, &mut reaped);
        reaped.drain(..).for_each(|done| self.answer(now, done, out));
        self.reaped = reaped;
        if self.inside == 0 {
            // No other answer is left to overtake these, so their order is reversed.
            out.extend(self.waiting.drain(..).rev());
        }
    }

    /// Returns a lost request. Resets the timer of a request that is held back here, since it will be returned. Asks
    /// the inner device about any other request.
    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        if let Some(at) = self.lost.iter().position(|rq| rq.tag() == tag) {
            return Expiry::Done(self.lost.swap_remove(at), Err(IoError::TIMED_OUT));
        }
        if self.held.values().chain(&self.waiting).any(|done| done.rq.tag() == tag) {
            return Expiry::ResetTimer;
        }
        let expiry = self.inner.timed_out(now, tag);
        if let Expiry::Done(..) = expiry {
            self.inside -= 1;
            self.fates[tag.0 as usize] = Fate::default();
        }
        expiry
    }

    /// Returns `None` if the inner device holds a request, cannot announce a time, and has no descriptor: then the
    /// inner device must be polled, and so must this one.
    fn next_event(&self) -> Option<Instant> {
        let held = self.held.first_key_value().map(|((until, _), _)| *until);
        let own = held.into_iter().chain(self.retry_at).min().unwrap_or(Instant::MAX);
        match self.inner.next_event() {
            Some(inner) => Some(inner.min(own)),
            None if self.inside > 0 && !self.is_watched() => None,
            None => Some(own),
        }
    }

    /// The descriptor of the inner device. Answers held back here have a time, which `next_event` announces.
    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn has_own_work(&self) -> bool {
        self.inner.has_own_work()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
        let held = std::mem::take(&mut self.held).into_values();
        out.extend(held.chain(self.waiting.drain(..)).map(|done| done.rq));
        out.append(&mut self.lost);
    }
}

/// A fault that applies to an attempt to pass a request on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Resource,
    DevResource,
    Requeue,
    Lose,
    /// The request fails without being passed on.
    FailUndone,
    /// The request is passed on and fails nevertheless.
    FailDone,
}

/// The fate of the answer to a request that was passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Fate {
    /// Returned unchanged.
    #[default]
    Pass,
    /// Replaced by an error.
    Fail,
    /// Held back for this long.
    Late(Nanos),
    /// Held back until another answer has passed.
    Overtaken,
}

/// The fault points of one hardware queue.
struct Draw {
    resource: FaultPoint,
    dev_resource: FaultPoint,
    requeue: FaultPoint,
    timeout: FaultPoint,
    errors: [FaultPoint; 5],
    late: FaultPoint,
    late_nsec: Nanos,
    reorder: FaultPoint,
    rng: Rng,
}

impl Draw {
    fn new(params: &FaultsParams, hw: HwQueue) -> Self {
        let point = |chance| FaultPoint::new(params.fault(chance));
        Self {
            resource: point(params.resource),
            dev_resource: point(params.dev_resource),
            requeue: point(params.requeue),
            timeout: point(params.timeout),
            errors: params.errors.map(point),
            late: point(params.late),
            late_nsec: params.late_nsec,
            reorder: point(params.reorder),
            rng: fault::stream(params.seed, hw),
        }
    }

    /// Draws the fault for one attempt to pass on a request of this kind.
    fn attempt(&mut self, op: Op) -> Option<Strike> {
        let rng = &mut self.rng;
        let before = [
            (&mut self.resource, Strike::Resource),
            (&mut self.dev_resource, Strike::DevResource),
            (&mut self.requeue, Strike::Requeue),
            (&mut self.timeout, Strike::Lose),
        ];
        for (point, strike) in before {
            if point.should_fail(rng) {
                return Some(strike);
            }
        }
        let fails = self.errors[op as usize].should_fail(rng);
        // The submitter that gets an error cannot know whether the operation was performed.
        let undone = fails && Chance::percent(50).draw(rng);
        fails.then_some(if undone { Strike::FailUndone } else { Strike::FailDone })
    }

    /// Draws the fate of the answer when the inner device has taken a request.
    fn taken(&mut self) -> Fate {
        let rng = &mut self.rng;
        if self.late.should_fail(rng) {
            return Fate::Late(Nanos(1 + rng.below(self.late_nsec.0)));
        }
        if self.reorder.should_fail(rng) { Fate::Overtaken } else { Fate::Pass }
    }
}

/// The largest errno that Linux returns.
const MAX_ERRNO: u16 = 4095;

/// The longest delay of an answer: an hour, which is practically never but still ends.
const MAX_NSEC: u64 = 3_600_000_000_000;

/// The faults of requests. Every probability applies to one attempt to pass a request to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultsParams {
    /// Refuse with RESOURCE.
    pub resource: Chance,
    /// Refuse with DEV_RESOURCE.
    pub dev_resource: Chance,
    /// Take the request, and ask for a requeue.
    pub requeue: Chance,
    /// Take the request and lose it.
    pub timeout: Chance,
    /// Fail the request, for each [`Op`] by its discriminant.
    pub errors: [Chance; 5],
    /// Delay the answer.
    pub late: Chance,
    /// Let another answer overtake.
    pub reorder: Chance,
    /// The error of a failed request.
    pub errno: IoError,
    /// The timeout of the device, which ends lost requests.
    pub timeout_nsec: Nanos,
    /// The maximum delay of a late answer.
    pub late_nsec: Nanos,
    /// The number of attempts before the first fault.
    pub space: u32,
    /// The maximum number of faults of each kind; `None` for no limit.
    pub times: Option<u32>,
    /// The seed of the faults.
    pub seed: u64,
}

impl Default for FaultsParams {
    /// No faults.
    fn default() -> Self {
        Self {
            resource: Chance::NEVER,
            dev_resource: Chance::NEVER,
            requeue: Chance::NEVER,
            timeout: Chance::NEVER,
            errors: [Chance::NEVER; 5],
            late: Chance::NEVER,
            reorder: Chance::NEVER,
            errno: IoError::IO,
            timeout_nsec: REQUEST_TIMEOUT,
            late_nsec: Nanos::from_millis(1),
            space: 0,
            times: None,
            seed: 0,
        }
    }
}

impl FaultsParams {
    /// Parses pairs of name and value; if a name is repeated, the last value counts. Also returns notes, a sentence
    /// each, on values that have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value.
    pub fn parse(pairs: &[Pair]) -> Result<(Self, Vec<String>), ParamError> {
        let mut raw = Raw::default();
        let mut given_names = Vec::new();
        for (name, value) in pairs {
            let given = Given::find(&PARAMETERS, name, value)?;
            raw.set(&given)?;
            given_names.push(given.name);
        }
        let params = raw.finish();
        let notes = params.notes(&given_names);
        Ok((params, notes))
    }

    /// The shape, for the engine, of a device wrapped in these faults. Its timeout ends lost requests.
    #[must_use]
    pub fn shape(&self, inner: &DeviceShape) -> DeviceShape {
        let timeout = match self.timeout {
            Chance::NEVER => inner.timeout,
            _ => self.timeout_nsec,
        };
        DeviceShape { timeout, ..*inner }
    }

    /// The settings of a fault point.
    fn fault(&self, probability: Chance) -> Fault {
        Fault { interval: 1, probability, space: self.space, times: self.times }
    }

    fn notes(&self, given: &[&'static str]) -> Vec<String> {
        let fails = self.errors.iter().any(|chance| *chance > Chance::NEVER);
        let chances = [self.resource, self.dev_resource, self.requeue, self.timeout, self.late];
        let strikes =
            fails || self.reorder.max(*chances.iter().max().expect("five")) > Chance::NEVER;
        let needs = [
            ("errno", fails, "an error"),
            ("timeout_nsec", self.timeout > Chance::NEVER, "timeout"),
            ("late_nsec", self.late > Chance::NEVER, "late"),
            ("space", strikes, "faults"),
            ("times", strikes, "faults"),
            ("seed", strikes, "faults"),
        ];
        let idle = needs.iter().filter(|(name, used, _)| !used && given.contains(name));
        idle.map(|(name, _, what)| format!("{name} has no effect without {what}")).collect()
    }
}

/// The values as given, before `error` is checked against the errors of single operations.
#[derive(Default)]
struct Raw {
    error: Chance,
    errors: [Option<Chance>; 5],
    done: FaultsParams,
}

impl Raw {
    fn set(&mut self, given: &Given<'_>) -> Result<(), ParamError> {
        let chance = || Chance::parse(given.value).ok_or_else(|| given.refuse(Chance::FORM));
        let done = &mut self.done;
        match given.name {
            "resource" => done.resource = chance()?,
            "dev_resource" => done.dev_resource = chance()?,
            "requeue" => done.requeue = chance()?,
            "timeout" => done.timeout = chance()?,
            "error" => self.error = chance()?,
            "read_error" => self.errors[Op::Read as usize] = Some(chance()?),
            "write_error" => self.errors[Op::Write as usize] = Some(chance()?),
            "flush_error" => self.errors[Op::Flush as usize] = Some(chance()?),
            "discard_error" => self.errors[Op::Discard as usize] = Some(chance()?),
            "write_zeroes_error" => self.errors[Op::WriteZeroes as usize] = Some(chance()?),
            "late" => done.late = chance()?,
            "reorder" => done.reorder = chance()?,
            "errno" => done.errno = IoError(given.number(1..=MAX_ERRNO)?),
            "timeout_nsec" => done.timeout_nsec = Nanos(given.measure(Unit::NS, 0..=MAX_NSEC)?),
            "late_nsec" => done.late_nsec = Nanos(given.measure(Unit::NS, 1..=MAX_NSEC)?),
            "space" => done.space = given.number(0..=u32::MAX)?,
            "times" if given.value == "-1" => done.times = None,
            "times" => {
                let accepted = || given.refuse("a whole number, or -1 for ever");
                done.times = Some(given.value.parse().map_err(|_| accepted())?);
            }
            "seed" => done.seed = given.number(0..=u64::MAX)?,
            _ => unreachable!("every name in the table is read here"),
        }
        Ok(())
    }

    fn finish(self) -> FaultsParams {
        FaultsParams { errors: self.errors.map(|own| own.unwrap_or(self.error)), ..self.done }
    }
}

/// In the order of the help page: the probabilities in the order in which they are drawn, then the rest.
static PARAMETERS: [Parameter; 18] = [
    parameter("resource", "0", "chance of a refusal with RESOURCE"),
    parameter("dev_resource", "0", "chance of a refusal with DEV_RESOURCE; room again 1 ms later"),
    parameter("requeue", "0", "chance of being taken and asked to be requeued"),
    parameter("timeout", "0", "chance of being taken and lost"),
    parameter("error", "0", "chance of failing, done or not"),
    parameter("read_error", "", "the same for reads; wins over error"),
    parameter("write_error", "", "the same for writes"),
    parameter("flush_error", "", "the same for flushes"),
    parameter("discard_error", "", "the same for discards"),
    parameter("write_zeroes_error", "", "the same for write zeroes"),
    parameter("late", "0", "chance of an answer that comes up to late_nsec later"),
    parameter("reorder", "0", "chance of an answer that another one overtakes"),
    parameter("errno", "5", "the error, as Linux numbers them; 5 is EIO"),
    parameter(
        "timeout_nsec",
        "5000000000",
        "the device's timeout, with which what is lost ends, in ns",
    ),
    parameter("late_nsec", "1000000", "the most by which answers are late, in ns"),
    parameter(
        "space",
        "0",
        "attempts let through before a fault strikes; each fault counts its own",
    ),
    parameter("times", "-1", "how often each fault strikes at most; -1 for ever"),
    parameter("seed", "0", "of the chances"),
];

#[cfg(test)]
mod tests {
    use super::{Draw, Fate, PARAMETERS, Strike, *};
    use crate::fault::Chance;
    use crate::{MachineShape, ParamError, registry};
    use blkmq_core::{HwQueue, IoError, Nanos, Op};

    fn parse(text: &str) -> Result<(FaultsParams, Vec<String>), ParamError> {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        FaultsParams::parse(&Vec::from_iter(pairs.map(|(k, v)| (k.to_owned(), v.to_owned()))))
    }

    fn params(text: &str) -> FaultsParams {
        parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).0
    }

    fn draw(text: &str) -> Draw {
        Draw::new(&params(text), HwQueue(0))
    }

    #[test]
    fn every_parameter_in_the_table_takes_its_own_default() {
        for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
            let text = format!("{}={}", parameter.name, parameter.default);
            assert_eq!(params(&text), FaultsParams::default(), "{text}");
        }
    }

    /// No parameter is accepted and then ignored: each changes the device.
    #[test]
    fn every_parameter_in_the_table_has_an_effect() {
        for parameter in &PARAMETERS {
            let other = match parameter.name {
                "errno" | "timeout_nsec" | "late_nsec" | "space" | "times" | "seed" => "3",
                _ => "0.25",
            };
            let text = format!("{}={other}", parameter.name);
            assert_ne!(params(&text), FaultsParams::default(), "{text} was ignored");
        }
    }

    #[test]
    fn what_has_no_effect_is_said_and_what_cannot_be_is_refused() {
        let idle = "errno=5,timeout_nsec=1,late_nsec=1,space=1,times=1,seed=1";
        assert_eq!(parse(idle).expect("possible").1.len(), 6);
        let busy = format!("{idle},error=0.1,timeout=0.1,late=0.1");
        assert_eq!(parse(&busy).expect("possible").1, [] as [&str; 0]);
        assert_eq!(parse("reorder=0.1,seed=1").expect("possible").1.len(), 0);
        for text in
            ["error=1.5", "late_nsec=0", "errno=0", "times=-2", "error=1:100:0:-1", "errors=1"]
        {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains("accepted: "), "{message}");
        }
    }

    #[test]
    fn errors_of_one_operation_win_over_errors() {
        let chance = |text: &str| params(text).errors;
        let [all, half] = ["1", "0.5"].map(|text| Chance::parse(text).expect("one"));
        assert_eq!(chance("error=1"), [all; 5]);
        assert_eq!(chance("flush_error=0.5,error=1"), [all, all, half, all, all]);
        let mut draw = draw("write_error=1");
        assert_eq!(draw.attempt(Op::Read), None);
        assert!(matches!(draw.attempt(Op::Write), Some(Strike::FailDone | Strike::FailUndone)));
    }

    #[test]
    fn faults_strike_one_at_a_time_in_the_order_of_the_table_and_as_often_as_they_may() {
        let text = "resource=1,dev_resource=1,requeue=1,timeout=1,error=1,late=1,reorder=1,times=2";
        let mut draw = draw(text);
        let strikes = [Strike::Resource, Strike::DevResource, Strike::Requeue, Strike::Lose];
        for strike in strikes {
            assert_eq!([draw.attempt(Op::Read), draw.attempt(Op::Read)], [Some(strike); 2]);
        }
        for _ in 0..2 {
            let strike = draw.attempt(Op::Read);
            assert!(matches!(strike, Some(Strike::FailDone | Strike::FailUndone)), "{strike:?}");
        }
        assert_eq!(draw.attempt(Op::Read), None);
        let fates = [(); 5].map(|()| draw.taken());
        assert!(matches!(fates[..2], [Fate::Late(_), Fate::Late(_)]), "{fates:?}");
        assert_eq!(fates[2..], [Fate::Overtaken, Fate::Overtaken, Fate::Pass]);
    }

    #[test]
    fn chances_are_met_on_average_and_space_is_let_through() {
        let mut draw = draw("error=0.02,late=0.5,late_nsec=10,space=100,seed=3");
        assert!((0..100).all(|_| draw.attempt(Op::Write).is_none()));
        let struck = (0..10_000).filter_map(|_| draw.attempt(Op::Write));
        let (undone, done): (Vec<_>, Vec<_>) = struck.partition(|s| *s == Strike::FailUndone);
        assert!((170..230).contains(&(undone.len() + done.len())), "{} of 200", undone.len());
        assert!(undone.len() > 70 && done.len() > 70, "half of them are done");
        assert!((0..100).all(|_| draw.taken() == Fate::Pass));
        let late = (0..1000).filter_map(|_| match draw.taken() {
            Fate::Late(by) => Some(by),
            _ => None,
        });
        let late = Vec::from_iter(late);
        assert!((430..570).contains(&late.len()), "{} of 500", late.len());
        assert_eq!((late.iter().min(), late.iter().max()), (Some(&Nanos(1)), Some(&Nanos(10))));
    }

    #[test]
    fn the_device_inside_shows_through() {
        let host = MachineShape { cpus: 4, nodes: 1 };
        let text = "faults,errno=28,error=0.5,space=0,seed=1:null,submit_queues=2,log=1,rotational=1,seed=4";
        let device = registry::parse(text, &host).expect("possible");
        assert_eq!((device.shape.hw_queues, device.shape.limits.rotational), (2, true));
        assert!(device.log.is_some());
        assert_eq!(device.notes, ["seed has no effect without faults"], "the inner one's");
        assert_eq!(params("errno=28").errno, IoError::NO_SPACE);
    }
}

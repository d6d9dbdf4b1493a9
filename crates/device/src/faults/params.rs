//! The parameters of faults: types, names, defaults, help texts, and parsing from pairs.

use crate::basics::parameter;
use crate::description::Pair;
use crate::fault::{Chance, Fault};
use crate::null::REQUEST_TIMEOUT;
use crate::{ParamError, Parameter};
use blkmq_core::{Given, IoError, Nanos, Op, Unit};
use blkmq_engine::DeviceShape;

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
    pub(super) fn fault(&self, probability: Chance) -> Fault {
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
pub(super) static PARAMETERS: [Parameter; 18] = [
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

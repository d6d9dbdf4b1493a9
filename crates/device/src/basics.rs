//! The common part of all models: the grammar of their descriptions, the result of their builders ([`Parts`]), the
//! parameters shared by null_blk and the devices modelled on it (hardware queues, timing, sizes, the log), and the
//! queue of requests until their completion times ([`Ring`]).
//!
//! ```text
//! NAME [ "," KEY "=" VALUE ]...                a device as such
//! NAME [ "," KEY "=" VALUE ]... ":" DEVICE     one around another device, down to the end of the text
//! ```
//!
//! The name decides between the two forms, so values may contain colons, except for a device around another one. The
//! grammar does not interpret parameters.
//!
//! For the shared parameters there are the lines of a device's parameter table, the code that parses, rounds and clamps
//! values as null_blk does, and the limits derived from them. A value that is changed or has no effect is reported in a
//! note.
//!
//! Service times are equal, or equal in each direction, so requests end nearly in order of arrival, and a ring suffices
//! where a device with varying times needs a heap.

use crate::{ArrivalLog, DeviceError, MachineShape, OccupancyLog, ParamError, Parameter};
use blkmq_core::{Given, Instant, Limits, Nanos, SECTOR_SIZE, Unit};
use blkmq_engine::{DeviceShape, Inflight, MAX_HW_QUEUE_DEPTH};
use std::collections::VecDeque;

/// A parameter's name and its value, as the user wrote them.
pub type Pair = (String, String);

/// The kind of argument after the colon of a device's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// No argument. A colon after the name is read as a comma, as in the description of a scheduler.
    None,
    /// The complete description of another device, which is required.
    Device,
}

/// The parsed description of a device, without its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description<'a> {
    /// The argument after the colon; empty only for [`Argument::None`].
    pub argument: &'a str,
    /// The pairs, in the order given.
    pub pairs: Vec<Pair>,
}

/// The description of a kind of device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// The name of the device, as after `--device`.
    pub(crate) name: &'static str,
    /// A one-line summary for lists.
    pub(crate) summary: &'static str,
    /// The kind of argument after a colon.
    pub(crate) argument: Argument,
    /// The parameters of the device.
    pub(crate) parameters: &'static [Parameter],
}

impl About {
    /// The form of the description, for messages and lists: `null[,KEY=VALUE]...`.
    pub(crate) fn form(&self) -> String {
        let name = self.name;
        match self.argument {
            Argument::None => format!("{name}[,KEY=VALUE]..."),
            Argument::Device => format!("{name}[,KEY=VALUE]...:DEVICE"),
        }
    }

    /// Splits the text after the name, which is empty or begins with a comma or a colon.
    pub(crate) fn describe<'a>(&self, text: &'a str) -> Result<Description<'a>, DeviceError> {
        let missing = |what| DeviceError::Argument { what, accepted: self.form() };
        let (argument, pairs) = match self.argument {
            Argument::None => ("", text.get(1..)),
            Argument::Device => {
                let (pairs, device) = text.split_once(':').ok_or_else(|| missing("DEVICE"))?;
                let device = Some(device.trim()).filter(|device| !device.is_empty());
                (device.ok_or_else(|| missing("DEVICE"))?, pairs.get(1..))
            }
        };
        let pairs = pairs.into_iter().flat_map(|pairs| pairs.split(','));
        let pairs = pairs.map(|word| self.pair(word.trim())).collect::<Result<_, _>>()?;
        Ok(Description { argument, pairs })
    }

    fn pair(&self, word: &str) -> Result<Pair, DeviceError> {
        match word.split_once('=') {
            Some((key, value)) => Ok((key.trim().into(), value.trim().into())),
            None => Err(DeviceError::Syntax { word: word.into(), accepted: self.form() }),
        }
    }
}

/// Splits a list of descriptions, separated by commas as pairs are: a word that contains `=` before any `:` belongs to
/// the preceding description, any other word begins a new one. Text in balanced brackets, as for the devices of a
/// layer, stays together. The result is never empty.
///
/// ```
/// let list = "null,submit_queues=2,faults,error=0.01:memory,size=64";
/// let texts = ["null,submit_queues=2", "faults,error=0.01:memory,size=64"];
/// assert_eq!(blkmq_device::descriptions(list), texts);
/// ```
#[must_use]
pub fn descriptions(list: &str) -> Vec<&str> {
    let (mut texts, mut from, mut at) = (Vec::new(), 0, 0);
    let deepened = |depth: i64, text: &str| {
        text.bytes().fold(depth, |depth, byte| match byte {
            b'[' => depth + 1,
            b']' => depth - 1,
            _ => depth,
        })
    };
    let has_brackets = deepened(0, list) == 0;
    let mut depth = 0;
    for word in list.split(',') {
        let is_inside = has_brackets && depth > 0;
        depth = deepened(depth, word);
        let goes_on = is_inside || word.split(':').next().is_some_and(|head| head.contains('='));
        if at > 0 && !goes_on {
            texts.push(list[from..at - 1].trim());
            from = at;
        }
        at += word.len() + 1;
    }
    texts.push(list[from..].trim());
    texts
}

/// The parts of a device, including those of its model.
pub(crate) struct Parts<M> {
    /// The shape of the device for the engine.
    pub(crate) shape: DeviceShape,
    /// Whether the device requests the scheduler `none` unless the user names one.
    pub(crate) no_sched: bool,
    /// Notes for the user, a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) log: Option<ArrivalLog>,
    pub(crate) occupancy: Option<OccupancyLog>,
    pub(crate) model: M,
}

/// The largest device: 2^63 bytes, the limit of offsets.
const MAX_MIB: u64 = 1 << 43;
/// The default of `completion_nsec`.
const COMPLETION_NSEC: u64 = 10_000;
/// The default of `log_size`.
const LOG_SIZE: usize = 65_536;
/// Sectors in a MiB.
const MIB_SECTORS: u64 = (1 << 20) / SECTOR_SIZE as u64;
/// The maximum length of a discard in sectors: its bytes must fit 32 bits.
const MAX_DISCARD_SECTORS: u32 = u32::MAX >> 9;

pub(crate) const fn parameter(
    name: &'static str,
    default: &'static str,
    help: &'static str,
) -> Parameter {
    Parameter { name, default, help }
}

pub(crate) const SUBMIT_QUEUES: Parameter =
    parameter("submit_queues", "1", "hardware queues; at most one per CPU");
pub(crate) const USE_PER_NODE_HCTX: Parameter = parameter(
    "use_per_node_hctx",
    "0",
    "one hardware queue per NUMA node, instead of submit_queues",
);
pub(crate) const HW_QUEUE_DEPTH: Parameter =
    parameter("hw_queue_depth", "64", "driver tags per hardware queue, 1 to 10240");
pub(crate) const IRQMODE: Parameter = parameter(
    "irqmode",
    "1",
    "0: complete within the call; 1: at the next reap; 2: after completion_nsec",
);
pub(crate) const COMPLETION_NSEC_PARAMETER: Parameter =
    parameter("completion_nsec", "10000", "service time in ns; only with irqmode=2");
pub(crate) const BS: Parameter =
    parameter("bs", "512", "logical block size in bytes: 512, 1024, 2048 or 4096");
pub(crate) const BLOCKSIZE: Parameter = parameter("blocksize", "512", "another name of bs");
pub(crate) const SIZE: Parameter = parameter("size", "", "size in MiB; wins over gb");
pub(crate) const MAX_SECTORS: Parameter =
    parameter("max_sectors", "0", "most sectors in a request; 0: the block layer's default");
pub(crate) const LOG: Parameter = parameter("log", "0", "record every arrival");
pub(crate) const LOG_SIZE_PARAMETER: Parameter =
    parameter("log_size", "65536", "arrivals that the log keeps");

/// The values as given, before rounding and before parameters are checked against each other.
pub(crate) struct Basics {
    submit_queues: Option<u64>,
    use_per_node_hctx: bool,
    hw_queue_depth: u64,
    irqmode: u8,
    completion_nsec: Option<u64>,
    blocksize: u64,
    gb: u64,
    size: Option<u64>,
    log: bool,
    log_size: Option<usize>,
    pub(crate) max_sectors: u32,
    pub(crate) discard: bool,
}

impl Default for Basics {
    fn default() -> Self {
        Self {
            submit_queues: None,
            use_per_node_hctx: false,
            hw_queue_depth: 64,
            irqmode: 1,
            completion_nsec: None,
            blocksize: 512,
            gb: 250,
            size: None,
            log: false,
            log_size: None,
            max_sectors: 0,
            discard: false,
        }
    }
}

impl Basics {
    /// The defaults of a device of `gb` GiB.
    pub(crate) fn sized(gb: u64) -> Self {
        Self { gb, ..Self::default() }
    }

    /// Sets one parameter. Returns false if `given` is not one of these.
    pub(crate) fn set(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        match given.name {
            "submit_queues" => self.submit_queues = Some(given.number(0..=u64::MAX)?),
            "use_per_node_hctx" => self.use_per_node_hctx = given.flag()?,
            "hw_queue_depth" => self.hw_queue_depth = given.number(1..=u64::MAX)?,
            "irqmode" => self.irqmode = given.number(0..=2)?,
            "completion_nsec" => {
                self.completion_nsec = Some(given.measure(Unit::NS, 0..=u64::MAX)?);
            }
            "bs" | "blocksize" => self.blocksize = given.measure(Unit::Bytes(1), 0..=u64::MAX)?,
            "gb" => self.gb = given.measure(Unit::GIB, 1..=MAX_MIB / 1024)?,
            "size" => self.size = Some(given.measure(Unit::MIB, 1..=MAX_MIB)?),
            "max_sectors" => self.max_sectors = given.number(0..=u32::MAX)?,
            "discard" => self.discard = given.flag()?,
            "log" => self.log = given.flag()?,
            "log_size" => self.log_size = Some(given.number(1..=1 << 32)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The number of hardware queues: one per node, or from one to one per CPU.
    pub(crate) fn submit_queues(&self, host: &MachineShape, notes: &mut Vec<String>) -> u16 {
        let (cpus, nodes) = (host.cpus.max(1), host.nodes.max(1));
        match self.submit_queues {
            Some(given) if self.use_per_node_hctx => {
                if given != nodes.into() {
                    notes.push(format!(
                        "submit_queues={given} gives way to use_per_node_hctx: {nodes}, one per node"
                    ));
                }
                nodes
            }
            None if self.use_per_node_hctx => nodes,
            None => 1,
            Some(0) => {
                notes.push("submit_queues=0 is raised to 1".into());
                1
            }
            Some(given) => clamp(notes, "submit_queues", given, cpus.into()) as u16,
        }
    }

    pub(crate) fn hw_queue_depth(&self, notes: &mut Vec<String>) -> u32 {
        clamp(notes, "hw_queue_depth", self.hw_queue_depth, MAX_HW_QUEUE_DEPTH.into()) as u32
    }

    pub(crate) fn irqmode(&self, notes: &mut Vec<String>) -> IrqMode {
        if self.completion_nsec.is_some() && self.irqmode != 2 {
            notes.push(format!("completion_nsec has no effect with irqmode={}", self.irqmode));
        }
        match self.irqmode {
            0 => IrqMode::Inline,
            1 => IrqMode::Softirq,
            _ => IrqMode::Timer(Nanos(self.completion_nsec.unwrap_or(COMPLETION_NSEC))),
        }
    }

    /// Rounds down to a multiple of 512, and clamps to 512 to 4096. The limits refuse a size that is not a power of
    /// two.
    pub(crate) fn blocksize(&self, notes: &mut Vec<String>) -> u32 {
        let sector = u64::from(SECTOR_SIZE);
        let rounded = (self.blocksize / sector * sector).clamp(sector, 4096);
        if rounded != self.blocksize {
            notes.push(format!("bs={} becomes {rounded}", self.blocksize));
        }
        rounded as u32
    }

    /// Size in MiB.
    pub(crate) fn size(&self) -> u64 {
        self.size.unwrap_or(self.gb * 1024)
    }

    /// The number of arrivals to record; `None` for no log.
    pub(crate) fn log_size(&self, notes: &mut Vec<String>) -> Option<usize> {
        if self.log_size.is_some() && !self.log {
            notes.push("log_size has no effect without log=1".into());
        }
        self.log.then_some(self.log_size.unwrap_or(LOG_SIZE))
    }
}

/// Returns `given`, or `most` with a note if `given` is greater.
pub(crate) fn clamp(notes: &mut Vec<String>, name: &str, given: u64, most: u64) -> u64 {
    if given > most {
        notes.push(format!("{name}={given} is lowered to {most}"));
    }
    given.min(most)
}

/// The limits of requests to a device of `size` MiB. 0 sectors select the default.
pub(crate) fn limits(blocksize: u32, max_sectors: u32, discard: bool, size: u64) -> Limits {
    let default = Limits::default();
    let block = blocksize / SECTOR_SIZE;
    let max_sectors = if max_sectors == 0 { default.max_sectors } else { max_sectors };
    Limits {
        logical_block_size: blocksize,
        physical_block_size: blocksize,
        max_sectors,
        // null_blk has no write-zeroes. On these devices they cost no more than other writes.
        max_write_zeroes_sectors: max_sectors,
        max_discard_sectors: if discard { MAX_DISCARD_SECTORS / block * block } else { 0 },
        discard_granularity: if discard { blocksize } else { 0 },
        capacity: size * MIB_SECTORS,
        ..default
    }
}

/// `irqmode`: the mode of completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IrqMode {
    /// 0: within the call.
    Inline,
    /// 1: at the next reap.
    Softirq,
    /// 2: this long (`completion_nsec`) after issue, whatever the load.
    Timer(Nanos),
}

impl IrqMode {
    /// Returns the end of a request issued now, or `None` if it completes within the call.
    pub(crate) fn end(self, now: Instant) -> Option<Instant> {
        match self {
            Self::Inline => None,
            Self::Softirq => Some(now),
            Self::Timer(service) => Some(now + service),
        }
    }
}

/// A request inside a device, and the work to do when it ends.
pub(crate) struct Held<T> {
    pub(crate) rq: Inflight,
    pub(crate) then: T,
}

/// Requests in the order in which they end.
///
/// Times are stored separately. A token is copied in parts of 16 bytes; a time written beside it would be read as half
/// of such a part, which stalls on the store buffer. Together with the verdict's part (`NullQueue::reap`) this took a
/// twelfth of the time of an I/O on the null device.
pub(crate) struct Ring<T> {
    ends: VecDeque<Instant>,
    held: VecDeque<Held<T>>,
}

impl<T> Ring<T> {
    /// An empty ring, with room for `most` requests before it allocates again.
    pub(crate) fn with_capacity(most: u32) -> Self {
        let most = most as usize;
        Self { ends: VecDeque::with_capacity(most), held: VecDeque::with_capacity(most) }
    }

    /// Adds a request after those that end no later. O(1) if that is all of them, else O(n).
    pub(crate) fn push(&mut self, until: Instant, rq: Inflight, then: T) {
        let held = Held { rq, then };
        if self.last().is_none_or(|last| last <= until) {
            self.ends.push_back(until);
            self.held.push_back(held);
            return;
        }
        let at = self.ends.partition_point(|other| *other <= until);
        self.ends.insert(at, until);
        self.held.insert(at, held);
    }

    /// Takes out the first request if it has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Held<T>> {
        if self.first().is_none_or(|until| until > now) {
            return None;
        }
        self.ends.pop_front();
        self.held.pop_front()
    }

    /// Takes out all requests that have ended by `now`, in order. O(n) in their number, plus O(log n) in the number of
    /// all.
    pub(crate) fn drain(&mut self, now: Instant) -> impl ExactSizeIterator<Item = Held<T>> {
        let ended = match self.last() {
            Some(last) if last <= now => self.ends.len(),
            _ => self.ends.partition_point(|until| *until <= now),
        };
        self.ends.drain(..ended);
        self.held.drain(..ended)
    }

    /// When the first request ends.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.ends.front().copied()
    }

    /// When the last request ends.
    pub(crate) fn last(&self) -> Option<Instant> {
        self.ends.back().copied()
    }

    /// The number of requests that have not ended by `now`, and the end of the first of these. O(log n).
    pub(crate) fn inside(&self, now: Instant) -> (usize, Option<Instant>) {
        let ended = self.ends.partition_point(|until| *until <= now);
        (self.ends.len() - ended, self.ends.get(ended).copied())
    }

    /// Takes out all requests, uncompleted.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.ends.clear();
        while let Some(held) = self.held.pop_front() {
            out.push(held.rq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(argument: Argument) -> About {
        About { name: "it", summary: "", argument, parameters: &[] }
    }

    /// The argument and the pairs as text, or the error.
    fn read(argument: Argument, text: &str) -> String {
        match about(argument).describe(text) {
            Ok(Description { argument, pairs }) => {
                let pairs = pairs.iter().map(|(key, value)| format!(" {key}={value}"));
                format!("{argument}{}", pairs.collect::<String>())
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn a_plain_device_has_pairs_only() {
        assert_eq!(read(Argument::None, ""), "");
        assert_eq!(read(Argument::None, ",a=1:2, b = 3"), " a=1:2 b=3");
        assert_eq!(read(Argument::None, ":a=1"), " a=1");
        let message = "'x' is no KEY=VALUE; accepted: it[,KEY=VALUE]...";
        assert_eq!(read(Argument::None, ":x"), message);
        assert_eq!(read(Argument::None, ",a=1,x"), message);
    }

    #[test]
    fn another_device_stands_behind_the_pairs() {
        assert_eq!(read(Argument::Device, ":null"), "null");
        assert_eq!(read(Argument::Device, ",a=1,b=2:null,c=1:2"), "null,c=1:2 a=1 b=2");
        assert_eq!(read(Argument::Device, ":it,a=1:null"), "it,a=1:null");
        for text in ["", ",a=1", ":", ",a=1: "] {
            let message = "DEVICE is missing; accepted: it[,KEY=VALUE]...:DEVICE";
            assert_eq!(read(Argument::Device, text), message);
        }
        assert!(read(Argument::Device, ",a:null").starts_with("'a' is no KEY=VALUE"));
    }

    #[test]
    fn a_list_falls_into_descriptions() {
        let split = |list| descriptions(list).join(" | ");
        assert_eq!(split(""), "");
        assert_eq!(split("null"), "null");
        assert_eq!(split("null, memory ,size=1"), "null | memory ,size=1");
        assert_eq!(
            split("faults:memory,size=1,null:a=1,b=2"),
            "faults:memory,size=1 | null:a=1,b=2"
        );
        assert_eq!(split("faults,error=1:uring:/a=b,null"), "faults,error=1:uring:/a=b | null");
        assert_eq!(
            split("stripe,chunk=4k:[null,size=1][memory],null"),
            "stripe,chunk=4k:[null,size=1][memory] | null"
        );
        assert_eq!(split("concat:[stripe:[a,b][c]][d,e],f"), "concat:[stripe:[a,b][c]][d,e] | f");
        assert_eq!(split("uring:/a[,null,memory"), "uring:/a[ | null | memory");
        assert_eq!(split("null,,null"), "null |  | null");
        assert_eq!(split("a=1,null"), "a=1 | null");
    }
}

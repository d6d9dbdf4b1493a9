//! The parameters of a null device: types, the shape and limits derived from them, parsing from pairs, and the
//! parameters of null_blk that are not supported.
//!
//! Values are rounded and clamped as in null_blk. A value that is changed or has no effect is reported in a note; an
//! invalid one is an error.

use super::FaultPlan;
use crate::basics::{self, Basics, IrqMode, clamp, parameter};
use crate::fault::{self, Fault};
use crate::{MachineShape, ParamError, Parameter};
use blkmq_core::{Given, Limits, Nanos, PairError, Unit};
use blkmq_engine::{DeviceShape, WriteCache};

/// A virtual boundary is a multiple of this, in bytes.
const PAGE: u64 = 4096;

/// The final parameters of a null device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags, per hardware queue unless they are shared.
    pub hw_queue_depth: u32,
    /// The mode of completion.
    pub irqmode: IrqMode,
    /// The service time of writes with [`IrqMode::Timer`], if it differs from that of other requests.
    pub write_time: Option<Nanos>,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// Bandwidth in MiB/s over all hardware queues; 0 for no cap.
    pub mbps: u32,
    /// Whether all hardware queues share one set of driver tags.
    pub shared_tags: bool,
    /// Whether segments may only meet at page boundaries.
    pub virt_boundary: bool,
    /// Whether the device requests no default scheduler.
    pub no_sched: bool,
    /// Whether the device supports discards.
    pub discard: bool,
    /// Whether the device reports itself as rotational.
    pub rotational: bool,
    /// The write cache that the device reports, with FUA.
    pub cache: WriteCache,
    /// The faults of the device.
    pub faults: FaultPlan,
    /// The seed of the faults.
    pub seed: u64,
    /// How often the device resets the timer of a lost request before it gives the request up.
    pub timeout_resets: u32,
    /// The maximum number of requests that schedulers may have released; `None` for the number of tags.
    pub budget: Option<u32>,
    /// The maximum number of requests inside one hardware queue; `None` for the number of tags.
    pub service_limit: Option<u32>,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl Default for NullParams {
    /// null_blk's defaults on a machine of one CPU.
    fn default() -> Self {
        Self {
            submit_queues: 1,
            hw_queue_depth: 64,
            irqmode: IrqMode::Softirq,
            write_time: None,
            blocksize: 512,
            size: 250 * 1024,
            max_sectors: 0,
            mbps: 0,
            shared_tags: false,
            virt_boundary: false,
            no_sched: false,
            discard: false,
            rotational: false,
            cache: WriteCache::Through,
            faults: FaultPlan::default(),
            seed: 0,
            timeout_resets: 0,
            budget: None,
            service_limit: None,
            log_size: None,
        }
    }
}

impl NullParams {
    /// The limits of a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        // As in Linux, segments have no maximum length if a boundary divides them.
        let (virt_boundary_mask, max_segment_size) = match self.virt_boundary {
            true => (PAGE - 1, u32::MAX),
            false => (0, limits.max_segment_size),
        };
        Limits { virt_boundary_mask, max_segment_size, rotational: self.rotational, ..limits }
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: self.shared_tags,
            budget: self.budget,
            limits: self.limits(),
            cache: self.cache,
            timeout: REQUEST_TIMEOUT,
        }
    }

    /// Returns whether no feature is on for which the device would have to inspect requests.
    pub(super) fn is_plain(&self) -> bool {
        // A service limit does not count: a request that completes within the call is never inside.
        self.irqmode == IrqMode::Inline
            && self.mbps == 0
            && self.faults.is_empty()
            && self.log_size.is_none()
    }
}

/// The request timeout of null_blk.
pub const REQUEST_TIMEOUT: Nanos = Nanos::from_secs(5);
/// The duration of a `dev_resource` fault if no request is in service, and so no completion could fulfil the promise of
/// DEV_RESOURCE.
pub const DEV_RESOURCE_DELAY: Nanos = Nanos::from_millis(1);

impl NullParams {
    /// Parses pairs of name and value; if a name is repeated, the last value counts. Also returns notes, a sentence
    /// each, on values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

/// The largest bandwidth cap in MiB/s.
const MAX_MBPS: u64 = 40 * 1024;

/// Reads `pairs` for a machine like `host`.
fn read(
    pairs: &[(String, String)],
    host: &MachineShape,
    notes: &mut Vec<String>,
) -> Result<NullParams, ParamError> {
    let mut raw = Raw::default();
    for (name, value) in pairs {
        if is_not_here(name, value)? {
            continue;
        }
        let given = Given::find(&PARAMETERS, name, value)?;
        if !raw.basics.set(&given)?
            && !raw.set_shape(&given)?
            && !raw.set_behaviour(&given, notes)?
        {
            unreachable!("every name in the table is read by one of them");
        }
    }
    Ok(raw.finish(host, notes))
}

/// Returns whether `name` is an unsupported feature that `value` leaves off.
fn is_not_here(name: &str, value: &str) -> Result<bool, ParamError> {
    let find = |table: &'static [(&'static str, Option<&'static str>)]| {
        table.iter().find(|(known, _)| *known == name)
    };
    let (not_built, of_memory) = (find(NOT_BUILT), find(OF_MEMORY));
    let Some((name, accepted)) = not_built.or(of_memory).copied() else { return Ok(false) };
    let is_off =
        accepted == Some(value) || accepted == Some("0") && matches!(value, "n" | "N" | "off");
    match of_memory {
        _ if is_off => Ok(true),
        Some(_) => Err(ParamError::Elsewhere { name, device: "memory", accepted }),
        None => Err(ParamError::NotBuilt { name, accepted }),
    }
}

/// The values as given, before rounding and before parameters are checked against each other.
struct Raw {
    basics: Basics,
    mbps: u64,
    write_nsec: Option<u64>,
    write_cache: bool,
    fua: bool,
    seed: Option<u64>,
    timeout_resets: u32,
    /// The parameters that need no further check.
    done: NullParams,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            basics: Basics::default(),
            mbps: 0,
            write_nsec: None,
            write_cache: false,
            fua: true,
            seed: None,
            timeout_resets: 0,
            done: NullParams::default(),
        }
    }
}

impl Raw {
    /// Sets a parameter of the device's shape. Returns false if `given` is not one of them.
    fn set_shape(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        match given.name {
            "shared_tags" | "shared_tag_bitmap" => self.done.shared_tags = given.flag()?,
            "virt_boundary" => self.done.virt_boundary = given.flag()?,
            "no_sched" => self.done.no_sched = given.flag()?,
            "write_cache" => self.write_cache = given.flag()?,
            "fua" => self.fua = given.flag()?,
            "rotational" => self.done.rotational = given.flag()?,
            "budget" => self.done.budget = Some(given.number(1..=u32::MAX)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a parameter of the device's behaviour. Returns false if `given` is not one of them.
    fn set_behaviour(
        &mut self,
        given: &Given<'_>,
        notes: &mut Vec<String>,
    ) -> Result<bool, ParamError> {
        let faults = &mut self.done.faults;
        match given.name {
            "write_nsec" => self.write_nsec = Some(given.measure(Unit::NS, 0..=u64::MAX)?),
            "mbps" => self.mbps = given.number(0..=u64::MAX)?,
            "service_limit" => self.done.service_limit = Some(given.number(1..=u32::MAX)?),
            "requeue" => faults.requeue = Some(read_fault(given)?),
            "requeue_tail" => faults.requeue_tail = Some(read_fault(given)?),
            "timeout" => faults.timeout = Some(read_fault(given)?),
            "timeout_resets" => self.timeout_resets = given.number(0..=u32::MAX)?,
            "resource" => faults.resource = Some(read_fault(given)?),
            "dev_resource" => faults.dev_resource = Some(read_fault(given)?),
            "seed" => self.seed = Some(given.number(0..=u64::MAX)?),
            "home_node" => {
                let node = given.number(-1..=i32::MAX)?;
                notes.push(format!(
                    "home_node={node} has no meaning: nothing is allocated per node"
                ));
            }
            "queue_mode" => match given.value {
                "2" => {}
                "0" => {
                    notes
                        .push("queue_mode=0 (bios) no longer exists: it is 2 (multi-queue)".into());
                }
                _ => {
                    return Err(given
                        .refuse("2, and 0 for 2; 1 (single queue) no longer exists")
                        .into());
                }
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self, host: &MachineShape, notes: &mut Vec<String>) -> NullParams {
        let basics = &self.basics;
        NullParams {
            submit_queues: basics.submit_queues(host, notes),
            hw_queue_depth: basics.hw_queue_depth(notes),
            irqmode: self.finish_irqmode(notes),
            write_time: self.finish_write_time(notes),
            blocksize: basics.blocksize(notes),
            size: basics.size(),
            max_sectors: basics.max_sectors,
            discard: basics.discard,
            mbps: clamp(notes, "mbps", self.mbps, MAX_MBPS) as u32,
            cache: self.finish_cache(notes),
            log_size: basics.log_size(notes),
            seed: self.finish_seed(notes),
            timeout_resets: self.finish_resets(notes),
            ..self.done
        }
    }

    fn finish_irqmode(&self, notes: &mut Vec<String>) -> IrqMode {
        let irqmode = self.basics.irqmode(notes);
        let loses = self.done.faults.timeout.is_some();
        let mode = match irqmode {
            IrqMode::Inline => 0,
            IrqMode::Softirq => 1,
            IrqMode::Timer(_) => 2,
        };
        if self.done.service_limit.is_some() && mode != 2 && !loses {
            notes.push(format!(
                "service_limit has no effect with irqmode={mode}: nothing stays inside"
            ));
        }
        irqmode
    }

    fn finish_write_time(&self, notes: &mut Vec<String>) -> Option<Nanos> {
        let is_timed = matches!(self.basics.irqmode(&mut Vec::new()), IrqMode::Timer(_));
        if self.write_nsec.is_some() && !is_timed {
            notes.push("write_nsec has no effect without irqmode=2".into());
        }
        self.write_nsec.filter(|_| is_timed).map(Nanos)
    }

    fn finish_seed(&self, notes: &mut Vec<String>) -> u64 {
        if self.seed.is_some() && self.done.faults.is_empty() {
            notes.push("seed has no effect without faults".into());
        }
        self.seed.unwrap_or(0)
    }

    fn finish_resets(&self, notes: &mut Vec<String>) -> u32 {
        if self.timeout_resets > 0 && self.done.faults.timeout.is_none() {
            notes.push("timeout_resets has no effect without timeout".into());
        }
        self.timeout_resets
    }

    fn finish_cache(&self, notes: &mut Vec<String>) -> WriteCache {
        match (self.write_cache, self.fua) {
            (true, fua) => WriteCache::Back { fua },
            (false, true) => WriteCache::Through,
            (false, false) => {
                notes.push("fua has no effect without write_cache=1".into());
                WriteCache::Through
            }
        }
    }
}

fn read_fault(given: &Given<'_>) -> Result<Fault, PairError> {
    Fault::parse(given.value).ok_or_else(|| given.refuse(fault::FORM))
}

/// In the order of the help page: null_blk's own first, then the additional ones.
pub(super) static PARAMETERS: [Parameter; 33] = [
    basics::SUBMIT_QUEUES,
    basics::USE_PER_NODE_HCTX,
    basics::HW_QUEUE_DEPTH,
    basics::IRQMODE,
    basics::COMPLETION_NSEC_PARAMETER,
    parameter("write_nsec", "", "service time of a write in ns; completion_nsec unless given"),
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "250", "size in GiB"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("mbps", "0", "bandwidth cap in MiB/s, at most 40960; 0: none"),
    parameter("shared_tags", "0", "one set of driver tags for all hardware queues"),
    parameter("shared_tag_bitmap", "0", "another name of shared_tags: there is only one device"),
    parameter("virt_boundary", "0", "segments may meet only at multiples of a page"),
    parameter("no_sched", "0", "ask for no default scheduler"),
    parameter("home_node", "-1", "NUMA node of allocations; has no meaning here and is reported"),
    parameter("queue_mode", "2", "2: multi-queue; 0 is turned into 2, 1 is refused"),
    parameter("discard", "0", "support discard"),
    parameter("write_cache", "0", "announce a volatile write cache: flushes reach the device"),
    parameter("fua", "1", "announce FUA; only with write_cache=1"),
    parameter("rotational", "0", "announce a rotational device"),
    parameter(
        "requeue",
        "",
        "fault: alternately RESOURCE and requeue, interval:probability:space:times",
    ),
    parameter("requeue_tail", "", "fault: requeue past the scheduler"),
    parameter("timeout", "", "fault: lose the request; it ends after 5 s with ETIMEDOUT"),
    parameter(
        "timeout_resets",
        "0",
        "times that the timer of a lost request is reset before it ends, 5 s each",
    ),
    parameter("resource", "", "fault: refuse with RESOURCE"),
    parameter("dev_resource", "", "fault: refuse with DEV_RESOURCE"),
    parameter("seed", "0", "of the faults' probabilities"),
    parameter(
        "budget",
        "",
        "requests that may be between scheduler and device at once; none unless given",
    ),
    parameter(
        "service_limit",
        "",
        "requests inside a hardware queue beyond which it says DEV_RESOURCE",
    ),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

/// Parameters of null_blk that are not supported; the second entry is the value for "off", which is accepted.
pub(super) const NOT_BUILT: &[(&str, Option<&str>)] = &[
    ("zoned", Some("0")),
    ("poll_queues", Some("0")),
    ("blocking", Some("0")),
    ("zone_size", None),
    ("zone_capacity", None),
    ("zone_nr_conv", None),
    ("zone_max_open", None),
    ("zone_max_active", None),
    ("zone_append_max_sectors", None),
    ("zone_full", None),
    ("zone_readonly", None),
    ("zone_offline", None),
    ("init_hctx", None),
    ("nr_devices", Some("1")),
];

/// Parameters of null_blk for `memory_backed`, which correspond to the device `memory`; in the same form.
pub(super) const OF_MEMORY: &[(&str, Option<&str>)] = &[
    ("memory_backed", Some("0")),
    ("cache_size", Some("0")),
    ("badblocks", None),
    ("badblocks_once", Some("0")),
    ("badblocks_partial_io", Some("0")),
];

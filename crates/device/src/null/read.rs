//! Reading the null device's parameters from pairs: rounded and clamped as null_blk does it.
//!
//! Whatever is not taken as it was given, or has no effect, is said in a note; what cannot be meant at all
//! is an error.

use super::params::{IrqMode, NullParams};
use super::tables::{NOT_BUILT, PARAMETERS};
use crate::fault::{self, Fault};
use crate::param::Given;
use crate::{MachineShape, ParamError};
use blkmq_core::{Nanos, SECTOR_SIZE};
use blkmq_engine::{MAX_HW_QUEUE_DEPTH, WriteCache};

/// The largest device: 2^63 bytes, where offsets end.
const MAX_MIB: u64 = 1 << 43;
/// The largest bandwidth cap in MiB/s.
const MAX_MBPS: u64 = 40 * 1024;
/// `completion_nsec` unless given.
const COMPLETION_NSEC: u64 = 10_000;
/// `log_size` unless given.
const LOG_SIZE: usize = 65_536;

/// Reads `pairs` for a machine like `host`.
pub(super) fn read(
    pairs: &[(String, String)],
    host: &MachineShape,
    notes: &mut Vec<String>,
) -> Result<NullParams, ParamError> {
    let mut raw = Raw::default();
    for (name, value) in pairs {
        if is_not_built(name, value)? {
            continue;
        }
        let given = Given::find(PARAMETERS, name, value)?;
        if !raw.set_shape(&given)? && !raw.set_behaviour(&given, notes)? {
            unreachable!("every name in the table is read by one of both");
        }
    }
    Ok(raw.finish(host, notes))
}

/// True if `name` is something that is not built and `value` leaves it off.
fn is_not_built(name: &str, value: &str) -> Result<bool, ParamError> {
    let Some((name, off)) = NOT_BUILT.iter().find(|(known, _)| *known == name) else {
        return Ok(false);
    };
    let is_off = *off == Some(value) || *off == Some("0") && matches!(value, "n" | "N" | "off");
    if is_off { Ok(true) } else { Err(ParamError::NotBuilt { name, accepted: *off }) }
}

/// What was given, before rounding and before one parameter is held against another.
struct Raw {
    submit_queues: Option<u64>,
    use_per_node_hctx: bool,
    hw_queue_depth: u64,
    irqmode: u8,
    completion_nsec: Option<u64>,
    blocksize: u64,
    gb: u64,
    size: Option<u64>,
    mbps: u64,
    write_cache: bool,
    fua: bool,
    log: bool,
    log_size: Option<usize>,
    seed: Option<u64>,
    /// Those that need no second look.
    done: NullParams,
}

impl Default for Raw {
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
            mbps: 0,
            write_cache: false,
            fua: true,
            log: false,
            log_size: None,
            seed: None,
            done: NullParams::default(),
        }
    }
}

impl Raw {
    /// Parameters of what the device looks like. False if `given` is none of them.
    fn set_shape(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        match given.name {
            "submit_queues" => self.submit_queues = Some(given.number(0..=u64::MAX)?),
            "use_per_node_hctx" => self.use_per_node_hctx = given.flag()?,
            "hw_queue_depth" => self.hw_queue_depth = given.number(1..=u64::MAX)?,
            "bs" | "blocksize" => self.blocksize = given.number(0..=u64::MAX)?,
            "gb" => self.gb = given.number(1..=MAX_MIB / 1024)?,
            "size" => self.size = Some(given.number(1..=MAX_MIB)?),
            "max_sectors" => self.done.max_sectors = given.number(0..=u32::MAX)?,
            "shared_tags" | "shared_tag_bitmap" => self.done.shared_tags = given.flag()?,
            "virt_boundary" => self.done.virt_boundary = given.flag()?,
            "no_sched" => self.done.no_sched = given.flag()?,
            "discard" => self.done.discard = given.flag()?,
            "write_cache" => self.write_cache = given.flag()?,
            "fua" => self.fua = given.flag()?,
            "rotational" => self.done.rotational = given.flag()?,
            "budget" => self.done.budget = Some(given.number(1..=u32::MAX)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parameters of what it does. False if `given` is none of them.
    fn set_behaviour(
        &mut self,
        given: &Given<'_>,
        notes: &mut Vec<String>,
    ) -> Result<bool, ParamError> {
        let faults = &mut self.done.faults;
        match given.name {
            "irqmode" => self.irqmode = given.number(0..=2)?,
            "completion_nsec" => self.completion_nsec = Some(given.number(0..=u64::MAX)?),
            "mbps" => self.mbps = given.number(0..=u64::MAX)?,
            "service_limit" => self.done.service_limit = Some(given.number(1..=u32::MAX)?),
            "requeue" => faults.requeue = Some(read_fault(given)?),
            "timeout" => faults.timeout = Some(read_fault(given)?),
            "resource" => faults.resource = Some(read_fault(given)?),
            "dev_resource" => faults.dev_resource = Some(read_fault(given)?),
            "seed" => self.seed = Some(given.number(0..=u64::MAX)?),
            "log" => self.log = given.flag()?,
            "log_size" => self.log_size = Some(given.number(1..=1 << 32)?),
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
                _ => return Err(given.refuse("2, and 0 for 2; 1 (single queue) no longer exists")),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self, host: &MachineShape, notes: &mut Vec<String>) -> NullParams {
        NullParams {
            submit_queues: self.finish_queues(host, notes),
            hw_queue_depth: clamp(
                notes,
                "hw_queue_depth",
                self.hw_queue_depth,
                MAX_HW_QUEUE_DEPTH.into(),
            ) as u32,
            irqmode: self.finish_irqmode(notes),
            blocksize: self.finish_blocksize(notes),
            size: self.size.unwrap_or(self.gb * 1024),
            mbps: clamp(notes, "mbps", self.mbps, MAX_MBPS) as u32,
            cache: self.finish_cache(notes),
            log_size: self.finish_log(notes),
            seed: self.finish_seed(notes),
            ..self.done
        }
    }

    fn finish_queues(&self, host: &MachineShape, notes: &mut Vec<String>) -> u16 {
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

    fn finish_irqmode(&self, notes: &mut Vec<String>) -> IrqMode {
        if self.completion_nsec.is_some() && self.irqmode != 2 {
            notes.push(format!("completion_nsec has no effect with irqmode={}", self.irqmode));
        }
        let loses = self.done.faults.timeout.is_some();
        if self.done.service_limit.is_some() && self.irqmode != 2 && !loses {
            notes.push(format!(
                "service_limit has no effect with irqmode={}: nothing stays inside",
                self.irqmode
            ));
        }
        match self.irqmode {
            0 => IrqMode::Inline,
            1 => IrqMode::Softirq,
            _ => IrqMode::Timer(Nanos(self.completion_nsec.unwrap_or(COMPLETION_NSEC))),
        }
    }

    /// Down to a multiple of 512, then into 512 to 4096. Limits refuse what is no power of two.
    fn finish_blocksize(&self, notes: &mut Vec<String>) -> u32 {
        let sector = u64::from(SECTOR_SIZE);
        let rounded = (self.blocksize / sector * sector).clamp(sector, 4096);
        if rounded != self.blocksize {
            notes.push(format!("bs={} becomes {rounded}", self.blocksize));
        }
        rounded as u32
    }

    fn finish_seed(&self, notes: &mut Vec<String>) -> u64 {
        if self.seed.is_some() && self.done.faults.is_empty() {
            notes.push("seed has no effect without faults".into());
        }
        self.seed.unwrap_or(0)
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

    fn finish_log(&self, notes: &mut Vec<String>) -> Option<usize> {
        if self.log_size.is_some() && !self.log {
            notes.push("log_size has no effect without log=1".into());
        }
        self.log.then_some(self.log_size.unwrap_or(LOG_SIZE))
    }
}

fn clamp(notes: &mut Vec<String>, name: &str, given: u64, most: u64) -> u64 {
    if given > most {
        notes.push(format!("{name}={given} is lowered to {most}"));
    }
    given.min(most)
}

fn read_fault(given: &Given<'_>) -> Result<Fault, ParamError> {
    Fault::parse(given.value).ok_or_else(|| given.refuse(fault::FORM))
}

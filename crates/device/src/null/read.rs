//! Parses the null device's parameters from pairs, rounded and clamped as null_blk does it.
//!
//! A value that is changed or has no effect is reported in a note; an invalid one is an error.

use super::params::NullParams;
use super::tables::{NOT_BUILT, OF_MEMORY, PARAMETERS};
use crate::basics::{Basics, clamp};
use crate::fault::{self, Fault};
use crate::service::IrqMode;
use crate::{MachineShape, ParamError};
use blkmq_core::{Given, Nanos, PairError, Unit};
use blkmq_engine::WriteCache;

impl NullParams {
    /// Parses pairs of name and value. Of two pairs with one name the later counts. Also returns notes, a sentence
    /// each, on the values that were changed or have no effect.
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
        let given = Given::find(PARAMETERS, name, value)?;
        if !raw.basics.set(&given)?
            && !raw.set_shape(&given)?
            && !raw.set_behaviour(&given, notes)?
        {
            unreachable!("every name in the table is read by one of them");
        }
    }
    Ok(raw.finish(host, notes))
}

/// True if `name` is a feature that this device does not have and `value` leaves it off.
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
    /// Parameters of the device's shape. False if `given` is none of them.
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

    /// Parameters of the device's behaviour. False if `given` is none of them.
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

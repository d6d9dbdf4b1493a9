//! Parses the memory device's parameters from pairs.
//!
//! A value that is changed or has no effect is reported in a note; an invalid one is an error.

use super::badblocks;
use super::params::MemoryParams;
use super::tables::PARAMETERS;
use crate::basics::{Basics, clamp};
use crate::service::IrqMode;
use crate::{MachineShape, ParamError};
use blkmq_core::{Given, Unit};

impl MemoryParams {
    /// Parses pairs of name and value. Of two pairs with one name the later counts, except that changes of
    /// `badblocks` add up. Also returns notes, a sentence each, on the values that were changed or have no effect.
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
        params.shape().limits.validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

/// Reads `pairs` for a machine like `host`.
fn read(
    pairs: &[(String, String)],
    host: &MachineShape,
    notes: &mut Vec<String>,
) -> Result<MemoryParams, ParamError> {
    let mut raw =
        Raw { basics: Basics::sized(1), fua: None, seed: None, done: MemoryParams::default() };
    for (name, value) in pairs {
        let given = Given::find(PARAMETERS, name, value)?;
        if !raw.basics.set(&given)? {
            raw.set(&given)?;
        }
    }
    Ok(raw.finish(host, notes))
}

/// The values as given, before parameters are checked against each other.
struct Raw {
    basics: Basics,
    fua: Option<bool>,
    seed: Option<u64>,
    /// The parameters that need no further check.
    done: MemoryParams,
}

impl Raw {
    fn set(&mut self, given: &Given<'_>) -> Result<(), ParamError> {
        let done = &mut self.done;
        match given.name {
            "cache_size" | "cache" => done.cache_size = given.measure(Unit::MIB, 0..=1 << 43)?,
            "fua" => self.fua = Some(given.flag()?),
            "badblocks" => {
                if !done.badblocks.change(given.value) {
                    return Err(given.refuse(badblocks::FORM).into());
                }
            }
            "badblocks_once" => done.badblocks_once = given.flag()?,
            "badblocks_partial_io" => done.badblocks_partial_io = given.flag()?,
            "seed" => self.seed = Some(given.number(0..=u64::MAX)?),
            _ => unreachable!("every name in the table is read here or is one of the basics"),
        }
        Ok(())
    }

    fn finish(self, host: &MachineShape, notes: &mut Vec<String>) -> MemoryParams {
        let basics = &self.basics;
        let params = MemoryParams {
            submit_queues: basics.submit_queues(host, notes),
            hw_queue_depth: basics.hw_queue_depth(notes),
            irqmode: basics.irqmode(notes),
            blocksize: basics.blocksize(notes),
            size: basics.size(),
            max_sectors: basics.max_sectors,
            discard: basics.discard,
            cache_size: clamp(notes, "cache_size", self.done.cache_size, basics.size()),
            fua: self.fua.unwrap_or(true),
            seed: self.seed.unwrap_or(0),
            log_size: basics.log_size(notes),
            ..self.done
        };
        if self.fua.is_some() && params.cache_size == 0 {
            notes
                .push("fua has no effect without cache_size: everything written is durable".into());
        }
        let loses = params.cache_size > 0 || params.irqmode != IrqMode::Inline;
        if self.seed.is_some() && !loses {
            notes.push(
                "seed has no effect with irqmode=0 and no cache: a crash takes nothing".into(),
            );
        }
        let capacity = params.shape().limits.capacity;
        for (first, last) in params.badblocks.ranges().filter(|(_, last)| *last >= capacity) {
            notes.push(format!("bad blocks {first}-{last} reach beyond the end at {capacity}"));
        }
        params
    }
}

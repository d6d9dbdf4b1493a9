//! Parses the parameters from pairs.
//!
//! The preset is found first, wherever it stands: every other parameter changes a term of it. A value that is changed
//! or has no effect is reported in a note; an invalid one is an error.

use super::bucket::Allowance;
use super::params::{CloudParams, Terms};
use super::presets;
use super::tables::PARAMETERS;
use crate::ParamError;
use crate::basics::{Basics, clamp};
use blkmq_core::{Given, Nanos, PairError, Unit};
use blkmq_engine::MAX_HW_QUEUE_DEPTH;

/// The largest disk: 16 PiB.
const MAX_MIB: u64 = 1 << 34;
/// The longest latency: a minute.
const MAX_NSEC: u64 = 60_000_000_000;
/// The highest rate, and the most credits.
const MOST: u64 = 1 << 50;

impl Default for CloudParams {
    /// The first preset.
    fn default() -> Self {
        let terms = presets::ALL[0].terms;
        Self { terms, blocksize: 512, max_sectors: 0, seed: 0, log_size: None }
    }
}

impl CloudParams {
    /// Parses pairs of name and value. Of two pairs with one name the later counts. Also returns notes, a sentence
    /// each, on the values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(pairs: &[(String, String)]) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

fn read(pairs: &[(String, String)], notes: &mut Vec<String>) -> Result<CloudParams, ParamError> {
    let mut params = CloudParams::default();
    for (name, value) in pairs.iter().filter(|(name, _)| name == "preset") {
        params.terms = preset(&Given::find(PARAMETERS, name, value)?)?;
    }
    let (mut basics, mut sized) = (Basics::default(), false);
    let mut depth = params.terms.hw_queue_depth.into();
    for (name, value) in pairs {
        let given = Given::find(PARAMETERS, name, value)?;
        match given.name {
            "preset" => {}
            "gb" | "size" => {
                sized = true;
                let unit = if given.name == "gb" { Unit::GIB } else { Unit::MIB };
                let most = if given.name == "gb" { MAX_MIB / 1024 } else { MAX_MIB };
                given.measure(unit, 1..=most)?;
                basics.set(&given)?;
            }
            "hw_queue_depth" => depth = given.number(1..=u64::MAX)?,
            "seed" => params.seed = given.number(0..=u64::MAX)?,
            _ => {
                let is_read = set(&mut params.terms, &given)? || basics.set(&given)?;
                assert!(is_read, "every name in the table is read by one of them");
            }
        }
    }
    if sized {
        params.terms.size = basics.size();
    }
    let most = MAX_HW_QUEUE_DEPTH.into();
    params.terms.hw_queue_depth = clamp(notes, "hw_queue_depth", depth, most) as u32;
    params.blocksize = basics.blocksize(notes);
    params.max_sectors = basics.max_sectors;
    params.log_size = basics.log_size(notes);
    raise(notes, "iops", &mut params.terms.iops);
    raise(notes, "bps", &mut params.terms.bps);
    Ok(params)
}

/// Sets one of the terms; false if `given` is none of them.
fn set(terms: &mut Terms, given: &Given<'_>) -> Result<bool, PairError> {
    let nanos = |most| given.measure(Unit::NS, 0..=most).map(Nanos);
    let bytes = |least| given.measure(Unit::Bytes(1), least..=MOST);
    match given.name {
        "iops" => terms.iops.rate = given.number(1..=MOST)?,
        "burst_iops" => terms.iops.burst = given.number(1..=MOST)?,
        "iops_credits" => terms.iops.credits = given.number(0..=MOST)?,
        "bps" => terms.bps.rate = bytes(1)?,
        "burst_bps" => terms.bps.burst = bytes(1)?,
        "bps_credits" => terms.bps.credits = bytes(0)?,
        "io_size" => terms.io_size = bytes(0)?,
        "bucket_nsec" => terms.bucket = nanos(MAX_NSEC)?,
        "stream_bps" => terms.stream_bps = bytes(1)?,
        "latency_nsec" => terms.latency = nanos(MAX_NSEC)?,
        "latency_spread_nsec" => terms.latency_spread = nanos(MAX_NSEC)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A burst is no slower than the rate that lasts.
fn raise(notes: &mut Vec<String>, name: &str, allowed: &mut Allowance) {
    if allowed.burst < allowed.rate {
        // Only a burst that would take place is worth a note.
        if allowed.credits > 0 {
            notes.push(format!("burst_{name}={} is raised to {name}", allowed.burst));
        }
        allowed.burst = allowed.rate;
    }
}

fn preset(given: &Given<'_>) -> Result<Terms, PairError> {
    let found = presets::ALL.iter().find(|preset| preset.name == given.value);
    found.map(|preset| preset.terms).ok_or_else(|| {
        given.refuse(Vec::from_iter(presets::ALL.iter().map(|preset| preset.name)).join(", "))
    })
}

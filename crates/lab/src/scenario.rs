//! A run with all its parameters: drawn from one seed, printed in one line.

use crate::load::{Load, LoadClient};
use crate::{Costs, Habits, Meddling, Payload, Plan};
use blkmq_core::{Limits, Nanos};
use blkmq_device::registry::Description;
use blkmq_device::{Device, DeviceError, MachineShape, null};
use blkmq_engine::{Access, Config, KickMode, Modes, NoMerges, PumpMode};
use blkmq_sched::{Factory, Options, Scope};
use std::fmt;

/// A device has at most so many hardware queues as there are CPUs; this machine has enough.
const MACHINE: MachineShape = MachineShape { cpus: 64, nodes: 1 };

/// Turns within which a CPU that could do something does it: a follower lets up to eight polls pass because it
/// expects the leader to come by, and one turn may have begun before.
const LET_PASS: u64 = 10;

/// What merging and submission are bounded by, beyond what a null device says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// At least this is a physical block, in bytes.
    pub physical_block_size: u32,
    /// Segments in one request.
    pub max_segments: u16,
    /// Bytes in one segment.
    pub max_segment_size: u32,
    /// Sectors in one discard, at most, if there are any.
    pub max_discard_sectors: u32,
    /// What is discarded at once, in bytes; 0 for the device's own.
    pub discard_granularity: u32,
    /// Sectors in one write of zeroes, at most; 0 for none.
    pub max_write_zeroes_sectors: u32,
    /// Ranges in one discard.
    pub max_discard_segments: u16,
    /// A boundary that no request crosses, in sectors; 0 for none.
    pub chunk_sectors: u32,
}

/// Everything that decides about a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where everything else comes from.
    pub seed: u64,
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options, as `key=value,...`.
    pub options: String,
    /// One elevator or one per hardware queue; `None`: as the policy prefers.
    pub scope: Option<Scope>,
    /// Access to the elevator.
    pub access: Access,
    /// How the rest of it is done.
    pub modes: Modes,
    /// Who pumps.
    pub pump: PumpMode,
    /// Scheduler tags per hardware queue; `None`: the default.
    pub nr_requests: Option<u32>,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// How often a request is tried again after an error.
    pub retries: u8,
    /// Parameters of the null device, faults included.
    pub device: Vec<(String, String)>,
    /// What else bounds requests.
    pub bounds: Bounds,
    /// Virtual CPUs, a submitter each.
    pub cpus: u16,
    /// I/Os that each may have in flight.
    pub credit: u32,
    /// I/Os that each submits.
    pub ios: u32,
    /// How they behave.
    pub habits: Habits,
    /// What they submit.
    pub load: Load,
    /// What things cost.
    pub costs: Costs,
    /// Changes of the queue while it runs, if there are any.
    pub meddling: Option<Meddling>,
}

impl Scenario {
    fn device(&self) -> Result<Device, DeviceError> {
        let description = Description { argument: "", pairs: self.device.clone() };
        let mut device = (null::FACTORY.build)(&description, &MACHINE)?;
        let limits = &mut device.shape.limits;
        let bounds = &self.bounds;
        limits.physical_block_size = limits.physical_block_size.max(bounds.physical_block_size);
        limits.max_segment_size = bounds.max_segment_size;
        limits.max_discard_sectors = limits.max_discard_sectors.min(bounds.max_discard_sectors);
        limits.discard_granularity = limits.discard_granularity.max(bounds.discard_granularity);
        limits.max_write_zeroes_sectors =
            limits.max_write_zeroes_sectors.min(bounds.max_write_zeroes_sectors);
        limits.max_segments = bounds.max_segments;
        limits.max_discard_segments = bounds.max_discard_segments;
        limits.chunk_sectors = bounds.chunk_sectors;
        Ok(device)
    }

    /// The queue to build.
    ///
    /// # Panics
    /// If the scenario was put together by hand and its device or options do not exist.
    #[must_use]
    pub fn config(&self) -> Config<Payload> {
        let device = self.device().expect("the device's parameters are right");
        let options = Options::parse(self.scheduler.attributes, &self.options);
        Config {
            scheduler: self.scheduler,
            options: options.expect("the options are the policy's"),
            scope: self.scope,
            nr_requests: self.nr_requests,
            access: self.access,
            modes: self.modes,
            nomerges: self.nomerges,
            retries: self.retries,
            pump: self.pump,
            submitters: self.cpus,
            depth: self.credit,
            ..device.config()
        }
    }

    /// The virtual CPUs, for a device with these limits.
    #[must_use]
    pub fn plans(&self, limits: Limits) -> Vec<Plan> {
        (0..self.cpus)
            .map(|cpu| {
                let seed = self.seed ^ u64::from(cpu + 1) << 40;
                let place = (cpu, self.cpus);
                let client =
                    LoadClient::new(self.load, limits, place, (self.ios, self.credit), seed);
                Plan { client: Box::new(client), habits: self.habits, seed: !seed }
            })
            .collect()
    }

    /// How late a CPU may come to a hardware queue, for all that it may be doing in between and in each of
    /// the polls that it may let pass.
    #[must_use]
    pub fn slack(&self) -> Nanos {
        let turn = self.costs.most(u64::from(self.credit.next_power_of_two() + self.habits.batch));
        // The kernel's kicks can be put off by the delay after a refusal.
        let put_off = match self.modes.kick {
            None | Some(KickMode::Coalesced) => Nanos::ZERO,
            Some(KickMode::Always | KickMode::Flag) => Nanos::from_millis(3),
        };
        Nanos(LET_PASS * (self.habits.longest(self.costs.step).0 + turn.0) + put_off.0)
    }

    /// Events that the run may take, by far: it may be slow, but not endless.
    pub(crate) fn most_events(&self) -> u64 {
        20_000 + 1_000 * u64::from(self.cpus) * u64::from(self.ios)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cpus, credit, ios, access, pump, scheduler, .. } = self;
        write!(
            f,
            "seed={seed} cpus={cpus} credit={credit} ios={ios} access={access:?} pump={pump:?}"
        )?;
        write!(f, " {:?}", self.modes)?;
        write!(f, " scheduler={}[{}]", scheduler.name, self.options)?;
        write!(f, " scope={:?} nr_requests={:?}", self.scope, self.nr_requests)?;
        write!(f, " nomerges={} retries={}", self.nomerges as u8, self.retries)?;
        f.write_str(" device=null[")?;
        for (at, (name, value)) in self.device.iter().enumerate() {
            write!(f, "{}{name}={value}", if at > 0 { "," } else { "" })?;
        }
        write!(f, "] {:?} {:?} {:?} {:?}", self.bounds, self.habits, self.load, self.costs)?;
        write!(f, " {:?}", self.meddling)
    }
}

//! The errors in a configuration or a plan.

use crate::groups::FloorsError;
#[cfg(feature = "compare")]
use crate::shared::modes;
#[cfg(feature = "compare")]
use crate::shared::modes::{Access, EffectiveModes, KickMode, Modes};
use crate::shared::settings::{
    MAX_DEVICE_DEPTH, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS,
};
use blkmq_core::LimitsError;
use std::fmt;

/// Why a queue could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device's limits are contradictory.
    Limits(LimitsError),
    /// The number of device queues given differs from that of the shape, or is zero.
    Queues {
        /// The number in the shape.
        wanted: u16,
        /// The number given.
        given: usize,
    },
    /// `hw_queue_depth` is zero or too large.
    HwQueueDepth(u32),
    /// `nr_requests` is too large.
    NrRequests(u32),
    /// The set of tags is already used by as many queues as it was made for.
    TagUsers,
    /// The set of tags does not fit the device.
    Tags {
        /// Tags in the set.
        depth: u32,
    },
    /// There are no submitters, or no credit, or more bios in total than can be numbered.
    Submitters {
        /// The number of submitters.
        submitters: u16,
        /// The credit of each.
        depth: u32,
    },
    /// `async_depth` is zero, or there is no scheduler whose tags it could divide.
    AsyncDepth(u32),
    /// A device cannot have a budget of zero.
    Budget,
    /// `device_depth` is not a possible bound.
    DeviceDepth(u32),
    /// Groups have latency goals, but each of several hardware queues has its own elevator.
    GoalsScope,
    /// A limit of the plan is larger than the device's own.
    BeyondDevice {
        /// The name, as in [`Limits`](blkmq_core::Limits).
        name: &'static str,
        /// The limit in the plan.
        asked: u32,
        /// The device's own limit.
        most: u32,
    },
    /// The device has no volatile cache, so there is nothing to flush.
    NoWriteCache,
    /// The device cannot do `FUA`.
    NoFua,
    /// The timeout of a device is zero.
    Timeout,
    /// The floors of groups cannot be kept.
    Floors(FloorsError),
    /// The choice for an option is impossible with the access.
    #[cfg(feature = "compare")]
    Mode {
        /// The access.
        access: Access,
        /// `dispatch`, `insert` or `merge`.
        option: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limits(e) => e.fmt(f),
            Self::Queues { wanted, given } => {
                write!(
                    f,
                    "the device has {given} hardware queues and says it has {wanted}; at least 1"
                )
            }
            Self::HwQueueDepth(n) => {
                write!(f, "hw_queue_depth is {n}; accepted are 1 to {MAX_HW_QUEUE_DEPTH}")
            }
            Self::NrRequests(n) => write!(
                f,
                "nr_requests is {n}; accepted are up to {MAX_NR_REQUESTS} (below {MIN_NR_REQUESTS} is raised to it)"
            ),
            Self::TagUsers => f.write_str("the set of tags is used by as many queues as it was made for"),
            Self::Tags { depth } => write!(
                f,
                "a set of {depth} tags takes a device of that hw_queue_depth, with one hardware queue or \
                 shared_tags"
            ),
            Self::Submitters { submitters, depth } => write!(
                f,
                "{submitters} submitters with a depth of {depth}; both must be at least 1 and their product \
                 below 16 million"
            ),
            Self::AsyncDepth(n) => write!(
                f,
                "async_depth is {n}; it must be at least 1, and takes a scheduler other than none"
            ),
            Self::Budget => {
                f.write_str("a device with a budget of 0 could never be given a request")
            }
            Self::DeviceDepth(n) => write!(
                f,
                "device_depth is {n}; accepted are 1 to {MAX_DEVICE_DEPTH}, or the device's own"
            ),
            Self::GoalsScope => f.write_str(
                "latency goals (p99_read, p99_write, p99_sync) take one elevator for the queue; accepted: scope queue, or auto",
            ),
            Self::BeyondDevice { name, asked, most } => {
                write!(f, "{name} is {asked}; the device takes at most {most}")
            }
            Self::NoWriteCache => {
                f.write_str("the device has no volatile write cache: it can only write through")
            }
            Self::NoFua => f.write_str("the device cannot do FUA; a flush must follow instead"),
            Self::Timeout => f.write_str(
                "with a timeout of 0 every request would time out; 30 s is usual, and u64::MAX is for ever",
            ),
            Self::Floors(e) => e.fmt(f),
            #[cfg(feature = "compare")]
            Self::Mode { access, option } => {
                let accepted = modes::accepted(*access, option).join(", ");
                write!(
                    f,
                    "this {option} does not go with access={access}; accepted: {accepted}"
                )
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<LimitsError> for ConfigError {
    fn from(e: LimitsError) -> Self {
        Self::Limits(e)
    }
}

#[cfg(feature = "compare")]
impl Modes {
    /// The modes that result with `access`.
    ///
    /// # Errors
    /// If a choice is impossible with `access`.
    pub fn settle(&self, access: Access) -> Result<EffectiveModes, ConfigError> {
        let refuse = |option| ConfigError::Mode { access, option };
        Ok(EffectiveModes {
            access,
            dispatch: pick(self.dispatch, access.dispatch()).ok_or(refuse("dispatch"))?,
            insert: pick(self.insert, access.insert()).ok_or(refuse("insert"))?,
            merge: pick(self.merge, access.merge()).ok_or(refuse("merge"))?,
            kick: self.kick.unwrap_or(KickMode::Coalesced),
        })
    }
}

/// The chosen mode if it is among `goes`; the first of `goes` if no mode was chosen.
#[cfg(feature = "compare")]
fn pick<M: Copy + PartialEq>(chosen: Option<M>, goes: &[M]) -> Option<M> {
    match chosen {
        None => goes.first().copied(),
        Some(mode) => goes.contains(&mode).then_some(mode),
    }
}

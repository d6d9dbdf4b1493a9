//! The basic types of blkmq, which every other crate uses.
//!
//! Time ([`Instant`], [`Nanos`]), names ([`RequestId`], [`HwQueue`], [`Owner`]), the part of an I/O that a policy may
//! see ([`IoMeta`]) and the part that it may not ([`Payload`]), the limits of a device and the cuts of an I/O that
//! exceeds them ([`Limits`]), a small random generator whose streams stay the same across releases ([`Rng`]), a latency
//! histogram ([`Histogram`]), and types for offsets and lengths ([`Bytes`], [`Sectors`]).
//!
//! ```
//! use blkmq_core::{Histogram, Instant, Limits, Nanos, Op};
//!
//! // A device that takes 128 KiB at a time: where a read of 320 KiB, 1 MiB from the beginning, is divided.
//! let limits = Limits { max_sectors: 256, ..Limits::default() };
//! let parts: Vec<(u64, u32)> = limits.parts(Op::Read, 2048, 640).collect();
//! assert_eq!(parts, [(2048, 256), (2304, 256), (2560, 128)]);
//!
//! // The caller supplies the time; there is no clock here.
//! let begun = Instant::ZERO + Nanos::from_micros(5);
//! let ended = begun + Nanos::from_micros(80);
//! let mut latencies = Histogram::new();
//! latencies.record(ended.since(begun).0);
//! assert_eq!(latencies.max(), 80_000);
//! ```
//!
//! Nothing here can read a clock, start a thread or touch memory it was not given: the crate is `no_std`, forbids
//! `unsafe` and depends on nothing. That is how the build proves that policies are pure.
//!
//! A *sector* is always 512 bytes, whatever the logical block size of a device.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod io;
mod limits;
mod param;
mod rng;
mod time;

pub use io::{
    Buffer, Bytes, Class, Deadline, Extent, GroupId, GroupIndex, HwQueue, InSectors, IoError,
    IoFlags, IoMeta, IoPrio, IoResult, Op, Owner, Payload, RequestId, Sectors, SubmitterId, Tag,
};
pub use limits::{Limits, LimitsError, ListParts, Parts, TooScattered, is_list};
pub use param::{
    DeviceError, Finding, Given, MachineShape, PairError, ParamError, Parameter, RealDevice, Unit,
};
pub use rng::Rng;
pub use time::{Histogram, Instant, Nanos};

/// Bytes in a sector, the unit of every address and length in blkmq.
pub const SECTOR_SIZE: u32 = 512;

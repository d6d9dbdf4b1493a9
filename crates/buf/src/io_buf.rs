//! [`IoBuf`]: the promise of a payload whose bytes the kernel may reach by address.

use blkmq_core::Payload;

/// A payload of bytes that the kernel may read and write in place: in one range of memory, or in several, which a device
/// gathers into one I/O without a copy.
///
/// # Safety
///
/// From the call that submits an I/O until its completion has been taken, the ranges that
/// [`ranges`](Payload::ranges) names must be valid for reads and writes, must stay the same however often they are
/// requested and wherever the payload itself is moved, and must not be read or written except by the device (and by
/// [`Payload`]'s methods, which are for devices too). Together they are as long as [`Payload::data_len`] says, or empty
/// if that says `None`. Neither the ranges of one payload nor the parts of a divided one overlap.
///
/// Memory that another owner keeps in place, such as a guest's, suits it too: a payload that holds an `Arc` of the owner
/// and a list of addresses keeps this promise if nothing else takes part in an I/O on these bytes.
pub unsafe trait IoBuf: Payload {}

// SAFETY: they carry no data and name no ranges, so that there is nothing to promise. With them, a device whose payloads are
// `IoBuf` can be measured without memory, and tested where the payload is a number.
unsafe impl IoBuf for () {}
// SAFETY: as above.
unsafe impl IoBuf for u64 {}

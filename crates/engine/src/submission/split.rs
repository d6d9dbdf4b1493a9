//! I/Os that the device does not take whole: divided into parts, tracked, and joined again (`spec/framework.md` section
//! 13, Split).
//!
//! Private to one submitter, like its plug, and not on the path of an I/O that fits. [`Limits::parts`] computes where
//! to cut; `submitter.rs` pushes the parts. Each part is a separate bio in its own cell, and the code behind the plug
//! does not know that there are other parts.

use crate::submission::{Io, Refusal, Refused};
use blkmq_core::{
    IoError, IoFlags, IoResult, Limits, Op, Payload, SECTOR_SIZE, TooScattered, is_list,
};

/// The I/O and part to which a cell belongs.
#[derive(Clone, Copy, Default)]
struct Place {
    split: u32,
    part: u32,
}

/// A divided I/O that has not been joined again.
struct Open<P> {
    /// In ascending order; `None` for a part that is in flight.
    payloads: Vec<Option<P>>,
    in_flight: u32,
    /// The error of the lowest failed part, with the number of the part.
    error: Option<(u32, IoError)>,
}

/// An I/O in parts that are being pushed.
struct Plan<P> {
    /// The first sector of each part, and its length in sectors.
    parts: Vec<(u64, u32)>,
    /// The payloads of the parts not yet pushed, the last part first.
    payloads: Vec<P>,
    split: u32,
    /// The last part may merge with the I/O that follows it.
    end_merges: bool,
}

/// The divided I/Os of one submitter. Allocates for the first one, and when more are open at a time than ever before.
pub(crate) struct Splits<P> {
    plan: Plan<P>,
    open: Vec<Open<P>>,
    free: Vec<u32>,
    /// By position of the cell among those of the submitter.
    places: Vec<Place>,
    /// Cells in flight beyond one for each open split.
    extra: u32,
}

/// One part, to be pushed.
pub(crate) struct Part<P> {
    /// The number of the part, from 0 on.
    pub(crate) number: u32,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    /// [`IoFlags::NOMERGE`] or none; to be added to the flags of the I/O.
    pub(crate) flags: IoFlags,
    pub(crate) payload: P,
}

fn bytes(sectors: u64) -> usize {
    usize::try_from(sectors * u64::from(SECTOR_SIZE)).unwrap_or(usize::MAX)
}

/// Returns whether the I/O moves data that is in several ranges of memory.
#[inline(always)]
pub(crate) fn is_data_list<P: Payload>(io: &Io<P>) -> bool {
    is_list(&io.payload) && matches!(io.op, Op::Read | Op::Write)
}

/// Adds a part of a list to `parts`. Returns the reason if that is impossible.
fn keep(
    part: Result<(u64, u32), TooScattered>,
    limits: &Limits,
    parts: &mut Vec<(u64, u32)>,
) -> Option<Refusal> {
    match part {
        Ok(part) => {
            parts.push(part);
            None
        }
        Err(TooScattered) => {
            let boundary = limits.virt_boundary_mask.saturating_add(1);
            Some(Refusal::Scattered { segments: limits.max_segments, boundary })
        }
    }
}

/// Splits off the payloads of all parts but the first, from the end, so that the rest is not moved repeatedly. Returns
/// false, with nothing changed, if the payload does not allow it.
fn split_payload<P: Payload>(io: &mut Io<P>, parts: &[(u64, u32)], payloads: &mut Vec<P>) -> bool {
    for (sector, _) in parts[1..].iter().rev() {
        let Some(rest) = io.payload.split_off(bytes(sector - io.sector)) else {
            while let Some(rest) = payloads.pop() {
                io.payload.join(rest);
            }
            return false;
        };
        payloads.push(rest);
    }
    true
}

impl<P> Splits<P> {
    pub(crate) fn new() -> Self {
        Self {
            plan: Plan { parts: Vec::new(), payloads: Vec::new(), split: 0, end_merges: false },
            open: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            extra: 0,
        }
    }

    /// Cells in flight beyond one for each open split: the number of bios that will not become separate completions.
    #[inline]
    pub(crate) fn extra(&self) -> u32 {
        self.extra
    }

    /// Returns whether the part in the cell at `place` is the last missing one of its I/O.
    pub(crate) fn completes(&self, place: u32) -> bool {
        self.open[self.places[place as usize].split as usize].in_flight == 1
    }
}

impl<P: Payload> Splits<P> {
    /// Divides `io`, which `limits` do not permit whole, for a submitter with a credit of `depth`, of which `left` is
    /// free. Returns the number of parts, which must then be taken by [`next_part`](Self::next_part).
    ///
    /// # Errors
    /// Returns the I/O whole and unchanged, with the reason why it cannot be divided.
    pub(crate) fn divide(
        &mut self,
        limits: &Limits,
        mut io: Io<P>,
        (depth, left): (u32, u32),
    ) -> Result<u32, Refused<P>> {
        let Plan { parts, payloads, .. } = &mut self.plan;
        parts.clear();
        let in_list = is_data_list(&io);
        // One more than the credit is enough to refuse it.
        let enough = depth as usize + 1;
        if in_list {
            let cuts = limits.parts_of_list(io.op, io.sector, io.sectors, io.payload.ranges());
            let why = cuts.take(enough).find_map(|part| keep(part, limits, parts));
            if let Some(why) = why {
                return Err(Refused::new(io, why));
            }
        } else {
            parts.extend(limits.parts(io.op, io.sector, io.sectors).take(enough));
        }
        let most = if in_list {
            parts[0].1
        } else {
            limits.within_chunk(io.op, io.sector, limits.max_whole_sectors(io.op))
        };
        let why = if io.flags.contains(IoFlags::NOWAIT) {
            Some(Refusal::NoWait { most })
        } else if parts.len() > depth as usize {
            parts.pop();
            Some(Refusal::TooLong { most: parts.iter().map(|(_, sectors)| sectors).sum() })
        } else if parts.len() > left as usize {
            Some(Refusal::NoCredit { depth })
        } else if !split_payload(&mut io, parts, payloads) {
            Some(Refusal::TooLong { most })
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Refused::new(io, why));
        }
        let count = parts.len() as u32;
        let (last, _) = parts[parts.len() - 1];
        // The merge rules assume that memory begins at a virtual boundary; the memory of a part begins at its cut.
        let offset = if in_list { u64::MAX } else { bytes(last - io.sector) as u64 };
        self.plan.end_merges = offset & limits.virt_boundary_mask == 0;
        self.plan.payloads.push(io.payload);
        self.plan.split = self.open(count);
        self.places.resize(depth as usize, Place::default());
        self.extra += count - 1;
        Ok(count)
    }

    /// The next part of the last divided I/O, in ascending order.
    pub(crate) fn next_part(&mut self) -> Option<Part<P>> {
        let payload = self.plan.payloads.pop()?;
        let behind = self.plan.payloads.len();
        let number = self.plan.parts.len() - 1 - behind;
        let (sector, sectors) = self.plan.parts[number];
        let merges = behind == 0 && self.plan.end_merges;
        let flags = if merges { IoFlags::NONE } else { IoFlags::NOMERGE };
        Some(Part { number: number as u32, sector, sectors, flags, payload })
    }

    /// Records that this part of the last divided I/O is in the cell at `place`.
    pub(crate) fn placed(&mut self, part: u32, place: u32) {
        self.places[place as usize] = Place { split: self.plan.split, part };
    }

    fn open(&mut self, parts: u32) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.open.push(Open { payloads: Vec::new(), in_flight: 0, error: None });
            self.open.len() as u32 - 1
        });
        let open = &mut self.open[id as usize];
        debug_assert!(open.payloads.is_empty() && open.in_flight == 0, "it was closed");
        open.payloads.resize_with(parts as usize, || None);
        open.in_flight = parts;
        open.error = None;
        id
    }

    /// Takes back a part from the cell at `place`. If it was the last missing one, returns the result of the I/O, and
    /// its payload, whole again.
    pub(crate) fn part_done(
        &mut self,
        place: u32,
        result: IoResult,
        payload: P,
    ) -> Option<(IoResult, P)> {
        let Place { split, part } = self.places[place as usize];
        let open = &mut self.open[split as usize];
        let missing = open.payloads[part as usize].replace(payload);
        assert!(missing.is_none(), "a part comes back once");
        if let Err(error) = result
            && open.error.is_none_or(|(first, _)| part < first)
        {
            open.error = Some((part, error));
        }
        open.in_flight -= 1;
        if open.in_flight > 0 {
            self.extra -= 1;
            return None;
        }
        let mut parts = open.payloads.drain(..).map(|part| part.expect("every part is back"));
        let mut whole = parts.next().expect("there are parts");
        // The payload was divided from its end, so this is the reverse order.
        parts.for_each(|part| whole.join(part));
        self.free.push(split);
        Some((open.error.map_or(Ok(()), |(_, error)| Err(error)), whole))
    }
}

//! The effect of a request on the store, at its arrival and at its end.
//!
//! Payloads can be accessed only while a request is being submitted, so the bytes are copied then. When the request
//! ends, its data becomes durable or must be covered by the next flush. The queue decides when a request ends.

use super::image::Extent;
use super::store::{Landing, Store};
use blkmq_core::{IoError, IoFlags, IoResult, Op, Payload, SECTOR_SIZE};
use blkmq_engine::{BioRef, BioTable, Inflight, WriteCache};

/// The work to do at the end of a request.
#[must_use]
#[derive(Debug)]
pub(super) struct Owed {
    /// The result of the request, unless power fails before it ends.
    result: IoResult,
    /// The epoch of the store in which the request arrived.
    epoch: u64,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Nothing,
    /// Write back the writes that had completed when the flush arrived.
    Flush {
        before: u64,
    },
    /// Complete the write of these extents.
    Complete {
        extents: Extents,
        durable: bool,
    },
}

/// The extents that a request has written. Only a discard with several ranges has more than one.
#[derive(Debug)]
enum Extents {
    One(Extent),
    Many(Vec<Extent>),
}

/// The extent to which a request is performed: bad blocks may stop it.
#[derive(Clone, Copy)]
struct Reach {
    /// The number of bios performed completely.
    bios: usize,
    /// The sectors of the next bio that are performed.
    sectors: u32,
    result: IoResult,
}

fn extent<P>(bio: &BioRef<'_, P>) -> Extent {
    Extent { sector: bio.sector, sectors: bio.sectors }
}

/// Handles the arrival of a request. With `at_once` it also ends within the call, so that no other request can
/// intervene.
pub(super) fn begin<P: Payload>(
    store: &mut Store,
    bios: &BioTable<P>,
    rq: &Inflight,
    at_once: bool,
) -> Owed {
    if rq.op() == Op::Flush {
        return Owed::new(store, Ok(()), Then::Flush { before: store.begin_flush() });
    }
    if !lengths_agree(bios, rq) {
        return Owed::new(store, Err(IoError::INVALID), Then::Nothing);
    }
    let reach = reach(store, bios, rq);
    let durable = match store.write_cache {
        WriteCache::Through => true,
        WriteCache::Back { fua } => fua && rq.flags().contains(IoFlags::FUA),
    };
    let landing = if durable && at_once { Landing::Durable } else { Landing::Volatile };
    let moved = transfer(store, bios, rq, reach, landing);
    let then = if rq.op() == Op::Read || landing == Landing::Durable {
        Then::Nothing
    } else {
        Then::Complete { extents: extents(bios, rq, reach), durable }
    };
    Owed::new(store, moved.and(reach.result), then)
}

/// Handles the end of a request: does the remaining work, and returns the result.
pub(super) fn end(store: &mut Store, owed: Owed) -> IoResult {
    if owed.epoch != store.epoch {
        return Err(IoError::IO);
    }
    match owed.then {
        Then::Nothing => {}
        Then::Flush { before } => store.end_flush(before),
        Then::Complete { extents: Extents::One(extent), durable } => {
            store.complete(extent, durable);
        }
        Then::Complete { extents: Extents::Many(extents), durable } => {
            extents.into_iter().for_each(|extent| store.complete(extent, durable));
        }
    }
    owed.result
}

impl Owed {
    fn new(store: &Store, result: IoResult, then: Then) -> Self {
        Self { result, epoch: store.epoch, then }
    }

    /// The work of a request that fails without effect.
    pub(super) fn failed(store: &Store) -> Self {
        Self::new(store, Err(IoError::IO), Then::Nothing)
    }
}

/// Returns whether the payload of every read or write that carries data has the length of its bio. Discards and writes
/// of zeroes use no payload.
fn lengths_agree<P: Payload>(bios: &BioTable<P>, rq: &Inflight) -> bool {
    let fits = |bio: BioRef<'_, P>| {
        let len = u64::from(bio.sectors) * u64::from(SECTOR_SIZE);
        bio.payload.data_len().is_none_or(|given| given as u64 == len)
    };
    !matches!(rq.op(), Op::Read | Op::Write) || rq.bios(bios).all(fits)
}

/// Applies bad blocks to a request; heals the first of them if it fails only once.
fn reach<P>(store: &mut Store, bios: &BioTable<P>, rq: &Inflight) -> Reach {
    let bad = |bio: BioRef<'_, P>| store.bad.first_in(bio.sector, bio.sectors);
    let mut found = rq.bios(bios).enumerate();
    let Some((at, start, bad)) = found.find_map(|(at, bio)| Some((at, bio.sector, bad(bio)?)))
    else {
        return Reach { bios: rq.bio_count() as usize, sectors: 0, result: Ok(()) };
    };
    if store.once {
        store.bad.heal(bad);
    }
    let result = Err(IoError::IO);
    if !store.partial_io {
        return Reach { bios: 0, sectors: 0, result };
    }
    let whole_blocks = bad - bad % u64::from(store.block);
    Reach { bios: at, sectors: (whole_blocks - start) as u32, result }
}

/// The bios that are performed, each with the extent to which it is.
fn reached<'a, P>(
    bios: &'a BioTable<P>,
    rq: &'a Inflight,
    reach: Reach,
) -> impl Iterator<Item = (BioRef<'a, P>, Extent)> + 'a {
    let cut = move |(at, bio): (usize, BioRef<'a, P>)| {
        let whole = extent(&bio);
        let sectors = if at < reach.bios { whole.sectors } else { reach.sectors };
        (bio, Extent { sectors, ..whole })
    };
    let most = reach.bios + usize::from(reach.sectors > 0);
    rq.bios(bios).enumerate().take(most).map(cut)
}

fn transfer<P: Payload>(
    store: &mut Store,
    bios: &BioTable<P>,
    rq: &Inflight,
    reach: Reach,
    landing: Landing,
) -> IoResult {
    reached(bios, rq, reach).try_for_each(|(bio, extent)| {
        let payload = bio.payload;
        match rq.op() {
            Op::Read | Op::Write if payload.data_len().is_none() => Ok(()),
            Op::Read => store.read(extent, |at, bytes| payload.read_from(at, bytes)),
            Op::Write => store.write(extent, landing, |at, bytes| payload.write_to(at, bytes)),
            Op::Discard | Op::WriteZeroes => {
                store.zero(extent, landing);
                Ok(())
            }
            Op::Flush => unreachable!("a flush moves nothing and is answered before"),
        }
    })
}

fn extents<P>(bios: &BioTable<P>, rq: &Inflight, reach: Reach) -> Extents {
    if rq.op() == Op::Discard && rq.bio_count() > 1 {
        return Extents::Many(reached(bios, rq, reach).map(|(_, extent)| extent).collect());
    }
    let sectors = reached(bios, rq, reach).map(|(_, extent)| extent.sectors).sum();
    Extents::One(Extent { sector: rq.sector(), sectors })
}

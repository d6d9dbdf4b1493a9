//! The memory device: stores data, with a volatile cache that a crash may lose, and bad blocks; and its parameters.
//!
//! Its page (`doc/memory.md`) describes the model, its limits, and the effects of a crash. One store behind one mutex
//! serves all hardware queues. A hardware queue holds requests until their completion time.
//!
//! [`BadBlocks`] are ranges of failing sectors, in the notation of null_blk's `badblocks` attribute; `store.rs` decides
//! how a request fails. A value of a parameter that is changed or has no effect is reported in a note; an invalid one
//! is an error.

mod store;

use crate::basics::{
    self, About, Argument, Basics, Description, IrqMode, Parts, Ring, clamp, parameter,
};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, ParamError, Parameter};
use blkmq_core::{Given, Instant, Payload, Unit};
use blkmq_engine::{
    BioTable, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Finished,
    Inflight, Verdict, WriteCache,
};
use std::collections::BTreeMap;
pub use store::MemoryStore;
use store::Owed;
pub use store::{Image, PAGE};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "memory",
    summary: "stores what is written; volatile cache, crashes and bad blocks to test with",
    argument: Argument::None,
    parameters: &PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<(MemoryParams, MemoryStore)>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = MemoryParams::parse(&given.pairs, host).map_err(refused)?;
    let store = MemoryStore::new(&params);
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: (params, store),
    })
}

/// The hardware queues of a memory device, which share one store.
pub(crate) fn queues<P: Payload>(
    params: &MemoryParams,
    store: &MemoryStore,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    store.power_on();
    let queue = |_| Box::new(MemoryQueue::new(params, store.clone(), log.cloned())) as _;
    (0..params.submit_queues).map(queue).collect()
}

struct MemoryQueue {
    store: MemoryStore,
    irqmode: IrqMode,
    log: Option<ArrivalLog>,
    serving: Ring<Owed>,
    /// The epoch of the store when the queue was made.
    epoch: u64,
}

impl MemoryQueue {
    fn new(params: &MemoryParams, store: MemoryStore, log: Option<ArrivalLog>) -> Self {
        let inline = params.irqmode == IrqMode::Inline;
        let serving = Ring::with_capacity(if inline { 0 } else { params.hw_queue_depth });
        let epoch = store.lock().epoch;
        Self { store, irqmode: params.irqmode, log, serving, epoch }
    }
}

impl<P: Payload> DeviceQueue<P> for MemoryQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let until = self.irqmode.end(now);
        let mut store = self.store.lock();
        let owed = if self.epoch < store.powered {
            Owed::failed(&store)
        } else {
            store::begin(&mut store, bios, &rq, until.is_none())
        };
        match until {
            None => {
                let result = store::end(&mut store, owed);
                Enqueued::Done(rq, result)
            }
            Some(until) => {
                self.serving.push(until, rq, owed);
                Enqueued::Accepted
            }
        }
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        if self.serving.first().is_none_or(|until| until > now) {
            return;
        }
        let mut store = self.store.lock();
        while let Some(ended) = self.serving.pop(now) {
            let result = store::end(&mut store, ended.then);
            out.push(Finished { rq: ended.rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if it holds no request.
    fn next_event(&self) -> Option<Instant> {
        Some(self.serving.first().unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.serving.abandon(out);
    }
}

/// The final parameters of a memory device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// The mode of completion.
    pub irqmode: IrqMode,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// Whether the device supports discards.
    pub discard: bool,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// Whether the device honours FUA, if it has a cache.
    pub fua: bool,
    /// Bad blocks at power-on.
    pub badblocks: BadBlocks,
    /// Whether a bad range heals after it has failed once.
    pub badblocks_once: bool,
    /// Whether a request is performed up to its first bad block.
    pub badblocks_partial_io: bool,
    /// The seed that decides which blocks a crash loses.
    pub seed: u64,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl Default for MemoryParams {
    /// null_blk's defaults on a machine of one CPU, except for the size.
    fn default() -> Self {
        Self {
            submit_queues: 1,
            hw_queue_depth: 64,
            irqmode: IrqMode::Softirq,
            blocksize: 512,
            size: 1024,
            max_sectors: 0,
            discard: false,
            cache_size: 0,
            fua: true,
            badblocks: BadBlocks::default(),
            badblocks_once: false,
            badblocks_partial_io: false,
            seed: 0,
            log_size: None,
        }
    }
}

impl MemoryParams {
    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            timeout: DEFAULT_TIMEOUT,
            limits: basics::limits(self.blocksize, self.max_sectors, self.discard, self.size),
            cache: match self.cache_size {
                0 => WriteCache::Through,
                _ => WriteCache::Back { fua: self.fua },
            },
        }
    }

    /// Parses pairs of name and value; if a name is repeated, the last value counts, except that changes of `badblocks`
    /// accumulate. Also returns notes, a sentence each, on values that were changed or have no effect.
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
        let given = Given::find(&PARAMETERS, name, value)?;
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
                    return Err(given.refuse(BadBlocks::FORM).into());
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

/// In the order of the help page.
static PARAMETERS: [Parameter; 20] = [
    basics::SUBMIT_QUEUES,
    basics::USE_PER_NODE_HCTX,
    basics::HW_QUEUE_DEPTH,
    basics::IRQMODE,
    basics::COMPLETION_NSEC_PARAMETER,
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "1", "size in GiB; what is written is kept in memory"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("discard", "0", "support discard; what is discarded reads as zeroes"),
    parameter("cache_size", "0", "volatile write cache in MiB; 0: none"),
    parameter("cache", "0", "another name of cache_size"),
    parameter("fua", "1", "honour FUA; only with a cache"),
    parameter("badblocks", "", "+START-END or -START-END in sectors; may be given repeatedly"),
    parameter("badblocks_once", "0", "a bad range heals when it has failed once"),
    parameter("badblocks_partial_io", "0", "what lies before the first bad block is done"),
    parameter("seed", "0", "of what a crash takes, besides the crash's own"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

/// A set of bad sectors. Ranges that overlap or touch are merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BadBlocks {
    /// Disjoint ranges: the last sector by the first.
    ranges: BTreeMap<u64, u64>,
}

impl BadBlocks {
    /// The form of a change, for messages.
    pub(crate) const FORM: &str = "+START-END or -START-END, in sectors of 512 bytes, END included";

    /// Applies a change, `+START-END` or `-START-END`. Returns false if the text has another form.
    pub fn change(&mut self, text: &str) -> bool {
        let parse = || {
            let (first, last) = text.get(1..)?.split_once('-')?;
            let range = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            (range.0 <= range.1 && range.1 < u64::MAX).then_some(range)
        };
        match (text.as_bytes().first(), parse()) {
            (Some(b'+'), Some((first, last))) => self.add(first, last),
            (Some(b'-'), Some((first, last))) => self.remove(first, last),
            _ => return false,
        }
        true
    }

    /// Marks sectors `first` to `last` as bad.
    fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // All ranges that overlap or touch the new one.
        while let Some((&from, &to)) = self.ranges.range(..=last + 1).next_back()
            && to.saturating_add(1) >= first
        {
            self.ranges.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.ranges.insert(first, last);
    }

    /// Marks sectors `first` to `last` as good.
    pub(crate) fn remove(&mut self, first: u64, last: u64) {
        while let Some((&from, &to)) = self.ranges.range(..=last).next_back()
            && to >= first
        {
            self.ranges.remove(&from);
            if to > last {
                self.ranges.insert(last + 1, to);
            }
            if from < first {
                self.ranges.insert(from, first - 1);
            }
        }
    }

    /// The first bad sector of the `sectors` sectors from `sector` on. O(log n).
    #[must_use]
    pub fn first_in(&self, sector: u64, sectors: u32) -> Option<u64> {
        let end = sector + u64::from(sectors);
        let before = self.ranges.range(..=sector).next_back().filter(|(_, last)| **last >= sector);
        let within = || self.ranges.range(sector..end).next();
        before.map(|_| sector).or_else(|| within().map(|(first, _)| *first))
    }

    /// Marks the whole range that contains `sector` as good.
    fn heal(&mut self, sector: u64) {
        let found = self.ranges.range(..=sector).next_back().map(|(first, last)| (*first, *last));
        if let Some((first, last)) = found.filter(|(_, last)| *last >= sector) {
            self.remove(first, last);
        }
    }

    /// The ranges, first and last sector each, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::store::Extent;
    use super::store::{Landing, Store};
    use super::{PARAMETERS, *};
    use crate::{Device, registry};
    use blkmq_core::Rng;
    use blkmq_engine::WriteCache;

    fn bad(text: &str) -> Vec<(u64, u64)> {
        let mut bad = BadBlocks::default();
        text.split_whitespace().for_each(|change| assert!(bad.change(change), "{change}"));
        bad.ranges().collect()
    }

    #[test]
    fn ranges_join_and_come_apart() {
        assert_eq!(bad("+1-2 +4-5"), [(1, 2), (4, 5)]);
        assert_eq!(bad("+1-2 +4-5 +3-3"), [(1, 5)]);
        assert_eq!(bad("+0-9 -3-4 -9-20"), [(0, 2), (5, 8)]);
        assert_eq!(bad("+5-6 -0-100"), []);
    }

    #[test]
    fn changes_of_another_form_are_refused() {
        for text in
            ["", "+", "1-2", "+1", "+2-1", "+1-x", "*1-2", "+-1-2", "+1-18446744073709551615"]
        {
            assert!(!BadBlocks::default().change(text), "{text}");
        }
    }

    #[test]
    fn they_agree_with_a_list_of_flags() {
        let mut rng = Rng::new(3);
        let (mut bad, mut flags) = (BadBlocks::default(), [false; 40]);
        for _ in 0..20_000 {
            let first = rng.below(39);
            let last = first + rng.below(40 - first);
            let adds = rng.chance(1, 2);
            assert!(bad.change(&format!("{}{first}-{last}", if adds { '+' } else { '-' })));
            flags[first as usize..=last as usize].fill(adds);
            let (at, sectors) = (rng.below(30), 1 + rng.below(10));
            let expected = (at..at + sectors).find(|sector| flags[*sector as usize]);
            assert_eq!(bad.first_in(at, sectors as u32), expected);
            if rng.chance(1, 8)
                && let Some(sector) = expected
            {
                bad.heal(sector);
                let down = (0..=sector).rev().take_while(|s| flags[*s as usize]).last();
                let up = (sector..40).take_while(|s| flags[*s as usize]).last();
                flags[down.unwrap() as usize..=up.unwrap() as usize].fill(false);
            }
        }
    }

    const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

    fn device(text: &str) -> Result<Device, DeviceError> {
        registry::parse(&["memory", text].join(if text.is_empty() { "" } else { "," }), &HOST)
    }

    fn params(text: &str) -> MemoryParams {
        match device(text).expect(text).model {
            crate::Model::Memory(params, _) => params,
            _ => unreachable!("it was asked for by name"),
        }
    }

    #[test]
    fn every_parameter_in_the_table_takes_its_own_default() {
        assert_eq!(params(""), MemoryParams::default());
        for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
            let given = params(&format!("{}={}", parameter.name, parameter.default));
            assert_eq!(given, MemoryParams::default(), "{}", parameter.name);
        }
    }

    /// No parameter is accepted and then ignored: each changes the device or leaves a note.
    #[test]
    fn every_parameter_in_the_table_has_an_effect() {
        for parameter in &PARAMETERS {
            let other = match parameter.name {
                "use_per_node_hctx"
                | "discard"
                | "log"
                | "badblocks_once"
                | "badblocks_partial_io" => "1",
                "bs" | "blocksize" => "1024",
                "irqmode" | "fua" => "0",
                "badblocks" => "+1-2",
                _ => "3",
            };
            let text = format!("{}={other}", parameter.name);
            let noted = !device(&text).expect("a value it can have").notes.is_empty();
            assert!(noted || params(&text) != MemoryParams::default(), "{text} was ignored");
        }
    }

    #[test]
    fn the_shape_says_what_a_crash_may_take() {
        let cache = |text: &str| device(text).expect(text).shape.cache;
        assert_eq!(cache(""), WriteCache::Through);
        assert_eq!(cache("cache_size=1"), WriteCache::Back { fua: true });
        assert_eq!(cache("cache=1,fua=0"), WriteCache::Back { fua: false });
        assert_eq!(params("size=2,cache=9").cache_size, 2);
    }

    #[test]
    fn what_cannot_be_or_has_no_effect_is_said() {
        let error = device("badblocks=7").expect_err("no range").to_string();
        assert!(error.contains("badblocks=7 is not possible; accepted: +START-END"), "{error}");
        assert!(device("cache_size=-1").is_err() && device("bs=1536").is_err());
        for text in ["fua=1", "seed=1,irqmode=0", "size=1,badblocks=+0-2048", "size=1,cache=2"] {
            assert_eq!(device(text).expect(text).notes.len(), 1, "{text}");
        }
        let bad = params("badblocks=+8-15,badblocks=-10-11").badblocks;
        assert_eq!(bad.ranges().collect::<Vec<_>>(), [(8, 9), (12, 15)]);
    }

    const SECTORS: usize = 64;

    /// The model of a store: arrays with a byte for each sector.
    struct Model {
        newest: [u8; SECTORS],
        durable: [u8; SECTORS],
        dirty: [bool; SECTORS],
        owed: [bool; SECTORS],
    }

    impl Model {
        fn put(&mut self, at: usize, byte: u8, landing: Landing) {
            self.newest[at] = byte;
            self.dirty[at] = true;
            if landing == Landing::Durable {
                self.write_back(at);
            }
        }

        fn write_back(&mut self, at: usize) {
            self.durable[at] = self.newest[at];
            (self.dirty[at], self.owed[at]) = (false, false);
        }

        fn complete(&mut self, at: usize, sure: bool) {
            if sure {
                self.write_back(at);
            } else {
                self.owed[at] |= self.dirty[at];
            }
        }

        fn flush(&mut self) {
            (0..SECTORS).for_each(|at| {
                if self.owed[at] {
                    self.write_back(at);
                }
            });
        }
    }

    /// Performs one operation on both. Zeroing skips pages that are neither stored nor dirty, so the model asks the
    /// store for those.
    fn step(rng: &mut Rng, store: &mut Store, model: &mut Model, byte: u8) {
        let first = rng.below(60);
        let sectors = 1 + rng.below((SECTORS as u64 - first).min(20)) as u32;
        let extent = Extent { sector: first, sectors };
        let range = first as usize..first as usize + sectors as usize;
        let landing = if rng.chance(1, 3) { Landing::Durable } else { Landing::Volatile };
        match rng.below(5) {
            0 | 1 => {
                store.write(extent, landing, fill_with(byte)).expect("it fits");
                range.for_each(|at| model.put(at, byte, landing));
            }
            2 => {
                let there =
                    |page: u64| store.durable_for_test().numbers(page..page + 1).count() > 0;
                let dirty = |page: usize| model.dirty[page * 8..][..8].contains(&true);
                let known: Vec<_> = (0..8).map(|page| there(page as u64) || dirty(page)).collect();
                store.zero(extent, landing);
                range.filter(|at| known[at / 8]).for_each(|at| model.put(at, 0, landing));
            }
            3 => {
                let sure = rng.chance(1, 3);
                store.complete(extent, sure);
                range.for_each(|at| model.complete(at, sure));
            }
            _ => {
                let before = store.begin_flush();
                store.end_flush(before);
                model.flush();
            }
        }
    }

    #[test]
    fn the_store_agrees_with_arrays() {
        let whole = Extent { sector: 0, sectors: SECTORS as u32 };
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut store = Store::new(&params("cache_size=1"));
            let mut model = Model {
                newest: [0; SECTORS],
                durable: [0; SECTORS],
                dirty: [false; SECTORS],
                owed: [false; SECTORS],
            };
            for byte in 1..=200 {
                step(&mut rng, &mut store, &mut model, byte);
                let (mut newest, mut durable) = ([0; SECTORS * 512], [0; SECTORS * 512]);
                let read = store.read(whole, |at, bytes| {
                    newest[at..][..bytes.len()].copy_from_slice(bytes);
                    Ok(())
                });
                read.expect("it can be read");
                store.durable_for_test().read_at(0, &mut durable);
                for at in 0..SECTORS {
                    let (newest, durable) =
                        (&newest[at * 512..][..512], &durable[at * 512..][..512]);
                    assert_eq!(newest, [model.newest[at]; 512], "seed {seed}, step {byte}, {at}");
                    assert_eq!(durable, [model.durable[at]; 512], "seed {seed}, step {byte}, {at}");
                }
            }
        }
    }

    /// A flush covers the writes that had completed when it began, whatever else is dirty when it ends.
    #[test]
    fn a_flush_covers_only_what_had_completed_when_it_began() {
        let mut store = Store::new(&params("cache_size=1"));
        let sector = |sector| Extent { sector, sectors: 1 };
        for at in 0..3 {
            store.write(sector(at), Landing::Volatile, fill_with(1)).expect("it fits");
        }
        store.complete(sector(0), false);
        let before = store.begin_flush();
        store.complete(sector(1), false);
        store.write(sector(0), Landing::Volatile, fill_with(2)).expect("it fits");
        store.end_flush(before);
        let page = store.durable_for_test().page(0);
        assert_eq!((page[0], page[512], page[1024]), (2, 0, 0));
    }

    fn fill_with(byte: u8) -> impl Fn(usize, &mut [u8]) -> blkmq_core::IoResult {
        move |_, out| {
            out.fill(byte);
            Ok(())
        }
    }

    #[test]
    fn a_full_cache_writes_back_in_ascending_order_and_goes_round() {
        let mut store = Store::new(&params("cache_size=1"));
        let write = |store: &mut Store, page: u64| {
            let extent = Extent { sector: page * 8, sectors: 8 };
            store.write(extent, Landing::Volatile, fill_with(1)).expect("it fits");
            (store.cached_pages(), store.durable_for_test().bytes() / PAGE as u64)
        };
        for page in 0..256 {
            assert_eq!(write(&mut store, page + 10), (page as usize + 1, 0));
        }
        assert_eq!(write(&mut store, 500), (256, 1));
        assert_eq!(store.durable_for_test().page(10)[0], 1, "the lowest went first");
        assert_eq!(write(&mut store, 3), (256, 2));
        assert_eq!(
            store.durable_for_test().page(11)[0],
            1,
            "then the next, and not the new lowest"
        );
    }

    #[test]
    fn zeroes_where_nothing_is_cost_nothing_and_whole_pages_are_dropped() {
        let mut store = Store::new(&params("cache_size=1"));
        let all = Extent { sector: 0, sectors: u32::MAX >> 9 };
        store.zero(all, Landing::Volatile);
        assert_eq!(store.cached_pages(), 0);
        let page = Extent { sector: 80, sectors: 8 };
        store.write(page, Landing::Durable, fill_with(1)).expect("it fits");
        store.zero(all, Landing::Volatile);
        assert_eq!((store.cached_pages(), store.durable_for_test().bytes()), (1, PAGE as u64));
        store.complete(all, true);
        assert_eq!((store.cached_pages(), store.durable_for_test().bytes()), (0, 0));
    }
}

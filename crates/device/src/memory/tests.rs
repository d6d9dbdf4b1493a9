use super::image::Extent;
use super::store::{Landing, Store};
use super::{PARAMETERS, *};
use crate::{Device, registry};
use blkmq_core::Rng;
use blkmq_engine::WriteCache;

const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

fn device(text: &str) -> Result<Device, DeviceError> {
    registry::parse(&["memory", text].join(if text.is_empty() { "" } else { "," }), &HOST)
}

fn params(text: &str) -> MemoryParams {
    match device(text).expect(text).model {
        crate::device::Model::Memory(params, _) => params,
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
            "use_per_node_hctx" | "discard" | "log" | "badblocks_once" | "badblocks_partial_io" => {
                "1"
            }
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

/// Performs one operation on both. Zeroing skips pages that are neither stored nor dirty, so the model asks the store
/// for those.
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
            let there = |page: u64| store.durable_for_test().numbers(page..page + 1).count() > 0;
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
                let (newest, durable) = (&newest[at * 512..][..512], &durable[at * 512..][..512]);
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
    assert_eq!(store.durable_for_test().page(11)[0], 1, "then the next, and not the new lowest");
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

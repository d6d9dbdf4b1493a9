//! Shares of modelled devices under bfq follow weights: those of groups, and those of owners.
//!
//! With default options, I/Os may reach the queue in different ways. One client serves all tenants, as in a server with
//! one loop, or each tenant has a client; every device has 4 tags and the scheduler the 8 slots that go with them, so
//! that most of the outstanding I/Os wait for a slot. The initial time in which bfq prefers new tenants (`low_latency`)
//! is not counted.
//!
//! The bytes that owners and groups read in 10 s are shares of time, since all owners read alike. Unequal loads, and
//! shares when an owner is preferred, are tested on the policy alone (`crates/sched/tests/bfq/fairness.rs`).

use blkmq_core::{GroupId, Instant, Nanos, Op, Owner, Rng, SECTOR_SIZE};
use blkmq_device::{Device, MachineShape, registry as devices};
use blkmq_engine::{Completion, Config, GroupSpec, GroupTree, Io, IoMax};
use blkmq_lab::simulation::{Program, Settings, Simulation};
use blkmq_lab::workload::{
    Amount, BlockSize, Depth, Generator, Job, Latencies, NoBuffers, PerDirection, Rw, Stream, Ties,
};
use blkmq_lab::{Client, Costs, Habits, Payload, Plan, Subject, Want, World};
use blkmq_sched::{Options, registry};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Sectors of an I/O.
const SECTORS: u32 = 8;

const NULL: &str = "null,submit_queues=1,hw_queue_depth=4,irqmode=2,completion_nsec=1000000";
const MEMORY: &str = "memory,submit_queues=1,hw_queue_depth=4,irqmode=2,completion_nsec=1000000";
const DISK: &str = "disk,hw_queue_depth=4";
const FLASH: &str = "flash,submit_queues=1,hw_queue_depth=4";

/// Tenants, each a group of its own, on one device.
#[derive(Clone, Copy)]
struct Case {
    device: &'static str,
    weights: &'static [u32],
    /// I/Os that each tenant keeps in flight.
    iodepth: u32,
    op: Op,
    /// The seconds from and up to which I/Os are counted.
    counted: (u64, u64),
}

/// I/Os that have ended, by tenant.
type Done = Rc<RefCell<Vec<u64>>>;

/// A client that reads or writes at random for some of the tenants.
struct Tenants {
    case: Case,
    tenants: Vec<usize>,
    groups: Vec<GroupId>,
    blocks: u64,
    in_flight: Vec<u32>,
    /// The tenant of each I/O in flight, by cookie.
    cookies: BTreeMap<u64, usize>,
    rng: Rng,
    done: Done,
}

fn second(second: u64) -> Instant {
    Instant::ZERO + Nanos::from_secs(second)
}

impl Client for Tenants {
    fn next(&mut self, now: Instant, _: u32) -> Want {
        if now >= second(self.case.counted.1) {
            return Want::Nothing;
        }
        let wanting = self.tenants.iter().filter(|t| self.in_flight[**t] < self.case.iodepth);
        // The tenant with the fewest in flight, so that none fills the batch.
        let Some(&tenant) = wanting.min_by_key(|tenant| self.in_flight[**tenant]) else {
            return Want::Completion;
        };
        self.in_flight[tenant] += 1;
        let sector = self.rng.below(self.blocks) * u64::from(SECTORS);
        let io = Io::new(self.case.op, sector, SECTORS, 0, 0);
        Want::Io(Io { group: self.groups[tenant], owner: Owner(tenant as u32 + 1), ..io })
    }

    fn submitted(&mut self, _: Instant, io: &Io<Payload>) {
        let tenant = self.groups.iter().position(|group| *group == io.group);
        self.cookies.insert(io.cookie, tenant.expect("an I/O of a tenant"));
    }

    fn ended(&mut self, now: Instant, completion: &Completion<Payload>) {
        assert_eq!(completion.result, Ok(()), "nothing fails here");
        let tenant = self.cookies.remove(&completion.cookie).expect("it is in flight");
        self.in_flight[tenant] -= 1;
        let (from, until) = self.case.counted;
        if (second(from)..second(until)).contains(&now) {
            self.done.borrow_mut()[tenant] += 1;
        }
    }
}

impl Case {
    fn groups(&self) -> GroupTree {
        let wanted = self.weights.iter().enumerate().map(|(tenant, weight)| GroupSpec {
            name: format!("tenant{tenant}"),
            parent: String::from("/"),
            weight: *weight,
            max: IoMax::default(),
            ..GroupSpec::default()
        });
        GroupTree::of(wanted.collect()).expect("a tree")
    }

    /// The number of I/Os that each tenant completes with `clients` clients.
    fn run(&self, clients: u16) -> Vec<u64> {
        let device = devices::parse(self.device, &MachineShape { cpus: clients, nodes: 1 });
        let device = device.expect("a virtual device");
        let tenants = 0..self.weights.len();
        let tree = self.groups();
        let groups = tenants
            .clone()
            .map(|tenant| tree.find(&format!("tenant{tenant}")).expect("it is in the tree"));
        let groups: Vec<GroupId> = groups.collect();
        let bfq = registry::find("bfq").expect("it is registered");
        let config = Config { submitters: clients, groups: tree, ..device.config() };
        let subject = Subject::new(config.scheduler(bfq), Nanos::from_secs(1), None);
        let subject = subject.expect("a possible queue");
        let done: Done = Rc::new(RefCell::new(vec![0; self.weights.len()]));
        let plans = (0..clients).map(|number| Plan {
            client: Box::new(Tenants {
                case: *self,
                tenants: tenants
                    .clone()
                    .filter(|t| t % usize::from(clients) == number.into())
                    .collect(),
                groups: groups.clone(),
                blocks: device.shape.limits.capacity / u64::from(SECTORS),
                in_flight: vec![0; self.weights.len()],
                cookies: BTreeMap::new(),
                rng: Rng::new(number.into()),
                done: Rc::clone(&done),
            }),
            habits: Habits::diligent(16),
            seed: number.into(),
        });
        let mut world = World::new(&subject, Costs::TYPICAL, plans.collect());
        world.finish(u64::MAX / 2).expect("nothing is broken");
        subject.check_at_rest().expect("nothing is broken");
        done.take()
    }

    /// Every tenant has its weight's part of all weights, within 5 %, with one client and with two.
    fn shares_follow_weights(&self) {
        for clients in [1, 2] {
            let done = self.run(clients);
            let all = done.iter().sum::<u64>() as f64;
            let weights = self.weights.iter().sum::<u32>();
            for (done, weight) in done.iter().zip(self.weights) {
                let due = all * f64::from(*weight) / f64::from(weights);
                let off = (*done as f64 / due - 1.0).abs();
                assert!(
                    off <= 0.05,
                    "{}, {clients} clients: {done} of {due:.0} due to weight {weight}",
                    self.device
                );
            }
        }
    }
}

const TWO: Case =
    Case { device: NULL, weights: &[300, 100], iodepth: 32, op: Op::Read, counted: (2, 22) };

/// 300 and 100, 64 I/Os outstanding: three to one, within 5 %.
fn three_to_one(case: Case) {
    for clients in [1, 2] {
        let done = case.run(clients);
        let ratio = done[0] as f64 / done[1] as f64;
        assert!((2.85..=3.15).contains(&ratio), "{}, {clients}: {done:?}", case.device);
    }
}

#[test]
fn weights_hold_on_null() {
    three_to_one(TWO);
    three_to_one(Case { op: Op::Write, ..TWO });
}

#[test]
fn weights_hold_on_a_memory_device_of_four_thousand_ios_a_second() {
    three_to_one(Case { device: MEMORY, ..TWO });
}

#[test]
fn weights_hold_on_a_disk() {
    three_to_one(Case { device: DISK, counted: (30, 330), ..TWO });
}

#[test]
fn weights_hold_on_flash() {
    three_to_one(Case { device: FLASH, counted: (10, 20), ..TWO });
}

#[test]
fn weights_hold_where_there_are_more_tenants_than_slots() {
    let weights = &[300, 100, 300, 100, 300, 100, 300, 100, 300, 100, 300, 100];
    Case { weights, iodepth: 8, ..TWO }.shares_follow_weights();
}

/// All owners read sequentially, and all owners read at random.
const WAYS: [Rw; 2] = [Rw::Read, Rw::RandRead];
/// I/Os that each owner keeps in flight in cases where the number matters little.
const IODEPTH: u32 = 8;
/// Slots for all I/Os that 64 owners can have in flight: without a slot, an owner cannot claim its share.
const SLOTS: u32 = 512;

/// The bytes that an owner or a group has read, and the bytes that were due to it.
struct Share {
    got: u64,
    due: u64,
    /// The bytes that all have read.
    all: u64,
}

impl Share {
    /// The distance from the due share, in hundredths of a percent of the device.
    fn error(&self) -> u64 {
        self.got.abs_diff(self.due) * 10_000 / self.all
    }
}

/// The shares that follow from the bytes and the weight of each.
fn shares(got: Vec<(u64, u64)>) -> Vec<Share> {
    let all = got.iter().map(|(got, _)| got).sum::<u64>();
    let weights = got.iter().map(|(_, weight)| weight).sum::<u64>();
    got.into_iter().map(|(got, weight)| Share { got, due: all * weight / weights, all }).collect()
}

/// The competitors: groups, each with a weight and a number of owners, all of which read alike.
struct Readers {
    device: &'static str,
    options: &'static str,
    groups: Vec<(u32, u32)>,
    rw: Rw,
    /// Bytes in an I/O.
    bs: u32,
    /// I/Os that each owner keeps in flight.
    depth: u32,
}

fn device(text: &str, cpus: u32) -> Device {
    devices::parse(text, &MachineShape { cpus: cpus as u16, nodes: 1 }).expect("a virtual device")
}

impl Readers {
    fn owners(&self) -> u32 {
        self.groups.iter().map(|(_, owners)| owners).sum()
    }

    fn tree(&self) -> GroupTree {
        let wanted = self.groups.iter().enumerate().map(|(number, (weight, _))| GroupSpec {
            name: format!("g{number}"),
            parent: String::from("/"),
            weight: *weight,
            max: IoMax::default(),
            ..GroupSpec::default()
        });
        GroupTree::of(wanted.collect()).expect("right")
    }

    fn job(&self) -> Job {
        // The regions of all owners are adjacent, within half of the device, in the fastest part of a disk.
        let bytes =
            device(self.device, self.owners()).shape.limits.capacity * u64::from(SECTOR_SIZE);
        let region = (bytes / 2 / u64::from(self.owners())).min(1 << 30) >> 20 << 20;
        Job {
            rw: self.rw,
            bs: PerDirection::all(BlockSize::Fixed(self.bs)),
            size: Some(Amount::Bytes(region)),
            offset_increment: Amount::Bytes(region),
            numjobs: self.owners(),
            depth: Depth { iodepth: self.depth, low: self.depth, ..Depth::default() },
            runtime: Some(Nanos::from_secs(10)),
            time_based: true,
            latencies: Latencies::NONE,
            ..Job::default()
        }
    }

    /// The share of each group, from the bytes that its owners have read.
    fn of_groups(&self, got: &[Vec<u64>]) -> Vec<Share> {
        let bytes = got.iter().map(|owners| owners.iter().sum());
        shares(bytes.zip(self.groups.iter().map(|(weight, _)| u64::from(*weight))).collect())
    }

    /// The bytes that each group's owners have read in 10 s.
    fn run(&self) -> Vec<Vec<u64>> {
        let (job, tree) = (self.job(), self.tree());
        let device = device(self.device, self.owners());
        let bytes = device.shape.limits.capacity * u64::from(SECTOR_SIZE);
        let bfq = registry::find("bfq").expect("it is registered");
        let config = Config {
            submitters: self.owners() as u16,
            depth: IODEPTH,
            nr_requests: Some(SLOTS),
            groups: tree.clone(),
            ..device.config()
        };
        let options = Options::parse(bfq.attributes, self.options).expect("options of bfq");
        let config = Config { options, ..config.scheduler(bfq) };
        // A waiting thread sleeps immediately: staying awake first would only slow down the simulation.
        let costs = Costs { spin: Nanos::ZERO, ..Costs::TYPICAL };
        let settings = Settings { costs, ..Settings::new(1) };
        let mut simulation = Simulation::new(config, settings).expect("a possible queue");
        let members = self.groups.iter().enumerate();
        let members = members.flat_map(|(group, (_, n))| (0..*n).map(move |_| group));
        let programs = members.zip(0..).map(|(group, thread)| {
            let generator = Generator::new(&job, thread, bytes).expect("a job that fits");
            let group = tree.find(&format!("g{group}")).expect("it is there");
            let stream = Stream {
                generator,
                verifier: None,
                owner: Owner(thread + 1),
                group,
                ties: Ties::default(),
            };
            Program {
                job: &job,
                stream,
                buffers: NoBuffers,
                course: false,
                journal: None,
                pid: thread,
            }
        });
        let done = simulation.run(programs).expect("everything ends");
        let mut bytes = done.iter().map(|done| done.tally.counts.iter().map(|c| c.bytes).sum());
        self.groups.iter().map(|(_, n)| bytes.by_ref().take(*n as usize).collect()).collect()
    }
}

/// `n` owners with weights from 1 to `n`.
fn ladder(n: u32) -> Vec<(u32, u32)> {
    (1..=n).map(|weight| (weight, 1)).collect()
}

const DISK_OF_BFQ: (&str, u32) = ("disk", 64 << 10);
const FLASH_OF_BFQ: (&str, u32) = ("flash,submit_queues=1", 1 << 20);
const SATA: (&str, u32) = ("flash,preset=sata", 256 << 10);
/// Block sizes so small that queues of random reads are seeky even on flash.
const SMALL: (&str, u32) = ("flash,preset=sata", 24 << 10);
/// No owner is preferred and no injection happens, and a turn is short enough that there are many in 10 s.
const EXACT: &str = "low_latency=0,injection=0,max_budget=512";
/// The sectors of `max_budget` in [`EXACT`].
const BUDGET: u64 = 512;

fn cases(
    device: (&'static str, u32),
    options: &'static str,
    n: u32,
) -> impl Iterator<Item = Readers> {
    let (device, bs) = device;
    WAYS.into_iter().map(move |rw| Readers {
        device,
        options,
        groups: ladder(n),
        rw,
        bs,
        depth: IODEPTH,
    })
}

/// Each owner's share of the device is within 2 % of its weight's; and its bytes are within 2 % of its due, plus one
/// turn: one budget, and the I/Os that it had in flight.
fn owners_have_their_weights(device: (&'static str, u32), counts: &[u32]) {
    for case in counts.iter().flat_map(|n| cases(device, EXACT, *n)) {
        let turn = BUDGET * u64::from(SECTOR_SIZE) + u64::from(IODEPTH * case.bs);
        for (share, weight) in case.of_groups(&case.run()).iter().zip(1..) {
            let line = format!(
                "{}, {:?}, weight {weight} of {}: {} bytes, due {}",
                case.device,
                case.rw,
                case.owners(),
                share.got,
                share.due
            );
            assert!(share.error() <= 200, "{line}");
            assert!(share.got.abs_diff(share.due) <= share.due / 50 + turn, "{line}");
        }
    }
}

#[test]
fn owners_have_their_weights_on_a_disk() {
    owners_have_their_weights(DISK_OF_BFQ, &[2, 8, 64]);
}

#[test]
fn owners_have_their_weights_on_nvme_flash() {
    owners_have_their_weights(FLASH_OF_BFQ, &[2, 8, 64]);
}

#[test]
fn owners_have_their_weights_on_sata_flash() {
    owners_have_their_weights(SATA, &[2, 8, 64]);
    owners_have_their_weights(SMALL, &[8]);
}

/// Groups of 100 and 300, with three owners and one: a quarter in three equal parts, and three quarters.
#[test]
fn groups_have_their_weights_and_owners_equal_parts_of_them() {
    for (device, bs) in [DISK_OF_BFQ, FLASH_OF_BFQ, SATA] {
        for rw in WAYS {
            let groups = vec![(100, 3), (300, 1)];
            let case = Readers { device, options: EXACT, groups, rw, bs, depth: IODEPTH };
            let got = case.run();
            let owners = got[0].iter().map(|bytes| (*bytes, 1)).chain([(got[1][0], 9)]);
            let owners = shares(owners.collect());
            for share in case.of_groups(&got).iter().chain(&owners) {
                assert!(share.error() <= 200, "{device}, {rw:?}: {got:?}");
            }
        }
    }
}

/// With turns of 125 ms, the default, 10 s are 80 turns: the same bounds, plus one turn.
#[test]
fn with_turns_of_the_usual_length_shares_are_as_exact_as_these_allow() {
    for device in [DISK_OF_BFQ, FLASH_OF_BFQ, SATA] {
        for case in [2, 8].into_iter().flat_map(|n| cases(device, "low_latency=0", n)) {
            for share in case.of_groups(&case.run()) {
                let (owners, rw) = (case.owners(), case.rw);
                assert!(share.error() <= 200 + 125, "{}, {rw:?}, {owners} owners", case.device);
            }
        }
    }
}

/// Two groups of weight 100 and 300, each with a process that reads in order, one I/O at a time. Both are raised at
/// first; with injection a disk of 15,000 revolutions read 35 MiB a second for them, and 203 without.
#[test]
fn sequential_readers_of_two_groups_lose_nothing_by_injection() {
    for device in
        ["disk,preset=sas15k,hw_queue_depth=4,reorder=0", "disk,preset=sas15k,hw_queue_depth=32"]
    {
        let read = |options| {
            let groups = vec![(100, 1), (300, 1)];
            let (rw, bs) = (Rw::Read, 64 << 10);
            let case = Readers { device, options, groups, rw, bs, depth: 1 };
            let shares = case.of_groups(&case.run());
            (shares[0].all, shares[0].error())
        };
        let [(all, _), (with, error)] = ["injection=0", ""].map(read);
        assert!(with * 100 >= all * 97, "{device}: {with} and {all} bytes");
        assert!(error <= 200 + 125, "{device}: {error}");
    }
}

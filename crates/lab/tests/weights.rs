//! Weights with default options: groups share a device by their weights under bfq, and their I/Os may reach the queue
//! in different ways.
//!
//! One client serves all tenants, as in a server with one loop, or each tenant has a client; every device has 4 tags
//! and the scheduler the 8 slots that go with them, so that most of the outstanding I/Os wait for a slot. The initial
//! time in which bfq prefers new tenants (`low_latency`) is not counted.

use blkmq_core::{GroupId, Instant, Nanos, Op, Owner, Rng};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{Completion, Config, GroupSpec, GroupTree, Io, IoMax};
use blkmq_lab::{Client, Costs, Habits, Payload, Plan, Subject, Want, World};
use blkmq_sched::registry;
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
struct Program {
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

impl Client for Program {
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
            client: Box::new(Program {
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

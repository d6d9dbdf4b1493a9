//! The bound that is found: on a device of some servers, each of which does one request at a time.

use blkmq_core::{GroupIndex, IoMeta, Nanos, Op, RequestId};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, GroupChange, Pick, registry};

/// The time that a server needs for a request.
const SERVICE: u64 = 100_000;
const SERVERS: usize = 8;
pub(super) const SLOTS: u32 = 256;
pub(super) const SECOND: Nanos = Nanos(1_000_000_000);

/// Tenants with weights, each with so many random reads outstanding, and a device that takes everything.
pub(super) struct Device {
    pub(super) driver: Driver,
    /// I/Os that each tenant has outstanding, and those that it keeps.
    outstanding: Vec<u32>,
    depths: Vec<u32>,
    /// The operation of each tenant, and the time that a server needs for it.
    ops: Vec<(Op, u64)>,
    /// When each server is free.
    free: [u64; SERVERS],
    /// The device reports requests that have ended at multiples of this time only, all of them together; 1: each by itself.
    reports: u64,
    /// By so many percent each server becomes slower and faster, at random, for 70 ms each.
    varies: u64,
    /// Requests in the device, with the time of their end.
    inside: Vec<(u64, RequestId)>,
    sector: u64,
}

impl Device {
    pub(super) fn new(options: &str, tenants: &[(u32, u32)]) -> Self {
        let factory = registry::find("mclock").expect("it is registered");
        Self::under(Driver::of(factory, SLOTS, options), tenants)
    }

    /// Under another policy.
    pub(super) fn under(mut driver: Driver, tenants: &[(u32, u32)]) -> Self {
        for (group, (weight, _)) in (1..).map(GroupIndex).zip(tenants) {
            let parent = GroupIndex::ROOT;
            driver.regroup(GroupChange::Added { group, parent, weight: *weight });
        }
        Self {
            driver,
            outstanding: vec![0; tenants.len()],
            depths: tenants.iter().map(|(_, depth)| *depth).collect(),
            ops: vec![(Op::Read, SERVICE); tenants.len()],
            free: [0; SERVERS],
            reports: 1,
            varies: 0,
            inside: Vec::new(),
            sector: 0,
        }
    }

    /// Gives each tenant an operation, and the time that a server needs for it.
    pub(super) fn doing(self, ops: &[(Op, u64)]) -> Self {
        Self { ops: ops.to_vec(), ..self }
    }

    /// Lets the device report ends once in this time, all of them together.
    fn reporting(self, reports: u64) -> Self {
        Self { reports, ..self }
    }

    /// Makes the device slower and faster by so many percent.
    fn varying(self, varies: u64) -> Self {
        Self { varies, ..self }
    }

    /// The part of its time, in percent, that a server needs for a request.
    fn pace(&self, now: u64) -> u64 {
        let random = (now / 70_000_000).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        100 - self.varies + random % (2 * self.varies + 1)
    }

    fn tenant(&self, rq: RequestId) -> usize {
        usize::from(self.driver.meta(rq).group.0) - 1
    }

    fn submit(&mut self) {
        for tenant in 0..self.depths.len() {
            while self.outstanding[tenant] < self.depths[tenant] {
                self.sector += 1_000;
                let group = GroupIndex(tenant as u16 + 1);
                let io = IoMeta { group, ..IoMeta::new(self.ops[tenant].0, self.sector, 8) };
                self.driver.insert_meta(io, At::Tail).expect("slots enough");
                self.outstanding[tenant] += 1;
            }
        }
    }

    fn issue(&mut self) {
        while let Pick::Issue(rq) = self.driver.pick() {
            let (now, tenant) = (self.driver.now().as_nanos(), self.tenant(rq));
            let span = self.ops[tenant].1 * self.pace(now) / 100;
            let server = self.free.iter_mut().min().expect("there are some");
            *server = (*server).max(now) + span;
            self.inside.push((server.next_multiple_of(self.reports), rq));
        }
    }

    /// Lets `span` pass; returns the requests served, by tenant, and the most in the device.
    pub(super) fn run(&mut self, span: Nanos) -> (Vec<u64>, usize) {
        let end = (self.driver.now() + span).as_nanos();
        let (mut served, mut most) = (vec![0; self.depths.len()], 0);
        loop {
            // The device is refilled after all that are reported together.
            let now = self.driver.now().as_nanos();
            if self.reports == 1 || self.inside.iter().all(|(at, _)| *at > now) {
                self.submit();
                self.issue();
            }
            most = most.max(self.inside.len());
            let next = (0..self.inside.len()).min_by_key(|at| self.inside[*at].0);
            let (at, rq) = self.inside.swap_remove(next.expect("somebody has requests"));
            if at >= end {
                self.inside.push((at, rq));
                return (served, most);
            }
            self.driver.advance(Nanos(at - self.driver.now().as_nanos()));
            let tenant = self.tenant(rq);
            self.driver.complete(rq);
            self.outstanding[tenant] -= 1;
            served[tenant] += 1;
        }
    }
}

const FULL: u64 = SERVERS as u64 * SECOND.0 / SERVICE;

#[test]
fn the_device_holds_what_it_needs_and_weights_decide_the_rest() {
    let mut device = Device::new("", &[(300, 32), (100, 32)]);
    device.run(Nanos(3 * SECOND.0));
    let (served, _) = device.run(SECOND);
    let all = served[0] + served[1];
    assert!(all >= FULL / 100 * 97, "{served:?} of {FULL}");
    assert!((served[0] * 1_000 / all).abs_diff(750) <= 10, "{served:?}");
    // A request costs 117 us by the guess for devices that do not rotate.
    let bound = device.driver.shown("bound_nsec") / 117_398;
    assert!((SERVERS as u64 - 1..=SERVERS as u64 + 3).contains(&bound), "{bound} requests");
}

/// A thread that reaps several completions refills the device after all of them, so that fewer requests are in it, at a
/// completion, than the bound allows.
#[test]
fn a_device_that_completes_many_at_once_keeps_its_rate() {
    for reports in [2, 4, 8].map(|parts| SERVICE / parts) {
        let mut device = Device::new("", &[(300, 32), (100, 32)]).reporting(reports);
        device.run(Nanos(10 * SECOND.0));
        let (served, _) = device.run(SECOND);
        let all = served[0] + served[1];
        assert!(all >= FULL / 100 * 97, "{reports}: {served:?} of {FULL}");
        assert!((served[0] * 1_000 / all).abs_diff(750) <= 10, "{reports}: {served:?}");
    }
}

/// Virtual machines share disks and processors, whose rates may be halved and doubled from one moment to the next.
#[test]
fn a_device_that_varies_by_itself_is_shared_by_weight() {
    for varies in [20, 40, 60] {
        let mut device = Device::new("", &[(300, 32), (100, 32)]).varying(varies);
        let mut none = Device::new("learn=0", &[(300, 32), (100, 32)]).varying(varies);
        let [served, free] = [&mut device, &mut none].map(|it| {
            it.run(Nanos(5 * SECOND.0));
            it.run(Nanos(20 * SECOND.0)).0
        });
        let (all, most) = (served[0] + served[1], free[0] + free[1]);
        assert!(all >= most / 100 * 95, "{varies} %: {served:?} of {most}");
        let share = served[0] * 1_000 / all;
        assert!((700..=765).contains(&share), "{varies} %: {served:?}");
    }
}

#[test]
fn without_learning_the_device_takes_everything_and_weights_decide_nothing() {
    let mut device = Device::new("learn=0", &[(300, 32), (100, 32)]);
    let (served, most) = device.run(SECOND);
    assert_eq!((most, device.driver.shown("bound_nsec")), (64, 0));
    assert!(served[0].abs_diff(served[1]) < FULL / 50, "{served:?}");
}

#[test]
fn what_was_found_stays_when_learning_ends() {
    let mut device = Device::new("", &[(300, 32), (100, 32)]);
    device.run(Nanos(2 * SECOND.0));
    device.driver.set("learn", 0);
    let before = device.driver.shown("bound_nsec");
    let (served, _) = device.run(Nanos(5 * SECOND.0));
    let all = served[0] + served[1];
    assert!((served[0] * 1_000 / all).abs_diff(750) <= 10, "{served:?}");
    assert_eq!(device.driver.shown("bound_nsec"), before);
}

#[test]
fn a_tenant_alone_is_not_bounded_and_a_told_device_neither() {
    let mut alone = Device::new("", &[(300, 32), (100, 0)]);
    alone.run(SECOND);
    assert_eq!((alone.run(SECOND).1, alone.driver.shown("bound_nsec")), (32, 0));
    for told in ["rrandiops=80000", "wbps=1000000000"] {
        let mut device = Device::new(told, &[(300, 32), (100, 32)]);
        device.run(SECOND);
        assert_eq!((device.run(SECOND).1, device.driver.shown("bound_nsec")), (64, 0), "{told}");
    }
}

#[test]
fn a_bound_ends_with_the_competition() {
    let mut device = Device::new("", &[(300, 32), (100, 32)]);
    device.run(SECOND);
    assert!(device.driver.shown("bound_nsec") > 0);
    device.depths[1] = 0;
    device.run(SECOND);
    assert_eq!((device.run(SECOND).1, device.driver.shown("bound_nsec")), (32, 0));
}

/// Six I/Os of each tenant are twelve, of which the heavier one has half; eight fill the servers, and leave some waiting.
#[test]
fn a_share_is_worth_part_of_the_rate() {
    let mut device = Device::new("", &[(300, 6), (100, 6)]);
    device.run(Nanos(3 * SECOND.0));
    let (served, _) = device.run(Nanos(2 * SECOND.0));
    let all = served[0] + served[1];
    assert!(all >= 2 * FULL / 100 * 95, "{served:?} of {}", 2 * FULL);
    assert!((served[0] * 1_000 / all).abs_diff(750) <= 30, "{served:?}");
    // One I/O beside 32 needs a device of one server for its half, which is not worth it.
    let mut device = Device::new("", &[(100, 1), (100, 32)]);
    device.run(Nanos(3 * SECOND.0));
    let (served, _) = device.run(SECOND);
    assert!(served[0] + served[1] >= FULL / 100 * 95, "{served:?}");
}

/// Requests of different groups never merge; those of one group do, but not to such a length that others wait for it.
#[test]
fn requests_stay_short_while_groups_compete() {
    for (options, most) in [("", 256), ("merge_kib=512", 1_024), ("merge_kib=0", u32::MAX)] {
        let factory = registry::find("mclock").expect("it is registered");
        let mut driver = Driver::of(factory, 8, options);
        let (group, parent) = (GroupIndex(1), GroupIndex::ROOT);
        driver.regroup(GroupChange::Added { group, parent, weight: 100 });
        let io = |group, sector, sectors| IoMeta {
            group: GroupIndex(group),
            ..IoMeta::new(Op::Write, sector, sectors)
        };
        let into = driver.insert_meta(io(1, 0, 200), At::Tail).expect("a slot is free");
        let fits = |driver: &Driver, sectors| driver.may_merge(into, &io(1, 200, sectors));
        assert!(fits(&driver, 100_000), "it is alone");
        driver.insert_meta(io(0, 9_000, 8), At::Tail).expect("a slot is free");
        assert!(fits(&driver, 56));
        for sectors in [57, 825, 100_000] {
            assert_eq!(fits(&driver, sectors), 200 + sectors <= most, "'{options}': {sectors}");
        }
    }
}

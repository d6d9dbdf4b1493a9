//! Groups of owners: a tree with names, weights, limits and floors, and the statistics of groups.
//!
//! The tree is part of a queue's [`Plan`](crate::Plan), so it can be changed while I/O runs. Schedulers that share by
//! weight are notified of it ([`GroupChange`]); the submitters enforce limits, under every scheduler (`throttle.rs`).
//! The tree does not say which owners are in a group: every I/O names its group.
//!
//! The limits of a group are here: [`IoMax`], spelled as `io.max` in cgroup v2, with totals and bursts in addition; and
//! [`Promise`], its floor and ceiling that a scheduler keeps, and its latency goals, as words.

use crate::groups::times::Account;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use blkmq_core::{GroupId, GroupIndex, Nanos};
use blkmq_sched::{
    Capacity, Floors, Goal, GoalKind, GroupChange, GroupIo, GroupStats, Guarantee, Note, Rate,
    Reading, StatsLevel, Tallies, Tally,
};
pub(crate) use meters::{Meters, Stand};
use std::fmt;
pub(crate) use times::{Counted, Spent, WaitSums};
pub use times::{IoTimes, KINDS, Latencies, SlowIo, Wait};
pub(crate) use tree::DEFAULT_WEIGHT;
pub use tree::{
    Group, GroupError, GroupSpec, GroupTree, MAX_GROUPS, MAX_WEIGHT, weight_of_io_weight,
};

mod meters;
mod times;
mod tree;

/// Floors that the scheduler cannot keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloorsError {
    /// The scheduler.
    pub scheduler: &'static str,
    /// The share of the capacity that the floors take, in hundredths of a percent.
    pub promised: u64,
    /// The capacity; `None` if the scheduler keeps no floors.
    pub capacity: Option<Capacity>,
}

impl fmt::Display for FloorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheduler, promised, capacity } = self;
        match capacity {
            None => write!(
                f,
                "{scheduler} keeps no floors, and groups have reserve_iops, reserve_bps or reserve_percent; accepted: \
                 scheduler mclock, or the word overcommit"
            ),
            Some(Capacity { iops, bps, safe_percent }) => write!(
                f,
                "the floors of all groups take {}.{:02} % of the device, of which {safe_percent} % are safe (of \
                 {iops} IOPS and {bps} bytes a second, as {scheduler} is told by rrandiops and rbps); accepted: smaller \
                 floors, the capacity as it is, or the word overcommit",
                promised / 100,
                promised % 100,
            ),
        }
    }
}

impl std::error::Error for FloorsError {}

impl GroupTree {
    /// The sum of the floors directly below `parent`, in millionths of `capacity`. A group counts with its own floor,
    /// or with the floors below it if these are larger.
    fn floors_below(&self, parent: GroupId, capacity: &Capacity) -> u128 {
        let children = self.iter().filter(|group| group.parent == parent);
        let floor = |rate: &Rate| capacity.millionths(rate);
        children
            .map(|group| {
                floor(&group.promise.guarantee.reserve).max(self.floors_below(group.id, capacity))
            })
            .sum()
    }

    /// Checks that `scheduler`, which has this capacity, can keep all floors.
    pub(crate) fn check_floors(
        &self,
        scheduler: &'static str,
        capacity: Option<Capacity>,
    ) -> Result<(), FloorsError> {
        let without_floors = self.iter().all(|group| group.promise.guarantee.reserve.is_none());
        if without_floors || self.iter().any(|group| group.promise.overcommit) {
            return Ok(());
        }
        let promised = capacity.map_or(0, |of| self.floors_below(GroupId::ROOT, &of));
        let safe = capacity.map_or(0, |of| u128::from(of.safe_percent) * 10_000);
        if capacity.is_some() && promised <= safe {
            return Ok(());
        }
        let promised = u64::try_from(promised / 100).unwrap_or(u64::MAX);
        Err(FloorsError { scheduler, promised, capacity })
    }
}

/// The statistics that are kept about groups, and when they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatsMode {
    /// The level of detail.
    pub level: StatsLevel,
    /// Count each event immediately, while the elevator runs, instead of after the run, for comparison.
    #[doc(hidden)]
    pub inline: bool,
    /// Count where the time of requests goes ([`Queue::times`](crate::Queue::times)).
    pub times: bool,
    /// With `times`: list requests that take longer than this ([`Queue::take_slow`](crate::Queue::take_slow)); zero for
    /// no list.
    pub slow: Nanos,
}

/// The numbers of a queue's groups.
///
/// A policy notes events of groups while its elevator runs. The notes are summed up beside the elevator. Every few
/// passes the runner moves the sums to the ledger, and counts them after it has released the elevator; if another
/// thread is counting at that moment, the sums stay with the elevator. `inline` counts each note immediately, under the
/// run, as Linux did before its patches on this (`spec/history.md` section 5). It exists for comparison (decision
/// 0008).
pub(crate) struct Ledger(Mutex<Book>);

/// The numbers, and the sums that have yet to be added to them.
pub(crate) struct Book {
    stats: GroupStats,
    incoming: Vec<Tally>,
    pub(crate) account: Account,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Book {
            stats: GroupStats::new(),
            incoming: Vec::new(),
            account: Account::default(),
        }))
    }

    /// Locks the book, waiting for another thread that counts.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        // If a panic has left numbers half counted, they are only a little off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves `notes` into the book, unless another thread is counting. [`Book::count`] then counts them.
    pub(crate) fn try_take(&self, notes: &mut Tallies) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.0.try_lock().ok()?;
        book.take(notes);
        Some(book)
    }

    /// Counts `notes`, waiting for another thread that counts.
    pub(crate) fn count(&self, notes: &mut Tallies) {
        let mut book = self.book();
        book.take(notes);
        book.count();
    }

    /// Takes over the times counted by elevator number `shard`.
    pub(crate) fn count_times(&self, shard: u16, counted: &mut Counted) {
        self.book().account.take(shard, counted);
    }

    /// Takes over the counts of floors from an elevator.
    pub(crate) fn count_floors(&self, floors: &mut Floors) {
        let account = &mut self.book().account;
        floors.take(&mut |report| account.add_floor(&report));
    }

    /// Counts one note immediately.
    pub(crate) fn count_one(&self, note: &Note) {
        self.book().stats.apply(note);
    }

    /// Applies changes of the tree of groups.
    pub(crate) fn regroup(&self, changes: impl IntoIterator<Item = GroupChange>) {
        let mut book = self.book();
        book.count();
        changes.into_iter().for_each(|change| {
            book.stats.regroup(change);
            book.account.regroup(change);
        });
    }

    /// The I/O of a group and its descendants; `None` if it is not counted.
    pub(crate) fn io(&self, group: GroupIndex) -> Option<GroupIo> {
        let mut book = self.book();
        book.count();
        book.stats.io(group)
    }

    /// A statistic of a group; `None` if it is not counted.
    pub(crate) fn read(&self, group: GroupIndex, name: &str) -> Option<Reading> {
        let mut book = self.book();
        book.count();
        book.stats.read(group, name)
    }
}

impl Book {
    /// Takes over `notes`, to be counted later.
    pub(crate) fn take(&mut self, notes: &mut Tallies) {
        notes.drain(|tally| self.incoming.push(tally));
    }

    /// Adds the sums taken so far to the numbers.
    pub(crate) fn count(&mut self) {
        let Self { stats, incoming, .. } = self;
        incoming.drain(..).for_each(|tally| stats.apply_tally(&tally));
    }
}

/// Limits per second; `None` is `max`, no limit. The limits of the ancestors apply as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoMax {
    /// Bytes read per second.
    pub rbps: Option<u64>,
    /// Bytes written per second.
    pub wbps: Option<u64>,
    /// Reads per second.
    pub riops: Option<u64>,
    /// Writes, discards, writes of zeroes, and flushes without data, per second.
    pub wiops: Option<u64>,
    /// Bytes per second in both directions together.
    pub bps: Option<u64>,
    /// I/Os per second in both directions together.
    pub iops: Option<u64>,
    /// By how much, and for how long, each limit may be exceeded after a time of less use.
    pub burst: Burst,
}

/// Why a text is not an `io.max`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "io.max: '{word}' is not possible; accepted: rbps=N, wbps=N, riops=N, wiops=N, bps=N, iops=N, \
     N a number from 1 or 'max'; burst={}; burst_length={}",
    Burst::FACTORS,
    Burst::LENGTHS
)]
pub struct IoMaxError {
    /// The word that was not understood.
    pub word: String,
}

/// The words of cgroup v2 in its order, and then the other words that limit anything.
impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Self::default().pairs();
        let shown = self.pairs().into_iter().zip(none).enumerate();
        let shown = shown.filter(|(at, (pair, none))| *at < 4 || pair != none);
        let pairs: Vec<String> = shown.map(|(_, (pair, _))| pair).collect();
        f.write_str(&pairs.join(" "))
    }
}

impl IoMax {
    /// The words without values.
    pub const WORDS: [&str; 8] =
        ["rbps", "wbps", "riops", "wiops", "bps", "iops", "burst", "burst_length"];

    /// Every word with its value, in the order of [`WORDS`](Self::WORDS).
    fn pairs(&self) -> [String; 8] {
        let rates = self.rates();
        std::array::from_fn(|at| {
            let value = match rates.get(at) {
                Some(Some(rate)) => rate.to_string(),
                Some(None) => "max".to_owned(),
                None if at == 6 => self.burst.factor().to_string(),
                None => self.burst.seconds().to_string(),
            };
            format!("{}={value}", Self::WORDS[at])
        })
    }

    /// The words whose values differ from those of `old`. With these words [`set`](Self::set) turns `old` into these
    /// limits.
    #[must_use]
    pub fn changes_of(&self, old: &Self) -> String {
        let both = self.pairs().into_iter().zip(old.pairs());
        let changed: Vec<String> =
            both.filter(|(new, old)| new != old).map(|(new, _)| new).collect();
        changed.join(" ")
    }

    /// The rates, in the order of [`WORDS`](Self::WORDS).
    #[must_use]
    pub fn rates(&self) -> [Option<u64>; 6] {
        [self.rbps, self.wbps, self.riops, self.wiops, self.bps, self.iops]
    }

    /// Returns whether there is any limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.rates().iter().any(Option::is_some)
    }

    /// Returns the limits with the changes in `text`: pairs like `rbps=1048576 wiops=max burst=2.5`, separated by spaces.
    ///
    /// # Errors
    /// For the first word that is not such a pair.
    pub fn set(mut self, text: &str) -> Result<Self, IoMaxError> {
        for word in text.split_whitespace() {
            let refused = || IoMaxError { word: word.into() };
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            let rate = match name {
                "burst" | "burst_length" => {
                    self.burst = self.burst.set(name, value).ok_or_else(refused)?;
                    continue;
                }
                "rbps" => &mut self.rbps,
                "wbps" => &mut self.wbps,
                "riops" => &mut self.riops,
                "wiops" => &mut self.wiops,
                "bps" => &mut self.bps,
                "iops" => &mut self.iops,
                _ => return Err(refused()),
            };
            *rate = match value {
                "max" => None,
                number => Some(number.parse().ok().filter(|n| *n > 0).ok_or_else(refused)?),
            };
        }
        Ok(self)
    }
}

/// A group that has used less than its limits for long enough may use a multiple of them for a while, like QEMU's
/// `iops-total-max` and `iops-total-max-length`. The credit is the excess over the limit in that time. It refills at
/// the rate of the limit, and is full at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// The multiple, in thousandths: 1000, no burst, to 1,000,000.
    pub thousandths: u32,
    /// How long a burst may last, from full credit: 1 ms to an hour. A second by default.
    pub length: Nanos,
}

impl Default for Burst {
    fn default() -> Self {
        Self { thousandths: ONE, length: Nanos::from_secs(1) }
    }
}

/// A factor of 1.
const ONE: u32 = 1000;

/// The largest factor.
const MOST: u32 = 1000 * ONE;

/// The longest burst, in milliseconds.
const LONGEST: u64 = 3_600_000;

impl Burst {
    /// The factors that are accepted, in words.
    pub const FACTORS: &str = "1 to 1000";
    /// The lengths that are accepted, in words.
    pub const LENGTHS: &str = "0.001 to 3600 seconds";

    /// Returns whether the limit may be exceeded.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.thousandths > ONE
    }

    /// The time in which the rate of the limit makes up the whole credit.
    pub(super) fn credit(&self) -> Nanos {
        let beyond = u128::from(self.thousandths.saturating_sub(ONE));
        Nanos((u128::from(self.length.0) * beyond / u128::from(ONE)) as u64)
    }

    /// The multiple.
    fn factor(&self) -> f64 {
        f64::from(self.thousandths) / 1e3
    }

    /// The length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.length.0 as f64 / 1e9
    }

    /// The rate during a burst, for a limit of `rate`.
    #[must_use]
    pub fn of(&self, rate: u64) -> u64 {
        let most = u128::from(rate) * u128::from(self.thousandths) / u128::from(ONE);
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// The burst with another `burst` or `burst_length`; `None` if `value` is not possible.
    pub(super) fn set(mut self, name: &str, value: &str) -> Option<Self> {
        let value = thousandths(value)?;
        if name == "burst" {
            self.thousandths = u32::try_from(value).ok().filter(|n| (ONE..=MOST).contains(n))?;
        } else {
            self.length = Nanos::from_millis(Some(value).filter(|n| (1..=LONGEST).contains(n))?);
        }
        Some(self)
    }
}

/// A decimal number with at most three places, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(places) || places.len() > 3 {
        return None;
    }
    let scale = 10_u64.pow(3 - places.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(places.parse::<u64>().ok()? * scale)
}

/// The promise to a group: a floor and a ceiling in device time as counted by the scheduler `mclock`, and latency
/// goals, which work with every scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// The floor and the ceiling.
    pub guarantee: Guarantee,
    /// The latency goals, which are met as far as possible.
    pub goal: Goal,
    /// Floors may exceed the capacity of the scheduler. Setting this for one group applies to the whole tree, because
    /// all floors fall short then.
    pub overcommit: bool,
}

/// Why a text is not a promise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "promise: '{word}' is not possible; accepted: reserve_iops=N, reserve_bps=N, \
     reserve_percent=N, limit_iops=N, limit_bps=N, limit_percent=N, p99_read=TIME, p99_write=TIME, \
     p99_sync=TIME, goal_takes_at_most=0 to 100, N a number, TIME as in 500us, 20ms or 1s (a \
     number is microseconds), 0 for none, overcommit=0, overcommit=1"
)]
pub struct PromiseError {
    /// The word that was not understood.
    pub word: String,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rate) in [("reserve", self.guarantee.reserve), ("limit", self.guarantee.limit)] {
            let (iops, bps, percent) = (rate.iops, rate.bps, rate.percent);
            write!(f, "{name}_iops={iops} {name}_bps={bps} {name}_percent={percent} ")?;
        }
        for kind in GoalKind::ALL {
            write!(f, "{}={} ", kind.word(), micros(self.goal.of(kind)))?;
        }
        write!(f, "{TAKES}={} ", self.goal.takes_at_most)?;
        write!(f, "overcommit={}", u8::from(self.overcommit))
    }
}

/// The word for the most that goals take from other groups, in percent.
const TAKES: &str = "goal_takes_at_most";

/// The unit of goals.
const MICRO: Nanos = Nanos::from_micros(1);

/// The units for writing goals, longest first, in microseconds.
const UNITS: [(&str, u64); 3] = [("ms", 1_000), ("us", 1), ("s", 1_000_000)];

/// A time in whole microseconds, with the largest unit in which it is a whole number: `20ms`, `500us`, `1s`; 0 without
/// a unit.
pub(crate) fn micros(time: Nanos) -> String {
    let micros = time.0 / MICRO.0;
    let (unit, of) = match micros {
        0 => return "0".into(),
        n if n.is_multiple_of(1_000_000) => ("s", 1_000_000),
        n if n.is_multiple_of(1_000) => ("ms", 1_000),
        _ => ("us", 1),
    };
    format!("{}{unit}", micros / of)
}

/// The time in a text like `20ms`; a plain number is microseconds.
fn time(text: &str) -> Option<Nanos> {
    let with_unit = |(unit, of): (&str, u64)| Some((text.strip_suffix(unit)?, of));
    let (number, of) = UNITS.into_iter().find_map(with_unit).unwrap_or((text, 1));
    let micros = number.parse::<u64>().ok()?.checked_mul(of)?;
    Some(Nanos(micros.checked_mul(MICRO.0)?))
}

impl Promise {
    /// The words without values.
    pub const WORDS: [&str; 11] = [
        "reserve_iops",
        "reserve_bps",
        "reserve_percent",
        "limit_iops",
        "limit_bps",
        "limit_percent",
        "p99_read",
        "p99_write",
        "p99_sync",
        TAKES,
        "overcommit",
    ];

    /// Returns whether the value of this word is a time.
    #[must_use]
    pub fn is_time(word: &str) -> bool {
        word.starts_with("p99_")
    }

    /// Returns the promise with the changes in `text`: pairs like `reserve_iops=200 p99_read=20ms`, separated by
    /// spaces. A time has a unit of `us`, `ms` or `s`, or is a number of microseconds. 0 removes a part of the promise,
    /// except for `goal_takes_at_most`, a percentage.
    ///
    /// # Errors
    /// For the first word that is not such a pair.
    pub fn set(mut self, text: &str) -> Result<Self, PromiseError> {
        for word in text.split_whitespace() {
            let refused = || PromiseError { word: word.into() };
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            if let Some(kind) = GoalKind::ALL.into_iter().find(|kind| kind.word() == name) {
                *self.goal.of_mut(kind) = time(value).ok_or_else(refused)?;
                continue;
            }
            let number: u64 = value.parse().map_err(|_| refused())?;
            if name == "overcommit" {
                self.overcommit = match number {
                    0 => false,
                    1 => true,
                    _ => return Err(refused()),
                };
                continue;
            }
            if name == TAKES {
                let percent = u8::try_from(number).ok().filter(|percent| *percent <= 100);
                self.goal.takes_at_most = percent.ok_or_else(refused)?;
                continue;
            }
            let (which, unit) = name.split_once('_').ok_or_else(refused)?;
            let rate = match which {
                "reserve" => &mut self.guarantee.reserve,
                "limit" => &mut self.guarantee.limit,
                _ => return Err(refused()),
            };
            match unit {
                "iops" => rate.iops = number,
                "bps" => rate.bps = number,
                "percent" => rate.percent = u32::try_from(number).map_err(|_| refused())?,
                _ => return Err(refused()),
            }
        }
        Ok(self)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{GroupSpec, Promise};
    use blkmq_sched::Guarantee;

    const CAPACITY: Capacity = Capacity { iops: 1_000, bps: 100_000_000, safe_percent: 90 };

    fn tree(floors: &[(&str, &str, Rate)]) -> GroupTree {
        let wanted = |&(name, parent, reserve): &(&str, &str, Rate)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            promise: Promise {
                guarantee: Guarantee { reserve, ..Guarantee::default() },
                ..Promise::default()
            },
            ..GroupSpec::default()
        };
        GroupTree::of(floors.iter().map(wanted).collect()).expect("a tree")
    }

    fn iops(iops: u64) -> Rate {
        Rate { iops, ..Rate::default() }
    }

    #[test]
    fn what_is_below_a_group_is_part_of_its_floor() {
        let floors = [("a", "/", iops(500)), ("b", "a", iops(300)), ("c", "/", iops(400))];
        assert_eq!(tree(&floors).check_floors("mclock", Some(CAPACITY)), Ok(()));
        let more = [floors[0], ("b", "a", iops(501)), floors[2]];
        let error = tree(&more).check_floors("mclock", Some(CAPACITY)).expect_err("too much");
        assert_eq!(error.promised, 90_10);
        let text = error.to_string();
        assert!(text.contains("90.10 % of the device, of which 90 % are safe"), "{text}");
        assert!(text.contains("1000 IOPS and 100000000 bytes") && text.contains("overcommit"));
    }

    #[test]
    fn an_explicit_word_allows_what_cannot_be_kept() {
        let rates = Rate { iops: 300, bps: 30_000_000, percent: 31 };
        let mut tree = tree(&[("a", "/", rates)]);
        assert!(tree.check_floors("mclock", Some(CAPACITY)).is_err());
        let none = tree.check_floors("none", None).expect_err("it keeps none").to_string();
        assert!(none.contains("none keeps no floors") && none.contains("mclock"), "{none}");
        let promise = Promise::default().set("reserve_iops=2000 overcommit=1").expect("right");
        tree.set_promise("a", promise).expect("there");
        assert_eq!(tree.check_floors("mclock", Some(CAPACITY)), Ok(()));
        assert_eq!(tree.check_floors("none", None), Ok(()));
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(
            ["2", "2.5", "0.001", "10.25"].map(thousandths),
            [2000, 2500, 1, 10_250].map(Some)
        );
        for bad in ["", ".", "1.", ".5", "-1", "1.2345", "1e3", "99999999999999999999"] {
            assert_eq!(thousandths(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_credit_is_what_the_factor_takes_beyond_the_limit() {
        let burst = Burst { thousandths: 2500, length: Nanos::from_secs(4) };
        assert!(burst.is_any());
        assert_eq!((burst.credit(), burst.of(1001)), (Nanos::from_secs(6), 2502));
        let none = Burst::default();
        assert!(!none.is_any());
        assert_eq!((none.credit(), none.of(u64::MAX)), (Nanos::ZERO, u64::MAX));
        let most =
            Burst::default().set("burst", "1000").and_then(|b| b.set("burst_length", "3600"));
        assert_eq!(most.expect("the limits").credit(), Nanos::from_secs(3600 * 999));
        assert_eq!(Burst::default().set("burst", "1000.001"), None);
        assert_eq!(Burst::default().set("burst_length", "3600.001"), None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let max = IoMax::default().set("rbps=1048576 wiops=100").expect("right");
        assert_eq!(max.to_string(), "rbps=1048576 wbps=max riops=max wiops=100");
        assert_eq!(IoMax::default().set(&max.to_string()), Ok(max));
        assert_eq!(max.set("rbps=max wiops=max"), Ok(IoMax::default()));
        assert!(max.is_limited() && !IoMax::default().is_limited());
        let both = IoMax::default().set("iops=1000 burst=2.5 burst_length=0.25").expect("right");
        let words = "rbps=max wbps=max riops=max wiops=max iops=1000 burst=2.5 burst_length=0.25";
        assert_eq!(both.to_string(), words);
        assert_eq!(IoMax::default().set(words), Ok(both));
        assert_eq!(
            both.changes_of(&max),
            "rbps=max wiops=max iops=1000 burst=2.5 burst_length=0.25"
        );
        assert_eq!(max.set(&both.changes_of(&max)), Ok(both));
        assert_eq!(max.changes_of(&both), "rbps=1048576 wiops=100 iops=max burst=1 burst_length=1");
        for word in IoMax::WORDS {
            assert_ne!(IoMax::default().set(&format!("{word}=7")), Ok(IoMax::default()), "{word}");
        }
        assert!(!IoMax::default().set("burst=7").expect("right").is_limited(), "of nothing");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for bad in [
            "rbps",
            "rbps=",
            "rbps=0",
            "rbps=-1",
            "rbps=1k",
            "ops=1",
            "rbps=18446744073709551616",
            "burst=0.5",
            "burst=max",
            "burst_length=0",
        ] {
            let error = IoMax::default().set(bad).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("riops=N"), "{error}");
        }
    }

    mod promises {
        use super::*;

        #[test]
        fn what_is_written_is_read_back() {
            let promise = Promise::default()
                .set("reserve_iops=200 limit_percent=40 p99_read=2ms p99_sync=2500 goal_takes_at_most=97 overcommit=1");
            let promise = promise.expect("right");
            assert_eq!(
                promise.to_string(),
                "reserve_iops=200 reserve_bps=0 reserve_percent=0 limit_iops=0 limit_bps=0 limit_percent=40 p99_read=2ms p99_write=0 p99_sync=2500us goal_takes_at_most=97 overcommit=1"
            );
            assert_eq!(Promise::default().set(&promise.to_string()), Ok(promise));
            let gone =
                promise.set("reserve_iops=0 limit_percent=0 p99_read=0 p99_sync=0s goal_takes_at_most=90 overcommit=0");
            assert_eq!(gone, Ok(Promise::default()));
            for word in Promise::WORDS {
                assert_ne!(Promise::default().set(&format!("{word}=1")), Ok(Promise::default()));
            }
        }

        #[test]
        fn what_is_wrong_is_said() {
            for bad in [
                "iops=1",
                "reserve_iops",
                "reserve_iops=-1",
                "reserve_weight=1",
                "overcommit=2",
                "goal_takes_at_most=101",
                "p99_sync=2m",
                "p99_read=ms",
                "p99_write=99999999999999999s",
            ] {
                let error = Promise::default().set(bad).expect_err(bad).to_string();
                assert!(error.contains(bad) && error.contains("reserve_iops=N"), "{error}");
            }
        }
    }
}

//! Watches a running server: logs slow I/Os with their stages, I/Os that do not complete for as long as they are
//! outstanding, and changes of the devices.
//!
//! A separate thread checks once a second. The number of lines is bounded, however many I/Os are slow.

use crate::control::{State, counts};
use crate::disk::{Disk, Standing};
use crate::export::Table;
use crate::worker::Shared;
use blkmq::runtime::wall_clock_millis;
use blkmq::{Clock, Instant, Nanos, SlowIo};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The interval between checks.
const PERIOD: Duration = Duration::from_secs(1);
/// The maximum number of slow I/Os logged at a check.
const LINES: usize = 10;
/// I/Os older than this are reported, and again at twice the age.
pub(crate) const OLD: Nanos = Nanos::from_secs(10);
/// The maximum number of requests named in such a report.
const NAMED: usize = 4;
/// A certificate that expires within this many seconds, two weeks, is reported.
const SOON: u64 = 14 * DAY;
const DAY: u64 = 24 * 60 * 60;

/// The watching thread, which ends on drop.
#[derive(Debug)]
pub(crate) struct Watch {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let mut reported = vec![OLD; shared.disks.len()];
        let mut standings = Vec::from_iter(shared.disks.iter().map(Standing::new));
        let mut fares = Fares::default();
        let mut certificate = Ends { clock: Clock::start(), next: Instant::ZERO };
        let run = move || {
            while !is_stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(PERIOD);
                for (disk, next) in (0..).zip(&mut reported) {
                    log_slow(&shared, disk);
                    log_old(&shared, disk, next);
                }
                fares.look(&shared);
                shared.exports.sweep(&|| false);
                if let Some(tls) = &shared.tls {
                    certificate.look(tls.end(), wall_clock_millis() / 1000);
                }
                for (disk, standing) in shared.disks.iter().zip(&mut standings) {
                    standing.look(disk);
                }
            }
        };
        let thread = Builder::new().name("watch".to_owned()).spawn(run)?;
        Ok(Self { stopped, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// The exports that do not get what they were promised. This is logged if it lasts for several checks.
#[derive(Default)]
struct Fares(BTreeMap<String, (State, u32)>);

/// The number of checks.
const LASTS: u32 = 10;

impl Fares {
    /// Only where requests are counted. Stuck devices and errors are logged separately.
    fn look(&mut self, shared: &Shared) {
        let is_counting = |disk: &Disk| disk.service().queue().plan().stats.times;
        if !shared.disks.iter().any(is_counting) {
            return;
        }
        for one in counts(shared).exports {
            let (State::ShareMissed | State::GoalMissed | State::FloorMissed | State::Starved) =
                one.condition.state
            else {
                self.0.remove(&one.name);
                continue;
            };
            let export = one.name.clone();
            let (state, looks) = self.0.entry(one.name).or_default();
            *looks = if *state == one.condition.state { *looks + 1 } else { 1 };
            *state = one.condition.state;
            if *looks == LASTS {
                tracing::warn!(export, state = state.name(), "{}", one.condition.why);
            }
        }
    }
}

/// The expiry of the server's certificate, reported once a day when it is near.
struct Ends {
    clock: Clock,
    next: Instant,
}

impl Ends {
    fn look(&mut self, end: u64, today: u64) {
        let now = self.clock.now();
        let Some(text) = ending(end, today).filter(|_| now >= self.next) else { return };
        self.next = now + Nanos::from_secs(DAY);
        tracing::warn!("{text}");
    }
}

/// The line about a certificate that expires at `end`; both times are seconds since 1970.
fn ending(end: u64, today: u64) -> Option<String> {
    let renew = "renew it, and reload";
    match end.checked_sub(today) {
        None => Some(format!("the certificate of the server has expired; {renew}")),
        Some(left) if left < SOON => {
            let days = left / DAY;
            Some(format!("the certificate of the server ends within {} days; {renew}", days + 1))
        }
        Some(_) => None,
    }
}

fn log_slow(shared: &Shared, disk: usize) {
    let queue = shared.disks[disk].service().queue();
    if queue.plan().stats.slow == Nanos::ZERO {
        return;
    }
    // Collects the findings of the elevators.
    let _ = queue.times();
    let (slow, lost) = queue.take_slow();
    let exports = shared.exports.now();
    for io in slow.iter().take(LINES) {
        tracing::warn!("{}", line(io, &name(&exports, disk, io)));
    }
    let more = slow.len().saturating_sub(LINES) as u64 + lost;
    if more > 0 {
        tracing::warn!("and {more} more slow I/Os of {}", shared.disks[disk].name());
    }
}

/// The export of a request.
fn name(exports: &Table, disk: usize, io: &SlowIo) -> String {
    let mut all = exports.all().filter(|export| export.disk == disk);
    let of = all.find(|export| export.group.id().index() == io.group);
    of.map_or_else(
        || "an export that is gone".to_owned(),
        |it| format!("export '{}'", it.info.name),
    )
}

fn line(io: &SlowIo, export: &str) -> String {
    let SlowIo { op, sector, sectors, slot, policy, tag, device, .. } = *io;
    let ms = |span: Nanos| span.0 as f64 / 1e6;
    let all = Nanos(slot.0 + policy.0 + tag.0 + device.0);
    format!(
        "slow I/O of {export}: {op:?} of {sectors} sectors at {sector} took {:.1} ms: {:.1} for a slot, {:.1} in the \
         scheduler, {:.1} for a tag, {:.1} at the device",
        ms(all),
        ms(slot),
        ms(policy),
        ms(tag),
        ms(device)
    )
}

/// Reports the oldest I/Os if they are older than `next`, and reports when they have completed.
///
/// The check runs whether or not requests are counted, so that a hanging device is always reported. Counting requests
/// could not replace it, because some I/Os may hang while others complete. It costs a pass over the slots per second,
/// and nothing for an I/O; if no I/O is in flight, only counters are read.
fn log_old(shared: &Shared, disk: usize, next: &mut Nanos) {
    let disk = &shared.disks[disk];
    let now = disk.service().clock().now();
    let oldest = disk.outstanding(now);
    let age = |since: Instant| now.since(since);
    let first = oldest.first().map_or(Nanos::ZERO, |it| age(it.since));
    if first >= *next {
        let old = oldest.iter().filter(|it| age(it.since) >= OLD);
        let named: Vec<String> =
            oldest.iter().take(NAMED).map(|it| it.at(now).to_string()).collect();
        let (count, seconds) = (old.count(), first.0 / 1_000_000_000);
        tracing::warn!(
            "{}: {count} outstanding for {seconds} s:\n  {}",
            disk.name(),
            named.join("\n  ")
        );
        *next = Nanos(first.0.saturating_mul(2));
    } else if first < OLD && *next > OLD {
        tracing::warn!("{}: goes on", disk.name());
        *next = OLD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq::{GroupIndex, Op};

    #[test]
    fn a_slow_io_says_where_its_time_went() {
        let io = SlowIo {
            group: GroupIndex(1),
            op: Op::Read,
            sector: 64,
            sectors: 8,
            completed: Instant::ZERO,
            slot: Nanos::from_micros(500),
            policy: Nanos::from_millis(20),
            tag: Nanos::from_millis(4),
            device: Nanos::from_millis(100),
        };
        assert_eq!(
            line(&io, "export 'gold'"),
            "slow I/O of export 'gold': Read of 8 sectors at 64 took 124.5 ms: 0.5 for a slot, 20.0 in the scheduler, \
             4.0 for a tag, 100.0 at the device"
        );
    }

    #[test]
    fn a_certificate_is_reported_two_weeks_before_its_end() {
        assert_eq!(ending(20 * DAY, 6 * DAY), None);
        assert!(ending(20 * DAY, 6 * DAY + 1).is_some_and(|text| text.contains("within 14 days")));
        assert!(ending(DAY, DAY).is_some_and(|text| text.contains("within 1 days")));
        assert!(ending(DAY, DAY + 1).is_some_and(|text| text.contains("has expired")));
    }
}

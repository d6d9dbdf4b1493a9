//! The disk device: a rotating disk's mechanism, caches and command queue, with the figures of real drives.
//!
//! Its page (`doc/disk.md`) describes the model and its limits, and compares it with published results of those drives.
//! All times are computed in whole nanoseconds, so that a run repeats on every machine. It stores no data.
//!
//! Its one hardware queue takes tokens and returns them; `drive.rs` models the time between. It never reports busy: a
//! drive holds as many commands as there are tags. It never answers within the call, except to refuse a discard, and
//! does not access payloads.

mod caches;
mod commands;
mod drive;
mod mechanics;
mod params;

use crate::basics::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use blkmq_core::{Instant, IoError, IoFlags, Op};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict, WriteCache,
};
use commands::{Command, Kind};
use drive::Drive;
use mechanics::Mechanics;
pub use mechanics::{Figures, SeekTimes, Tracks};
pub use params::DiskParams;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "disk",
    summary: "a rotating disk: seeks, rotation, caches, command queueing; stores nothing",
    argument: Argument::None,
    parameters: params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<DiskParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = DiskParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: params,
    })
}

/// The hardware queue of a disk. Powers it on: the arm is at the outermost track, the caches are empty.
pub(crate) fn queues<P: 'static>(
    params: &DiskParams,
    log: Option<&ArrivalLog>,
    occupancy: Option<&OccupancyLog>,
) -> DeviceQueues<P> {
    let mechanics = Mechanics::new(&params.figures).expect("they were checked when they were read");
    let drive = Drive::new(params, mechanics, occupancy.cloned());
    let shape = params.shape();
    vec![Box::new(DiskQueue::new(drive, shape.hw_queue_depth, shape.cache, log.cloned()))]
}

struct DiskQueue {
    drive: Drive,
    cache: WriteCache,
    log: Option<ArrivalLog>,
    /// The tokens of the requests inside the drive, by driver tag.
    held: Box<[Option<Inflight>]>,
}

impl DiskQueue {
    fn new(drive: Drive, depth: u32, cache: WriteCache, log: Option<ArrivalLog>) -> Self {
        Self { drive, cache, log, held: (0..depth).map(|_| None).collect() }
    }

    /// Returns whether the write `rq` must be on the medium before it ends.
    fn is_durable(&self, rq: &Inflight) -> bool {
        match self.cache {
            WriteCache::Through => true,
            WriteCache::Back { .. } => rq.flags().contains(IoFlags::FUA),
        }
    }
}

impl<P> DeviceQueue<P> for DiskQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let kind = match rq.op() {
            Op::Read => Some(Kind::Read),
            Op::Write => Some(Kind::Write),
            Op::WriteZeroes => Some(Kind::Zeroes),
            Op::Flush => None,
            // Disks support no discard, as their limits say.
            Op::Discard => return Enqueued::Done(rq, Err(IoError::NOT_SUPPORTED)),
        };
        let tag = rq.tag().0;
        match kind {
            None => self.drive.submit_flush(now, tag),
            Some(kind) => {
                let range = rq.sector()..rq.sector() + u64::from(rq.sectors());
                let durable = self.is_durable(&rq);
                self.drive.submit(now, Command { tag, kind, range }, durable);
            }
        }
        self.held[tag as usize] = Some(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.drive.advance(now);
        while let Some((tag, result)) = self.drive.pop(now) {
            let rq = self.held[tag as usize].take().expect("an answer is to what is held");
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if the drive holds no command.
    fn next_event(&self) -> Option<Instant> {
        Some(self.drive.next_event())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.iter_mut().filter_map(Option::take));
    }
}

#[cfg(test)]
mod tests {
    use super::commands::{Command, Kind};
    use super::drive::Drive;
    use super::mechanics::{Access, Mechanics};
    use super::params::PARAMETERS;
    use super::*;
    use crate::Model;
    use crate::{Activity, Device, Span, registry};
    use blkmq_core::{Instant, IoError, IoResult, Nanos, Rng};
    use std::ops::Range;

    const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };
    const MS: u64 = 1_000_000;

    fn device(text: &str) -> Result<Device, DeviceError> {
        registry::parse(&["disk", text].join(if text.is_empty() { "" } else { "," }), &HOST)
    }

    fn params(text: &str) -> DiskParams {
        match device(text).unwrap_or_else(|e| panic!("{text}: {e}")).model {
            Model::Disk(params) => params,
            _ => unreachable!("it was asked for by name"),
        }
    }

    #[test]
    fn every_parameter_in_the_table_takes_its_own_default() {
        assert_eq!(params(""), DiskParams::default());
        for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
            let given = params(&format!("{}={}", parameter.name, parameter.default));
            assert_eq!(given, DiskParams::default(), "{}", parameter.name);
        }
    }

    /// No parameter is accepted and then ignored: each changes the device or leaves a note.
    #[test]
    fn every_parameter_in_the_table_has_an_effect() {
        for parameter in PARAMETERS {
            let other = match parameter.name {
                "preset" => "sas15k",
                "fua" | "log" | "occupancy" => "1",
                "reorder" => "0",
                "bs" | "blocksize" => "4096",
                "badblocks" => "+1-2",
                "seek_average_nsec" => "8000000",
                "write_seek_average_nsec" => "9000000",
                "seek_full_nsec" | "write_seek_full_nsec" => "17000000",
                "inner_sectors" => "700",
                _ => "3",
            };
            let text = format!("{}={other}", parameter.name);
            let text = text.replace("outer_sectors=3", "outer_sectors=1300");
            let text = text.replace("rpm=3", "rpm=5400");
            let noted = !device(&text).unwrap_or_else(|e| panic!("{text}: {e}")).notes.is_empty();
            assert!(noted || params(&text) != DiskParams::default(), "{text} was ignored");
        }
    }

    #[test]
    fn a_preset_is_where_the_rest_begins_wherever_it_stands() {
        let sas = params("hw_queue_depth=7,preset=sas15k,rpm=10000").figures;
        assert_eq!((sas.rpm, sas.hw_queue_depth, sas.tracks.heads), (10_000, 7, 6));
        let shape = device("preset=sas15k").expect("a preset").shape;
        assert_eq!((shape.limits.capacity, shape.hw_queue_depth), (879_097_968, 64));
        assert_eq!(params("size=3,gb=7").figures.capacity, 3 << 11);
        assert_eq!(params("gb=2").figures.capacity, 1 << 22);
        assert!(device("").expect("defaults").shape.limits.rotational);
    }

    #[test]
    fn what_cannot_be_or_has_no_effect_is_said() {
        for (text, part) in [
            ("preset=tape", "accepted: sata7200, sas15k"),
            ("rpm=0", "600 to 100000"),
            ("inner_sectors=2000", "accepted: at most outer_sectors, 1242"),
            ("track_skew_nsec=9000000", "less than a revolution, 8333333"),
            ("seek_average_nsec=14690000", "accepted: an average well between seek_track_nsec"),
            ("write_seek_average_nsec=2000000", "write_seek_average_nsec=2000000 is not possible"),
            ("badblocks=7", "+START-END"),
            ("size=99999999", "1 to 16777216"),
            ("bs=1536", "1536"),
            ("submit_queues=2", "no parameter 'submit_queues'"),
        ] {
            let error = device(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for text in [
            "cache_size=0,fua=1",
            "cache_size=0,destage_delay_nsec=1",
            "segments=0,read_ahead=4",
            "reorder=0,reorder_margin_nsec=1",
            "reorder=0,cache_size=0,age_limit_nsec=1",
            "recovery_nsec=1",
            "recalibration_nsec=1",
            "seed=1",
            "occupancy_size=1",
            "log_size=1",
            "size=4",
            "size=16,badblocks=+0-32768",
            "head_switch_nsec=1480001,cylinder_skew_nsec=2000000",
            "seek_track_nsec=1500000",
            "hw_queue_depth=99999",
        ] {
            let notes = device(text).expect(text).notes;
            assert_eq!(notes.len(), 1, "{text}: {notes:?}");
        }
    }

    /// The part of the page's table that can be checked without a load.
    #[test]
    fn the_cheetahs_surface_and_seeks_are_as_published() {
        let figures = params("preset=sas15k").figures;
        let mechanics = Mechanics::new(&figures).expect("a preset");
        let cylinders = mechanics.geometry.cylinders();
        let (published, tracks) = (595_848, cylinders * u32::from(figures.tracks.heads));
        let deviation = (f64::from(tracks) / f64::from(published) - 1.0) * 100.0;
        assert!(deviation.abs() < 1.0, "{tracks}");
        let mut rows = vec![format!("| tracks | {published} | {tracks} | {deviation:+.1} % |")];
        for (what, access, published) in [
            ("reading", Access::Read, [0.2, 3.4, 6.6]),
            ("writing", Access::Write, [0.44, 3.9, 7.4]),
        ] {
            let seek = |distance| mechanics.seek(distance, access) as f64 / 1e6;
            let weight = |distance: u32| f64::from(cylinders - distance);
            let sum: f64 = (1..cylinders).map(|distance| weight(distance) * seek(distance)).sum();
            let all: f64 = (1..cylinders).map(weight).sum();
            let times = [seek(1), sum / all, seek(cylinders - 1)];
            let text = |times: [f64; 3]| times.map(|time| format!("{time:.2}")).join(" ");
            assert_eq!(text(times), text(published), "{what}");
            rows.push(format!(
                "| seek for {what}, next track, average, full, ms | {} | {} | 0 % |",
                text(published),
                text(times)
            ));
        }
        let page = registry::page("disk").expect("it is registered");
        for row in rows {
            assert!(page.contains(&row), "the page should say: {row}");
        }
    }

    /// A drive and its clock.
    struct Bench {
        drive: Drive,
        now: Instant,
        tags: u32,
        spans: Option<OccupancyLog>,
    }

    impl Bench {
        fn new(text: &str) -> Self {
            let params = params(text);
            let mechanics = Mechanics::new(&params.figures).expect("they were checked");
            let spans = params.occupancy_size.map(OccupancyLog::new);
            let drive = Drive::new(&params, mechanics, spans.clone());
            Self { drive, now: Instant::ZERO, tags: 0, spans }
        }

        fn submit(&mut self, kind: Kind, range: Range<u64>, durable: bool) -> u32 {
            let tag = self.tags;
            self.tags += 1;
            self.drive.submit(self.now, Command { tag, kind, range }, durable);
            tag
        }

        fn read(&mut self, range: Range<u64>) -> u32 {
            self.submit(Kind::Read, range, false)
        }

        fn write(&mut self, range: Range<u64>) -> u32 {
            self.submit(Kind::Write, range, false)
        }

        fn flush(&mut self) -> u32 {
            self.tags += 1;
            self.drive.submit_flush(self.now, self.tags - 1);
            self.tags - 1
        }

        /// Advances until the next command ends.
        fn next(&mut self) -> (u32, IoResult) {
            loop {
                self.drive.advance(self.now);
                if let Some(ended) = self.drive.pop(self.now) {
                    return ended;
                }
                let at = self.drive.next_event();
                assert!(at > self.now && at < Instant::MAX, "nothing happens");
                self.now = at;
            }
        }

        /// Advances until this command has ended; returns the time in nanoseconds.
        fn until(&mut self, tag: u32) -> u64 {
            let begin = self.now;
            while self.next().0 != tag {}
            (self.now - begin).0
        }

        fn pause(&mut self, nanos: u64) {
            self.now += Nanos(nanos);
        }
    }

    const REVOLUTION: u64 = 8_333_334;
    /// A drive without caches.
    const BARE: &str = "cache_size=0,segments=0";

    #[test]
    fn a_sector_comes_by_once_in_a_revolution() {
        let mut bench = Bench::new(BARE);
        let tag = bench.read(777_777..777_785);
        bench.until(tag);
        for k in 1..1000 {
            let tag = bench.read(777_777..777_785);
            let took = bench.until(tag);
            assert!(took.abs_diff(REVOLUTION) <= 4, "{k}: {took}");
        }
        // Even after a thousand, no error has accumulated, not even a nanosecond.
        let phase = bench.now.as_nanos() % 25_000_000;
        let tag = bench.read(777_777..777_785);
        bench.until(tag);
        let drift = (bench.now.as_nanos() - REVOLUTION) % 25_000_000;
        assert!(drift.abs_diff(phase) <= 6, "{drift} and {phase}");
    }

    /// The skew allows for switches: a read from the first sector of a cylinder to the last sector two cylinders later
    /// takes the time on the tracks and the skew between them, and no more.
    #[test]
    fn crossing_tracks_and_cylinders_loses_no_revolution() {
        for (preset, heads, sectors, revolution, skew) in
            [("sata7200", 10, 1242, 8_333_333, 1_480_000), ("sas15k", 6, 1800, 4_000_000, 264_000)]
        {
            for kind in [Kind::Read, Kind::Write] {
                let mut bench = Bench::new(&format!("preset={preset},{BARE}"));
                let first = bench.submit(kind, 0..8, true);
                bench.until(first);
                let tracks = 3 * heads;
                let all = bench.submit(kind, 8 * sectors..(8 + tracks) * sectors, true);
                let took = bench.until(all);
                let on_tracks = tracks * revolution + (tracks - 1) * skew;
                let getting_there = 2 * revolution;
                assert!((on_tracks..on_tracks + getting_there).contains(&took), "{preset}: {took}");
            }
        }
    }

    #[test]
    fn one_after_the_other_is_as_fast_as_at_once() {
        for depth in [1, 4] {
            let mut bench = Bench::new("cache_size=0");
            let (mut begun, count) = (0, 400);
            let begin = bench.now;
            for ended in 0..count {
                while begun < count && begun < ended + depth {
                    bench.read(begun * 128..(begun + 1) * 128);
                    begun += 1;
                }
                assert_eq!(bench.next().1, Ok(()));
            }
            let took = (bench.now - begin).0;
            let tracks = count * 128 / 1242;
            let expected = tracks * (REVOLUTION + 1_480_000);
            assert!(took < expected + 2 * REVOLUTION, "depth {depth}: {took} for {expected}");
        }
    }

    #[test]
    fn what_was_read_ahead_is_answered_at_once() {
        let mut bench = Bench::new("cache_size=0");
        let tag = bench.read(5000..5008);
        let first = bench.until(tag);
        bench.pause(6 * MS);
        let tag = bench.read(5008..5016);
        let hit = bench.until(tag);
        assert_eq!((hit, first > MS), (50_000 + 13_658, true), "8 sectors at 286 MiB/s");
        // 256 KiB ahead, but no further: 5000 + 8 + 512.
        bench.pause(100 * MS);
        for (range, is_hit) in [(5512..5520, true), (5000..5008, true), (6000..6008, false)] {
            let mut again = Bench::new("cache_size=0");
            let tag = again.read(5000..5008);
            again.until(tag);
            again.pause(100 * MS);
            let tag = again.read(range.clone());
            assert_eq!(again.until(tag) < 100_000, is_hit, "{range:?}");
        }
        // Sectors that were written since are not read from the cache.
        let tag = bench.submit(Kind::Write, 5016..5024, true);
        bench.until(tag);
        let tag = bench.read(5016..5024);
        assert!(bench.until(tag) > MS);
        // Nor are sectors that were being read ahead when the write arrived.
        let mut ahead = Bench::new("");
        let tag = ahead.read(5000..5008);
        ahead.until(tag);
        ahead.pause(MS / 2);
        let tag = ahead.write(5050..5058);
        ahead.until(tag);
        ahead.pause(MS);
        for range in [5000..5008, 4900..4908] {
            let tag = ahead.read(range.clone());
            let took = ahead.until(tag);
            assert!(took > MS / 2, "{range:?} took {took}");
        }
        let mut none = Bench::new("cache_size=0,read_ahead=0");
        for _ in 0..2 {
            let tag = none.read(5000..5008);
            assert!(none.until(tag) > MS, "nothing is kept");
            none.pause(20 * MS);
        }
    }

    #[test]
    fn reading_ahead_gives_way_to_whatever_is_wanted() {
        let far = 900_000_000..900_000_008;
        let mut idle = Bench::new(BARE);
        let mut ahead = Bench::new("cache_size=0");
        let [idle, ahead] = [&mut idle, &mut ahead].map(|bench| {
            let tag = bench.read(5000..5008);
            bench.until(tag);
            bench.pause(MS);
            let tag = bench.read(far.clone());
            bench.until(tag)
        });
        assert!(ahead.abs_diff(idle) <= 4, "{ahead} and {idle}");
    }

    #[test]
    fn a_cached_write_is_acknowledged_before_it_is_written() {
        let mut bench = Bench::new("");
        let tag = bench.write(80_000_000..80_000_128);
        let cached = bench.until(tag);
        assert_eq!(cached, 50_000 + 218_531, "128 sectors at 286 MiB/s");
        let tag = bench.read(80_000_008..80_000_016);
        assert!(bench.until(tag) < 100_000, "what is in the cache is read from there");
        let tag = bench.flush();
        let flush = bench.until(tag);
        assert!((MS..40 * MS).contains(&flush), "a seek, half a turn and 64 KiB: {flush}");
        let tag = bench.flush();
        assert_eq!(bench.until(tag), 50_000, "there is nothing left to write");
        let tag = bench.submit(Kind::Write, 80_000_000..80_000_128, true);
        let durable = bench.until(tag);
        assert!(durable > MS, "with FUA it is on the medium: {durable}");
        let tag = bench.flush();
        assert_eq!(bench.until(tag), 50_000);
    }

    #[test]
    fn an_idle_disk_writes_back_by_itself() {
        for (idle, is_clean) in [(4 * MS, false), (60 * MS, true)] {
            let mut bench = Bench::new("");
            let tag = bench.write(1_000_000..1_000_128);
            bench.until(tag);
            assert_eq!(bench.drive.next_event(), Instant::MAX, "an idle disk announces no event");
            bench.pause(idle);
            let tag = bench.flush();
            assert_eq!(bench.until(tag) == 50_000, is_clean, "after {idle}");
        }
    }

    #[test]
    fn a_flush_waits_for_what_came_before_it_and_for_no_more() {
        let mut bench = Bench::new("");
        for n in 0..20 {
            let tag = bench.write(n * 40_000_000..n * 40_000_000 + 8);
            bench.until(tag);
        }
        let flush = bench.flush();
        let begin = bench.now;
        let mut later = 0;
        loop {
            let tag = bench.write(5000 + later * 2_000_000..5008 + later * 2_000_000);
            later += 1;
            match bench.next().0 {
                ended if ended == flush => break,
                ended if ended == tag => bench.pause(3 * MS),
                ended => panic!("{ended}"),
            }
        }
        let took = (bench.now - begin).0 / MS;
        assert!(
            (60..250).contains(&took),
            "twenty places take {took} ms, {later} writes came meanwhile"
        );
        assert!(later > 10);
        let tag = bench.flush();
        assert!(bench.until(tag) > MS, "those are not on the medium yet");
    }

    #[test]
    fn a_full_cache_slows_writes_down_to_what_the_arm_does() {
        let mut bench = Bench::new("cache_size=1");
        let mut slow = 0;
        let mut rng = Rng::new(2);
        for n in 0..300 {
            let start = rng.below(900_000_000);
            let tag = bench.write(start..start + 32);
            let took = bench.until(tag);
            // 64 of them fit.
            assert!(n >= 64 || took < MS, "write {n} took {took}");
            slow += u32::from(took > MS);
        }
        assert!(slow > 150, "{slow}");
        // A write longer than half the cache bypasses it.
        let tag = bench.write(5_000_000..5_002_048);
        let begin = bench.now;
        bench.until(tag);
        assert!((bench.now - begin).0 > 8 * MS);
    }

    /// Cached writes, sorted before they are written back, take less time of the arm than writes one by one.
    #[test]
    fn writing_back_is_faster_than_writing_through() {
        let [cached, through] = ["", BARE].map(|text| {
            let (mut bench, mut rng) = (Bench::new(text), Rng::new(2));
            for _ in 0..500 {
                let start = rng.below(900_000_000);
                let tag = bench.submit(Kind::Write, start..start + 8, text == BARE);
                bench.until(tag);
            }
            let tag = bench.flush();
            bench.until(tag);
            bench.now.as_nanos()
        });
        assert!(2 * cached < through, "{cached} and {through}");
    }

    #[test]
    fn a_command_waits_for_the_age_limit_and_no_longer() {
        let waited = |limit: u64| {
            let mut bench =
                Bench::new(&format!("{BARE},preset=sas15k,fua=1,age_limit_nsec={limit}"));
            let far = bench.read(870_000_000..870_000_008);
            let (begin, mut rng) = (bench.now, Rng::new(3));
            for _ in 0..31 {
                let near = rng.below(1_000_000);
                bench.read(near..near + 8);
            }
            while bench.next().0 != far {
                let near = rng.below(1_000_000);
                bench.read(near..near + 8);
            }
            (bench.now - begin).0
        };
        let (short, long) = (waited(100 * MS), waited(400 * MS));
        // At the age limit, at most one service is in progress, and the command's own follows.
        assert!((100 * MS..120 * MS).contains(&short), "{short}");
        assert!((400 * MS..420 * MS).contains(&long), "nothing else makes it the next: {long}");
    }

    #[test]
    fn without_reordering_commands_are_served_as_they_came() {
        let order = |text: &str| {
            let (mut bench, mut rng) = (Bench::new(&format!("{BARE}{text}")), Rng::new(4));
            let tags = (0..20).map(|_| {
                let start = rng.below(900_000_000);
                bench.read(start..start + 8)
            });
            let tags = tags.collect::<Vec<_>>();
            (tags.clone(), tags.iter().map(|_| bench.next().0).collect::<Vec<_>>())
        };
        let (came, ended) = order(",reorder=0");
        assert_eq!(came, ended);
        let (came, ended) = order("");
        assert_ne!(came, ended);
    }

    #[test]
    fn a_bad_sector_takes_its_time_and_fails_until_it_is_written() {
        let mut bench =
            Bench::new(&format!("{BARE},badblocks=+1000-1003,recovery_nsec=2000000000"));
        let tag = bench.read(990..1000);
        assert!(bench.until(tag) < 20 * MS);
        let tag = bench.read(996..1004);
        let begin = bench.now;
        assert_eq!(bench.next(), (tag, Err(IoError::IO)));
        let took = (bench.now - begin).0;
        assert!((2000 * MS..2020 * MS).contains(&took), "{took}");
        let tag = bench.submit(Kind::Write, 1000..1004, true);
        bench.until(tag);
        let tag = bench.read(996..1004);
        assert!(bench.until(tag) < 20 * MS);
    }

    #[test]
    fn a_bad_sector_is_not_read_ahead() {
        let mut bench = Bench::new("badblocks=+1016-1020,recovery_nsec=2000000000");
        for (range, is_hit) in [(1000..1008, false), (1008..1016, true)] {
            let tag = bench.read(range.clone());
            assert_eq!(bench.until(tag) < 100_000, is_hit, "{range:?}");
            bench.pause(20 * MS);
        }
        let tag = bench.read(1016..1024);
        assert_eq!(bench.next(), (tag, Err(IoError::IO)));
        let tag = bench.read(1021..1024);
        assert!(bench.until(tag) > 100_000, "nor is what lies behind it");
    }

    #[test]
    fn now_and_then_everybody_waits_for_a_recalibration() {
        let slowest = |text: &str| {
            let (mut bench, mut rng) = (Bench::new(&format!("{BARE}{text}")), Rng::new(4));
            let took = (0..400).map(|_| {
                let start = rng.below(900_000_000);
                let tag = bench.read(start..start + 8);
                bench.until(tag)
            });
            took.filter(|took| *took > 40 * MS).count()
        };
        assert_eq!(slowest(""), 0);
        let recalibrates = ",recalibration_interval_nsec=1000000000,seed=";
        // 400 reads take about 5 s.
        assert!((3..8).contains(&slowest(&format!("{recalibrates}1"))));
    }

    #[test]
    fn the_arm_is_at_one_place_at_a_time() {
        let (mut bench, mut rng) = (Bench::new("occupancy=1,occupancy_size=100000"), Rng::new(5));
        for _ in 0..300 {
            let start = rng.below(900_000_000);
            let tag = match rng.below(3) {
                0 => bench.read(start..start + 64),
                1 => bench.write(start..start + 64),
                _ => bench.flush(),
            };
            bench.until(tag);
            bench.pause(rng.below(10 * MS));
        }
        let log = bench.spans.expect("it was asked for");
        let spans = log.spans();
        assert!(spans.is_sorted_by(|a, b| a.end <= b.start), "spans overlap");
        let cylinders = Mechanics::new(&DiskParams::default().figures).expect("a preset");
        assert!(spans.iter().all(|span| span.place < cylinders.geometry.cylinders()));
        let moved = spans.iter().filter(|span| span.activity == Activity::Position);
        for Span { start, end, .. } in moved.clone() {
            assert!((*end - *start).0 < 26 * MS, "the longest seek and a revolution");
        }
        for activity in [Activity::Position, Activity::Read, Activity::Housekeeping] {
            assert!(spans.iter().any(|span| span.activity == activity), "{activity:?}");
        }
        assert_eq!(log.missed(), 0);
    }

    /// Runs a random load and returns the end of each command. With `polls`, the drive is also advanced in between.
    fn run(text: &str, seed: u64, polls: bool) -> Vec<(u32, u64, bool)> {
        let (mut bench, mut rng, mut polled) = (Bench::new(text), Rng::new(seed), Rng::new(99));
        let (mut ended, mut inside) = (Vec::new(), 0);
        for _ in 0..600 {
            let start = if rng.chance(1, 2) { rng.below(2000) } else { rng.below(870_000_000) };
            let range = start..start + 1 + rng.below(300);
            _ = match rng.below(8) {
                0..4 => bench.read(range),
                4..6 => bench.write(range),
                6 => bench.submit(Kind::Zeroes, range, rng.chance(1, 2)),
                _ => bench.flush(),
            };
            inside += 1;
            let wanted = if rng.chance(1, 3) { rng.below(30) } else { 8 };
            while inside > wanted {
                if polls {
                    let event = bench.drive.next_event();
                    let before = bench.now + Nanos(polled.below((event - bench.now).0.max(1)));
                    bench.drive.advance(before);
                }
                let (tag, result) = bench.next();
                ended.push((tag, bench.now.as_nanos(), result.is_ok()));
                inside -= 1;
            }
            if rng.chance(1, 10) {
                bench.pause(rng.below(30 * MS));
            }
        }
        ended
    }

    const EVERYTHING: &str = "badblocks=+100-120,recovery_nsec=1000000,cache_size=1,fua=1,\
                              recalibration_interval_nsec=300000000,seed=";

    #[test]
    fn the_same_inputs_give_the_same_outputs() {
        for text in ["", "preset=sas15k", "reorder=0,segments=2", &format!("{EVERYTHING}1")] {
            let once = run(text, 7, false);
            assert!(once == run(text, 7, false), "{text}: not repeatable");
            assert!(
                once == run(text, 7, true),
                "{text}: the result depends on the number of clock updates"
            );
        }
        let [one, two] = [1, 2].map(|seed| run(&format!("{EVERYTHING}{seed}"), 7, false));
        assert!(one != two, "the seed has no effect");
        assert!(one.iter().any(|(_, _, ok)| !ok), "no bad block was met");
    }
}

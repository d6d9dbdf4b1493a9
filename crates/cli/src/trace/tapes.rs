//! Converts the records of a trace to the tapes of its tenants: laid out on one device, scaled, and sorted.

use super::Source;
use blkmq_core::{IoFlags, Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::{NextIo, Tape, Taped};
use blkmq_recording::{Layout, Placed, Record, Summary};
use blkmq_terminal::UsageError;

/// The maximum number of I/Os in a replay: each takes some 150 bytes of memory.
pub const MOST: u64 = 10_000_000;

/// How a trace becomes a workload.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// The factor by which arrivals are accelerated.
    pub speed: f64,
    /// Places are multiplied by this.
    pub space: f64,
    /// Closed loop: gaps begin with the answers.
    pub think: bool,
    /// The maximum number of tenants with a separate job.
    pub tenants: usize,
    /// I/Os of the trace that are replayed.
    pub most: u64,
    /// How volumes share the device.
    pub layout: Layout,
    /// Places and lengths are multiples of this many bytes.
    pub align: u64,
}

/// A tenant of a replay.
#[derive(Debug)]
pub struct Tenant {
    /// The name, valid for a job and a group.
    pub name: String,
    /// Its I/Os.
    pub tape: Tape,
    /// Bytes of its longest I/O, at least one sector.
    pub longest: u64,
}

/// A trace in memory.
pub struct Loaded {
    records: Vec<Record>,
    names: Vec<String>,
    summary: Summary,
    /// Sentences about the differences from the trace.
    pub notes: Vec<String>,
}

impl Loaded {
    /// Reads a trace.
    ///
    /// # Errors
    /// If it cannot be read, is empty, or longer than [`MOST`] and `scaling.most`.
    pub fn read(source: &Source, scaling: &Scaling) -> Result<Self, UsageError> {
        let mut reader = source.open()?;
        let (mut records, mut summary) = (Vec::new(), Summary::default());
        let [mut zeroes, mut discards] = [0u64; 2];
        while (records.len() as u64) < scaling.most
            && let Some(record) = reader.next_record().map_err(|e| source.fault(&e))?
        {
            if records.len() as u64 >= MOST {
                let text =
                    format!("more than {MOST} I/Os; accepted with --most=N: the first N of them");
                return Err(UsageError::new(text).at(&source.file));
            }
            zeroes += u64::from(record.op == Op::WriteZeroes);
            if record.op == Op::Discard {
                discards += 1;
                continue;
            }
            summary.add(&record);
            records.push(record);
        }
        if records.is_empty() {
            return Err(UsageError::new("no I/O is in it; accepted: at least one").at(&source.file));
        }
        let mut notes = super::cautions(&reader);
        if zeroes > 0 {
            notes.push(format!("{zeroes} writes of zeroes are replayed as writes"));
        }
        if discards > 0 {
            notes.push(format!("{discards} discards are left out"));
        }
        let names =
            (0..reader.tenants().len() as u32).map(|id| reader.tenants().name(id).to_owned());
        let names = names.collect();
        // Sorting is stable, so that I/Os with equal times keep their order.
        records.sort_by_key(|record| record.arrival);
        let mut loaded = Self { records, names, summary, notes };
        if reader.stamps().is_coarse(reader.records()) {
            loaded.spread(reader.stamps().unit);
        }
        Ok(loaded)
    }

    /// Spreads the I/Os of one coarse stamp evenly over its unit.
    fn spread(&mut self, unit: u64) {
        for same in self.records.chunk_by_mut(|a, b| a.arrival == b.arrival) {
            let count = same.len() as u64;
            for (at, record) in same.iter_mut().enumerate() {
                record.arrival += (u128::from(unit) * at as u128 / u128::from(count)) as i64;
            }
        }
        let text = "the places of I/Os within one stamp are made up: they are spread evenly";
        self.notes.push(text.into());
    }

    /// Omits the I/Os of these operations. The times of others are unchanged.
    pub fn leave_out(&mut self, ops: &[Op]) {
        self.records.retain(|record| !ops.contains(&record.op));
    }

    /// Returns whether all I/Os have the same time, as in a log without times.
    pub fn is_untimed(&self) -> bool {
        self.records.windows(2).all(|two| two[0].arrival == two[1].arrival)
    }

    /// Bytes that a device needs for all volumes.
    pub fn reach(&self, scaling: &Scaling) -> u64 {
        let volumes = self.summary.ends.len();
        let ends = self.summary.ends.iter().map(|end| match volumes {
            1 => *end,
            _ => end.next_multiple_of(1 << 20),
        });
        let sum = ends.fold(0, u64::saturating_add);
        let longest = self.summary.sizes.max().max(4096);
        scaled(sum, scaling.space).saturating_add(longest).next_multiple_of(1 << 20)
    }

    /// The tenants on a device of `device` bytes, those with the most I/Os first.
    ///
    /// # Errors
    /// If the volumes do not fit.
    pub fn tenants(&self, scaling: &Scaling, device: u64) -> Result<Vec<Tenant>, UsageError> {
        let room = if scaling.space >= 1.0 { device } else { u64::MAX };
        let placed = Placed::new(scaling.layout, &self.summary.ends, room);
        let placed = placed.map_err(|e| UsageError::new(e.to_string()))?;
        let mut order: Vec<usize> = (0..self.summary.tenants.len()).collect();
        order.sort_by_key(|tenant| std::cmp::Reverse(self.summary.tenants[*tenant].ios));
        let own = if order.len() > scaling.tenants { scaling.tenants - 1 } else { order.len() };
        let mut job_of = vec![own; order.len()];
        let mut names: Vec<String> = Vec::new();
        for (job, tenant) in order.iter().take(own).enumerate() {
            job_of[*tenant] = job;
            names.push(unlike(&self.names[*tenant], &names));
        }
        if own < order.len() {
            names.push(unlike("others", &names));
        }
        let mut records: Vec<Vec<&Record>> = vec![Vec::new(); names.len()];
        for record in &self.records {
            records[job_of[record.tenant as usize]].push(record);
        }
        let first = self.records.first().map_or(0, |record| record.arrival);
        let tape = |(name, records): (String, Vec<&Record>)| {
            let tape = taped(&records, first, scaling, |record| {
                let place = scaled(placed.place(record), scaling.space);
                (place - place % scaling.align)
                    .min(device.saturating_sub(record.length.next_multiple_of(scaling.align)))
            });
            let longest = tape.ios().iter().map(|it| u64::from(it.io.sectors * SECTOR_SIZE)).max();
            Tenant { name, longest: longest.unwrap_or(0).max(scaling.align), tape }
        };
        Ok(names.into_iter().zip(records).map(tape).collect())
    }
}

fn scaled(value: u64, factor: f64) -> u64 {
    if factor == 1.0 { value } else { (value as f64 * factor) as u64 }
}

/// The tape of `records`, which are in order.
fn taped(
    records: &[&Record],
    first: i64,
    scaling: &Scaling,
    place: impl Fn(&Record) -> u64,
) -> Tape {
    let after = |from: i64, to: i64| {
        Nanos(scaled(to.saturating_sub(from).max(0) as u64, 1.0 / scaling.speed))
    };
    // The last known completion, and the arrival from which the closed loop counts.
    let (mut busy, mut base) = (i64::MIN, first);
    let ios = records.iter().map(|record| {
        let drains = scaling.think && busy != i64::MIN && record.arrival > busy;
        let at = if drains { after(busy, record.arrival) } else { after(base, record.arrival) };
        if drains {
            base = record.arrival;
        }
        let latency = record.latency.unwrap_or(0).min(i64::MAX as u64) as i64;
        busy = busy.max(record.arrival.saturating_add(latency));
        Taped { at, drains, io: io(record, place(record), scaling.align) }
    });
    Tape::new(ios.collect())
}

fn io(record: &Record, place: u64, align: u64) -> NextIo {
    let op = if record.op == Op::WriteZeroes { Op::Write } else { record.op };
    if op == Op::Flush {
        return NextIo { op, flags: IoFlags::SYNC, prio: record.prio, sectors: 0, sector: 0 };
    }
    let sector = u64::from(SECTOR_SIZE);
    let sectors = (record.length.next_multiple_of(align) / sector) as u32;
    NextIo { op, flags: IoFlags::SYNC, prio: record.prio, sectors, sector: place / sector }
}

/// Returns `name` with only letters, digits, `-`, `_` and `.`, and different from those in `known`.
fn unlike(name: &str, known: &[String]) -> String {
    const MOST_LETTERS: usize = 40;
    let fit =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let mut name: String = name.chars().take(MOST_LETTERS).map(fit).collect();
    if name.is_empty() {
        name = "trace".into();
    }
    if name.starts_with(['.', '-']) {
        name.insert(0, '_');
    }
    let base = name.clone();
    let mut number = 2;
    while known.contains(&name) {
        name = format!("{base}_{number}");
        number += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Class;
    use clap::Command;

    const SCALING: Scaling = Scaling {
        speed: 1.0,
        space: 1.0,
        think: false,
        tenants: 8,
        most: u64::MAX,
        layout: Layout::Concat,
        align: 512,
    };

    fn loaded(text: &str, options: &[&str], scaling: &Scaling) -> Loaded {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        let command = Command::new("x").arg(super::super::path()).args(super::super::options());
        let path = file.path().display().to_string();
        let words = ["x", &path].into_iter().chain(options.iter().copied());
        let source = Source::of(&command.try_get_matches_from(words).expect("options"));
        Loaded::read(&source, scaling).expect("a trace")
    }

    /// A row is time, operation, offset, size, tenant, class and latency.
    fn csv(rows: &[(u64, u64, &str, &str, u64)]) -> String {
        let head = "time_ns,op,offset,size,tenant,volume,class,latency_ns\n".to_owned();
        let row = |(time, offset, tenant, class, latency): &(u64, u64, &str, &str, u64)| {
            format!("{time},read,{offset},4096,{tenant},{tenant},{class},{latency}\n")
        };
        rows.iter().map(row).fold(head, |text, row| text + &row)
    }

    #[test]
    fn classes_of_a_trace_are_those_of_the_tape() {
        let classes = ["rt", "be", "be", "idle", "none"];
        let rows = Vec::from_iter(classes.map(|class| (0, 0, "a", class, 0)));
        let tenants = loaded(&csv(&rows), &[], &SCALING).tenants(&SCALING, 1 << 30).expect("room");
        let count =
            |class| tenants[0].tape.ios().iter().filter(|it| it.io.prio.class() == class).count();
        let counts = [Class::Realtime, Class::BestEffort, Class::Idle, Class::None].map(count);
        assert_eq!(counts, [1, 2, 1, 1]);
    }

    #[test]
    fn volumes_and_tenants_are_apart_and_the_smallest_are_together() {
        let text = csv(&[
            (0, 0, "a", "", 0),
            (1, 0, "a", "", 0),
            (2, 0, "b/x", "", 0),
            (3, 0, "c", "", 0),
        ]);
        let tenants = loaded(&text, &[], &SCALING).tenants(&SCALING, 1 << 30).expect("room");
        assert_eq!(Vec::from_iter(tenants.iter().map(|it| it.name.as_str())), ["a", "b_x", "c"]);
        assert_eq!(tenants[1].tape.ios()[0].io.sector, 2048);
        let few = Scaling { tenants: 2, ..SCALING };
        let tenants = loaded(&text, &[], &few).tenants(&few, 1 << 30).expect("room");
        let counts = tenants.iter().map(|it| (it.name.as_str(), it.tape.ios().len()));
        assert_eq!(Vec::from_iter(counts), [("a", 2), ("others", 2)]);
        assert!(loaded(&text, &[], &SCALING).tenants(&SCALING, 1 << 20).is_err());
    }

    #[test]
    fn speed_divides_times_and_a_closed_loop_keeps_gaps() {
        let text = csv(&[
            (0, 0, "a", "", 100),
            (50, 0, "a", "", 100),
            (450, 0, "a", "", 10),
            (455, 0, "a", "", 0),
        ]);
        let times = |scaling: &Scaling| {
            let tenants = loaded(&text, &[], scaling).tenants(scaling, 1 << 30).expect("room");
            Vec::from_iter(tenants[0].tape.ios().iter().map(|it| (it.at.0, it.drains)))
        };
        assert_eq!(times(&SCALING), [(0, false), (50, false), (450, false), (455, false)]);
        let twice = Scaling { speed: 2.0, ..SCALING };
        assert_eq!(times(&twice), [(0, false), (25, false), (225, false), (227, false)]);
        // The third arrives 300 ns after the answers to both before it, and the fourth while it is served.
        let closed = Scaling { think: true, ..SCALING };
        assert_eq!(times(&closed), [(0, false), (50, false), (300, true), (5, false)]);
    }

    #[test]
    fn whole_seconds_are_spread() {
        let rows: String = (0..40).map(|i| format!("{},8,8,0,1\n", 100 + i / 10)).collect();
        let loaded = loaded(&rows, &["--format=tencent"], &SCALING);
        assert!(loaded.notes.iter().any(|note| note.contains("made up")), "{:?}", loaded.notes);
        let tenants = loaded.tenants(&SCALING, 1 << 30).expect("room");
        let times = Vec::from_iter(tenants[0].tape.ios().iter().map(|it| it.at.0 / 100_000_000));
        assert_eq!(times, Vec::from_iter(0..40));
    }
}

//! Compares the outcomes of one job file, and the figures in a row of fio's JSON with each other.
//!
//! Which parts must be equal depends on the parts that the options leave to chance: the direction of an I/O of a mix,
//! the lengths of several block sizes, and the order of random offsets are drawn, and the generators differ.

use super::draw::JobFile;
use super::{Both, Io, Outcome, by_completion};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The part that differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// One side has refused the file.
    Status,
    /// Rows of the report: names, groups, errors.
    Rows,
    /// Options as they were written.
    Options,
    /// I/Os and bytes.
    Work,
    /// Flushes.
    Syncs,
    /// The offsets of I/Os.
    Places,
    /// The remaining files.
    Files,
    /// Figures of our report that do not fit each other.
    Arithmetic,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];

/// The parts of a job that its options leave to chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chance {
    /// The direction of an I/O.
    is_mix: bool,
    /// Its length is drawn.
    has_sizes: bool,
    /// Its offset is drawn.
    pub(super) is_random: bool,
    /// An offset may be used again within a pass.
    repeats: bool,
    /// A pass may end before each offset was used.
    is_cut: bool,
    /// Its logs contain I/Os when they complete.
    pub(super) by_completion: bool,
    /// Its threads have several files each.
    has_files: bool,
    /// The job reads its writes back.
    pub(super) is_verified: bool,
    /// The job has several threads, each with its own generator of offsets.
    has_threads: bool,
    /// The job leaves holes between sequential I/Os.
    pub(super) has_holes: bool,
    /// In fio each of several passes ends with a flush, in blkmq only the last one; or a flush waits in fio's queue.
    has_flushed_passes: bool,
    /// The length of a zone and the gap behind it.
    stride: Option<u64>,
}

impl Chance {
    /// For the job at `at`.
    fn of(file: &JobFile, at: usize) -> Self {
        let settings = file.effective(at);
        let is =
            |name: &str, values: &[&str]| settings.get(name).is_some_and(|it| values.contains(it));
        let has = |name: &str| settings.contains_key(name);
        let rw = settings.get("rw").copied().unwrap_or("read");
        let pattern = rw.split(':').next().unwrap_or_default();
        // The last one applies.
        let mut shares = file.global.iter().chain(&file.jobs[at].settings);
        let share = shares.rfind(|it| ["rwmixread", "rwmixwrite"].contains(&it.name));
        let is_pure = share.is_some_and(|it| ["0", "100"].contains(&it.value.as_str()));
        let is_of_two = matches!(pattern, "rw" | "readwrite" | "randrw");
        let two_lengths = settings.get("bs").is_some_and(|bs| bs.contains(',')) && is_of_two;
        let on_percent = has("percentage_random") && !is("percentage_random", &["100"]);
        let is_uniform = !has("random_distribution") || is("random_distribution", &["random"]);
        // After the end of a file follows a random offset.
        let ends = has("loops") || has("nrfiles") || has("io_size");
        let is_scattered = !is("percentage_random", &["0"]) || ends;
        let is_random = pattern.starts_with("rand");
        let is_strided = is("zonemode", &["strided"]);
        Self {
            is_mix: is_of_two && !is_pure,
            has_sizes: has("bssplit") || has("bsrange") || two_lengths,
            is_random: is_random && is_scattered,
            repeats: is("norandommap", &["", "1"])
                || !is_uniform
                || on_percent
                || has("blockalign")
                || rw.contains(':'),
            is_cut: has("number_ios") || has("io_size") || has("filesize"),
            by_completion: by_completion(file, at),
            has_files: has("nrfiles"),
            is_verified: has("verify") && !is("verify", &["0"]),
            has_threads: has("numjobs") && !is("numjobs", &["1"]),
            has_holes: !is_random && rw.contains(':'),
            has_flushed_passes: ((has("fsync") || has("fdatasync")) && has("iodepth"))
                || (is("end_fsync", &["1"]) || is("fsync_on_close", &["1"]))
                    && (has("loops") || has("io_size") || (has("verify") && !is("verify", &["0"]))),
            stride: is_strided.then(|| stride(&settings)),
        }
    }

    /// Everything that any job leaves to chance.
    fn of_all(file: &JobFile) -> Self {
        let all = Vec::from_iter((0..file.jobs.len()).map(|at| Self::of(file, at)));
        let any = |of: fn(&Self) -> bool| all.iter().any(of);
        Self {
            is_mix: any(|it| it.is_mix),
            has_sizes: any(|it| it.has_sizes),
            is_random: any(|it| it.is_random),
            repeats: any(|it| it.repeats),
            is_cut: any(|it| it.is_cut),
            by_completion: any(|it| it.by_completion),
            has_files: any(|it| it.has_files),
            is_verified: any(|it| it.is_verified),
            has_threads: any(|it| it.has_threads),
            has_holes: any(|it| it.has_holes),
            has_flushed_passes: any(|it| it.has_flushed_passes),
            stride: all.iter().find_map(|it| it.stride),
        }
    }
}

/// The distance between the starts of two zones.
fn stride(settings: &BTreeMap<&'static str, &str>) -> u64 {
    let length = |name: &str| settings.get(name).map_or(0, |text| bytes(settings, text));
    let range = length("zonerange");
    (if range > 0 { range } else { length("zonesize") }) + length("zoneskip")
}

/// The bytes that `text` means under the `kb_base` of a job; 0 if it is no number of bytes.
pub(super) fn bytes(settings: &BTreeMap<&'static str, &str>, text: &str) -> u64 {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).unwrap_or(0);
    }
    let lower = text.to_ascii_lowercase();
    let (digits, unit) =
        lower.split_at(lower.find(|it: char| !it.is_ascii_digit()).unwrap_or(lower.len()));
    // With `kb_base=1024`, the default, KiB is 1000.
    let is_decimal = (settings.get("kb_base") == Some(&"1000")) != unit.contains('i');
    let kilo = if is_decimal { 1000 } else { 1024u64 };
    let factor = match unit.chars().next() {
        None | Some('b') => 1,
        Some('k') => kilo,
        Some('m') => kilo * kilo,
        Some(_) => return 0,
    };
    digits.parse::<u64>().unwrap_or(0) * factor
}

/// The differences between the outcomes of `file`.
pub(super) fn compare(file: &JobFile, both: &Both) -> Vec<Difference> {
    let mut found = Found(Vec::new());
    let [fio, ours] = [&both.fio, &both.ours];
    let accepted = [fio.code == Some(0), ours.code == Some(0)];
    if accepted != [true, true] {
        if accepted != [false, false] {
            let last = |it: &Outcome| it.said.lines().last().unwrap_or_default().to_owned();
            let text = format!(
                "fio exits with {:?} ({}), blkmq with {:?} ({})",
                fio.code,
                last(fio),
                ours.code,
                last(ours)
            );
            found.add(Kind::Status, text);
        }
        return found.0;
    }
    found.options(file, &fio.report, &ours.report);
    let rows = |it: &Outcome| it.report["jobs"].as_array().cloned().unwrap_or_default();
    let (mut theirs, mut ours_rows) = (rows(fio), rows(ours));
    let names =
        |rows: &[Value]| {
            Vec::from_iter(rows.iter().map(|row| {
                ["jobname", "groupid", "error"].map(|key| row[key].to_string()).join(" ")
            }))
        };
    found.unequal(Kind::Rows, "names, groups and errors", &names(&theirs), &names(&ours_rows));
    // fio orders the threads of a job in its own way.
    for all in [&mut theirs, &mut ours_rows] {
        let threads = all.chunk_by_mut(|one, next| one["jobname"] == next["jobname"]);
        threads.for_each(|rows| rows.sort_by_key(work));
    }
    if theirs.len() == ours_rows.len() {
        for (at, (fio, ours)) in theirs.iter().zip(&ours_rows).enumerate() {
            found.row(file, at, fio, ours);
            let ours = faults(ours);
            // A rule that fio itself breaks does not count.
            let known = BTreeSet::from_iter(faults(fio).into_iter().map(|fault| fault.rule));
            for fault in ours.into_iter().filter(|fault| !known.contains(fault.rule)) {
                found.add(Kind::Arithmetic, format!("row {at}: {}: {}", fault.rule, fault.text));
            }
        }
    }
    let before = found.0.len();
    found.places(file, fio, ours);
    let are_places_equal = found.0.len() == before;
    found.files(file, fio, ours, are_places_equal);
    found.0
}

/// The I/Os of a row, by direction.
fn work(row: &Value) -> [u64; 3] {
    DIRECTIONS.map(|direction| row[direction]["total_ios"].as_u64().unwrap_or(0))
}

struct Found(Vec<Difference>);

impl Found {
    fn add(&mut self, kind: Kind, text: String) {
        self.0.push(Difference { kind, text });
    }

    fn unequal<T: PartialEq + fmt::Debug>(&mut self, kind: Kind, what: &str, fio: &T, ours: &T) {
        if fio != ours {
            self.add(kind, format!("{what}: fio {fio:?}, blkmq {ours:?}"));
        }
    }

    fn options(&mut self, file: &JobFile, fio: &Value, ours: &Value) {
        self.unequal(
            Kind::Options,
            "global options",
            &fio["global options"],
            &ours["global options"],
        );
        let of = |report: &Value, at: usize| report["jobs"][at]["job options"].clone();
        let rows = fio["jobs"].as_array().map_or(0, Vec::len);
        if rows == ours["jobs"].as_array().map_or(0, Vec::len) {
            for at in 0..rows.min(file.jobs.len()) {
                self.unequal(
                    Kind::Options,
                    &format!("options of row {at}"),
                    &of(fio, at),
                    &of(ours, at),
                );
            }
        }
    }

    /// I/Os, bytes and flushes of a row.
    fn row(&mut self, file: &JobFile, at: usize, fio: &Value, ours: &Value) {
        let job = file.jobs.iter().position(|job| fio["jobname"] == job.name.as_str());
        // With `group_reporting` a row is the sum of several jobs.
        let is_sum = file.to_string().contains("group_reporting");
        let chance = job
            .filter(|_| !is_sum)
            .map_or_else(|| Chance::of_all(file), |job| Chance::of(file, job));
        let count =
            |row: &Value, direction: &str, key: &str| row[direction][key].as_u64().unwrap_or(0);
        let counts = |row: &Value, keys: &[&str]| {
            let of =
                |direction: &str| Vec::from_iter(keys.iter().map(|key| count(row, direction, key)));
            let mut all = DIRECTIONS.map(of);
            if chance.is_verified && chance.repeats {
                // A block that is written twice is read once.
                all[0].fill(0);
            }
            if chance.is_mix {
                vec![Vec::from_iter((0..keys.len()).map(|key| all.iter().map(|it| it[key]).sum()))]
            } else {
                all.to_vec()
            }
        };
        // Reading back repeats the drawn number of writes.
        let is_drawn = chance.has_sizes || (chance.is_mix && chance.is_verified);
        let keys: &[&str] = if is_drawn {
            &["short_ios", "drop_ios"]
        } else {
            &["total_ios", "io_bytes", "short_ios", "drop_ios"]
        };
        self.unequal(
            Kind::Work,
            &format!("row {at}: {}", keys.join(", ")),
            &counts(fio, keys),
            &counts(ours, keys),
        );
        if chance.has_sizes {
            let [theirs, ours] = [fio, ours]
                .map(|row| DIRECTIONS.map(|it| count(row, it, "io_bytes")).iter().sum::<u64>());
            // The last I/O of a file and pass may be of any length.
            let is_far = theirs.abs_diff(ours) > theirs.max(ours) / 4 + (128 << 10);
            // With holes, the length of the last I/O decides whether a pass ends with it, or continues at the start.
            let is_open = chance.has_holes || (chance.is_mix && chance.is_verified);
            if is_far && !is_open {
                self.add(Kind::Work, format!("row {at}: bytes: fio {theirs}, blkmq {ours}"));
            }
        } else if !chance.is_mix {
            let syncs = |row: &Value| row["sync"]["total_ios"].as_u64();
            self.unequal(Kind::Syncs, &format!("row {at}: flushes"), &syncs(fio), &syncs(ours));
        }
    }

    fn places(&mut self, file: &JobFile, fio: &Outcome, ours: &Outcome) {
        let names = |it: &Outcome| Vec::from_iter(it.places.keys().cloned());
        self.unequal(Kind::Places, "logs", &names(fio), &names(ours));
        for (at, job) in file.jobs.iter().enumerate() {
            // fio orders the threads of a job in its own way, so their logs are combined.
            let of_job = |it: &Outcome| {
                let is_of_job = |name: &String| name.split(['.', '_']).next() == Some(&job.name);
                let logs = it.places.iter().filter(|(name, _)| is_of_job(name));
                Vec::from_iter(logs.flat_map(|(_, log)| log.iter().cloned()))
            };
            let [theirs, ours] = [fio, ours].map(of_job);
            let name = &job.name;
            let chance = Chance::of(file, at);
            // Neither a log of completions nor the null device names a file.
            let is_null = file.effective(at).get("ioengine") == Some(&"null");
            if chance.has_files && (chance.by_completion || is_null) {
                continue;
            }
            if let Some(how) = differ(chance, &file.effective(at), &theirs, &ours) {
                self.add(Kind::Places, format!("{name}: {how}"));
            }
        }
    }

    fn files(&mut self, file: &JobFile, fio: &Outcome, ours: &Outcome, are_places_equal: bool) {
        let lengths = |it: &Outcome| {
            Vec::from_iter(it.files.iter().map(|(name, left)| (name.clone(), left.bytes)))
        };
        // With `fill_device`, fio makes a file as long as the data written.
        if !file.to_string().contains("fill_device=1") {
            self.unequal(Kind::Files, "files and lengths", &lengths(fio), &lengths(ours));
        }
        let chance = Chance::of_all(file);
        let is_certain =
            !chance.is_mix && !chance.has_sizes && !chance.is_random && are_places_equal;
        for (name, left) in &ours.files {
            let Some(theirs) = fio.files.get(name) else { continue };
            // A file that is too short is laid out: by fio from its start on.
            if [theirs.bytes, left.bytes].map(Some) != [file.laid; 2] {
                continue;
            }
            if is_certain && theirs.changed != left.changed {
                let [theirs, ours] = [theirs, left].map(|it| it.changed.len());
                self.add(
                    Kind::Files,
                    format!("{name}: changed sectors: fio {theirs}, blkmq {ours}"),
                );
            }
            if !chance.by_completion {
                let written = written(ours);
                let outside =
                    left.changed.iter().filter(|sector| !written.contains(sector)).count();
                if outside > 0 {
                    self.add(
                        Kind::Files,
                        format!("{name}: {outside} sectors were changed that no I/O has written"),
                    );
                }
            }
        }
    }
}

/// The sectors that were written according to the logs.
fn written(outcome: &Outcome) -> BTreeSet<u64> {
    let writes =
        outcome.places.values().flatten().filter(|io| ["write", "trim"].contains(&io.action));
    writes.flat_map(|io| io.offset / 512..(io.offset + io.bytes).div_ceil(512)).collect()
}

/// The I/Os of a log, without the parts that always differ.
fn comparable(chance: Chance, settings: &BTreeMap<&'static str, &str>, ios: &[Io]) -> Vec<Io> {
    // The null device has no file names, and the order of random files is drawn.
    let mut ios = Vec::from_iter(ios.iter().map(|io| Io { file: String::new(), ..io.clone() }));
    if chance.has_files {
        // fio flushes each file in the end, and blkmq the one device of all.
        join_flushes(&mut ios);
    }
    if chance.has_flushed_passes {
        // Flushes for `fsync` have been counted.
        ios.retain(|io| io.action != "sync");
    }
    let Some(stride) = chance.stride.filter(|_| chance.is_random) else { return ios };
    // Of a random offset in a zone, only the zone is determined, if it is known.
    let offset = settings.get("offset").map_or("0", |text| *text);
    if offset.ends_with('%') || settings.contains_key("offset_increment") {
        return Vec::new();
    }
    let start = bytes(settings, offset);
    for io in ios.iter_mut().filter(|io| io.action != "sync") {
        io.offset -= io.offset.saturating_sub(start) % stride.max(1);
    }
    ios
}

/// The differences of the I/Os of two logs, as far as they must be equal.
fn differ(
    chance: Chance,
    settings: &BTreeMap<&'static str, &str>,
    fio: &[Io],
    ours: &[Io],
) -> Option<String> {
    if chance.has_sizes {
        return None;
    }
    let any_file = settings.get("file_service_type").is_some_and(|it| it.starts_with("random"));
    let [mut fio, mut ours] = [fio, ours].map(|ios| comparable(chance, settings, ios));
    let is_certain = !chance.is_random && !chance.is_mix && !any_file;
    if is_certain {
        // A block of a backlog is read back when its write is complete.
        let is_late = settings.contains_key("verify_backlog") && settings.contains_key("iodepth");
        if chance.by_completion || is_late || (chance.has_files && chance.is_verified) {
            // I/Os are in the order of completion, or files are read back one by one.
            fio.sort();
            ours.sort();
        }
        return at_first(&fio, &ours);
    }
    for ios in [&mut fio, &mut ours] {
        ios.retain(|io| io.action != "sync");
        ios.sort();
    }
    if chance.is_mix {
        // The sums of I/Os have been compared.
        return None;
    }
    if chance.repeats {
        // A bell or a power distribution leaves most offsets unused.
        let is_uniform = !settings.contains_key("random_distribution");
        return is_uniform.then(|| grid(&fio, &ours)).flatten();
    }
    if chance.is_cut && chance.has_files {
        // Which file ends first depends on the order.
        return None;
    }
    if chance.is_cut && chance.is_random && chance.has_threads {
        // Which threads overlap is left to chance.
        return grid(&fio, &ours);
    }
    if chance.is_cut && chance.is_random {
        let often = |ios: &[Io]| {
            let mut times = Vec::from_iter(places(ios).into_values());
            times.sort_unstable();
            times
        };
        let [theirs, ours_times] = [often(&fio), often(&ours)];
        let text = || {
            format!(
                "places by the times they were used: fio {}, blkmq {}",
                theirs.len(),
                ours_times.len()
            )
        };
        return (theirs != ours_times).then(text).or_else(|| grid(&fio, &ours));
    }
    at_first(&fio, &ours)
}

/// Keeps only one of the flushes at the end.
fn join_flushes(ios: &mut Vec<Io>) {
    while let [.., before, last] = &ios[..]
        && [before, last].iter().all(|io| io.action == "sync")
    {
        ios.pop();
    }
}

/// The first I/O that differs.
fn at_first(fio: &[Io], ours: &[Io]) -> Option<String> {
    if fio == ours {
        return None;
    }
    let at = fio.iter().zip(ours).take_while(|(fio, ours)| fio == ours).count();
    let show = |ios: &[Io]| {
        ios.get(at)
            .map_or("the end".to_owned(), |io| format!("{} {} {}", io.action, io.offset, io.bytes))
    };
    Some(format!(
        "I/O {at} of {} and {}: fio {}, blkmq {}",
        fio.len(),
        ours.len(),
        show(fio),
        show(ours)
    ))
}

/// How often each offset was used.
fn places(ios: &[Io]) -> BTreeMap<(u64, u64), u32> {
    let mut places = BTreeMap::new();
    for io in ios {
        *places.entry((io.offset, io.bytes)).or_default() += 1;
    }
    places
}

/// Reports an offset of ours that is not on fio's grid.
fn grid(fio: &[Io], ours: &[Io]) -> Option<String> {
    let first = fio.first()?;
    let step = fio.iter().fold(0, |step, io| common(step, io.offset.abs_diff(first.offset)));
    let off = |io: &&Io| step > 0 && io.offset.abs_diff(first.offset) % step != 0;
    // A few draws may have more in common than their grid.
    let finer = ours.iter().find(off).filter(|_| fio.len() >= 24)?;
    Some(format!("offset {} is not on fio's grid of {step} from {}", finer.offset, first.offset))
}

fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// A rule that a row breaks.
struct Fault {
    rule: &'static str,
    text: String,
}

const LATENCIES: [&str; 3] = ["slat_ns", "clat_ns", "lat_ns"];
/// The error of a histogram: 1/64 of a number, and the rounding of the report.
const BUCKET: f64 = 1.0 / 32.0;

/// The rules that `row` breaks.
fn faults(row: &Value) -> Vec<Fault> {
    let mut faults = Faults(Vec::new());
    for direction in DIRECTIONS {
        faults.rates(direction, &row[direction]);
        faults.samples(direction, &row[direction]);
        for latency in LATENCIES {
            faults.latency(direction, latency, &row[direction]);
        }
        faults.parts(direction, &row[direction]);
    }
    faults.shares(row);
    faults.0
}

struct Faults(Vec<Fault>);

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or(f64::NAN)
}

impl Faults {
    fn expect(&mut self, holds: bool, rule: &'static str, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Fault { rule, text: text() });
        }
    }

    /// Bytes and I/Os by the runtime, which is rounded to milliseconds.
    fn rates(&mut self, direction: &str, of: &Value) {
        let [bytes, kbytes, bw_bytes, bw, iops, runtime, ios] =
            ["io_bytes", "io_kbytes", "bw_bytes", "bw", "iops", "runtime", "total_ios"]
                .map(|key| number(&of[key]));
        let shown = || {
            format!(
                "{direction}: {bytes} bytes, {kbytes} KiB, {ios} I/Os, {runtime} ms, {bw_bytes} B/s, {bw} KiB/s, {iops} IOPS"
            )
        };
        self.expect((kbytes - bytes / 1024.0).abs() <= 1.0, "io_kbytes is io_bytes by 1024", shown);
        self.expect((bw - bw_bytes / 1024.0).abs() <= 1.0, "bw is bw_bytes by 1024", shown);
        self.expect((bytes == 0.0) == (ios == 0.0), "bytes come with I/Os", shown);
        let fits = |rate: f64, amount: f64| {
            let least = amount * 1000.0 / (runtime + 1.0) - 1.0;
            let most =
                if runtime > 1.0 { amount * 1000.0 / (runtime - 1.0) + 1.0 } else { f64::INFINITY };
            (least..=most).contains(&rate) || ios == 0.0 && rate == 0.0
        };
        self.expect(fits(bw_bytes, bytes), "bw_bytes is io_bytes by runtime", shown);
        self.expect(fits(iops, ios), "iops is total_ios by runtime", shown);
    }

    /// Averages of spans of half a second.
    fn samples(&mut self, direction: &str, of: &Value) {
        for [least, mean, most, samples] in [
            ["bw_min", "bw_mean", "bw_max", "bw_samples"],
            ["iops_min", "iops_mean", "iops_max", "iops_samples"],
        ] {
            let [low, mid, high, count] = [least, mean, most, samples].map(|key| number(&of[key]));
            let shown = || format!("{direction}: {low} <= {mid} <= {high} of {count}");
            self.expect(
                low <= mid + 1.0 && mid <= high + 1.0,
                "a mean lies between the least and the most",
                shown,
            );
            self.expect(count > 0.0 || high == 0.0, "without samples there is no most", shown);
        }
    }

    fn latency(&mut self, direction: &str, name: &str, of: &Value) {
        let [least, mean, most, deviation, count] =
            ["min", "mean", "max", "stddev", "N"].map(|key| number(&of[name][key]));
        let shown = || {
            format!(
                "{direction}.{name}: {least} <= {mid} <= {most}, {deviation}, of {count}",
                mid = mean
            )
        };
        self.expect(
            least <= mean + 1.0 && mean <= most + 1.0,
            "a latency's mean lies between its least and its most",
            shown,
        );
        self.expect(
            deviation <= most - least + 1.0,
            "a deviation is no longer than the span",
            shown,
        );
        self.expect(
            count > 0.0 || (least, mean, most) == (0.0, 0.0, 0.0),
            "no latency without a sample",
            shown,
        );
        let Some(percentiles) = of[name]["percentile"].as_object() else { return };
        let mut all = Vec::from_iter(
            percentiles.iter().map(|(key, value)| (key.parse().unwrap_or(f64::NAN), number(value))),
        );
        all.sort_by(|(a, _), (b, _)| f64::total_cmp(a, b));
        let values = Vec::from_iter(all.into_iter().map(|(_, value)| value));
        let shown = || format!("{direction}.{name}: {values:?} of {least} to {most}");
        self.expect(values.is_sorted(), "percentiles rise", shown);
        let [low, high] = [values.first(), values.last()].map(|it| it.copied().unwrap_or(0.0));
        let within = low * (1.0 + BUCKET) + 1.0 >= least && high <= most * (1.0 + BUCKET) + 1.0;
        self.expect(
            count == 0.0 || within,
            "percentiles lie between the least and the most",
            shown,
        );
    }

    /// The total latency is that of submission and that of completion.
    fn parts(&mut self, direction: &str, of: &Value) {
        let [slat, clat, lat] =
            LATENCIES.map(|name| (number(&of[name]["N"]), number(&of[name]["mean"])));
        let ios = number(&of["total_ios"]);
        let shown = || format!("{direction}: {slat:?} and {clat:?} make {lat:?} of {ios}");
        self.expect(clat.0 == 0.0 || clat.0 == ios, "each I/O has a completion latency", shown);
        self.expect(lat.0 == 0.0 || lat.0 == ios, "each I/O has a total latency", shown);
        self.expect(
            lat.0 == 0.0 || clat.0 == 0.0 || lat.1 + 1.0 >= clat.1,
            "a total latency has its completion in it",
            shown,
        );
    }

    /// Shares of all I/Os, in percent.
    fn shares(&mut self, row: &Value) {
        let sum = |name: &str| {
            row[name].as_object().map_or(0.0, |shares| shares.values().map(number).sum::<f64>())
        };
        let ios = DIRECTIONS.iter().map(|it| number(&row[*it]["total_ios"])).sum::<f64>();
        let levels = sum("iodepth_level");
        let latencies = sum("latency_ns") + sum("latency_us") + sum("latency_ms");
        let is_all =
            |share: f64| (share - 100.0).abs() <= 1.5 || (ios == 0.0 && share.abs() <= 100.5);
        self.expect(is_all(levels), "depths have all I/Os", || format!("{levels} % of {ios}"));
        self.expect(is_all(latencies), "latencies have all I/Os", || {
            format!("{latencies} % of {ios}")
        });
        let sync = &row["sync"];
        let [flushes, timed] = [number(&sync["total_ios"]), number(&sync["lat_ns"]["N"])];
        self.expect(
            timed <= flushes || timed.is_nan() || flushes.is_nan(),
            "a flush has one latency",
            || format!("{timed} of {flushes}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row() -> Value {
        let latency = json!({ "min": 10, "max": 30, "mean": 20.0, "stddev": 5.0, "N": 100 });
        let mut completion = latency.clone();
        completion["percentile"] = json!({ "1.000000": 10, "50.000000": 20, "99.000000": 30 });
        let read = json!({
            "io_bytes": 409_600, "io_kbytes": 400, "bw_bytes": 4_096_000, "bw": 4_000, "iops": 1000.0, "runtime": 100, "total_ios": 100,
            "slat_ns": latency, "clat_ns": completion, "lat_ns": latency,
            "bw_min": 3_000, "bw_mean": 4_000.0, "bw_max": 5_000, "bw_samples": 2,
            "iops_min": 900, "iops_mean": 1_000.0, "iops_max": 1_100, "iops_samples": 2,
        });
        let none = json!({ "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 });
        let idle = json!({
            "io_bytes": 0, "io_kbytes": 0, "bw_bytes": 0, "bw": 0, "iops": 0.0, "runtime": 0, "total_ios": 0,
            "slat_ns": none, "clat_ns": none, "lat_ns": none,
            "bw_min": 0, "bw_mean": 0.0, "bw_max": 0, "bw_samples": 0,
            "iops_min": 0, "iops_mean": 0.0, "iops_max": 0, "iops_samples": 0,
        });
        json!({
            "read": read, "write": idle, "trim": idle, "sync": { "total_ios": 1, "lat_ns": { "N": 1 } },
            "iodepth_level": { "1": 60.0, "2": 40.0 }, "latency_ns": { "10": 100.0 }, "latency_us": {}, "latency_ms": {},
        })
    }

    fn rules(row: &Value) -> Vec<&'static str> {
        faults(row).into_iter().map(|fault| fault.rule).collect()
    }

    #[test]
    fn figures_that_fit_are_left_in_peace() {
        assert_eq!(rules(&row()), [""; 0]);
    }

    #[test]
    fn figures_that_do_not_fit_are_found() {
        let broken = |of: &[&str], value: Value| {
            let mut row = row();
            *of.iter().fold(&mut row, |row, key| &mut row[*key]) = value;
            rules(&row)
        };
        assert_eq!(broken(&["read", "io_kbytes"], json!(409)), ["io_kbytes is io_bytes by 1024"]);
        assert_eq!(broken(&["read", "iops"], json!(500.0)), ["iops is total_ios by runtime"]);
        assert_eq!(broken(&["read", "bw"], json!(4_096)), ["bw is bw_bytes by 1024"]);
        assert_eq!(
            broken(&["read", "bw_mean"], json!(1_000.0)),
            ["a mean lies between the least and the most"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "N"], json!(99)),
            ["each I/O has a completion latency"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "percentile", "1.000000"], json!(25)),
            ["percentiles rise"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "percentile", "99.000000"], json!(40)),
            ["percentiles lie between the least and the most"]
        );
        assert_eq!(
            broken(&["read", "lat_ns", "mean"], json!(15.0)),
            ["a total latency has its completion in it"]
        );
        assert_eq!(broken(&["write", "lat_ns", "max"], json!(1)), ["no latency without a sample"]);
        assert_eq!(broken(&["iodepth_level", "2"], json!(20.0)), ["depths have all I/Os"]);
        assert_eq!(broken(&["latency_ns", "10"], json!(200.0)), ["latencies have all I/Os"]);
        assert_eq!(broken(&["sync", "lat_ns", "N"], json!(2)), ["a flush has one latency"]);
    }
}

//! Draws a job file from a seed: a global section and one to three jobs, with options that decide which I/Os are
//! issued. The weights are chosen so that most files are accepted. Nothing is run here.

use crate::random::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A job file. A shrinker may remove any of its options except those of [`NEEDED`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JobFile {
    /// The length of the file `data`, if there is one beforehand.
    pub(super) laid: Option<u64>,
    pub(super) global: Vec<Setting>,
    pub(super) jobs: Vec<Job>,
}

/// A section that is a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) settings: Vec<Setting>,
}

/// An option with its value; an empty value means the bare name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// Options without which a run would change its meaning, or be endless.
pub(super) const NEEDED: [&str; 4] = ["filename", "directory", "size", "ioengine"];

/// The file of a job that has one name.
pub(super) const DATA: &str = "data";

/// When an option may be drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Always,
    /// There are files.
    OnFiles,
    /// There are several files for a thread.
    SeveralFiles,
    /// Like [`SeveralFiles`](Self::SeveralFiles), but not parts of the null device: there, fio 3.33 has files of a
    /// share of `size`, whatever `filesize` is (docs/fio-options.md).
    SeveralRealFiles,
    /// There is one file, or a stretch of the null device.
    OneFile,
    /// Only together with the option before it in the table.
    AfterLast,
}

/// An option that may be drawn.
struct Choice {
    name: &'static str,
    /// The number of sections, out of a thousand, that have the option.
    share: u32,
    when: When,
    values: &'static [&'static str],
}

const fn choice(
    name: &'static str,
    share: u32,
    when: When,
    values: &'static [&'static str],
) -> Choice {
    Choice { name, share, when, values }
}

/// fio accepts the bare name of these.
const FLAG: &[&str] = &["", "1", "0"];
/// fio requires a number for these.
const BOOL: &[&str] = &["1", "1", "0"];

/// Options of a section, in the order in which they are drawn.
const CHOICES: &[Choice] = &[
    choice(
        "bs",
        500,
        When::Always,
        &[
            "512", "1k", "2k", "3k", "4k", "4k", "6k", "8k", "12k", "16k", "16K", "64k", "0x1000",
            "4Ki", "8192b", "4k,8k", ",8k", "8k,,16k", "20k", "32kb",
        ],
    ),
    choice("bsrange", 40, When::Always, &["4k-16k", "1k-8k", "4k-16k,8k-32k", "512-4k"]),
    choice(
        "bssplit",
        50,
        When::Always,
        &["4k/50:8k/50", "4k/10:64k/90", "4k:16k", "4k/30:8k", "8k/60,4k/50:16k/50", "2k/98"],
    ),
    choice("blockalign", 30, When::Always, &["4k", "8k", "16k", "512"]),
    choice("rwmixread", 120, When::Always, &["0", "1", "30", "70", "99", "100"]),
    choice("rwmixwrite", 60, When::Always, &["0", "25", "80", "100"]),
    choice("percentage_random", 60, When::Always, &["0", "100"]),
    choice("rw_sequencer", 30, When::Always, &["sequential", "identical"]),
    choice("norandommap", 90, When::Always, FLAG),
    choice("random_generator", 60, When::Always, &["lfsr", "tausworthe", "tausworthe64"]),
    choice(
        "random_distribution",
        60,
        When::Always,
        &["random", "zipf:1.2", "zipf:0.8", "pareto:0.3", "normal:20", "zoned:60/10:30/20:10/70"],
    ),
    choice("randrepeat", 50, When::Always, BOOL),
    choice("allrandrepeat", 30, When::Always, BOOL),
    choice("randseed", 50, When::Always, &["1", "77", "0x89"]),
    choice("io_size", 100, When::Always, &["64k", "100k", "300k", "1m", "25%", "150%", "3m", "0"]),
    choice(
        "offset",
        120,
        When::OneFile,
        &["4k", "64k", "128Ki", "100k", "10%", "33%", "1m", "5000"],
    ),
    choice("offset_increment", 40, When::OneFile, &["64k", "32k", "10%", "100k"]),
    choice("loops", 90, When::Always, &["1", "2", "3", "5"]),
    choice("number_ios", 70, When::Always, &["1", "7", "16", "100", "0"]),
    choice("zonemode", 60, When::OneFile, &["strided"]),
    choice("zonesize", 900, When::AfterLast, &["16k", "32k", "64k", "20k"]),
    choice("zoneskip", 700, When::AfterLast, &["16k", "64k", "0", "12k"]),
    choice("zonerange", 300, When::AfterLast, &["64k", "128k", "32k"]),
    choice("numjobs", 120, When::Always, &["1", "2", "3"]),
    choice("fsync", 40, When::Always, &["1", "4", "10", "0"]),
    choice("fdatasync", 40, When::Always, &["1", "3", "16"]),
    choice("end_fsync", 50, When::Always, BOOL),
    choice("fsync_on_close", 40, When::Always, BOOL),
    choice("sync", 20, When::OnFiles, &["none", "sync", "dsync", "0", "1"]),
    choice(
        "verify",
        70,
        When::Always,
        &["crc32c", "md5", "xxhash", "sha256", "meta", "null", "crc32c-intel", "0"],
    ),
    choice("do_verify", 400, When::AfterLast, BOOL),
    choice("verify_backlog", 300, When::AfterLast, &["1", "8", "100"]),
    choice("verify_interval", 200, When::AfterLast, &["512", "4k"]),
    choice("verify_fatal", 300, When::AfterLast, BOOL),
    choice(
        "file_service_type",
        500,
        When::SeveralFiles,
        &["roundrobin", "random", "sequential", "roundrobin:4", "sequential:2", "random:8"],
    ),
    choice("openfiles", 200, When::SeveralFiles, &["1", "2"]),
    choice("filesize", 100, When::SeveralRealFiles, &["64k", "256k", "1m"]),
    choice("fill_device", 20, When::OnFiles, BOOL),
    choice("overwrite", 30, When::OnFiles, BOOL),
    choice("invalidate", 30, When::OnFiles, BOOL),
    choice("fallocate", 30, When::OnFiles, &["native", "posix"]),
    choice("create_serialize", 20, When::OnFiles, BOOL),
    choice("create_fsync", 20, When::OnFiles, BOOL),
    choice("dedupe_percentage", 20, When::Always, &["0", "50", "100"]),
    choice("buffer_compress_percentage", 20, When::Always, &["0", "50", "100"]),
    choice("buffer_pattern", 20, When::Always, &["0xdeadbeef", "7", "\"text\""]),
    choice("zero_buffers", 20, When::Always, FLAG),
    choice("refill_buffers", 20, When::Always, FLAG),
    choice("scramble_buffers", 20, When::Always, BOOL),
    choice("group_reporting", 150, When::Always, FLAG),
    choice("new_group", 40, When::Always, FLAG),
    choice("stonewall", 200, When::Always, &["", "", "1", "0"]),
    choice("iodepth", 220, When::Always, &["1", "2", "4", "16", "7"]),
    choice("iodepth_batch", 60, When::Always, &["1", "2", "4"]),
    choice("iodepth_batch_complete", 40, When::Always, &["0", "1", "2"]),
    choice("iodepth_batch_complete_max", 20, When::Always, &["1", "8"]),
    choice("iodepth_low", 30, When::Always, &["1", "2"]),
    choice("serialize_overlap", 20, When::Always, BOOL),
    choice("thinktime", 30, When::Always, &["0", "1us", "50"]),
    choice("thinktime_blocks", 500, When::AfterLast, &["1", "8"]),
    choice("runtime", 40, When::Always, &["30", "1m", "20s"]),
    choice("thread", 60, When::Always, FLAG),
    choice("kb_base", 30, When::Always, &["1000", "1024"]),
    choice("description", 20, When::Always, &["a word or two"]),
    choice("experimental_verify", 20, When::Always, &["0"]),
    choice("unit_base", 20, When::Always, &["0", "8", "1"]),
];

/// The pattern of a job. Trims are left to the null device: fio does not trim files.
const PATTERNS: [&str; 18] = [
    "read",
    "read",
    "write",
    "write",
    "randread",
    "randread",
    "randwrite",
    "randwrite",
    "rw",
    "randrw",
    "readwrite",
    "read:4k",
    "write:8k",
    "read:-8k",
    "randread:8",
    "randwrite:3",
    "randrw:2",
    "write:3k",
];
const TRIMS: [&str; 5] = ["trim", "randtrim", "trimwrite", "randtrimwrite", "trim:4k"];
/// If a job has no size of its own, the global section has one.
const SIZES: [&str; 14] = [
    "64k", "64Ki", "100k", "128k", "256k", "256k", "512k", "512KiB", "1m", "1M", "1000k", "70000",
    "0x40000", "2m",
];
const LONG_SIZES: [&str; 5] = ["256k", "512k", "1m", "1000k", "2m"];
const ENGINES: [&str; 12] = [
    "psync", "psync", "libaio", "libaio", "libaio", "io_uring", "io_uring", "sync", "pvsync",
    "posixaio", "null", "null",
];
/// Settings that both must refuse.
const FAULTS: [(&str, &str); 7] = [
    ("rw", "randreed"),
    ("verify", "crc33"),
    ("numjobs", "many"),
    ("nonesuch", "1"),
    ("rwmixread", "101"),
    ("ioengine", "nonesuch"),
    ("random_distribution", "zapf"),
];
/// One file in this many has a fault.
const FAULT_IN: u32 = 40;

impl JobFile {
    /// The file of `seed`.
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let engine = random.pick(&ENGINES);
        let is_null = engine == "null";
        let direct = random.pick(&["1", "1", "0"]);
        let mut global = vec![setting("ioengine", engine), setting("direct", direct)];
        let is_one = random.below(4) > 0;
        let several = random.pick(&["2", "3", "4"]);
        match (is_null, is_one) {
            (true, true) => {}
            (_, false) => {
                if !is_null {
                    global.push(setting("directory", "."));
                }
                global.push(setting("nrfiles", several));
            }
            (false, true) => global.push(setting("filename", DATA)),
        }
        let is_laid = !is_null && is_one && random.below(3) > 0;
        let laid = is_laid.then(|| random.pick(&[2u64 << 20, 4 << 20, (1 << 20) + (3 << 9)]));
        global.push(setting("size", size(&mut random, is_one)));
        let place = Place { is_null, is_one, is_laid };
        place.draw_some(&mut random, &mut global, 3);
        let jobs = random.pick(&[1, 1, 1, 2, 2, 3]);
        let mut jobs = Vec::from_iter((0..jobs).map(|at| {
            let trims = is_null && random.below(5) == 0;
            let rw = if trims { random.pick(&TRIMS) } else { random.pick(&PATTERNS) };
            let mut settings = vec![setting("rw", rw)];
            if random.below(3) == 0 {
                settings.push(setting("size", size(&mut random, is_one)));
            }
            place.draw_some(&mut random, &mut settings, 1);
            Job { name: ["first", "second", "third"][at].to_owned(), settings }
        }));
        if random.below(FAULT_IN) == 0 {
            let (name, value) = random.pick(&FAULTS);
            jobs[0].settings.push(setting(name, value));
        }
        Self { laid, global, jobs }
    }

    /// The settings of the job at `at` by the names of the table, with those of all jobs.
    pub(super) fn effective(&self, at: usize) -> BTreeMap<&'static str, &str> {
        let all = self.global.iter().chain(&self.jobs[at].settings);
        all.map(|it| (it.name, it.value.as_str())).collect()
    }

    /// The number of settings.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.global.len() + self.jobs.iter().map(|job| job.settings.len()).sum::<usize>()
    }
}

/// Where the I/O of a file goes.
#[derive(Clone, Copy)]
struct Place {
    is_null: bool,
    is_one: bool,
    is_laid: bool,
}

impl Place {
    /// Adds options, each `rarer` times less often than in the table.
    fn draw_some(self, random: &mut SplitMix64, settings: &mut Vec<Setting>, rarer: u32) {
        let mut is_last_drawn = false;
        for choice in CHOICES {
            let may = match choice.when {
                When::Always => true,
                When::OnFiles => !self.is_null,
                When::SeveralFiles => !self.is_one,
                When::SeveralRealFiles => !self.is_one && !self.is_null,
                When::OneFile => self.is_one,
                When::AfterLast => is_last_drawn,
            };
            let of = if choice.when == When::AfterLast { 1_000 } else { 1_000 * rarer };
            let is_drawn = random.below(of) < choice.share && may;
            let value = random.pick(choice.values);
            // fio treats a share of a file that does not exist as 0.
            let is_share = choice.name.starts_with("offset") && value.ends_with('%');
            let is_drawn = is_drawn && (self.is_laid || !is_share);
            if is_drawn {
                settings.push(setting(choice.name, value));
            }
            if choice.when != When::AfterLast {
                is_last_drawn = is_drawn;
            }
        }
    }
}

/// A size of which the share of each of several files is no shorter than a block.
fn size(random: &mut SplitMix64, is_one: bool) -> &'static str {
    if is_one { random.pick(&SIZES) } else { random.pick(&LONG_SIZES) }
}

fn setting(name: &'static str, value: &str) -> Setting {
    Setting { name, value: value.to_owned() }
}

/// Options of a job that are not drawn, by the reason.
const NOT_DRAWN: &[(&str, &[&str])] = &[
    (
        "the time decides what is done",
        &[
            "time_based",
            "ramp_time",
            "startdelay",
            "rate_iops",
            "rate",
            "rate_process",
            "exitall",
            "latency_target",
            "latency_window",
            "latency_percentile",
            "rate_iops_min",
            "wait_for",
            "exit_what",
            "flow_id",
            "latency_run",
            "rate_min",
            "rate_cycle",
            "flow",
            "flow_sleep",
            "thinktime_blocks_type",
            "max_latency",
        ],
    ),
    (
        "figures, priorities and CPUs are no work",
        &[
            "cpus_allowed",
            "cpumask",
            "numa_cpu_nodes",
            "numa_mem_policy",
            "cpus_allowed_policy",
            "prioclass",
            "prio",
            "cmdprio_percentage",
            "cmdprio_class",
            "cmdprio",
            "cmdprio_bssplit",
            "cgroup",
            "cgroup_weight",
            "gtod_reduce",
            "disable_lat",
            "disable_clat",
            "disable_slat",
            "clat_percentiles",
            "lat_percentiles",
            "slat_percentiles",
            "percentile_list",
            "group",
            "unified_rw_reporting",
        ],
    ),
    ("no I/O of these files fails", &["continue_on_error"]),
    (
        "the files are those of the comparison",
        &["filename_format", "allow_file_create", "buffered"],
    ),
    (
        "what is verified is compared by other checks",
        &["verify_pattern", "verify_state_save", "verify_state_load", "verify_only"],
    ),
    (
        "contents are compared by other checks",
        &["buffer_compress_chunk", "dedupe_mode", "dedupe_working_set_percentage", "dedupe_global"],
    ),
];

/// The options under these headings of the help of `blkmq bench` that are neither drawn nor excluded with a reason.
pub(super) fn forgotten(help: &str) -> Vec<&str> {
    const HEADINGS: [&str; 4] = ["Engine and file:", "Pattern:", "Load and time:", "Verification:"];
    let mut is_of_jobs = false;
    let mut names = Vec::new();
    for line in help.lines() {
        if !line.starts_with(' ') && !line.is_empty() {
            is_of_jobs = HEADINGS.contains(&line);
        }
        if let Some(option) = line.strip_prefix("      --").filter(|_| is_of_jobs) {
            names.extend(option.split(['=', '[', ' ']).next());
        }
    }
    let left_out = NOT_DRAWN.iter().flat_map(|(_, names)| *names);
    let drawn = CHOICES.iter().map(|choice| &choice.name).chain(&NEEDED);
    let known = drawn.chain(left_out).chain(&["rw", "nrfiles", "direct"]);
    let known = BTreeSet::from_iter(known.copied());
    // The table may use another spelling than the help.
    let spelling = |name: &str| match name {
        "iodepth_batch_submit" => "iodepth_batch".to_owned(),
        "iodepth_batch_complete_min" => "iodepth_batch_complete".to_owned(),
        name => name.to_owned(),
    };
    names.retain(|name| !known.contains(spelling(name).as_str()));
    names
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.as_str() {
            "" => write!(f, "{}", self.name),
            value => write!(f, "{}={value}", self.name),
        }
    }
}

impl fmt::Display for JobFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bytes) = self.laid {
            writeln!(f, "; {DATA} has {bytes} bytes beforehand")?;
        }
        writeln!(f, "[global]")?;
        self.global.iter().try_for_each(|it| writeln!(f, "{it}"))?;
        self.jobs.iter().try_for_each(|job| {
            writeln!(f, "[{}]", job.name)?;
            job.settings.iter().try_for_each(|it| writeln!(f, "{it}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> impl Iterator<Item = JobFile> {
        (0..3_000).map(JobFile::draw)
    }

    #[test]
    fn a_seed_always_gives_the_same_file() {
        assert_eq!(JobFile::draw(7), JobFile::draw(7));
        assert_eq!(files().map(|file| file.to_string()).collect::<BTreeSet<_>>().len(), 3_000);
    }

    #[test]
    fn every_option_and_every_value_is_drawn() {
        let settings = Vec::from_iter(files().flat_map(|file| {
            file.global.into_iter().chain(file.jobs.into_iter().flat_map(|job| job.settings))
        }));
        let drawn = BTreeSet::from_iter(settings.iter().map(|it| (it.name, it.value.as_str())));
        for choice in CHOICES {
            for value in choice.values {
                assert!(drawn.contains(&(choice.name, *value)), "{}={value}", choice.name);
            }
        }
        for rw in PATTERNS.iter().chain(&TRIMS) {
            assert!(drawn.contains(&("rw", *rw)), "{rw}");
        }
    }

    #[test]
    fn a_file_has_what_bounds_it() {
        for file in files() {
            for at in 0..file.jobs.len() {
                let settings = file.effective(at);
                assert!(
                    settings.contains_key("size") && settings.contains_key("ioengine"),
                    "{file}"
                );
                assert!(!settings.contains_key("time_based"), "{file}");
            }
            let has = |name: &str| file.global.iter().any(|it| it.name == name);
            assert!(file.laid.is_none() || has("filename"), "{file}");
        }
    }

    #[test]
    fn an_option_that_is_not_drawn_is_found() {
        let help = "Jobs:\n      --name=<NAME>\n\nPattern:\n      --rw=<X>  a\n      --novel=<X>\n          b\n\nOutput:\n      --output=<X>\n";
        assert_eq!(forgotten(help), ["novel"]);
    }

    #[test]
    fn a_file_is_written_as_fio_reads_it() {
        let job = Job {
            name: "first".to_owned(),
            settings: vec![setting("rw", "read"), setting("stonewall", "")],
        };
        let file =
            JobFile { laid: Some(512), global: vec![setting("size", "64k")], jobs: vec![job] };
        let expected =
            "; data has 512 bytes beforehand\n[global]\nsize=64k\n[first]\nrw=read\nstonewall\n";
        assert_eq!(file.to_string(), expected);
        assert_eq!(file.effective(0).get("rw"), Some(&"read"));
    }
}

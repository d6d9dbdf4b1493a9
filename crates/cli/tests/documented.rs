//! Documents and help hold what they say.
//!
//! Every command shown in the README, the help pages and the documentation: a shell runs it as written, and it succeeds
//! within half a minute. The half minute applies to an otherwise idle machine, unlike that of a test: so a command gets
//! half a minute of CPU time, counted by the kernel, and the duration stated by its plan must be at most half a minute.
//! Commands of the server's programs, and of other programs, are run by `cargo xtask interop serve-documented`.
//!
//! Every option that the help lists as effective changes something. This file says where that is visible: in the
//! figures of a simulation, or in a test whose text contains the name of the option. An option that is parsed and shown
//! but has no effect would pass every test of its parsing.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The maximum time that a user waits for a documented command, in seconds.
const SECONDS: usize = 30;

/// A command that has not ended after this many seconds hangs, however busy the machine is.
const HANGS: &str = "600";

/// Commands of `blkmq` with pages of help.
const COMMANDS: [&str; 10] = [
    "--help",
    "bench --help",
    "sim --help",
    "replay --help",
    "trace --help",
    "experiment --help",
    "repro --help",
    "doc --help",
    "completions --help",
    "man --help",
];

/// A command of this program, from its first to its last word: comments follow after two spaces.
fn command(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(words) = line.strip_prefix("cargo run --release -- ") {
        return Some(format!("blkmq {words}"));
    }
    line.starts_with("blkmq ").then(|| line.split("  ").next().unwrap_or(line).to_owned())
}

/// The commands in the lines of a text; a backslash continues a line.
fn of_lines(text: &str) -> Vec<String> {
    let mut whole = String::new();
    for line in text.lines() {
        match line.strip_suffix('\\') {
            Some(line) => whole.push_str(&format!("{} ", line.trim())),
            None if whole.ends_with(' ') => whole.push_str(&format!("{}\n", line.trim())),
            None => whole.push_str(&format!("{line}\n")),
        }
        // A continued command begins at the start of a line.
        if whole.ends_with(' ') && !whole.contains('\n') {
            whole.insert(0, '\n');
        }
    }
    whole.lines().filter_map(command).collect()
}

/// The commands of a page in Markdown: lines of its blocks.
fn of_page(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    blocks.flat_map(of_lines).collect()
}

/// Like the above, including words in backticks, which may span lines. On pages other than the README these are names.
fn of_readme(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, block) in text.split("```").enumerate() {
        if number % 2 == 1 {
            found.extend(of_lines(block));
        } else {
            let inline = block.split('`').skip(1).step_by(2).map(|it| it.replace('\n', " "));
            // A command without arguments is a name.
            found.extend(inline.filter(|it| it.contains(" --")).filter_map(|it| command(&it)));
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let crates = std::fs::read_dir(root().join("crates")).expect("it can be read");
    let docs = crates.map(|it| it.expect("it can be read").path().join("doc"));
    for folder in docs.chain([root().join("docs")]).filter(|it| it.is_dir()) {
        let files = std::fs::read_dir(folder).expect("it can be read");
        let files = files.map(|it| it.expect("it can be read").path());
        pages.extend(files.filter(|it| it.extension().is_some_and(|it| it == "md")));
    }
    pages.sort();
    pages
}

/// All documented commands, in an order in which each finds the files of earlier ones.
fn shown() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("text");
        all.extend(if page.ends_with("README.md") { of_readme(&text) } else { of_page(&text) });
    }
    for words in COMMANDS {
        let mut help = Command::new(crate::program());
        let output = help.args(words.split(' ')).env("COLUMNS", "200").output().expect("it starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let (_, examples) = text.split_once("\nExamples:\n").expect("there are some");
        all.extend(of_lines(examples));
    }
    all
}

/// Words of commands that are not run here, and why.
const ELSEWHERE: [(&str, &str); 6] = [
    ("nbd://", "needs a server of NBD; the checks remote-* of cargo xtask interop"),
    ("--device=rbd:", "needs a cluster of Ceph; the checks rbd-* of cargo xtask interop"),
    ("/usr/local/", "installs a file there"),
    ("~/.local/", "installs a file there"),
    ("~/.zfunc/", "installs a file there"),
    ("~/.config/", "installs a file there"),
];

fn is_elsewhere(line: &str) -> bool {
    ELSEWHERE.iter().any(|(words, _)| line.contains(words))
}

/// A program in the command that this machine lacks.
fn lacks(line: &str) -> Option<&'static str> {
    let program = line.contains("man -l").then_some("man")?;
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    (!found.is_ok_and(|output| output.status.success())).then_some(program)
}

/// Returns whether the command measures real time. Its threads may use all CPUs for the stated duration.
fn is_timed(line: &str) -> bool {
    line.starts_with("blkmq bench")
}

/// Runs a line in `folder`, with a limit of `seconds` of CPU time. An error describes the failure.
fn output_of(line: &str, folder: &Path, seconds: usize) -> Result<String, String> {
    let command = line.replace("blkmq ", "\"$BLKMQ\" ");
    let script = format!("ulimit -t {seconds}; {command}");
    let mut shell = Command::new("timeout");
    shell.args([HANGS, "sh", "-c", &script]).current_dir(folder).env("BLKMQ", crate::program());
    let output = shell.output().expect("timeout and a shell are there");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(124) => Err(format!("{line}: not within {HANGS} s")),
        // The kernel kills a process that exceeds its limit; either the shell reports it, or it was the shell.
        Some(137) | None => Err(format!("{line}: not within {seconds} s of CPU time")),
        code => Err(format!("{line}: {code:?}: {errors}")),
    }
}

/// Creates the files that commands name.
fn provide(folder: &Path) {
    let put = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("room");
    let row =
        |at: u64| (at * 10, if at.is_multiple_of(3) { "write" } else { "read" }, at % 97 * 8192);
    let rows = || (0..2_000).map(row);
    let head = String::from("time_ns,op,offset,size,tenant,volume,class,latency_ns\n");
    let trace = rows().map(|(us, op, offset)| {
        format!(
            "{us}000,{op},{offset},4096,{},v,none,\n",
            if us.is_multiple_of(20) { "a" } else { "b" }
        )
    });
    put("trace.csv", trace.fold(head, |text, row| text + &row));
    put("own.csv", rows().map(|(us, op, offset)| format!("{us},{op},{offset},4096\n")).collect());
    let study = "options = { device = 'flash', rw = 'randread', size = '4m' }\n\
                 [grid]\nscheduler = ['none', 'bfq']\nseed = '1..6'\n";
    put("study.toml", study.into());
    // A log is that of the example above its replay, and shards are put together when all of them are there.
    let log = "blkmq sim --scheduler=mq-deadline --rw=randrw --size=64m --elevator-log=run.log";
    let shards =
        [1, 2, 3].map(|i| format!("blkmq experiment study.toml --shard={i}/3 --out=results"));
    let zipped = "gzip --keep trace.csv".to_owned();
    for line in shards.into_iter().chain([log.into(), zipped]) {
        carry_out(&line, folder).expect("a file that commands name");
    }
}

/// Runs a line in `folder`; an error describes the failure.
fn carry_out(line: &str, folder: &Path) -> Result<(), String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    output_of(line, folder, if is_timed(line) { SECONDS * cpus } else { SECONDS }).map(drop)
}

/// The maximum duration stated by a plan, in seconds; `None` if it ends with its I/O.
fn stated(plan: &str) -> Option<f64> {
    let words = plan.split_whitespace().collect::<Vec<_>>();
    let end = words.windows(3).find(|words| words[1..] == ["in", "all."])?;
    let (digits, unit) = end[0].split_at(end[0].find(|c: char| c.is_ascii_alphabetic())?);
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        _ => 1e-6,
    };
    Some(digits.parse::<f64>().ok()? * scale)
}

#[test]
fn commands_are_found_as_they_are_written() {
    let text = "Run `blkmq sim\n--seed=1` or `blkmq bench`.\n```\nblkmq doc none     a page\n  blkmq bench \\\n      --rw=read\n```";
    assert_eq!(of_page(text), ["blkmq doc none", "blkmq bench --rw=read"]);
    assert_eq!(of_readme(text), ["blkmq sim --seed=1", "blkmq doc none", "blkmq bench --rw=read"]);
    let all = shown();
    for line in ["blkmq bench", "blkmq replay run.log", "blkmq doc attributes"] {
        assert!(all.contains(line), "{line} is missing in {all:#?}");
    }
    let readme = "blkmq bench --scheduler none,mq-deadline --access combining,spin --threads 1,2 --rw=randread --bs=4k \
                  --iodepth=32";
    assert!(all.contains(readme), "{all:#?}");
    assert!(all.iter().filter(|line| !is_elsewhere(line)).count() > 15);
    for (words, why) in ELSEWHERE {
        assert!(all.iter().any(|line| line.contains(words)), "{words}: no command has it: {why}");
    }
}

/// Includes commands that measure for seconds; they run one after the other, since each needs the whole machine.
#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn every_command_that_is_shown_ends_well_within_half_a_minute() {
    let folder = tempfile::tempdir().expect("a folder");
    provide(folder.path());
    let all = shown();
    let mut wrong = Vec::new();
    for line in all.iter().filter(|line| !is_elsewhere(line)) {
        match lacks(line) {
            Some(program) => println!("SKIP {line}: {program} is not installed"),
            None => wrong.extend(carry_out(line, folder.path()).err()),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// At least the options of every documented command are accepted: commands that measure are only planned, and the plan
/// states the duration.
#[test]
fn every_command_that_is_shown_is_understood() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut timed = 0;
    for line in shown().iter().filter(|line| !is_elsewhere(line)) {
        let measures = ["blkmq bench", "blkmq sim"].iter().any(|word| line.starts_with(word));
        let quick = ["blkmq doc ", "blkmq help "].iter().any(|word| line.starts_with(word));
        if !measures && !quick {
            continue;
        }
        let line = if measures { format!("{line} --dry-run") } else { line.clone() };
        let plan = output_of(&line, folder.path(), SECONDS).expect("it is understood");
        if is_timed(&line)
            && let Some(takes) = stated(&plan)
        {
            assert!(takes <= SECONDS as f64, "{line}: {takes} s");
            timed += 1;
        }
    }
    assert!(timed >= 3, "{timed} commands say how long they take");
}

/// The limits of the kernel and of the program are effective.
#[test]
fn a_command_that_takes_too_long_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let spin = output_of("while :; do :; done", folder.path(), 1).expect_err("it does not end");
    assert!(spin.contains("not within 1 s of CPU time"), "{spin}");
    let plan = |words: &str| {
        let line = format!("blkmq bench --rw=read --size=1m {words} --dry-run");
        stated(&output_of(&line, folder.path(), SECONDS).expect("a plan"))
    };
    assert_eq!(plan("--time_based --runtime=9 --scheduler=none,bfq --repeat=2"), Some(36.0));
    assert_eq!(plan("--time_based --runtime=250ms --scheduler=none"), Some(0.25));
    assert_eq!(plan("--scheduler=none"), None);
}

#[test]
fn a_file_of_text_has_a_page_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "blkmq bench --scheduler=none --rw=read --size=1m --output=results.txt";
    carry_out(line, folder.path()).expect("it ends well");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("it is written");
    assert!(read("results.txt").contains("IOPS=") && read("results.txt.html").contains("<svg"));
}

/// An option, a simulation, and the words that the option adds to it.
type Row = (&'static str, &'static str, &'static str);

const NULL: &str = "--device=null,irqmode=2,completion_nsec=10000 --name=a --size=256k --bs=4k";

const DISK: &str = "--device=disk --name=a --size=1m --bs=4k --number_ios=20";

const TWO: &str =
    "--device=null,irqmode=2,completion_nsec=10000 --rw=read --size=256k --bs=4k --name=a --name=b";

const TIMED: &str = "--device=null,irqmode=2,completion_nsec=10000 --rw=read --size=1m --time_based --runtime=20ms --name=a";

const BUSY: &str =
    "--device=disk --rw=randread --size=64m --iodepth=16 --number_ios=40 --name=a --name=b";

const KEPT: &str = "--device=memory --name=a --size=256k --rw=write";

/// The figures of these differ with the option and without it.
const IN_FIGURES: &[Row] = &[
    ("name", "--device=null --size=64k", "--name=b"),
    ("ioengine", "NULL --iodepth=4", "--ioengine=sync"),
    ("nrfiles", "DISK --rw=read", "--nrfiles=4"),
    ("file_service_type", "DISK --rw=read --nrfiles=4", "--file_service_type=sequential"),
    ("openfiles", "DISK --rw=read --nrfiles=4", "--openfiles=1"),
    ("filesize", "NULL --nrfiles=4", "--filesize=32k"),
    ("rw", "NULL", "--rw=write"),
    ("rwmixread", "NULL --rw=randrw", "--rwmixread=90"),
    ("rwmixwrite", "NULL --rw=randrw", "--rwmixwrite=90"),
    ("bs", "NULL", "--bs=8k"),
    ("bsrange", "NULL", "--bsrange=4k-16k"),
    ("bssplit", "NULL", "--bssplit=4k/50:8k/50"),
    ("blockalign", "DISK --rw=randread --norandommap", "--blockalign=512"),
    (
        "random_generator",
        "NULL --rw=randread --norandommap --loops=2 --device=disk",
        "--random_generator=lfsr",
    ),
    ("norandommap", "DISK --rw=randread", "--norandommap"),
    ("random_distribution", "DISK --rw=randread", "--random_distribution=zipf:1.2"),
    ("percentage_random", "DISK --rw=randread", "--percentage_random=10"),
    ("randseed", "DISK --rw=randread", "--randseed=7"),
    ("size", "NULL", "--size=128k"),
    ("io_size", "NULL", "--io_size=128k"),
    ("offset", "DISK --rw=read", "--offset=512m"),
    ("offset_increment", "DISK --rw=read --numjobs=2", "--offset_increment=512m"),
    ("direct", "BUSY --rw=randwrite --scheduler=bfq", "--direct=1"),
    ("buffered", "BUSY --rw=randwrite --scheduler=bfq", "--buffered=0"),
    ("sync", "DISK --rw=write", "--sync=1"),
    ("fsync", "DISK --rw=write", "--fsync=4"),
    ("fdatasync", "DISK --rw=write", "--fdatasync=4"),
    ("kb_base", "NULL --bs=64k", "--kb_base=1000"),
    ("zonemode", "DISK --rw=read", "--zonemode=strided --zonesize=16k --zonerange=64k"),
    (
        "zonesize",
        "DISK --rw=read --zonemode=strided --zonesize=16k --zonerange=64k",
        "--zonesize=32k",
    ),
    (
        "zonerange",
        "DISK --rw=read --zonemode=strided --zonesize=16k --zonerange=64k",
        "--zonerange=128k",
    ),
    (
        "zoneskip",
        "DISK --rw=read --zonemode=strided --zonesize=16k --zonerange=64k",
        "--zoneskip=64k",
    ),
    ("iodepth", "NULL", "--iodepth=8"),
    ("iodepth_low", "NULL --iodepth=16", "--iodepth_low=2"),
    ("iodepth_batch_submit", "NULL --iodepth=16", "--iodepth_batch_submit=8"),
    ("iodepth_batch_complete_min", "NULL --iodepth=16", "--iodepth_batch_complete_min=8"),
    ("iodepth_batch_complete_max", "NULL --iodepth=16", "--iodepth_batch_complete_max=8"),
    (
        "serialize_overlap",
        "NULL --rw=randwrite --norandommap --size=16k --loops=8 --iodepth=8",
        "--serialize_overlap=1",
    ),
    ("numjobs", "NULL", "--numjobs=2"),
    ("runtime", "NULL --size=10m", "--runtime=1ms"),
    ("time_based", "NULL --runtime=5ms", "--time_based"),
    ("ramp_time", "TIMED", "--ramp_time=5ms"),
    ("startdelay", "NULL", "--startdelay=5ms"),
    ("loops", "NULL", "--loops=2"),
    ("number_ios", "NULL", "--number_ios=5"),
    ("rate_iops", "NULL", "--rate_iops=1000"),
    ("rate", "NULL", "--rate=4m"),
    ("rate_process", "NULL --rate_iops=1000", "--rate_process=poisson"),
    ("thinktime", "NULL", "--thinktime=50"),
    ("thinktime_blocks", "NULL --thinktime=50", "--thinktime_blocks=4"),
    ("prioclass", "BUSY --scheduler=mq-deadline", "--prioclass=3"),
    ("prio", "BUSY --scheduler=bfq", "--prio=7"),
    ("cmdprio_percentage", "NULL", "--cmdprio_percentage=50"),
    ("cmdprio_class", "NULL --cmdprio_percentage=50", "--cmdprio_class=3"),
    ("cmdprio", "NULL --cmdprio_percentage=50", "--cmdprio=5"),
    ("cmdprio_bssplit", "NULL --bssplit=4k/50:8k/50", "--cmdprio_bssplit=4k/100"),
    ("cgroup", "NULL --group=g:weight=50", "--cgroup=g"),
    ("cgroup_weight", "NULL --cgroup=g", "--cgroup_weight=500"),
    (
        "latency_target",
        "TIMED --iodepth=64",
        "--latency_target=40us --latency_window=1ms --latency_percentile=90",
    ),
    (
        "latency_window",
        "TIMED --iodepth=64 --latency_target=40us --latency_window=1ms",
        "--latency_window=4ms",
    ),
    (
        "latency_percentile",
        "TIMED --iodepth=64 --latency_target=40us --latency_window=1ms",
        "--latency_percentile=50",
    ),
    (
        "latency_run",
        "TIMED --iodepth=64 --latency_target=40us --latency_window=1ms --latency_percentile=50",
        "--latency_run",
    ),
    ("exitall", "TWO --number_ios=9", "--exitall"),
    ("exit_what", "TWO --number_ios=9 --new_group --exitall", "--exit_what=all"),
    ("stonewall", "TWO", "--stonewall"),
    ("new_group", "TWO", "--new_group"),
    ("group_reporting", "NULL --numjobs=2", "--group_reporting"),
    ("gtod_reduce", "NULL", "--gtod_reduce=1"),
    ("disable_lat", "NULL", "--disable_lat=1"),
    ("disable_clat", "NULL", "--disable_clat=1"),
    ("disable_slat", "NULL", "--disable_slat=1"),
    ("end_fsync", "NULL --rw=write", "--end_fsync=1"),
    ("fsync_on_close", "NULL --rw=write", "--fsync_on_close=1"),
    ("clat_percentiles", "NULL", "--clat_percentiles=0"),
    ("lat_percentiles", "NULL", "--lat_percentiles=1"),
    ("slat_percentiles", "NULL", "--slat_percentiles=1"),
    ("unified_rw_reporting", "NULL --rw=randrw", "--unified_rw_reporting=mixed"),
    ("percentile_list", "NULL", "--percentile_list=25:75"),
    ("flow", "TIMED --flow=8 --name=b", "--flow=1"),
    ("flow_id", "TIMED --flow=8 --name=b --flow=1", "--flow_id=2"),
    ("flow_sleep", "TIMED --flow=8 --name=b --flow=1", "--flow_sleep=1000"),
    ("wait_for", "TWO", "--wait_for=a"),
    ("group_stats", "NULL --group=g --cgroup=g --scheduler=bfq", "--group_stats=full"),
    ("iostats", "NULL", "--iostats"),
    ("group", "NULL", "--group=g"),
    ("scheduler", "NULL --scheduler=none", "--scheduler=bfq"),
    ("ioscheduler", "NULL", "--ioscheduler=bfq"),
    ("device", "--name=a --size=256k --device=null", "--device=disk"),
    ("threads", "NULL", "--threads=1,2"),
    ("access", "NULL", "--access=spin"),
    ("dispatch", "BUSY --scheduler=mq-deadline --access=mutex", "--dispatch=one"),
    ("insert", "BUSY --scheduler=mq-deadline --access=mutex", "--insert=percpu-lists"),
    ("merge", "BUSY --scheduler=mq-deadline", "--merge=at-drain"),
    ("kick", "BUSY --scheduler=mq-deadline", "--kick=always"),
    ("scope", "NULL --scheduler=mq-deadline", "--scope=hwqueue"),
    ("nomerges", "NULL --rw=write --iodepth=16 --iodepth_batch_submit=16", "--nomerges=2"),
    ("nr_requests", "BUSY --scheduler=mq-deadline", "--nr_requests=2"),
    ("device_depth", "BUSY --scheduler=mq-deadline", "--device_depth=1"),
    ("pump", "BUSY --scheduler=mq-deadline", "--pump=threads"),
    ("repeat", "NULL", "--repeat=3"),
    ("tenants", "NULL", "--tenants=../daemon/examples/serve.toml:ssd"),
    ("verify", "KEPT", "--verify=crc32c"),
    ("do_verify", "KEPT --verify=crc32c", "--do_verify=0"),
    ("verify_backlog", "KEPT --verify=crc32c", "--verify_backlog=16"),
    ("seed", "DISK --rw=randread", "--seed=3"),
];

/// An option, a command, the words that the option adds, and words that only then appear in the output.
const IN_WORDS: &[(&str, &str, &str, &str)] = &[
    ("description", "sim NULL", "--description=of-a-test", "description=of-a-test: annotates"),
    ("filename", "bench --dry-run --size=64k", "--filename=here", "uring:here"),
    (
        "directory",
        "bench --dry-run --size=64k --filename=here",
        "--directory=/tmp",
        "uring:/tmp/here",
    ),
    (
        "filename_format",
        "bench --dry-run --size=64k --directory=/tmp --nrfiles=2",
        "--filename_format=blkmq.$filenum",
        "uring:/tmp/blkmq.0 to /tmp/blkmq.1",
    ),
    ("dry_run", "sim NULL", "--dry_run", "Runs, in order"),
    ("showcmd", "sim NULL", "--showcmd", "blkmq sim --device=null"),
    ("output_format", "sim NULL", "--output_format=csv", "run,scheduler,"),
    ("minimal", "sim NULL", "--minimal", "3;fio-3.33"),
    ("append_terse", "sim NULL", "--append_terse", "3;fio-3.33"),
    ("terse_version", "sim NULL --minimal", "--terse_version=4", "4;fio-3.33"),
];

/// The test that shows the effect of an option on files, contents or the real machine: its file and its name.
const IN_A_TEST: &[(&str, &str, &str)] = &[
    ("section", ARGS, "files_are_serialized_and_keep_their_globals"),
    (
        "allow_file_create",
        ARGS,
        "a_file_that_is_too_short_is_laid_out_to_the_size_that_is_asked_for",
    ),
    ("zero_buffers", AS_FIO, CONTENTS),
    ("refill_buffers", AS_FIO, CONTENTS),
    ("scramble_buffers", AS_FIO, CONTENTS),
    ("buffer_pattern", AS_FIO, CONTENTS),
    ("buffer_compress_percentage", AS_FIO, CONTENTS),
    ("buffer_compress_chunk", AS_FIO, CONTENTS),
    ("dedupe_percentage", AS_FIO, CONTENTS),
    ("dedupe_mode", AS_FIO, CONTENTS),
    ("dedupe_working_set_percentage", AS_FIO, CONTENTS),
    ("dedupe_global", AS_FIO, CONTENTS),
    ("cpus_allowed", ARGS, CPUS),
    ("cpumask", ARGS, CPUS),
    ("cpus_allowed_policy", ARGS, CPUS),
    ("numa_cpu_nodes", ARGS, CPUS),
    ("numa_mem_policy", ARGS, CPUS),
    ("fill_device", AS_FIO, "a_device_is_filled_up_to_size"),
    ("continue_on_error", FAILURES, "a_job_continues_behind_failed_ios_where_it_is_told_to"),
    ("max_latency", FAILURES, "an_io_that_takes_too_long_ends_its_thread"),
    ("rate_min", WORKLOAD, "a_thread_below_its_least_rate_ends_with_an_error"),
    ("rate_iops_min", WORKLOAD, "a_thread_below_its_least_rate_ends_with_an_error"),
    ("rate_cycle", WORKLOAD, "a_thread_below_its_least_rate_ends_with_an_error"),
    ("verify_pattern", FAILURES, "a_pattern_may_be_a_file"),
    ("verify_interval", FAILURES, "contents_of_another_seed_are_wrong"),
    ("verify_fatal", FAILURES, "the_first_wrong_block_is_fatal_if_it_is_to_be"),
    ("verify_state_save", FAILURES, "a_state_says_what_a_run_has_written"),
    ("verify_state_load", FAILURES, "a_state_says_what_a_run_has_written"),
    ("verify_only", FAILURES, "a_later_job_checks_what_an_earlier_one_wrote"),
    ("write_bw_log", MEASURED, "a_log_has_a_line_for_each_io"),
    ("write_iops_log", MEASURED, "a_log_has_a_line_for_each_io"),
    ("write_lat_log", MEASURED, "a_log_has_a_line_for_each_io"),
    ("write_hist_log", MEASURED, "a_log_has_a_line_for_each_io"),
    ("write_iolog", AS_FIO, "a_log_of_ios_has_its_name_unless_threads_share_it"),
    ("read_iolog", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("replay_no_stall", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("replay_time_scale", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("replay_scale", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("replay_align", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("replay_skip", TRACES, "a_job_replays_a_log_of_ios_as_fio_does"),
    ("log_avg_msec", MEASURED, "a_log_takes_its_options"),
    ("log_offset", MEASURED, "a_log_takes_its_options"),
    ("log_prio", MEASURED, "a_log_takes_its_options"),
    ("log_max_value", MEASURED, "a_log_takes_its_options"),
    ("per_job_logs", MEASURED, "a_log_takes_its_options"),
    ("log_hist_msec", MEASURED, "a_log_of_windows_has_a_line_for_each_and_direction"),
    ("log_hist_coarseness", MEASURED, "a_log_of_windows_has_a_line_for_each_and_direction"),
    ("log_unix_epoch", MEASURED, "a_log_has_times_since_the_epoch_if_it_is_told_to"),
    ("readonly", AS_FIO, "readonly_changes_and_makes_no_file"),
    ("eta", "tests/terminal.rs", "no_progress_is_shown_if_it_is_not_wanted"),
    ("disk_util", AS_FIO, "programs_that_read_fios_output_find_what_they_look_for"),
    ("status_interval", AS_FIO, "the_status_of_a_run_is_its_report_so_far"),
    ("output", "tests/documented.rs", "a_file_of_text_has_a_page_beside_it"),
    ("report", "tests/terminal.rs", "ctrl_c_ends_the_runs_and_prints_what_was_measured"),
    ("trace", TRACES, "an_earlier_trace_is_replaced_whole"),
    ("trace_events", TRACES, "what_does_not_fit_is_counted"),
    ("elevator_log", MEASURED, "files_of_a_run_have_the_name_of_its_case"),
];

const ARGS: &str = "src/args/tests.rs";

const AS_FIO: &str = "tests/as_fio.rs";

const CONTENTS: &str = "what_is_written_does_not_compress_unless_it_is_asked_for";

const CPUS: &str = "cpus_are_kept_for_each_job_and_refused_in_virtual_time";

const MEASURED: &str = "tests/measured.rs";

const WORKLOAD: &str = "tests/workload.rs";

const TRACES: &str = "tests/traces.rs";

const FAILURES: &str = "tests/failures.rs";

/// The output of a command, which must succeed.
fn output(line: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(line.split_whitespace()).output();
    let output = output.expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The figures of a simulation.
fn sim(line: &str) -> Value {
    let text = output(&format!("sim {line} --output-format=json"));
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    // The description of the run is not a figure.
    report["global options"].take();
    for key in ["command", "notes", "warnings"] {
        report["blkmq"][key].take();
    }
    for job in report["jobs"].as_array_mut().expect("jobs") {
        job["job options"].take();
    }
    report
}

/// The options that the help of `command` lists as effective.
fn listed(command: &str) -> BTreeSet<String> {
    let help = output(&format!("{command} --help"));
    let (effective, _) = help.split_once("Accepted without effect").expect("a list");
    let options = effective.lines().filter_map(|line| line.strip_prefix("      --"));
    let name = |rest: &str| {
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    options.filter_map(name).filter(|name| name != "help").collect()
}

#[test]
fn every_option_with_an_effect_is_shown_to_have_one() {
    let rows = IN_FIGURES.iter().chain(IN_A_TEST).map(|row| row.0);
    let shown = rows.chain(IN_WORDS.iter().map(|row| row.0));
    let shown = BTreeSet::from_iter(shown.map(str::to_owned));
    let listed = BTreeSet::from_iter(["bench", "sim"].into_iter().flat_map(listed));
    let missing = Vec::from_iter(listed.difference(&shown));
    assert!(
        missing.is_empty(),
        "the help lists these, and nothing shows their effect: {missing:?}"
    );
    let unknown = Vec::from_iter(shown.difference(&listed));
    assert!(unknown.is_empty(), "the help does not list these: {unknown:?}");
    for (option, file, test) in IN_A_TEST {
        let text =
            std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).expect(file);
        let (_, rest) = text
            .split_once(&format!("fn {test}("))
            .unwrap_or_else(|| panic!("no {test} in {file}"));
        let body = rest.split("\n}\n").next().unwrap_or_default();
        let dashed = option.replace('_', "-");
        assert!(body.contains(option) || body.contains(&dashed), "{test} has no {option}");
    }
}

/// Returns `line` with the texts of its names filled in.
fn spelt(line: &str) -> String {
    let names = [
        ("NULL", NULL),
        ("DISK", DISK),
        ("TWO", TWO),
        ("TIMED", TIMED),
        ("BUSY", BUSY),
        ("KEPT", KEPT),
    ];
    names.iter().fold(line.to_owned(), |line, (name, text)| line.replace(name, text))
}

#[test]
fn figures_differ_with_each_option_and_without_it() {
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut idle = Vec::new();
    for (option, base, with) in IN_FIGURES {
        assert!(with.contains(&format!("--{option}")), "{option}: {with}");
        let chooses = base.contains("scheduler=") || with.contains("scheduler=");
        let base = spelt(base) + if chooses { "" } else { " --scheduler=none" };
        let without = known.entry(base.clone()).or_insert_with(|| sim(&base));
        if *without == sim(&format!("{base} {with}")) {
            idle.push(*option);
        }
    }
    assert!(idle.is_empty(), "without effect: {idle:?}");
}

#[test]
fn words_differ_with_each_option_and_without_it() {
    for (option, base, with, words) in IN_WORDS {
        assert!(with.contains(&format!("--{option}")), "{option}: {with}");
        let base = format!("{} --scheduler=none", spelt(base));
        // Lines are broken at the width of the terminal.
        let shown = |line: &str| {
            let text = output(line);
            let words = Vec::from_iter(text.split_whitespace());
            words.join(" ")
        };
        assert!(!shown(&base).contains(words), "{option}: {base}");
        let with = shown(&format!("{base} {with}"));
        assert!(with.contains(words), "{option}: {with}");
    }
}

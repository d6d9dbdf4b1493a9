//! Every option that the help lists as effective changes something. This file says where that is visible: in the
//! figures of a simulation, or in a test whose text contains the name of the option.
//!
//! An option that is parsed and shown but has no effect would pass every test of its parsing.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

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

//! fio's options that have no effect here, and those refused because they are not supported, each with the reason. A
//! refused option is accepted at fio's default: a job file may state defaults explicitly. The tests generate
//! `docs/fio-options.md` from the table, so that the two cannot differ.

use super::{Group, Kind, Meaning, Opt};

const THREADS: &str = "jobs are always threads";

const CACHE: &str = "the page cache is passed by, or left as it is";

const MEMORY: &str = "buffers are aligned, and registered with the kernel where that helps";

const ENGINE: &str = "I/O goes through blkmq, not through a system call";

const FILES: &str = "files are laid out before the first run, written through, and stay";

const REPEATS: &str = "streams always repeat; randseed chooses another";

const SUBMISSION: &str = "no submission waits for the device, so none needs a thread of its own";

const PROGRESS: &str = "the progress is one line of a terminal";

const BANDWIDTH: &str = "bandwidth is counted, which costs nothing";

const IN_ORDER: &str =
    "what was written is read back in order of place, or of writing with verify_backlog";

const OWN_THREAD: &str = "a thread checks its blocks itself";

const REMEMBERED: &str = "what was written is remembered, and not drawn again";

const NO_VERIFY: &str = "this variant of verification is not built";

const NO_DUMP: &str = "a wrong block is named with what is wrong with it, and not dumped";

const NO_LOGS: &str = "this variant of a log is not built; see write_bw_log";

const STREAMED: &str = "logs are written as the run goes on";

const NO_ZONES: &str = "zones are not built";

const REDIRECTED: &str = "the I/Os of a trace go to the job's device";

const WHOLE: &str = "a trace is read before the run begins";

const NO_PLACEMENT: &str = "threads are bound to CPUs only: cpus_allowed";

const NO_CONTROL: &str = "jobs do not steer each other or themselves";

const NO_VARIANT: &str = "this variant of the workload is not built";

const NICE: &str = "threads keep the priority of the command";

const UNITS: &str = "rates are in bytes";

const NO_FORMAT: &str = "the format of results is fixed; see --output-format";

const fn no_op(name: &'static str, kind: Kind, why: &'static str) -> Opt {
    let (aliases, group): (&[&str], _) = (&[], Group::Foreign);
    Opt { name, aliases, group, kind, accepts: "", help: "", meaning: Meaning::NoOp(why) }
}

const fn bare(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Flag, why)
}

const fn valued(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Value, why)
}

const fn not_built(name: &'static str, why: &'static str) -> Opt {
    let (aliases, group, kind): (&[&str], _, _) = (&[], Group::Foreign, Kind::Value);
    Opt { name, aliases, group, kind, accepts: "", help: "", meaning: Meaning::Unsupported(why) }
}

/// The table.
pub const OPTIONS: &[Opt] = &[
    bare("thread", THREADS),
    bare("invalidate", CACHE),
    bare("uncached", CACHE),
    bare("pre_read", CACHE),
    valued("fadvise_hint", CACHE),
    bare("fixedbufs", MEMORY),
    valued("mem", MEMORY).or(&["iomem"]),
    valued("mem_align", MEMORY).or(&["iomem_align"]),
    valued("lockmem", MEMORY),
    bare("hipri", ENGINE),
    bare("registerfiles", ENGINE),
    bare("sqthread_poll", ENGINE),
    valued("sqthread_poll_cpu", ENGINE),
    bare("nonvectored", ENGINE),
    valued("force_async", ENGINE),
    bare("userspace_reap", ENGINE),
    valued("clocksource", ENGINE),
    valued("fallocate", FILES),
    bare("overwrite", FILES),
    bare("create_serialize", FILES),
    bare("create_fsync", FILES),
    bare("create_on_open", FILES),
    bare("allow_mounted_write", FILES),
    bare("unlink", FILES),
    bare("randrepeat", REPEATS),
    bare("allrandrepeat", REPEATS),
    valued("eta_newline", PROGRESS),
    valued("eta_interval", PROGRESS),
    bare("disable_bw_measurement", BANDWIDTH).or(&["disable_bw"]),
    valued("log_entries", STREAMED),
    bare("verifysort", IN_ORDER),
    valued("verifysort_nr", IN_ORDER),
    not_built("verify_offset", NO_VERIFY),
    bare("verify_dump", NO_DUMP),
    valued("verify_async", OWN_THREAD),
    valued("verify_async_cpus", OWN_THREAD),
    not_built("verify_backlog_batch", NO_VERIFY),
    not_built("verify_header_seed", NO_VERIFY),
    not_built("verify_write_sequence", NO_VERIFY),
    bare("experimental_verify", REMEMBERED),
    not_built("trim_percentage", NO_VERIFY),
    not_built("trim_verify_zero", NO_VERIFY),
    not_built("trim_backlog", NO_VERIFY),
    not_built("trim_backlog_batch", NO_VERIFY),
    not_built("bandwidth_log", NO_LOGS),
    not_built("max_open_zones", NO_ZONES),
    bare("read_iolog_chunked", WHOLE),
    valued("replay_redirect", REDIRECTED),
    valued("nice", NICE),
    not_built("gtod_cpu", NO_PLACEMENT),
    not_built("steadystate", NO_CONTROL).or(&["ss"]),
    not_built("rw_sequencer", NO_VARIANT),
    not_built("bs_unaligned", NO_VARIANT).flag().or(&["blocksize_unaligned"]),
    not_built("thinktime_spin", NO_VARIANT),
    not_built("thinktime_blocks_type", NO_VARIANT),
    not_built("thinktime_iotime", NO_VARIANT),
    valued("io_submit_mode", SUBMISSION),
    not_built("write_hint", NO_VARIANT),
    not_built("significant_figures", NO_FORMAT),
    valued("unit_base", UNITS),
];

const OPENED: &str = "files are opened for the whole run, and nothing else is done to them";

const ALIGNMENT: &str = "places and lengths are whole sectors";

const ERRORS: &str = "a job ends with its first failed I/O";

const BARRIERS: &str = "only whole flushes are built: fsync, fdatasync, sync";

const MERGED: &str = "traces are not merged; see blkmq trace convert and blkmq replay";

const PROGRAMS: &str = "no other program is run";

const AVERAGES: &str = "rates are averaged over half a second";

const STEADY: &str = "steady states are not looked for";

const RIGHTS: &str = "jobs have the rights of the command";

const REMOTE: &str = "runs are local";

const OTHER_WORK: &str = "fio itself does this";

const ENDS: &str = "groups end with the run";

const NETWORK: &str = "only clients in a network need it";

const RESERVED: &str = "memory is not reserved in advance";

/// The table.
pub const REFUSED: &[Opt] = &[
    not_built("lockfile", OPENED),
    not_built("opendir", OPENED),
    not_built("file_append", OPENED),
    not_built("create_only", OPENED).flag(),
    not_built("unlink_each_loop", OPENED).flag(),
    bare("unique_filename", NETWORK),
    not_built("offset_align", ALIGNMENT),
    not_built("ignore_error", ERRORS),
    not_built("exitall_on_error", ERRORS).flag(),
    bare("error_dump", ERRORS),
    not_built("sync_file_range", BARRIERS),
    not_built("write_barrier", BARRIERS),
    not_built("atomic", BARRIERS).flag(),
    not_built("merge_blktrace_file", MERGED),
    not_built("merge_blktrace_scalars", MERGED),
    not_built("merge_blktrace_iters", MERGED),
    not_built("exec_prerun", PROGRAMS),
    not_built("exec_postrun", PROGRAMS),
    not_built("zonecapacity", NO_ZONES),
    not_built("read_beyond_wp", NO_ZONES).flag(),
    not_built("job_max_open_zones", NO_ZONES),
    not_built("ignore_zone_limits", NO_ZONES).flag(),
    not_built("zone_reset_threshold", NO_ZONES),
    not_built("zone_reset_frequency", NO_ZONES),
    not_built("rate_ignore_thinktime", NO_CONTROL).flag(),
    valued("bwavgtime", AVERAGES),
    valued("iopsavgtime", AVERAGES),
    valued("log_compression", STREAMED),
    valued("log_compression_cpus", STREAMED),
    not_built("log_store_compressed", NO_LOGS).flag(),
    not_built("log_alternate_epoch", NO_LOGS).flag(),
    not_built("log_alternate_epoch_clock_id", NO_LOGS),
    not_built("block_error_percentiles", NO_FORMAT).flag(),
    not_built("stats", NO_FORMAT).flag(),
    valued("hugepage_size", RESERVED),
    bare("cgroup_nodelete", ENDS),
    not_built("profile", OTHER_WORK),
    not_built("uid", RIGHTS),
    not_built("gid", RIGHTS),
    not_built("steadystate_duration", STEADY).or(&["ss_dur"]),
    not_built("steadystate_ramp_time", STEADY).or(&["ss_ramp"]),
    not_built("server", REMOTE),
    not_built("client", REMOTE),
    not_built("remote_config", REMOTE),
    not_built("daemonize", REMOTE),
    not_built("debug", OTHER_WORK),
    not_built("merge_blktrace_only", OTHER_WORK).flag(),
    not_built("cpuclock_test", OTHER_WORK).flag(),
    not_built("crctest", OTHER_WORK),
    not_built("cmdhelp", "see --help"),
    not_built("enghelp", "see --help"),
    not_built("idle_prof", OTHER_WORK),
    not_built("inflate_log", OTHER_WORK),
    not_built("trigger_file", PROGRAMS),
    not_built("trigger_timeout", PROGRAMS),
    not_built("trigger", PROGRAMS),
    not_built("trigger_remote", PROGRAMS),
    not_built("aux_path", PROGRAMS),
    valued("alloc_size", RESERVED),
    valued("max_jobs", RESERVED),
    bare("warnings_fatal", "whatever cannot be accepted is an error"),
    not_built("hipri_percentage", "no I/O is polled"),
    not_built("nowait", "an I/O waits where it must").flag(),
];

/// Options of I/O engines that have no equivalent here.
const OF_ENGINES: &[&str] = &[
    "arguments",
    "bindname",
    "brick",
    "busy_poll",
    "busy_wait_polling",
    "chunk_size",
    "clientname",
    "clustername",
    "cmd_type",
    "conf",
    "cont",
    "cpuchunks",
    "cpuload",
    "cpumode",
    "cuda_io",
    "direct_write_to_pmem",
    "donorname",
    "exit_on_io_done",
    "gpu_dev_id",
    "gpu_dev_ids",
    "grace_time",
    "hdfsdirectory",
    "hostname",
    "hdfs_use_direct",
    "http_host",
    "http_mode",
    "http_pass",
    "http_s3_key",
    "http_s3_keyid",
    "http_s3_region",
    "http_s3_sse_customer_algorithm",
    "http_s3_sse_customer_key",
    "http_s3_storage_class",
    "http_swift_auth_token",
    "http_user",
    "http_verbose",
    "https",
    "inplace",
    "interface",
    "listen",
    "md_per_io_size",
    "mss",
    "namenode",
    "nfs_url",
    "nodelay",
    "object_class",
    "pi_act",
    "pi_chk",
    "pingpong",
    "pool",
    "port",
    "program",
    "protocol",
    "rbdname",
    "readfua",
    "serverip",
    "sg_write_mode",
    "single_instance",
    "skip_bad",
    "stat_type",
    "std_redirect",
    "stream_id",
    "svc",
    "thp",
    "touch_objects",
    "ttl",
    "uri",
    "verb",
    "volume",
    "window_size",
    "writefua",
    "xnvme_async",
    "xnvme_dev_nsid",
    "xnvme_iovec",
    "xnvme_sync",
];

/// Returns whether `name` is an option of an I/O engine that has no equivalent here.
pub fn is_of_an_engine(name: &str) -> bool {
    OF_ENGINES.contains(&name)
}

/// An option, and every spelling of its default.
pub type Default = (&'static str, &'static [&'static str]);

const OFF: &[&str] = &["0"];

const ON: &[&str] = &["1"];

const NONE: &[&str] = &["none"];

/// By the names of the table.
const DEFAULTS: &[Default] = &[
    ("atomic", OFF),
    ("block_error_percentiles", OFF),
    ("bs_unaligned", OFF),
    ("create_only", OFF),
    ("exitall_on_error", OFF),
    ("file_append", OFF),
    ("ignore_zone_limits", OFF),
    ("job_max_open_zones", OFF),
    ("lockfile", NONE),
    ("log_alternate_epoch", OFF),
    ("log_alternate_epoch_clock_id", OFF),
    ("log_store_compressed", OFF),
    ("max_open_zones", OFF),
    ("offset_align", OFF),
    ("rate_ignore_thinktime", OFF),
    ("read_beyond_wp", OFF),
    ("rw_sequencer", &["sequential"]),
    ("significant_figures", &["4"]),
    ("stats", ON),
    ("steadystate_duration", OFF),
    ("steadystate_ramp_time", OFF),
    ("thinktime_blocks_type", &["complete"]),
    ("thinktime_iotime", OFF),
    ("thinktime_spin", OFF),
    ("trim_backlog", OFF),
    ("trim_backlog_batch", OFF),
    ("trim_percentage", OFF),
    ("trim_verify_zero", ON),
    ("unlink_each_loop", OFF),
    ("verify_backlog_batch", OFF),
    ("verify_offset", OFF),
    ("write_barrier", OFF),
    ("write_hint", NONE),
    ("zone_reset_frequency", &["0", "0.0"]),
    ("zone_reset_threshold", &["0", "0.0"]),
    ("zonecapacity", OFF),
];

/// All defaults.
#[cfg(test)]
pub fn defaults() -> impl Iterator<Item = &'static Default> {
    DEFAULTS.iter()
}

/// Returns whether `value` is fio's default of the option called `name`.
pub fn is_default(name: &str, value: &str) -> bool {
    DEFAULTS.iter().any(|(known, values)| *known == name && values.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;

    #[test]
    fn each_option_is_refused_otherwise_and_stands_here_once() {
        for (at, (name, values)) in DEFAULTS.iter().enumerate() {
            let option = find(name).expect(name);
            assert!(
                option.name == *name && matches!(option.meaning, Meaning::Unsupported(_)),
                "{name}"
            );
            assert!(DEFAULTS[..at].iter().all(|(other, _)| other != name), "{name} stands twice");
            assert!(!values.is_empty(), "{name}");
        }
    }

    const HEAD: &str = "\
# Options of fio that are out

`blkmq bench` and `blkmq sim` know every option of fio by name. `--help` lists those that have their effect. This page
lists the others: an option without effect is accepted, and a note of the run gives the reason; a refused option is
accepted at fio's default only, which is what holds. What fio can do and a study of schedulers does not need stays out.
Of the 78 plain job files of fio's repository that fio 3.33 reads 68 are accepted, and 57 of the 65 of its package:
`cargo xtask interop fio-jobs` counts them.
The page is made from the table of options: `BLESS=1 cargo test -p blkmq-cli the_page_of_options` writes it.

**Engines.** `ioengine=null` is the null device. libaio, io_uring, posixaio, sync, psync, vsync, pvsync and pvsync2
move the data of files, here all of them through io_uring; as in fio, the last five have one I/O in flight, and no
latency of submission. Every other engine is refused: it does no block I/O, or does it over a network or a library.

**Files.** With `filename`, and without `--device`, I/O goes to that file or block device. A file that does not exist
or is too short is laid out before the first run, to the size that the options ask for (`size` behind `offset`, or
`filesize`), with random bytes and written through; for jobs that only write, with `fill_device`, as a hole. fio goes
through the page cache unless there is `direct=1`; behind the cache, schedulers see little of what a job does, so here
`direct=0` or `buffered=1` must ask for it, and a note says which of the two was done.

**Block sizes.** I/O is in whole sectors of 512 bytes, as it is in Linux' block layer. A `bs` (or `bsrange`, `bssplit`,
`blockalign`) of another length, as in the check of disks for etcd (`bs=2300`), is rounded up to the next whole sector,
and a note says so in text and in the `notes` of JSON; bytes and rates are then those of the longer I/Os. In fio such
an I/O goes to the page cache, which reads and writes whole pages of the device, so that schedulers never see its length. Direct
I/O of such a length fails in fio with EINVAL, and is refused here.

**Several files.** `filename=a:b` names several (`\\:` is a colon in a name), as does `nrfiles=N` with `filename_format`,
whose default is `JOBNAME.THREAD.FILE` in `directory`. As in fio, `size` is divided among the files of a thread
(`filesize` is the length of each, and `size` then ends the job), each file has a random map and a place of its own in
sequential order, and `file_service_type` and `openfiles` say which is next. Jobs of a run may name different files.
Files on one file system share a disk and so its queue: they lie on one device, one behind the other, and the places in
logs are those on this device (decision 0019). Files on several file systems, and several block devices, would have a
queue each, and are refused. With `--device`, on the null device and in virtual time, several files are stretches of the
device, and one file is all of it.

**Passes.** As in fio, a pass ends with the `size` or with the file. All passes together do `loops` times the `io_size`, or else the
`size`, and at most `loops` times `number_ios`. Each job, and each thread, sees its file with the length that the ones before it
have left: `offset=10%` is a share of that. Differences from fio 3.33 are known, and `cargo xtask fio-fuzz` has a list of them:

- Places and lengths are whole sectors: `offset=5000` is refused, and `bs=4k` with `kb_base=1000`, which is 4000 bytes, is rounded up.
- A random block that is longer than `zonerange` is refused, as is `verify` of trims, on the null device, and of parts that other
  jobs write.
- A random pass does all its I/Os. fio ends it early where it draws a place that does not exist, or is used.
- Where a pass ends within a file (zones, `filesize`, a share as `io_size`), fio continues with a synchronous engine and begins
  again with another. Here zones and shares continue, and `filesize` begins again.
- `end_fsync` and `fsync_on_close` flush the device once, behind the last pass, unless the job has ended with a flush. fio flushes each file behind each pass.
- An `offset` in bytes replaces a share of the global section, and on the null device `filesize` is the length of a file.

**Checksums.** `verify` takes crc32c (or crc32c-intel), xxhash, md5, sha256, meta, pattern and null. fio's other checksums
are refused, since they find no damage that these miss.

Without a file and a device, I/O goes to the null device. In virtual time no file is touched, and a note says so.

| option | here | why |
| --- | --- | --- |
";

    fn page() -> String {
        let mut rows = Vec::new();
        for option in super::super::all() {
            let (here, why) = match option.meaning {
                Meaning::NoOp(why) => ("no effect".to_owned(), why),
                Meaning::Unsupported(why) => {
                    let default = defaults().find(|(name, _)| *name == option.name);
                    let here = default.map_or("refused".to_owned(), |(_, values)| {
                        format!("refused, except `{}`", values[0])
                    });
                    (here, why)
                }
                _ => continue,
            };
            let names = [&option.name].into_iter().chain(option.aliases);
            let names = Vec::from_iter(names.map(|name| format!("`{name}`"))).join(", ");
            rows.push(format!("| {names} | {here} | {why} |\n"));
        }
        rows.sort();
        format!("{HEAD}{}", rows.concat())
    }

    #[test]
    fn the_page_of_options_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fio-options.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, page()).expect("the page can be written");
        }
        let written = std::fs::read_to_string(path).expect("the page is there");
        let (written, made) = (Vec::from_iter(written.lines()), page());
        let made = Vec::from_iter(made.lines());
        for line in &made {
            assert!(written.contains(line), "docs/fio-options.md lacks this line: {line}");
        }
        for line in &written {
            assert!(made.contains(line), "docs/fio-options.md has a line too many: {line}");
        }
    }

    /// Regression test: options listed by `fio --cmdhelp=all` of fio 3.33 were missing in the table.
    #[test]
    fn every_option_of_fio_is_known_by_name() {
        let names = "description name wait_for filename lockfile directory filename_format unique_filename opendir rw bs \
        ba bsrange bssplit bs_unaligned randrepeat randseed norandommap ignore_error rw_sequencer ioengine iodepth \
        iodepth_batch iodepth_batch_complete_min iodepth_batch_complete_max iodepth_low serialize_overlap \
        io_submit_mode size io_size fill_device filesize file_append offset offset_increment offset_align number_ios \
        random_generator random_distribution percentage_random allrandrepeat nrfiles file_service_type openfiles \
        fallocate fadvise_hint fsync fdatasync write_barrier sync_file_range direct atomic buffered overwrite loops \
        numjobs startdelay runtime time_based verify_only ramp_time clocksource mem verify do_verify verify_interval \
        verify_offset verify_pattern verify_fatal verify_dump verify_async verify_backlog verify_backlog_batch \
        experimental_verify verify_state_load verify_state_save trim_percentage trim_verify_zero trim_backlog \
        trim_backlog_batch write_iolog read_iolog read_iolog_chunked replay_no_stall replay_redirect replay_scale \
        replay_align replay_time_scale replay_skip merge_blktrace_file merge_blktrace_scalars merge_blktrace_iters \
        exec_prerun exec_postrun ioscheduler zonemode zonesize zonecapacity zonerange zoneskip read_beyond_wp \
        max_open_zones job_max_open_zones ignore_zone_limits zone_reset_threshold zone_reset_frequency lockmem \
        rwmixread rwmixwrite nice prio prioclass thinktime thinktime_spin thinktime_blocks thinktime_blocks_type \
        thinktime_iotime rate rate_min rate_process rate_cycle rate_ignore_thinktime rate_iops rate_iops_min \
        max_latency latency_target latency_window latency_percentile latency_run invalidate sync write_hint \
        create_serialize create_fsync create_on_open create_only allow_file_create allow_mounted_write pre_read \
        cpumask cpus_allowed cpus_allowed_policy numa_cpu_nodes numa_mem_policy end_fsync fsync_on_close unlink \
        unlink_each_loop exitall exit_what exitall_on_error stonewall new_group thread per_job_logs write_bw_log \
        bwavgtime write_lat_log write_iops_log iopsavgtime log_entries log_avg_msec log_hist_msec \
        log_hist_coarseness write_hist_log log_max_value log_offset log_prio log_compression log_compression_cpus \
        log_store_compressed log_unix_epoch log_alternate_epoch log_alternate_epoch_clock_id \
        block_error_percentiles group_reporting stats zero_buffers refill_buffers scramble_buffers buffer_pattern \
        buffer_compress_percentage buffer_compress_chunk dedupe_percentage dedupe_mode \
        dedupe_working_set_percentage dedupe_global clat_percentiles lat_percentiles slat_percentiles \
        percentile_list significant_figures disk_util gtod_reduce disable_lat disable_clat disable_slat \
        disable_bw_measurement gtod_cpu unified_rw_reporting continue_on_error error_dump profile cgroup \
        cgroup_nodelete cgroup_weight uid gid kb_base unit_base hugepage-size flow_id flow flow_sleep steadystate \
        steadystate_duration steadystate_ramp_time readwrite blocksize blockalign blocksize_range \
        blocksize_unaligned iodepth_batch_submit iodepth_batch_complete io_limit fill_fs fileoffset nr_files \
        timeout iomem ratemin ratecycle wait_for_previous disable_bw ss ss_dur ss_ramp";
        for name in names.split_whitespace() {
            assert!(find(name).is_some(), "{name}");
        }
    }
}

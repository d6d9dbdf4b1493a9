//! fio's options that have no effect here, and those refused because they are not supported, each with the reason. A
//! refused option is accepted at fio's default: a job file may state defaults explicitly. The tests generate
//! `docs/fio-options.md` from the table, so that the two cannot differ.

use super::{Meaning, Opt, option};

const CACHE: &str = "the page cache is passed by, or left as it is";

const MEMORY: &str = "buffers are aligned, and registered with the kernel where that helps";

const ENGINE: &str = "I/O goes through blkmq, not through a system call";

const FILES: &str = "files are laid out before the first run, written through, and stay";

const REPEATS: &str = "streams always repeat; randseed chooses another";

const PROGRESS: &str = "the progress is one line of a terminal";

const IN_ORDER: &str =
    "what was written is read back in order of place, or of writing with verify_backlog";

const OWN_THREAD: &str = "a thread checks its blocks itself";

const NO_VERIFY: &str = "this variant of verification is not built";

const NO_LOGS: &str = "this variant of a log is not built; see write_bw_log";

const STREAMED: &str = "logs are written as the run goes on";

const NO_ZONES: &str = "zones are not built";

const NO_CONTROL: &str = "jobs do not steer each other or themselves";

const NO_VARIANT: &str = "this variant of the workload is not built";

const NO_FORMAT: &str = "the format of results is fixed; see --output-format";

const OPENED: &str = "files are opened for the whole run, and nothing else is done to them";

const ERRORS: &str = "a job ends with its first failed I/O";

const BARRIERS: &str = "only whole flushes are built: fsync, fdatasync, sync";

const MERGED: &str = "traces are not merged; see blkmq trace convert and blkmq replay";

const PROGRAMS: &str = "no other program is run";

const AVERAGES: &str = "rates are averaged over half a second";

const STEADY: &str = "steady states are not looked for";

const RIGHTS: &str = "jobs have the rights of the command";

const REMOTE: &str = "runs are local";

const OTHER_WORK: &str = "fio itself does this";

const RESERVED: &str = "memory is not reserved in advance";

/// The spellings of defaults.
const OFF: &[&str] = &["0"];
const ON: &[&str] = &["1"];
const NONE: &[&str] = &["none"];

const fn valued(name: &'static str, why: &'static str) -> Opt {
    option(name, Meaning::NoOp(why))
}

const fn bare(name: &'static str, why: &'static str) -> Opt {
    valued(name, why).switch("")
}

const fn not_built(name: &'static str, why: &'static str) -> Opt {
    default_only(name, why, &[])
}

const fn default_only(
    name: &'static str,
    why: &'static str,
    defaults: &'static [&'static str],
) -> Opt {
    option(name, Meaning::Unsupported(why, defaults))
}

/// The table.
pub const OPTIONS: &[Opt] = &[
    bare("thread", "jobs are always threads"),
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
    bare("disable_bw_measurement", "bandwidth is counted, which costs nothing").or(&["disable_bw"]),
    valued("log_entries", STREAMED),
    bare("verifysort", IN_ORDER),
    valued("verifysort_nr", IN_ORDER),
    default_only("verify_offset", NO_VERIFY, OFF),
    bare("verify_dump", "a wrong block is named with what is wrong with it, and not dumped"),
    valued("verify_async", OWN_THREAD),
    valued("verify_async_cpus", OWN_THREAD),
    default_only("verify_backlog_batch", NO_VERIFY, OFF),
    not_built("verify_header_seed", NO_VERIFY),
    not_built("verify_write_sequence", NO_VERIFY),
    bare("experimental_verify", "what was written is remembered, and not drawn again"),
    default_only("trim_percentage", NO_VERIFY, OFF),
    default_only("trim_verify_zero", NO_VERIFY, ON),
    default_only("trim_backlog", NO_VERIFY, OFF),
    default_only("trim_backlog_batch", NO_VERIFY, OFF),
    not_built("bandwidth_log", NO_LOGS),
    default_only("max_open_zones", NO_ZONES, OFF),
    bare("read_iolog_chunked", "a trace is read before the run begins"),
    valued("replay_redirect", "the I/Os of a trace go to the job's device"),
    valued("nice", "threads keep the priority of the command"),
    not_built("gtod_cpu", "threads are bound to CPUs only: cpus_allowed"),
    not_built("steadystate", NO_CONTROL).or(&["ss"]),
    default_only("rw_sequencer", NO_VARIANT, &["sequential"]),
    default_only("bs_unaligned", NO_VARIANT, OFF).switch("").or(&["blocksize_unaligned"]),
    default_only("thinktime_spin", NO_VARIANT, OFF),
    default_only("thinktime_blocks_type", NO_VARIANT, &["complete"]),
    default_only("thinktime_iotime", NO_VARIANT, OFF),
    valued(
        "io_submit_mode",
        "no submission waits for the device, so none needs a thread of its own",
    ),
    default_only("write_hint", NO_VARIANT, NONE),
    default_only("significant_figures", NO_FORMAT, &["4"]),
    valued("unit_base", "rates are in bytes"),
    default_only("lockfile", OPENED, NONE),
    not_built("opendir", OPENED),
    default_only("file_append", OPENED, OFF),
    default_only("create_only", OPENED, OFF).switch(""),
    default_only("unlink_each_loop", OPENED, OFF).switch(""),
    bare("unique_filename", "only clients in a network need it"),
    default_only("offset_align", "places and lengths are whole sectors", OFF),
    not_built("ignore_error", ERRORS),
    default_only("exitall_on_error", ERRORS, OFF).switch(""),
    bare("error_dump", ERRORS),
    not_built("sync_file_range", BARRIERS),
    default_only("write_barrier", BARRIERS, OFF),
    default_only("atomic", BARRIERS, OFF).switch(""),
    not_built("merge_blktrace_file", MERGED),
    not_built("merge_blktrace_scalars", MERGED),
    not_built("merge_blktrace_iters", MERGED),
    not_built("exec_prerun", PROGRAMS),
    not_built("exec_postrun", PROGRAMS),
    default_only("zonecapacity", NO_ZONES, OFF),
    default_only("read_beyond_wp", NO_ZONES, OFF).switch(""),
    default_only("job_max_open_zones", NO_ZONES, OFF),
    default_only("ignore_zone_limits", NO_ZONES, OFF).switch(""),
    default_only("zone_reset_threshold", NO_ZONES, &["0", "0.0"]),
    default_only("zone_reset_frequency", NO_ZONES, &["0", "0.0"]),
    default_only("rate_ignore_thinktime", NO_CONTROL, OFF).switch(""),
    valued("bwavgtime", AVERAGES),
    valued("iopsavgtime", AVERAGES),
    valued("log_compression", STREAMED),
    valued("log_compression_cpus", STREAMED),
    default_only("log_store_compressed", NO_LOGS, OFF).switch(""),
    default_only("log_alternate_epoch", NO_LOGS, OFF).switch(""),
    default_only("log_alternate_epoch_clock_id", NO_LOGS, OFF),
    default_only("block_error_percentiles", NO_FORMAT, OFF).switch(""),
    default_only("stats", NO_FORMAT, ON).switch(""),
    valued("hugepage_size", RESERVED),
    bare("cgroup_nodelete", "groups end with the run"),
    not_built("profile", OTHER_WORK),
    not_built("uid", RIGHTS),
    not_built("gid", RIGHTS),
    default_only("steadystate_duration", STEADY, OFF).or(&["ss_dur"]),
    default_only("steadystate_ramp_time", STEADY, OFF).or(&["ss_ramp"]),
    not_built("server", REMOTE),
    not_built("client", REMOTE),
    not_built("remote_config", REMOTE),
    not_built("daemonize", REMOTE),
    not_built("debug", OTHER_WORK),
    not_built("merge_blktrace_only", OTHER_WORK).switch(""),
    not_built("cpuclock_test", OTHER_WORK).switch(""),
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
    not_built("nowait", "an I/O waits where it must").switch(""),
];

/// Options of I/O engines that have no equivalent here.
pub const OF_ENGINES: &str = "\
    arguments bindname brick busy_poll busy_wait_polling chunk_size clientname clustername \
    cmd_type conf cont cpuchunks cpuload cpumode cuda_io direct_write_to_pmem donorname \
    exit_on_io_done gpu_dev_id gpu_dev_ids grace_time hdfsdirectory hostname \
    hdfs_use_direct http_host http_mode http_pass http_s3_key http_s3_keyid http_s3_region \
    http_s3_sse_customer_algorithm http_s3_sse_customer_key http_s3_storage_class \
    http_swift_auth_token http_user http_verbose https inplace interface listen \
    md_per_io_size mss namenode nfs_url nodelay object_class pi_act pi_chk pingpong pool \
    port program protocol rbdname readfua serverip sg_write_mode single_instance skip_bad \
    stat_type std_redirect stream_id svc thp touch_objects ttl uri verb volume window_size \
    writefua xnvme_async xnvme_dev_nsid xnvme_iovec xnvme_sync";

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;

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
                Meaning::Unsupported(why, []) => ("refused".to_owned(), why),
                Meaning::Unsupported(why, [value, ..]) => {
                    (format!("refused, except `{value}`"), why)
                }
                _ => continue,
            };
            let names = option.names().map(|name| format!("`{name}`"));
            let names = Vec::from_iter(names).join(", ");
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

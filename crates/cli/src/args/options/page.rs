//! Generates `docs/fio-options.md` from the table, so that the two cannot differ.

use super::{Meaning, find, foreign};

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
    for option in super::all() {
        let (here, why) = match option.meaning {
            Meaning::NoOp(why) => ("no effect".to_owned(), why),
            Meaning::Unsupported(why) => {
                let default = foreign::defaults().find(|(name, _)| *name == option.name);
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

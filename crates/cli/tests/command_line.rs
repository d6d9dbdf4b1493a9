//! Runs the binary as a user would: refusals and their messages, and the command lines from which the project started;
//! and `blkmq experiment`, whose results do not depend on which process ran which points, and whose answers are as
//! known in advance.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn blkmq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("the binary starts")
}

fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Checks for exit code 2, nothing on standard output, and one line on standard error that begins with `blkmq: `.
fn refusal(args: &[&str]) -> String {
    let output = blkmq(args);
    let message = String::from_utf8(output.stderr).expect("messages are text");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let line = message.strip_suffix('\n').expect("a whole line");
    assert!(line.starts_with("blkmq: ") && !line.contains('\n'), "{args:?}: {message}");
    line.to_owned()
}

fn shown(args: &[&str]) -> String {
    let output = blkmq(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    assert!(errors.is_empty(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Creates a file for one test, in cargo's folder for integration tests.
fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the folder for temporary files can be written");
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// Every kind of bad input, and the words that its message must contain.
const REFUSED: &[(&str, &[&str])] = &[
    ("", &["accepted: bench"]),
    ("bensh", &["bensh: no such command", "accepted: bench"]),
    ("doc cfq", &["cfq: no such page; nearest: bfq", "none", "null"]),
    ("doc none null", &["null: one argument too many"]),
    ("help bensh", &["bensh: no such command", "accepted: bench"]),
    ("--hepl", &["--hepl: no such option; nearest: --help", "accepted: bench"]),
    ("completions", &["SHELL is missing", "accepted: SHELL"]),
    ("completions fihs", &["fihs: no such shell; nearest: fish", "accepted: bash"]),
    ("man --dir=/no/such/folder", &["/no/such/folder/blkmq.1: ", "accepted: a folder"]),
    ("bench --iodpeth=3", &["--iodpeth: unknown option", "nearest: iodepth", "see --help"]),
    ("bench --xyzzy", &["--xyzzy: unknown option, and none has a similar name; see --help"]),
    ("bench --ioengine=foo", &["no engine 'foo'", "accepted: libaio, io_uring", "null"]),
    ("bench --ioengine=libhdfs", &["has no meaning here", "accepted: libaio, io_uring", "null"]),
    ("bench --ioengine=ftruncate", &["has no meaning here", "accepted: libaio, io_uring", "null"]),
    ("sim --ioengine=rbd", &["has no meaning here", "accepted: libaio, io_uring", "null"]),
    ("bench --filename=/no/such/file", &["no such file", "size= or filesize="]),
    ("bench --filename=/dev/no-such --size=1m", &["no such device"]),
    ("bench --filename=/dev/null --size=1m", &["neither a file nor a block device"]),
    ("bench --filename=a::b", &["has an empty path", "one ':' between two"]),
    ("bench --directory=a:b", &["names several: not built", "'\\:' for a colon"]),
    ("bench --name=a --filename=a --name=b", &["job 'b'", "has no file", "filename=a", "--device"]),
    (
        "bench --numjobs=2 --directory=/no",
        &["filename=/no/blkmq.0.0: no such file", "size= or filesize="],
    ),
    ("bench --filename=no --size=1m --allow_file_create=0", &["allow_file_create=0 forbids"]),
    ("bench --exitall_on_error", &["fio's, but not built"]),
    ("bench --zonemode=zbd", &["zoned block devices are not built", "none, strided"]),
    ("bench --zonesize=1m", &["accepted with them: zonemode=strided"]),
    ("bench --zonemode=strided", &["zonemode=strided without zonesize"]),
    (
        "bench --rw=randread --zonemode=strided --zonesize=512",
        &["zonerange=512 is smaller than one block"],
    ),
    ("bench --name=a --wait_for=b --name=b", &["wait_for=b: no earlier job has this name"]),
    ("bench --exit_what=some", &["accepted: group, stonewall, all"]),
    ("bench --numa_cpu_nodes=x", &["accepted: numbers of nodes, such as 0-3,8"]),
    ("bench --numa_mem_policy=far", &["accepted: default, local, bind:NODES"]),
    ("bench --file_service_type=zipf", &["not built", "roundrobin, random, sequential"]),
    ("bench --device=memory,size=512k", &["size=512k", "a whole number of MiB", "512m, 1g"]),
    ("bench --device=null,completion_nsec=3k", &["whole number of ns", "500ns, 10us, 5ms, 1s"]),
    ("bench -", &["standard input: no job in this file", "accepted: at least one section"]),
    ("bench --=", &["unknown option"]),
    ("bench --bs", &["--bs: needs a value", "SIZE"]),
    ("bench --bs --rw=read", &["--bs: needs a value"]),
    ("bench --bs=", &["--bs=: ", "r,w,t"]),
    ("bench --bs=0", &["--bs=0: 0 bytes", "1 to 1g"]),
    ("bench --bs=513 --direct=1", &["bs=513", "multiples of 512", "such as 1024", "direct=0"]),
    ("bench --bssplit=8000/50 --buffered=0", &["bssplit=8000/100", "such as 8192/100"]),
    ("bench --bsrange=1k-5000 --direct=1", &["bsrange=1024-5000", "such as 1024-5120"]),
    ("bench --ba=100 --rw=randread --direct=1", &["blockalign=100", "such as 512"]),
    ("bench --unified_rw_reporting=all", &["accepted: none, mixed, both"]),
    ("bench --bs=2g", &["2147483648 bytes", "to 1g"]),
    ("bench --bs=1,2,3,4", &["up to three values"]),
    ("bench --bsrange=4k", &["a range of sizes, such as 1k-4k"]),
    ("bench --bsrange=8k-4k", &["the range 8192-4096 is empty"]),
    ("bench --bssplit=4k/90:8k/20", &["sum to 110 percent"]),
    ("bench --bssplit=4k/101", &["out of range", "0 to 100"]),
    ("bench --iodepth=0", &["--iodepth=0: out of range", "1 to 65536"]),
    ("bench --iodepth=many", &["'many' is not valid", "1 to 65536"]),
    ("bench --iodepth=", &["--iodepth=: no value", "1 to 65536"]),
    ("bench --iodepth=-1", &["1 to 65536"]),
    ("bench --numjobs=99999999999999999999999999999999999999999999", &["1 to 4096"]),
    ("bench --rwmixread=101", &["0 to 100"]),
    ("bench --prio=8", &["0 to 7"]),
    ("bench --prioclass=4", &["0 to 3"]),
    ("bench --rw=randomread", &["randread", "randtrimwrite"]),
    ("bench --size=99999999999999999999", &["too large", "up to 15e"]),
    ("bench --size=1k", &["size=1024 is smaller than one block", "4096 (bs) or more"]),
    ("bench --size=101%", &["0 to 100"]),
    ("bench --size=ten", &["'ten' is not valid", "4k"]),
    ("bench --size=300g --device=null,gb=200", &["does not fit", "device null,gb=200"]),
    ("bench --offset=100", &["offset=100", "multiples of 512"]),
    ("bench --runtime=1y", &["'1y' is not valid", "30 (s)"]),
    ("bench --runtime=999999999999d", &["too long"]),
    ("bench --thinktime=x", &["50 (us)"]),
    ("bench --time_based", &["time_based needs a runtime"]),
    ("bench --direct=yes", &["--direct=yes: accepted: 0, 1"]),
    ("bench --sync=always", &["none", "dsync"]),
    ("bench --random_distribution=zoned:50/5", &["accepted is 100 percent"]),
    ("bench --random_distribution=zipf:0", &["theta above 0"]),
    ("bench --percentile_list=50:101", &["up to 100"]),
    ("bench --kb_base=1001", &["accepted: 1024, 1000"]),
    (
        "bench --verify=sha512",
        &["--verify=sha512: not built", "crc32c, xxhash, md5, sha256, meta, pattern, null, 0"],
    ),
    ("bench --verify=crc32", &["--verify=crc32: not built; accepted: crc32c"]),
    ("bench --verify_pattern=abcd", &["not understood from 'abcd' on", "0xdeadbeef", "%o"]),
    ("bench --verify_interval=100", &["multiples of 512"]),
    ("bench --verify_backlog=-1", &["0 to 4294967295"]),
    ("bench --do_verify=2", &["accepted: 0, 1"]),
    ("bench --verify_offset=8", &["not built", "verification"]),
    (
        "bench --verify=pattern --rw=write --device=memory",
        &["verify=pattern needs a verify_pattern"],
    ),
    ("bench --verify=crc32c --rw=trim --device=memory", &["only trims", "reads or writes"]),
    ("bench --verify=crc32c --rw=read --verify_only --device=memory", &["verify_only repeats"]),
    (
        "bench --verify=crc32c --rw=write --verify_only --do_verify=0 --device=memory",
        &["verify_only with do_verify=0"],
    ),
    (
        "bench --verify=crc32c --rw=write --numjobs=2 --device=memory",
        &["thread 0 verifies", "do not overlap", "offset_increment"],
    ),
    (
        "bench --verify crc32c",
        &["device null", "verify=crc32c, but this device keeps nothing", "memory"],
    ),
    ("bench --scheduler=cfq", &["no scheduler 'cfq'", "accepted: none"]),
    ("bench --scheduler=none:depth=1", &["none: no option 'depth'"]),
    ("bench --scheduler=", &["NAME[:KEY=VALUE"]),
    ("bench --scheduler=fifo_batch=1", &["before any name"]),
    ("bench --scheduler=none --ioscheduler=cfq", &["no scheduler 'cfq'"]),
    ("bench --device=zram", &["no device 'zram'", "accepted: null"]),
    ("bench --device=null,depth=1", &["no parameter 'depth'", "hw_queue_depth"]),
    ("bench --device=null,memory_backed=1", &["a parameter of device memory", "accepted: 0"]),
    ("bench --device=faults,late=0.1", &["DEVICE is missing", "faults[,KEY=VALUE]...:DEVICE"]),
    ("bench --device=faults,late=2:null", &["device faults: late=2", "a probability from 0 to 1"]),
    ("bench --device=faults:null,depth=1", &["device null: no parameter 'depth'"]),
    ("bench --access=rcu", &["accepted: combining, spin, mutex, serialised"]),
    ("bench --access=spin --kick=never", &["accepted: always, flag, coalesced"]),
    ("bench --dispatch=batch", &["does not go with access=combining; accepted: total-order"]),
    ("bench --access=mutex:insert=staged", &["accepted: direct, percpu-lists"]),
    ("bench --scope=core", &["accepted: queue, hwqueue"]),
    ("bench --pump=none", &["accepted: inline, threads"]),
    ("bench --nomerges=3", &["accepted: 0, 1, 2"]),
    ("bench --nr_requests=0", &["1 to 65536"]),
    ("bench --repeat=0", &["1 to 1000"]),
    ("bench --threads=1,,2", &["1 to 4096"]),
    ("bench --threads=4097", &["1 to 4096"]),
    ("bench --output-format=xml", &["normal, json, json+, csv, html, terse"]),
    ("bench --minimal --terse_version=6", &["accepted: 3, 4, 5"]),
    ("bench --cpus_allowed=a", &["numbers of CPUs, such as 0-3,8"]),
    ("bench --output=", &["--output=: no value"]),
    ("bench --name=", &["the name of a job"]),
    ("bench --readonly --rw=write", &["rw=write writes", "read, randread"]),
    ("bench --numjobs=4096 --name=a --name=b --offset_increment=0", &["8192 threads", "4096"]),
    ("bench --seed=1", &["--seed=1: chance in real time has no seed", "accepted by blkmq sim"]),
    ("sim --seed=-1", &["--seed=-1: ", "0 to 18446744073709551615"]),
    ("sim --device=zram", &["no device 'zram'", "accepted: null"]),
    ("bench --report=x.pdf", &["--report=x.pdf: no format ends so", ".html, .htm, .json, .csv"]),
    ("bench --report=x", &["--report=x: no format ends so"]),
    ("bench --trace_events=5", &["trace_events without a trace", "--trace=PREFIX"]),
    (
        "replay",
        &["FILE is missing: a trace, or an elevator log", "accepted: FILE, --scheduler=NAME"],
    ),
    ("replay a b", &["b: one argument too many", "accepted: FILE, --scheduler=NAME"]),
    ("replay a --scheduler=cfq", &["--scheduler=cfq: no scheduler 'cfq'", "accepted: none"]),
    ("replay a --scheduler=all", &["a: No such file"]),
    ("replay Cargo.toml --layout=heap", &["--layout=heap", "accepted: concat, hash"]),
    ("replay Cargo.toml --speed=0", &["--speed=0", "accepted: 0.000001 to 1000000"]),
    ("replay a --scheduler", &["--scheduler: needs a value; accepted: NAME"]),
    ("replay a --depth=1", &["--depth: no such option", "--device=DEVICE"]),
    ("replay a --devise=null", &["--devise: no such option; nearest: --device"]),
    ("replay no-such.log", &["no-such.log: "]),
    ("replay Cargo.toml", &["Cargo.toml: the format is not known; accepted: --format=NAME"]),
    ("repro contension", &["contension: no such claim; nearest: contention", "batch, order"]),
    (
        "repro x",
        &["x: no such claim; accepted: contention, batch, order, merge, kick, depth, stats"],
    ),
    ("repro --depth=3", &["--depth: no such option", "accepted: CLAIM, --runtime=TIME, --threads"]),
    ("repro -r", &["-r: no such option", "--report=FILE.html, --output-format=FORMAT, --help"]),
    ("repro batch --runtime", &["--runtime: needs a value; accepted: TIME"]),
    ("repro --runtime=0", &["--runtime=0: accepted: a time above 0, such as 5 or 500ms"]),
    ("repro --runtime=soon", &["--runtime=soon: ", "30 (s)"]),
    ("repro --threads=0", &["--threads=0: ", "1 to 4096"]),
    ("repro --threads=", &["--threads=: ", "1 to 4096"]),
    ("repro --report=a.txt", &["--report=a.txt: ", "accepted: a name that ends in .html"]),
    ("repro --output-format=csv", &["--output-format=csv: no such format; accepted: normal, json"]),
    ("bench no-such-file.fio", &["no-such-file.fio: "]),
    ("bench .", &["a directory, not a job file"]),
];

#[test]
fn every_refusal_is_one_line_that_says_what_is_accepted() {
    for (line, parts) in REFUSED {
        let message = refusal(&split(line));
        for part in *parts {
            assert!(message.contains(part), "{line}: {message} lacks '{part}'");
        }
    }
}

#[test]
fn malformed_job_files_name_file_and_line() {
    for (name, text, expected) in [
        ("header.fio", "[a]\n[b\n", ":2: malformed section header"),
        ("junk.fio", "[a]\n\nnot an option\n", ":3: not an option: malformed line"),
        ("early.fio", "rw=read\n[a]\n", ":1: rw=read: stands before the first section"),
        ("value.fio", "; c\n[a]\niodepth=0\n", ":3: iodepth=0: out of range; accepted: 1 to 65536"),
        ("bare.fio", "[a]\nbs\n", ":2: bs: needs a value"),
        ("unknown.fio", "[a]\niodpeth=1\n", ":2: iodpeth: unknown option; nearest: iodepth"),
        ("name.fio", "[a]\nname=\n", ":2: name=: no value; accepted: the name of a job"),
        ("section.fio", "[a]\nsection=b\n", ":2: section=b: accepted on the command line only"),
        ("include.fio", "[a]\ninclude no-such.fio\n", ":2: "),
        ("engine.fio", "[a]\nhttp_host=b\n", ":2: http_host: an option of an engine"),
        ("empty.fio", "", ": no job in this file"),
    ] {
        let path = file(name, text);
        let message = refusal(&["bench", &path]);
        assert!(message.starts_with(&format!("blkmq: {path}{expected}")), "{message}");
    }
}

#[test]
fn arguments_cannot_break_the_line_or_the_program() {
    let message = refusal(&["bench", "--rw=a\nb"]);
    assert!(message.contains("a\\nb"), "{message}");
    refusal(&["bench", "--bs=\u{fc}"]);
    refusal(&["bench", "--\u{1f600}=1"]);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        command.args(["bench".as_ref(), std::ffi::OsStr::from_bytes(b"--bs=\xff")]);
        let output = command.output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("not UTF-8"));
    }
}

/// Yu Kuai's measurement of batch dispatch, verbatim but for the first word.
#[test]
fn the_first_seed_is_understood() {
    let text = shown(&split(
        "bench -filename=/dev/nullb0 -name=test -rw=randwrite -bs=4k -iodepth=32 -numjobs=16 \
         --iodepth_batch_submit=8 --iodepth_batch_complete=8 -direct=1 -ioengine=io_uring \
         -group_reporting -time_based -runtime=30 --dry-run --scheduler none",
    ));
    for part in [
        "1 run: ",
        "At most 30s a run",
        "[test]\nrw=randwrite\nbs=4096\ndirect=1\niodepth=32\niodepth_batch_submit=8\n\
         iodepth_batch_complete_min=8\nnumjobs=16\nruntime=30s\ntime_based=1\ngroup_reporting=1\n",
        "filename=/dev/nullb0, ioengine=io_uring: I/O goes to device uring:/dev/nullb0",
        "filename=/dev/nullb0 does not exist here: no size is checked",
    ] {
        assert!(text.contains(part), "'{part}' is missing in\n{text}");
    }
}

/// Jens Axboe's measurement of lock contention, verbatim but for the first word.
#[test]
fn the_second_seed_is_understood() {
    let text = shown(&split(
        "bench --bs=512 --group_reporting=1 --gtod_reduce=1 --invalidate=1 --ioengine=io_uring \
         --norandommap --runtime=60 --rw=randread --thread --time_based=1 --buffered=0 --fixedbufs=1 \
         --numjobs=32 --iodepth=4 --iodepth_batch_submit=4 --iodepth_batch_complete=4 \
         --name=scaletest --filename=/dev/nullb0 --dry-run --scheduler none",
    ));
    for part in [
        "[scaletest]\nrw=randread\nbs=512\nnorandommap=1\ndirect=1\niodepth=4\n\
         iodepth_batch_submit=4\niodepth_batch_complete_min=4\nnumjobs=32\nruntime=60s\ntime_based=1\n\
         group_reporting=1\ndisable_slat=1\ndisable_clat=1\ndisable_lat=1\n",
        "no effect here: invalidate (",
        "thread (jobs are always threads)",
        "fixedbufs (",
    ] {
        assert!(text.contains(part), "'{part}' is missing in\n{text}");
    }
    assert!(!text.contains("norandommap ("), "norandommap is real");
}

#[test]
fn devices_around_devices_can_be_compared() {
    let list = "null,irqmode=0,faults,late=0.5,error=0.01,seed=7:memory,size=64";
    let text = shown(&["bench", "--dry-run", "--rw=randwrite", "--size=1m", "--device", list]);
    assert!(text.contains("2 devices"), "{text}");
    assert!(text.contains("faults,late=0.5,error=0.01,seed=7:memory,size=64"), "{text}");
}

/// Yu Kuai's device, as the published configfs commands set it up.
#[test]
fn the_device_of_the_first_seed_is_understood() {
    let device = "null,completion_nsec=0,blocksize=512,home_node=0,irqmode=0,submit_queues=128,\
                  hw_queue_depth=1024,size=1024,memory_backed=0,queue_mode=2";
    let text = shown(&["bench", "--dry-run", "--rw=randwrite", "--device", device]);
    assert!(text.contains(device), "{text}");
}

#[test]
fn a_dry_run_prints_a_job_file_that_means_the_same() {
    let path = file(
        "round.fio",
        "[global]\nbs=8k ; comment\ntime_based\nruntime=2\n[a]\n[b]\nrw=randrw\n",
    );
    let first = shown(&["bench", "--dry-run", &path]);
    let jobs = |text: &str| {
        let (_, rest) = text.split_once("as a job file:\n\n").expect("jobs are printed");
        rest.split_once("\nRuns, in order").expect("runs are printed").0.to_owned()
    };
    let printed = jobs(&first);
    assert!(
        printed.contains("[a]\nrw=read\nbs=8192") && printed.contains("[b]\nrw=randrw"),
        "{printed}"
    );
    let again = shown(&["bench", "--dry-run", &file("again.fio", &printed)]);
    assert_eq!(jobs(&again), printed);
}

#[test]
fn help_and_pages_are_printed() {
    let help = shown(&["bench", "--help"]);
    for option in ["--rw=", "--iodepth=", "--scheduler=", "--dry_run", "fixedbufs", "verify"] {
        assert!(help.contains(option), "{option}");
    }
    assert_eq!(help, shown(&["help", "bench"]));
    assert_eq!(help, shown(&["bench", "--rw=read", "-h"]));
    assert_eq!(shown(&["help"]), shown(&["--help"]));
    assert!(shown(&["--version"]).starts_with("blkmq "));
    assert!(shown(&["doc"]).contains("none"));
    assert!(shown(&["doc", "none"]).starts_with("# none"));
    assert!(shown(&["doc", "null"]).contains("null"));
}

/// The page of each command: its usage, every line within the width, and examples at the end.
#[test]
fn every_command_has_a_page_that_fits_a_terminal_and_ends_in_examples() {
    let commands = ["", "bench", "sim", "replay", "trace", "repro", "doc", "completions", "man"];
    for (command, width) in commands.iter().flat_map(|it| [60, 80, 100].map(|width| (*it, width))) {
        let page = |args: &[&str]| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
            let output = program.env("COLUMNS", width.to_string()).args(args).output();
            let output = output.expect("the binary starts");
            assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let words = Vec::from_iter(command.split_whitespace());
        let text = page(&[&words[..], &["--help"]].concat());
        let usage = format!(
            "\nUsage: {}",
            ["blkmq"].iter().chain(&words).copied().collect::<Vec<_>>().join(" ")
        );
        assert!(text.contains(&usage), "{text}");
        let examples = text.split_once("\nExamples:\n").expect("there are some").1;
        assert!(examples.starts_with("  blkmq"), "{examples}");
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{command}: {line}");
        }
        assert_eq!(page(&[&words[..], &["-h"]].concat()), text);
        assert_eq!(page(&[&["help"], &words[..]].concat()), text);
    }
}

#[test]
fn scripts_for_shells_and_the_manual_are_made() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(shown(&["completions", shell]).contains("iodepth_batch_submit"), "{shell}");
    }
    assert!(shown(&["man"]).contains("\n.TH blkmq 1 "));
    let dir = tempfile::tempdir().expect("a folder");
    let option = format!("--dir={}", dir.path().display());
    assert_eq!(shown(&["man", &option]), "");
    let pages = std::fs::read_dir(dir.path()).expect("it is there").map(|entry| {
        let path = entry.expect("it can be read").path();
        (path.file_name().map(ToOwned::to_owned), std::fs::read_to_string(&path))
    });
    let pages = Vec::from_iter(pages);
    assert_eq!(pages.len(), 10);
    for (name, text) in pages {
        assert!(text.expect("text").contains("\n.SH DESCRIPTION\n"), "{name:?}");
    }
}

/// A block that the device does not take whole is one I/O of the job and several bios of the queue.
#[test]
fn blocks_longer_than_the_device_takes_are_divided() {
    let json = shown(&[
        "bench",
        "--rw=randwrite",
        "--bs=64k",
        "--iodepth=4",
        "--number_ios=100",
        "--size=64m",
        "--device=null,max_sectors=24,irqmode=1",
        "--output-format=json",
    ]);
    let number = |name: &str| -> u64 {
        let (_, rest) = json.split_once(&format!("\"{name}\"")).expect("it is reported");
        let digits = rest.trim_start_matches([' ', ':']).split(|c: char| !c.is_ascii_digit());
        digits.into_iter().next().expect("a value").parse().expect("a number")
    };
    // 128 sectors are divided into parts of 24.
    assert_eq!((number("submitted"), number("completed"), number("splits")), (600, 600, 500));
    let (_, writes) = json.split_once("\"write\"").expect("writes are reported");
    assert!(
        writes.contains("\"total_ios\": 100") || writes.contains("\"total_ios\" : 100"),
        "{json}"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["bench", "--help"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

fn experiment(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    command.arg("experiment").args(words).current_dir(folder).env("COLUMNS", "100");
    command
}

fn answered(folder: &Path, words: &[&str]) -> String {
    let output = experiment(folder, words).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn refused(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = experiment(folder, words).output().expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn bytes(folder: &Path, out: &str) -> Vec<Vec<u8>> {
    let file = |name| std::fs::read(folder.join(out).join(name)).expect("a result");
    ["runs.jsonl", "runs.csv"].map(file).to_vec()
}

fn study(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("studies").join(name)
}

/// A grid of 5 schedulers, 4 settings and 10 seeds.
const GRID: &str = r#"
    options = { device = "cloud", size = "2m" }
    job = [{ name = "r", rw = "randread" }, { name = "w", rw = "randwrite", bs = "32k" }]
    [grid]
    scheduler = ["none", "mq-deadline", "kyber", "bfq", "mclock"]
    "r.iodepth" = [1, 4, 16, 64]
    seed = "1..10"
"#;

#[test]
fn killed_resumed_and_sharded_ones_are_equal_to_the_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("grid.toml"), GRID).expect("it can be written");
    let text = answered(folder.path(), &["grid.toml", "--out=whole"]);
    assert!(text.contains("200 of 200 points"), "{text}");
    let whole = bytes(folder.path(), "whole");
    assert_eq!(whole[0].iter().filter(|byte| **byte == b'\n').count(), 200);

    // Killed as soon as some points are done, repeatedly, until one process reaches the end.
    let rows = || {
        let text = std::fs::read(folder.path().join("killed/shard-1-of-1.jsonl"));
        text.unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
    };
    let mut kills = 0;
    loop {
        let mut command = experiment(folder.path(), &["grid.toml", "--out=killed", "--threads=1"]);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let before = rows();
        let ended = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break Some(status);
            }
            if rows() > before + 30 {
                break None;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        };
        match ended {
            Some(status) => {
                assert!(status.success(), "{status}");
                break;
            }
            None => {
                child.kill().expect("it runs");
                child.wait().expect("it is killed");
                kills += 1;
            }
        }
    }
    assert!(kills > 0, "no run was killed");
    assert_eq!(bytes(folder.path(), "killed"), whole);

    for shard in ["3/3", "1/3", "2/3"] {
        let shard = format!("--shard={shard}");
        let early = refused(folder.path(), &["merge", "--out=parts"]);
        assert_ne!(early.0, Some(0), "{early:?}");
        let text = answered(folder.path(), &["grid.toml", "--out=parts", &shard]);
        assert!(text.contains("are in parts;") && text.contains("merge --out=parts"), "{text}");
    }
    let merged = answered(folder.path(), &["merge", "--out=parts"]);
    assert_eq!(bytes(folder.path(), "parts"), whole);
    assert_eq!(merged.replace("parts/", "whole/"), text);
}

/// The answers, which are the same for other seeds.
#[test]
fn questions_with_a_known_answer_are_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    for seeds in ["1..8", "101..108"] {
        let answer = |name: &str| {
            let text = std::fs::read_to_string(study(name)).expect("a study");
            assert!(text.contains("\"1..8\""), "{text}");
            let (file, out) = (format!("{seeds}-{name}"), format!("--out={name}-{seeds}"));
            std::fs::write(folder.path().join(&file), text.replace("1..8", seeds)).expect("room");
            answered(folder.path(), &[&file, &out])
        };
        let disk = answer("reader-beside-writers.toml");
        assert!(disk.contains("\nreader.read_p99: bfq is best, -"), "{disk}");
        assert!(disk.contains("\nwriters.write_p99: none is best; worse: bfq\n"), "{disk}");
        let flash = answer("eight-streams.toml");
        assert!(flash.contains("\nstreams.iops: no difference\n"), "{flash}");
        let floor = answer("floor.toml");
        assert!(floor.contains("\nsmall.iops: b:weight=10,reserve_iops=200 is best, "), "{floor}");
        assert!(floor.contains("reserve_iops=200     200  "), "200 in a second: {floor}");
        let cost = "\nlarge.iops: b:weight=10 is best; worse: b:weight=10,reserve_iops=200\n";
        assert!(floor.contains(cost), "{floor}");
    }
}

#[test]
fn traces_are_points_and_their_contents_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = |step: u64| -> String {
        let row = |at: u64| {
            format!("{},read,{},4096,a,v,none,\n", at * 100_000, at * step % 9_999 * 4096)
        };
        (0..500)
            .map(row)
            .fold("time_ns,op,offset,size,tenant,volume,class,latency_ns\n".into(), |all, row| {
                all + &row
            })
    };
    let put =
        |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("room");
    put("a.csv", trace(7));
    put("b.csv", trace(1));
    let text = "program = 'replay'\noptions = { device = 'disk', think = true }\n[grid]\ntrace = ['a.csv', 'b.csv']\n\
                scheduler = ['none', 'mq-deadline']\nseed = '1..5'\n";
    put("replays.toml", text.into());
    let first = answered(folder.path(), &["replays.toml"]);
    assert!(
        first.contains("trace  figure") && first.contains("trace a.csv, a.read_p99"),
        "{first}"
    );
    let before = bytes(folder.path(), "replays");
    answered(folder.path(), &["replays.toml"]);
    assert_eq!(bytes(folder.path(), "replays"), before);
    // A different trace under the same name is a different point.
    put("b.csv", trace(13));
    let output = experiment(folder.path(), &["replays.toml"]).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("10 of 20 points are in replays already"), "{errors}");
    assert!(errors.contains("10 rows in replays are of no point of the study"), "{errors}");
}

#[test]
fn studies_that_cannot_be_run_are_refused_before_the_first_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let refuses = |text: &str, says: &str| {
        std::fs::write(folder.path().join("bad.toml"), text).expect("room");
        let (code, errors) = refused(folder.path(), &["bad.toml"]);
        assert!(code == Some(2) && errors.contains(says), "{text}: {code:?} {errors}");
        assert!(!folder.path().join("bad").exists(), "{text}: a folder was made");
    };
    refuses("grid = 1", "bad.toml: line 1: ");
    refuses("\n\nbogus = 1\n[grid]\nseed=[1]", "line 3: unknown field `bogus`");
    refuses("[grid]\nscheduler=['none','nosuch']\nrw=['read']", "scheduler=nosuch: ");
    refuses("[grid]\nscheduler=['none,bfq']\nrw=['read']", "2 runs in one point");
    refuses(
        "[options]\nscheduler='bfq'\nwrite_lat_log='x'\nrw='read'\n[grid]\nseed=[1]",
        "write_*_log: of a single run",
    );
    refuses(
        "[options]\nscheduler='bfq'\noutput='x'\nrw='read'\n[grid]\nseed=[1]",
        "output: of a single run",
    );
    refuses("[options]\nshowcmd=true\nrw='read'\n[grid]\nseed=[1]", "an option prints something");
    refuses("program='replay'\ntrace='none.csv'\n[grid]\nseed=[1]", "none.csv: No such file");
    let text = "[options]\nrw='read'\nsize='1m'\n[grid]\nseed=[1,2]\n[compare]\nmetrics=['x']\naxis='seed'\npair='seed'";
    refuses(text, "both compared and paired");
    let (code, errors) = refused(folder.path(), &["merge", "--shard=1/2"]);
    assert!(code == Some(2) && errors.contains("--shard: not of merge"), "{errors}");
    let (code, errors) = refused(folder.path(), &["bad.toml", "--shard=0/2"]);
    assert!(code == Some(2) && errors.contains("accepted: I/N"), "{errors}");
}

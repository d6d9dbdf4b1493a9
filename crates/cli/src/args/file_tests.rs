//! Tests of command lines with options for engines and files.

use super::tests::{File, plan, refusal};
use super::{Request, parse};
use crate::plan::{Plan, Time};

fn read(line: &str, time: Time) -> Result<Plan, String> {
    let args = Vec::from_iter(line.split_whitespace().map(String::from));
    match parse(&args, time) {
        Ok(Request::Plan(plan)) => Ok(*plan),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(e) => Err(e.to_string()),
    }
}

fn device(line: &str) -> (String, u64) {
    let plan = plan(line);
    assert_eq!(plan.devices.len(), 1, "{line}");
    (plan.devices[0].text.clone(), plan.devices[0].size_bytes)
}

/// Makes a sparse file of this many bytes, which is removed when dropped.
fn sparse(name: &str, bytes: u64) -> File {
    let file = File::new(name, "");
    let opened = std::fs::File::options().write(true).open(file.path());
    opened.and_then(|file| file.set_len(bytes)).expect("a sparse file");
    file
}

/// Regression test: with `filename=FILE` and libaio or io_uring, the null device was measured at 406k IOPS, and only a
/// note mentioned it.
#[test]
fn a_file_that_is_named_is_the_device() {
    let file = sparse("named", 1 << 20);
    let path = file.path();
    for engine in ["", "--ioengine=libaio", "--ioengine=io_uring", "--ioengine=psync"] {
        let line = format!("--filename={path} --rw=randwrite --direct=1 {engine}");
        assert_eq!(device(&line), (format!("uring:{path}"), 1 << 20), "{line}");
        let note = &plan(&line).notes[0];
        assert!(note.ends_with(&format!("I/O goes to device uring:{path}")), "{note}");
    }
    assert_eq!(device(&format!("--filename={path}")).0, format!("uring:{path},readonly=1"));
    // An image of another format may be read as it is, and is not overwritten.
    let image = format!("{path}.qcow2");
    std::fs::write(&image, [&b"QFI\xfb"[..], &[0; 8188]].concat()).expect("the folder is ours");
    let described = device(&format!("--filename={image}")).0;
    std::fs::remove_file(&image).expect("it is there");
    assert_eq!(described, format!("uring:{image},readonly=1,format=raw"));
    assert_eq!(device(&format!("--filename={path} --ioengine=null --rw=write")).0, "null");
    assert_eq!(device(&format!("--filename={path} --device=memory,size=2m")).0, "memory,size=2m");
    assert_eq!(device("--ioengine=libaio --rw=read").0, "null");
    let line = format!("--filename={path} --size=2m --ioengine=libaio");
    let virtual_plan = read(&line, Time::Virtual { seed: 0 }).expect("simulated");
    assert_eq!(virtual_plan.devices[0].text, "null");
    assert!(virtual_plan.notes.contains(&"no file is touched in virtual time".to_owned()));
}

#[test]
fn a_file_that_is_too_short_is_laid_out_to_the_size_that_is_asked_for() {
    let missing = std::env::temp_dir().join("blkmq-is-never-made");
    let missing = missing.to_str().expect("made of ASCII");
    let bytes = |line: &str| {
        let (text, size) = device(&format!("--filename={missing} --rw=write --direct=1 {line}"));
        assert_eq!(text, format!("uring:{missing},size={size}b"));
        size
    };
    assert_eq!(bytes("--size=1m"), 1 << 20);
    assert_eq!(bytes("--size=10k --offset=1m"), (1 << 20) + 10_240);
    assert_eq!(bytes("--size=1m --offset_increment=2m --numjobs=3"), 5 << 20);
    assert_eq!(bytes("--size=1m --offset_increment=2m --threads=1,2"), 3 << 20);
    assert_eq!(bytes("--filesize=4m"), 4 << 20);
    assert_eq!(bytes("--filesize=4m --size=50%"), 4 << 20);
    assert_eq!(bytes("--size=1m --name=a --name=b --size=2m --name=c --filesize=3m"), 3 << 20);
    assert!(!std::path::Path::new(missing).exists(), "a plan lays out nothing");
    let short = sparse("short", 4096);
    let path = short.path();
    assert_eq!(
        device(&format!("--filename={path} --size=8k")).0,
        format!("uring:{path},size=8192b")
    );
    assert_eq!(std::fs::metadata(path).expect("it is there").len(), 4096);
    let text = refusal(&format!("--filename={path} --filesize=8k --allow_file_create=0"));
    assert!(text.contains("allow_file_create=0 forbids"), "{text}");
}

#[test]
fn the_page_cache_is_passed_by_unless_it_is_asked_for() {
    let file = sparse("cached", 1 << 20);
    let path = file.path();
    let notes =
        |line: &str| plan(&format!("--filename={path} --rw=randrw {line}")).notes.join("; ");
    assert!(notes("").contains("passes by the page cache: direct is not given"));
    assert!(!notes("--direct=1").contains("page cache"));
    assert!(notes("--direct=0").contains("goes through the page cache, as direct=0 asks for"));
    let text = device(&format!("--filename={path} --rw=randrw --buffered=1")).0;
    assert_eq!(text, format!("uring:{path},direct=0"));
    let mixed = format!("--filename={path} --name=a --direct=1 --name=b --direct=0");
    assert!(refusal(&mixed).starts_with("direct=0 and direct=1 for one file"));
}

#[test]
fn a_synchronous_engine_has_one_io_in_flight() {
    let plan = plan("--ioengine=psync --iodepth=8 --iodepth_batch=4 --name=a --rw=read");
    assert_eq!((plan.jobs[0].depth.iodepth, plan.jobs[0].depth.batch_submit), (1, 1));
    assert!(plan.notes.iter().any(|note| note.contains("ioengine=psync has one I/O in flight")));
}

/// About 47 options were refused at the value that they have anyway.
#[test]
fn an_option_at_fios_default_is_accepted() {
    for (name, values) in super::options::defaults() {
        for value in *values {
            for time in [Time::Real, Time::Virtual { seed: 0 }] {
                let line = format!("--name=a --rw=read --size=1m --{name}={value}");
                let plan = read(&line, time).expect(&line);
                assert!(!plan.notes.iter().any(|note| note.contains(name)), "{:?}", plan.notes);
            }
        }
    }
}

#[test]
fn the_version_is_what_programs_look_for_in_fio() {
    for option in ["--version", "-v", "--rw=read --version"] {
        let args = Vec::from_iter(option.split(' ').map(str::to_owned));
        let Ok(Request::Command(text)) = parse(&args, Time::Real) else { panic!("{option}") };
        assert!(text.starts_with("fio-3.33-blkmq-") && text.ends_with('\n'), "{text}");
    }
}

#[test]
fn a_job_file_is_shown_as_a_command_line() {
    let file = sparse("shown.fio", 0);
    let text = "[global]\nname=all\nsize=64k\n[one]\ntime_based=0\n[two]\nname=own\nbs=8k\n";
    std::fs::write(file.path(), text).expect("it can be written");
    let args = [file.path(), "--showcmd"].map(str::to_owned);
    let shown = |args: &[String]| match parse(args, Time::Real) {
        Ok(Request::Command(text)) => text,
        other => panic!("{other:?}"),
    };
    let line = "blkmq bench --size=64k --name=one --time_based=0 --name=own --bs=8k\n";
    assert_eq!(shown(&args), line);
    // The command line and the file mean the same.
    let words = line.trim_end().strip_prefix("blkmq bench ").expect("its beginning");
    assert_eq!(plan(words).jobs, plan(file.path()).jobs);
}

#[test]
fn several_formats_are_printed_one_after_the_other() {
    use crate::report::{Format, terse::Version};
    let formats = |line: &str| {
        let plan = plan(line);
        Vec::from_iter([plan.format].into_iter().chain(plan.also))
    };
    assert_eq!(formats("--output-format=json,normal"), [Format::Json, Format::Normal]);
    let terse = Format::Terse;
    assert_eq!(formats("--minimal"), [terse(Version::V3)]);
    assert_eq!(formats("--append-terse --terse-version=3"), [Format::Normal, terse(Version::V3)]);
    assert_eq!(formats("--minimal --terse-version=5"), [terse(Version::V5)]);
    assert_eq!(
        formats("--terse-version=4 --output-format=json,terse"),
        [Format::Json, terse(Version::V4)]
    );
    assert!(refusal("--minimal --terse-version=2").contains("accepted: 3, 4, 5"));
    assert!(refusal("--output-format=json,xml").contains("accepted: normal, json, json+, csv"));
    assert!(refusal("--output-format=json,csv --output=x").contains("several formats in one file"));
}

#[cfg(target_os = "linux")]
#[test]
fn cpus_are_kept_for_each_job_and_refused_in_virtual_time() {
    let all = plan("--name=a --rw=read --cpumask=0xffffffffffffffff --name=b --rw=read");
    assert_eq!(all.cpus.len(), 2);
    assert!(all.cpus[0].as_ref().is_some_and(|cpus| !cpus.is_split) && all.cpus[1].is_none());
    let split = plan("--rw=read --cpumask=0xffffffffffffffff --cpus_allowed_policy=split");
    assert!(split.cpus[0].as_ref().is_some_and(|cpus| cpus.is_split));
    let of_nodes = plan("--rw=read --numa_cpu_nodes=all --numa_mem_policy=local");
    assert!(of_nodes.cpus[0].is_some());
    assert!(refusal("--rw=read --numa_mem_policy=far").contains("accepted: default, local"));
    let text = read("--rw=read --cpumask=0xff", Time::Virtual { seed: 0 }).expect_err("refused");
    assert_eq!(
        text,
        "cpus_allowed: each virtual thread has a CPU of its own; accepted by blkmq bench"
    );
}

#[test]
fn virtual_time_has_no_date() {
    let line = "--rw=read --write_lat_log=x --log_unix_epoch=1";
    assert!(plan(line).jobs[0].logs.unix_epoch);
    let text = read(line, Time::Virtual { seed: 0 }).expect_err("refused");
    assert_eq!(text, "log_unix_epoch: virtual time has no date; accepted by blkmq bench");
}

/// A scheduler orders by distance: files on one disk share its queue, and follow each other on the device.
#[test]
fn several_files_are_one_device_and_each_job_knows_its_own() {
    let [a, b] = ["several-a", "several-b"].map(|name| sparse(name, 1 << 20));
    let (one, two) = (a.path(), b.path());
    let plan = plan(&format!(
        "--direct=1 --bs=4k --name=x --filename={one}:{two} --rw=read --name=y --filename={two} --rw=write --size=64k"
    ));
    let [device] = plan.devices.as_slice() else { panic!("{:?}", plan.devices) };
    let placed = device.files.iter().map(|file| (file.start, file.text.as_str()));
    let (reads, writes) = (format!("uring:{one},readonly=1"), format!("uring:{two}"));
    assert_eq!(placed.collect::<Vec<_>>(), [(0, reads.as_str()), (2 << 20, writes.as_str())]);
    assert_eq!(device.size_bytes, 3 << 20);
    let regions = |job: usize| {
        let regions = plan.jobs[job].regions(0, device.size_bytes).expect("they fit");
        Vec::from_iter(regions.iter().map(|it| (it.file >> 20, it.start >> 20, it.size >> 10)))
    };
    assert_eq!(regions(0), [(0, 0, 1024), (2, 2, 1024)]);
    assert_eq!(regions(1), [(2, 2, 64)]);
}

/// Regression test: a job with a percentage as its offset was refused if the file had to grow for it, and percentages
/// referred to the longer file.
#[test]
fn a_file_grows_from_job_to_job() {
    let file = sparse("grows", 1 << 20);
    let path = file.path();
    let plan = plan(&format!(
        "--filename={path} --direct=1 --rw=read --name=a --offset=25% --size=1m --name=b --offset=50% --size=64k"
    ));
    let [device] = plan.devices.as_slice() else { panic!("{:?}", plan.devices) };
    assert_eq!(device.size_bytes, 1_280 << 10);
    let regions = plan.jobs.iter().map(|job| job.region(0, device.size_bytes).expect("it fits"));
    let places = Vec::from_iter(regions.map(|it| (it.start >> 10, it.room >> 10)));
    assert_eq!(places, [(256, 1024), (640, 640)]);
}

#[test]
fn files_of_threads_are_laid_out_as_fio_names_them() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().expect("made of ASCII");
    let line = format!(
        "--directory={folder} --direct=1 --name=blkmq-nowhere --numjobs=2 --nrfiles=2 --rw=write --size=128k"
    );
    let plan = plan(&line);
    let texts = plan.devices[0].files.iter().map(|file| file.text.clone());
    let expected = ["0.0", "0.1", "1.0", "1.1"]
        .map(|n| format!("uring:{folder}/blkmq-nowhere.{n},size=65536b"));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    assert!(
        plan.notes.contains(
            &"4 files are laid out before the first run: 262144 bytes, written through".to_owned()
        ),
        "{:?}",
        plan.notes
    );
    let many = refusal(&format!("{line} --numjobs=500"));
    assert!(many.starts_with("nrfiles: 1000 files in a run; accepted: up to 900"), "{many}");
}

#[test]
fn on_a_device_several_files_are_stretches_of_it() {
    let stretches = |line: &str| {
        let plan = read(line, Time::Virtual { seed: 0 }).expect(line);
        let files = plan.jobs[0].files.clone().expect("files");
        Vec::from_iter(files.list.iter().map(|file| (file.start >> 20, file.bytes >> 10)))
    };
    let device = "--device=memory,size=64";
    assert_eq!(
        stretches(&format!("{device} --nrfiles=3 --size=3m")),
        [(0, 1024), (2, 1024), (4, 1024)]
    );
    assert_eq!(stretches(&format!("{device} --filename=a:b")), [(0, 32764), (32, 32764)]);
    assert_eq!(stretches("--filename=a:b --size=8m"), [(0, 4096), (5, 4096)]);
    let sized = stretches(&format!("{device} --nrfiles=2 --filesize=256k --size=64k"));
    assert_eq!(sized, [(0, 256), (1, 256)]);
    assert_eq!(plan("--device=memory --filename=a").jobs[0].files, None);
    let large = refusal("--device=memory,size=4 --nrfiles=2 --size=8m");
    assert!(large.contains("does not fit into a device of 4194304 bytes"), "{large}");
}

#[test]
fn what_would_have_a_queue_of_its_own_is_refused() {
    let file = sparse("on-a-disk", 1 << 20);
    let path = file.path();
    let other = refusal(&format!("--filename={path}:/proc/self/status --direct=1 --size=8k"));
    assert!(other.contains("lies on another file system, and would have a queue"), "{other}");
    let null = refusal(&format!("--filename={path} --name=a --name=b --ioengine=null"));
    assert!(null.starts_with("job 'b': has no file, and job 'a' has filename="), "{null}");
}

/// fio's linear feedback shift register visits all blocks, with or without a map.
#[test]
fn lfsr_visits_each_block_once() {
    let map = |line: &str| {
        !plan(&format!("--rw=randread --size=1m --norandommap {line}")).jobs[0].norandommap
    };
    assert!(map("--random_generator=lfsr"));
    assert!(!map("--random_generator=tausworthe64") && !map(""));
    assert!(
        !map("--random_generator=lfsr --bssplit=4k/50:8k/50"),
        "as with fio, blocks of one size only"
    );
    assert!(refusal("--random_generator=x").contains("tausworthe, tausworthe64, lfsr"));
}

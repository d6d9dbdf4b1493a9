//! The I/Os that a job issues: fio and blkmq get the same options, and their counts, bytes, rates and depths are
//! compared. The coverage of blocks is compared through verification: a block that was written once is compared once.

use super::{Folder, Outcome};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde_json::Value;
use std::path::Path;

/// Options with which both must do the same number of I/Os and move the same number of bytes.
const SAME: &[&str] = &[
    "--rw=read --size=1m --io_size=33%",
    "--rw=randread --bs=64k --size=1m --io_size=10%",
    "--rw=randread:8 --size=1m",
    "--rw=randwrite:3 --size=1m --number_ios=10",
    "--rw=read:4k --size=1m",
    "--rw=read:3k --size=1m",
    "--rw=write:8k --size=1m",
    "--rw=write:8k --size=1m --loops=2",
    "--rw=write:8k --size=1m --io_size=2m",
    "--rw=read:-8k --size=1m",
    "--rw=read:-12k --size=1m",
    "--rw=trim:4k --size=1m",
    "--rw=read --bssplit=4k/50:6k/50 --size=1m",
    "--rw=randread --bssplit=4k/50:6k/50 --size=1m",
    "--rw=randread --norandommap --bssplit=4k/50:64k/50 --size=64k",
    "--rw=read --bs=8k --size=100k",
    // Several files.
    "--rw=read --nrfiles=4 --size=1m",
    "--rw=read --nrfiles=3 --size=100k",
    "--rw=randwrite --nrfiles=4 --size=104k --file_service_type=random",
    "--rw=randread --nrfiles=4 --size=1m --bs=8k --file_service_type=sequential",
    "--rw=randread --nrfiles=4 --size=1m --norandommap",
    "--rw=read --nrfiles=4 --filesize=64k --size=96k",
    "--rw=randread --nrfiles=4 --filesize=64k",
    "--rw=write --nrfiles=4 --size=1m --io_size=300k",
    "--rw=read --nrfiles=4 --size=1m --loops=3 --number_ios=100",
    "--rw=read:4k --nrfiles=4 --size=1m",
    "--rw=read --nrfiles=8 --size=1m --openfiles=2 --file_service_type=roundrobin:4",
    "--rw=read --filename=a:b:c --size=768k",
    "--rw=trimwrite --nrfiles=4 --size=1m",
    "--rw=randread --norandommap --random_generator=lfsr --size=1m --loops=2",
    "--rw=randread --norandommap --random_generator=lfsr --bssplit=4k/100 --nrfiles=2 --size=1m",
];

/// Like [`SAME`], but on files, which each lays out in its own folder.
const ON_FILES: &[&str] = &[
    "--filename=a:b --rw=randwrite --size=64k --loops=3 --verify=crc32c --iodepth=4",
    "--filename=a:b --rw=randwrite --size=64k --fsync=4",
    "--filename=a --rw=randwrite --size=64k --name=second --filename=b --rw=read --size=128k",
    "--directory=. --nrfiles=3 --numjobs=2 --rw=write --size=96k --verify=md5",
    "--filename_format=x.$filenum --nrfiles=3 --filesize=64k --size=100k --rw=randread",
    "--filename=a --rw=randwrite --size=64k --norandommap --iodepth=8 --serialize_overlap=1",
    "--filename=a --rw=randwrite --size=64k --filesize=256k --loops=2",
];

/// Options with several block sizes: bytes are the same, and the number of I/Os is within these bounds, which hold
/// for any seed.
const COVERED: &[(&str, u64, u64)] = &[
    ("--rw=randread --size=16m --bssplit=4k/50:64k/50", 650, 980),
    ("--rw=randread --size=16m --bsrange=4k-64k", 620, 800),
    ("--rw=randread --size=16m --bsrange=512:1M", 35, 90),
    ("--rw=randread --size=1m --loops=2 --bssplit=4k:8k", 340, 440),
];

/// Rates of reads and writes, which are reached for any mix.
const RATES: &[(&str, [f64; 2])] = &[
    ("--rw=randrw --rate_iops=1000,200", [1000.0, 200.0]),
    ("--rw=rw --rate=1m,2m", [256.0, 512.0]),
    ("--rw=randrw --rwmixread=80 --rate_iops=1000,200", [1000.0, 200.0]),
    ("--rw=randrw --rwmixread=20 --rate_iops=1000,200", [1000.0, 200.0]),
];

/// Portions, and the share of I/Os at each depth.
const DEPTHS: &[&str] = &[
    "--iodepth=16 --iodepth_batch=16 --iodepth_batch_complete=16",
    "--iodepth=32 --iodepth_batch=8 --iodepth_batch_complete=8",
    "--iodepth=8",
];

fn fio(options: &str) -> Result<Value> {
    parse_json(&Cmd::new(&format!("fio --name=check --output-format=json {options}")).output()?)
}

fn ours(options: &str) -> Result<Value> {
    let line = format!(
        "{BLKMQ} sim --scheduler=none --ioengine=null --output-format=json --name=check {options}"
    );
    parse_json(&Cmd::new(&line).output()?)
}

/// I/Os and bytes of reads, writes and trims.
fn work(report: &Value) -> [(u64, u64); 3] {
    work_of(&report["jobs"][0])
}

fn work_of(job: &Value) -> [(u64, u64); 3] {
    ["read", "write", "trim"].map(|direction| {
        let counts = &job[direction];
        let count = |key: &str| counts[key].as_u64().unwrap_or(0);
        (count("total_ios"), count("io_bytes"))
    })
}

fn differ(options: &str, fio: impl std::fmt::Debug, ours: impl std::fmt::Debug) -> Result<()> {
    Err(format!("with {options}: fio {fio:?}, blkmq {ours:?}").into())
}

/// See the tables above.
///
/// # Errors
/// If fio and blkmq differ.
pub(super) fn check() -> Result<Outcome> {
    let null = "--ioengine=null";
    for options in SAME {
        let (fio, ours) = (work(&fio(&format!("{null} {options}"))?), work(&ours(options)?));
        if fio != ours {
            differ(options, fio, ours)?;
        }
    }
    on_files()?;
    for (options, least, most) in COVERED {
        let ([fio, ..], [ours, ..]) =
            (work(&fio(&format!("{null} {options}"))?), work(&ours(options)?));
        let bounded = |ios: u64| (*least..=*most).contains(&ios);
        if fio.1 != ours.1 || !bounded(fio.0) || !bounded(ours.0) {
            differ(options, fio, ours)?;
        }
    }
    for (options, expected) in RATES {
        let options = format!("{options} --size=64m --time_based --runtime=1");
        // fio measures in real time, and other programs may hold it up.
        let both = [(fio(&format!("{null} {options}"))?, 0.2), (ours(&options)?, 0.03)];
        for (report, tolerance) in both {
            let job = &report["jobs"][0];
            let rates = ["read", "write"].map(|d| job[d]["iops"].as_f64().unwrap_or(0.0));
            let is_off = |(rate, wanted): (&f64, &f64)| (rate / wanted - 1.0).abs() > tolerance;
            if rates.iter().zip(expected).any(is_off) {
                differ(&options, expected, rates)?;
            }
        }
    }
    depths()?;
    shape()?;
    verified()
}

/// I/Os, bytes, and the remaining files with their lengths.
fn on_files() -> Result<()> {
    let common = "--direct=1 --ioengine=libaio --bs=4k --output-format=json --name=check";
    let ours = format!("{BLKMQ} bench --scheduler=mq-deadline {common}");
    for options in ON_FILES {
        let mut both = Vec::new();
        for command in [&format!("fio {common}"), &ours] {
            let folder = Folder::new("workload")?;
            let words = options.split(' ');
            let command = words.fold(Cmd::new(command), Cmd::arg);
            let report = parse_json(&command.output_in(folder.path())?)?;
            let jobs = report["jobs"].as_array().map_or(0, Vec::len);
            let work = Vec::from_iter((0..jobs).map(|job| work_of(&report["jobs"][job])));
            both.push((work, lengths(folder.path())?));
        }
        if both[0] != both[1] {
            differ(options, &both[0], &both[1])?;
        }
    }
    Ok(())
}

/// The files of a folder with their lengths. Files with fio's verification state are skipped.
fn lengths(folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".state") {
            files.push((name, entry.metadata()?.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// A device that keeps I/Os for a while shows the depths; fio's null engine does not.
fn depths() -> Result<()> {
    let device =
        "--device=null,irqmode=2,completion_nsec=50000,hw_queue_depth=64 --size=4m --rw=randread";
    let file = std::env::temp_dir().join(format!("blkmq-workload-{}", std::process::id()));
    for options in DEPTHS {
        let engine =
            format!("--ioengine=libaio --filename={} --size=4m --rw=randread", file.display());
        let [fio, ours] =
            [fio(&format!("{engine} {options}"))?, ours(&format!("{device} {options}"))?]
                .map(|report| report["jobs"][0]["iodepth_level"].clone());
        for key in ["1", "2", "4", "8", "16", "32", ">=64"] {
            let share = |report: &Value| report[key].as_f64().unwrap_or(-1.0);
            // The first I/Os fill the queue; on a file, completions sometimes come in other batches.
            if (share(&fio) - share(&ours)).abs() > 5.0 {
                let _ = std::fs::remove_file(&file);
                return differ(options, fio, ours);
            }
        }
    }
    std::fs::remove_file(&file)?;
    Ok(())
}

/// The share of the I/Os that go to the most used fifth of the blocks, with fio's normal distribution of each width.
/// The number of blocks is a power of two, for which fio scatters without collisions.
fn shape() -> Result<()> {
    let folder = std::env::temp_dir();
    for (deviation, expected) in [(5, 77.0), (10, 75.5), (25, 64.0), (50, 40.0)] {
        let log = folder.join(format!("blkmq-iolog-{}", std::process::id()));
        let options = format!(
            "--ioengine=null --rw=randread --size=4m --io_size=400m --random_distribution=normal:{deviation}"
        );
        fio(&format!("{options} --write_iolog={}", log.display()))?;
        let text = std::fs::read_to_string(&log)?;
        std::fs::remove_file(&log)?;
        let mut counts = vec![0u32; 1024];
        for line in text.lines().filter(|line| line.contains(" read ")) {
            let offset =
                line.split_whitespace().nth_back(1).and_then(|word| word.parse::<usize>().ok());
            if let Some(count) = offset.and_then(|offset| counts.get_mut(offset / 4096)) {
                *count += 1;
            }
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |counts: &[u32]| f64::from(counts.iter().sum::<u32>());
        let share = 100.0 * sum(&counts[..205]) / sum(&counts).max(1.0);
        // The unit test of blkmq's own shape has the same formula.
        if (share - expected).abs() > 2.5 {
            differ(&options, share, expected)?;
        }
    }
    Ok(())
}

/// All that was written with several block sizes is compared, once.
fn verified() -> Result<Outcome> {
    let options = "--rw=randwrite --bssplit=4k/50:64k/50 --size=4m --verify=crc32c";
    let line = format!(
        "{BLKMQ} sim --scheduler=none --device=memory,size=64 --output-format=json --name=check {options}"
    );
    let report = parse_json(&Cmd::new(&line).output()?)?;
    let verify = &report["jobs"][0]["blkmq"]["verify"];
    if verify["verified"] != 4 << 20 || verify["errors"] != 0 {
        return Err(format!("with {options}: {verify}, expected 4 MiB").into());
    }
    Ok(Outcome::Passed)
}

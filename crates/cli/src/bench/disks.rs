//! [`Disks`]: the kernel's counts for the disks under the files of a plan, from their `stat` files.
//!
//! As in fio's `disk_util`, the counts cover the whole disk, including other programs.

use crate::devices::path_of;
use crate::plan::{Plan, Time};
use crate::report::model::Disk;
use std::path::{Path, PathBuf};

/// The disks, and their initial counts.
pub struct Disks {
    began_ms: u64,
    all: Vec<(PathBuf, Counts)>,
}

/// The numbers of a `stat` file, in the order of the kernel.
type Counts = [u64; 11];

impl Disks {
    /// Finds the disks under the files of `plan`. There are none without files, in virtual time, and where the kernel
    /// shows no disk.
    pub fn of(plan: &Plan) -> Self {
        let mut all: Vec<(PathBuf, Counts)> = Vec::new();
        let choices = plan.devices.iter().filter(|_| plan.time == Time::Real && plan.disk_util);
        let texts = choices.flat_map(|choice| {
            let files = choice.files.iter().map(|file| &file.text);
            files.chain(choice.files.is_empty().then_some(&choice.text))
        });
        for text in texts {
            let Some(path) = path_of(text).map(Path::new) else { continue };
            if let Some(folder) =
                disk_of(path).filter(|folder| all.iter().all(|(it, _)| it != folder))
            {
                all.extend(counts(&folder).map(|counts| (folder, counts)));
            }
        }
        Self { began_ms: blkmq_runtime::wall_clock_millis(), all }
    }

    /// The counts since the beginning.
    pub fn used(&self) -> Vec<Disk> {
        let elapsed = blkmq_runtime::wall_clock_millis().saturating_sub(self.began_ms);
        let one = |(folder, before): &(PathBuf, Counts)| {
            let name = folder.file_name()?.to_string_lossy().into_owned();
            Some(used(name, before, &counts(folder)?, elapsed))
        };
        self.all.iter().filter_map(one).collect()
    }
}

fn used(name: String, before: &Counts, after: &Counts, elapsed_ms: u64) -> Disk {
    let [
        read_ios,
        read_merges,
        _,
        read_ticks,
        write_ios,
        write_merges,
        _,
        write_ticks,
        _,
        busy,
        in_queue,
    ] = std::array::from_fn(|at| after[at].saturating_sub(before[at]));
    let util = (100.0 * busy as f64 / elapsed_ms.max(1) as f64).min(100.0);
    Disk {
        name,
        read_ios,
        write_ios,
        read_merges,
        write_merges,
        read_ticks,
        write_ticks,
        in_queue,
        util,
    }
}

fn counts(folder: &Path) -> Option<Counts> {
    parse(&std::fs::read_to_string(folder.join("stat")).ok()?)
}

fn parse(text: &str) -> Option<Counts> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let mut counts = [0; 11];
    for count in &mut counts {
        *count = numbers.next()??;
    }
    Some(counts)
}

/// Returns the sysfs folder of the disk under the file or block device at `path`; for a partition, that of the whole
/// disk. If the file does not exist yet, its folder decides.
#[cfg(target_os = "linux")]
fn disk_of(path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let found = std::fs::metadata(path);
    let found = found.or_else(|_| std::fs::metadata(folder.unwrap_or(Path::new(".")))).ok()?;
    let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let disk = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(if disk.join("partition").exists() { disk.parent()?.to_owned() } else { disk })
}

#[cfg(not(target_os = "linux"))]
fn disk_of(_: &Path) -> Option<PathBuf> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of the kernel's Documentation/block/stat.
    #[test]
    fn counts_are_differences_in_fios_order() {
        let before =
            parse("  10 1 80 5 20 2 160 7 0 100 12 0 0 0 0 3 4\n").expect("eleven numbers");
        let after = parse("110 3 880 55 220 12 1760 77 2 600 132").expect("eleven numbers");
        let disk = used("vda".into(), &before, &after, 1_000);
        assert_eq!(
            (disk.read_ios, disk.write_ios, disk.read_merges, disk.write_merges),
            (100, 200, 2, 10)
        );
        assert_eq!((disk.read_ticks, disk.write_ticks, disk.in_queue), (50, 70, 120));
        assert!((disk.util - 50.0).abs() < 1e-9);
        assert_eq!(used("vda".into(), &before, &after, 0).util, 100.0);
        assert!(parse("1 2 3").is_none() && parse("a b c d e f g h i j k").is_none());
    }
}

//! The machine on which a report was measured, as described by Linux in `/proc` and `/sys`.
//!
//! A property that cannot be read is left empty: a report must neither fail nor guess because a container hides a file.

use std::fs;
use std::path::Path;

/// The properties of a machine that matter for comparing its figures with those of another.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Machine {
    /// The processor, `AMD EPYC 7763 64-Core Processor`.
    pub cpu_model: String,
    /// Processors that this process may use.
    pub cores: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// The distribution, `Debian GNU/Linux 12 (bookworm)`.
    pub os: String,
    /// The kernel's release, `6.1.0-18-amd64`.
    pub kernel: String,
    /// Runnable tasks averaged over the minute before the first run.
    pub load_average: Option<f64>,
    /// The hypervisor, if the machine is virtual.
    pub hypervisor: Option<String>,
    /// How the processor's frequency is chosen, `performance`.
    pub governor: Option<String>,
}

impl Machine {
    /// Describes this machine as it is now; call it before the first run, because of the load.
    #[must_use]
    pub fn detect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self::read(Path::new("/"), cores)
    }

    /// The machine of a simulation, with a CPU for each of `threads` threads.
    #[must_use]
    pub fn simulated(threads: u32) -> Self {
        Self { cpu_model: "virtual CPUs".into(), cores: threads, ..Self::default() }
    }

    /// Describes the machine with its `proc`, `sys` and `etc` under `root`.
    #[must_use]
    pub fn read(root: &Path, cores: u32) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let line = |path: &str| Some(text(path).trim().to_owned()).filter(|t| !t.is_empty());
        let cpuinfo = text("proc/cpuinfo");
        let is_guest = field(&cpuinfo, "flags", ':')
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        let kib = field(&text("proc/meminfo"), "MemTotal", ':')
            .and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok());
        Self {
            cpu_model: field(&cpuinfo, "model name", ':')
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores,
            memory_bytes: kib.unwrap_or(0) * 1024,
            os: field(&text("etc/os-release"), "PRETTY_NAME", '=')
                .map_or_else(String::new, |name| name.trim_matches('"').to_owned()),
            kernel: line("proc/sys/kernel/osrelease").unwrap_or_default(),
            load_average: text("proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|v| v.parse().ok()),
            hypervisor: is_guest
                .then(|| line("sys/class/dmi/id/sys_vendor").unwrap_or_else(|| "unknown".into())),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }
}

/// The value in the first line `name<separator>value`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a file is in a folder")).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_guest_is_described() {
        let root = std::env::temp_dir().join(format!("blkmq-machine-{}", std::process::id()));
        let cpuinfo =
            "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu hypervisor\n";
        write(&root, "proc/cpuinfo", cpuinfo);
        write(&root, "proc/meminfo", "MemTotal:        8000 kB\nMemFree: 1 kB\n");
        write(&root, "proc/loadavg", "1.50 0.70 0.30 1/100 4242\n");
        write(&root, "proc/sys/kernel/osrelease", "6.1.0\n");
        write(&root, "etc/os-release", "ID=x\nPRETTY_NAME=\"Some OS 12\"\n");
        write(&root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        let machine = Machine::read(&root, 2);
        fs::remove_dir_all(&root).unwrap();
        let expected = Machine {
            cpu_model: "Some CPU @ 2.0GHz".into(),
            cores: 2,
            memory_bytes: 8_192_000,
            os: "Some OS 12".into(),
            kernel: "6.1.0".into(),
            load_average: Some(1.5),
            hypervisor: Some("unknown".into()),
            governor: Some("powersave".into()),
        };
        assert_eq!(machine, expected);
    }

    #[test]
    fn nothing_readable_is_nothing_claimed() {
        let machine = Machine::read(Path::new("/nonexistent"), 3);
        assert_eq!(
            (machine.memory_bytes, machine.load_average, machine.hypervisor),
            (0, None, None)
        );
        assert_eq!(machine.cpu_model, std::env::consts::ARCH);
    }
}

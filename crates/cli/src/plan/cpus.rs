//! The CPUs that the threads of a job are bound to: fio's `cpus_allowed`.

use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase};

/// The most CPUs of a machine, as Linux's sets of them have it.
const MOST: u64 = 1024;

/// A choice of CPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus {
    /// Their numbers, ascending; at least one of them exists.
    pub list: Vec<usize>,
    /// Each thread has one of them, in turn, instead of all.
    pub is_split: bool,
}

impl Cpus {
    /// Parses a list such as `0-3,8`.
    ///
    /// # Errors
    /// If the form is invalid, or this process may use none of the CPUs.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        Self::of(numbers(text, "CPUs")?)
    }

    /// Parses a bit mask of CPUs.
    ///
    /// # Errors
    /// If this process may use none of the CPUs.
    pub fn of_mask(mask: u64) -> Result<Self, UsageError> {
        Self::of((0..64).filter(|cpu| mask >> cpu & 1 == 1).collect())
    }

    /// The CPUs of memory nodes: `0-1,3`, or `all`. Nodes that do not exist are ignored.
    ///
    /// # Errors
    /// If the form is invalid, or no CPU is left.
    pub fn of_nodes(text: &str) -> Result<Self, UsageError> {
        let (wanted, mut list) = (numbers(text, "nodes"), Vec::new());
        for (node, cpus) in nodes() {
            if text == "all" || wanted.as_ref().is_ok_and(|wanted| wanted.contains(&node)) {
                list.extend(numbers(&cpus, "CPUs")?);
            }
        }
        if text != "all" {
            wanted?;
        }
        Self::of(list)
    }

    fn of(mut list: Vec<usize>) -> Result<Self, UsageError> {
        list.sort_unstable();
        list.dedup();
        let usable = usable()?;
        if list.iter().all(|cpu| !usable.contains(cpu)) {
            let usable = Vec::from_iter(usable.iter().map(ToString::to_string)).join(",");
            let text = format!("this process may use none of them; accepted: some of {usable}");
            return Err(UsageError::new(text));
        }
        Ok(Self { list, is_split: false })
    }

    /// The CPUs of thread `thread` of the job.
    fn of_thread(&self, thread: u32) -> Vec<usize> {
        if !self.is_split {
            return self.list.clone();
        }
        // As in fio, threads use the CPUs in turn; nonexistent CPUs are ignored.
        let usable = usable().unwrap_or_default();
        let list = Vec::from_iter(self.list.iter().copied().filter(|cpu| usable.contains(cpu)));
        list.get(thread as usize % list.len().max(1)).copied().into_iter().collect()
    }

    /// Binds the calling thread, thread `thread` of the job.
    ///
    /// # Errors
    /// The system's error, if none of the CPUs exists any more.
    pub fn bind(&self, thread: u32) -> std::io::Result<()> {
        blkmq_runtime::bind_thread(&self.of_thread(thread))
    }
}

/// The CPUs that this process may use.
fn usable() -> Result<Vec<usize>, UsageError> {
    let unknown = |e| UsageError::new(format!("the CPUs of this process are not known: {e}"));
    blkmq_runtime::usable_cpus().map_err(unknown)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lists_ranges_and_masks_name_cpus() {
        let one = usable().expect("there is one")[0];
        let text = format!("{one},1000-1002,{one}");
        assert_eq!(Cpus::parse(&text).expect("one exists").list, [one, 1000, 1001, 1002]);
        if one < 64 {
            assert_eq!(Cpus::of_mask(1 << one).expect("one exists").list, [one]);
        }
        let message = |text| Cpus::parse(text).expect_err(text).to_string();
        assert!(message("1000-1001").starts_with("this process may use none of them; accepted"));
        for text in ["", "a", "0-", "1-0x", "9999"] {
            assert!(message(text).contains("accepted: numbers of CPUs, such as 0-3,8"), "{text}");
        }
    }

    #[test]
    fn a_thread_runs_where_it_is_bound() {
        let cpus = usable().expect("there is one");
        for is_split in [false, true] {
            let choice = Cpus { list: cpus.clone(), is_split };
            let bound = |thread| {
                std::thread::scope(|scope| {
                    let work = scope.spawn(|| {
                        choice.bind(thread).expect("they exist");
                        usable().expect("it is bound")
                    });
                    work.join().expect("no panic")
                })
            };
            for thread in 0..3 {
                let one = vec![cpus[thread as usize % cpus.len()]];
                assert_eq!(bound(thread), if is_split { one } else { cpus.clone() });
            }
        }
    }
}
/// Parses a list such as `0-3,8` of the numbers of `what`.
fn numbers(text: &str, what: &str) -> Result<Vec<usize>, UsageError> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text| units::count(text, 0..=MOST - 1, KbBase::Binary);
        let refuse = |_| UsageError::new(format!("accepted: numbers of {what}, such as 0-3,8"));
        let (first, last) = (number(first).map_err(refuse)?, number(last).map_err(refuse)?);
        list.extend((first..=last).map(|number| number as usize));
    }
    Ok(list)
}

/// The memory nodes of this machine, each with the list of its CPUs; empty if the system does not report them.
pub fn nodes() -> Vec<(usize, String)> {
    let path = |node: usize| format!("/sys/devices/system/node/node{node}/cpulist");
    let read = |node| Some((node, std::fs::read_to_string(path(node)).ok()?.trim().to_owned()));
    (0..MOST as usize).filter_map(read).filter(|(_, cpus)| !cpus.is_empty()).collect()
}

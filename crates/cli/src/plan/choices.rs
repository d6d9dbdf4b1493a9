//! Choices other than jobs, devices and schedulers, each with its words; the ways to share an elevator that are
//! compared, which are an access and its modes; and the CPUs that the threads of a job are bound to, which are fio's
//! `cpus_allowed`.

use crate::report::Format;
use blkmq_engine::{Access, DispatchMode, InsertMode, KickMode, MergeMode, Modes};
use blkmq_lab::workload::DedupeMode;
use blkmq_terminal::UsageError;
use blkmq_terminal::scheduler::{self, Spec};
use blkmq_terminal::units::{self, KbBase};
use std::fmt;
use std::mem::discriminant;

/// A closed set of words.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every member with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// Returns the word for this member.
    fn word(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(_, member)| *member == self);
        found.map(|(word, _)| *word).expect("every member has a word")
    }

    /// The member that `word` selects.
    ///
    /// # Errors
    /// If there is none; the message lists all words.
    fn from_word(word: &str) -> Result<Self, UsageError> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, member)| *member).ok_or_else(|| {
            let words = Vec::from_iter(Self::WORDS.iter().map(|(word, _)| *word)).join(", ");
            UsageError::new(format!("'{word}' is none of the choices; accepted: {words}"))
        })
    }
}

/// The threads that move requests from the elevator to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PumpChoice {
    /// The threads that submit and wait.
    Inline,
    /// Pump threads, one per hardware queue.
    Threads,
}

/// How much merging is tried; sysfs's `nomerges`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nomerges {
    /// Everything (0).
    All,
    /// Only merges that cost no search (1).
    Simple,
    /// Nothing (2).
    None,
}

/// How many elevators a queue has, where the user overrules the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeChoice {
    /// One for the whole queue.
    Queue,
    /// One for each hardware queue.
    HwQueue,
}

/// The level of statistics about groups, and the time of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatsChoice {
    /// Nothing.
    Off,
    /// I/Os, their bytes and times.
    Basic,
    /// Everything.
    Full,
    /// Everything, counted during the run of the elevator.
    Inline,
}

impl Choice for StatsChoice {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("basic", Self::Basic),
        ("full", Self::Full),
        ("inline", Self::Inline),
    ];
}

impl Choice for PumpChoice {
    const WORDS: &'static [(&'static str, Self)] =
        &[("inline", Self::Inline), ("threads", Self::Threads)];
}

impl Choice for Nomerges {
    const WORDS: &'static [(&'static str, Self)] =
        &[("0", Self::All), ("1", Self::Simple), ("2", Self::None)];
}

impl Choice for ScopeChoice {
    const WORDS: &'static [(&'static str, Self)] =
        &[("queue", Self::Queue), ("hwqueue", Self::HwQueue)];
}

impl Choice for DedupeMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("repeat", Self::Repeat), ("working_set", Self::WorkingSet)];
}

impl Choice for Format {
    const WORDS: &'static [(&'static str, Self)] = &Self::ALL;

    /// Each version of the terse format has its own word.
    fn word(self) -> &'static str {
        let is_same = |other: &Self| discriminant(other) == discriminant(&self);
        let found = Self::WORDS.iter().find(|(_, member)| is_same(member));
        found.map(|(word, _)| *word).expect("every format has a word")
    }
}

macro_rules! print_as_word {
    ($($choice:ty),*) => {$(
        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )*};
}

print_as_word!(PumpChoice, Nomerges, ScopeChoice, StatsChoice);

/// A way to share an elevator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessChoice {
    /// How threads share it.
    pub access: Access,
    /// The explicit modes; the others follow from the access.
    pub modes: Modes,
    /// The text as `--access` accepts it.
    pub text: String,
}

/// The modes that a choice may set in addition to its access.
const MODES: [&str; 4] = ["dispatch", "insert", "merge", "kick"];

impl AccessChoice {
    /// `access` with its default modes.
    pub fn plain(access: Access) -> Self {
        Self { access, modes: Modes::default(), text: access.name().into() }
    }

    /// Reads `--access`: a list in the grammar of [`specs`](scheduler::specs).
    ///
    /// # Errors
    /// If an access or a mode does not exist, or they are incompatible.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        scheduler::specs(text)?.iter().map(Self::of).collect()
    }

    fn of(spec: &Spec) -> Result<Self, UsageError> {
        let access = Access::from_name(&spec.name).ok_or_else(|| {
            let names = Access::ALL.map(|(name, _)| name).join(", ");
            UsageError::new(format!("no access '{}'; accepted: {names}", spec.name))
        })?;
        let mut modes = Modes::default();
        for (key, value) in &spec.params {
            set(&mut modes, key, value).map_err(|e| e.at(&spec.name))?;
        }
        let mut choice = Self::plain(access);
        choice.fill(modes)?;
        Ok(choice)
    }

    /// Adopts the modes that are set in `modes` but not here.
    ///
    /// # Errors
    /// If a mode is incompatible with the access.
    pub fn fill(&mut self, modes: Modes) -> Result<(), UsageError> {
        let before = self.modes;
        self.modes = Modes {
            dispatch: before.dispatch.or(modes.dispatch),
            insert: before.insert.or(modes.insert),
            merge: before.merge.or(modes.merge),
            kick: before.kick.or(modes.kick),
        };
        self.modes.settle(self.access).map_err(|e| UsageError::new(e.to_string()))?;
        for (key, (old, new)) in MODES.iter().zip(names(&before).iter().zip(names(&self.modes))) {
            if let (None, Some(name)) = (old, new) {
                let separator = if self.text.contains(':') { ',' } else { ':' };
                self.text.push_str(&format!("{separator}{key}={name}"));
            }
        }
        Ok(())
    }
}

/// The words of the modes, in the order of [`MODES`].
fn names(modes: &Modes) -> [Option<&'static str>; 4] {
    [
        modes.dispatch.map(DispatchMode::name),
        modes.insert.map(InsertMode::name),
        modes.merge.map(MergeMode::name),
        modes.kick.map(KickMode::name),
    ]
}

/// Sets the mode called `key` to `value`.
///
/// # Errors
/// If there is no such mode or value.
pub fn set(modes: &mut Modes, key: &str, value: &str) -> Result<(), UsageError> {
    match key {
        "dispatch" => modes.dispatch = Some(choice(value, &DispatchMode::ALL)?),
        "insert" => modes.insert = Some(choice(value, &InsertMode::ALL)?),
        "merge" => modes.merge = Some(choice(value, &MergeMode::ALL)?),
        "kick" => modes.kick = Some(choice(value, &KickMode::ALL)?),
        _ => {
            let text = format!("no option '{key}'; accepted: {}", MODES.join(", "));
            return Err(UsageError::new(text));
        }
    }
    Ok(())
}

fn choice<M: Copy>(word: &str, all: &[(&'static str, M)]) -> Result<M, UsageError> {
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, mode)| *mode);
    found.ok_or_else(|| {
        let names = Vec::from_iter(all.iter().map(|(name, _)| *name)).join(", ");
        UsageError::new(format!("'{word}' is none of the choices; accepted: {names}"))
    })
}

/// The most CPUs of a machine, as Linux's sets of them have it.
const MOST_CPUS: u64 = 1024;

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

/// Parses a list such as `0-3,8` of the numbers of `what`.
fn numbers(text: &str, what: &str) -> Result<Vec<usize>, UsageError> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text| units::count(text, 0..=MOST_CPUS - 1, KbBase::Binary);
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
    (0..MOST_CPUS as usize).filter_map(read).filter(|(_, cpus)| !cpus.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_and_print() {
        assert_eq!(PumpChoice::from_word("threads"), Ok(PumpChoice::Threads));
        assert_eq!(Nomerges::Simple.to_string(), "1");
        let message = PumpChoice::from_word("thread").expect_err("no such word").to_string();
        assert_eq!(message, "'thread' is none of the choices; accepted: inline, threads");
    }

    fn texts(text: &str) -> Vec<String> {
        let choices = AccessChoice::parse(text).expect(text);
        choices.into_iter().map(|choice| choice.text).collect()
    }

    fn refused(text: &str) -> String {
        AccessChoice::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn a_word_with_equals_belongs_to_the_access_before_it() {
        assert_eq!(texts("spin,mutex"), ["spin", "mutex"]);
        assert_eq!(
            texts("spin:merge=skip-when-contended,dispatch=batch,combining,kick=flag"),
            ["spin:dispatch=batch,merge=skip-when-contended", "combining:kick=flag"]
        );
    }

    #[test]
    fn what_does_not_exist_or_go_together_is_told_with_what_does() {
        assert_eq!(refused("rcu"), "no access 'rcu'; accepted: combining, spin, mutex, serialised");
        assert_eq!(
            refused("spin:order=total"),
            "spin: no option 'order'; accepted: dispatch, insert, merge, kick"
        );
        assert_eq!(
            refused("spin:kick=never"),
            "spin: 'never' is none of the choices; accepted: always, flag, coalesced"
        );
        assert_eq!(
            refused("combining:dispatch=one"),
            "this dispatch does not go with access=combining; accepted: total-order"
        );
    }

    #[test]
    fn what_is_asked_of_all_does_not_overrule_what_is_asked_of_one() {
        let mut choices = AccessChoice::parse("spin:dispatch=batch,mutex").expect("accepted");
        let all = Modes { dispatch: Some(DispatchMode::One), ..Modes::default() };
        choices.iter_mut().for_each(|choice| choice.fill(all).expect("it goes with locks"));
        let texts = Vec::from_iter(choices.iter().map(|choice| choice.text.as_str()));
        assert_eq!(texts, ["spin:dispatch=batch", "mutex:dispatch=one"]);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod cpu_tests {
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

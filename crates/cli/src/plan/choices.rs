//! Choices other than jobs, devices and schedulers, each with its words; the ways to share an elevator that are
//! compared, which are an access and its modes; and the CPUs that the threads of a job are bound to, which are fio's
//! `cpus_allowed`.
//!
//! Groups are `--group NAME[:KEY=VALUE,...]`, and fio's `cgroup` of a job. `--tenants` uses the exports of a server's
//! configuration as groups of a run, so that promises can be tried before they are served. Of a server's configuration,
//! only the parts about the service of tenants are read. Nothing is opened or served, so addresses, certificates and
//! limits are left to `blkmqd --check`.

use crate::report::Format;
use blkmq_engine::{
    Access, DispatchMode, GroupSpec, GroupTree, InsertMode, IoMax, KickMode, MergeMode, Modes,
    NoMerges, Promise, PumpMode, weight_of_io_weight,
};
use blkmq_lab::workload::{DedupeMode, Job};
use blkmq_sched::Scope;
use blkmq_terminal::scheduler::{self, Spec};
use blkmq_terminal::table::{Faults, Span, Table};
use blkmq_terminal::units::{self, KbBase};
use blkmq_terminal::{UsageError, bounded, limits};
use std::mem::discriminant;

/// A closed set of words.
pub trait Choice: Copy + 'static {
    /// Every member with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// Returns the word for this member.
    fn word(self) -> &'static str {
        // Each version of the terse format has the same word.
        let is_same = |member: &Self| discriminant(member) == discriminant(&self);
        let found = Self::WORDS.iter().find(|(_, member)| is_same(member));
        found.map(|(word, _)| *word).expect("every member has a word")
    }

    /// The member that `word` selects.
    ///
    /// # Errors
    /// If there is none; the message lists all words.
    fn from_word(word: &str) -> Result<Self, UsageError> {
        among(word, Self::WORDS)
    }
}

/// The member that `word` selects.
fn among<M: Copy>(word: &str, words: &[(&str, M)]) -> Result<M, UsageError> {
    let found = words.iter().find(|(known, _)| *known == word).map(|(_, member)| *member);
    found.ok_or_else(|| {
        let words = Vec::from_iter(words.iter().map(|(known, _)| *known)).join(", ");
        UsageError::new(format!("'{word}' is none of the choices; accepted: {words}"))
    })
}

/// The level of statistics about groups, and the time of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StatsChoice {
    /// Nothing.
    #[default]
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

impl Choice for PumpMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("inline", Self::Inline), ("threads", Self::Thread)];
}

impl Choice for NoMerges {
    const WORDS: &'static [(&'static str, Self)] =
        &[("0", Self::All), ("1", Self::Simple), ("2", Self::None)];
}

impl Choice for Scope {
    const WORDS: &'static [(&'static str, Self)] =
        &[("queue", Self::Queue), ("hwqueue", Self::HwQueue)];
}

impl Choice for DedupeMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("repeat", Self::Repeat), ("working_set", Self::WorkingSet)];
}

impl Choice for Format {
    const WORDS: &'static [(&'static str, Self)] = &Self::ALL;
}

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
        self.modes.settle(self.access).map_err(UsageError::new)?;
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
        "dispatch" => modes.dispatch = Some(among(value, &DispatchMode::ALL)?),
        "insert" => modes.insert = Some(among(value, &InsertMode::ALL)?),
        "merge" => modes.merge = Some(among(value, &MergeMode::ALL)?),
        "kick" => modes.kick = Some(among(value, &KickMode::ALL)?),
        _ => {
            let text = format!("no option '{key}'; accepted: {}", MODES.join(", "));
            return Err(UsageError::new(text));
        }
    }
    Ok(())
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
        let wanted = if text == "all" { None } else { Some(numbers(text, "nodes")?) };
        let mut list = Vec::new();
        for (node, cpus) in nodes() {
            if wanted.as_ref().is_none_or(|wanted| wanted.contains(&node)) {
                list.extend(numbers(&cpus, "CPUs")?);
            }
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

/// The keys that a group accepts.
const KEYS: &str = "weight=1-1000, io.weight=1-10000, parent=NAME, rbps, wbps, riops, wiops, bps, iops=N or max, \
     burst=1-1000, burst_length=TIME, \
     reserve_iops, reserve_bps, reserve_percent, limit_iops, limit_bps, limit_percent=N, \
     p99_read, p99_write, p99_sync=TIME, goal_takes_at_most=0-100, overcommit";
/// The default weight of a group.
const WEIGHT: u32 = 100;

/// The group that `text` describes.
///
/// # Errors
/// If the text is of another form.
pub fn parse_group(text: &str) -> Result<GroupSpec, UsageError> {
    let (name, pairs) = text.split_once(':').unwrap_or((text, ""));
    let mut group = GroupSpec { name: name.into(), ..GroupSpec::default() };
    for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
        let pair = if pair == "overcommit" { "overcommit=1" } else { pair };
        let (key, value) = pair.split_once('=').ok_or_else(|| unknown(pair))?;
        match key {
            word if Promise::WORDS.contains(&word) => {
                group.promise = limits::promised(group.promise, key, value)?;
            }
            "weight" => group.weight = number(pair, value)?,
            "io.weight" => {
                let weight = weight_of_io_weight(number(pair, value)?);
                group.weight = weight.map_err(UsageError::new)?;
            }
            "parent" => group.parent = value.into(),
            limit if IoMax::WORDS.contains(&limit) => {
                let max = limits::set(group.max, limit, value);
                group.max = max.map_err(|error| error.at(limit))?;
            }
            _ => return Err(unknown(pair)),
        }
    }
    Ok(group)
}

fn unknown(pair: &str) -> UsageError {
    UsageError::new(format!("'{pair}' says nothing about a group; accepted: {KEYS}"))
}

fn number(pair: &str, value: &str) -> Result<u32, UsageError> {
    value.parse().map_err(|_| UsageError::new(format!("{pair}: no number; accepted: {KEYS}")))
}

/// Builds the tree of the described groups, and of groups that only `jobs` name.
///
/// # Errors
/// If groups contradict each other, or a job without `cgroup_weight` is in an undescribed group although others are
/// described.
pub fn group_tree(mut wanted: Vec<GroupSpec>, jobs: &[Job]) -> Result<GroupTree, UsageError> {
    let described = !wanted.is_empty();
    for job in jobs {
        let Some(name) = &job.cgroup else { continue };
        let at = |e: UsageError| e.at(format!("job '{}'", job.name));
        match (wanted.iter().find(|group| group.name == *name), job.cgroup_weight) {
            (Some(group), Some(weight)) if group.weight != weight => {
                return Err(at(UsageError::new(format!(
                    "cgroup_weight={weight}, and group '{name}' has a weight of {}; accepted: one of the two",
                    group.weight
                ))));
            }
            (Some(_), _) => {}
            (None, None) if described => {
                let known = Vec::from_iter(wanted.iter().map(|group| &*group.name)).join(", ");
                return Err(at(UsageError::new(format!("no group '{name}'; accepted: {known}"))));
            }
            (None, weight) => wanted.push(GroupSpec {
                name: name.clone(),
                weight: weight.unwrap_or(WEIGHT),
                ..GroupSpec::default()
            }),
        }
    }
    GroupTree::of(wanted).map_err(UsageError::new)
}

/// The longest file, in bytes.
const LONGEST: u64 = 1 << 20;

/// Settings of an export that do not affect its share of the device.
const LEFT: [&str; 6] = ["offset", "size", "read-only", "class", "cache", "description"];

/// A group, and the name of its device if the export gives one.
struct Tenant {
    group: GroupSpec,
    device: Option<(String, Span)>,
}

/// Reads the groups of `FILE`, or of `FILE:DEVICE` if the file has several devices: one for each export, with its
/// weight, limits and promises.
///
/// # Errors
/// If the file is invalid, or has several devices and none is named.
pub fn tenants(text: &str) -> Result<Vec<GroupSpec>, UsageError> {
    let (path, device) = match text.rsplit_once(':') {
        Some((path, device)) if !device.contains('/') => (path, Some(device)),
        _ => (text, None),
    };
    let bytes = bounded::read(path, "a configuration", LONGEST)?;
    let text = String::from_utf8(bytes).map_err(|_| UsageError::new("not UTF-8 text").at(path))?;
    let (devices, tenants) = parse_tenants(&text).map_err(|faults| {
        let lines = faults.lines(path, &text).into_iter().map(UsageError::new).collect();
        UsageError::all(lines).expect("there is a fault")
    })?;
    let place = match device {
        None if devices.len() == 1 => Some(0),
        None => None,
        Some(device) => devices.iter().position(|name| name == device),
    };
    let place = place.ok_or_else(|| {
        let accepted = Vec::from_iter(devices.iter().map(|name| format!("{path}:{name}")));
        let accepted = accepted.join(", ");
        UsageError::new(format!("one of the devices of {path} is needed; accepted: {accepted}"))
    })?;
    if tenants.is_empty() {
        // The server exports each device as a whole then.
        let name = if devices.len() == 1 { "disk".into() } else { format!("disk{}", place + 1) };
        return Ok(vec![GroupSpec { name, ..GroupSpec::default() }]);
    }
    // An export without a device is on the only one.
    let is_here = |it: &Tenant| it.device.as_ref().is_none_or(|(name, _)| *name == devices[place]);
    Ok(tenants.into_iter().filter(is_here).map(|it| it.group).collect())
}

/// The names of the devices in a file, and the tenants of all devices.
fn parse_tenants(text: &str) -> Result<(Vec<String>, Vec<Tenant>), Faults> {
    let mut faults = Faults::default();
    let (document, errors) = toml::de::DeTable::parse_recoverable(text);
    for error in errors {
        faults.add(&error.span().unwrap_or_default(), error.message());
    }
    // After a syntax error the rest would be misread.
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut file = Table::new(document.get_ref(), document.span());
    let mut devices = Vec::new();
    for mut device in file.tables("device", &mut faults) {
        devices.extend(required(&mut device, "name", &mut faults));
    }
    if devices.is_empty() {
        faults.add(&file.span, "no device; accepted: at least one [[device]] with a name");
    }
    let mut tenants = Vec::new();
    for export in file.tables("export", &mut faults) {
        tenants.extend(tenant(export, &devices, &mut faults));
    }
    if faults.is_empty() { Ok((devices, tenants)) } else { Err(faults) }
}

fn tenant(mut export: Table<'_>, devices: &[String], faults: &mut Faults) -> Option<Tenant> {
    let name = required(&mut export, "name", faults);
    let device = export.text("device", faults);
    let accepted = devices.join(", ");
    match &device {
        Some((name, at)) if !devices.contains(name) => {
            faults.add(at, format!("no device is called '{name}'; accepted: {accepted}"));
        }
        None if devices.len() > 1 => {
            faults.add(&export.span, format!("no device; accepted: {accepted}"));
        }
        _ => {}
    }
    let mut group = GroupSpec::default();
    export.value("weight", faults, |text| {
        units::count(text, 1..=1000, KbBase::Binary).map(|weight| group.weight = weight)
    });
    for key in IoMax::WORDS {
        let read = |text: &str| limits::set(group.max, key, text).map(|max| group.max = max);
        export.value(key, faults, read);
    }
    for key in Promise::WORDS {
        let read = |text: &str| {
            limits::promised(group.promise, key, text).map(|promise| group.promise = promise)
        };
        export.value(key, faults, read);
    }
    export.leave(&LEFT);
    export.end(faults);
    group.name = GroupSpec::name_for(&name?);
    Some(Tenant { group, device })
}

fn required(table: &mut Table<'_>, key: &'static str, faults: &mut Faults) -> Option<String> {
    let before = faults.len();
    let value = table.text(key, faults);
    if value.is_none() && before == faults.len() {
        faults.add(&table.span, format!("no {key}; accepted: {key} = \"TEXT\""));
    }
    value.map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_and_print() {
        assert_eq!(PumpMode::from_word("threads"), Ok(PumpMode::Thread));
        assert_eq!(NoMerges::Simple.word(), "1");
        let message = PumpMode::from_word("thread").expect_err("no such word").to_string();
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

    fn refusal(text: &str) -> String {
        let group = parse_group(text).and_then(|group| group_tree(vec![group], &[]));
        group.expect_err(text).to_string()
    }

    fn job(cgroup: &str, cgroup_weight: Option<u32>) -> Job {
        Job { cgroup: Some(cgroup.into()), cgroup_weight, ..Job::default() }
    }

    #[test]
    fn a_group_is_described_by_pairs() {
        let text = "web:weight=200,parent=top,rbps=1m,wiops=500,riops=max";
        let web = parse_group(text).expect("right");
        assert_eq!((&*web.name, &*web.parent, web.weight), ("web", "top", 200));
        assert_eq!(web.max.to_string(), "rbps=1048576 wbps=max riops=max wiops=500");
        let burst = parse_group("b:iops=1k,bps=2m,burst=3,burst_length=5s").expect("right").max;
        let words =
            "rbps=max wbps=max riops=max wiops=max bps=2097152 iops=1024 burst=3 burst_length=5";
        assert_eq!(burst.to_string(), words);
        let floor =
            parse_group("a:reserve_iops=2k,limit_percent=50,overcommit").expect("right").promise;
        assert_eq!((floor.guarantee.reserve.iops, floor.guarantee.limit.percent), (2_048, 50));
        assert!(floor.overcommit);
        let goal = parse_group("a:p99_read=2ms,p99_write=900").expect("right").promise;
        assert!(goal.to_string().contains("p99_read=2ms p99_write=900us "), "{goal}");
        assert_eq!(parse_group("a:io.weight=10000").expect("right").weight, 1000);
        assert_eq!(parse_group("a").expect("right").weight, 100);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(
            refusal("a:speed=1").contains("'speed=1' says nothing about a group; accepted: weight")
        );
        assert!(refusal("a:weight").contains("accepted: weight"));
        assert!(refusal("a:weight=heavy").contains("no number"));
        assert!(refusal("a:weight=0").contains("accepted are 1 to 1000"));
        assert!(refusal("a:io.weight=10001").contains("accepted are 1 to 10000"));
        assert!(refusal("a:rbps=0").contains("rbps: '0' is not valid"));
        assert!(refusal("a:burst=0").contains("accepted: 1 to 1000"));
        assert!(refusal("a:parent=b").contains("no group 'b'"));
        assert!(refusal("a:parent=a").contains("itself or below it"));
        assert!(refusal(":weight=3").contains("no name for a group"));
    }

    #[test]
    fn jobs_make_groups_as_in_fio_unless_groups_are_described() {
        let jobs = [job("a", Some(300)), job("a", None), job("b", None)];
        let made = group_tree(Vec::new(), &jobs).expect("right");
        let weights: Vec<_> = made.iter().map(|group| (&*group.name, group.weight)).collect();
        assert_eq!(weights, [("a", 300), ("b", 100)]);
        let described = vec![parse_group("a:weight=300").expect("right")];
        assert!(group_tree(described.clone(), &[job("a", Some(300))]).is_ok());
        let error =
            group_tree(described.clone(), &[job("b", None)]).expect_err("a slip of the pen");
        assert!(error.to_string().contains("no group 'b'; accepted: a"));
        let error = group_tree(described, &[job("a", Some(7))]).expect_err("which of the two?");
        assert!(error.to_string().contains("has a weight of 300"));
    }

    const TEXT: &str = r#"
listen = "unix:/x"
[[device]]
name = "ssd"
device = "null"
[[device]]
name = "disk"
device = "null"
scheduler = "mclock"
[[export]]
name = "vm/db"
device = "ssd"
weight = 300
rbps = "50m"
reserve_iops = 200
p99_read = "2ms"
[[export]]
name = "rest"
device = "ssd"
size = "1g"
[[export]]
name = "other"
device = "disk"
"#;

    /// Parses `text` as a file, of which `device` is selected.
    fn groups(text: &str, device: &str) -> Result<Vec<GroupSpec>, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("serve.toml");
        std::fs::write(&path, text).expect("writable");
        let path = path.to_str().expect("UTF-8");
        tenants(&format!("{path}{device}")).map_err(|error| error.to_string().replace(path, "f"))
    }

    #[test]
    fn the_exports_of_a_device_are_groups() {
        let found = groups(TEXT, ":ssd").expect("right");
        let [db, rest] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*db.name, db.weight, db.max.rbps), ("vm_db", 300, Some(50 << 20)));
        assert_eq!((&*rest.name, rest.weight), ("rest", 100));
        let words = db.promise.to_string();
        assert!(words.contains("reserve_iops=200") && words.contains("p99_read=2ms"), "{words}");
        assert_eq!(groups(TEXT, ":disk").expect("right")[0].name, "other");
        for device in ["", ":tape"] {
            let refused = groups(TEXT, device).expect_err("which?");
            assert!(refused.contains("accepted: f:ssd, f:disk"), "{refused}");
        }
        assert!(tenants("/no/such/file").is_err());
    }

    #[test]
    fn a_device_without_exports_is_one_as_a_whole() {
        let one = "[[device]]\nname = \"a\"\n";
        assert_eq!(groups(one, "").expect("right")[0].name, "disk");
        let two = format!("{one}[[device]]\nname = \"b\"\n");
        assert_eq!(groups(&two, ":b").expect("right")[0].name, "disk2");
    }

    #[test]
    fn every_fault_has_its_place() {
        let text = "[[device]]\nname = 'a'\n[[export]]\nname = 'x'\nwieght = 3\nweight = 0\n\
                    [[export]]\ndevice = 'b'\nrbps = '0'\n";
        let refused = groups(text, "").expect_err("faults");
        for expected in [
            "f:5:1: no such key 'wieght'; accepted: weight",
            "f:6:10: weight: out of range; accepted: 1 to 1000",
            "f:7:1: no name",
            "f:8:10: no device is called 'b'; accepted: a",
            "f:9:8: rbps: '0' is not valid",
        ] {
            assert!(refused.contains(expected), "{expected}\n{refused}");
        }
        assert!(groups("", "").expect_err("empty").contains("no device"));
        assert!(groups("a = = 1", "").expect_err("no TOML").starts_with("f:1:5: "));
    }

    #[test]
    fn the_example_of_the_server_is_read() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/examples/serve.toml");
        assert!(!tenants(&format!("{example}:ssd")).expect("every key is known").is_empty());
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

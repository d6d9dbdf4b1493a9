//! A configuration beside the server that runs: reloads it, compares the current settings with it, and writes them to
//! its file (`blkmqctl diff` and `blkmqctl save`).
//!
//! A reload compares the new file with the previous file, not with the current settings. So a setting changed by
//! `blkmqctl` stays, unless its line in the file has changed. A file with a fault changes nothing. A save changes
//! values in the text, and preserves all other bytes, including comments.

use super::access::{self, Ways};
use super::process::{self, SetLevel};
use super::wanted::Wanted;
use super::{config, export};
use blkmq_engine::attributes::Permission;
use blkmq_engine::{AUTO, AutoChoice, AutoReason, IoMax, Plan, PolicyChoice};
use blkmq_sched::Options;
use blkmq_server::control::{Answer, ExportSettings, GoesOn, Program, Request, Saved};
use blkmq_server::{Allow, Disk, Export, Handle};
use blkmq_terminal::{SchedulerChoice, UsageError};
use signal_hook::consts::SIGTERM;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::park_timeout;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tracing_subscriber::filter::LevelFilter;

/// The interval of polling while another reload is in progress.
const PAUSE: Duration = Duration::from_millis(5);

/// The running server, and its configuration.
pub struct Reloader {
    path: Option<String>,
    server: Handle,
    set_level: SetLevel,
    /// The settings derived from the configuration.
    current: Mutex<Wanted>,
    /// The attributes of each device when the server started.
    attributes: Vec<Attributes>,
}

/// A difference between two configurations.
#[derive(Debug, PartialEq)]
enum Change {
    Level(LevelFilter),
    /// An attribute of a device, numbered from 1.
    Attribute {
        device: usize,
        path: String,
        value: String,
    },
    Export {
        name: String,
        settings: ExportSettings,
    },
    /// The clients that may use the server.
    Allow(Option<Allow>),
    /// The clients that may use the export of this name.
    AllowExport {
        name: String,
        allow: Option<Allow>,
    },
    Add(Box<Export>),
    /// The export of this name is removed.
    Remove(String),
    /// A setting that only a restart can change.
    Restart(String),
}

impl Reloader {
    pub fn new(wanted: Wanted, path: Option<String>, server: Handle, set_level: SetLevel) -> Self {
        let attributes = server.disks().iter().map(Attributes::of).collect();
        Self { path, server, set_level, current: Mutex::new(wanted), attributes }
    }

    /// Locks the settings, waiting for a reload in progress while `goes_on` is true.
    fn current(&self, goes_on: GoesOn<'_>) -> Result<MutexGuard<'_, Wanted>, String> {
        loop {
            match self.current.try_lock() {
                Ok(current) => return Ok(current),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if goes_on() => park_timeout(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err("another reload is under way".to_owned());
                }
            }
        }
    }

    /// Reloads the file and the certificates, and applies the changes while `goes_on` is true. Returns a line for each
    /// change.
    ///
    /// # Errors
    /// If there is neither a file nor a certificate, the file has a fault (one line for each), or rules refer to
    /// certificates that clients would no longer need.
    fn reload_file(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String> {
        let mut current = self.current(goes_on)?;
        let Some(path) = &self.path else {
            let Some(folder) = current.tls.clone() else {
                return Err("the server was started without a configuration file".to_owned());
            };
            access::check_files(&current)?;
            return Ok(self.renew(&mut current, folder).into_iter().collect());
        };
        let new = config::read(path).map_err(|faults| faults.join("\n"))?;
        access::check_files(&new)?;
        let before = self.chosen();
        let changes = changes(&current, &new);
        let old = current.clone();
        adopt(&mut current, &new, &changes);
        for (disk, choice) in self.server.disks().iter().zip(&current.disks) {
            disk.configure(choice.scheduler.configured());
        }
        let lines =
            changes.into_iter().map(|change| self.carry_out(change, (&old, &mut current), goes_on));
        let mut lines: Vec<String> = lines.collect();
        lines.extend(self.choose_again(&before, goes_on));
        lines.extend(new.tls.and_then(|folder| self.renew(&mut current, folder)));
        Ok(lines)
    }

    /// The scheduler chosen for each device by its exports, with the reason; `None` if it was named.
    fn chosen(&self) -> Vec<Option<AutoChoice>> {
        self.server.disks().iter().map(|disk| disk.service().queue().plan().auto()).collect()
    }

    /// Repeats the choice of a scheduler after exports were removed. Returns a line for each choice that differs from
    /// `before`.
    fn choose_again(&self, before: &[Option<AutoChoice>], goes_on: GoesOn<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        for (device, now) in (1..).zip(self.chosen()) {
            if now.is_some_and(|now| now.reason == AutoReason::Before) {
                let (path, value) = ("queue/scheduler".to_owned(), AUTO.to_owned());
                let set = Request::Set { device, path, value };
                if let Answer::Refused(why) = self.server.ask_while(set, goes_on) {
                    lines.push(format!("device {device}: {AUTO}: not changed: {why}"));
                }
            }
        }
        for (device, (before, now)) in (1..).zip(before.iter().zip(self.chosen())) {
            if let Some(now) = now
                && before.as_ref().is_none_or(|it| it.scheduler.name != now.scheduler.name)
            {
                lines.push(format!("device {device}: {AUTO}: {now}"));
            }
        }
        lines
    }

    /// Reloads the certificates, which may have changed although the configuration has not. Returns a line if they
    /// have.
    fn renew(&self, current: &mut Wanted, folder: PathBuf) -> Option<String> {
        match self.server.tls()?.renew(&folder) {
            Ok(is_new) => {
                current.tls = Some(folder);
                is_new.then(|| "tls-certificates: renewed, for new connections".to_owned())
            }
            Err(why) => Some(format!("tls-certificates: not changed: {why}")),
        }
    }

    /// Applies a change. If it is refused, the old setting is kept as current, so that the next reload tries again.
    fn carry_out(
        &self,
        change: Change,
        (old, current): (&Wanted, &mut Wanted),
        goes_on: GoesOn<'_>,
    ) -> String {
        let asked = |what: String, request| match self.server.ask_while(request, goes_on) {
            Answer::Refused(why) => Err(format!("{what}: not changed: {why}")),
            _ => Ok(what),
        };
        match change {
            Change::Restart(what) => format!("{what}: after a restart"),
            Change::Level(level) => match (self.set_level)(level) {
                Ok(()) => format!("log: {level}"),
                Err(why) => format!("log: not changed: {why}"),
            },
            Change::Allow(allow) => {
                let what = format!("allow: {}", access::shown(allow.as_ref()));
                self.server.allow(allow);
                what
            }
            Change::AllowExport { name, allow } => {
                let what = format!("export '{name}': allow: {}", access::shown(allow.as_ref()));
                match self.server.allow_export(&name, allow) {
                    true => what,
                    false => format!("{what}: not changed: it was removed"),
                }
            }
            Change::Attribute { device, path, value } => {
                let what = format!("device {device}: {path}={value}");
                asked(what, Request::Set { device, path, value }).unwrap_or_else(|line| {
                    current.disks[device - 1].clone_from(&old.disks[device - 1]);
                    line
                })
            }
            Change::Add(export) => match self.server.add_export_while(&export, goes_on) {
                Ok(()) => format!("export '{}': added", export.name),
                Err(why) => {
                    current.exports.retain(|it| it.name != export.name);
                    format!("export '{}': not added: {why}", export.name)
                }
            },
            Change::Remove(name) => {
                // A control client may have removed it already.
                self.server.remove_export(&name);
                format!("export '{name}': removed")
            }
            Change::Export { name, settings } => {
                let weight = settings.weight.map(|weight| format!(" weight={weight}"));
                let max = settings.max.as_ref().map(|max| format!(" {max}"));
                let promise = settings.promise.as_ref().map(|promise| format!(" {promise}"));
                let said = [weight, max, promise].map(Option::unwrap_or_default).concat();
                let what = format!("export '{name}':{said}");
                let request = Request::Export { name: name.clone(), settings };
                asked(what, request).unwrap_or_else(|line| {
                    let before = old.exports.iter().find(|it| it.name == name);
                    let now = current.exports.iter_mut().find(|it| it.name == name);
                    if let (Some(before), Some(now)) = (before, now) {
                        now.clone_from(before);
                    }
                    line
                })
            }
        }
    }
}

impl Program for Reloader {
    fn drain(&self) {
        // Sent to this process, which handles it.
        let _ = signal_hook::low_level::raise(SIGTERM);
    }

    fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String> {
        let done = process::reloading(|| self.reload_file(goes_on));
        match &done {
            Ok(lines) if lines.is_empty() => tracing::info!("reload: nothing has changed"),
            Ok(lines) => lines.iter().for_each(|line| match line.contains(": not ") {
                true => tracing::error!("reload: {line}"),
                false => tracing::info!("reload: {line}"),
            }),
            Err(faults) => tracing::error!("nothing is reloaded: {faults}"),
        }
        done
    }

    /// A line for each current setting that differs from the file, or without a file from the command line.
    ///
    /// # Errors
    /// One line for each fault of the file.
    fn diff(&self) -> Result<Vec<String>, String> {
        let wanted = match &self.path {
            Some(path) => config::read(path).map_err(|faults| faults.join("\n"))?,
            None => self.current(&|| true)?.clone(),
        };
        let differences = differences_between(&wanted, &self.server);
        let mut lines = Vec::from_iter(differences.iter().map(Difference::line));
        lines.extend(export_differences(&wanted, &self.server));
        for (attributes, disk) in self.attributes.iter().zip(self.server.disks()) {
            lines.extend(attributes.differences(disk));
        }
        Ok(lines)
    }

    /// The file with the current settings, or `None` if it has them.
    ///
    /// # Errors
    /// If there is no file, or it cannot be edited.
    fn save(&self) -> Result<Option<Saved>, String> {
        let path =
            self.path.as_ref().ok_or("the server was started without a configuration file")?;
        let text = saved(path, &self.server)?;
        let whole = std::fs::canonicalize(path).map_err(|e| format!("{path}: {e}"))?;
        Ok(text.map(|text| Saved { path: whole, text }))
    }

    /// Adds an export, spelled as for `--export`. It is not part of the configuration, so that reloads leave it.
    /// Returns a message.
    ///
    /// # Errors
    /// If the description is invalid, one of its rules cannot match any client, or the server refuses.
    fn add(&self, words: &str, goes_on: GoesOn<'_>) -> Result<String, String> {
        let current = self.current(goes_on)?;
        let said = |error: UsageError| error.to_string();
        let export = export::parse(words, current.disks.len()).map_err(said)?;
        let alone = Wanted { exports: vec![export.clone()], ..current.clone() };
        let ways = Ways::new(&alone.listen, alone.tls.is_some());
        ways.check_all(None, &alone.exports).map_err(said)?;
        access::check_files(&alone)?;
        let added = self.server.add_export_while(&export, goes_on);
        added.map_err(|error| format!("export '{}': not added: {error}", export.name))?;
        Ok(format!("export '{}': added", export.name))
    }

    /// Removes an export, which stays in the configuration. Returns a message.
    ///
    /// # Errors
    /// If the export does not exist.
    fn remove(&self, name: &str) -> Result<String, String> {
        match self.server.remove_export(name) {
            true => Ok(format!("export '{name}': removed")),
            false => Err(format!("there is no export '{name}'; blkmqctl list shows all")),
        }
    }
}

/// The settings that differ in `new`.
fn changes(old: &Wanted, new: &Wanted) -> Vec<Change> {
    let mut all = Vec::new();
    if old.log != new.log {
        all.push(Change::Level(new.log));
    }
    if old.allow != new.allow {
        all.push(Change::Allow(new.allow.clone()));
    }
    let fixed = [
        ("listen", old.listen != new.listen),
        ("workers", old.workers != new.workers),
        ("control", old.control != new.control),
        ("http, http-public, http-name", old.http != new.http),
        ("log-format", old.log_format != new.log_format),
        ("bounds", old.bounds != new.bounds),
        ("stats", old.counting != new.counting),
        ("slow-io", old.slow != new.slow),
        ("TLS on or off", old.tls.is_some() != new.tls.is_some()),
        ("socket-mode, socket-owner, socket-group", old.rights != new.rights),
        ("the number of devices", old.disks.len() != new.disks.len()),
    ];
    let restart = |what: String| Change::Restart(what);
    all.extend(fixed.iter().filter(|(_, is)| *is).map(|(what, _)| restart((*what).to_owned())));
    for (at, (old, new)) in old.disks.iter().zip(&new.disks).enumerate() {
        if (&old.name, &old.device) == (&new.name, &new.device) {
            scheduler(at + 1, &old.scheduler, &new.scheduler, &mut all);
            if old.device_depth != new.device_depth {
                let (path, value) = ("blkmq/device_depth".into(), new.device_depth.to_string());
                all.push(Change::Attribute { device: at + 1, path, value });
            }
        } else {
            all.push(restart(format!("device '{}'", new.name)));
        }
    }
    // Removed exports make room for added ones.
    let gone = |old: &&Export| !new.exports.iter().any(|new| new.name == old.name);
    let gone = old.exports.iter().filter(gone);
    all.extend(gone.map(|old| Change::Remove(old.name.clone())));
    for export in &new.exports {
        match old.exports.iter().find(|old| old.name == export.name) {
            Some(old) => settings(old, export, &mut all),
            None if same_disk(old, new, export.disk) && export.vhost_user.is_none() => {
                all.push(Change::Add(Box::new(export.clone())));
            }
            None => all.push(restart(format!("the new export '{}'", export.name))),
        }
    }
    all
}

/// Returns whether the device with this index is unchanged.
fn same_disk(old: &Wanted, new: &Wanted, at: usize) -> bool {
    let device = |wanted: &Wanted| wanted.disks.get(at).map(|disk| disk.device.clone());
    device(old).is_some() && device(old) == device(new)
}

fn scheduler(device: usize, old: &SchedulerChoice, new: &SchedulerChoice, all: &mut Vec<Change>) {
    let switched = old.word() != new.word();
    let set = |path: String, value: String| Change::Attribute { device, path, value };
    if switched {
        all.push(set("queue/scheduler".to_owned(), new.word().to_owned()));
    }
    if new.choice == PolicyChoice::Auto {
        return;
    }
    // A new scheduler starts with its defaults.
    let before = if switched { SchedulerChoice::plain(new.factory) } else { old.clone() };
    for attribute in new.factory.attributes {
        let (key, value) = (attribute.name, new.options.get(attribute.name));
        if value != before.options.get(key) {
            all.push(set(format!("iosched/{key}"), value.to_string()));
        }
    }
}

fn settings(old: &Export, new: &Export, all: &mut Vec<Change>) {
    if old.allow != new.allow {
        let (name, allow) = (new.name.clone(), new.allow.clone());
        all.push(Change::AllowExport { name, allow });
    }
    let settings = ExportSettings {
        weight: (old.weight != new.weight).then_some(new.weight),
        max: (old.max != new.max).then(|| new.max.changes_of(&old.max)),
        promise: (old.promise != new.promise).then(|| new.promise.to_string()),
    };
    if settings != ExportSettings::default() {
        all.push(Change::Export { name: new.name.clone(), settings });
    }
    let (max, promise, allow) = (new.max, new.promise, new.allow.clone());
    let live = Export { weight: new.weight, max, promise, allow, ..old.clone() };
    if live != *new {
        let what = "device, offset, size, read-only, class, cache, vhost-user, ublk, queues, guest-ioprio, description";
        all.push(Change::Restart(format!("export '{}' ({what})", new.name)));
    }
}

/// Adopts those settings of `new` that may change while the server runs.
fn adopt(current: &mut Wanted, new: &Wanted, changes: &[Change]) {
    current.log = new.log;
    current.allow.clone_from(&new.allow);
    for (disk, new) in current.disks.iter_mut().zip(&new.disks) {
        if (&disk.name, &disk.device) == (&new.name, &new.device) {
            disk.scheduler.clone_from(&new.scheduler);
            disk.device_depth = new.device_depth;
        }
    }
    for change in changes {
        match change {
            Change::Add(export) => current.exports.push(Export::clone(export)),
            Change::Remove(name) => current.exports.retain(|export| export.name != *name),
            _ => {}
        }
    }
    for export in &mut current.exports {
        if let Some(new) = new.exports.iter().find(|new| new.name == export.name) {
            (export.weight, export.max, export.promise) = (new.weight, new.max, new.promise);
            export.allow.clone_from(&new.allow);
        }
    }
}

/// A setting whose current value differs from the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Difference {
    place: Place,
    key: String,
    live: String,
    configured: String,
}

impl Difference {
    /// Formats the difference for the operator.
    fn line(&self) -> String {
        let Self { place, key, live, configured } = self;
        format!("{place}: {key} = {live}, configured {configured}")
    }
}

/// The settings that have a configuration key and whose current value differs.
fn differences_between(wanted: &Wanted, server: &Handle) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut compare = |place: &Place, key: &str, live: &str, configured: &str| {
        if live != configured {
            let [key, live, configured] = [key, live, configured].map(str::to_owned);
            all.push(Difference { place: place.clone(), key, live, configured });
        }
    };
    for (disk, choice) in server.disks().iter().zip(&wanted.disks) {
        let (plan, place) = (disk.service().queue().plan(), Place::Device(choice.name.clone()));
        compare(&place, "scheduler", &in_force(&plan), &normal(&choice.scheduler));
        let [live, configured] = [plan.device_depth, choice.device_depth].map(|it| it.to_string());
        compare(&place, "device-depth", &live, &configured);
    }
    let Answer::List { exports, .. } = server.ask(Request::List) else { return all };
    for export in &wanted.exports {
        let Some(live) = exports.iter().find(|it| it.name == export.name) else { continue };
        let place = Place::Export(export.name.clone());
        compare(&place, "weight", &live.weight.to_string(), &export.weight.to_string());
        // Every limit in full: the live form omits some that are unlimited.
        let max = IoMax::default().set(&live.max).unwrap_or_default();
        let pairs = [
            (max.changes_of(&export.max), export.max.changes_of(&max)),
            (live.promise.clone(), export.promise.to_string()),
        ];
        for (live, configured) in pairs {
            for (live, configured) in live.split(' ').zip(configured.split(' ')) {
                let Some((key, live)) = live.split_once('=') else { continue };
                compare(&place, key, live, configured.rsplit('=').next().unwrap_or_default());
            }
        }
    }
    all
}

/// A line for each export added or removed since the configuration was read.
fn export_differences(wanted: &Wanted, server: &Handle) -> Vec<String> {
    let Answer::List { exports, .. } = server.ask(Request::List) else { return Vec::new() };
    let live = Vec::from_iter(exports.iter().map(|export| &export.name));
    let configured = Vec::from_iter(wanted.exports.iter().map(|export| &export.name));
    let lines = |all: &[&String], others: &[&String], what: &str| {
        let missing = all.iter().filter(|name| !others.contains(name));
        Vec::from_iter(missing.map(|name| format!("export '{name}': {what}; no key of a file")))
    };
    let added = lines(&live, &configured, "added");
    [added, lines(&configured, &live, "removed")].concat()
}

/// The current scheduler, in the grammar of `--scheduler`.
fn in_force(plan: &Plan) -> String {
    match plan.choice {
        PolicyChoice::Auto => SchedulerChoice::auto().word().to_owned(),
        PolicyChoice::Named => spelled(&SchedulerChoice::plain(plan.scheduler), &plan.options),
    }
}

/// The scheduler of a configuration in the same form.
fn normal(choice: &SchedulerChoice) -> String {
    match choice.choice {
        PolicyChoice::Auto => choice.word().to_owned(),
        PolicyChoice::Named => spelled(&SchedulerChoice::plain(choice.factory), &choice.options),
    }
}

fn spelled(plain: &SchedulerChoice, options: &Options) -> String {
    let names = plain.factory.attributes.iter().map(|attribute| attribute.name);
    let changed = names.filter(|name| options.get(name) != plain.options.get(name));
    let words = Vec::from_iter(changed.map(|name| format!("{name}={}", options.get(name))));
    let colon = if words.is_empty() { "" } else { ":" };
    format!("{}{colon}{}", plain.factory.name, words.join(","))
}

/// The text of the file with the current settings, or `None` if nothing differs.
///
/// # Errors
/// If the file has a fault, or its form cannot be edited.
fn saved(path: &str, server: &Handle) -> Result<Option<String>, String> {
    let (text, wanted) = config::read_text(path).map_err(|faults| faults.join("\n"))?;
    let differences = differences_between(&wanted, server);
    if differences.is_empty() {
        return Ok(None);
    }
    let unusual =
        || format!("{path} has a form that cannot be changed; blkmqctl diff shows what differs");
    let text = edited(&text, &differences).ok_or_else(unusual)?;
    // The new text is written only if it parses to the current settings.
    let reads = config::understood(&text)
        .is_some_and(|wanted| differences_between(&wanted, server).is_empty());
    if reads { Ok(Some(text)) } else { Err(unusual()) }
}

/// Attributes of a disk that have no configuration key, with their values at the start of the server.
struct Attributes {
    scheduler: &'static str,
    values: Vec<(String, String)>,
}

/// Attributes that depend on others, or that have a configuration key.
const FOLLOWS: [&str; 3] = ["queue/scheduler", "queue/iostats", "blkmq/device_depth"];

impl Attributes {
    fn of(disk: &Disk) -> Self {
        let all = disk.service().attributes().into_iter();
        let writable = all.filter(|(attribute, _)| attribute.permission == Permission::ReadWrite);
        let named = writable.map(|(attribute, value)| (attribute.path.into_owned(), value));
        let is_own = |(path, _): &(String, String)| {
            !path.starts_with("iosched/") && !FOLLOWS.contains(&path.as_str())
        };
        let scheduler = disk.service().queue().plan().scheduler.name;
        Self { scheduler, values: named.filter(is_own).collect() }
    }

    /// A line for each attribute of `disk` that differs. A change of scheduler resets its attributes.
    fn differences(&self, disk: &Disk) -> Vec<String> {
        let now = Self::of(disk);
        if now.scheduler != self.scheduler {
            return Vec::new();
        }
        let pairs = self.values.iter().zip(&now.values).filter(|(old, new)| old != new);
        let line = |((path, old), (_, new)): (&(String, String), &(String, String))| {
            format!(
                "device '{}': {path} = {new}, at the start {old}; no key of a file",
                disk.name()
            )
        };
        pairs.map(line).collect()
    }
}

/// A table of a configuration, identified by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Device(String),
    Export(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => write!(f, "device '{name}'"),
            Self::Export(name) => write!(f, "export '{name}'"),
        }
    }
}

/// The text with the current values of these settings, or `None` if a named table does not exist.
fn edited(text: &str, edits: &[Difference]) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let mut pieces: Vec<(Range<usize>, String)> = Vec::new();
    for edit in edits {
        let (tables, name) = match &edit.place {
            Place::Device(name) => ("device", name),
            Place::Export(name) => ("export", name),
        };
        let DeValue::Array(all) = document.get_ref().get(tables)?.get_ref() else { return None };
        let table = all.iter().find(|table| named(table).is_some_and(|(it, _)| it == name))?;
        let (_, at) = named(table)?;
        let value = quoted(&edit.live);
        let present = table.get_ref().as_table()?.get(edit.key.as_str());
        pieces.push(match present {
            Some(present) => (present.span(), value),
            // A new key goes after the name: on its own line, or within the braces of an inline table.
            None if text[table.span()].starts_with('{') => {
                (at.end..at.end, format!(", {} = {value}", edit.key))
            }
            None => {
                let end = text[at.end..].find('\n').map_or(text.len(), |line| at.end + line);
                (end..end, format!("\n{} = {value}", edit.key))
            }
        });
    }
    pieces.sort_by_key(|(range, _)| range.start);
    let mut text = text.to_owned();
    for (range, piece) in pieces.into_iter().rev() {
        text.replace_range(range, &piece);
    }
    Some(text)
}

/// The name of a table and its range in the text.
fn named<'a>(table: &'a Spanned<DeValue<'_>>) -> Option<(&'a str, Range<usize>)> {
    let name = table.get_ref().as_table()?.get("name")?;
    Some((name.get_ref().as_str()?, name.span()))
}

/// Formats a value: a number as it is, a word in quotes.
fn quoted(value: &str) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { value.to_owned() } else { format!("\"{value}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::config::parsed;

    const OLD: &str = "log = 'info'\n[[device]]\nname = 'a'\ndevice = 'null'\n[[export]]\nname = 'x'\nweight = 5\n";

    fn between(old: &str, new: &str) -> Vec<Change> {
        changes(&parsed(old), &parsed(new))
    }

    #[test]
    fn nothing_has_changed() {
        assert_eq!(between(OLD, OLD), []);
        let named = OLD.replace("'null'\n", "'null'\nscheduler = 'none'\n");
        let set = |word: &str| {
            let (path, value) = ("queue/scheduler".to_owned(), word.to_owned());
            [Change::Attribute { device: 1, path, value }]
        };
        assert_eq!(between(OLD, &named), set("none"));
        assert_eq!(between(&named, OLD), set("auto"));
        let auto = OLD.replace("'null'\n", "'null'\nscheduler = 'auto'\n");
        assert_eq!(between(OLD, &auto), [], "the default by its name");
    }

    #[test]
    fn what_can_be_changed_is() {
        let new = OLD
            .replace("info", "debug")
            .replace(
                "'null'\n",
                "'null'\nscheduler = 'mq-deadline:fifo_batch=7'\ndevice-depth = 8\n",
            )
            .replace("weight = 5", "weight = 6\nwiops = 100");
        let attribute = |path: &str, value: &str| {
            let (path, value) = (path.to_owned(), value.to_owned());
            Change::Attribute { device: 1, path, value }
        };
        let max = Some("wiops=100".to_owned());
        let expected = [
            Change::Level(LevelFilter::DEBUG),
            attribute("queue/scheduler", "mq-deadline"),
            attribute("iosched/fifo_batch", "7"),
            attribute("blkmq/device_depth", "8"),
            Change::Export {
                name: "x".into(),
                settings: ExportSettings { weight: Some(6), max, promise: None },
            },
        ];
        assert_eq!(between(OLD, &new), expected);
        let back = attribute("iosched/fifo_batch", "16");
        assert_eq!(between(&new, &new.replace(":fifo_batch=7", "")), [back]);
        let mut current = parsed(OLD);
        adopt(&mut current, &parsed(&new), &between(OLD, &new));
        assert_eq!(changes(&current, &parsed(&new)), [], "it is in force");
    }

    #[test]
    fn rules_on_clients_change() {
        let new = format!("allow = ['uid:7']\n{OLD}allow = ['uid:8', 'gid:9']\n");
        let allow = |rules: &[&str]| {
            let rules = rules.iter().map(|rule| rule.parse().expect("a rule"));
            Some(Allow::new(rules.collect()).expect("some rules"))
        };
        let name = "x".to_owned();
        let expected = [
            Change::Allow(allow(&["uid:7"])),
            Change::AllowExport { name: name.clone(), allow: allow(&["uid:8", "gid:9"]) },
        ];
        assert_eq!(between(OLD, &new), expected);
        let back = [Change::Allow(None), Change::AllowExport { name, allow: None }];
        assert_eq!(between(&new, OLD), back);
        let mut current = parsed(OLD);
        adopt(&mut current, &parsed(&new), &expected);
        assert_eq!(changes(&current, &parsed(&new)), [], "it is in force");
    }

    #[test]
    fn the_rest_is_named_again_and_again() {
        let new = OLD.replace("log", "workers = 99\nlisten = 'tcp:127.0.0.1:1'\ncontrol = ''\nlog")
            + "read-only = true\n";
        let lines = |old: &Wanted| {
            let all = changes(old, &parsed(&new));
            Vec::from_iter(all.into_iter().map(|change| match change {
                Change::Restart(what) => what,
                other => panic!("{other:?}"),
            }))
        };
        let mut current = parsed(OLD);
        let first = lines(&current);
        let last = "export 'x' (device, offset, size, read-only, class, cache, vhost-user, ublk, queues, guest-ioprio, description)";
        assert_eq!(first, ["listen", "workers", "control", last]);
        adopt(&mut current, &parsed(&new), &[]);
        assert_eq!(lines(&current), first);
    }

    #[test]
    fn exports_come_and_go() {
        let new = OLD.replace("'x'", "'y'");
        let added = parsed(&new).exports.remove(0);
        let expected = [Change::Remove("x".into()), Change::Add(Box::new(added))];
        assert_eq!(between(OLD, &new), expected);
        let mut current = parsed(OLD);
        adopt(&mut current, &parsed(&new), &expected);
        assert_eq!(changes(&current, &parsed(&new)), [], "it is in force");
        let elsewhere = new.replace("'null'", "'disk'");
        let changes = between(OLD, &elsewhere);
        assert!(changes.contains(&Change::Restart("the new export 'y'".into())), "{changes:?}");
    }

    fn edit(place: Place, key: &str, live: &str) -> Difference {
        let [key, live, configured] = [key, live, ""].map(str::to_owned);
        Difference { place, key, live, configured }
    }

    #[test]
    fn values_change_and_nothing_else_does() {
        let text = "# A file.\n[[device]]\nname = 'a' # the disk\ndevice = 'null'\n\
                    [[export]]\nname = \"x\"\nweight = 5   # to be seen\n[[export]]\nname = 'y'";
        let export = |name: &str| Place::Export(name.to_owned());
        let edits = [
            edit(export("x"), "weight", "70"),
            edit(export("y"), "rbps", "max"),
            edit(export("y"), "weight", "7"),
            edit(Place::Device("a".to_owned()), "scheduler", "bfq:low_latency=0"),
        ];
        let expected = "# A file.\n[[device]]\nname = 'a' # the disk\nscheduler = \"bfq:low_latency=0\"\n\
                        device = 'null'\n[[export]]\nname = \"x\"\nweight = 70   # to be seen\n[[export]]\n\
                        name = 'y'\nrbps = \"max\"\nweight = 7";
        assert_eq!(edited(text, &edits).as_deref(), Some(expected));
        let inline = "export = [{ name = 'x' }]\n";
        let expected = "export = [{ name = 'x', weight = 7 }]\n";
        let weight = [edit(export("x"), "weight", "7")];
        assert_eq!(edited(inline, &weight).as_deref(), Some(expected));
        assert_eq!(edited("device = 5\n", &weight), None);
        assert_eq!(edited("[[export]]\nweight = 5\n", &weight), None);
    }
}

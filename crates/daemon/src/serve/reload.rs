//! Reloads a configuration while the server runs.
//!
//! The new file is compared with the previous file, not with the current settings. So a setting changed by `blkmqctl`
//! stays, unless its line in the file has changed. A file with a fault changes nothing.

use super::access::{self, Ways};
use super::difference::{self, Attributes, Difference};
use super::process::SetLevel;
use super::wanted::Wanted;
use super::{config, export};
use blkmq_engine::{AUTO, AutoChoice, AutoReason, PolicyChoice};
use blkmq_server::control::{Answer, ExportSettings, GoesOn, Request, Saved};
use blkmq_server::{Allow, Export, Handle};
use blkmq_terminal::{SchedulerChoice, UsageError};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::park_timeout;
use std::time::Duration;
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

    /// A line for each current setting that differs from the file, or without a file from the command line.
    ///
    /// # Errors
    /// One line for each fault of the file.
    pub fn diff(&self) -> Result<Vec<String>, String> {
        let wanted = match &self.path {
            Some(path) => config::read(path).map_err(|faults| faults.join("\n"))?,
            None => self.current(&|| true)?.clone(),
        };
        let differences = difference::between(&wanted, &self.server);
        let mut lines = Vec::from_iter(differences.iter().map(Difference::line));
        lines.extend(difference::exports(&wanted, &self.server));
        for (attributes, disk) in self.attributes.iter().zip(self.server.disks()) {
            lines.extend(attributes.differences(disk));
        }
        Ok(lines)
    }

    /// The file with the current settings, or `None` if it has them.
    ///
    /// # Errors
    /// If there is no file, or it cannot be edited.
    pub fn save(&self) -> Result<Option<Saved>, String> {
        let path =
            self.path.as_ref().ok_or("the server was started without a configuration file")?;
        let text = difference::saved(path, &self.server)?;
        let whole = std::fs::canonicalize(path).map_err(|e| format!("{path}: {e}"))?;
        Ok(text.map(|text| Saved { path: whole, text }))
    }

    /// Adds an export, spelled as for `--export`. It is not part of the configuration, so that reloads leave it.
    /// Returns a message.
    ///
    /// # Errors
    /// If the description is invalid, one of its rules cannot match any client, or the server refuses.
    pub fn add(&self, words: &str, goes_on: GoesOn<'_>) -> Result<String, String> {
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
    pub fn remove(&self, name: &str) -> Result<String, String> {
        match self.server.remove_export(name) {
            true => Ok(format!("export '{name}': removed")),
            false => Err(format!("there is no export '{name}'; blkmqctl list shows all")),
        }
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
    pub fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String> {
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
}

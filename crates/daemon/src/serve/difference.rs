//! Compares the current settings with a configuration, and writes them to its file: `blkmqctl diff` and `blkmqctl
//! save`. Values are changed in the text, and all other bytes are preserved, including comments.

use super::config;
use super::wanted::Wanted;
use blkmq_engine::attributes::Permission;
use blkmq_engine::{IoMax, Plan, PolicyChoice};
use blkmq_sched::Options;
use blkmq_server::control::{Answer, Request};
use blkmq_server::{Disk, Handle};
use blkmq_terminal::SchedulerChoice;
use std::fmt;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A setting whose current value differs from the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    place: Place,
    key: String,
    live: String,
    configured: String,
}

impl Difference {
    /// Formats the difference for the operator.
    pub fn line(&self) -> String {
        let Self { place, key, live, configured } = self;
        format!("{place}: {key} = {live}, configured {configured}")
    }

    fn edit(&self) -> Edit {
        Edit { place: self.place.clone(), key: self.key.clone(), value: self.live.clone() }
    }
}

/// The settings that have a configuration key and whose current value differs.
pub fn between(wanted: &Wanted, server: &Handle) -> Vec<Difference> {
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
pub fn exports(wanted: &Wanted, server: &Handle) -> Vec<String> {
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
pub fn saved(path: &str, server: &Handle) -> Result<Option<String>, String> {
    let (text, wanted) = config::read_text(path).map_err(|faults| faults.join("\n"))?;
    let differences = between(&wanted, server);
    if differences.is_empty() {
        return Ok(None);
    }
    let edits = Vec::from_iter(differences.iter().map(Difference::edit));
    let unusual =
        || format!("{path} has a form that cannot be changed; blkmqctl diff shows what differs");
    let text = edited(&text, &edits).ok_or_else(unusual)?;
    // The new text is written only if it parses to the current settings.
    let reads = config::understood(&text).is_some_and(|wanted| between(&wanted, server).is_empty());
    if reads { Ok(Some(text)) } else { Err(unusual()) }
}

/// Attributes of a disk that have no configuration key, with their values at the start of the server.
pub struct Attributes {
    scheduler: &'static str,
    values: Vec<(String, String)>,
}

/// Attributes that depend on others, or that have a configuration key.
const FOLLOWS: [&str; 3] = ["queue/scheduler", "queue/iostats", "blkmq/device_depth"];

impl Attributes {
    pub fn of(disk: &Disk) -> Self {
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
    pub fn differences(&self, disk: &Disk) -> Vec<String> {
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

/// A value to be set in a table.
#[derive(Clone, Debug)]
struct Edit {
    place: Place,
    key: String,
    value: String,
}

/// The text with these values, or `None` if a named table does not exist.
fn edited(text: &str, edits: &[Edit]) -> Option<String> {
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
        let value = quoted(&edit.value);
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

    fn edit(place: Place, key: &str, value: &str) -> Edit {
        Edit { place, key: key.to_owned(), value: value.to_owned() }
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

//! Parses the settings of an export one at a time, and exports in the form of the command line: `NAME[,KEY=VALUE]...`.

use blkmq_core::Class;
use blkmq_engine::{IoMax, MAX_GROUPS, Promise};
use blkmq_server::{
    Allow, Cache, Export, GuestIoprio, MOST_QUEUES, Region, Rule, RuleError, Ublk, VhostUser,
};
use blkmq_terminal::UsageError;
use blkmq_terminal::limits;
use blkmq_terminal::units::{self, KbBase};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The settings, in the order of the help page. The device is a setting, too: a number, or in a file a name.
pub fn keys() -> impl Iterator<Item = &'static str> {
    let first = ["device", "offset", "size", "read-only", "weight"];
    let last =
        ["class", "cache", "vhost-user", "ublk", "queues", "guest-ioprio", "allow", "description"];
    first.into_iter().chain(IoMax::WORDS).chain(Promise::WORDS).chain(last)
}

/// The largest number of a block device, limited by its minor number.
const MOST_DEVICE: u64 = (1 << 20) - 1;

/// Priority classes, as Linux and cgroup v2 spell them.
const CLASSES: [(&str, Class); 3] =
    [("rt", Class::Realtime), ("be", Class::None), ("idle", Class::Idle)];

/// Cache modes, as QEMU spells them.
const CACHES: [(&str, Cache); 2] =
    [("writeback", Cache::Writeback), ("writethrough", Cache::Writethrough)];

/// An export whose settings are being parsed.
pub struct Draft {
    pub export: Export,
    offset: u64,
    size: Option<u64>,
    /// The path of the socket for a virtual machine, if there is one.
    socket: Option<PathBuf>,
    /// The number of the block device.
    ublk: Option<u32>,
    queues: Option<u16>,
    guest_ioprio: Option<GuestIoprio>,
    /// The access rules.
    rules: Vec<Rule>,
}

impl Draft {
    pub fn new(name: &str) -> Self {
        Self {
            export: Export::new(name, 0),
            offset: 0,
            size: None,
            socket: None,
            ublk: None,
            queues: None,
            guest_ioprio: None,
            rules: Vec::new(),
        }
    }

    /// Sets `key` to the value `text`. A `device` is a number up to `disks`.
    ///
    /// # Errors
    /// If there is no such setting, or the value is invalid.
    pub fn set(&mut self, key: &str, text: &str, disks: usize) -> Result<(), UsageError> {
        let Self { export, offset, size, socket, ublk, queues, guest_ioprio, rules } = self;
        let bytes = || units::bytes(text, KbBase::Binary);
        match key {
            "device" => number(text, 1..=disks as u64).map(|n| export.disk = n as usize - 1),
            "offset" => bytes().map(|n| *offset = n),
            "size" => bytes().and_then(above_zero).map(|n| *size = Some(n)),
            "read-only" => number(text, 0..=1).map(|n| export.read_only = n == 1),
            "weight" => number(text, 1..=1000).map(|n| export.weight = n as u32),
            word if IoMax::WORDS.contains(&word) => {
                limits::set(export.max, word, text).map(|max| export.max = max)
            }
            promised if Promise::WORDS.contains(&promised) => {
                limits::promised(export.promise, key, text).map(|promise| export.promise = promise)
            }
            "class" => one_of(text, &CLASSES).map(|class| export.class = class),
            "cache" => one_of(text, &CACHES).map(|cache| export.cache = cache),
            "vhost-user" if text.is_empty() => {
                Err(UsageError::new("no path; accepted: the path of a socket".to_owned()))
            }
            "vhost-user" => {
                *socket = Some(text.into());
                Ok(())
            }
            "ublk" => number(text, 0..=MOST_DEVICE).map(|n| *ublk = Some(n as u32)),
            "queues" => number(text, 1..=MOST_QUEUES.into()).map(|n| *queues = Some(n as u16)),
            "guest-ioprio" => text
                .parse()
                .map(|it| *guest_ioprio = Some(it))
                .map_err(|error: String| UsageError::new(error)),
            "allow" => text
                .parse()
                .map(|rule| rules.push(rule))
                .map_err(|error: RuleError| UsageError::new(error.to_string())),
            "description" => {
                text.clone_into(&mut export.description);
                Ok(())
            }
            _ => Err(UsageError::new(format!("no such setting; accepted: {}", accepted()))),
        }
    }

    /// # Errors
    /// If a setting for a virtual machine is given without a socket, or there are too many rules.
    pub fn finish(self) -> Result<Export, UsageError> {
        let Self { mut export, offset, size, socket, ublk, queues, guest_ioprio, rules } = self;
        if !rules.is_empty() {
            let allow = Allow::new(rules).map_err(|error| UsageError::new(error.to_string()));
            export.allow = Some(allow.map_err(|error| error.at("allow"))?);
        }
        if offset > 0 || size.is_some() {
            export.region = Some(Region { offset, size });
        }
        let is_set = [("queues", queues.is_some()), ("guest-ioprio", guest_ioprio.is_some())];
        export.ublk = ublk.map(|number| {
            let device = Ublk::new(number);
            Ublk { queues: queues.unwrap_or(device.queues), ..device }
        });
        match socket {
            Some(path) => {
                let mut machine = VhostUser::new(path);
                machine.queues = queues.unwrap_or(machine.queues);
                machine.guest_ioprio = guest_ioprio.unwrap_or(machine.guest_ioprio);
                export.vhost_user = Some(machine);
            }
            None => {
                let of_ublk = |key| key == "queues" && ublk.is_some();
                if let Some((key, _)) = is_set.into_iter().find(|(key, is)| *is && !of_ublk(*key)) {
                    let also = if key == "queues" { " or ublk=NUMBER" } else { "" };
                    let text = format!(
                        "it is of a disk for a virtual machine; accepted with vhost-user=PATH{also}"
                    );
                    return Err(UsageError::new(text).at(key));
                }
            }
        }
        Ok(export)
    }
}

/// Parses an export of a server with `disks` devices.
///
/// # Errors
/// If a setting does not exist or has an invalid value.
pub fn parse(text: &str, disks: usize) -> Result<Export, UsageError> {
    // A description may contain commas.
    let (settings, description) = match text.split_once(",description=") {
        Some((settings, description)) => (settings, description),
        None => (text, ""),
    };
    let mut words = settings.split(',');
    let name = words.next().unwrap_or_default();
    let mut draft = Draft::new(name);
    draft.set("description", description, disks)?;
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let set = if word.contains('=') {
            draft.set(key, value, disks)
        } else {
            Err(UsageError::new(format!("no KEY=VALUE; accepted keys: {}", accepted())))
        };
        set.map_err(|e| e.at(key).at(format!("export '{name}'")))?;
    }
    draft.finish().map_err(|e| e.at(format!("export '{name}'")))
}

/// The names of exports so far, and of their groups by device.
#[derive(Default)]
pub struct Names {
    names: BTreeSet<String>,
    groups: BTreeMap<usize, BTreeMap<String, String>>,
    /// Block devices, each with its export.
    devices: BTreeMap<u32, String>,
}

impl Names {
    /// Adds an export if it is compatible with the previous ones, by the rules that the server applies at start. O(log
    /// exports).
    ///
    /// # Errors
    /// If its name cannot be used, or its device has the maximum number of exports.
    pub fn add(&mut self, export: &Export) -> Result<(), UsageError> {
        let name = &export.name;
        let group = export.group().map_err(|error| UsageError::new(error.to_string()))?;
        if !self.names.insert(name.clone()) {
            return Err(UsageError::new(format!("two exports are called '{name}'")));
        }
        if let Some(ublk) = export.ublk
            && let Some(other) = self.devices.insert(ublk.number, name.clone())
        {
            return Err(UsageError::new(format!(
                "exports '{other}' and '{name}' have the same block device, ublk {}",
                ublk.number
            )));
        }
        let groups = self.groups.entry(export.disk).or_default();
        if groups.len() == usize::from(MAX_GROUPS) {
            return Err(UsageError::new(format!(
                "export '{name}' is one too many for its device; accepted: up to {MAX_GROUPS} for each"
            )));
        }
        match groups.entry(group) {
            Entry::Occupied(other) => Err(UsageError::new(format!(
                "exports '{}' and '{name}' cannot be told apart in lists of groups",
                other.get()
            ))),
            Entry::Vacant(place) => {
                place.insert(name.clone());
                Ok(())
            }
        }
    }
}

fn accepted() -> String {
    Vec::from_iter(keys()).join(", ")
}

fn number(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, UsageError> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (first, last) = (range.start(), range.end());
        UsageError::new(format!("'{text}' is not valid; accepted: {first} to {last}"))
    })
}

fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, UsageError> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let accepted = Vec::from_iter(words.iter().map(|(word, _)| *word)).join(", ");
        UsageError::new(format!("'{text}' is not valid; accepted: {accepted}"))
    })
}

fn above_zero(number: u64) -> Result<u64, UsageError> {
    if number > 0 { Ok(number) } else { Err(UsageError::new("0 is too few; accepted: from 1")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_all_of_the_first_device() {
        assert_eq!(parse("gold", 1), Ok(Export::new("gold", 0)));
        assert_eq!(parse("", 1), Ok(Export::new("", 0)));
    }

    #[test]
    fn settings_follow_behind_commas() {
        let text = "a,device=2,offset=1m,size=2g,read-only=1,weight=300,rbps=50m,wiops=1k,description=x, y=z";
        let export = parse(text, 2).expect("possible");
        let region = export.region.clone().expect("it has one");
        assert_eq!((export.disk, region.offset, region.size), (1, 1 << 20, Some(2 << 30)));
        assert!(export.read_only);
        assert_eq!(
            (export.weight, export.max.rbps, export.max.wiops),
            (300, Some(50 << 20), Some(1024))
        );
        assert_eq!((export.max.wbps, export.description.as_str()), (None, "x, y=z"));
        assert_eq!((export.class, export.cache), (Class::None, Cache::Writeback));
        let export = parse("a,class=rt,cache=writethrough", 1).expect("possible");
        assert_eq!((export.class, export.cache), (Class::Realtime, Cache::Writethrough));
    }

    #[test]
    fn an_export_can_be_a_disk_of_a_virtual_machine() {
        let export = parse("a,vhost-user=/run/a.sock,queues=2,guest-ioprio=clamp", 1);
        let machine = export.expect("possible").vhost_user.expect("it has a socket");
        assert_eq!((machine.queues, machine.guest_ioprio), (2, GuestIoprio::Clamp));
        let machine = parse("a,vhost-user=/x", 1).expect("possible").vhost_user;
        assert_eq!(machine, Some(VhostUser::new("/x".into())));
    }

    #[test]
    fn an_export_can_be_a_block_device() {
        let ublk = |text| parse(text, 1).expect("possible").ublk;
        assert_eq!(ublk("a,ublk=0"), Some(Ublk { number: 0, queues: 1 }));
        assert_eq!(ublk("a,ublk=7,queues=4"), Some(Ublk { number: 7, queues: 4 }));
        assert_eq!(ublk("a"), None);
        let refused = |text| parse(text, 1).expect_err(text).to_string();
        assert!(
            refused("a,ublk=x").contains("'a': ublk: 'x' is not valid; accepted: 0 to 1048575")
        );
        assert!(refused("a,ublk=0,guest-ioprio=off").contains("accepted with vhost-user=PATH"));
        assert!(refused("a,queues=2").contains("vhost-user=PATH or ublk=NUMBER"));
    }

    #[test]
    fn an_export_may_be_for_some_clients() {
        let export = parse("a,allow=uid:7,allow=cn:gold.example,weight=5", 1).expect("possible");
        let rules = export.allow.expect("it has some").rules().to_vec();
        assert_eq!(rules, [Rule::User(7), Rule::CommonName("gold.example".to_owned())]);
        let refused = parse("a,allow=gold", 1).expect_err("no rule").to_string();
        assert!(refused.starts_with("export 'a': allow: 'gold' is no rule; accepted: cn:NAME"));
        let many = format!("a{}", ",allow=uid:7".repeat(257));
        let refused = parse(&many, 1).expect_err("too many").to_string();
        assert!(refused.contains("allow: 257 rules; accepted: up to 256"), "{refused}");
    }

    #[test]
    fn a_refusal_names_the_export_the_setting_and_what_is_accepted() {
        let refused = |text| parse(text, 1).expect_err(text).to_string();
        assert!(
            refused("a,queues=2").contains("'a': queues: it is of a disk for a virtual machine")
        );
        assert!(refused("a,vhost-user=/x,queues=0").contains("accepted: 1 to 64"));
        assert!(refused("a,vhost-user=/x,guest-ioprio=on").contains("off, clamp, trust"));
        assert_eq!(
            refused("a,weight=0"),
            "export 'a': weight: '0' is not valid; accepted: 1 to 1000"
        );
        assert_eq!(refused("a,device=2"), "export 'a': device: '2' is not valid; accepted: 1 to 1");
        assert!(refused("a,wieght=1").contains("no such setting; accepted: device, offset"));
        assert!(refused("a,read-only").contains("accepted keys: device"));
        assert!(refused("a,size=much").contains("accepted: bytes"));
        assert!(
            refused("a,rbps=0")
                .contains("rbps: '0' is not valid; accepted: a number from 1, or max")
        );
        assert!(refused("a,size=0").contains("0 is too few"));
        assert!(refused("a,class=fast").contains("accepted: rt, be, idle"));
        assert!(refused("a,cache=none").contains("accepted: writeback, writethrough"));
    }

    #[test]
    fn a_block_device_shows_one_export() {
        let mut names = Names::default();
        let mut add = |name: &str, number| {
            let ublk = Some(Ublk::new(number));
            let added = names.add(&Export { ublk, ..Export::new(name, 0) });
            added.map_err(|error| error.to_string())
        };
        assert_eq!((add("a", 0), add("b", 1)), (Ok(()), Ok(())));
        let refused = add("c", 1).expect_err("it is taken");
        assert_eq!(refused, "exports 'b' and 'c' have the same block device, ublk 1");
    }

    #[test]
    fn names_are_those_that_the_start_accepts() {
        let check = |name: &str, others: &[&str]| {
            let mut names = Names::default();
            let mut add = |name: &str| names.add(&Export::new(name, 0));
            others.iter().for_each(|name| add(name).expect("they are different"));
            add(name).map_err(|error| error.to_string())
        };
        assert_eq!(check("", &["a", "b/c"]), Ok(()));
        assert_eq!(check("nbd://h:1/x?y={z}", &["nbd://h:1/x?y={zz}", "a b"]), Ok(()));
        assert!(check("a\nb", &[]).is_err_and(|text| text.contains("accepted: up to 4096 bytes")));
        assert_eq!(check("a", &["b", "a"]), Err("two exports are called 'a'".to_owned()));
        assert!(check("default", &[""]).is_err_and(|text| text.contains("cannot be told apart")));
    }
}

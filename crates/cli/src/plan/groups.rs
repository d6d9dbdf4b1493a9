//! Groups as the command line describes them: `--group NAME[:KEY=VALUE,...]`, and fio's `cgroup` of a job; and
//! `--tenants`, which uses the exports of a server's configuration as groups of a run, so that promises can be tried
//! before they are served.
//!
//! Of a server's configuration, only the parts about the service of tenants are read. Nothing is opened or served, so
//! addresses, certificates and limits are left to `blkmqd --check`.

use blkmq_engine::{GroupSpec, GroupTree, IoMax, Promise, weight_of_io_weight};
use blkmq_lab::workload::Job;
use blkmq_terminal::table::{Faults, Span, Table};
use blkmq_terminal::units::{self, KbBase};
use blkmq_terminal::{UsageError, bounded, limits};

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
pub fn parse(text: &str) -> Result<GroupSpec, UsageError> {
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
                group.weight = weight.map_err(|e| UsageError::new(e.to_string()))?;
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
pub fn tree(mut wanted: Vec<GroupSpec>, jobs: &[Job]) -> Result<GroupTree, UsageError> {
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
    GroupTree::of(wanted).map_err(|e| UsageError::new(e.to_string()))
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
    if let Some(weight) =
        export.value("weight", faults, |text| units::count(text, 1..=1000, KbBase::Binary))
    {
        group.weight = weight;
    }
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

    fn refusal(text: &str) -> String {
        let group = parse(text).and_then(|group| tree(vec![group], &[]));
        group.expect_err(text).to_string()
    }

    fn job(cgroup: &str, cgroup_weight: Option<u32>) -> Job {
        Job { cgroup: Some(cgroup.into()), cgroup_weight, ..Job::default() }
    }

    #[test]
    fn a_group_is_described_by_pairs() {
        let text = "web:weight=200,parent=top,rbps=1m,wiops=500,riops=max";
        let web = parse(text).expect("right");
        assert_eq!((&*web.name, &*web.parent, web.weight), ("web", "top", 200));
        assert_eq!(web.max.to_string(), "rbps=1048576 wbps=max riops=max wiops=500");
        let burst = parse("b:iops=1k,bps=2m,burst=3,burst_length=5s").expect("right").max;
        let words =
            "rbps=max wbps=max riops=max wiops=max bps=2097152 iops=1024 burst=3 burst_length=5";
        assert_eq!(burst.to_string(), words);
        let floor = parse("a:reserve_iops=2k,limit_percent=50,overcommit").expect("right").promise;
        assert_eq!((floor.guarantee.reserve.iops, floor.guarantee.limit.percent), (2_048, 50));
        assert!(floor.overcommit);
        let goal = parse("a:p99_read=2ms,p99_write=900").expect("right").promise;
        assert!(goal.to_string().contains("p99_read=2ms p99_write=900us "), "{goal}");
        assert_eq!(parse("a:io.weight=10000").expect("right").weight, 1000);
        assert_eq!(parse("a").expect("right").weight, 100);
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
        let made = tree(Vec::new(), &jobs).expect("right");
        let weights: Vec<_> = made.iter().map(|group| (&*group.name, group.weight)).collect();
        assert_eq!(weights, [("a", 300), ("b", 100)]);
        let described = vec![parse("a:weight=300").expect("right")];
        assert!(tree(described.clone(), &[job("a", Some(300))]).is_ok());
        let error = tree(described.clone(), &[job("b", None)]).expect_err("a slip of the pen");
        assert!(error.to_string().contains("no group 'b'; accepted: a"));
        let error = tree(described, &[job("a", Some(7))]).expect_err("which of the two?");
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

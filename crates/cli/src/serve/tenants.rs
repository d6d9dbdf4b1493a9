//! The exports of a configuration as groups of a run, so that what they are promised is tried before it is served.

use super::config;
use blkmq_engine::GroupSpec;
use blkmq_terminal::UsageError;

/// The groups of `FILE`, or `FILE:DEVICE` where a file has several devices: an export each, with its weight, its limits
/// and what it is promised.
///
/// # Errors
/// If the file is none, or has several devices and none of them is named.
pub fn read(text: &str) -> Result<Vec<GroupSpec>, UsageError> {
    let (path, device) = match text.rsplit_once(':') {
        Some((path, device)) if !device.contains('/') => (path, Some(device)),
        _ => (text, None),
    };
    let wanted = config::read(path).map_err(|faults| config::first(&faults, path))?;
    let names = Vec::from_iter(wanted.disks.iter().map(|disk| &*disk.name));
    let place = match device {
        None if names.len() == 1 => Some(0),
        None => None,
        Some(device) => names.iter().position(|name| *name == device),
    };
    let place = place.ok_or_else(|| {
        let accepted = Vec::from_iter(names.iter().map(|name| format!("{path}:{name}")));
        let accepted = accepted.join(", ");
        UsageError::new(format!("one of the devices of {path} is needed; accepted: {accepted}"))
    })?;
    let groups = wanted.exports.iter().filter(|export| export.disk == place).map(|export| {
        Ok(GroupSpec {
            name: export.group().map_err(|error| UsageError::new(error.to_string()))?,
            weight: export.weight,
            max: export.max,
            promise: export.promise,
            ..GroupSpec::default()
        })
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[[device]]
name = "ssd"
device = "null"
[[device]]
name = "disk"
device = "null"
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
[[export]]
name = "other"
device = "disk"
"#;

    #[test]
    fn the_exports_of_a_device_are_groups() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("serve.toml");
        std::fs::write(&path, TEXT).expect("writable");
        let path = path.to_str().expect("UTF-8");
        let groups = read(&format!("{path}:ssd")).expect("right");
        let [db, rest] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!((&*db.name, db.weight, db.max.rbps), ("vm_db", 300, Some(50 << 20)));
        assert_eq!((&*rest.name, rest.weight), ("rest", 100));
        let words = db.promise.to_string();
        assert!(words.contains("reserve_iops=200") && words.contains("p99_read=2ms"), "{words}");
        assert_eq!(read(&format!("{path}:disk")).expect("right")[0].name, "other");
        for text in [path.to_owned(), format!("{path}:tape")] {
            let refused = read(&text).expect_err("which?").to_string();
            assert!(refused.contains(&format!("accepted: {path}:ssd, {path}:disk")), "{refused}");
        }
        assert!(read(&format!("{path}.none")).is_err());
    }
}

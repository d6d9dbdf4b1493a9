//! Prints commands that try the promises of a configuration in virtual time: `blkmqd --check FILE --simulate`.
//!
//! The server does not contain the laboratory, so it prints commands for `blkmq`, to be run or edited: a configuration
//! does not describe the tenants' loads.

use super::wanted::Wanted;
use blkmq_terminal::UsageError;
use std::fmt::Write;

/// The default load of each tenant, which always has I/Os waiting, so that promises and weights take effect.
const LOAD: &str = "--rw=randread --bs=4k --iodepth=32";
/// The MiB of each tenant's region on the model.
const SIZE: usize = 64;
/// The models with service times. On other models, virtual time would not advance for a tenant that always has I/Os
/// waiting.
const MODELS: [&str; 3] = ["disk", "flash", "cloud"];

/// Parses the model given to `--simulate`; empty if none is given. `blkmq sim` checks its parameters.
///
/// # Errors
/// If `text` is not a model, or is a model without service times.
pub fn model(text: &str) -> Result<String, UsageError> {
    if text.is_empty() || MODELS.contains(&kind(text)) {
        return Ok(text.to_owned());
    }
    Err(UsageError::new(format!(
        "'{text}' is no model that takes time; accepted: {}, with parameters behind commas",
        MODELS.join(", ")
    )))
}

/// The name at the beginning of the description of a device.
fn kind(device: &str) -> &str {
    device.split(',').next().unwrap_or_default()
}

/// A command for each device of the file at `path`. A device that is not a model is replaced by `model`.
///
/// # Errors
/// For each device that is not a model, if `model` is `None`.
pub fn commands(path: &str, wanted: &Wanted, model: Option<&str>) -> Result<String, Vec<String>> {
    let (mut text, mut faults) = (String::new(), Vec::new());
    for (at, disk) in wanted.disks.iter().enumerate() {
        let own = MODELS.contains(&kind(&disk.device)).then_some(disk.device.as_str());
        let Some(device) = own.or(model) else {
            faults.push(format!(
                "device '{}' is no model that takes time; accepted: --simulate=MODEL, such as flash,preset=nvme-client, or cloud",
                disk.name
            ));
            continue;
        };
        let file =
            if wanted.disks.len() == 1 { path.to_owned() } else { format!("{path}:{}", disk.name) };
        let fixed = format!(
            "blkmq sim --tenants={} --device={} --scheduler={} --runtime=20 --time_based --size={SIZE}m",
            quoted(&file),
            quoted(device),
            quoted(&disk.scheduler.text)
        );
        text += &fixed;
        let exports = wanted.exports.iter().filter(|export| export.disk == at);
        for (place, export) in exports.enumerate() {
            let name = quoted(&export.name);
            let offset = place * SIZE;
            // Writing to a String does not fail.
            let _ =
                write!(text, " \\\n    --name={name} --cgroup={name} --offset={offset}m {LOAD}");
        }
        text.push('\n');
    }
    if faults.is_empty() { Ok(text) } else { Err(faults) }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::config;

    fn of(text: &str, model: Option<&str>) -> Result<String, Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, text).expect("written");
        let wanted = config::read(path.to_str().expect("UTF-8"));
        let wanted = wanted.unwrap_or_else(|faults| panic!("{faults:?}"));
        commands("serve.toml", &wanted, model)
    }

    #[test]
    fn a_model_takes_time() {
        for text in ["", "cloud", "flash,preset=sata"] {
            assert_eq!(model(text).as_deref(), Ok(text));
        }
        for (text, why) in [
            ("memory", "'memory' is no model that takes time; accepted: disk, flash, cloud"),
            ("clod", "'clod' is no model"),
        ] {
            let error = model(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn each_device_has_a_command_with_its_tenants() {
        let two = "[[device]]\nname = \"ssd\"\ndevice = \"uring:/dev/nvme0n1\"\nscheduler = \"mclock\"\n\
                   [[device]]\nname = \"slow\"\ndevice = \"cloud\"\n\
                   [[export]]\nname = \"gold\"\ndevice = \"ssd\"\nsize = \"1g\"\n\
                   [[export]]\nname = \"it's\"\ndevice = \"ssd\"\noffset = \"1g\"\n\
                   [[export]]\nname = \"rest\"\ndevice = \"slow\"\n";
        let faults = of(two, None).expect_err("no model");
        assert!(
            faults[0].contains("'ssd'") && faults[0].contains("--simulate=MODEL"),
            "{faults:?}"
        );
        let text = of(two, Some("flash,preset=sata")).expect("commands");
        assert_eq!(
            text,
            "blkmq sim --tenants=serve.toml:ssd --device=flash,preset=sata --scheduler=mclock --runtime=20 --time_based \
             --size=64m \\\n    --name=gold --cgroup=gold --offset=0m --rw=randread --bs=4k --iodepth=32 \\\n    \
             --name='it'\\''s' --cgroup='it'\\''s' --offset=64m --rw=randread --bs=4k --iodepth=32\n\
             blkmq sim --tenants=serve.toml:slow --device=cloud --scheduler=auto --runtime=20 --time_based --size=64m \
             \\\n    --name=rest --cgroup=rest --offset=0m --rw=randread --bs=4k --iodepth=32\n"
        );
    }
}

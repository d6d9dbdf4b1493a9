//! Where the command line meets the registry of devices.

use crate::error::UsageError;
use crate::plan::DeviceChoice;
use blkmq_core::SECTOR_SIZE;
use blkmq_device::{MachineShape, descriptions, registry};

/// This machine, on which defaults such as the number of hardware queues depend.
pub fn machine() -> MachineShape {
    MachineShape { cpus: blkmq_runtime::available_cpus(), nodes: blkmq_runtime::numa_nodes() }
}

/// The devices of a list of descriptions.
///
/// # Errors
/// If one is not possible; the message says what is accepted.
pub fn choose_all(list: &str) -> Result<Vec<DeviceChoice>, UsageError> {
    descriptions(list).into_iter().map(choose).collect()
}

/// The device of this description.
///
/// # Errors
/// If there is no such device or a parameter cannot be; the message says what is accepted.
pub fn choose(text: &str) -> Result<DeviceChoice, UsageError> {
    let refuse = |e: blkmq_device::DeviceError| UsageError::new(e.to_string());
    let device = registry::parse(text, &machine()).map_err(refuse)?;
    let name = text.split([',', ':']).next().unwrap_or_default();
    Ok(DeviceChoice {
        name: name.trim().into(),
        text: text.into(),
        keeps: device.memory().is_some(),
        size_bytes: device.shape.limits.capacity.saturating_mul(SECTOR_SIZE.into()),
        notes: device.notes,
    })
}

/// The names of all devices that keep what is written, for messages.
pub fn keeping() -> String {
    let keeps = |factory: &&&registry::DeviceFactory| {
        registry::parse(factory.name, &machine()).is_ok_and(|device| device.memory().is_some())
    };
    let names = registry::ALL.iter().filter(keeps).map(|factory| factory.name);
    Vec::from_iter(names).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_knows_its_size_and_how_to_say_itself() {
        let text = "null,submit_queues=1,size=1024";
        let choice = choose(text).expect("null_blk's own parameters");
        assert_eq!((choice.size_bytes, choice.name.as_str()), (1 << 30, "null"));
        assert_eq!(choice.text, text);
    }

    #[test]
    fn a_list_may_hold_devices_around_devices() {
        let list = "null,size=1,faults,late=0.5,seed=7:memory,size=2,null:size=3";
        let choices = choose_all(list).expect("three devices");
        let texts = Vec::from_iter(choices.iter().map(|choice| choice.text.as_str()));
        assert_eq!(texts, ["null,size=1", "faults,late=0.5,seed=7:memory,size=2", "null:size=3"]);
        let sizes = Vec::from_iter(choices.iter().map(|choice| choice.size_bytes >> 20));
        assert_eq!(sizes, [1, 2, 3]);
    }

    #[test]
    fn unknown_devices_and_parameters_list_the_known_ones() {
        let message = choose("zram").expect_err("no such device").to_string();
        assert!(message.contains("accepted: null"), "{message}");
        let message = choose("null,depth=1").expect_err("no such parameter").to_string();
        assert!(message.contains("hw_queue_depth"), "{message}");
    }
}

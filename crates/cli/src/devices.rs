//! Where the command line meets the registry of devices.

use crate::error::UsageError;
use crate::plan::DeviceChoice;
use blkmq_core::SECTOR_SIZE;
use blkmq_device::{MachineShape, registry};

/// This machine, on which defaults such as the number of hardware queues depend.
pub fn machine() -> MachineShape {
    MachineShape { cpus: blkmq_runtime::available_cpus(), nodes: blkmq_runtime::numa_nodes() }
}

/// The device `name` with `params`.
///
/// # Errors
/// If there is no such device or a parameter cannot be; the message says what is accepted.
pub fn choose(name: &str, params: Vec<(String, String)>) -> Result<DeviceChoice, UsageError> {
    let refuse = |e: blkmq_device::DeviceError| UsageError::new(e.to_string());
    let factory = registry::named(name).map_err(refuse)?;
    let device = (factory.build)(&params, &machine()).map_err(refuse)?;
    let mut text = String::from(name);
    params.iter().for_each(|(key, value)| text.push_str(&format!(",{key}={value}")));
    Ok(DeviceChoice {
        name: name.into(),
        params,
        text,
        size_bytes: device.shape.limits.capacity.saturating_mul(SECTOR_SIZE.into()),
        notes: device.notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_knows_its_size_and_how_to_say_itself() {
        let pairs = [("submit_queues", "1"), ("size", "1024")];
        let pairs = pairs.map(|(key, value)| (key.into(), value.into()));
        let choice = choose("null", pairs.to_vec()).expect("null_blk's own parameters");
        assert_eq!(choice.size_bytes, 1 << 30);
        assert_eq!(choice.text, "null,submit_queues=1,size=1024");
    }

    #[test]
    fn unknown_devices_and_parameters_list_the_known_ones() {
        let message = choose("zram", Vec::new()).expect_err("no such device").to_string();
        assert!(message.contains("accepted: null"), "{message}");
        let pair = ("depth".to_owned(), "1".to_owned());
        let message = choose("null", vec![pair]).expect_err("no such parameter").to_string();
        assert!(message.contains("hw_queue_depth"), "{message}");
    }
}

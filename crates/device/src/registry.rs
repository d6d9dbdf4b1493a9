//! Every device by name. A line here makes a device available, documented and tested.

pub use crate::description::{Argument, Build, Description, Pair};

use crate::description::check_nesting;
use crate::{Device, DeviceError, MachineShape, Parameter, disk, faults, flash, memory, null};
use std::fmt;

/// One line of the registry. All code that offers devices by name iterates over these.
pub struct DeviceFactory {
    /// The name of the device, as after `--device`.
    pub name: &'static str,
    /// A summary of one line for lists.
    pub summary: &'static str,
    /// The page that `blkmq doc NAME` prints.
    pub doc: &'static str,
    /// The kind of argument behind a colon.
    pub argument: Argument,
    /// The parameters of the device.
    pub parameters: &'static [Parameter],
    /// Makes a device. Of two pairs with one name the later counts. The error names the pair and the accepted values.
    pub build: Build,
}

impl fmt::Debug for DeviceFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All devices, in the order in which lists show them.
pub const ALL: &[&DeviceFactory] =
    &[&null::FACTORY, &memory::FACTORY, &disk::FACTORY, &flash::FACTORY, &faults::FACTORY];

/// The device called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static DeviceFactory> {
    ALL.iter().copied().find(|f| f.name == name)
}

/// The device called `name`, or an error that lists all devices.
///
/// # Errors
/// [`DeviceError::Unknown`].
pub fn named(name: &str) -> Result<&'static DeviceFactory, DeviceError> {
    find(name).ok_or_else(|| {
        let accepted = Vec::from_iter(ALL.iter().map(|f| f.name)).join(", ");
        DeviceError::Unknown { name: name.into(), accepted }
    })
}

/// The device that `text` describes, in the form of its factory ([`DeviceFactory::form`]), for a machine like `host`.
///
/// # Errors
/// If there is no such device, it does not take its parameters or its argument, or too many devices are nested.
pub fn parse(text: &str, host: &MachineShape) -> Result<Device, DeviceError> {
    check_nesting(text)?;
    let end = text.find([',', ':']).unwrap_or(text.len());
    let factory = named(text[..end].trim())?;
    (factory.build)(&factory.describe(&text[end..])?, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: MachineShape = MachineShape { cpus: 2, nodes: 1 };

    fn refusal(text: &str) -> String {
        parse(text, &HOST).expect_err(text).to_string()
    }

    #[test]
    fn a_description_makes_the_device() {
        let device = parse("null, submit_queues=2,hw_queue_depth = 8", &HOST).expect("right");
        assert_eq!((device.shape.hw_queues, device.shape.hw_queue_depth), (2, 8));
        assert!(parse("null", &HOST).is_ok());
        assert!(parse("null:submit_queues=2,timeout=1:100:0:1", &HOST).is_ok());
        let device =
            parse("faults, error=0.1 : faults,late=1:memory, size=3", &HOST).expect("right");
        assert_eq!(device.shape.limits.capacity, 3 << 11);
        assert!(device.memory().is_some(), "the wrapped one is reached");
    }

    /// Each device around another one is made by a call within a call: 17,000 of them overflowed the stack, and a
    /// caller cannot catch that.
    #[test]
    fn devices_around_one_another_are_bounded() {
        let nested = |around: usize| format!("{}null", "faults, late=0.5 : ".repeat(around));
        let device = parse(&nested(8), &HOST).expect("eight are accepted");
        assert_eq!(device.queues::<()>().len(), usize::from(device.shape.hw_queues));
        for around in [9, 17_000, 1_000_000] {
            let text = refusal(&nested(around));
            assert!(text.ends_with("accepted: at most 8 around the innermost one"), "{text}");
            assert!(faults::Around::parse(&nested(around)).is_err(), "{around}");
        }
        assert!(faults::Around::parse(&nested(8)).is_ok());
    }

    #[test]
    fn what_is_wrong_with_a_description_is_said() {
        assert!(refusal("").contains("accepted: null"));
        assert!(refusal("zram").contains("no device 'zram'; accepted: null"));
        assert!(refusal("null,fast").contains("'fast' is no KEY=VALUE; accepted: null[,KEY"));
        assert!(refusal("faults").contains("DEVICE is missing; accepted: faults[,KEY=VALUE]..."));
        assert!(refusal("faults:zram").contains("no device 'zram'"));
        assert!(refusal("faults,error=2:null").contains("device faults: error=2 is not possible"));
        assert!(refusal("faults:null,fast=1").contains("device null: no parameter 'fast'"));
        assert!(refusal("null,fast=1").contains("device null: no parameter 'fast'; accepted:"));
    }
}

//! All devices by name; and [`Around`], faults around a device that is not in the registry.

use crate::basics::About;
pub use crate::basics::{Argument, Description, Pair};
use crate::faults::FaultsParams;
use crate::{Device, DeviceError, MachineShape, Model, Parameter};
use crate::{cloud, disk, faults, flash, memory, null};
use std::fmt;

/// Makes a device from its description, for a machine like `host`.
pub type Build = fn(given: &Description<'_>, host: &MachineShape) -> Result<Device, DeviceError>;

/// An entry of the registry. All code that offers devices by name iterates over these.
pub struct DeviceFactory {
    /// The name of the device, as after `--device`.
    pub name: &'static str,
    /// A one-line summary for lists.
    pub summary: &'static str,
    /// The kind of argument after a colon.
    pub argument: Argument,
    /// The parameters of the device.
    pub parameters: &'static [Parameter],
    /// Makes a device; if a name is repeated, the last value counts. The error names the pair and the accepted values.
    pub build: Build,
    about: About,
}

impl fmt::Debug for DeviceFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

impl DeviceFactory {
    const fn new(about: About, build: Build) -> Self {
        let About { name, summary, argument, parameters } = about;
        Self { name, summary, argument, parameters, build, about }
    }

    /// The form of the description, for messages and lists: `null[,KEY=VALUE]...`.
    #[must_use]
    pub fn form(&self) -> String {
        self.about.form()
    }
}

const NULL: DeviceFactory = DeviceFactory::new(null::ABOUT, |given, host| {
    Ok(Device::of(null::build(given, host)?, Model::Null))
});

const MEMORY: DeviceFactory = DeviceFactory::new(memory::ABOUT, |given, host| {
    let model = |(params, store)| Model::Memory(params, store);
    Ok(Device::of(memory::build(given, host)?, model))
});

const FAULTS: DeviceFactory = DeviceFactory::new(faults::ABOUT, |given, host| {
    let (params, notes) = faults::parameters(given)?;
    Ok(Device::around(params, notes, parse(given.argument, host)?))
});

const DISK: DeviceFactory = DeviceFactory::new(disk::ABOUT, |given, host| {
    Ok(Device::of(disk::build(given, host)?, Model::Disk))
});

const FLASH: DeviceFactory = DeviceFactory::new(flash::ABOUT, |given, host| {
    let model = |(params, drive)| Model::Flash(params, drive);
    Ok(Device::of(flash::build(given, host)?, model))
});

const CLOUD: DeviceFactory = DeviceFactory::new(cloud::ABOUT, |given, host| {
    Ok(Device::of(cloud::build(given, host)?, Model::Cloud))
});

/// All devices, in the order of lists. An entry here makes a device available, documented and tested.
pub const ALL: &[&DeviceFactory] = &[&NULL, &MEMORY, &DISK, &FLASH, &CLOUD, &FAULTS];

/// The pages of these devices.
const PAGES: &[(&str, &str)] = &[
    ("null", include_str!("../doc/null.md")),
    ("memory", include_str!("../doc/memory.md")),
    ("disk", include_str!("../doc/disk.md")),
    ("flash", include_str!("../doc/flash.md")),
    ("cloud", include_str!("../doc/cloud.md")),
    ("faults", include_str!("../doc/faults.md")),
];

/// The page that `blkmq doc NAME` prints, if there is such a device. It is not a field of [`DeviceFactory`], so that a
/// program that prints no pages does not contain them.
#[must_use]
pub fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(device, _)| *device == name).map(|(_, page)| *page)
}

/// The maximum number of devices around the innermost one. More are useless, and each takes stack space at creation and
/// for every request.
const MOST_AROUND: usize = 8;

/// Refuses a description with too many nested devices. Must be called before the inner device is made, because that
/// recurses. Reads no more of `text` than necessary.
///
/// # Errors
/// [`DeviceError::Nested`].
fn check_nesting(text: &str) -> Result<(), DeviceError> {
    let mut inside = text;
    for _ in 0..=MOST_AROUND {
        let end = inside.find([',', ':']).unwrap_or(inside.len());
        let factory = find(inside[..end].trim());
        let is_around = factory.is_some_and(|factory| factory.argument == Argument::Device);
        match inside.split_once(':') {
            Some((_, device)) if is_around => inside = device,
            _ => return Ok(()),
        }
    }
    Err(DeviceError::Nested { most: MOST_AROUND })
}

/// The device called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static DeviceFactory> {
    ALL.iter().copied().find(|f| f.name == name)
}

/// Makes the device that `text` describes, in the form of its factory ([`DeviceFactory::form`]), for a machine like
/// `host`.
///
/// # Errors
/// If there is no such device, it does not accept its parameters or its argument, or too many devices are nested.
pub fn parse(text: &str, host: &MachineShape) -> Result<Device, DeviceError> {
    check_nesting(text)?;
    let end = text.find([',', ':']).unwrap_or(text.len());
    let name = text[..end].trim();
    let accepted = || Vec::from_iter(ALL.iter().map(|f| f.name)).join(", ");
    let unknown = || DeviceError::Unknown { name: name.into(), accepted: accepted() };
    let factory = find(name).ok_or_else(unknown)?;
    (factory.build)(&factory.about.describe(&text[end..])?, host)
}

/// Faults around a device that has not been made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Around<'a> {
    /// The parameters of the faults.
    pub params: FaultsParams,
    /// Notes on the parameters.
    pub notes: Vec<String>,
    /// The description of the inner device.
    pub inside: &'a str,
}

impl<'a> Around<'a> {
    /// Parses the faults around the device that `text` describes. Returns `None` if `text` does not begin with faults.
    ///
    /// For devices that are not in the registry, which itself parses inner devices.
    ///
    /// # Errors
    /// If the parameters are invalid, there is no inner device, or too many faults are nested.
    pub fn parse(text: &'a str) -> Result<Option<Self>, DeviceError> {
        let end = text.find([',', ':']).unwrap_or(text.len());
        if text[..end].trim() != faults::ABOUT.name {
            return Ok(None);
        }
        check_nesting(text)?;
        let given = faults::ABOUT.describe(&text[end..])?;
        let (params, notes) = faults::parameters(&given)?;
        Ok(Some(Self { params, notes, inside: given.argument }))
    }
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

    /// Regression test: the hint `size=16m` was refused as "a whole number".
    #[test]
    fn sizes_and_times_take_units_as_everywhere_on_the_command_line() {
        let mib = |text| parse(text, &HOST).expect(text).shape.limits.capacity >> 11;
        for (text, expected) in [
            ("memory,size=1G", 1024),
            ("memory,size=16m,cache_size=1m", 16),
            ("memory,size=16", 16),
            ("null,gb=1t", 1 << 20),
            ("null,size=3m,completion_nsec=10us,irqmode=2,bs=4k", 3),
            ("disk,size=1g,seek_average_nsec=8ms,read_ahead=256k", 1024),
            ("flash,size=1g,read_ns=50us,page_size=16k,buffer_kib=1m", 1024),
            ("faults,late=0.5,late_nsec=1ms,timeout_nsec=2s:memory,size=2m", 2),
        ] {
            assert_eq!(mib(text), expected, "{text}");
        }
        assert!(refusal("memory,size=512k").contains("a whole number of MiB from 1 to"));
        assert!(refusal("null,completion_nsec=1k").contains("with a unit: 500ns, 10us, 5ms, 1s"));
    }

    /// Regression test: making a device around another recurses, so that 17,000 of them overflowed the stack, which a
    /// caller cannot catch.
    #[test]
    fn devices_around_one_another_are_bounded() {
        let nested = |around: usize| format!("{}null", "faults, late=0.5 : ".repeat(around));
        let device = parse(&nested(8), &HOST).expect("eight are accepted");
        assert_eq!(device.queues::<()>().len(), usize::from(device.shape.hw_queues));
        for around in [9, 17_000, 1_000_000] {
            let text = refusal(&nested(around));
            assert!(text.ends_with("accepted: at most 8 around the innermost one"), "{text}");
            assert!(Around::parse(&nested(around)).is_err(), "{around}");
        }
        assert!(Around::parse(&nested(8)).is_ok());
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

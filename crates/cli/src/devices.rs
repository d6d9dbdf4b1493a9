//! The devices of the command line: their list, the subset for simulations, and the properties that a run needs.

#[cfg(target_os = "linux")]
use crate::plan::PlacedFile;
use crate::plan::{DeviceChoice, Time};
use crate::report::model::DeviceKind;
use blkmq::core::RealDevice;
use blkmq::layer::Kind;
use blkmq::{Device, open_on};
use blkmq_device::{DeviceError, OccupancyLog, descriptions, registry};
use blkmq_terminal::UsageError;
#[cfg(target_os = "linux")]
use blkmq_uring::UringDevice;
use std::fs::File;
use std::io;

/// A device as shown in lists and help.
pub struct Offer {
    pub name: &'static str,
    pub summary: &'static str,
    /// The form of its description.
    pub form: String,
    /// The page.
    pub doc: &'static str,
    /// Whether the device exists outside this program.
    real: bool,
}

impl Offer {
    /// Returns whether the device can be used in this time.
    pub fn is_in(&self, time: Time) -> bool {
        !self.real || time == Time::Real
    }
}

/// Every device there is, in the order of lists.
pub fn offers() -> Vec<Offer> {
    let offer = |factory: &&registry::DeviceFactory| {
        let registry::DeviceFactory { name, summary, .. } = **factory;
        let doc = registry::page(name).expect("each device has a page");
        Offer { name, summary, form: factory.form(), doc, real: false }
    };
    let mut offers = Vec::from_iter(registry::ALL.iter().map(offer));
    let outside = |(kind, doc): (RealDevice, &'static str)| {
        let RealDevice { name, summary, .. } = kind;
        Offer { name, summary, form: kind.form(), doc, real: true }
    };
    #[cfg(target_os = "linux")]
    {
        use blkmq::{rbd, remote};
        use blkmq_uring as uring;
        let real = [
            (uring::URING, uring::URING_PAGE),
            (uring::THREADS, uring::THREADS_PAGE),
            (remote::NBD, remote::NBD_PAGE),
            (rbd::RBD, rbd::RBD_PAGE),
        ];
        offers.extend(real.map(outside));
    }
    offers.extend(Kind::ALL.map(|kind| outside((kind, Kind::page(kind.name)))));
    offers
}

/// The path of the file or block device that `text` describes, if it is one without other devices around it.
pub fn path_of(text: &str) -> Option<&str> {
    let file = ["uring:", "threads:"].into_iter().find_map(|name| text.strip_prefix(name))?;
    file.split(',').next()
}

/// Lists the devices for which `shown` returns true, for help pages: the form of each description, and its summary.
pub fn list(shown: impl Fn(&Offer) -> bool) -> String {
    let offers = offers().into_iter().filter(shown);
    offers.map(|Offer { form, summary, .. }| format!("  {form}\n      {summary}\n")).collect()
}

/// The kind under which reports list `device`.
pub fn kind(device: &Device) -> DeviceKind {
    match device {
        Device::Virtual(device) if device.memory().is_some() => DeviceKind::Memory,
        Device::Virtual(device) if device.is_model() => DeviceKind::Model,
        Device::Virtual(_) => DeviceKind::Null,
        Device::Stack(stack) => kind_of_stack(stack.device().legs()),
        _ => DeviceKind::File,
    }
}

/// The kind of a composed device: a file if it contains files and stores written data.
fn kind_of_stack(legs: &[Device]) -> DeviceKind {
    let has = |wanted| legs.iter().any(|leg| kind(leg) == wanted);
    let kinds = [DeviceKind::Null, DeviceKind::Model, DeviceKind::File];
    kinds.into_iter().find(|wanted| has(*wanted)).unwrap_or(DeviceKind::Memory)
}

/// The log of the device's busy parts, if there is one.
pub fn occupancy(device: &Device) -> Option<&OccupancyLog> {
    match device {
        Device::Virtual(device) => device.occupancy.as_ref(),
        _ => None,
    }
}

/// Returns whether the device stores written data.
fn keeps(device: &Device) -> bool {
    !matches!(kind(device), DeviceKind::Null | DeviceKind::Model)
}

/// Opens the device with this description, creating or extending a file if the description requests it.
///
/// # Errors
/// If there is no such device or a parameter is invalid; the message gives the accepted form.
pub fn open(text: &str, time: Time) -> Result<Device, UsageError> {
    match time {
        Time::Real => open_on(text, &time.machine()).map_err(|e| UsageError::new(e.to_string())),
        Time::Virtual { .. } => open_virtual(text, time).map(Device::Virtual),
    }
}

/// Opens a chosen device with all of its files, unless it is still open from the choice.
///
/// # Errors
/// See [`open`].
pub fn open_choice(choice: &DeviceChoice, time: Time) -> Result<Device, UsageError> {
    match choice.kept.take() {
        Some(device) => Ok(device),
        None if choice.is_filled => {
            begin_as_hole(choice).map_err(|e| UsageError::new(e.to_string()))?;
            open(&choice.text, time)
        }
        None if choice.files.is_empty() => open(&choice.text, time),
        None => joined(choice),
    }
}

/// Extends the file of `choice` to its size, so that opening it lays nothing out.
fn begin_as_hole(choice: &DeviceChoice) -> io::Result<()> {
    let path = path_of(&choice.text).expect("only a file begins as a hole");
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let is_short = file.metadata()?.len() < choice.size_bytes;
    if is_short { file.set_len(choice.size_bytes) } else { Ok(()) }
}

#[cfg(target_os = "linux")]
fn joined(choice: &DeviceChoice) -> Result<Device, UsageError> {
    let open = |file: &PlacedFile| {
        let device = UringDevice::described(&file.text);
        let device = device.unwrap_or_else(|| UringDevice::parse(&file.text));
        let device = device.map_err(|e| UsageError::new(e.to_string()).at(&*file.text))?;
        Ok((file.start, device))
    };
    let files = choice.files.iter().map(open).collect::<Result<Vec<_>, UsageError>>()?;
    Ok(Device::File(UringDevice::joined(files).into()))
}

#[cfg(not(target_os = "linux"))]
fn joined(choice: &DeviceChoice) -> Result<Device, UsageError> {
    open(&choice.text, Time::Real)
}

/// Opens a virtual device, which knows in advance when each request will complete.
///
/// # Errors
/// See [`open`]; also for a real device.
pub fn open_virtual(text: &str, time: Time) -> Result<blkmq_device::Device, UsageError> {
    registry::parse(text, &time.machine()).map_err(|e| match e {
        DeviceError::Unknown { name, accepted } if is_real(&name) => UsageError::new(format!(
            "device {name}: files and disks are as fast as they are, which no virtual time tells; accepted by \
             blkmq {}: {accepted}",
            time.command()
        )),
        e => UsageError::new(e.to_string()),
    })
}

fn is_real(name: &str) -> bool {
    offers().iter().any(|offer| offer.name == name && offer.real)
}

/// Opens the devices of a list of descriptions. With `readonly`, real devices are opened read-only, and no file is laid
/// out.
///
/// # Errors
/// If a device cannot be opened; the message gives the accepted form.
pub fn choose_all(list: &str, time: Time, readonly: bool) -> Result<Vec<DeviceChoice>, UsageError> {
    let one = |text: &str| {
        let text = if readonly { reading(text) } else { text.to_owned() };
        choose(&text, time)
    };
    descriptions(list).into_iter().map(one).collect()
}

/// The description `text` with real devices, also inside a composed device, made read-only.
fn reading(text: &str) -> String {
    let is_layer = |name: &str| Kind::ALL.iter().any(|layer| layer.name == name);
    let name = text.split([',', ':']).next().unwrap_or_default().trim();
    if let Some((head, inside)) = text.split_once(':')
        && name == "faults"
    {
        return format!("{head}:{}", reading(inside.trim()));
    }
    if is_layer(name)
        && let Some((head, _)) = text.split_once(':')
        && let Some(Ok((_, legs))) = Kind::parse(text)
    {
        let legs = legs.into_iter().map(|leg| format!("[{}]", reading(leg)));
        return format!("{head}:{}", legs.collect::<String>());
    }
    let is = |name: &str| text.starts_with(name) || text.contains(&format!(":{name}"));
    let is_real = |offer: &Offer| offer.real && !is_layer(offer.name) && is(offer.name);
    let readonly = if offers().iter().any(is_real) { ",readonly=1" } else { "" };
    format!("{text}{readonly}")
}

/// The device of this description.
///
/// # Errors
/// As [`open`].
pub fn choose(text: &str, time: Time) -> Result<DeviceChoice, UsageError> {
    let device = open(text, time)?;
    let name = text.split([',', ':']).next().unwrap_or_default();
    let choice = DeviceChoice {
        name: name.trim().into(),
        text: text.into(),
        chosen_by: format!("--device {text}"),
        keeps: keeps(&device),
        size_bytes: device.bytes(),
        notes: device.notes().to_vec(),
        ..DeviceChoice::default()
    };
    choice.kept.keep(device);
    Ok(choice)
}

/// The names of all devices that store written data, for messages.
pub fn keeping() -> String {
    let keeping = |offer: &Offer| open(offer.name, Time::Real).map_or(offer.real, |it| keeps(&it));
    let names = offers().into_iter().filter(keeping).map(|offer| offer.name);
    Vec::from_iter(names).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn virtual_names() -> String {
        Vec::from_iter(registry::ALL.iter().map(|factory| factory.name)).join(", ")
    }

    #[test]
    fn a_choice_knows_its_size_and_how_to_say_itself() {
        let text = "null,submit_queues=1,size=1024";
        let choice = choose(text, Time::Real).expect("null_blk's own parameters");
        assert_eq!((choice.size_bytes, choice.name.as_str()), (1 << 30, "null"));
        assert_eq!(choice.text, text);
    }

    #[test]
    fn a_model_is_one_also_behind_faults_and_keeps_nothing() {
        for text in ["disk", "faults,late=0.1:disk,preset=sas15k"] {
            let device = open(text, Time::Real).expect("a device of the registry");
            assert_eq!((kind(&device), keeps(&device)), (DeviceKind::Model, false), "{text}");
        }
    }

    #[test]
    fn what_is_only_read_is_opened_so_under_layers_too() {
        for (text, expected) in [
            ("memory,size=1", "memory,size=1"),
            ("uring:/a", "uring:/a,readonly=1"),
            ("faults,late=0.1:threads:/a", "faults,late=0.1:threads:/a,readonly=1"),
            (
                "faults:stripe,chunk=4k:[uring:/a][concat:[memory][uring:/b,direct=0]]",
                "faults:stripe,chunk=4k:[uring:/a,readonly=1][concat:[memory][uring:/b,direct=0,readonly=1]]",
            ),
        ] {
            assert_eq!(reading(text), expected);
        }
    }

    #[test]
    fn a_device_made_of_others_is_as_they_are() {
        for (text, expected) in [
            ("stripe:[memory,size=1][memory,size=1]", DeviceKind::Memory),
            ("concat:[memory,size=1][null]", DeviceKind::Null),
            ("concat:[memory,size=1][disk]", DeviceKind::Model),
        ] {
            assert_eq!(kind(&open(text, Time::Real).expect("devices that suit")), expected);
        }
    }

    #[test]
    fn a_list_may_hold_devices_around_devices() {
        let list = "null,size=1,faults,late=0.5,seed=7:memory,size=2,null:size=3";
        let choices = choose_all(list, Time::Real, false).expect("three devices");
        let texts = Vec::from_iter(choices.iter().map(|choice| choice.text.as_str()));
        assert_eq!(texts, ["null,size=1", "faults,late=0.5,seed=7:memory,size=2", "null:size=3"]);
        let sizes = Vec::from_iter(choices.iter().map(|choice| choice.size_bytes >> 20));
        assert_eq!(sizes, [1, 2, 3]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn faults_stand_around_files_as_around_others() {
        let message = |text| choose(text, Time::Real).expect_err("not possible").to_string();
        let missing = "faults,late=0.1:faults,error=0.5:uring:/nowhere/at/all";
        assert!(message(missing).contains("/nowhere/at/all"), "{}", message(missing));
        assert!(message("faults,error=2:uring:/x").contains("error=2 is not possible"));
        assert!(
            message("faults,error=0.1:zram")
                .contains(&format!("accepted: {}, uring", virtual_names()))
        );
        assert!(message("faults:uring").contains("no path"), "{}", message("faults:uring"));
    }

    #[test]
    fn in_virtual_time_there_are_no_real_devices() {
        let time = Time::Virtual { seed: 0 };
        let message = |text| choose(text, time).expect_err("refused").to_string();
        assert!(choose("faults,error=0.1:memory,size=1", time).is_ok());
        assert!(
            message("zram").contains(&format!("no device 'zram'; accepted: {}", virtual_names()))
        );
        #[cfg(target_os = "linux")]
        for text in ["uring:/dev/null", "faults,error=0.1:uring:/dev/null", "rbd:pool/image"] {
            let message = message(text);
            assert!(
                message.contains(&format!("accepted by blkmq sim: {}", virtual_names())),
                "{message}"
            );
        }
    }

    #[test]
    fn unknown_devices_and_parameters_list_the_known_ones() {
        let message = choose("zram", Time::Real).expect_err("no such device").to_string();
        assert!(message.contains("accepted: null"), "{message}");
        let message =
            choose("null,depth=1", Time::Real).expect_err("no such parameter").to_string();
        assert!(message.contains("hw_queue_depth"), "{message}");
    }
}

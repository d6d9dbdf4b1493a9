//! Where the command line meets devices: virtual ones from their registry, and files through io_uring.

use crate::error::UsageError;
use crate::plan::{DeviceChoice, Time};
use crate::report::model::DeviceKind;
use blkmq_core::SECTOR_SIZE;
#[cfg(target_os = "linux")]
use blkmq_device::faults::{Around, FaultsParams, Faulty};
use blkmq_device::{Device, DeviceError, OccupancyLog, descriptions, registry};
#[cfg(target_os = "linux")]
use blkmq_engine::Config;
use blkmq_engine::DeviceShape;
#[cfg(target_os = "linux")]
use blkmq_uring::{IoBuf, UringDevice};

/// A device, as lists and help show it.
pub struct Offer {
    pub name: &'static str,
    pub summary: &'static str,
    /// How it is described.
    pub form: String,
    /// Its page.
    pub doc: &'static str,
    /// It exists outside this program.
    real: bool,
}

impl Offer {
    /// Can it be used in this time?
    pub fn is_in(&self, time: Time) -> bool {
        !self.real || time == Time::Real
    }
}

/// Every device there is, in the order of lists.
pub fn offers() -> Vec<Offer> {
    let offer = |factory: &&registry::DeviceFactory| {
        let registry::DeviceFactory { name, summary, doc, .. } = **factory;
        Offer { name, summary, form: factory.form(), doc, real: false }
    };
    let mut offers = Vec::from_iter(registry::ALL.iter().map(offer));
    #[cfg(target_os = "linux")]
    {
        let blkmq_uring::UringFactory { name, summary, doc, .. } = blkmq_uring::FACTORY;
        let form = format!("{name}:PATH[,KEY=VALUE]...");
        offers.push(Offer { name, summary, form, doc, real: true });
    }
    offers
}

/// A device, ready to be given to queues.
pub enum Opened {
    Virtual(Device),
    #[cfg(target_os = "linux")]
    File(OpenFile),
}

/// A file or block device, and the faults around it, the outermost first.
#[cfg(target_os = "linux")]
pub struct OpenFile {
    pub device: UringDevice,
    faults: Vec<FaultsParams>,
    shape: DeviceShape,
    notes: Vec<String>,
}

#[cfg(target_os = "linux")]
impl OpenFile {
    /// `None` if `text` is about something else.
    fn open(text: &str) -> Result<Option<Self>, UsageError> {
        let refuse = |e: DeviceError| UsageError::new(e.to_string());
        let (mut faults, mut notes, mut inside) = (Vec::new(), Vec::new(), text.trim());
        while let Some(around) = Around::parse(inside).map_err(refuse)? {
            faults.push(around.params);
            notes.extend(around.notes);
            inside = around.inside.trim();
        }
        let Some(file) = inside.strip_prefix(blkmq_uring::FACTORY.name) else { return Ok(None) };
        if !(file.is_empty() || file.starts_with([':', ','])) {
            return Ok(None);
        }
        let file = file.strip_prefix(':').unwrap_or_default();
        let device = UringDevice::parse(file).map_err(|e| UsageError::new(e.to_string()))?;
        notes.extend(device.notes.iter().cloned());
        let shape = faults.iter().rev().fold(device.shape, |shape, params| params.shape(&shape));
        Ok(Some(Self { device, faults, shape, notes }))
    }

    /// The configuration of a queue around it, everything but the device at its default.
    ///
    /// # Errors
    /// If the rings cannot be made.
    pub fn config<P: IoBuf>(&self) -> Result<Config<P>, UsageError> {
        let queues = self.device.queues().map_err(|e| UsageError::new(e.to_string()))?;
        // All that faults need of a shape they leave as it is.
        let around = |queues, params| Faulty::wrap(params, &self.shape, queues);
        Ok(Config::new(self.shape, self.faults.iter().rev().fold(queues, around)))
    }
}

impl Opened {
    pub fn shape(&self) -> &DeviceShape {
        match self {
            Self::Virtual(device) => &device.shape,
            #[cfg(target_os = "linux")]
            Self::File(file) => &file.shape,
        }
    }

    /// Where it says what its parts are busy with, if it does.
    pub fn occupancy(&self) -> Option<&OccupancyLog> {
        match self {
            Self::Virtual(device) => device.occupancy.as_ref(),
            #[cfg(target_os = "linux")]
            Self::File(_) => None,
        }
    }

    pub fn kind(&self) -> DeviceKind {
        match self {
            Self::Virtual(device) if device.memory().is_some() => DeviceKind::Memory,
            Self::Virtual(device) if device.is_model() => DeviceKind::Model,
            Self::Virtual(_) => DeviceKind::Null,
            #[cfg(target_os = "linux")]
            Self::File(_) => DeviceKind::File,
        }
    }

    /// What the device had to say about its parameters.
    pub fn into_notes(self) -> Vec<String> {
        match self {
            Self::Virtual(device) => device.notes,
            #[cfg(target_os = "linux")]
            Self::File(file) => file.notes,
        }
    }

    /// Is what is written there later?
    fn keeps(&self) -> bool {
        !matches!(self.kind(), DeviceKind::Null | DeviceKind::Model)
    }
}

/// Opens the device of this description. A file is created or extended if that is asked for.
///
/// # Errors
/// If there is no such device or a parameter cannot be; the message says what is accepted.
pub fn open(text: &str, time: Time) -> Result<Opened, UsageError> {
    if time != Time::Real {
        return open_virtual(text, time).map(Opened::Virtual);
    }
    #[cfg(target_os = "linux")]
    if let Some(file) = OpenFile::open(text)? {
        return Ok(Opened::File(file));
    }
    registry::parse(text, &time.machine()).map(Opened::Virtual).map_err(|e| {
        let e = match e {
            DeviceError::Unknown { name, .. } => {
                let accepted = Vec::from_iter(offers().iter().map(|offer| offer.name)).join(", ");
                DeviceError::Unknown { name, accepted }
            }
            e => e,
        };
        UsageError::new(e.to_string())
    })
}

/// Opens a device that does not exist outside this program, which knows when it will be done.
///
/// # Errors
/// As [`open`]; a real device is none of them.
pub fn open_virtual(text: &str, time: Time) -> Result<Device, UsageError> {
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

/// The devices of a list of descriptions.
///
/// # Errors
/// If one is not possible; the message says what is accepted.
pub fn choose_all(list: &str, time: Time) -> Result<Vec<DeviceChoice>, UsageError> {
    descriptions(list).into_iter().map(|text| choose(text, time)).collect()
}

/// The device of this description.
///
/// # Errors
/// As [`open`].
pub fn choose(text: &str, time: Time) -> Result<DeviceChoice, UsageError> {
    let device = open(text, time)?;
    let name = text.split([',', ':']).next().unwrap_or_default();
    Ok(DeviceChoice {
        name: name.trim().into(),
        text: text.into(),
        keeps: device.keeps(),
        size_bytes: device.shape().limits.capacity.saturating_mul(SECTOR_SIZE.into()),
        notes: device.into_notes(),
    })
}

/// The names of all devices that keep what is written, for messages.
pub fn keeping() -> String {
    let keeps = |offer: &Offer| {
        open(offer.name, Time::Real).map_or(offer.form.contains("PATH"), |it| it.keeps())
    };
    let names = offers().into_iter().filter(keeps).map(|offer| offer.name);
    Vec::from_iter(names).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!((device.kind(), device.keeps()), (DeviceKind::Model, false), "{text}");
        }
    }

    #[test]
    fn a_list_may_hold_devices_around_devices() {
        let list = "null,size=1,faults,late=0.5,seed=7:memory,size=2,null:size=3";
        let choices = choose_all(list, Time::Real).expect("three devices");
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
                .contains("accepted: null, memory, disk, flash, faults, uring")
        );
        assert!(message("faults:uring").contains("no path"), "{}", message("faults:uring"));
    }

    #[test]
    fn in_virtual_time_there_are_no_real_devices() {
        let time = Time::Virtual { seed: 0 };
        let message = |text| choose(text, time).expect_err("refused").to_string();
        assert!(choose("faults,error=0.1:memory,size=1", time).is_ok());
        assert!(
            message("zram")
                .contains("no device 'zram'; accepted: null, memory, disk, flash, faults")
        );
        #[cfg(target_os = "linux")]
        for text in ["uring:/dev/null", "faults,error=0.1:uring:/dev/null"] {
            let message = message(text);
            assert!(
                message.contains("accepted by blkmq sim: null, memory, disk, flash, faults"),
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

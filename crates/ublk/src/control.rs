//! [`Device`]: a device of ublk, from its making to its end.

use crate::queues::control;
use crate::wire::{CMD_IOCTL_ENCODE, Control, Info, MOST_DEPTH, Params};
use std::fs::{File, OpenOptions};
use std::io;

const CONTROL: &str = "/dev/ublk-control";
/// A device of this number exists.
const EEXIST: i32 = 17;
/// Another process serves it: a character device is opened once.
const EBUSY: i32 = 16;

/// The reason why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not there.
    #[error(
        "{CONTROL} is missing; load the driver with 'modprobe ublk_drv', on a kernel built with CONFIG_BLK_DEV_UBLK"
    )]
    NoDriver,
    /// The process may not use the driver.
    #[error("{CONTROL} may not be opened; ublk needs root, or CAP_SYS_ADMIN")]
    NoRights,
    /// The kernel does not say what it can do.
    #[error("this kernel's ublk has no GET_FEATURES; Linux 6.5 and later have")]
    Old,
    /// The kernel lacks features.
    #[error("this kernel's ublk has the features {has:#x}, and not {wanted:#x}")]
    Lacks {
        /// Its features.
        has: u64,
        /// Those that are missing.
        wanted: u64,
    },
    /// Another process serves a device of this number.
    #[error("/dev/ublkb{0} is served by another process; accepted: a number that is free")]
    Taken(u32),
    /// There can be no device of this kind.
    #[error("{queues} queues with {depth} tags; accepted: from 1, and up to {MOST_DEPTH} tags")]
    Impossible {
        /// Queues.
        queues: u16,
        /// Tags of each.
        depth: u16,
    },
    /// The kernel has changed a setting that has to be as it is.
    #[error("the kernel has changed {0}")]
    Changed(String),
    /// A command was refused.
    #[error("{} of /dev/ublkb{device}: {error}", .command.name())]
    Refused {
        /// The command.
        command: Control,
        /// The number of the device.
        device: u32,
        /// The reason.
        error: io::Error,
    },
    /// A file cannot be opened.
    #[error("{0}: {1}")]
    File(String, io::Error),
}

/// A device that was added.
#[derive(Debug)]
pub struct Device {
    control: File,
    info: Info,
    /// A device of the same number was deleted, which no process served.
    has_replaced: bool,
}

impl Device {
    /// Makes the device `/dev/ublkbN`, which has `queues` at most, one for each processor, and reads back whatever the kernel has
    /// made of the settings. A device of the same number that no process serves any more is deleted before.
    ///
    /// # Errors
    /// If there is no driver, or it refuses.
    pub fn add(wanted: Info, params: &Params) -> Result<Self, UblkError> {
        let Info { queues, depth, device, .. } = wanted;
        if queues == 0 || depth == 0 || depth > MOST_DEPTH {
            return Err(UblkError::Impossible { queues, depth });
        }
        let control = open_control()?;
        check_features(&control)?;
        let wanted = Info { pid: -1, flags: CMD_IOCTL_ENCODE, ..wanted };
        let mut bytes = wanted.to_bytes();
        let mut has_replaced = false;
        if let Err(error) = send(&control, Control::Add, device, &mut bytes, 0) {
            if errno(&error) != Some(EEXIST) {
                return Err(error);
            }
            // It opens only once: this fails while another process serves it.
            match open(&format!("/dev/ublkc{device}")) {
                Err(UblkError::File(_, error)) if error.raw_os_error() == Some(EBUSY) => {
                    return Err(UblkError::Taken(device));
                }
                opened => drop(opened?),
            }
            send(&control, Control::Delete, device, &mut [], 0)?;
            bytes = wanted.to_bytes();
            send(&control, Control::Add, device, &mut bytes, 0)?;
            has_replaced = true;
        }
        let info = Info::from_bytes(&bytes);
        let device = Self { control, info, has_replaced };
        device.describe(wanted, params).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = device.delete();
        })?;
        Ok(device)
    }

    /// Sets the parameters, and compares what the kernel has taken.
    fn describe(&self, wanted: Info, params: &Params) -> Result<(), UblkError> {
        let Info { depth, max_bytes, flags, queues, .. } = self.info;
        let is_kept = depth == wanted.depth
            && max_bytes == wanted.max_bytes
            && flags & wanted.flags == wanted.flags
            && (1..=wanted.queues).contains(&queues);
        if !is_kept {
            let text = format!("the description of a device: {wanted:?} became {:?}", self.info);
            return Err(UblkError::Changed(text));
        }
        self.send(Control::SetParams, &mut params.to_bytes(), 0)?;
        // The kernel writes as many bytes as the head says.
        let mut bytes = Params::default().to_bytes();
        self.send(Control::GetParams, &mut bytes, 0)?;
        let taken = Params::from_bytes(&bytes);
        if taken == *params {
            return Ok(());
        }
        Err(UblkError::Changed(format!("the parameters of a device: {params:?} became {taken:?}")))
    }

    /// The description, as the kernel has it.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns whether a device of the same number was deleted, which a process had left behind.
    #[must_use]
    pub fn has_replaced(&self) -> bool {
        self.has_replaced
    }

    /// Opens the character device, whose queues are served by the thread that [fetches](crate::queues::Queues::fetch) them. It can
    /// be open once.
    ///
    /// # Errors
    /// If it is not there, or open.
    pub fn open(&self) -> Result<File, UblkError> {
        open(&format!("/dev/ublkc{}", self.info.device))
    }

    /// Starts the device: the block device appears. Waits until every tag was fetched and, in kernels before 6.19, until the
    /// partitions were read, so that another thread has to serve.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(&self) -> Result<(), UblkError> {
        self.send(Control::Start, &mut [], std::process::id().into())
    }

    /// Stops the device: the block device disappears. Waits for its requests, which another thread has to serve.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<(), UblkError> {
        self.send(Control::Stop, &mut [], 0)
    }

    /// Deletes the device. Waits until nothing refers to it, the file of [`open`](Self::open) included.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn delete(&self) -> Result<(), UblkError> {
        self.send(Control::Delete, &mut [], 0)
    }

    fn send(&self, command: Control, bytes: &mut [u8], data: u64) -> Result<(), UblkError> {
        send(&self.control, command, self.info.device, bytes, data)
    }
}

fn send(
    file: &File,
    command: Control,
    device: u32,
    bytes: &mut [u8],
    data: u64,
) -> Result<(), UblkError> {
    let result = match control(file, command, device, bytes, data) {
        Ok(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    result.map_err(|error| UblkError::Refused { command, device, error })
}

fn errno(error: &UblkError) -> Option<i32> {
    match error {
        UblkError::Refused { error, .. } => error.raw_os_error(),
        _ => None,
    }
}

fn open(path: &str) -> Result<File, UblkError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|error| UblkError::File(path.to_owned(), error))
}

fn open_control() -> Result<File, UblkError> {
    open(CONTROL).map_err(|error| match error {
        UblkError::File(path, error) => refused(path, error),
        other => other,
    })
}

/// The reason why the driver cannot be reached.
fn refused(path: String, error: io::Error) -> UblkError {
    use io::ErrorKind as K;
    match error.kind() {
        K::NotFound => UblkError::NoDriver,
        K::PermissionDenied => UblkError::NoRights,
        // A node without a driver behind it.
        _ if error.raw_os_error().is_some_and(|it| it == 6 || it == 19) => UblkError::NoDriver,
        _ => UblkError::File(path, error),
    }
}

fn check_features(control: &File) -> Result<(), UblkError> {
    let mut bytes = [0; 8];
    send(control, Control::GetFeatures, u32::MAX, &mut bytes, 0).map_err(|_| UblkError::Old)?;
    lacks(u64::from_ne_bytes(bytes)).map_or(Ok(()), Err)
}

fn lacks(has: u64) -> Option<UblkError> {
    let wanted = CMD_IOCTL_ENCODE & !has;
    (wanted != 0).then_some(UblkError::Lacks { has, wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_missing() {
        let text = |kind: io::ErrorKind| refused(CONTROL.to_owned(), kind.into()).to_string();
        assert!(text(io::ErrorKind::NotFound).contains("modprobe ublk_drv"));
        assert!(text(io::ErrorKind::PermissionDenied).contains("CAP_SYS_ADMIN"));
        let gone = refused(CONTROL.to_owned(), io::Error::from_raw_os_error(19));
        assert!(matches!(gone, UblkError::NoDriver), "{gone}");
        let busy = refused(CONTROL.to_owned(), io::Error::from_raw_os_error(16)).to_string();
        assert!(busy.starts_with("/dev/ublk-control: "), "{busy}");
    }

    #[test]
    fn a_kernel_without_a_feature_is_named() {
        assert!(lacks(0x1fe).is_none());
        let text = lacks(0x1be).expect("it lacks one").to_string();
        assert_eq!(text, "this kernel's ublk has the features 0x1be, and not 0x40");
    }

    #[test]
    fn a_device_has_queues_and_tags() {
        for (queues, depth) in [(0, 1), (1, 0), (1, 4097)] {
            let wanted = Info { queues, depth, ..Info::default() };
            let error = Device::add(wanted, &Params::default()).expect_err("it is impossible");
            assert!(matches!(error, UblkError::Impossible { .. }), "{error}");
        }
    }
}

//! [`Device`]: a ublk device, from its creation to its deletion.

use crate::queues::control;
use crate::wire::{
    CMD_IOCTL_ENCODE, Control, Info, MOST_DEPTH, Params, STATE_DEAD, STATE_LIVE, UPDATE_SIZE,
    USER_RECOVERY, USER_RECOVERY_REISSUE,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

const CONTROL: &str = "/dev/ublk-control";
/// A device with this number exists.
const EEXIST: i32 = 17;
/// Another process serves the device: its character device can be open only once.
const EBUSY: i32 = 16;
/// The kernel has no queue to recover.
const EINVAL: i32 = 22;
/// The features requested for each device. All kernels from 6.3 on have them.
const FEATURES: u64 = CMD_IOCTL_ENCODE | USER_RECOVERY | USER_RECOVERY_REISSUE;
/// The number of checks on a device whose process has ended, while the kernel cleans up, and the pause between two
/// checks.
const LOOKS: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The reason why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not loaded.
    #[error(
        "{CONTROL} is missing; load the driver with 'modprobe ublk_drv', on a kernel built with CONFIG_BLK_DEV_UBLK"
    )]
    NoDriver,
    /// The process has no permission to use the driver.
    #[error("{CONTROL} may not be opened; ublk needs root, or CAP_SYS_ADMIN")]
    NoRights,
    /// The kernel does not report its features.
    #[error("this kernel's ublk has no GET_FEATURES; Linux 6.5 and later have")]
    Old,
    /// The kernel lacks features.
    #[error("this kernel's ublk has the features {has:#x}, and not {wanted:#x}")]
    Lacks {
        /// The features that the kernel has.
        has: u64,
        /// The missing features.
        wanted: u64,
    },
    /// Another process serves the device with this number.
    #[error("/dev/ublkb{0} is served by another process; accepted: a number that is free")]
    Taken(u32),
    /// No device can have these dimensions.
    #[error("{queues} queues with {depth} tags; accepted: from 1, and up to {MOST_DEPTH} tags")]
    Impossible {
        /// The number of queues.
        queues: u16,
        /// The tags of each queue.
        depth: u16,
    },
    /// The kernel has changed a setting that must stay as requested.
    #[error("the kernel has changed {0}")]
    Changed(String),
    /// A command was refused.
    #[error("{} of /dev/ublkb{device}: {error}", .command.name())]
    Refused {
        /// The command.
        command: Control,
        /// The device number.
        device: u32,
        /// The reason.
        error: io::Error,
    },
    /// A file cannot be opened.
    #[error("{0}: {1}")]
    File(String, io::Error),
}

/// The history of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The device number was free.
    New,
    /// An existing device that no process served was deleted: it had stopped, or had other settings.
    Replaced,
    /// A process ended without stopping the device. Its users wait for their requests.
    Recovered,
}

/// A device that was added or recovered.
#[derive(Debug)]
pub struct Device {
    control: File,
    info: Info,
    origin: Origin,
}

impl Device {
    /// Creates the device `/dev/ublkbN`, with one queue for each processor but at most `wanted.queues`, and reads the
    /// settings back from the kernel. If a process has left a device with this number behind, it is recovered if its
    /// settings are the same, and replaced otherwise. Waits up to five seconds for the end of that process.
    ///
    /// # Errors
    /// If the driver is missing or refuses, or another process serves the device with this number.
    pub fn add(wanted: Info, params: &Params) -> Result<Self, UblkError> {
        let Info { queues, depth, device, .. } = wanted;
        if queues == 0 || depth == 0 || depth > MOST_DEPTH {
            return Err(UblkError::Impossible { queues, depth });
        }
        let (control, features) = driver()?;
        let wanted = Info { pid: -1, flags: FEATURES, ..wanted };
        // A recovered device may lack `UPDATE_SIZE`.
        let asked = Info { flags: FEATURES | features & UPDATE_SIZE, ..wanted };
        let (mut control, mut origin, mut bytes) = (control, Origin::New, asked.to_bytes());
        let mut added = send(&control, Control::Add, device, &mut bytes, 0);
        if added.as_ref().err().and_then(errno) == Some(EEXIST) {
            let info = left_behind(&control, device)?;
            let left = Self { control, info, origin: Origin::Recovered };
            if info.state != STATE_DEAD && left.compare(wanted, params).is_ok() {
                return Ok(left);
            }
            left.remove()?;
            (control, origin, bytes) = (left.control, Origin::Replaced, asked.to_bytes());
            added = send(&control, Control::Add, device, &mut bytes, 0);
        }
        added?;
        let device = Self { control, info: Info::from_bytes(&bytes), origin };
        device.describe(wanted, params).inspect_err(|_| {
            // The first error is the one to report.
            let _ = device.delete();
        })?;
        Ok(device)
    }

    /// Deletes a device that no process serves. Its users get errors.
    fn remove(&self) -> Result<(), UblkError> {
        let Info { device, state, .. } = self.info;
        if state == STATE_DEAD {
            // The device can be open only once: this fails while another process prepares to serve it.
            match open(&format!("/dev/ublkc{device}")) {
                Err(UblkError::File(_, error)) if error.raw_os_error() == Some(EBUSY) => {
                    return Err(UblkError::Taken(device));
                }
                opened => drop(opened?),
            }
        }
        self.delete()
    }

    /// Sets the parameters, and compares them with those that the kernel has accepted.
    fn describe(&self, wanted: Info, params: &Params) -> Result<(), UblkError> {
        self.send(Control::SetParams, &mut params.to_bytes(), 0)?;
        self.compare(wanted, params)
    }

    /// Compares the device with the settings requested.
    fn compare(&self, wanted: Info, params: &Params) -> Result<(), UblkError> {
        if !self.info.keeps(&wanted) {
            let text = format!("the description of a device: {wanted:?} became {:?}", self.info);
            return Err(UblkError::Changed(text));
        }
        // The kernel writes as many bytes as the head says.
        let mut bytes = Params::default().to_bytes();
        self.send(Control::GetParams, &mut bytes, 0)?;
        let taken = Params::from_bytes(&bytes);
        if taken == *params {
            return Ok(());
        }
        Err(UblkError::Changed(format!("the parameters of a device: {params:?} became {taken:?}")))
    }

    /// The description of the device, as the kernel reports it.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The history of the device.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Opens the character device, which can be open only once. The thread that [fetches](crate::queues::Queues::fetch)
    /// the queues serves them. A device left behind can be recovered again unless a process ends between this call and
    /// the fetching of every tag: the kernel does not recover half-fetched devices.
    ///
    /// # Errors
    /// If the device does not exist, or is open already.
    pub fn open(&self) -> Result<File, UblkError> {
        if self.origin == Origin::Recovered {
            let result = retry(|| self.send(Control::StartRecovery, &mut [], 0));
            // EINVAL: recovery was already begun by a process that ended before it fetched a tag.
            if result.as_ref().err().and_then(errno) != Some(EINVAL) {
                result?;
            }
        }
        open(&format!("/dev/ublkc{}", self.info.device))
    }

    /// Starts the device: the block device appears, or gets its requests back. Waits until every tag has been fetched
    /// and, in kernels before 6.19, until the partitions have been read. So another thread has to serve the queues.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(&self) -> Result<(), UblkError> {
        let command = match self.origin {
            Origin::New | Origin::Replaced => Control::Start,
            Origin::Recovered => Control::EndRecovery,
        };
        self.send(command, &mut [], std::process::id().into())
    }

    /// Changes the size of the block device, in sectors, which takes effect immediately. Returns false if the device
    /// lacks the feature.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resize(&self, sectors: u64) -> Result<bool, UblkError> {
        if self.info.flags & UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.send(Control::UpdateSize, &mut [], sectors).map(|()| true)
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

    /// Gives up a device that was not started: a new device is deleted, and a recovered one is left for the next
    /// process. Its [file](Self::open) must be closed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_up(&self) -> Result<(), UblkError> {
        match self.origin {
            Origin::New | Origin::Replaced => self.delete(),
            Origin::Recovered => Ok(()),
        }
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

/// The description of a device whose process has ended, once the kernel has noticed its end.
fn left_behind(control: &File, device: u32) -> Result<Info, UblkError> {
    for _ in 0..LOOKS {
        let mut bytes = Info::default().to_bytes();
        send(control, Control::GetInfo, device, &mut bytes, 0)?;
        let info = Info::from_bytes(&bytes);
        if info.state != STATE_LIVE {
            return Ok(info);
        }
        // In a container the previous server may have had the same pid as this process.
        let is_other = u32::try_from(info.pid).is_ok_and(|pid| pid != std::process::id());
        if is_other && Path::new(&format!("/proc/{}", info.pid)).exists() {
            break;
        }
        std::thread::park_timeout(PAUSE);
    }
    Err(UblkError::Taken(device))
}

/// Repeats a command while the kernel cleans up after a process.
fn retry(mut command: impl FnMut() -> Result<(), UblkError>) -> Result<(), UblkError> {
    let mut result = command();
    for _ in 1..LOOKS {
        if result.as_ref().err().and_then(errno) != Some(EBUSY) {
            break;
        }
        std::thread::park_timeout(PAUSE);
        result = command();
    }
    result
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

/// Checks that devices can be created: the driver is loaded, this process may use it, and it has the features needed.
/// Changes nothing.
///
/// # Errors
/// Names the first missing prerequisite.
pub fn check_driver() -> Result<(), UblkError> {
    driver().map(drop)
}

/// Opens the control file of the driver, and returns its features.
fn driver() -> Result<(File, u64), UblkError> {
    let control = open(CONTROL).map_err(|error| match error {
        UblkError::File(path, error) => refused(path, error),
        other => other,
    })?;
    let mut bytes = [0; 8];
    send(&control, Control::GetFeatures, u32::MAX, &mut bytes, 0).map_err(|_| UblkError::Old)?;
    let has = u64::from_ne_bytes(bytes);
    lacks(has).map_or(Ok((control, has)), Err)
}

/// The reason why the driver cannot be opened.
fn refused(path: String, error: io::Error) -> UblkError {
    use io::ErrorKind as K;
    match error.kind() {
        K::NotFound => UblkError::NoDriver,
        K::PermissionDenied => UblkError::NoRights,
        // ENXIO or ENODEV: a device node without a driver.
        _ if error.raw_os_error().is_some_and(|it| it == 6 || it == 19) => UblkError::NoDriver,
        _ => UblkError::File(path, error),
    }
}

fn lacks(has: u64) -> Option<UblkError> {
    let wanted = FEATURES & !has;
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
        let text = lacks(0x1ae).expect("it lacks two").to_string();
        assert_eq!(text, "this kernel's ublk has the features 0x1ae, and not 0x50");
    }

    #[test]
    fn a_command_is_repeated_while_the_kernel_is_busy() {
        let refused = |number| UblkError::Refused {
            command: Control::StartRecovery,
            device: 0,
            error: io::Error::from_raw_os_error(number),
        };
        let mut results = vec![Ok(()), Err(refused(EBUSY)), Err(refused(EBUSY))];
        retry(|| results.pop().expect("it is not repeated after a success")).expect("it succeeds");
        let mut times = 0;
        let error = retry(|| {
            times += 1;
            Err(refused(EEXIST))
        });
        assert_eq!((errno(&error.expect_err("it is refused")), times), (Some(EEXIST), 1));
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

//! [`Device`]: a device of ublk, from its making to its end.

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
/// A device of this number exists.
const EEXIST: i32 = 17;
/// Another process serves it: a character device is opened once.
const EBUSY: i32 = 16;
/// The kernel has no queue to take up.
const EINVAL: i32 = 22;
/// The features of each device. All kernels from 6.3 on have them.
const FEATURES: u64 = CMD_IOCTL_ENCODE | USER_RECOVERY | USER_RECOVERY_REISSUE;
/// Looks at a device whose process is gone, while the kernel clears up behind it, and the pause between two of them.
const LOOKS: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

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
    /// The kernel does not report its features.
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

/// The past of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The number was free.
    New,
    /// A device of the number that no process served was deleted: it had stopped, or other settings.
    Replaced,
    /// The device was left behind by a process that ended without stopping it. Its users wait for their requests.
    Recovered,
}

/// A device that was added, or taken up.
#[derive(Debug)]
pub struct Device {
    control: File,
    info: Info,
    origin: Origin,
}

impl Device {
    /// Makes the device `/dev/ublkbN`, which has `queues` at most, one for each processor, and reads back whatever the kernel has
    /// made of the settings. Takes up the device of this number that a process has left behind, if it has the same settings, and
    /// replaces another one. Waits up to five seconds for the end of that process.
    ///
    /// # Errors
    /// If there is no driver, it refuses, or another process serves a device of this number.
    pub fn add(wanted: Info, params: &Params) -> Result<Self, UblkError> {
        let Info { queues, depth, device, .. } = wanted;
        if queues == 0 || depth == 0 || depth > MOST_DEPTH {
            return Err(UblkError::Impossible { queues, depth });
        }
        let (control, features) = driver()?;
        let wanted = Info { pid: -1, flags: FEATURES, ..wanted };
        // A device that is taken up may lack it.
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
            // It opens only once: this fails while a process prepares to serve it.
            match open(&format!("/dev/ublkc{device}")) {
                Err(UblkError::File(_, error)) if error.raw_os_error() == Some(EBUSY) => {
                    return Err(UblkError::Taken(device));
                }
                opened => drop(opened?),
            }
        }
        self.delete()
    }

    /// Sets the parameters, and compares them with those that the kernel has taken.
    fn describe(&self, wanted: Info, params: &Params) -> Result<(), UblkError> {
        self.send(Control::SetParams, &mut params.to_bytes(), 0)?;
        self.compare(wanted, params)
    }

    /// Compares the device with the settings that it should have.
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

    /// The description, as the kernel has it.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The past of the device.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Opens the character device, whose queues are served by the thread that [fetches](crate::queues::Queues::fetch) them. It can
    /// be open once. One that was left behind can be taken up again as long as no process ends between this call and the fetching
    /// of every tag: the kernel does not take up half-fetched ones.
    ///
    /// # Errors
    /// If it is not there, or open.
    pub fn open(&self) -> Result<File, UblkError> {
        if self.origin == Origin::Recovered {
            let result = retry(|| self.send(Control::StartRecovery, &mut [], 0));
            // A process that ended before it fetched a tag has begun already.
            if result.as_ref().err().and_then(errno) != Some(EINVAL) {
                result?;
            }
        }
        open(&format!("/dev/ublkc{}", self.info.device))
    }

    /// Starts the device: the block device appears, or has its requests again. Waits until every tag was fetched and, in kernels before 6.19, until the
    /// partitions were read, so that another thread has to serve.
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

    /// Gives the block device another size, in sectors, which its users see immediately. Returns false if it cannot have one.
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

    /// Gives up a device that was not started: a new one is deleted, and one that was left behind waits for the next process.
    /// Its [file](Self::open) has to be closed.
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

/// The description of a device whose process is gone, once the kernel has noticed that.
fn left_behind(control: &File, device: u32) -> Result<Info, UblkError> {
    for _ in 0..LOOKS {
        let mut bytes = Info::default().to_bytes();
        send(control, Control::GetInfo, device, &mut bytes, 0)?;
        let info = Info::from_bytes(&bytes);
        if info.state != STATE_LIVE {
            return Ok(info);
        }
        // In a container the last server may have had this one's number.
        let is_other = u32::try_from(info.pid).is_ok_and(|pid| pid != std::process::id());
        if is_other && Path::new(&format!("/proc/{}", info.pid)).exists() {
            break;
        }
        std::thread::park_timeout(PAUSE);
    }
    Err(UblkError::Taken(device))
}

/// Repeats a command while the kernel is busy with the end of a process.
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

/// Checks that devices can be made: the driver is there, this process may use it, and it has the features needed.
/// Changes nothing.
///
/// # Errors
/// Names the missing prerequisite.
pub fn check_driver() -> Result<(), UblkError> {
    driver().map(drop)
}

/// The file of the driver, and its features.
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

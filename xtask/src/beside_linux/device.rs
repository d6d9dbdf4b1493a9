//! The devices: models, each with the number of commands that Linux may have at it.

/// A model, served as a block device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: &'static str,
    /// A description of the device for the page.
    pub(super) about: &'static str,
    /// As `blkmqd --device` has it.
    pub(super) model: &'static str,
    /// Driver tags, on both sides. A loop device takes no fewer than 4.
    pub(super) depth: u32,
    /// Passed to Linux, which does not know the model.
    pub(super) rotational: bool,
}

pub(super) const DEVICES: &[Device] = &[
    Device {
        name: "hdd4",
        about: "a disk of 15,000 revolutions that serves 4 commands in the order of arrival",
        model: "disk,preset=sas15k,hw_queue_depth=4,reorder=0",
        depth: 4,
        rotational: true,
    },
    Device {
        name: "hdd32",
        about: "the same disk with a queue of 32 commands that it reorders by itself; 10 of them are in use at a time, \
                the threads of nbdfuse",
        model: "disk,preset=sas15k,hw_queue_depth=32",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "ssd",
        about: "4 commands at a time, a read in 1 ms, a write in 4 ms",
        model: "null,irqmode=2,completion_nsec=1ms,write_nsec=4ms,hw_queue_depth=4,gb=64",
        depth: 4,
        rotational: false,
    },
    Device {
        name: "disk",
        about: "the model of a SATA disk of 7200 revolutions, with its cache and its queue",
        model: "disk",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "flash",
        about: "the model of a SATA SSD; here processors are the limit",
        model: "flash,preset=sata,gb=64",
        depth: 32,
        rotational: false,
    },
];

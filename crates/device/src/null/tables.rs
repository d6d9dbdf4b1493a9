//! The null device's parameters by name, and the parameters of null_blk that it does not have.
//!
//! Only names, defaults and help; values are read in `read.rs`.

use crate::Parameter;
use crate::basics::{self, parameter};

/// In the order in which help shows them: null_blk's own first, then the additional ones.
pub(super) const PARAMETERS: &[Parameter] = &[
    basics::SUBMIT_QUEUES,
    basics::USE_PER_NODE_HCTX,
    basics::HW_QUEUE_DEPTH,
    basics::IRQMODE,
    basics::COMPLETION_NSEC_PARAMETER,
    parameter("write_nsec", "", "service time of a write in ns; completion_nsec unless given"),
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "250", "size in GiB"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("mbps", "0", "bandwidth cap in MiB/s, at most 40960; 0: none"),
    parameter("shared_tags", "0", "one set of driver tags for all hardware queues"),
    parameter("shared_tag_bitmap", "0", "another name of shared_tags: there is only one device"),
    parameter("virt_boundary", "0", "segments may meet only at multiples of a page"),
    parameter("no_sched", "0", "ask for no default scheduler"),
    parameter("home_node", "-1", "NUMA node of allocations; has no meaning here and is reported"),
    parameter("queue_mode", "2", "2: multi-queue; 0 is turned into 2, 1 is refused"),
    parameter("discard", "0", "support discard"),
    parameter("write_cache", "0", "announce a volatile write cache: flushes reach the device"),
    parameter("fua", "1", "announce FUA; only with write_cache=1"),
    parameter("rotational", "0", "announce a rotational device"),
    parameter(
        "requeue",
        "",
        "fault: alternately RESOURCE and requeue, interval:probability:space:times",
    ),
    parameter("requeue_tail", "", "fault: requeue past the scheduler"),
    parameter("timeout", "", "fault: lose the request; it ends after 5 s with ETIMEDOUT"),
    parameter(
        "timeout_resets",
        "0",
        "times that the timer of a lost request is reset before it ends, 5 s each",
    ),
    parameter("resource", "", "fault: refuse with RESOURCE"),
    parameter("dev_resource", "", "fault: refuse with DEV_RESOURCE"),
    parameter("seed", "0", "of the faults' probabilities"),
    parameter(
        "budget",
        "",
        "requests that may be between scheduler and device at once; none unless given",
    ),
    parameter(
        "service_limit",
        "",
        "requests inside a hardware queue beyond which it says DEV_RESOURCE",
    ),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

/// Parameters of null_blk that are not built; the second entry is the value for "off", which is accepted.
pub(super) const NOT_BUILT: &[(&str, Option<&str>)] = &[
    ("zoned", Some("0")),
    ("poll_queues", Some("0")),
    ("blocking", Some("0")),
    ("zone_size", None),
    ("zone_capacity", None),
    ("zone_nr_conv", None),
    ("zone_max_open", None),
    ("zone_max_active", None),
    ("zone_append_max_sectors", None),
    ("zone_full", None),
    ("zone_readonly", None),
    ("zone_offline", None),
    ("init_hctx", None),
    ("nr_devices", Some("1")),
];

/// Parameters of null_blk for `memory_backed`, which is the device `memory` here; in the same form.
pub(super) const OF_MEMORY: &[(&str, Option<&str>)] = &[
    ("memory_backed", Some("0")),
    ("cache_size", Some("0")),
    ("badblocks", None),
    ("badblocks_once", Some("0")),
    ("badblocks_partial_io", Some("0")),
];

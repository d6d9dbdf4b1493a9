//! The names, defaults and help texts of the memory device's parameters. Values are read in `read.rs`.

use crate::Parameter;
use crate::basics::{self, parameter};

/// In the order in which help shows them.
pub(super) const PARAMETERS: &[Parameter] = &[
    basics::SUBMIT_QUEUES,
    basics::USE_PER_NODE_HCTX,
    basics::HW_QUEUE_DEPTH,
    basics::IRQMODE,
    basics::COMPLETION_NSEC_PARAMETER,
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "1", "size in GiB; what is written is kept in memory"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("discard", "0", "support discard; what is discarded reads as zeroes"),
    parameter("cache_size", "0", "volatile write cache in MiB; 0: none"),
    parameter("cache", "0", "another name of cache_size"),
    parameter("fua", "1", "honour FUA; only with a cache"),
    parameter("badblocks", "", "+START-END or -START-END in sectors; may be given repeatedly"),
    parameter("badblocks_once", "0", "a bad range heals when it has failed once"),
    parameter("badblocks_partial_io", "0", "what lies before the first bad block is done"),
    parameter("seed", "0", "of what a crash takes, besides the crash's own"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

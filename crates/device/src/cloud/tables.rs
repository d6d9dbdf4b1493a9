//! The names, defaults and help texts of the parameters. Values are read in `read.rs`.

use crate::Parameter;
use crate::basics::{self, parameter};

/// In the order in which help shows them. Defaults are those of the default preset.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter(
        "preset",
        "azure-p20",
        "the disk that all other defaults come from: azure-p20, ebs-gp3, ebs-gp2, gcp-pd",
    ),
    parameter("gb", "", "size in GiB; that of the disk unless given"),
    basics::SIZE,
    parameter("iops", "2300", "I/Os a second that last"),
    parameter("burst_iops", "3566", "I/Os a second while there are credits"),
    parameter("iops_credits", "2278800", "I/Os that are saved up at most; 0: no bursts"),
    parameter("bps", "150000000", "bytes a second that last"),
    parameter("burst_bps", "173471131", "bytes a second while there are credits"),
    parameter("bps_credits", "42248035800", "bytes that are saved up at most; 0: no bursts"),
    parameter("io_size", "262144", "bytes that count as one I/O; 0: each request is one"),
    parameter(
        "bucket_nsec",
        "20000000",
        "the time's worth of tokens that each limit saves up, in ns",
    ),
    parameter("latency_nsec", "1500000", "from leaving the limits to the answer, at least, in ns"),
    parameter("latency_spread_nsec", "800000", "what is drawn on top of it at most, in ns"),
    parameter("stream_bps", "150000000", "bytes a second at which one request is transferred"),
    parameter("hw_queue_depth", "256", "commands that the disk holds, 1 to 10240"),
    basics::BS,
    basics::BLOCKSIZE,
    basics::MAX_SECTORS,
    parameter("seed", "0", "of latencies"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

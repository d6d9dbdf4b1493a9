//! The names, defaults and help texts of the fault parameters. Values are read in `params.rs`.

use crate::Parameter;
use crate::basics::parameter;

/// In the order in which help shows them: the chances in the order in which they are drawn, then the rest.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter("resource", "0", "chance of a refusal with RESOURCE"),
    parameter("dev_resource", "0", "chance of a refusal with DEV_RESOURCE; room again 1 ms later"),
    parameter("requeue", "0", "chance of being taken and asked to be requeued"),
    parameter("timeout", "0", "chance of being taken and lost"),
    parameter("error", "0", "chance of failing, done or not"),
    parameter("read_error", "", "the same for reads; wins over error"),
    parameter("write_error", "", "the same for writes"),
    parameter("flush_error", "", "the same for flushes"),
    parameter("discard_error", "", "the same for discards"),
    parameter("write_zeroes_error", "", "the same for write zeroes"),
    parameter("late", "0", "chance of an answer that comes up to late_nsec later"),
    parameter("reorder", "0", "chance of an answer that another one overtakes"),
    parameter("errno", "5", "the error, as Linux numbers them; 5 is EIO"),
    parameter(
        "timeout_nsec",
        "5000000000",
        "the device's timeout, with which what is lost ends, in ns",
    ),
    parameter("late_nsec", "1000000", "the most by which answers are late, in ns"),
    parameter(
        "space",
        "0",
        "attempts let through before a fault strikes; each fault counts its own",
    ),
    parameter("times", "-1", "how often each fault strikes at most; -1 for ever"),
    parameter("seed", "0", "of the chances"),
];

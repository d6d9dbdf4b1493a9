//! The order in which requests reach the device (seed 000).

use super::{Published, Source, iops};

pub const PUBLISHED: Published = Published {
    title: "The device sees another order than the scheduler chose",
    claim: "Between picking a request and issuing it the kernel has no lock. Where several threads dispatch, one \
            picks 1, another one picks 2, the first picks 3, and the device gets 1, 3, 2. A batch for each \
            thread keeps what is in it together; a total order has no such inversions at all.",
    tables: &[Source {
        by: "Yu Kuai, second version of the request for comments, June 2025",
        hardware: "Kunpeng 920, 256 cores; a worn disk of 5 TB behind a SAS adapter",
        workload: "one in which order matters; not described further",
        rows: &[iops("disk", 24.0, 272.0)],
        remark: "Inversions were not counted. Damien Le Moal saw no difference on a disk of his (write 1088 and 1093, \
                 read 211 and 212 IOPS): with a write cache, a disk orders by itself.",
    }],
};

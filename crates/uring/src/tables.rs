//! The parameters of the devices, for help and for the parser in `options.rs`.

use blkmq_core::Parameter;

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

const PATH: Parameter =
    parameter("path", "", "file or block device; in PATH[,KEY=VALUE]... the first word");
const DEPTH: Parameter =
    parameter("hw_queue_depth", "128", "requests in flight per hardware queue, 1 to 10240");
const DIRECT: Parameter =
    parameter("direct", "1", "1: past the page cache (O_DIRECT); 0: through it");
const SIZE: Parameter = parameter(
    "size",
    "",
    "create or extend the file to at least so many MiB (or 16m, 1g) of random bytes",
);
const CREATE_SIZE: Parameter = parameter("create_size", "", "another name of size");
const READONLY: Parameter =
    parameter("readonly", "0", "open for reading; everything else is answered with EROFS");
const FORMAT: Parameter = parameter(
    "format",
    "",
    "raw: the file is a disk though it begins like an image of another format, which is refused otherwise",
);
const LOCKING: Parameter =
    parameter("locking", "1", "keep other programs from writing to a file meanwhile, as QEMU does");

/// All parameters of `uring`.
pub(crate) const OF_RINGS: &[Parameter] = &[
    PATH,
    parameter(
        "hw_queues",
        "",
        "hardware queues, each with a ring of its own, 1 to 1024; by default one, with a ring for each client",
    ),
    DEPTH,
    DIRECT,
    parameter("fixed", "1", "register the file, and the buffers of pools, with the kernel"),
    SIZE,
    CREATE_SIZE,
    READONLY,
    FORMAT,
    LOCKING,
];

/// All parameters of `threads`.
pub(crate) const OF_THREADS: &[Parameter] = &[
    PATH,
    parameter("threads", "16", "requests that are done at a time, each by a thread, 1 to 1024"),
    parameter(
        "hw_queues",
        "",
        "hardware queues, which share the threads, 1 to 1024; by default one",
    ),
    DEPTH,
    DIRECT,
    SIZE,
    CREATE_SIZE,
    READONLY,
    FORMAT,
    LOCKING,
];

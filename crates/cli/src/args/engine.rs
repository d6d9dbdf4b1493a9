//! fio's I/O engines and their equivalents here: I/O to a file, or none.
//!
//! The system calls that fio would use are irrelevant here: I/O to files goes through io_uring. Engines that do no
//! block I/O, or use a network or a library, are refused.

use blkmq_terminal::UsageError;
use blkmq_terminal::nearest::nearest;

/// An engine that has a meaning here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engine {
    /// The name, as fio spells it.
    pub name: &'static str,
    /// Whether the engine moves data of files. If false, it is `null`.
    pub is_storage: bool,
    /// Whether the engine has at most one I/O in flight. If so, `iodepth` is 1, as in fio.
    pub is_synchronous: bool,
}

const fn engine(name: &'static str, is_synchronous: bool) -> Engine {
    Engine { name, is_storage: true, is_synchronous }
}

const ENGINES: [Engine; 9] = [
    engine("libaio", false),
    engine("io_uring", false),
    engine("posixaio", false),
    engine("sync", true),
    engine("psync", true),
    engine("vsync", true),
    engine("pvsync", true),
    engine("pvsync2", true),
    Engine { name: "null", is_storage: false, is_synchronous: false },
];

/// fio's engines without a meaning here, so that they are not called unknown.
const OTHERS: [&str; 46] = [
    "cpuio",
    "mmap",
    "splice",
    "net",
    "netsplice",
    "ftruncate",
    "filecreate",
    "filestat",
    "filedelete",
    "exec",
    "falloc",
    "e4defrag",
    "gfapi",
    "gfapi_async",
    "mtd",
    "sg",
    "io_uring_cmd",
    "nbd",
    "rdma",
    "rados",
    "rbd",
    "pmemblk",
    "dev-dax",
    "libpmem",
    "http",
    "libhdfs",
    "libiscsi",
    "libzbc",
    "nfs",
    "dfs",
    "ime_psync",
    "ime_psyncv",
    "ime_aio",
    "xnvme",
    "libcufile",
    "librpma_apm_client",
    "librpma_apm_server",
    "librpma_gpspm_client",
    "librpma_gpspm_server",
    "libblkio",
    "cpp_null",
    "external",
    "guasi",
    "solarisaio",
    "windowsaio",
    "filedircreate",
];

impl Engine {
    /// The engine called `name`.
    ///
    /// # Errors
    /// If it has no equivalent here, or is unknown to fio.
    pub fn named(name: &str) -> Result<Self, UsageError> {
        // As fio does.
        let name = if name == "aio" { "libaio" } else { name };
        if let Some(found) = ENGINES.iter().find(|engine| engine.name == name) {
            return Ok(*found);
        }
        let accepted = Vec::from_iter(ENGINES.iter().map(|engine| engine.name)).join(", ");
        let kind = name.split(':').next().unwrap_or_default();
        if OTHERS.contains(&kind) {
            let text = format!("this engine of fio's has no meaning here; accepted: {accepted}");
            return Err(UsageError::new(text));
        }
        let near = nearest(name, ENGINES.iter().map(|engine| engine.name));
        let near = near.first().map_or(String::new(), |near| format!("nearest: {near}; "));
        Err(UsageError::new(format!("no engine '{name}'; {near}accepted: {accepted}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_without_a_meaning_are_told_from_engines_that_do_not_exist() {
        assert!(Engine::named("libaio").is_ok_and(|engine| engine.is_storage));
        assert_eq!(Engine::named("aio"), Engine::named("libaio"));
        assert!(Engine::named("psync").is_ok_and(|engine| engine.is_synchronous));
        assert!(Engine::named("null").is_ok_and(|engine| !engine.is_storage));
        let message = |name| Engine::named(name).expect_err(name).to_string();
        for name in ["ftruncate", "libhdfs", "libiscsi", "rbd", "http", "net", "external:./mine.o"]
        {
            let text = message(name);
            assert!(text.starts_with(
                "this engine of fio's has no meaning here; accepted: libaio, io_uring"
            ));
        }
        assert!(message("foo").starts_with("no engine 'foo'; accepted: libaio, "));
        assert!(message("liboai").starts_with("no engine 'liboai'; nearest: libaio; accepted: "));
    }
}

//! libnbd with `blkmqd`: handshakes option by option, and a server that libnbd starts itself.

use super::super::Outcome;
use super::DEVICE;
use crate::Result;
use crate::nbd::Server;
use crate::shell::{BLKMQD, Cmd, parse_json};

/// The interpreter that has libnbd's module: that of the system, even if another one precedes it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// A script of libnbd's Python module performs a handshake, and tests the answers of an export.
pub(in crate::interop) fn handshakes() -> Result<Outcome> {
    let has_module = Cmd::new(PYTHON).arg("-c").arg("import nbd").quiet_code();
    if !matches!(has_module, Ok(Some(0))) {
        return Ok(Outcome::Skipped("libnbd's Python module is not installed".into()));
    }
    let exports = "--export=gold,size=64m --export=rest,offset=64m,read-only=1";
    let server = Server::blkmq("serve-handshakes", DEVICE, "mq-deadline", exports)?;
    let script = include_str!("handshake.py");
    Cmd::new(PYTHON).arg("-c").arg(script).arg(server.uri("")).output()?;
    Ok(Outcome::Passed)
}

/// libnbd starts the server, passes a listening socket to it, and the server ends with it.
pub(in crate::interop) fn started() -> Result<Outcome> {
    let serve = format!("{BLKMQD} --device=memory,size=64 --export= --log=error");
    let report = Cmd::new(&format!("nbdinfo --json -- [ {serve} ]")).output()?;
    // The output of the server precedes it.
    match parse_json(&report)?["exports"][0]["export-size"].as_u64() {
        Some(size) if size == 64 << 20 => Ok(Outcome::Passed),
        size => Err(format!("the size of the export is {size:?}").into()),
    }
}

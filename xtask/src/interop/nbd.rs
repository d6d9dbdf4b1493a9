//! NBD: real clients against the server of the example `nbd_server`. Checks that hold for any server are used for
//! `blkmqd` as well (`serve.rs`).

use super::Outcome;
use crate::Result;
use crate::nbd::Server;
use crate::shell::{Cmd, parse_json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

const DEVICE: &str = "memory,size=256,discard=1";

/// nbdinfo sees the size, the flags and the block sizes, of an export with a weight and of the one without a name.
pub(super) fn info() -> Result<Outcome> {
    let server = Server::example("info", DEVICE)?;
    for export in ["", "weight=300"] {
        let report = Cmd::new(&format!("nbdinfo --json {}", server.uri(export))).output()?;
        let report = &parse_json(&report)?["exports"][0];
        let flags = ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"];
        if let Some(missing) = flags.iter().find(|flag| report[**flag] != true) {
            return Err(format!("{missing} of export '{export}' is {}", report[missing]).into());
        }
        let sizes = ["export-size", "block_size_minimum", "block_size_maximum"];
        let sizes = sizes.map(|name| report[name].as_u64().unwrap_or(0));
        if sizes != [256 << 20, 512, 32 << 20] {
            return Err(format!("sizes of export '{export}' are {sizes:?}").into());
        }
    }
    let list = Cmd::new(&format!("nbdinfo --list --json {}", server.uri(""))).output()?;
    if parse_json(&list)?["exports"].as_array().map(Vec::len) != Some(1) {
        return Err(format!("not one export in {list}").into());
    }
    let other = Cmd::new(&format!("nbdinfo {}", server.uri("other")));
    if other.quiet_code()? == Some(0) {
        return Err("there is an export that is called other".into());
    }
    Ok(Outcome::Passed)
}

/// nbdcopy copies data to the server and back: over several connections, over one, and one request at a time.
pub(super) fn copy() -> Result<Outcome> {
    let server = Server::example("copy", DEVICE)?;
    let uri = server.uri("");
    copies(&server, &uri, 256, &["", "--connections=1", "--synchronous"])?;
    Ok(Outcome::Passed)
}

/// nbdcopy copies this many MiB to `uri` and back, with each of the options: the copy back has the same bytes.
pub(super) fn copies(server: &Server, uri: &str, mib: u64, options: &[&str]) -> Result<()> {
    let [from, to] = ["from", "to"].map(|name| server.path(name).display().to_string());
    for (seed, options) in (1..).zip(options) {
        contents(&from, mib << 20, seed)?;
        let copy = |from: &str, to: &str| {
            Cmd::new(&format!("nbdcopy --flush {options}")).arg(from).arg(to).run()
        };
        copy(&from, uri)?;
        copy(uri, &to)?;
        if Cmd::new(&format!("cmp {from} {to}")).quiet_code()? != Some(0) {
            return Err(format!("with '{options}' other data came back").into());
        }
    }
    Ok(())
}

/// Writes a file of this many bytes, no two MiB of which are equal, except for a hole in the middle, which nbdcopy
/// writes as zeroes over the data of the previous copy.
fn contents(path: &str, bytes: u64, seed: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let quarter = bytes / 4;
    for start in [0, 3 * quarter] {
        file.seek(SeekFrom::Start(start))?;
        for at in (start..start + quarter).step_by(1 << 20) {
            let words =
                (at / 8..(at + (1 << 20)) / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mixed = words.flat_map(|word| (word ^ word >> 29 ^ seed).to_le_bytes());
            file.write_all(&mixed.collect::<Vec<u8>>())?;
        }
    }
    Ok(())
}

/// qemu-io finds the patterns that it wrote, with FUA on every write and without, and zeroes where it discarded.
pub(super) fn qemu() -> Result<Outcome> {
    patterns(&Server::example("qemu", DEVICE)?)
}

/// The check of [`qemu`], for any server.
pub(super) fn patterns(server: &Server) -> Result<Outcome> {
    let steps = [
        "write -P 0xab 1M 3M",
        "read -P 0xab 1M 3M",
        "flush",
        "discard 1M 1M",
        "read -P 0 1M 1M",
        "read -P 0xab 2M 2M",
        "write -z 3M 512k",
        "read -P 0 3M 512k",
        "write -f -P 3 4k 8k",
        "read -P 3 4k 8k",
        "read -P 0 0 4k",
    ];
    for cache in ["writethrough", "writeback"] {
        let line = format!("qemu-io -f raw -t {cache} {}", server.uri(""));
        let cmd = steps.iter().fold(Cmd::new(&line), |cmd, step| cmd.arg("-c").arg(*step));
        let output = cmd.output()?;
        if output.to_lowercase().contains("fail") || output.contains("error") {
            return Err(output.into());
        }
        // Otherwise the next round would begin with the data of this one.
        let clear = Cmd::new(&line).arg("-c").arg("write -z 0 4M");
        clear.output()?;
    }
    Ok(Outcome::Passed)
}

/// fio reads the data that it wrote last, with one connection and with several in separate regions.
pub(super) fn fio() -> Result<Outcome> {
    verifies(&Server::example("fio", DEVICE)?)
}

/// The check of [`fio`], for a server of 256 MiB.
pub(super) fn verifies(server: &Server) -> Result<Outcome> {
    for jobs in ["--numjobs=1 --size=64m", "--numjobs=4 --size=32m --offset_increment=32m"] {
        let uri = server.uri("");
        let options = "--bssplit=4k/80:64k/15:1m/5 --iodepth=32 --rw=randrw";
        let verify = "--verify=crc32c --verify_state_save=0 --group_reporting";
        let line = format!("fio --name=nbd --ioengine=nbd --uri={uri} --output-format=json");
        let report = Cmd::new(&format!("{line} {options} {verify} {jobs}")).output()?;
        let job = &parse_json(&report)?["jobs"][0];
        if job["error"] != 0 || job["read"]["total_ios"] == 0 {
            return Err(format!("with {jobs}: {job}").into());
        }
    }
    Ok(Outcome::Passed)
}

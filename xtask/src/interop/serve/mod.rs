//! NBD: real clients against the server of the example `nbd_server`, and against `blkmqd`, also over TLS, with
//! certificates made by openssl. Checks that hold for any server are made with both.

mod disks;
mod figures;
mod live;
mod page;
mod scenes;

use super::Outcome;
use crate::Result;
use crate::serve::{self, Server, attacks, shares};
use crate::shell::{BLKMQD, Cmd, is_installed, parse_json};
pub(super) use disks::{cut, ext4, lists, read_only, thin};
pub(super) use figures::{counted, figures, latencies, metrics};
pub(super) use live::{all_succeeded, changed, goes_on, killed, load, reconnects, stuck, verified};
pub(crate) use page::screenshots;
pub(super) use page::{dashboards, page, prometheus, rules};
pub(super) use scenes::scenes;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DEVICE: &str = "memory,size=256,discard=1";
/// For copies of 1 GiB.
const LARGE: &str = "memory,size=1024,discard=1";

/// nbdinfo sees every export with its own size and features, and qemu-nbd lists them.
pub(super) fn info() -> Result<Outcome> {
    let exports = "--export=gold,size=64m,weight=300 --export=rest,offset=64m,read-only=1";
    let server = Server::blkmq("serve-info", DEVICE, "bfq", exports)?;
    for (export, size, is_read_only) in [("gold", 64 * MIB, false), ("rest", 192 * MIB, true)] {
        let report = Cmd::new(&format!("nbdinfo --json {}", server.uri(export))).output()?;
        let report = &parse_json(&report)?["exports"][0];
        if report["export-size"] != size || report["is_read_only"] != is_read_only {
            return Err(format!("export {export}: {report}").into());
        }
        if report["can_multi_conn"] != true || report["contexts"][0] != "base:allocation" {
            return Err(format!("export {export}: {report}").into());
        }
    }
    let list = Cmd::new(&format!("nbdinfo --list --json {}", server.uri(""))).output()?;
    if parse_json(&list)?["exports"].as_array().map(Vec::len) != Some(2) {
        return Err(format!("not two exports in {list}").into());
    }
    let list =
        Cmd::new("qemu-nbd --list -k").arg(server.path("socket").display().to_string()).output()?;
    if !(list.contains("gold") && list.contains("rest")) {
        return Err(format!("qemu-nbd lists {list}").into());
    }
    // These clients end a list with ABORT, and close before they have read the answer.
    let log = fs::read_to_string(server.path("log"))?;
    match log.lines().find(|line| line.contains("a handshake ended")) {
        Some(line) => Err(format!("the usual end of a list is in the log: {line}").into()),
        None => Ok(Outcome::Passed),
    }
}

/// nbdcopy copies 1 GiB in and out, over four connections, over one, and one request at a time.
pub(super) fn copy() -> Result<Outcome> {
    let server = Server::blkmq("serve-copy", LARGE, "mq-deadline", "--export=")?;
    let uri = server.uri("");
    let options = ["--connections=4", "--connections=1", "--synchronous", "--requests=1"];
    copies(&server, &uri, 1024, &options)?;
    Ok(Outcome::Passed)
}

/// qemu-io finds its patterns, under every form of headers that it can be offered.
pub(super) fn qemu() -> Result<Outcome> {
    patterns(&Server::blkmq("serve-qemu", DEVICE, "mq-deadline", "--export=")?)
}

/// fio verifies its writes under each scheduler.
pub(super) fn fio() -> Result<Outcome> {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        verifies(&Server::blkmq("serve-fio", DEVICE, scheduler, "--export=")?)?;
    }
    Ok(Outcome::Passed)
}

/// Holes are where nothing was written, for libnbd and QEMU alike, on memory, on a file, and on a file of qemu-nbd
/// behind us; and the contents are those of the file that was copied in.
pub(super) fn map() -> Result<Outcome> {
    for device in [DEVICE, "uring:FILE", "nbd:URI"] {
        let folder = std::env::temp_dir().join(format!("blkmq-map-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let file = folder.join("disk");
        File::create(&file)?.set_len(256 * MIB)?;
        let store = match device {
            "nbd:URI" => {
                let line = format!("qemu-nbd -t -e 8 -f raw -k SOCKET {}", file.display());
                Some(Server::start("serve-map-store", &line)?)
            }
            _ => None,
        };
        let uri = store.as_ref().map_or_else(String::new, |store| store.uri(""));
        let device = device.replace("FILE", &file.display().to_string()).replace("URI", &uri);
        let server = Server::blkmq("serve-map", &device, "mq-deadline", "--export=")?;
        let uri = server.uri("");
        let write = Cmd::new(&format!("qemu-io -f raw {uri}"));
        write.arg("-c").arg("write -P 7 64M 8M").arg("-c").arg("write -P 8 100M 1M").output()?;
        let found = [of_libnbd(&uri)?, of_qemu(&uri)?];
        let data = [(64 * MIB, 8 * MIB), (100 * MIB, MIB)];
        let result = match found.iter().find(|found| **found != data) {
            Some(found) => Err(format!("{device}: stored are {found:?}").into()),
            None => compare(&server, &uri),
        };
        drop(server);
        fs::remove_dir_all(&folder)?;
        result?;
    }
    Ok(Outcome::Passed)
}

/// The stored stretches, offset and length, that libnbd finds.
fn of_libnbd(uri: &str) -> Result<Vec<(u64, u64)>> {
    let map = Cmd::new(&format!("nbdinfo --map --json {uri}")).output()?;
    stored(&serde_json::from_str(&map)?, "offset", |extent| extent["type"] == 0)
}

/// Like [`of_libnbd`], but for QEMU.
fn of_qemu(uri: &str) -> Result<Vec<(u64, u64)>> {
    let map = Cmd::new(&format!("qemu-img map -f raw --output=json {uri}")).output()?;
    stored(&serde_json::from_str(&map)?, "start", |extent| extent["data"] == true)
}

fn stored(map: &Value, start: &str, is: impl Fn(&Value) -> bool) -> Result<Vec<(u64, u64)>> {
    let extents = map.as_array().ok_or_else(|| format!("no list in {map}"))?;
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    let all = extents.iter().filter(|extent| is(extent));
    Ok(all.map(|extent| (number(&extent[start]), number(&extent["length"]))).collect())
}

/// qemu-img finds that the export and a copy of it are equal.
fn compare(server: &Server, uri: &str) -> Result<()> {
    let copy = server.path("copy");
    Cmd::new(&format!("nbdcopy {uri} {}", copy.display())).run()?;
    Cmd::new(&format!("qemu-img compare -f raw -F raw {uri} {}", copy.display())).run()
}

/// Every server that is installed is measured once, briefly.
pub(super) fn peers() -> Result<Outcome> {
    serve::peers_at_test_size().map(|()| Outcome::Passed)
}

/// The ceiling of an export compared with those of QEMU and Linux, in test size.
pub(super) fn ceilings() -> Result<Outcome> {
    shares::ceilings_at_test_size().map(|()| Outcome::Passed)
}

/// Three clients share a device by weight, briefly.
pub(super) fn isolation() -> Result<Outcome> {
    shares::isolation_at_test_size().map(|()| Outcome::Passed)
}

/// A tenant with a floor beside one that floods a device, briefly.
pub(super) fn floors() -> Result<Outcome> {
    shares::floors_at_test_size().map(|()| Outcome::Passed)
}

/// A client beside each attack, briefly.
pub(super) fn attacks() -> Result<Outcome> {
    attacks::attacks_at_test_size().map(|()| Outcome::Passed)
}

/// Some rounds of clients that connect, disconnect and are killed.
pub(super) fn soak() -> Result<Outcome> {
    attacks::soak(Duration::from_secs(10), 1000).map(|()| Outcome::Passed)
}

/// A server that is killed five times has every flushed block.
pub(super) fn crash() -> Result<Outcome> {
    let flushed = attacks::crashes(5)?;
    println!("{flushed} flushed writes");
    Ok(Outcome::Passed)
}

/// nbdinfo sees the size, the flags and the block sizes, of an export with a weight and of the one without a name.
pub(super) fn example_info() -> Result<Outcome> {
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
pub(super) fn example_copy() -> Result<Outcome> {
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
pub(super) fn example_qemu() -> Result<Outcome> {
    patterns(&Server::example("qemu", DEVICE)?)
}

/// The check of [`example_qemu`], for any server.
fn patterns(server: &Server) -> Result<Outcome> {
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
pub(super) fn example_fio() -> Result<Outcome> {
    verifies(&Server::example("fio", DEVICE)?)
}

/// The check of [`example_fio`], for a server of 256 MiB.
fn verifies(server: &Server) -> Result<Outcome> {
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

/// The interpreter that has libnbd's module: that of the system, even if another one precedes it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// A script of libnbd's Python module performs a handshake, and tests the answers of an export.
pub(super) fn handshakes() -> Result<Outcome> {
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
pub(super) fn started() -> Result<Outcome> {
    let serve = format!("{BLKMQD} --device=memory,size=64 --export= --log=error");
    let report = Cmd::new(&format!("nbdinfo --json -- [ {serve} ]")).output()?;
    // The output of the server precedes it.
    match parse_json(&report)?["exports"][0]["export-size"].as_u64() {
        Some(size) if size == 64 << 20 => Ok(Outcome::Passed),
        size => Err(format!("the size of the export is {size:?}").into()),
    }
}

/// nbdinfo sees TLS, nbdcopy copies 1 GiB through it with one connection and with four, and a client without TLS or without a
/// certificate gets nothing.
pub(super) fn tls() -> Result<Outcome> {
    // openssl does not accept --version.
    if Cmd::new("openssl version").quiet_code().is_err() {
        return Ok(Outcome::Skipped("openssl is not installed".into()));
    }
    if !is_installed("nbdcopy") {
        return Ok(Outcome::Skipped("nbdcopy is not installed".into()));
    }
    let folder = std::env::temp_dir().join(format!("blkmq-tls-{}", std::process::id()));
    let result = certificates(&folder).and_then(|()| tls_copies(&folder));
    fs::remove_dir_all(&folder)?;
    result.map(|()| Outcome::Passed)
}

/// Makes an authority, and folders for a server and a client with certificates that it has signed.
pub(super) fn certificates(folder: &Path) -> Result<()> {
    let openssl = |words: String| Cmd::new(&format!("openssl {words}")).output();
    let at = |name: &str| folder.join(name).display().to_string();
    for side in ["server", "client"] {
        fs::create_dir_all(folder.join(side))?;
    }
    let (authority, key) = (at("ca-cert.pem"), at("ca-key.pem"));
    let new = "-newkey rsa:2048 -noenc";
    openssl(format!("req -x509 {new} -days 2 -subj /CN=authority -keyout {key} -out {authority}"))?;
    for side in ["server", "client"] {
        let (request, names) = (at("request"), at("names"));
        fs::write(&names, "subjectAltName=DNS:localhost\n")?;
        let secret = at(&format!("{side}/{side}-key.pem"));
        openssl(format!("req {new} -subj /CN=localhost -keyout {secret} -out {request}"))?;
        let signed = at(&format!("{side}/{side}-cert.pem"));
        let by = format!("-CA {authority} -CAkey {key} -CAcreateserial");
        openssl(format!("x509 -req -in {request} {by} -days 2 -extfile {names} -out {signed}"))?;
        fs::copy(&authority, folder.join(side).join("ca-cert.pem"))?;
    }
    Ok(())
}

fn tls_copies(folder: &Path) -> Result<()> {
    let certificates = |side: &str| folder.join(side).display().to_string();
    let more = format!("--export= --tls-certificates={}", certificates("server"));
    let server = Server::blkmq("serve-tls", LARGE, "mq-deadline", &more)?;
    let plain = server.uri("");
    let uri = format!(
        "{}&tls-certificates={}&tls-hostname=localhost",
        plain.replace("nbd+", "nbds+"),
        certificates("client")
    );
    let info = Cmd::new("nbdinfo").arg(&uri).output()?;
    if !info.contains("with TLS") {
        return Err(format!("nbdinfo sees no TLS: {info}").into());
    }
    if Cmd::new(&format!("nbdinfo --size {plain}")).quiet_code()? == Some(0) {
        return Err("a client without TLS was told the size".into());
    }
    copies(&server, &uri, 1024, &["--connections=1", "--connections=4"])
}

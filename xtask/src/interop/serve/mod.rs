//! NBD: real clients against the server of the example `nbd_server`, and against `blkmqd`, also over TLS, with
//! certificates made by openssl. Checks that hold for any server are made with both.
//!
//! Exports are disks, too: nbdfuse shows an export as a file, a loop device turns it into a disk, and ext4 is on that.
//! A tree is copied and deleted. The file system stays clean, and the copy equals the original. Real clients find a
//! device that changes, or that accepts no writes.

mod figures;
mod live;
mod scenes;

use crate::Result;
use crate::interop::{Folder, Outcome};
use crate::measurement::pause;
use crate::serve::{self, Server, attacks, shares};
use crate::shell::{BLKMQD, Cmd, is_installed, parse_json, root};
pub(crate) use figures::screenshots;
pub(super) use figures::{
    counted, dashboards, figures, latencies, metrics, page, prometheus, rules,
};
pub(super) use live::{all_succeeded, changed, goes_on, killed, load, reconnects, stuck, verified};
pub(super) use scenes::scenes;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
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
fn copies(server: &Server, uri: &str, mib: u64, options: &[&str]) -> Result<()> {
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

/// nbdinfo sees TLS, nbdcopy copies 1 GiB through it with one connection and with four, and a client without TLS or
/// without a certificate gets nothing.
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

/// See above.
pub(in crate::interop) fn ext4() -> Result<Outcome> {
    let needed = ["losetup", "mkfs.ext4", "fsck.ext4"];
    // The tools of ext4 do not accept --version, only -V.
    let is_there =
        |name: &str| is_installed(name) || Cmd::new(&format!("{name} -V")).quiet_code().is_ok();
    if let Some(missing) = needed.into_iter().find(|name| !is_there(name)) {
        return Ok(Outcome::Skipped(format!("{missing} is not installed")));
    }
    if !Path::new("/dev/fuse").exists() {
        return Ok(Outcome::Skipped("there is no /dev/fuse".into()));
    }
    let server =
        Server::blkmq("serve-ext4", "memory,size=256,discard=1", "mq-deadline", "--export=")?;
    let fuse = match Fuse::mount(&server)? {
        Ok(fuse) => fuse,
        Err(why) => return Ok(Outcome::Skipped(format!("nbdfuse cannot mount here: {why}"))),
    };
    let disk = match Loop::of(&fuse.file()) {
        Ok(disk) => disk,
        Err(why) => return Ok(Outcome::Skipped(format!("no loop device can be made: {why}"))),
    };
    Cmd::new(&format!("mkfs.ext4 -q -F {}", disk.0)).output()?;
    let (tree, folder) = (root().join("crates"), server.path("mounted"));
    {
        let mounted = match Mounted::new(&disk.0, &folder) {
            Ok(mounted) => mounted,
            Err(why) => return Ok(Outcome::Skipped(format!("ext4 cannot be mounted: {why}"))),
        };
        for copy in ["one", "two"] {
            copied(&tree, &mounted.0.join(copy))?;
        }
        fs::remove_dir_all(mounted.0.join("one"))?;
    }
    checked(&disk)?;
    // The kernel has dropped its caches: the data comes from the server.
    let mounted = Mounted::new(&disk.0, &folder)?;
    same_trees(&tree, &mounted.0.join("two"))?;
    drop(mounted);
    checked(&disk)?;
    drop((disk, fuse));
    Ok(Outcome::Passed)
}

fn copied(from: &Path, to: &Path) -> Result<()> {
    Cmd::new(&format!("cp -r {} {}", from.display(), to.display())).output().map(drop)
}

fn same_trees(one: &Path, other: &Path) -> Result<()> {
    Cmd::new(&format!("diff -r --no-dereference {} {}", one.display(), other.display()))
        .output()
        .map(drop)
}

/// fsck finds nothing to repair.
fn checked(disk: &Loop) -> Result<()> {
    Cmd::new(&format!("fsck.ext4 -f -n {}", disk.0)).output().map(drop)
}

/// nbdfuse, which is unmounted and ends when this is dropped.
struct Fuse {
    child: Child,
    folder: PathBuf,
}

impl Fuse {
    /// The export as a file, or the reason of nbdfuse why not.
    fn mount(server: &Server) -> Result<std::result::Result<Self, String>> {
        let (folder, log) = (server.path("fuse"), server.path("fuse.log"));
        fs::create_dir_all(&folder)?;
        let line = format!("nbdfuse {} {}", folder.display(), server.uri(""));
        let child = Cmd::new(&line).start(File::create(&log)?)?;
        let mut fuse = Self { child, folder };
        while !fuse.file().exists() {
            if fuse.child.try_wait()?.is_some() {
                return Ok(Err(fs::read_to_string(&log)?.trim().to_owned()));
            }
            pause(0.02)?;
        }
        Ok(Ok(fuse))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("nbd")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Without a mount there is nothing to undo.
        let _ = Cmd::new(&format!("umount {}", self.folder.display())).quiet_code();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device, released when this is dropped.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Result<Self> {
        let made = Cmd::new(&format!("losetup --find --show {}", file.display())).output()?;
        Ok(Self(made.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("losetup -d {}", self.0)).quiet_code();
    }
}

/// A mounted file system, unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(disk: &str, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Cmd::new(&format!("mount -t ext4 {disk} {}", folder.display())).output()?;
        Ok(Self(folder.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("umount {}", self.0.display())).quiet_code();
    }
}

/// nbdinfo and qemu-nbd ask for each export of a list, of which there are 200.
pub(super) fn lists() -> Result<Outcome> {
    const EXPORTS: usize = 200;
    let exports: String = (0..EXPORTS).map(|n| format!(" --export=e{n},size=4096")).collect();
    let server = Server::blkmq("serve-lists", "memory,size=64", "none", exports.trim())?;
    let list = Cmd::new(&format!("nbdinfo --list --json {}", server.uri(""))).output()?;
    let found = parse_json(&list)?["exports"].as_array().map(Vec::len);
    if found != Some(EXPORTS) {
        return Err(format!("nbdinfo lists {found:?} exports").into());
    }
    if is_installed("qemu-nbd") {
        let socket = server.path("socket").display().to_string();
        let list = Cmd::new("qemu-nbd --list -k").arg(socket).output()?;
        if !list.contains(&format!("exports available: {EXPORTS}")) {
            return Err(format!("qemu-nbd lists {list}").into());
        }
    }
    Ok(Outcome::Passed)
}

/// A copy of a file that is cut short beneath the server fails, with nbdcopy and with qemu-img.
pub(super) fn cut() -> Result<Outcome> {
    let image = Image::new("serve-cut", 16)?;
    let server = image.serve("serve-cut", "")?;
    fill(&image.0, 16)?;
    fs::OpenOptions::new().write(true).open(&image.0)?.set_len(MIB)?;
    let copy = server.path("copy").display().to_string();
    let uri = server.uri("");
    let clients = [
        ("nbdcopy", format!("nbdcopy {uri} {copy}")),
        ("qemu-img", format!("qemu-img convert -f raw -O raw {uri} {copy}")),
    ];
    for (client, line) in clients.iter().filter(|(client, _)| is_installed(client)) {
        if Cmd::new(line).quiet_code()? == Some(0) {
            return Err(format!("{client} has copied a file that is gone").into());
        }
    }
    let log = fs::read_to_string(server.path("log"))?;
    if !log.contains("operation=\"read\"") {
        return Err(format!("no failed read is in the log: {log}").into());
    }
    Ok(Outcome::Passed)
}

/// nbdcopy of an empty image leaves a file without data as it is, and makes a file with data sparse.
pub(super) fn thin() -> Result<Outcome> {
    for has_data in [false, true] {
        let image = Image::new("serve-thin", 256)?;
        let server = image.serve("serve-thin", "")?;
        if has_data {
            fill(&image.0, 256)?;
        }
        let empty = server.path("empty");
        File::create(&empty)?.set_len(256 * MIB)?;
        Cmd::new(&format!("nbdcopy {} {}", empty.display(), server.uri(""))).run()?;
        let stored = fs::metadata(&image.0)?.blocks() * 512;
        if stored > MIB {
            return Err(format!("{stored} bytes are stored of an empty image").into());
        }
    }
    Ok(Outcome::Passed)
}

/// Clients learn that a device is read-only, for whatever reason: an option, the server behind a gateway, and a loop
/// device, if run as root.
pub(super) fn read_only() -> Result<Outcome> {
    let image = Image::new("serve-read-only", 16)?;
    is_read_only(&image.serve("serve-option", ",readonly=1")?)?;
    if is_installed("nbdkit") {
        let peer = Server::start("serve-peer", "nbdkit -r -f -U SOCKET memory 16M")?;
        is_read_only(&Server::blkmq("serve-gateway", &peer.uri(""), "none", "--export=")?)?;
    }
    if is_installed("nbd-server") {
        let folder = Folder::new("nbd-server")?;
        let config = folder.path().join("nbd-server.conf");
        let socket = Server::folder("serve-peer").join("socket");
        let export = format!("[disk]\nexportname = {}\nreadonly = true\n", image.0.display());
        fs::write(&config, format!("[generic]\nunixsock = {}\n{export}", socket.display()))?;
        let line = format!("nbd-server -d -C {}", config.display());
        let peer = Server::start_unasked("serve-peer", &line)?;
        is_read_only(&Server::blkmq("serve-gateway", &peer.uri("disk"), "none", "--export=")?)?;
    } else {
        println!("nbd-server: SKIPPED, it is not installed");
    }
    let (is_attached, disk) =
        Cmd::new(&format!("losetup --read-only --find --show {}", image.0.display())).attempt()?;
    if !is_attached {
        println!("skipped: no loop device here");
        return Ok(Outcome::Passed);
    }
    let device = format!("uring:{}", disk.trim());
    let told =
        Server::blkmq("serve-loop", &device, "none", "--export=").and_then(|it| is_read_only(&it));
    Cmd::new(&format!("losetup --detach {}", disk.trim())).run()?;
    told.map(|()| Outcome::Passed)
}

fn is_read_only(server: &Server) -> Result<()> {
    let report = Cmd::new(&format!("nbdinfo --json {}", server.uri(""))).output()?;
    let report = &parse_json(&report)?["exports"][0];
    let can = ["can_trim", "can_zero", "can_fast_zero"].map(|key| report[key] == true);
    if report["is_read_only"] != true || can.contains(&true) {
        return Err(format!("not announced as read-only: {report}").into());
    }
    Ok(())
}

/// A file of this many MiB without data, which is removed when this is dropped.
struct Image(PathBuf);

impl Image {
    fn new(name: &str, mib: u64) -> Result<Self> {
        let file = std::env::temp_dir().join(format!("blkmq-{name}-{}.img", std::process::id()));
        File::create(&file)?.set_len(mib * MIB)?;
        Ok(Self(file))
    }

    fn serve(&self, name: &str, options: &str) -> Result<Server> {
        let device = format!("uring:{}{options}", self.0.display());
        Server::blkmq(name, &device, "mq-deadline", "--export=")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A leftover file does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes data to the file, bypassing the server.
fn fill(file: &Path, mib: u64) -> Result<()> {
    let to = format!("of={}", file.display());
    let line = format!("dd if=/dev/urandom bs=1M count={mib} conv=notrunc,fsync status=none");
    Cmd::new(&line).arg(to).run()
}

//! `blkmqd` with real clients.

mod counts;
mod dashboards;
mod ext4;
mod figures;
mod follower;
mod killed;
mod latencies;
mod libnbd;
mod live;
mod page;
mod reconnect;
mod scenes;
mod tls;
pub(super) mod trace;
mod truth;

use super::{Outcome, nbd};
use crate::Result;
use crate::nbd::Server;
use crate::serve::{attacks, ceilings, crash, floors, isolation, peers, soak};
use crate::shell::{Cmd, parse_json};
use serde_json::Value;
use std::fs;
use std::time::Duration;

pub(super) use counts::{counted, metrics};
pub(super) use dashboards::{dashboards, prometheus, rules};
pub(super) use ext4::ext4;
pub(super) use figures::figures;
pub(super) use killed::{killed, verified};
pub(super) use latencies::latencies;
pub(super) use libnbd::{handshakes, started};
pub(super) use live::{changed, stuck};
pub(super) use page::page;
pub(crate) use page::screenshots;
pub(super) use reconnect::{all_succeeded, goes_on, load, reconnects};
pub(super) use scenes::scenes;
pub(super) use tls::{certificates, tls};
pub(super) use trace::traced;
pub(super) use truth::{cut, lists, read_only, thin};

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
    nbd::copies(&server, &uri, 1024, &options)?;
    Ok(Outcome::Passed)
}

/// qemu-io finds its patterns, under every form of headers that it can be offered.
pub(super) fn qemu() -> Result<Outcome> {
    nbd::patterns(&Server::blkmq("serve-qemu", DEVICE, "mq-deadline", "--export=")?)
}

/// fio verifies its writes under each scheduler.
pub(super) fn fio() -> Result<Outcome> {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        nbd::verifies(&Server::blkmq("serve-fio", DEVICE, scheduler, "--export=")?)?;
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
        fs::File::create(&file)?.set_len(256 * MIB)?;
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
    peers::test_size().map(|()| Outcome::Passed)
}

/// The ceiling of an export compared with those of QEMU and Linux, in test size.
pub(super) fn ceilings() -> Result<Outcome> {
    ceilings::test_size().map(|()| Outcome::Passed)
}

/// Three clients share a device by weight, briefly.
pub(super) fn isolation() -> Result<Outcome> {
    isolation::test_size().map(|()| Outcome::Passed)
}

/// A tenant with a floor beside one that floods a device, briefly.
pub(super) fn floors() -> Result<Outcome> {
    floors::test_size().map(|()| Outcome::Passed)
}

/// A client beside each attack, briefly.
pub(super) fn attacks() -> Result<Outcome> {
    attacks::test_size().map(|()| Outcome::Passed)
}

/// Some rounds of clients that connect, disconnect and are killed.
pub(super) fn soak() -> Result<Outcome> {
    soak::soak(Duration::from_secs(10), 1000).map(|()| Outcome::Passed)
}

/// A server that is killed five times has every flushed block.
pub(super) fn crash() -> Result<Outcome> {
    let flushed = crash::crashes(5)?;
    println!("{flushed} flushed writes");
    Ok(Outcome::Passed)
}

//! A client that reconnects continues when its server is killed and started again.

use super::super::Outcome;
use crate::Result;
use crate::fio::pause;
use crate::nbd::Server;
use crate::shell::Cmd;
use std::fs::{self, File};
use std::path::Path;

/// How often the server is killed.
const KILLS: u32 = 5;
/// Seconds that the client may take to continue after a restart.
const LIMIT: u32 = 30;

/// QEMU's client writes blocks and reads each back, without a pause, while the server on a file is killed five times.
/// Every command succeeds, and every block has the last written data.
pub(in crate::interop) fn reconnects() -> Result<Outcome> {
    let folder = std::env::temp_dir().join(format!("blkmq-reconnect-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let result = kills(&folder);
    fs::remove_dir_all(&folder)?;
    let written = result?;
    println!("killed {KILLS} times; {written} blocks were written and read back");
    Ok(Outcome::Passed)
}

/// Starts the server, retrying for some seconds as a service manager does: the kernel may still be closing the rings of
/// the killed server, which keep its file open.
fn start(device: &str) -> Result<Server> {
    let start = || Server::blkmq("serve-reconnect", device, "mq-deadline", "--export= --log=error");
    for _ in 0..20 {
        pause(0.2)?;
        match start() {
            Err(error) if error.to_string().contains("has it open") => {}
            started => return started,
        }
    }
    start()
}

fn kills(folder: &Path) -> Result<usize> {
    let (disk, stop, log) = (folder.join("disk"), folder.join("stop"), folder.join("log"));
    File::create(&disk)?.set_len(64 << 20)?;
    let device = format!("uring:{}", disk.display());
    let first = start(&device)?;
    let socket = first.path("socket");
    let mut server = Some(first);
    let mut client = Cmd::new("sh -c").arg(load(&socket, &stop)).start(File::create(&log)?)?;
    let result = (0..KILLS).try_for_each(|_| -> Result<()> {
        goes_on(&log)?;
        // Its socket is removed as well.
        drop(server.take());
        server = Some(start(&device)?);
        Ok(())
    });
    let result = result.and_then(|()| goes_on(&log));
    // The client is stopped whatever the state of the server.
    File::create(&stop)?;
    if result.is_err() {
        client.kill()?;
    }
    client.wait()?;
    drop(server);
    result?;
    all_succeeded(&fs::read_to_string(&log)?)
}

/// The blocks that the client with this log has written.
///
/// # Errors
/// If a command of it failed.
pub(in crate::interop) fn all_succeeded(log: &str) -> Result<usize> {
    match log.lines().find(|line| !is_of_success(line)) {
        Some(line) => Err(format!("the client says: {line}").into()),
        None => Ok(log.matches("wrote ").count()),
    }
}

/// Commands for qemu-io, until `stop` exists: a different pattern for each block, at 200 offsets.
pub(in crate::interop) fn load(socket: &Path, stop: &Path) -> String {
    let image =
        format!("driver=nbd,server.type=unix,server.path={},reconnect-delay=60", socket.display());
    format!(
        "n=0; while [ ! -e {} ]; do n=$(((n + 7) % 251)); at=$((n % 200 * 64))k; \
         echo write -P $n $at 64k; echo read -P $n $at 64k; done | qemu-io --image-opts {image}",
        stop.display()
    )
}

/// Waits until the client has written more blocks than now, and returns their number.
pub(in crate::interop) fn goes_on(log: &Path) -> Result<usize> {
    let written = || Ok::<_, std::io::Error>(fs::read_to_string(log)?.matches("wrote ").count());
    let before = written()?;
    for _ in 0..LIMIT * 10 {
        pause(0.1)?;
        let now = written()?;
        if now > before + 100 {
            return Ok(now);
        }
    }
    let said = fs::read_to_string(log)?;
    let last = said.lines().last().unwrap_or_default();
    Err(format!("the client does not go on; its last words: {last}").into())
}

/// Each command prints two lines: the work done, and its speed. The prompt precedes one of them, or is alone at the
/// end.
fn is_of_success(line: &str) -> bool {
    let line = line.trim_start_matches("qemu-io> ").trim();
    let done = |word| line.starts_with(word) && line.contains("65536/65536 bytes");
    done("wrote ") || done("read ") || line.starts_with("64 KiB, 1 ops") || line.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_no_line_of_success() {
        for line in [
            "qemu-io> wrote 65536/65536 bytes at offset 0",
            "read 65536/65536 bytes at offset 131072",
            "64 KiB, 1 ops; 00.00 sec (1.2 GiB/sec and 19685.0394 ops/sec)",
            "qemu-io> ",
        ] {
            assert!(is_of_success(line), "{line}");
        }
        for line in [
            "Pattern verification failed at offset 0, 65536 bytes",
            "qemu-io> write failed: Input/output error",
            "read 512/65536 bytes at offset 0",
        ] {
            assert!(!is_of_success(line), "{line}");
        }
    }
}

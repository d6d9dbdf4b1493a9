//! A server from outside: its connections, descriptors and memory.

use crate::Result;
use crate::fio::pause;
use crate::nbd::Server;
use std::fs;

/// The most checks of a value that has to change, 20 ms apart: ten seconds.
const LOOKS: u32 = 500;

impl Server {
    /// Connections that have agreed on an export, if it is `blkmqd`.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) fn connections(&self) -> Result<u64> {
        let list = self.ctl("list")?;
        let exports =
            list["list"]["exports"].as_array().ok_or_else(|| format!("no list: {list}"))?;
        Ok(exports.iter().map(|export| export["connections"].as_u64().unwrap_or(u64::MAX)).sum())
    }

    /// Waits until there are `count` connections.
    ///
    /// # Errors
    /// If the number differs after some seconds.
    pub(crate) fn connected(&self, count: u64) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.connections()?;
            if found == count {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} connections, expected {count}").into())
    }

    /// Waits until at most `before` descriptors are open: then the requests of disconnected clients are finished, too.
    ///
    /// # Errors
    /// If there are more after some seconds.
    pub(crate) fn closed(&self, before: usize) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.descriptors()?;
            if found <= before {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} descriptors, {before} before the clients came").into())
    }

    /// Open descriptors.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Memory that is in use, in KiB.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        resident(&status).ok_or_else(|| "no memory in the kernel's accounts".into())
    }
}

/// The KiB in the line `VmRSS`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_in_use() {
        let status = "Name:\tblkmq\nVmHWM:\t  99 kB\nVmRSS:\t   4321 kB\n";
        assert_eq!(resident(status), Some(4321));
        assert_eq!(resident("Name:\tblkmq\n"), None);
    }
}

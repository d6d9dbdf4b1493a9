//! A Ceph cluster on this host: a monitor, and an OSD on a file, in their own folder. It needs no privileges, no loop
//! device and no systemd, and ignores the machine's own configuration.

use crate::Result;
use crate::fio::pause;
use crate::shell::{Cmd, is_installed, timed};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Bytes of the OSD's file, which has holes where nothing was written. An OSD whose file is full of data and of its own
/// tables ends, and clients then wait for it.
const BLOCK: u64 = 12 << 30;
/// The most tries, five a second, until a daemon must be up.
const TRIES: u32 = 300;

/// A cluster; its daemons are killed, and its folder is removed, when this is dropped.
pub(crate) struct Cluster {
    folder: PathBuf,
    mon: Option<Child>,
    osd: Option<Child>,
}

/// A program that a cluster needs and that is missing; `None` if there is none.
pub(crate) fn missing() -> Option<&'static str> {
    ["ceph-mon", "ceph-osd", "ceph", "rbd"].into_iter().find(|program| !is_installed(program))
}

/// The configuration: one OSD is enough, and all files are in the folder. Clients have no cache: that of librbd would
/// answer before the cluster does.
fn conf(folder: &Path, fsid: &str, [v2, v1]: [u16; 2]) -> String {
    let d = folder.display();
    format!(
        "[global]\nfsid = {fsid}\nmon host = [v2:127.0.0.1:{v2}/0,v1:127.0.0.1:{v1}/0]\n\
         auth cluster required = none\nauth service required = none\nauth client required = none\n\
         public addr = 127.0.0.1\ncluster addr = 127.0.0.1\n\
         osd pool default size = 1\nosd pool default min size = 1\nosd pool default pg num = 8\n\
         osd pool default pg autoscale mode = off\nosd crush chooseleaf type = 0\n\
         mon allow pool size one = true\nmon allow pool delete = true\nmon data avail crit = 1\n\
         run dir = {d}\nadmin socket = {d}/$name.asok\npid file = {d}/$name.pid\n\
         log file = {d}/$name.log\nkeyring = {d}/keyring\n\
         [mon]\nmon data = {d}/mon\n\
         [osd]\nosd data = {d}/osd$id\nosd objectstore = bluestore\n\
         bluestore block size = {BLOCK}\nbluestore block create = true\n\
         osd memory target = 939524096\n\
         [client]\nadmin socket =\nlog file =\nrbd cache = false\n"
    )
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// Two ports that are free at this moment.
fn ports() -> Result<[u16; 2]> {
    let sockets = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([sockets[0].local_addr()?.port(), sockets[1].local_addr()?.port()])
}

impl Cluster {
    /// Starts it, with the pool `rbd`.
    ///
    /// # Errors
    /// If a daemon or a tool does not work; all of it is then removed.
    pub(crate) fn start(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("blkmq-ceph-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("osd0"))?;
        // From here on, dropping it removes all of it.
        let mut cluster = Self { folder, mon: None, osd: None };
        let (made, time) = timed(|| cluster.bring_up());
        made?;
        println!("a cluster is up after {time:.1?}");
        Ok(cluster)
    }

    fn bring_up(&mut self) -> Result<()> {
        let (fsid, [v2, v1]) = (uuid()?, ports()?);
        fs::write(self.path("ceph.conf"), conf(&self.folder, &fsid, [v2, v1]))?;
        let keyring = self.path("keyring").display().to_string();
        for (name, caps) in [
            ("mon.", "--cap mon allow_*"),
            ("client.admin", "--cap mon allow_* --cap osd allow_*"),
            ("osd.0", "--cap mon allow_profile_osd --cap osd allow_*"),
        ] {
            let create = if name == "mon." { "--create-keyring" } else { "" };
            let mut cmd =
                self.cmd(&format!("ceph-authtool {create} {keyring} --gen-key -n {name}"));
            // A capability is one word with blanks.
            for word in caps.split(' ') {
                cmd = cmd.arg(word.replace('_', " "));
            }
            cmd.output()?;
        }
        let map = self.path("monmap").display().to_string();
        let addresses = format!("[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]");
        let create = format!("monmaptool --create --addv a {addresses} --fsid {fsid} {map}");
        self.cmd(&create).output()?;
        let mkfs = format!("ceph-mon --mkfs -i a --monmap {map} --keyring {keyring}");
        self.cmd(&mkfs).output()?;
        self.start_mon()?;
        let osd = uuid()?;
        self.cmd(&format!("ceph osd new {osd}")).output()?;
        self.cmd(&format!("ceph-osd -i 0 --mkfs --osd-uuid {osd}")).quiet_code()?;
        self.start_osd()?;
        self.cmd("ceph osd pool create rbd 8").output()?;
        self.cmd("rbd pool init rbd").output()?;
        Ok(())
    }

    /// A command line under the configuration of the cluster.
    pub(crate) fn cmd(&self, line: &str) -> Cmd {
        Cmd::new(line).env("CEPH_CONF", self.path("ceph.conf").display().to_string())
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The description of an image as a blkmq device.
    pub(crate) fn device(&self, image: &str) -> String {
        format!("rbd:{image},conf={}", self.path("ceph.conf").display())
    }

    /// Makes an image.
    ///
    /// # Errors
    /// If the cluster refuses.
    pub(crate) fn create(&self, image: &str, mib: u64) -> Result<()> {
        self.cmd(&format!("rbd create --size {mib} {image}")).output().map(drop)
    }

    fn daemon(&self, line: &str) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.path("daemons"))?;
        self.cmd(line).start(log)
    }

    /// Starts the monitor.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start_mon(&mut self) -> Result<()> {
        self.mon = Some(self.daemon("ceph-mon -f -i a")?);
        Ok(())
    }

    /// Starts the OSD, and waits until the monitor reports it as up.
    ///
    /// # Errors
    /// If it does not come up.
    pub(crate) fn start_osd(&mut self) -> Result<()> {
        self.osd = Some(self.daemon("ceph-osd -f -i 0")?);
        for _ in 0..TRIES {
            if self.cmd("ceph osd stat").output()?.contains("1 up") {
                return Ok(());
            }
            pause(0.2)?;
        }
        let log = fs::read_to_string(self.path("daemons")).unwrap_or_default();
        Err(format!("the OSD does not come up: {log}").into())
    }

    /// Fails if the OSD has ended without a kill: loads that wait for it never end.
    ///
    /// # Errors
    /// If it has.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(osd) = &self.osd else { return Ok(()) };
        let status = fs::read_to_string(format!("/proc/{}/status", osd.id())).unwrap_or_default();
        if has_ended(&status) { Err("the OSD has ended by itself".into()) } else { Ok(()) }
    }

    /// `kill -9` of the monitor.
    pub(crate) fn kill_mon(&mut self) {
        end(self.mon.take());
    }

    pub(crate) fn kill_osd(&mut self) {
        end(self.osd.take());
    }
}

/// Returns whether the state of a child, as in `/proc/PID/status`, means that it has ended.
fn has_ended(status: &str) -> bool {
    status.is_empty() || status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

fn end(daemon: Option<Child>) {
    if let Some(mut daemon) = daemon {
        // The daemon may have ended already.
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_osd();
        self.kill_mon();
        // A leftover folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_has_ended_is_told_from_one_that_runs() {
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(!has_ended(&own));
        assert!(has_ended("Name:\tceph-osd\nState:\tZ (zombie)\n"));
        assert!(has_ended(""), "there is no such process");
    }
}

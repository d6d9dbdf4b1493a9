//! A server on a socket in a separate folder.

use crate::client::Client;
use blkmq::{Clock, Nanos};
use blkmq_server::control::{GoesOn, Program, Saved};
use blkmq_server::{Address, Bounds, Disk, Export, Listener, Rights, Server, Settings};
use std::path::PathBuf;
use tempfile::TempDir;

pub struct Rig {
    pub server: Server,
    pub socket: PathBuf,
    _folder: TempDir,
}

/// Serves 16 MiB of memory under mq-deadline, with two workers.
pub fn serve(exports: &[Export]) -> Rig {
    serve_on("memory,size=16", exports, Bounds::default())
}

pub fn serve_on(device: &str, exports: &[Export], bounds: Bounds) -> Rig {
    Rig::start(device, exports, &Settings { bounds, ..Settings::default() })
}

/// A program that gets no requests.
pub struct NoProgram;

impl Program for NoProgram {
    fn drain(&self) {
        unreachable!("nothing asks for the end")
    }

    fn reload(&self, _: GoesOn<'_>) -> Result<Vec<String>, String> {
        unreachable!("nothing asks for a reload")
    }

    fn add(&self, _: &str, _: GoesOn<'_>) -> Result<String, String> {
        unreachable!("nothing asks for that")
    }

    fn remove(&self, _: &str) -> Result<String, String> {
        unreachable!("nothing asks for that")
    }

    fn diff(&self) -> Result<Vec<String>, String> {
        Err("there is no file".to_owned())
    }

    fn save(&self) -> Result<Option<Saved>, String> {
        Err("there is no file".to_owned())
    }
}

impl Rig {
    /// Starts a server with these settings on a separate socket.
    pub fn start(device: &str, exports: &[Export], settings: &Settings) -> Self {
        Self::start_on(&[device], exports, settings)
    }

    /// Starts a server of several devices.
    pub fn start_on(devices: &[&str], exports: &[Export], settings: &Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("server.sock");
        let disks = devices.iter().map(|device| {
            let device = blkmq::open(device).expect("a device");
            Disk::start("disk", device, "mq-deadline", 2).expect("a disk")
        });
        let disks = disks.collect();
        let listener = Listener::bind(&Address::Unix(socket.clone()), &Rights::default());
        let listeners = vec![listener.expect("the path is free")];
        let server = Server::start(disks, exports, listeners, 2, settings);
        let server = server.expect("a server");
        Self { server, socket, _folder: folder }
    }

    /// A client of the export `name`.
    pub fn client(&self, name: &str) -> Client {
        Client::connect(&self.socket, name)
    }

    /// Waits until no connection is left, and checks that no traces of them remain.
    pub fn check_at_rest(&self) {
        until(|| self.server.connections() == 0);
        for disk in self.server.disks() {
            let queue = disk.service().queue();
            assert_eq!(queue.tags_in_use(blkmq::core::HwQueue(0)), 0);
        }
    }
}

/// Waits until `is_so` returns true.
///
/// # Panics
/// After a minute: a defect must fail the test instead of hanging it.
#[track_caller]
pub fn until(is_so: impl Fn() -> bool) {
    let clock = Clock::start();
    let last = clock.now() + Nanos::from_secs(60);
    while !is_so() {
        assert!(clock.now() < last, "this has not come about");
        std::thread::yield_now();
    }
}

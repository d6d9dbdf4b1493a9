//! [`Server`]: its start, its parts and its end.

use crate::allow::{Allow, Gate};
use crate::clients::{Bounds, Clients, Guests, Tenants};
use crate::control::{self, Answer, Control, GoesOn, Program, Request};
use crate::disk::Disk;
use crate::export::{Catalog, Export, ExportError};
use crate::figures::{Counting, Judge};
use crate::http::Http;
use crate::listener::{Address, Listener, Rights};
use crate::log::Refusals;
use crate::metrics::{self, Format};
use crate::threads::{Acceptor, Devices, Message, Running};
use crate::tls::Tls;
use crate::ublk;
use crate::vhost::Backend;
use crate::watch::Watch;
use crate::worker::{Shared, Worker};
use blkmq::Nanos;
use blkmq_nbd::server as nbd;
use blkmq_nbd::server::Config;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The settings of a server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Limits on greedy clients.
    pub bounds: Bounds,
    /// The features offered in handshakes, except TLS.
    pub handshake: Config,
    /// TLS, which all clients must then use; `None` to disable it.
    pub tls: Option<Tls>,
    /// The clients that may use its listeners; `None` for all.
    pub allow: Option<Allow>,
    /// Whether and since when requests are counted.
    pub counting: Counting,
    /// I/Os that take longer than this are logged with the stages of their time; zero disables that. Otherwise requests
    /// are counted from the start.
    pub slow: Nanos,
    /// The permissions of the sockets of exports for virtual machines.
    pub rights: Rights,
}

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An export is impossible.
    #[error("{0}")]
    Export(ExportError),
    /// The socket of an export for virtual machines was refused.
    #[error("{}: {}", .0.display(), .1)]
    Socket(PathBuf, io::Error),
    /// The block device of an export was refused.
    #[error("ublk {0}: {1}")]
    Ublk(u32, String),
    /// The system refused threads or descriptors, or a disk was started for fewer workers.
    #[error("{0}")]
    System(io::Error),
}

/// A running server. Dropping it ends it immediately; [`drain`](Self::drain) lets requests finish first.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    guests: Arc<Guests>,
    listening: Vec<Address>,
    acceptor: Option<Running>,
    workers: Vec<Running>,
    control: Option<Control>,
    http: Option<Http>,
    /// Dropped with the server.
    _watch: Watch,
}

/// A handle to query and change a running server.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// The disks of the server.
    #[must_use]
    pub fn disks(&self) -> &[Disk] {
        &self.0.disks
    }

    /// Adds an export, which is available to clients immediately.
    ///
    /// # Errors
    /// If the name is taken, the export is impossible, it has a socket for virtual machines, its block device is
    /// refused, or a removed export of this name still has connections.
    pub fn add_export(&self, export: &Export) -> Result<(), ExportError> {
        self.add_export_while(export, &|| true)
    }

    /// Like [`add_export`](Self::add_export), for a caller that may give up: `goes_on` is called while the device is
    /// being changed, and while a change of scheduler for the new export waits for I/Os in flight.
    ///
    /// # Errors
    /// See [`add_export`](Self::add_export); also once `goes_on` returns false, or after waiting for ten seconds.
    pub fn add_export_while(
        &self,
        export: &Export,
        goes_on: GoesOn<'_>,
    ) -> Result<(), ExportError> {
        if export.vhost_user.is_some() {
            return Err(ExportError::VhostUser);
        }
        self.0.exports.add(export, &self.0.disks, &control::patient(goes_on))?;
        let Some(settings) = export.ublk else { return Ok(()) };
        ublk::start(&self.0, export, settings).map_err(|why| {
            self.remove_export(&export.name);
            ExportError::Ublk(settings.number, why)
        })
    }

    /// Removes the export `name`. Returns false if it does not exist. Its requests in flight are answered, further
    /// requests on its connections get `ESHUTDOWN`, and its group is removed within a second after the last connection.
    /// Waits for the end of its block device, if it has one.
    pub fn remove_export(&self, name: &str) -> bool {
        let was_there = self.0.exports.remove(name);
        if let Err(error) = self.0.devices.remove(name) {
            tracing::error!(export = name, "the thread of a device has failed: {error}");
        }
        was_there
    }

    /// Changes the clients that may use the server's listeners. Connections of other clients are closed within a
    /// second.
    pub fn allow(&self, allow: Option<Allow>) {
        self.0.allow.set(allow);
    }

    /// Changes the clients that may use the export `name`. Returns false if it does not exist. Connections of other
    /// clients are closed within a second.
    #[must_use]
    pub fn allow_export(&self, name: &str, allow: Option<Allow>) -> bool {
        let exports = self.0.exports.now();
        let export = exports.all().find(|export| export.info.name == name);
        export.inspect(|export| export.allow.set(allow)).is_some()
    }

    /// The TLS of the server, to [renew](Tls::renew) its certificates; `None` if it is disabled.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// The counts of the server for Prometheus; counting begins with the first call.
    ///
    /// # Errors
    /// If the server must not count.
    pub fn metrics(&self, format: Format) -> Result<String, String> {
        metrics::text(&self.0, format)
    }

    /// How often each worker has read the clock, wrapping around. A worker whose count is unchanged after two seconds
    /// is stuck, or gets no processor.
    #[must_use]
    pub fn beats(&self) -> Vec<u32> {
        self.0.beats.iter().map(|beat| beat.load(Ordering::Relaxed)).collect()
    }

    /// Handles a control request. [`Request::Drain`] and [`Request::Reload`] need the program, and are refused here.
    #[must_use]
    pub fn ask(&self, request: Request) -> Answer {
        self.ask_while(request, &|| true)
    }

    /// Like [`ask`](Self::ask), for a caller that may give up: once `goes_on` returns false, a change that waits for
    /// I/Os in flight is refused.
    #[must_use]
    pub fn ask_while(&self, request: Request, goes_on: GoesOn<'_>) -> Answer {
        control::respond(request, &self.0, None, goes_on)
    }
}

/// Enables counting if it begins with the server.
fn count(shared: &Shared, settings: &Settings) -> io::Result<()> {
    let slow = settings.slow > Nanos::ZERO;
    for disk in &shared.disks {
        let set = |path: &str, value: &str| {
            disk.service().set_attribute(path, value).map(|_| ()).map_err(io::Error::other)
        };
        if slow {
            set("blkmq/slow_io", &settings.slow.0.div_ceil(1_000_000).to_string())?;
        }
        if slow || settings.counting == Counting::Always {
            set("queue/iostats", "1")?;
        }
    }
    Ok(())
}

impl Server {
    /// Serves `exports` of `disks` on `listeners` with `workers` threads. Each disk must have been started for at least
    /// [`threads_of`](Self::threads_of) it.
    ///
    /// # Errors
    /// If an export is impossible, the socket of one is in use, or the system refuses threads or descriptors.
    pub fn start(
        disks: Vec<Disk>,
        exports: &[Export],
        listeners: Vec<Listener>,
        workers: u16,
        settings: &Settings,
    ) -> Result<Self, ServerError> {
        let catalog = Catalog::new(exports, &disks).map_err(ServerError::Export)?;
        let tls = if settings.tls.is_some() { nbd::Tls::Required } else { nbd::Tls::Off };
        let shared = Arc::new(Shared {
            disks,
            exports: catalog,
            bounds: settings.bounds,
            handshakes: settings.bounds.handshakes.div_ceil(workers.max(1).into()),
            handshake: Config { tls, ..settings.handshake },
            tls: settings.tls.clone(),
            allow: Gate::new(settings.allow.clone()),
            tenants: Arc::new(Tenants::default()),
            refusals: Arc::new(Refusals::new()),
            clients: Clients::new(),
            judge: Judge::default(),
            counting: settings.counting,
            devices: Devices::default(),
            beats: (0..workers).map(|_| AtomicU32::new(0)).collect(),
        });
        count(&shared, settings).map_err(ServerError::System)?;
        let watch = Watch::start(Arc::clone(&shared)).map_err(ServerError::System)?;
        let mut server = Self {
            shared,
            guests: Arc::new(Guests::new(workers.into())),
            listening: listeners.iter().map(|it| it.address().clone()).collect(),
            acceptor: None,
            workers: Vec::new(),
            control: None,
            http: None,
            _watch: watch,
        };
        server.start_backends(exports, &settings.rights)?;
        server.start_devices(exports)?;
        server.start_threads(listeners, workers).map_err(ServerError::System)?;
        Ok(server)
    }

    /// Checks exports without serving them. Returns, for each that could not be served together with those before it,
    /// its index in `exports` and the reason. Groups are added to the disks during the check.
    #[must_use]
    pub fn check(disks: &[Disk], exports: &[Export]) -> Vec<(usize, ExportError)> {
        Catalog::check(exports, disks)
    }

    fn start_threads(&mut self, listeners: Vec<Listener>, workers: u16) -> io::Result<()> {
        for number in 0..workers {
            let prepare = |inbox| {
                let worker = Worker::new(number.into(), Arc::clone(&self.shared), inbox)?;
                Ok(move || worker.run())
            };
            self.workers.push(Running::start(format!("worker {number}"), prepare)?);
        }
        let workers = self.workers.iter().map(|worker| Arc::clone(&worker.inbox)).collect();
        let (guests, bounds) = (Arc::clone(&self.guests), self.shared.bounds);
        let refusals = Arc::clone(&self.shared.refusals);
        let acceptor = Running::start("accept".to_owned(), |inbox| {
            let acceptor = Acceptor::new(listeners, inbox, guests, workers, bounds, refusals);
            Ok(move || acceptor.run())
        });
        self.acceptor = Some(acceptor?);
        Ok(())
    }

    /// Lets clients control the server over the socket `path` (see [`control`](crate::control)) until it ends.
    /// `program` handles requests that the server cannot.
    ///
    /// # Errors
    /// If the path is in use or not permitted, or no thread can be started.
    pub fn control(&mut self, path: &Path, program: Arc<dyn Program>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.control = Some(Control::start(path, shared, program)?);
        Ok(())
    }

    /// Answers HTTP on `listener` until the server ends: a web page, figures for programs, and changes for requests
    /// with the key, which is returned. `names` are accepted host names, besides `localhost` and IP addresses; requests
    /// to other hosts are refused.
    ///
    /// # Errors
    /// If the system cannot provide random numbers, descriptors or threads.
    pub fn http(&mut self, listener: Listener, names: Vec<String>) -> io::Result<String> {
        let (shared, guests) = (Arc::clone(&self.shared), Arc::clone(&self.guests));
        let http = Http::start(listener, names, shared, guests)?;
        let key = http.key().to_owned();
        self.http = Some(http);
        Ok(key)
    }

    /// Starts the threads of exports that are disks of virtual machines.
    fn start_backends(&mut self, exports: &[Export], rights: &Rights) -> Result<(), ServerError> {
        for export in exports {
            let Some(settings) = export.vhost_user.clone() else { continue };
            let (path, of) = (settings.path.clone(), (&export.name[..], export.disk));
            let started = Running::start(format!("vhost {}", export.name), |inbox| {
                let shared = Arc::clone(&self.shared);
                let backend = Backend::new(of, settings, rights, shared, inbox)?;
                Ok(move || backend.run())
            });
            self.workers.push(started.map_err(|error| ServerError::Socket(path, error))?);
        }
        Ok(())
    }

    /// Starts the threads of exports that are block devices of this machine, and waits until the devices exist.
    fn start_devices(&self, exports: &[Export]) -> Result<(), ServerError> {
        for export in exports {
            let Some(settings) = export.ublk else { continue };
            let started = ublk::start(&self.shared, export, settings);
            started.map_err(|why| ServerError::Ublk(settings.number, why))?;
        }
        Ok(())
    }

    /// The number of threads that serve disk number `disk`: the workers, and one for each of its exports that is a disk
    /// of a virtual machine or a block device of this machine. A disk is [started](Disk::start) for this number.
    #[must_use]
    pub fn threads_of(disk: usize, exports: &[Export], workers: u16) -> u16 {
        let of_machines = |export: &&Export| export.disk == disk && export.vhost_user.is_some();
        let machines = exports.iter().filter(of_machines).count();
        let of_kernel = |export: &&Export| export.disk == disk && export.ublk.is_some();
        let threads = machines + exports.iter().filter(of_kernel).count();
        workers.saturating_add(u16::try_from(threads).unwrap_or(u16::MAX))
    }

    /// A handle to query and change the server from any thread. It keeps the disks alive.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Returns the listening addresses.
    #[must_use]
    pub fn listening(&self) -> &[Address] {
        &self.listening
    }

    /// The URIs of an export for clients: `nbd+unix:///NAME?socket=PATH`, `nbd://HOST:PORT/NAME`, or `nbds` with TLS.
    pub fn uris(&self, export: &str) -> impl Iterator<Item = String> {
        let scheme = if self.shared.tls.is_some() { "nbds" } else { "nbd" };
        self.listening.iter().map(move |address| address.uri(scheme, export))
    }

    /// The names of the exports.
    #[must_use]
    pub fn exports(&self) -> Vec<String> {
        self.shared.exports.now().names().map(str::to_owned).collect()
    }

    /// Returns whether the export is read-only at present, by its settings or its device; true if it does not exist.
    #[must_use]
    pub fn is_read_only(&self, export: &str) -> bool {
        self.shared.exports.now().get(export).is_none_or(|it| it.is_read_only())
    }

    /// Its disks.
    #[must_use]
    pub fn disks(&self) -> &[Disk] {
        &self.shared.disks
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.guests.total()
    }

    /// Accepts no more connections, answers the requests that are in flight, refuses new ones with `ESHUTDOWN`, and
    /// returns when all connections are closed.
    ///
    /// # Errors
    /// If a thread of the server failed.
    pub fn drain(mut self) -> io::Result<()> {
        if let Some(http) = &self.http {
            http.drain();
        }
        self.end(|| Message::Drain)
    }

    /// Like [`drain`](Self::drain), for a server that is replaced by another one on the same sockets: connections are
    /// closed once their requests in flight are answered, and no request is refused, so that clients reconnect and
    /// continue.
    ///
    /// # Errors
    /// If a thread of the server failed.
    pub fn hand_over(mut self) -> io::Result<()> {
        self.end(|| Message::HandOver)
    }

    fn end(&mut self, message: fn() -> Message) -> io::Result<()> {
        // The listeners end first, so that no connection arrives after the message.
        let accepted = self.acceptor.take().map_or(Ok(()), |acceptor| {
            acceptor.inbox.send(message());
            acceptor.join()
        });
        self.workers.extend(self.shared.devices.take());
        // All workers get the message before one of them is joined.
        self.workers.iter().for_each(|worker| worker.inbox.send(message()));
        self.workers.drain(..).map(Running::join).fold(accepted, io::Result::and)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Failures of a dropped server cannot be reported.
        let _ = self.end(|| Message::Stop);
    }
}

//! TLS: `docs/spec/nbd.md`, section 3.2, and lines 7 and 8 of its tests.

use crate::rig::{self, Header, Rig, Talk};
use blkmq_server::{Bounds, Export, Settings, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const TLS_REQUIRED: u32 = (1 << 31) + 5;
const INVALID: u32 = (1 << 31) + 3;

type Secure = StreamOwned<ClientConnection, UnixStream>;

/// An authority, with which certificates are signed.
pub struct Authority {
    pub pem: String,
    pub issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).expect("it can sign").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// The TLS of a client with this certificate, or none.
    pub fn client(&self, identity: Option<&Identity>) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(der(&self.pem)).expect("an authority");
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ciphers")
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                config.with_client_auth_cert(vec![der(certificate)], key).expect("they fit")
            }
        };
        let name = "localhost".try_into().expect("a name");
        ClientConnection::new(Arc::new(config), name).expect("random numbers")
    }

    /// A certificate with this common name, which is also its alternative name.
    pub fn sign(&self, name: &str) -> Identity {
        self.sign_with(name, |_| {})
    }

    /// Like [`sign`](Self::sign), with changes.
    pub fn sign_with(&self, name: &str, change: impl Fn(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("it can sign").pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

/// A server with TLS, and everything that its clients need.
struct Scene {
    rig: Rig,
    authority: Authority,
    tls: Tls,
}

/// Creates a folder for the server. With `needs_clients` it contains the authority, too.
pub fn folder(authority: &Authority, needs_clients: bool) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    put(&folder, &authority.sign("localhost"));
    if needs_clients {
        std::fs::write(folder.path().join("ca-cert.pem"), &authority.pem)
            .expect("it can be written");
    }
    folder
}

/// Makes the identity that of the server.
fn put(folder: &TempDir, server: &Identity) {
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("server-cert.pem"), &server.certificate).expect("it can be written");
    std::fs::write(at("server-key.pem"), &server.key).expect("it can be written");
    mode(&at("server-key.pem"), 0o600);
}

fn mode(path: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("the file is this user's");
}

fn scene(needs_clients: bool, bounds: Bounds) -> Scene {
    Scene::on("memory,size=16", needs_clients, bounds)
}

impl Scene {
    fn on(device: &str, needs_clients: bool, bounds: Bounds) -> Self {
        let authority = Authority::new();
        let tls = Tls::load(folder(&authority, needs_clients).path()).expect("the files fit");
        let settings = Settings { tls: Some(tls.clone()), bounds, ..Settings::default() };
        let rig = Rig::start(device, &[Export::new("disk", 0)], &settings);
        Self { rig, authority, tls }
    }

    fn client(&self, identity: Option<&Identity>) -> ClientConnection {
        self.authority.client(identity)
    }

    fn socket(&self) -> &Path {
        &self.rig.socket
    }

    /// Connects a client inside TLS, at the beginning of its options.
    fn secure(&self, identity: Option<&Identity>) -> Talk<Secure> {
        let mut talk = Talk::begin(self.socket());
        talk.option(rig::STARTTLS, &[]);
        assert_eq!(talk.reply(), rig::ACK);
        Talk(StreamOwned::new(self.client(identity), talk.0))
    }

    /// Checks that a client can use the export inside TLS.
    fn serves(&self) {
        let mut talk = self.secure(None);
        talk.option(rig::EXPORT_NAME, b"disk");
        talk.take(10);
        write_and_read(&mut talk);
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

/// Writes and reads 1 MiB.
fn write_and_read(talk: &mut Talk<Secure>) {
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 4) as u8).collect();
    let header = |command, cookie| Header { command, cookie, offset: 0, length: 1 << 20 };
    talk.request(&header(1, 7));
    talk.send(&data);
    assert_eq!(talk.simple(), (0, 7));
    talk.request(&header(0, 8));
    assert_eq!(talk.simple(), (0, 8));
    assert!(talk.take(1 << 20) == data);
}

#[test]
fn data_goes_through_tls() {
    let scene = scene(false, Bounds::default());
    for _ in 0..3 {
        scene.serves();
    }
    scene.rig.check_at_rest();
}

/// Replies for which the socket has no room wait, without an error.
#[test]
fn a_client_may_take_its_replies_late() {
    let scene = scene(false, Bounds::default());
    let mut talk = scene.secure(None);
    talk.option(rig::EXPORT_NAME, b"disk");
    talk.take(10);
    let length = 512 << 10;
    for cookie in 0..40 {
        talk.request(&Header { command: 0, cookie, offset: 0, length });
    }
    for _ in 0..40 {
        assert_eq!(talk.simple().0, 0);
        assert_eq!(talk.take(length as usize), vec![0; length as usize]);
    }
}

/// Clients with one untaken reply each, and one client of each worker that has taken everything. For each further
/// client, 192 KiB more wait, so that the socket of at least one is full with the rest of its reply inside TLS.
struct Late {
    clients: Vec<(Talk<Secure>, usize)>,
    others: [Talk<Secure>; 2],
}

impl Late {
    fn new(scene: &Scene) -> Self {
        let begun = || {
            let mut talk = scene.secure(None);
            talk.option(rig::EXPORT_NAME, b"disk");
            talk.take(10);
            talk
        };
        let mut others = [begun(), begun()];
        let clients = (1..=MOST_KEPT / STEP).map(|n| {
            let (mut talk, length) = (begun(), n * STEP);
            talk.request(&Header { command: 0, cookie: 0, offset: 0, length: length as u32 });
            // Its reply is being sent. Once its worker has answered another client, too, as much of the reply has been
            // sent as possible.
            talk.take(16);
            others.iter_mut().for_each(read_a_sector);
            (talk, length)
        });
        let clients = clients.collect();
        Self { clients, others }
    }

    /// Takes the replies.
    fn take(&mut self) {
        for (client, length) in &mut self.clients {
            assert!(client.take(*length) == vec![0; *length]);
        }
    }
}

/// More than a socket buffers for a client.
const MOST_KEPT: usize = 5 << 20;
/// Less than TLS buffers for a full socket.
const STEP: usize = 192 << 10;

fn read_a_sector(talk: &mut Talk<Secure>) {
    talk.request(&Header { command: 0, cookie: 1, offset: 0, length: 512 });
    assert_eq!(talk.simple(), (0, 1));
    talk.take(512);
}

/// Regression test: the last bytes of a reply waited inside TLS for a full socket, and the server did not notice when
/// they were taken. Such a client was closed when it was idle for a minute, though it owed nothing.
#[test]
fn a_client_that_took_its_replies_late_may_be_silent() {
    let silence = blkmq::Nanos::from_millis(1500);
    let scene = scene(false, Bounds { silence, ..Bounds::default() });
    let mut late = Late::new(&scene);
    late.take();
    // When these are closed, the timeout of the others has passed.
    for half in &mut late.others {
        half.send(&[0x25, 0x60]);
    }
    for half in &mut late.others {
        assert!(half.is_closed());
    }
    for (client, _) in &mut late.clients {
        read_a_sector(client);
    }
}

/// Regression test: a drain treated connections as idle whose last bytes were still inside TLS, and truncated their
/// replies.
#[test]
fn a_drained_server_sends_what_tls_keeps() {
    let scene = scene(false, Bounds::default());
    let mut late = Late::new(&scene);
    let server = scene.rig.server;
    let drained = std::thread::spawn(move || server.drain());
    for idle in &mut late.others {
        assert!(idle.is_closed());
    }
    late.take();
    assert!(drained.join().expect("no panic").is_ok());
}

#[test]
fn s7_nothing_from_before_tls_counts_inside_of_it() {
    let scene = scene(false, Bounds::default());
    let mut talk = Talk::begin(scene.socket());
    talk.option(rig::STARTTLS, &[]);
    assert_eq!(talk.reply(), rig::ACK);
    let mut talk = Talk(StreamOwned::new(scene.client(None), talk.0));
    talk.option(rig::STARTTLS, &[]);
    assert_eq!(talk.reply(), INVALID, "there is TLS already");
    talk.option(rig::SET_META_CONTEXT, &[0; 8]);
    assert_eq!(talk.reply(), INVALID, "structured replies have not been agreed inside of TLS");
    talk.option(rig::EXPORT_NAME, b"disk");
    talk.take(10);
    write_and_read(&mut talk);
}

#[test]
fn s7_bytes_behind_starttls_are_not_carried_out() {
    let scene = scene(false, Bounds::default());
    let mut talk = Talk::begin(scene.socket());
    // In one packet: the option, and another one inserted by a man in the middle.
    let option = |number: u32| {
        [&rig::OPTION.to_be_bytes()[..], &number.to_be_bytes(), &0_u32.to_be_bytes()].concat()
    };
    talk.send(&[option(rig::STARTTLS), option(rig::LIST)].concat());
    assert_eq!(talk.reply(), rig::ACK);
    let mut talk = Talk(StreamOwned::new(scene.client(None), talk.0));
    talk.option(rig::UNKNOWN, &[]);
    assert_eq!(talk.reply(), rig::UNSUPPORTED, "the first answer inside of TLS is to this option");
}

#[test]
fn s8_without_tls_there_is_nothing_but_starttls_and_abort() {
    let scene = scene(false, Bounds::default());
    let mut talk = Talk::begin(scene.socket());
    for option in [rig::LIST, rig::GO, 6, 8, 9, 10, 11, rig::UNKNOWN] {
        talk.option(option, &[]);
        assert_eq!(talk.reply(), TLS_REQUIRED, "option {option}");
    }
    talk.option(rig::ABORT, &[]);
    assert_eq!(talk.reply(), rig::ACK);
    let mut talk = Talk::begin(scene.socket());
    talk.option(rig::EXPORT_NAME, b"disk");
    assert!(talk.is_closed());
    scene.serves();
}

#[test]
fn s8_a_client_without_the_right_certificate_is_closed_and_others_are_served() {
    let scene = scene(true, Bounds::default());
    let known = scene.authority.sign("client");
    let mut good = scene.secure(Some(&known));
    good.option(rig::EXPORT_NAME, b"disk");
    good.take(10);
    let foreign = Authority::new().sign("client");
    for identity in [None, Some(&foreign)] {
        let mut bad = scene.secure(identity);
        // In TLS 1.3 the client notices when it reads.
        let _ = bad.0.write_all(&[0; 16]);
        assert!(bad.0.read_exact(&mut [0]).is_err());
        write_and_read(&mut good);
    }
    drop(good);
    scene.rig.check_at_rest();
}

#[test]
fn half_a_tls_handshake_ends_in_time() {
    let bounds = Bounds { handshake: blkmq::Nanos::from_millis(50), ..Bounds::default() };
    let scene = scene(false, bounds);
    let mut talk = Talk::begin(scene.socket());
    talk.option(rig::STARTTLS, &[]);
    assert_eq!(talk.reply(), rig::ACK);
    talk.send(&[22, 3, 1]);
    assert!(talk.is_closed());
    let mut talk = Talk::begin(scene.socket());
    talk.option(rig::STARTTLS, &[]);
    assert_eq!(talk.reply(), rig::ACK);
    talk.send(b"this is no TLS at all, not even half of it");
    assert!(talk.is_closed());
    scene.rig.check_at_rest();
}

/// Requests that TLS has decrypted while they had to wait: the socket has no event for them.
#[test]
fn requests_that_wait_decrypted_are_not_forgotten() {
    let bounds = Bounds { requests: 2, ..Bounds::default() };
    // Each I/O takes 100 ms, during which everything arrives.
    let scene = Scene::on("null,size=16,irqmode=2,completion_nsec=100000000", false, bounds);
    let mut talk = scene.secure(None);
    talk.option(rig::EXPORT_NAME, b"disk");
    talk.take(10);
    let socket = &talk.0.sock;
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    rustix::net::sockopt::set_socket_send_buffer_size(socket, 1 << 20).expect("a socket");
    let read = |cookie| Header { command: 0, cookie, offset: 0, length: 512 }.bytes();
    let invalid = |cookie| Header { command: 9, cookie, offset: 0, length: 0 }.bytes();
    // The first two keep the server from reading; the next two leave its buffer of 256 KiB full of requests. The buffer
    // ends in the middle of the last TLS record, since the first one is shorter than the others.
    talk.send(&[read(1), read(2)].concat());
    let count: u64 = ((256 << 10) + (4 << 10)) / 28;
    let burst =
        (3..count).flat_map(|cookie| if cookie < 5 { read(cookie) } else { invalid(cookie) });
    let burst: Vec<u8> = burst.collect();
    let (short, rest) = burst.split_at(10 << 10);
    talk.send(short);
    talk.send(rest);
    for _ in 1..count {
        let (error, cookie) = talk.simple();
        assert_eq!(error, if cookie < 5 { 0 } else { 22 });
        talk.take(if cookie < 5 { 512 } else { 0 });
    }
}

/// A certificate about to expire is replaced without a restart: old connections stay, and new ones get the new
/// certificate.
#[test]
fn certificates_are_renewed_while_clients_are_served() {
    let mut scene = scene(false, Bounds::default());
    let mut old = scene.secure(None);
    old.option(rig::EXPORT_NAME, b"disk");
    old.take(10);
    let authority = Authority::new();
    let files = folder(&authority, false);
    assert!(scene.tls.renew(files.path()).expect("the files fit"));
    assert!(!scene.tls.renew(files.path()).expect("the files fit"), "the same files");
    let mut deceived = scene.secure(None);
    let error = deceived.0.write_all(&[0; 16]).expect_err("the old authority did not sign it");
    assert!(error.to_string().contains("certificate"), "{error}");
    scene.authority = authority;
    scene.serves();
    write_and_read(&mut old);
    std::fs::write(files.path().join("server-key.pem"), "nothing").expect("it can be written");
    assert!(scene.tls.renew(files.path()).is_err());
    scene.serves();
}

/// Clients need a certificate as soon as the authority is added.
#[test]
fn a_renewal_may_ask_clients_for_certificates() {
    let scene = scene(false, Bounds::default());
    let files = folder(&scene.authority, true);
    assert!(scene.tls.renew(files.path()).expect("the files fit"));
    let mut bad = scene.secure(None);
    let _ = bad.0.write_all(&[0; 16]);
    assert!(bad.0.read_exact(&mut [0]).is_err());
    let mut good = scene.secure(Some(&scene.authority.sign("client")));
    good.option(rig::EXPORT_NAME, b"disk");
    good.take(10);
    write_and_read(&mut good);
}

/// Regression test: a dangling link to the authority was treated as if there were no authority, so that clients needed
/// no certificate.
#[test]
fn an_authority_that_cannot_be_read_is_not_the_same_as_none() {
    let files = folder(&Authority::new(), false);
    let authority = files.path().join("ca-cert.pem");
    std::os::unix::fs::symlink(files.path().join("not-mounted"), &authority).expect("a link");
    let error = Tls::load(files.path()).expect_err("its authority is missing").to_string();
    assert!(error.contains("ca-cert.pem"), "{error}");
}

#[test]
fn a_folder_without_the_files_is_refused_with_what_is_accepted() {
    let empty = tempfile::tempdir().expect("a folder");
    let refused = |path: &Path| Tls::load(path).expect_err("it is of no use").to_string();
    let error = refused(empty.path());
    assert!(error.contains("server-cert.pem") && error.contains("server-key.pem"), "{error}");
    let authority = Authority::new();
    let files = folder(&authority, true);
    let write = |name: &str, text: &str| {
        std::fs::write(files.path().join(name), text).expect("it can be written");
    };
    write("server-key.pem", &authority.sign("other").key);
    assert!(refused(files.path()).contains("server-cert.pem"), "the key of another certificate");
    write("server-cert.pem", "nothing");
    assert!(refused(files.path()).contains("no certificate"));
}

#[test]
fn a_certificate_that_has_expired_is_refused_and_the_old_one_stays() {
    let scene = scene(false, Bounds::default());
    let files = folder(&scene.authority, false);
    put(
        &files,
        &scene.authority.sign_with("localhost", |params| {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }),
    );
    let error = Tls::load(files.path()).expect_err("it has expired").to_string();
    assert!(error.contains("server-cert.pem: it has expired"), "{error}");
    assert!(scene.tls.renew(files.path()).is_err());
    scene.serves();
    put(
        &files,
        &scene.authority.sign_with("localhost", |params| {
            params.not_after = rcgen::date_time_ymd(2099, 1, 1);
        }),
    );
    assert!(scene.tls.renew(files.path()).expect("the files fit"));
    assert_eq!(scene.tls.end(), 4_070_908_800);
}

#[test]
fn a_key_that_others_may_read_is_refused_with_the_command_that_mends_it() {
    let files = folder(&Authority::new(), false);
    let key = files.path().join("server-key.pem");
    for open in [0o644, 0o604, 0o660, 0o601, 0o610] {
        mode(&key, open);
        let error = Tls::load(files.path()).expect_err("it is open").to_string();
        assert!(error.contains(&format!("chmod 0600 {}", key.display())), "{error}");
        assert!(error.contains(&format!("mode {open:04o}")), "{error}");
    }
    for closed in [0o400, 0o440, 0o600, 0o640] {
        mode(&key, closed);
        Tls::load(files.path()).expect("only the owner and a group may read it");
    }
}

/// A revoked certificate, a valid one, and a list without an authority.
#[test]
fn a_revoked_certificate_is_refused() {
    let authority = Authority::new();
    let files = folder(&authority, true);
    let number = |n: u8| rcgen::SerialNumber::from(vec![n]);
    let [kept, taken] = [8, 7]
        .map(|n| authority.sign_with("client", |params| params.serial_number = Some(number(n))));
    let revoked = rcgen::RevokedCertParams {
        serial_number: number(7),
        revocation_time: rcgen::date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2024, 1, 1),
        next_update: rcgen::date_time_ymd(2099, 1, 1),
        crl_number: number(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&authority.issuer).expect("it can sign").pem().expect("a form");
    let path = files.path().join("crl.pem");
    let tls = Tls::load(files.path()).expect("the files fit");
    std::fs::write(&path, &list).expect("it can be written");
    assert!(tls.renew(files.path()).expect("the files fit"), "the list is new");
    let settings = Settings { tls: Some(tls.clone()), ..Settings::default() };
    let rig = Rig::start("memory,size=16", &[Export::new("disk", 0)], &settings);
    let scene = Scene { rig, authority, tls };
    let mut good = scene.secure(Some(&kept));
    good.option(rig::EXPORT_NAME, b"disk");
    good.take(10);
    let mut bad = scene.secure(Some(&taken));
    let _ = bad.0.write_all(&[0; 16]);
    assert!(bad.0.read_exact(&mut [0]).is_err(), "it differs in its number only");
    std::fs::remove_file(files.path().join("ca-cert.pem")).expect("it is there");
    let error = Tls::load(files.path()).expect_err("no client has a certificate").to_string();
    assert!(error.contains("crl.pem: clients need no certificate"), "{error}");
    std::fs::write(&path, "nothing").expect("it can be written");
    let error = Tls::load(files.path()).expect_err("it has no list").to_string();
    assert!(error.contains("no list of revoked certificates"), "{error}");
}

//! TLS for data: certificates from a directory, and the session of a connection.
//!
//! The files have the names used by QEMU and libnbd. Sockets are in `stream.rs`. Pre-shared keys are not supported,
//! because rustls has none. Rustls decides whether a certificate is trusted; the server itself reads its names and its
//! expiry.

use crate::allow::Names;
use crate::locked;
use blkmq::runtime::wall_clock_millis;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, crypto};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificate of the server, with intermediate certificates.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// The certificate of the authority that signs clients' certificates.
const AUTHORITY: &str = "ca-cert.pem";
/// The revocation lists for clients' certificates.
const REVOKED: &str = "crl.pem";
/// The permissions that a key file must not have: the group may read it, as with keys shared by other services and with
/// systemd's credentials, but nothing more is allowed.
const TOO_OPEN: u32 = 0o037;

/// The maximum number of bytes that TLS buffers for a full socket. Further bytes stay where they are accounted for.
const BUFFER: usize = 256 << 10;

/// The certificate and key of a server, and the authority for its clients. Clones share their state: renewing one
/// renews all.
#[derive(Clone)]
pub struct Tls(Arc<Mutex<Files>>);

struct Files {
    /// The configuration of connections, made from the files.
    config: Arc<ServerConfig>,
    /// The certificates of the server, and those of the authority if clients need certificates.
    certificates: (Vec<CertificateDer<'static>>, Option<Vec<CertificateDer<'static>>>),
    revoked: Vec<CertificateRevocationListDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The expiry of the server's certificate, in seconds since 1970.
    end: u64,
}

impl fmt::Debug for Tls {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The reason why a directory cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not in PEM, or lacks required contents.
    #[error(
        "{path}: {1}; accepted is a directory with {CERTIFICATE} and {KEY} in PEM, and {AUTHORITY} if clients \
         need certificates",
        path = .0.display()
    )]
    File(PathBuf, pem::Error),
    /// The file contains no certificate.
    #[error("{path}: no certificate in PEM", path = .0.display())]
    Empty(PathBuf),
    /// The key can be read by too many users.
    #[error("{path}: other users may use the key (mode {1:04o}); accepted after: chmod 0600 {path}, or 0640 for a group", path = .0.display())]
    Open(PathBuf, u32),
    /// The certificate of the server has expired.
    #[error("{path}: it has expired, {1} s ago; accepted: a certificate that is valid", path = .0.display())]
    Expired(PathBuf, u64),
    /// There are revocation lists, but clients need no certificates.
    #[error("{path}: clients need no certificate that could be revoked; accepted: together with {AUTHORITY}", path = .0.display())]
    Revoked(PathBuf),
    /// Certificate, key and authority do not match.
    #[error("{path}: {1}", path = .0.display())]
    Unfit(PathBuf, Box<dyn std::error::Error + Send + Sync>),
}

impl Tls {
    /// Reads `server-cert.pem` and `server-key.pem` in `folder`. If `ca-cert.pem` exists, clients must have a
    /// certificate signed by it and, if `crl.pem` exists, not revoked by its lists. TLS 1.2 and 1.3.
    ///
    /// # Errors
    /// If a file is missing or unusable, the certificate of the server has expired, or the key can be read by users
    /// other than its owner and group, or changed by users other than its owner.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(Mutex::new(Files::read(folder)?))))
    }

    /// Reloads the files, possibly from another directory. New connections use the new files; connections already
    /// inside TLS keep the old ones. Returns whether anything has changed.
    ///
    /// # Errors
    /// See [`load`](Self::load); on error the present files stay in use.
    pub fn renew(&self, folder: &Path) -> Result<bool, TlsError> {
        let new = Files::read(folder)?;
        let mut files = locked(&self.0);
        let parts = |of: &Files| (of.certificates.clone(), of.revoked.clone(), of.key.clone_key());
        let differ = parts(&files) != parts(&new);
        if differ {
            *files = new;
        }
        Ok(differ)
    }

    /// Returns whether clients need a certificate at present.
    #[must_use]
    pub fn needs_certificates(&self) -> bool {
        locked(&self.0).certificates.1.is_some()
    }

    /// The expiry of the server's certificate, in seconds since 1970.
    #[must_use]
    pub fn end(&self) -> u64 {
        locked(&self.0).end
    }

    /// The TLS of a new connection.
    pub(crate) fn session(&self) -> io::Result<Session> {
        let config = Arc::clone(&locked(&self.0).config);
        let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(BUFFER));
        Ok(Session { session, has_more: false, sent: 0 })
    }
}

impl Files {
    fn read(folder: &Path) -> Result<Self, TlsError> {
        let [certificate, key, authority, list] =
            [CERTIFICATE, KEY, AUTHORITY, REVOKED].map(|it| folder.join(it));
        let chain = all(&certificate, TlsError::Empty)?;
        let end = valid_until(&certificate, &chain)?;
        let key = private_key(key)?;
        let roots =
            if is_absent(&authority) { None } else { Some(all(&authority, TlsError::Empty)?) };
        let no_list = |path| TlsError::Unfit(path, "no list of revoked certificates in PEM".into());
        let revoked = if is_absent(&list) { Vec::new() } else { all(&list, no_list)? };
        if roots.is_none() && !revoked.is_empty() {
            return Err(TlsError::Revoked(list));
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.expect("the provider has the ciphers of both versions");
        let builder = match &roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = verifier(roots, &revoked, provider);
                let verifier = verifier.map_err(|error| TlsError::Unfit(authority, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain.clone(), key.clone_key());
        let config = config.map_err(|error| TlsError::Unfit(certificate, error.into()))?;
        Ok(Self { config: Arc::new(config), certificates: (chain, roots), revoked, key, end })
    }
}

/// Returns whether an optional file is absent. Any other error must not admit all clients, nor must a dangling link.
fn is_absent(path: &Path) -> bool {
    let found = path.symlink_metadata();
    matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The expiry of the server's own certificate, which must be in the future.
fn valid_until(path: &Path, chain: &[CertificateDer<'_>]) -> Result<u64, TlsError> {
    let unread = || TlsError::Unfit(path.to_owned(), "its dates cannot be read".into());
    let end = chain.first().and_then(end).ok_or_else(unread)?;
    match (wall_clock_millis() / 1000).checked_sub(end) {
        Some(since) if since > 0 => Err(TlsError::Expired(path.to_owned(), since)),
        _ => Ok(end),
    }
}

/// Reads the key from the file whose permissions were checked.
fn private_key(path: PathBuf) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read = || {
        let file = File::open(&path).map_err(pem::Error::Io)?;
        let mode = file.metadata().map_err(pem::Error::Io)?.permissions().mode() & 0o777;
        Ok((mode, PrivateKeyDer::from_pem_reader(file)?))
    };
    match read() {
        Ok((mode, _)) if mode & TOO_OPEN != 0 => Err(TlsError::Open(path, mode)),
        Ok((_, key)) => Ok(key),
        Err(error) => Err(TlsError::File(path, error)),
    }
}

/// The entries of a file in PEM; a file without any is an error.
fn all<T: PemObject>(path: &Path, nothing: fn(PathBuf) -> TlsError) -> Result<Vec<T>, TlsError> {
    let read = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = read.map_err(|error| TlsError::File(path.to_owned(), error))?;
    if all.is_empty() { Err(nothing(path.to_owned())) } else { Ok(all) }
}

/// Accepts clients whose certificates are signed by one of `roots` and not revoked by `revoked`. If there are lists,
/// certificates of an authority without a list are refused: a forgotten list must not have the effect of an empty one.
fn verifier(
    roots: &[CertificateDer<'static>],
    revoked: &[CertificateRevocationListDer<'static>],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error + Send + Sync>> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider);
    let builder = builder.with_crls(revoked.iter().cloned()).only_check_end_entity_revocation();
    Ok(builder.build()?)
}

/// The TLS session of a connection, between its socket and the protocol.
#[derive(Debug)]
pub(crate) struct Session {
    session: ServerConnection,
    /// Whether decrypted bytes are buffered, for which the socket has no event.
    pub(crate) has_more: bool,
    /// The number of encrypted bytes that the socket has accepted.
    pub(crate) sent: u64,
}

impl Session {
    /// The names in the verified certificate of the client; `None` before verification, or if it has shown none.
    pub(crate) fn names(&self) -> Option<Names> {
        if self.session.is_handshaking() {
            return None;
        }
        Some(names(self.session.peer_certificates()?.first()?))
    }

    /// Returns whether bytes wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Reads decrypted bytes into the buffers in order. Returns 0 at the end of the stream, whether or not it was
    /// announced: some clients just close.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes have arrived. Also if the bytes are not TLS, or a certificate is refused.
    pub(crate) fn read(
        &mut self,
        socket: &mut (impl io::Read + io::Write),
        into: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let mut read = 0;
        for buffer in into {
            let part = self.fill(socket, buffer);
            self.has_more = part.as_ref().is_ok_and(|part| *part == buffer.len());
            match part {
                Ok(part) => read += part,
                // The decrypted bytes are returned first; the next read returns the error.
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
            if !self.has_more {
                break;
            }
        }
        Ok(read)
    }

    /// Fills `buffer` with the bytes available.
    fn fill(
        &mut self,
        socket: &mut (impl io::Read + io::Write),
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match io::Read::read(&mut self.session.reader(), &mut buffer[read..]) {
                Ok(0) => break,
                Ok(part) => {
                    read += part;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            match self.receive(socket) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Receives encrypted bytes from the socket.
    fn receive(&mut self, socket: &mut (impl io::Read + io::Write)) -> io::Result<usize> {
        let received = self.session.read_tls(socket)?;
        if let Err(error) = self.session.process_new_packets() {
            // Sends the reason to the client, if its socket has room.
            let _ = self.session.write_tls(socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        match self.send(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(received),
        }
    }

    /// Encrypts and sends as many bytes as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Also if the connection has failed.
    pub(crate) fn write(
        &mut self,
        socket: &mut impl io::Write,
        from: &[io::IoSlice<'_>],
    ) -> io::Result<usize> {
        // Once its buffer is empty, TLS accepts some bytes.
        self.send(socket)?;
        let taken = io::Write::write_vectored(&mut self.session.writer(), from)?;
        match self.send(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends the encrypted bytes.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full. Also if the connection has failed.
    pub(crate) fn send(&mut self, socket: &mut impl io::Write) -> io::Result<()> {
        while self.session.wants_write() {
            self.sent += self.session.write_tls(socket)? as u64;
        }
        Ok(())
    }

    /// Announces the end of the stream to the client, if its socket has room.
    pub(crate) fn close(&mut self, socket: &mut impl io::Write) {
        self.session.send_close_notify();
        let _ = self.send(socket);
    }
}

/// The maximum number of names in a certificate that are compared with rules. Further names are ignored, so they
/// satisfy no rule.
const MOST_NAMES: usize = 256;
/// The maximum length of a name in bytes, as in rules.
const MOST: usize = 256;

/// The names of a client's certificate; none if the certificate cannot be parsed.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Names {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Names::default() };
    let mut common = read.subject().iter_common_name();
    let common = match (common.next(), common.next()) {
        (Some(only), None) => only.as_str().ok().filter(|name| is_plain(name)).map(str::to_owned),
        _ => None,
    };
    let alternative = match read.subject_alternative_name() {
        Ok(Some(found)) => &found.value.general_names[..],
        Ok(None) | Err(_) => &[],
    };
    let alternative = alternative.iter().filter_map(alternative_name).take(MOST_NAMES);
    Names { common, alternative: alternative.collect() }
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    let text = match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            (*text).to_owned()
        }
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok()?.to_string()
        }
        _ => return None,
    };
    is_plain(&text).then_some(text)
}

/// Returns whether a name may appear in a rule and in a line of the log.
fn is_plain(name: &str) -> bool {
    (1..=MOST).contains(&name.len()) && !name.contains(char::is_control)
}

/// The expiry of a certificate in seconds since 1970, or `None` if it cannot be parsed.
pub(crate) fn end(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, read) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(read.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn read(params: &CertificateParams) -> Names {
        let key = KeyPair::generate().expect("random numbers");
        names(params.self_signed(&key).expect("it can sign").der())
    }

    #[test]
    fn all_kinds_of_names_are_read() {
        let mut params =
            CertificateParams::new(vec!["a.example".to_owned(), "10.0.0.1".to_owned()])
                .expect("names");
        params.distinguished_name.push(DnType::CommonName, "gold.example");
        let uri = "spiffe://a.example/b".try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.push(SanType::IpAddress("2001:db8::1".parse().expect("valid")));
        let names = read(&params);
        assert_eq!(names.common.as_deref(), Some("gold.example"));
        let expected = ["a.example", "10.0.0.1", "spiffe://a.example/b", "2001:db8::1"];
        assert_eq!(names.alternative, expected);
    }

    /// Other programs may end a name at a NUL; rules and lines of the log contain none.
    #[test]
    fn a_name_with_control_characters_is_none() {
        for name in ["gold\0.evil", "gold\n", "", &"x".repeat(MOST + 1)] {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.distinguished_name.push(DnType::CommonName, name);
            assert_eq!(read(&params).common, None, "{name:?}");
        }
        assert_eq!(names(&CertificateDer::from(vec![0x30, 1, 0])), Names::default());
        assert_eq!(end(&CertificateDer::from(vec![])), None);
    }

    #[test]
    fn its_end_is_in_seconds() {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.self_signed(&key).expect("it can sign");
        assert_eq!(end(certificate.der()), Some(1_893_542_400));
    }
}

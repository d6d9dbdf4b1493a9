//! TLS of a client: certificates from a directory, with the file names of QEMU and libnbd, and the session of a
//! connection.

use crate::options::{OpenError, Uri};
use crate::socket::Socket;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// The certificate of the authority that signs servers' certificates.
const AUTHORITY: &str = "ca-cert.pem";
/// The certificate and key of the client, if the server asks for them.
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";
/// The maximum of bytes that TLS buffers while the socket is full.
const BUFFER: usize = 256 << 10;

/// The certificates, and the expected name of the server.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    /// Omits the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn refuse(path: &Path, why: impl fmt::Display) -> OpenError {
    OpenError::Tls(format!("{}: {why}", path.display()))
}

impl Tls {
    /// Loads the certificates that `uri` names.
    pub(crate) fn load(uri: &Uri) -> Result<Self, OpenError> {
        let folder = uri.certificates.as_deref().unwrap_or(Path::new(""));
        let path = folder.join(AUTHORITY);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&path).map_err(|e| refuse(&path, e))? {
            let certificate = certificate.map_err(|e| refuse(&path, e))?;
            roots.add(certificate).map_err(|e| refuse(&path, e))?;
        }
        if roots.is_empty() {
            return Err(refuse(&path, "no certificate in PEM"));
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider has the ciphers of both versions")
                .with_root_certificates(roots);
        let path = folder.join(CERTIFICATE);
        let config = if path.exists() {
            let chain = CertificateDer::pem_file_iter(&path).map_err(|e| refuse(&path, e))?;
            let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|e| refuse(&path, e))?;
            let key_path = folder.join(KEY);
            let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|e| refuse(&key_path, e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| refuse(&path, e))?
        } else {
            builder.with_no_client_auth()
        };
        let name = uri.expected_name().to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|_| {
            OpenError::Tls(format!("'{name}' is no name of a host; see tls-hostname"))
        })?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// Creates the session of a new connection.
    pub(crate) fn session(&self) -> io::Result<Session> {
        let mut session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        session.set_buffer_limit(Some(BUFFER));
        Ok(Session { session, has_more: false })
    }
}

/// The TLS session of a connection, between its socket and the protocol.
#[derive(Debug)]
pub(crate) struct Session {
    session: ClientConnection,
    /// Whether the last read filled its buffers, so that more may have been decrypted.
    has_more: bool,
}

impl Session {
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Reads into the buffers, receiving encrypted bytes from the socket as needed. Returns 0 at the end.
    pub(crate) fn read(
        &mut self,
        socket: &mut Socket,
        into: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let mut read = 0;
        'buffers: for buffer in into {
            let mut filled = 0;
            while filled < buffer.len() {
                match self.session.reader().read(&mut buffer[filled..]) {
                    Ok(0) => break 'buffers,
                    Ok(part) => {
                        (filled, read) = (filled + part, read + part);
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break 'buffers,
                    Err(error) => return Err(error),
                }
                self.has_more = false;
                match self.receive(socket) {
                    Ok(0) => break 'buffers,
                    Ok(_) => {}
                    // The decrypted bytes are returned first; the next read returns the error.
                    Err(_) if read > 0 => return Ok(read),
                    Err(error) => return Err(error),
                }
            }
            self.has_more = true;
        }
        Ok(read)
    }

    /// Receives encrypted bytes from the socket.
    fn receive(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let received = self.session.read_tls(socket)?;
        if let Err(error) = self.session.process_new_packets() {
            // Sends the server the reason, if the socket has room.
            let _ = self.session.write_tls(socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        self.send(socket)?;
        Ok(received)
    }

    /// Encrypts as many bytes as there is room for, and sends them.
    pub(crate) fn write(&mut self, socket: &mut Socket, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.send(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.session.writer().write_vectored(from)?;
        self.send(socket)?;
        Ok(taken)
    }

    /// Sends the encrypted bytes. Returns false if some are left.
    pub(crate) fn send(&mut self, socket: &mut Socket) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

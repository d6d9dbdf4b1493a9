//! [`Stream`]: a connected socket, with TLS or without, which never blocks; the system calls of the socket
//! ([`Socket`]); and TLS of a client: certificates from a directory, with the file names of QEMU and libnbd, and the
//! session of a connection.

#[cfg(feature = "tls")]
use self::tls::Session;
use blkmq_nbd::client::Requests;
use blkmq_nbd::{Command, CommandFlags, Cookie, Header, HeaderStyle, Request, Span};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    #[cfg(feature = "tls")]
    tls: Option<Box<Session>>,
    /// DISC, once the handshake is over.
    farewell: Option<Header>,
    /// Whether the next byte is inside a request: there the server would take DISC for data.
    pub(crate) is_inside: bool,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: socket.into(),
            #[cfg(feature = "tls")]
            tls: None,
            farewell: None,
            is_inside: false,
        }
    }

    /// Notes that the transmission phase has begun with headers of this form: from now on the connection ends with
    /// DISC.
    pub(crate) fn ends_with(&mut self, style: HeaderStyle) {
        let request = Request {
            command: Ok(Command::Disconnect),
            flags: CommandFlags::NONE,
            cookie: Cookie(0),
            span: Span::default(),
        };
        self.farewell = Requests::new(style).header(&request);
    }

    /// Returns whether the server has not closed the connection, as far as can be known without reading.
    pub(crate) fn is_alive(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::io::retry_on_intr(|| recv(&self.socket, &mut [0; 1], flags)) {
            Ok((_, len)) => len > 0,
            Err(error) => error == Errno::AGAIN,
        }
    }

    /// Encrypts all further bytes with TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(&mut self, session: Session) {
        self.tls = Some(Box::new(session));
    }

    /// Reads into the buffers, the first one first.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes have arrived, and `UnexpectedEof` at the end: a server does not close a connection
    /// unasked.
    pub(crate) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        let read = match &mut self.tls {
            Some(tls) => tls.read(&mut self.socket, into)?,
            None => self.socket.read_vectored(into)?,
        };
        #[cfg(not(feature = "tls"))]
        let read = self.socket.read_vectored(into)?;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
    }

    /// Sends bytes to the server.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room.
    pub(crate) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.write(&mut self.socket, from);
        }
        self.socket.write_vectored(from)
    }

    /// Sends the bytes that TLS has buffered. Returns false if some are left.
    pub(crate) fn send_rest(&mut self) -> io::Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.send(&mut self.socket);
        }
        Ok(true)
    }

    /// Returns whether TLS has decrypted bytes, for which the socket is not readable.
    pub(crate) fn has_more(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(|tls| tls.has_more());
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Sends DISC on a connection that ends between two requests, as the protocol demands.
impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(farewell) = self.farewell
            && !self.is_inside
        {
            // If the message is lost, the server notices the end of the connection.
            let _ = self.write(&[IoSlice::new(&farewell)]).and_then(|_| self.send_rest());
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A non-blocking socket. If the peer has closed it, a write returns an error and raises no signal.
#[derive(Debug)]
struct Socket(OwnedFd);

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut *into))?)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(&self.0, into))?)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let send =
            || sendmsg(&self.0, from, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        Ok(rustix::io::retry_on_intr(send)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Certificates, and the session of a connection.
#[cfg(feature = "tls")]
pub(crate) mod tls {
    use super::Socket;
    use crate::options::{OpenError, Uri};
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
                let key =
                    PrivateKeyDer::from_pem_file(&key_path).map_err(|e| refuse(&key_path, e))?;
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
        pub(super) fn has_more(&self) -> bool {
            self.has_more
        }

        /// Reads into the buffers, receiving encrypted bytes from the socket as needed. Returns 0 at the end.
        pub(super) fn read(
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
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                            break 'buffers;
                        }
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
        pub(super) fn write(
            &mut self,
            socket: &mut Socket,
            from: &[IoSlice<'_>],
        ) -> io::Result<usize> {
            if !self.send(socket)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let taken = self.session.writer().write_vectored(from)?;
            self.send(socket)?;
            Ok(taken)
        }

        /// Sends the encrypted bytes. Returns false if some are left.
        pub(super) fn send(&mut self, socket: &mut Socket) -> io::Result<bool> {
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
}

//! [`Greeting`]: the handshake on a connected socket, up to the agreement on the export. Never blocks.

use super::error::OpenError;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Tls;
use blkmq_nbd::client::{Agreed, Goal, Handshake, Next, Plan};
use std::io::{self, IoSlice, IoSliceMut};

/// The maximum length of a reply to an option in bytes; see [`Handshake::feed`].
const BUFFER: usize = (64 << 10) + 64;

/// A handshake in progress.
#[derive(Debug)]
pub(crate) struct Greeting {
    stream: Stream,
    handshake: Handshake,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Bytes from the server that are not consumed.
    input: Vec<u8>,
    /// Bytes for the server, of which the first `sent` have been sent.
    output: Vec<u8>,
    sent: usize,
}

/// A connection that has agreed on an export.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) stream: Stream,
    pub(crate) agreed: Agreed,
    /// Bytes of the transmission phase that have already arrived.
    pub(crate) early: Vec<u8>,
}

/// The state of a handshake after a step.
#[derive(Debug)]
pub(crate) enum Greeted {
    /// The handshake waits for bytes from the server, or for room in the socket.
    Waiting(Box<Greeting>),
    Agreed(Welcome),
}

impl Greeting {
    /// Begins a handshake that requests these contexts and the most capable form of headers, which can report holes
    /// without sending them.
    pub(crate) fn new(
        stream: Stream,
        export: &str,
        contexts: &[&str],
        #[cfg(feature = "tls")] tls: Option<&Tls>,
    ) -> Self {
        let contexts = contexts.iter().map(|&name| name.to_owned()).collect();
        let plan = Plan { contexts, ..Plan::new(Goal::Go(export.to_owned())) };
        #[cfg(feature = "tls")]
        let plan = match tls {
            Some(_) => Plan { tls: blkmq_nbd::client::Tls::Required, ..plan },
            None => plan,
        };
        Self {
            stream,
            handshake: Handshake::new(plan),
            #[cfg(feature = "tls")]
            tls: tls.cloned(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Returns whether bytes wait for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Continues as far as possible without waiting.
    ///
    /// # Errors
    /// If the connection is lost, or the handshake fails.
    pub(crate) fn step(mut self: Box<Self>) -> Result<Greeted, OpenError> {
        loop {
            let progress = self.handshake.feed(&self.input, &mut self.output);
            self.input.drain(..progress.consumed);
            match progress.next {
                Next::NeedMore => {}
                Next::Go(agreed) => {
                    let Self { mut stream, input, .. } = *self;
                    stream.ends_with(agreed.style);
                    return Ok(Greeted::Agreed(Welcome { stream, agreed, early: input }));
                }
                Next::Close(broken) => {
                    // The last message to a server that has refused. If the server has gone, the message is not needed.
                    let _ = self.send();
                    return Err(OpenError::Handshake(broken));
                }
                Next::StartTls => self.start_tls()?,
                Next::Listed(_) | Next::Described(_) => unreachable!("the goal is an export"),
            }
            if !self.send()? || !self.receive()? {
                return Ok(Greeted::Waiting(self));
            }
        }
    }

    #[cfg(feature = "tls")]
    fn start_tls(&mut self) -> io::Result<()> {
        let tls = self.tls.as_ref().expect("TLS is agreed on only if it was asked for");
        // The server has answered STARTTLS, so it has been sent.
        self.stream.start_tls(tls.session()?);
        self.output.clear();
        self.sent = 0;
        self.handshake.secured(&mut self.output);
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&mut self) -> io::Result<()> {
        unreachable!("TLS is agreed on only if it was asked for")
    }

    /// Sends the bytes for the server. Returns false if some are left.
    fn send(&mut self) -> io::Result<bool> {
        while self.wants_write() {
            match self.stream.write(&[IoSlice::new(&self.output[self.sent..])]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        self.stream.send_rest()?;
        Ok(true)
    }

    /// Receives bytes from the server. Returns false if none have arrived.
    fn receive(&mut self) -> io::Result<bool> {
        let here = self.input.len();
        self.input.resize(BUFFER.max(here + 1), 0);
        let read = self.stream.read(&mut [IoSliceMut::new(&mut self.input[here..])]);
        self.input.truncate(here + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

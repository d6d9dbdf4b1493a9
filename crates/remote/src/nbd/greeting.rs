//! [`Greeting`]: a connected socket on its way to an agreement on the export. It never blocks.

use super::error::OpenError;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Tls;
use blkmq_nbd::client::{Agreed, Goal, Handshake, Next, Plan};
use std::io::{self, IoSlice, IoSliceMut};

/// Bytes that a reply to an option can have; see [`Handshake::feed`].
const BUFFER: usize = (64 << 10) + 64;

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct Greeting {
    stream: Stream,
    handshake: Handshake,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Bytes of the server that are not consumed.
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
    /// The first bytes of the transmission phase.
    pub(crate) early: Vec<u8>,
}

/// The progress of a handshake.
#[derive(Debug)]
pub(crate) enum Greeted {
    /// It waits for the server, for bytes of it or for room in the socket.
    Waiting(Box<Greeting>),
    Agreed(Welcome),
}

impl Greeting {
    /// A handshake at its beginning, for these contexts and the most able headers: they have holes that are not sent.
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

    /// Returns whether there are bytes that the socket has no room for.
    pub(crate) fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Goes on as far as it can without waiting.
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
                    // The last word of a server that has refused. One that has gone does not miss it.
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
        // STARTTLS has been sent, or there would be no answer to it.
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

    /// Sends the bytes for the server; false if some are left.
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

    /// Takes bytes of the server; false if there are none.
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

//! [`Output`]: the bytes of requests on their way out, many requests in one system call.

use super::place::Flight;
use super::stream::Stream;
use blkmq_engine::Finished;
use std::io::{self, IoSlice};

/// Slices in one system call. The kernel takes 1024; beyond some dozens the call no longer matters.
const SLICES: usize = 64;

/// The position in the stream of requests.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Bytes of the first unsent request that have been sent.
    done: usize,
}

impl Output {
    /// Sends as much as the socket has room for; false if some of it is left. Requests that were answered before
    /// their last byte was sent go to `out`.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(crate) fn send(
        &mut self,
        stream: &mut Stream,
        flight: &mut Flight,
        out: &mut Vec<Finished>,
    ) -> io::Result<bool> {
        while !flight.unsent.is_empty() {
            let sent = {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = self.gather(flight, &mut slices);
                match stream.write(&slices[..count]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(sent) => sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            };
            self.advance(sent, flight, out);
            stream.is_inside = self.done > 0;
        }
        stream.send_rest()
    }

    /// Puts the bytes to be sent next into `slices`; returns how many slices there are.
    fn gather<'a>(&self, flight: &'a Flight, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut done, mut count) = (self.done, 0);
        for at in &flight.unsent {
            if count == SLICES {
                break;
            }
            let place = flight.place(*at);
            let header = place.header.as_ref().expect("a request to be sent has its header");
            if done < header.len() {
                slices[count] = IoSlice::new(&header[done..]);
                count += 1;
            }
            let payload = done.saturating_sub(header.len());
            let left = place.payload_len() - payload;
            count += place.memory.slices(payload, left, &mut slices[count..]);
            done = 0;
        }
        count
    }

    fn advance(&mut self, mut sent: usize, flight: &mut Flight, out: &mut Vec<Finished>) {
        while let Some(at) = flight.unsent.front() {
            let place = flight.place(*at);
            let whole =
                place.header.as_ref().map_or(0, |header| header.len()) + place.payload_len();
            let left = whole - self.done;
            if sent < left {
                self.done += sent;
                return;
            }
            sent -= left;
            self.done = 0;
            flight.sent(out);
        }
    }
}

//! [`Suspicion`]: the part of a request in the losses of its connection.
//!
//! A server may end each connection at a certain request, and does not say which one: every request that was sent and
//! not answered is suspected. Requests that were lost more often go last, fewer at a time after each loss, until the
//! one is alone.

/// Losses of the connection that a request survives while it is alone, if the server has answered others in between: fewer
/// could be restarts of the server.
const ALONE: u8 = 4;
/// Losses that a request survives without others that show whether the server is well. With the pauses of a link they take
/// 1.5 s.
const UNPROVEN: u8 = 6;
/// Losses after which a request is suspected: at the first one, a server has been restarted.
const SUSPECT: u8 = 2;

/// The cause of a loss, and its weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// This request or another one.
    AnyOfSeveral = 0,
    /// This request: no other one was sent and not answered.
    Alone = 1,
    /// This request had no answer within the timeout, which is longer than a restart.
    Silence = 3,
}

/// The part of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    /// Losses while it was sent and not answered.
    losses: u8,
    /// Losses that no other request can have caused; a silence counts for three.
    alone: u8,
    /// Requests that the server had answered at the first loss.
    answered: u64,
}

impl Suspicion {
    /// The connection is lost for this cause, after `answered` answers of the server.
    pub(crate) fn lost(&mut self, cause: Cause, answered: u64) {
        if self.losses == 0 {
            self.answered = answered;
        }
        self.losses = self.losses.saturating_add(1);
        self.alone = self.alone.saturating_add(cause as u8);
    }

    pub(crate) fn losses(self) -> u8 {
        self.losses
    }

    pub(crate) fn is_suspect(self) -> bool {
        self.losses >= SUSPECT
    }

    /// Returns whether the request has to fail.
    pub(crate) fn is_guilty(self, answered: u64) -> bool {
        self.alone >= self.limit(answered)
    }

    /// The place among requests to be sent again, the lowest first: those with fewer losses. A request whose next loss is
    /// its last goes first, since a server that survives only some requests of any kind survives the first.
    pub(crate) fn rank(self, answered: u64) -> u8 {
        if self.alone + 1 >= self.limit(answered) { 0 } else { self.losses }
    }

    fn limit(self, answered: u64) -> u8 {
        if answered > self.answered { ALONE } else { UNPROVEN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(times: u8, answered: u64) -> Suspicion {
        let mut suspicion = Suspicion::default();
        (0..times).for_each(|_| suspicion.lost(Cause::Alone, answered));
        suspicion
    }

    #[test]
    fn a_request_fails_sooner_if_the_server_answers_others() {
        for (answered, limit) in [(8, ALONE), (7, UNPROVEN)] {
            assert!(!lost(limit - 1, 7).is_guilty(answered));
            assert!(lost(limit, 7).is_guilty(answered));
            assert_eq!(lost(limit - 1, 7).rank(answered), 0, "the last try");
            assert_eq!(lost(limit - 2, 7).rank(answered), limit - 2);
        }
    }

    #[test]
    fn losses_beside_others_fail_no_request() {
        let mut suspicion = Suspicion::default();
        (0..=u8::MAX).for_each(|_| suspicion.lost(Cause::AnyOfSeveral, 0));
        assert!(suspicion.is_suspect() && !suspicion.is_guilty(1));
        assert!(!lost(1, 0).is_suspect());
    }

    #[test]
    fn the_second_silence_is_the_last() {
        let mut suspicion = Suspicion::default();
        suspicion.lost(Cause::Silence, 7);
        assert!(!suspicion.is_guilty(7) && !suspicion.is_guilty(8));
        suspicion.lost(Cause::Silence, 7);
        assert!(suspicion.is_guilty(7) && suspicion.is_guilty(8));
    }
}

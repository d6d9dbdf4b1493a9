//! Waits for resources that another program still holds.
//!
//! The kernel frees the files and sockets of a killed process only after its last I/O. Without retries, a server
//! restarted immediately would be refused.

use std::fmt::Display;
use std::time::Duration;

/// How long the server waits for a device or an address that is in use.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Retries until `attempt` succeeds, fails with an error that `is_busy` rejects, or [`PATIENCE`] is over. Logs the
/// first failure.
///
/// # Errors
/// The last error.
pub fn patient<T, E: Display>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && waited < PATIENCE => {
                if waited.is_zero() {
                    tracing::warn!("{error}; trying again for {} s", PATIENCE.as_secs());
                }
                waited += PAUSE;
                std::thread::park_timeout(PAUSE);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_busy_is_tried_again() {
        let mut left = 3;
        let mut attempt = || {
            left -= 1;
            if left > 0 { Err("busy") } else { Ok(left) }
        };
        assert_eq!(patient(&mut attempt, |error| *error == "busy"), Ok(0));
        let mut tries = 0;
        let refused = patient(
            || {
                tries += 1;
                Err::<(), _>("broken")
            },
            |error| *error == "busy",
        );
        assert_eq!((refused, tries), (Err("broken"), 1));
    }
}

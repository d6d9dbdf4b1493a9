//! [`Program`]: what clients of control ask for that the server cannot do itself.

/// The program around a server.
pub trait Program: Send {
    /// Has [`Server::drain`](crate::Server::drain) called, and does not wait for it.
    fn drain(&self);

    /// Reads the configuration again, and changes what can be changed. Returns a line for each change, done or left for
    /// a restart.
    ///
    /// # Errors
    /// If the configuration is wrong, or the program has none. Nothing is changed then.
    fn reload(&self) -> Result<Vec<String>, String>;
}

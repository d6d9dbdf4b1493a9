//! [`Program`]: handles control requests that the server cannot handle itself.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Returns whether a change is still wanted: its client waits, its time is not over, and the server is not ending.
pub type GoesOn<'a> = &'a dyn Fn() -> bool;

/// A configuration file with the current settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The path of the file.
    pub path: PathBuf,
    /// The new text of the file.
    pub text: String,
}

/// The program around a server, called from the threads of control clients.
pub trait Program: Send + Sync {
    /// Causes [`Server::drain`](crate::Server::drain) to be called, without waiting for it.
    fn drain(&self);

    /// Reloads the configuration, and applies the possible changes while `goes_on` is true. Returns a line for each
    /// change, whether applied or left for a restart.
    ///
    /// # Errors
    /// If the configuration is invalid, or the program has none. Then nothing is changed.
    fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String>;

    /// Adds an export, described as on the program's command line, while `goes_on` is true. Returns a message.
    ///
    /// # Errors
    /// If the description is invalid, or the server refuses.
    fn add(&self, export: &str, goes_on: GoesOn<'_>) -> Result<String, String>;

    /// Removes the export `name`. Returns a message.
    ///
    /// # Errors
    /// If there is no such export.
    fn remove(&self, name: &str) -> Result<String, String>;

    /// A line for each current setting that differs from the configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn diff(&self) -> Result<Vec<String>, String>;

    /// The configuration file with the current settings, or `None` if nothing differs. The client writes it.
    ///
    /// # Errors
    /// If there is no file, or it cannot be edited.
    fn save(&self) -> Result<Option<Saved>, String>;
}

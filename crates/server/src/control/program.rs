//! [`Program`]: requests of clients of control that the server cannot carry out itself.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Returns true while a change is still wanted: its client waits, its time is not over, and the server does not end.
pub type GoesOn<'a> = &'a dyn Fn() -> bool;

/// A configuration file as it would be with the settings in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The path of the file.
    pub path: PathBuf,
    /// The text that it would have.
    pub text: String,
}

/// The program around a server. Clients of control ask it from threads of their own.
pub trait Program: Send + Sync {
    /// Has [`Server::drain`](crate::Server::drain) called, and does not wait for it.
    fn drain(&self);

    /// Reads the configuration again, and applies the possible changes while `goes_on`. Returns a line for each change,
    /// done or left for a restart.
    ///
    /// # Errors
    /// If the configuration is wrong, or the program has none. Nothing is changed then.
    fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String>;

    /// Adds an export, spelled as on the program's command line, while `goes_on`. Returns a line that says so.
    ///
    /// # Errors
    /// If the words are wrong, or the server refuses.
    fn add(&self, export: &str, goes_on: GoesOn<'_>) -> Result<String, String>;

    /// Removes the export of this name. Returns a line that says so.
    ///
    /// # Errors
    /// If there is none.
    fn remove(&self, name: &str) -> Result<String, String>;

    /// A line for each setting that is in force otherwise than in the configuration.
    ///
    /// # Errors
    /// If the configuration is wrong.
    fn diff(&self) -> Result<Vec<String>, String>;

    /// The configuration file with the settings in force; `None` if nothing differs. The client writes it.
    ///
    /// # Errors
    /// If there is no file, or it cannot be changed.
    fn save(&self) -> Result<Option<Saved>, String>;
}

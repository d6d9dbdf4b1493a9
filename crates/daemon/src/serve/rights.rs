//! The permissions of the server's sockets in the file system: mode, owner and group.

use blkmq_server::Rights;
use blkmq_terminal::UsageError;
use nix::unistd::{Group, User};

/// The settings, on the command line and in a file.
pub const KEYS: [&str; 3] = ["socket-mode", "socket-owner", "socket-group"];

/// Permissions that are being parsed.
#[derive(Default)]
pub struct Names(Rights);

impl Names {
    /// Sets `key` to the value `text`.
    ///
    /// # Errors
    /// If the mode is invalid, or there is no such user or group.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), UsageError> {
        match key {
            "socket-mode" => mode(text).map(|mode| self.0.mode = mode),
            "socket-owner" => {
                let found = User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
                number(text, found, "user").map(|id| self.0.owner = Some(id))
            }
            _ => {
                let found = Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw());
                number(text, found, "group").map(|id| self.0.group = Some(id))
            }
        }
    }

    pub fn rights(self) -> Rights {
        self.0
    }
}

fn mode(text: &str) -> Result<u32, UsageError> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        UsageError::new(format!("'{text}' is no mode; accepted: octal, 0 to 0777, as 0660"))
    })
}

/// Returns `found`, or else parses `text` as a number.
fn number(text: &str, found: Option<u32>, what: &str) -> Result<u32, UsageError> {
    found.or_else(|| text.parse().ok()).ok_or_else(|| {
        UsageError::new(format!("there is no {what} '{text}'; accepted: a name or a number"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_rights() {
        let mut names = Names::default();
        for (key, text) in KEYS.into_iter().zip(["0660", "root", "0"]) {
            names.set(key, text).expect(key);
        }
        assert_eq!(names.rights(), Rights { mode: 0o660, owner: Some(0), group: Some(0) });
    }

    #[test]
    fn a_refusal_says_what_is_accepted() {
        for (key, text) in
            [("socket-mode", "rw"), ("socket-mode", "1777"), ("socket-owner", "no such user")]
        {
            let error = Names::default().set(key, text).expect_err(text).to_string();
            assert!(error.contains("accepted: "), "{error}");
        }
    }
}

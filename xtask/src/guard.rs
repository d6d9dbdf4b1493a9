//! Cleans up at the end, however the chore ends: normally, by an error, by Ctrl-C or by SIGKILL.
//!
//! A shell that ignores signals reads the cleanup actions, line by line. When the other end of the pipe is closed, it
//! performs all of them. No other code cleans up.

use crate::Result;
use crate::shell::Cmd;
use std::fs::File;
use std::io::Write;
use std::process::Child;

/// A loop device disappears when no process has it open, a mount when no process uses it: so neither waits for clients
/// that are still ending. By then, groups and the folder are empty.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r what it; do
  case $what in
    loop) loops="$loops $it" ;;
    mount) mounts="$mounts $it" ;;
    process) processes="$processes $it" ;;
    group) groups="$groups $it" ;;
    folder) folders="$folders $it" ;;
  esac
done
exec 2>/dev/null
for it in $loops; do losetup -d "$it"; done
for it in $mounts; do umount -l "$it"; done
for it in $processes; do kill "$it"; done
for try in 1 2 3 4 5; do
  left=
  for it in $processes; do if kill -0 "$it"; then left=1; fi; done
  if [ -z "$left" ]; then break; fi
  sleep 0.1
done
for it in $processes; do kill -9 "$it"; done
for it in $groups; do rmdir "$it"; done
for it in $folders; do rm -rf --one-file-system "$it"; done
exit 0
"#;

/// The shell; dropping it undoes everything.
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// # Errors
    /// If there is no shell.
    pub(crate) fn new() -> Result<Self> {
        let child = Cmd::new("sh -c").arg(SCRIPT).piped(File::create("/dev/null")?)?;
        Ok(Self { child })
    }

    /// Records an item to clean up: a `loop` device, a `mount`, a `process`, a `group` or a `folder`, and its name.
    ///
    /// # Errors
    /// If the shell has ended.
    pub(crate) fn note(&mut self, what: &str, it: &str) -> Result<()> {
        let pipe = self.child.stdin.as_mut().ok_or("the shell that cleans up has no pipe")?;
        Ok(writeln!(pipe, "{what} {it}")?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The shell does its work even without this wait.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_noted_is_undone() {
        let folder = std::env::temp_dir().join(format!("blkmq-guard-{}", std::process::id()));
        let group = folder.with_extension("group");
        fs::create_dir_all(folder.join("inside")).unwrap();
        fs::create_dir_all(&group).unwrap();
        let mut sleeper = Cmd::new("sleep 600").start(File::create("/dev/null").unwrap()).unwrap();
        let mut guard = Guard::new().unwrap();
        guard.note("process", &sleeper.id().to_string()).unwrap();
        guard.note("folder", &folder.display().to_string()).unwrap();
        guard.note("group", &group.display().to_string()).unwrap();
        drop(guard);
        assert!(!folder.exists() && !group.exists());
        assert!(!sleeper.wait().unwrap().success(), "it was killed");
    }
}

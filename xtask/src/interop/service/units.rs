//! The units of `contrib/systemd`, checked by systemd's own tools, which do not need a running systemd.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::shell::{BLKMQD, Cmd, root, target_dir};
use std::fs;

/// The exposure score of systemd must be below this; 10 means no protection.
const MOST: f64 = 2.0;

/// systemd finds no fault in the units, and few unnecessary privileges of the service; and the command before the start
/// finds faults that appear only when devices are opened.
pub(in crate::interop) fn check() -> Result<Outcome> {
    let folder = Folder::new("units")?;
    let program = target_dir().join(BLKMQD.trim_start_matches("target/"));
    let mut paths = Vec::new();
    for name in ["blkmqd.service", "blkmqd.socket"] {
        let text = fs::read_to_string(root().join("contrib/systemd").join(name))?;
        let path = folder.path().join(name);
        // The program need not be installed.
        fs::write(&path, text.replace("/usr/bin/blkmqd", &program.display().to_string()))?;
        paths.push(path.display().to_string());
    }
    // A fault that it tolerates is a line without an error.
    let verify = Cmd::new("systemd-analyze verify --man=no --recursive-errors=no");
    let said = paths.iter().fold(verify, |cmd, path| cmd.arg(path.as_str()));
    said.silent_output_in(folder.path())?;
    let security = Cmd::new("systemd-analyze security --offline=true --no-pager");
    let table = security.arg(paths[0].as_str()).output()?;
    let exposure = exposure(&table).ok_or_else(|| format!("no figure in {table}"))?;
    println!("exposure {exposure}, bound {MOST}");
    if exposure >= MOST {
        return Err(table.into());
    }
    let config = folder.path().join("serve.toml");
    let unit = fs::read_to_string(&paths[0])?;
    let before = unit.lines().find_map(|line| line.strip_prefix("ExecStartPre="));
    let before = before.ok_or("no ExecStartPre")?;
    let before = before.replace("/etc/blkmq/serve.toml", &config.display().to_string());
    let control = folder.path().join("control").display().to_string();
    let device = |device: &str| {
        format!("control = '{control}'\n[[device]]\nname = 'a'\ndevice = '{device}'\n")
    };
    for (device, code) in [
        (device(&format!("uring:{}/new.img,size=1", folder.path().display())), 0),
        (device(&format!("uring:{}/missing.img", folder.path().display())), 2),
        (device("memory,size=8") + "[[export]]\nname = 'far'\noffset = '9m'\n", 2),
    ] {
        fs::write(&config, &device)?;
        let found = Cmd::new(&before).quiet_code_in(folder.path())?;
        if found != Some(code) {
            return Err(format!("{before}: {found:?} with {device}").into());
        }
    }
    Ok(Outcome::Passed)
}

/// The figure of the last line: `Overall exposure level for blkmqd.service: 0.9 SAFE`.
fn exposure(table: &str) -> Option<f64> {
    let (_, behind) = table.rsplit_once("Overall exposure level for ")?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found() {
        let text = "x 9.6\n-> Overall exposure level for blkmqd.service: 0.9 SAFE :)\n";
        assert_eq!(exposure(text), Some(0.9));
        assert_eq!(exposure("nothing"), None);
    }
}

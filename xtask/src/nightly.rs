//! The toolchain that Miri and the sanitizers need, by rustup: the nightly that is there, or else today's.

use crate::Result;
use crate::shell::{Cmd, is_installed};

/// What is needed of it beside the compiler: Miri, and the source of the standard library.
const COMPONENTS: [&str; 2] = ["miri", "rust-src"];

/// Installs what is missing. What the machine lacks that it cannot be installed, if so: rustup, or a network.
///
/// # Errors
/// If rustup does not work.
pub(crate) fn lack() -> Result<Option<String>> {
    if !is_installed("rustup") {
        return Ok(Some("rustup is not installed".into()));
    }
    let toolchains = Cmd::new("rustup toolchain list").output()?;
    if !toolchains.lines().any(|line| line.starts_with("nightly-")) {
        let components = COMPONENTS.map(|name| format!("-c {name}")).join(" ");
        let install = "rustup toolchain install nightly --no-self-update --profile minimal";
        if let Err(error) = Cmd::new(&format!("{install} {components}")).run() {
            return Ok(Some(error.to_string()));
        }
    }
    let list = Cmd::new("rustup component list --toolchain nightly --installed").output()?;
    for component in COMPONENTS {
        if !list.lines().any(|line| line.starts_with(component)) {
            let add = format!("rustup component add --toolchain nightly {component}");
            if let Err(error) = Cmd::new(&add).run() {
                return Ok(Some(error.to_string()));
            }
        }
    }
    Ok(None)
}

/// `cargo LINE` of that toolchain.
pub(crate) fn cargo(line: &str) -> Cmd {
    Cmd::new(&format!("rustup run nightly cargo {line}"))
}

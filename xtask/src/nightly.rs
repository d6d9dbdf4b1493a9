//! The toolchain that Miri and the sanitizers need, by rustup: the nightly that is there, or else today's.

use crate::Result;
use crate::shell::{Cmd, is_installed};

/// What is needed of it beside the compiler: Miri, and the source of the standard library.
const COMPONENTS: [&str; 2] = ["miri", "rust-src"];

/// Installs what is missing. False on a machine without rustup.
///
/// # Errors
/// If rustup is there and cannot install it: nothing is skipped for want of a network.
pub(crate) fn is_ready() -> Result<bool> {
    if !is_installed("rustup") {
        return Ok(false);
    }
    let toolchains = Cmd::new("rustup toolchain list").output()?;
    if !toolchains.lines().any(|line| line.starts_with("nightly-")) {
        let components = COMPONENTS.map(|name| format!("-c {name}")).join(" ");
        let install = "rustup toolchain install nightly --no-self-update --profile minimal";
        Cmd::new(&format!("{install} {components}")).run()?;
    }
    let list = Cmd::new("rustup component list --toolchain nightly --installed").output()?;
    for component in COMPONENTS {
        if !list.lines().any(|line| line.starts_with(component)) {
            Cmd::new(&format!("rustup component add --toolchain nightly {component}")).run()?;
        }
    }
    Ok(true)
}

/// `cargo LINE` of that toolchain.
pub(crate) fn cargo(line: &str) -> Cmd {
    Cmd::new(&format!("rustup run nightly cargo {line}"))
}

//! The description of the device for lists and help.

use crate::options::PARAMETERS;
use blkmq_core::Parameter;
use std::fmt;

/// The description of the device.
pub struct RbdFactory {
    /// Its name, as used with `--device`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Its page of documentation.
    pub doc: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl fmt::Debug for RbdFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RbdFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// For programs that offer devices by name.
pub const FACTORY: RbdFactory = RbdFactory {
    name: "rbd",
    summary: "an image of a Ceph cluster, through the librbd of this machine: POOL/IMAGE[@SNAP]",
    doc: include_str!("../doc/rbd.md"),
    parameters: PARAMETERS,
};

/// The description of the image in `text`, `rbd:IMAGE[,KEY=VALUE]...`; `None` if `text` describes another device.
#[must_use]
pub fn description(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(FACTORY.name)?;
    match rest.strip_prefix(':') {
        Some(rest) => Some(rest),
        None if rest.is_empty() || rest.starts_with(',') => Some(rest),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_the_name_of_the_device() {
        for (text, expected) in [
            ("rbd:p/i,id=x", Some("p/i,id=x")),
            ("rbd,image=p/i", Some(",image=p/i")),
            ("rbd", Some("")),
            ("rbdx", None),
            ("uring:/a/rbd:", None),
        ] {
            assert_eq!(description(text), expected, "{text}");
        }
    }

    #[test]
    fn the_page_names_every_parameter() {
        for parameter in FACTORY.parameters {
            let name = format!("`{}`", parameter.name);
            assert!(FACTORY.doc.contains(&name), "{name} is not on the page");
        }
    }
}

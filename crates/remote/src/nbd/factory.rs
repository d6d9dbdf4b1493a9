//! The description of the device for lists and help.

use super::options::PARAMETERS;
use blkmq_core::Parameter;
use std::fmt;

/// The description of the device.
pub struct NbdFactory {
    /// Its name, as used with `--device`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Its page of documentation.
    pub doc: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl fmt::Debug for NbdFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// For programs that offer devices by name.
pub const FACTORY: NbdFactory = NbdFactory {
    name: "nbd",
    summary: "an export of an NBD server: nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbds://...",
    doc: include_str!("../../doc/nbd.md"),
    parameters: PARAMETERS,
};

/// The description of the export in `text`, `URI[,KEY=VALUE]...`, which may begin with `nbd:`; `None` if `text` describes
/// another device.
#[must_use]
pub fn description(text: &str) -> Option<&str> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    if let Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix") = scheme {
        return Some(text);
    }
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
    fn an_export_is_known_by_its_scheme_or_by_the_name_of_the_device() {
        for (text, expected) in [
            ("nbd://h/x,hw_queues=2", Some("nbd://h/x,hw_queues=2")),
            ("nbd:nbds://h", Some("nbds://h")),
            ("nbds+unix:///?socket=s", Some("nbds+unix:///?socket=s")),
            ("nbd", Some("")),
            ("nbdx", None),
            ("null", None),
            ("uring:/a/nbd://", None),
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

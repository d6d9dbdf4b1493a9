//! The device as programs offer it by name.

use super::options::PARAMETERS;
use blkmq_core::RealDevice;

/// For programs that offer devices by name.
pub const NBD: RealDevice = RealDevice {
    name: "nbd",
    target: "URI",
    summary: "an export of an NBD server: nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbds://...",
    doc: include_str!("../../doc/nbd.md"),
    parameters: PARAMETERS,
};

/// The description of the export in `text`, `URI[,KEY=VALUE]...`, which may begin with `nbd:`; `None` if `text` describes
/// another device.
#[must_use]
pub fn description(text: &str) -> Option<&str> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    match scheme {
        Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix") => Some(text),
        _ => NBD.description(text),
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
        assert_eq!(NBD.undocumented(), None);
    }
}

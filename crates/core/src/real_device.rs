//! [`RealDevice`]: a kind of device outside of the program, such as a file or an export of a server, as programs offer it by
//! name. Opening one is the task of its crate.

use crate::Parameter;
use alloc::format;
use alloc::string::String;

/// A kind of device outside of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RealDevice {
    /// Its name, as used with `--device`.
    pub name: &'static str,
    /// The form of the text after the name and a colon, for help: `PATH`.
    pub target: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Its page of documentation.
    pub doc: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl RealDevice {
    /// The form of a description: `NAME:TARGET[,KEY=VALUE]...`.
    #[must_use]
    pub fn form(&self) -> String {
        format!("{}:{}[,KEY=VALUE]...", self.name, self.target)
    }

    /// The description without the name; `None` if `text` describes another kind of device.
    #[must_use]
    pub fn description<'a>(&self, text: &'a str) -> Option<&'a str> {
        let rest = text.strip_prefix(self.name)?;
        match rest.strip_prefix(':') {
            Some(rest) => Some(rest),
            None if rest.is_empty() || rest.starts_with(',') => Some(rest),
            None => None,
        }
    }

    /// The first parameter that the page does not name in backquotes, for tests.
    #[must_use]
    pub fn undocumented(&self) -> Option<&'static str> {
        let mut names = self.parameters.iter().map(|parameter| parameter.name);
        names.find(|name| !self.doc.contains(&format!("`{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETER: Parameter = Parameter { name: "image", default: "", help: "" };
    const RBD: RealDevice = RealDevice {
        name: "rbd",
        target: "POOL/IMAGE",
        summary: "",
        doc: "| `image` | |",
        parameters: &[PARAMETER],
    };

    #[test]
    fn a_description_is_known_by_the_name_of_the_device() {
        for (text, expected) in [
            ("rbd:p/i,id=x", Some("p/i,id=x")),
            ("rbd,image=p/i", Some(",image=p/i")),
            ("rbd", Some("")),
            ("rbdx", None),
            ("uring:/a/rbd:", None),
        ] {
            assert_eq!(RBD.description(text), expected, "{text}");
        }
        assert_eq!(RBD.form(), "rbd:POOL/IMAGE[,KEY=VALUE]...");
    }

    #[test]
    fn a_parameter_that_the_page_lacks_is_found() {
        const ID: Parameter = Parameter { name: "id", ..PARAMETER };
        assert_eq!(RBD.undocumented(), None);
        assert_eq!(RealDevice { parameters: &[PARAMETER, ID], ..RBD }.undocumented(), Some("id"));
    }
}

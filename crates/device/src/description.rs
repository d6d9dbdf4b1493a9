//! The grammar of a device's description: a name, pairs, and an argument after a colon; and [`Parts`]: the result of a
//! model's builder.
//!
//! ```text
//! NAME [ "," KEY "=" VALUE ]...                a device as such
//! NAME [ "," KEY "=" VALUE ]... ":" DEVICE     one around another device, down to the end of the text
//! ```
//!
//! The name decides between the two forms, so values may contain colons, except for a device around another one. This
//! module does not interpret parameters.

use crate::{ArrivalLog, DeviceError, OccupancyLog, Parameter};
use blkmq_engine::DeviceShape;

/// A parameter's name and its value, as the user wrote them.
pub type Pair = (String, String);

/// The kind of argument after the colon of a device's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// No argument. A colon after the name is read as a comma, as in the description of a scheduler.
    None,
    /// The complete description of another device, which is required.
    Device,
}

/// The parsed description of a device, without its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description<'a> {
    /// The argument after the colon; empty only for [`Argument::None`].
    pub argument: &'a str,
    /// The pairs, in the order given.
    pub pairs: Vec<Pair>,
}

/// The description of a kind of device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// The name of the device, as after `--device`.
    pub(crate) name: &'static str,
    /// A one-line summary for lists.
    pub(crate) summary: &'static str,
    /// The kind of argument after a colon.
    pub(crate) argument: Argument,
    /// The parameters of the device.
    pub(crate) parameters: &'static [Parameter],
}

impl About {
    /// The form of the description, for messages and lists: `null[,KEY=VALUE]...`.
    pub(crate) fn form(&self) -> String {
        let name = self.name;
        match self.argument {
            Argument::None => format!("{name}[,KEY=VALUE]..."),
            Argument::Device => format!("{name}[,KEY=VALUE]...:DEVICE"),
        }
    }

    /// Splits the text after the name, which is empty or begins with a comma or a colon.
    pub(crate) fn describe<'a>(&self, text: &'a str) -> Result<Description<'a>, DeviceError> {
        let missing = |what| DeviceError::Argument { what, accepted: self.form() };
        let (argument, pairs) = match self.argument {
            Argument::None => ("", text.get(1..)),
            Argument::Device => {
                let (pairs, device) = text.split_once(':').ok_or_else(|| missing("DEVICE"))?;
                let device = Some(device.trim()).filter(|device| !device.is_empty());
                (device.ok_or_else(|| missing("DEVICE"))?, pairs.get(1..))
            }
        };
        let pairs = pairs.into_iter().flat_map(|pairs| pairs.split(','));
        let pairs = pairs.map(|word| self.pair(word.trim())).collect::<Result<_, _>>()?;
        Ok(Description { argument, pairs })
    }

    fn pair(&self, word: &str) -> Result<Pair, DeviceError> {
        match word.split_once('=') {
            Some((key, value)) => Ok((key.trim().into(), value.trim().into())),
            None => Err(DeviceError::Syntax { word: word.into(), accepted: self.form() }),
        }
    }
}

/// Splits a list of descriptions, separated by commas as pairs are: a word that contains `=` before any `:` belongs to
/// the preceding description, any other word begins a new one. Text in balanced brackets, as for the devices of a
/// layer, stays together. The result is never empty.
///
/// ```
/// let list = "null,submit_queues=2,faults,error=0.01:memory,size=64";
/// let texts = ["null,submit_queues=2", "faults,error=0.01:memory,size=64"];
/// assert_eq!(blkmq_device::descriptions(list), texts);
/// ```
#[must_use]
pub fn descriptions(list: &str) -> Vec<&str> {
    let (mut texts, mut from, mut at) = (Vec::new(), 0, 0);
    let deepened = |depth: i64, text: &str| {
        text.bytes().fold(depth, |depth, byte| match byte {
            b'[' => depth + 1,
            b']' => depth - 1,
            _ => depth,
        })
    };
    let has_brackets = deepened(0, list) == 0;
    let mut depth = 0;
    for word in list.split(',') {
        let is_inside = has_brackets && depth > 0;
        depth = deepened(depth, word);
        let goes_on = is_inside || word.split(':').next().is_some_and(|head| head.contains('='));
        if at > 0 && !goes_on {
            texts.push(list[from..at - 1].trim());
            from = at;
        }
        at += word.len() + 1;
    }
    texts.push(list[from..].trim());
    texts
}

/// The parts of a device, including those of its model.
pub(crate) struct Parts<M> {
    /// The shape of the device for the engine.
    pub(crate) shape: DeviceShape,
    /// Whether the device requests the scheduler `none` unless the user names one.
    pub(crate) no_sched: bool,
    /// Notes for the user, a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) log: Option<ArrivalLog>,
    pub(crate) occupancy: Option<OccupancyLog>,
    pub(crate) model: M,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(argument: Argument) -> About {
        About { name: "it", summary: "", argument, parameters: &[] }
    }

    /// The argument and the pairs as text, or the error.
    fn read(argument: Argument, text: &str) -> String {
        match about(argument).describe(text) {
            Ok(Description { argument, pairs }) => {
                let pairs = pairs.iter().map(|(key, value)| format!(" {key}={value}"));
                format!("{argument}{}", pairs.collect::<String>())
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn a_plain_device_has_pairs_only() {
        assert_eq!(read(Argument::None, ""), "");
        assert_eq!(read(Argument::None, ",a=1:2, b = 3"), " a=1:2 b=3");
        assert_eq!(read(Argument::None, ":a=1"), " a=1");
        let message = "'x' is no KEY=VALUE; accepted: it[,KEY=VALUE]...";
        assert_eq!(read(Argument::None, ":x"), message);
        assert_eq!(read(Argument::None, ",a=1,x"), message);
    }

    #[test]
    fn another_device_stands_behind_the_pairs() {
        assert_eq!(read(Argument::Device, ":null"), "null");
        assert_eq!(read(Argument::Device, ",a=1,b=2:null,c=1:2"), "null,c=1:2 a=1 b=2");
        assert_eq!(read(Argument::Device, ":it,a=1:null"), "it,a=1:null");
        for text in ["", ",a=1", ":", ",a=1: "] {
            let message = "DEVICE is missing; accepted: it[,KEY=VALUE]...:DEVICE";
            assert_eq!(read(Argument::Device, text), message);
        }
        assert!(read(Argument::Device, ",a:null").starts_with("'a' is no KEY=VALUE"));
    }

    #[test]
    fn a_list_falls_into_descriptions() {
        let split = |list| descriptions(list).join(" | ");
        assert_eq!(split(""), "");
        assert_eq!(split("null"), "null");
        assert_eq!(split("null, memory ,size=1"), "null | memory ,size=1");
        assert_eq!(
            split("faults:memory,size=1,null:a=1,b=2"),
            "faults:memory,size=1 | null:a=1,b=2"
        );
        assert_eq!(split("faults,error=1:uring:/a=b,null"), "faults,error=1:uring:/a=b | null");
        assert_eq!(
            split("stripe,chunk=4k:[null,size=1][memory],null"),
            "stripe,chunk=4k:[null,size=1][memory] | null"
        );
        assert_eq!(split("concat:[stripe:[a,b][c]][d,e],f"), "concat:[stripe:[a,b][c]][d,e] | f");
        assert_eq!(split("uring:/a[,null,memory"), "uring:/a[ | null | memory");
        assert_eq!(split("null,,null"), "null |  | null");
        assert_eq!(split("a=1,null"), "a=1 | null");
    }
}

//! The one place where the command line meets the devices: their names, pages and parameters.

use crate::error::UsageError;
use crate::plan::DeviceChoice;

/// What the command line needs to know of a kind of device.
pub struct Device {
    /// As in `--device`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// The page that `blkmq doc NAME` prints.
    pub doc: &'static str,
}

/// Every kind of device.
pub fn all() -> &'static [Device] {
    &[Device {
        name: "null",
        summary: "null_blk: takes any I/O and moves no data",
        doc: "# null\n\nnull_blk's parameters by their own names: submit_queues, hw_queue_depth, irqmode,\n\
              completion_nsec, gb or size (MiB), and so on.\n",
    }]
}

/// Is there a device called `name`?
pub fn is_known(name: &str) -> bool {
    all().iter().any(|device| device.name == name)
}

/// The device `name` with `params`.
///
/// # Errors
/// If there is no such device or a parameter cannot be; the message says what is accepted.
pub fn choose(name: &str, params: Vec<(String, String)>) -> Result<DeviceChoice, UsageError> {
    if !is_known(name) {
        let names = Vec::from_iter(all().iter().map(|device| device.name)).join(", ");
        return Err(UsageError::new(format!("no device '{name}'; accepted: {names}")));
    }
    let size_bytes = size_bytes(&params)?;
    let mut text = String::from(name);
    params.iter().for_each(|(key, value)| text.push_str(&format!(",{key}={value}")));
    Ok(DeviceChoice { name: name.into(), params, text, size_bytes })
}

/// null_blk's size: `size` in MiB, or else `gb` in GiB, 250 GiB by default (`spec/null_blk.md` section 2).
fn size_bytes(params: &[(String, String)]) -> Result<u64, UsageError> {
    let last = |key: &str| params.iter().rev().find(|(name, _)| name == key);
    let (param, shift) = match (last("size"), last("gb")) {
        (Some(param), _) => (param, 20),
        (None, Some(param)) => (param, 30),
        (None, None) => return Ok(250 << 30),
    };
    let (key, value) = param;
    let max = u64::MAX >> 10 >> shift;
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.map(|number: u64| number << shift).ok_or_else(|| {
        UsageError::new(format!("{key}={value} is not valid; accepted: 1 to {max}"))
    })
}

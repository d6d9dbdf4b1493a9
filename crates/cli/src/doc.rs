//! `blkmq doc`: the pages of schedulers and devices, and the table of attributes.

use crate::devices;
use crate::error::UsageError;
use blkmq_engine::attributes;
use blkmq_sched::registry as schedulers;
use std::borrow::Cow;

/// The page about the attributes of queues.
const ATTRIBUTES: &str = "attributes";

/// A list of all pages.
pub fn list() -> String {
    let mut text = String::from("Schedulers (--scheduler):\n");
    for factory in schedulers::ALL {
        text.push_str(&format!("  {:<14}{}\n", factory.name, factory.summary));
    }
    text.push_str("\nDevices (--device):\n");
    for device in devices::offers() {
        text.push_str(&format!("  {:<14}{}\n", device.name, device.summary));
        text.push_str(&format!("  {:<14}{}\n", "", device.form));
    }
    text.push_str("\nQueues:\n");
    text.push_str(&format!("  {ATTRIBUTES:<14}what can be read and set while a queue is in use\n"));
    text.push_str("\nblkmq doc NAME prints a page.\n");
    text
}

/// The page called `name`.
///
/// # Errors
/// If there is none; the message lists them all.
pub fn page(name: &str) -> Result<Cow<'static, str>, UsageError> {
    if name == ATTRIBUTES {
        return Ok(attributes::table().into());
    }
    let scheduler = schedulers::find(name).map(|factory| factory.doc);
    let devices = devices::offers();
    let device = devices.iter().find(|device| device.name == name).map(|device| device.doc);
    scheduler.or(device).map(Cow::Borrowed).ok_or_else(|| {
        let schedulers = schedulers::ALL.iter().map(|factory| factory.name);
        let names = schedulers.chain(devices.iter().map(|device| device.name));
        let names = names.chain([ATTRIBUTES]);
        let names = Vec::from_iter(names).join(", ");
        UsageError::new(format!("doc {name}: no such page; accepted: {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_list_has_a_page_that_begins_with_it() {
        for factory in schedulers::ALL {
            assert!(list().contains(factory.name));
            let page = page(factory.name).expect("a registered scheduler");
            assert!(page.starts_with(&format!("# {}", factory.name)), "{page}");
        }
        for device in devices::offers() {
            assert!(page(device.name).is_ok());
        }
    }

    #[test]
    fn the_table_of_attributes_is_a_page() {
        assert!(list().contains(ATTRIBUTES));
        assert!(page(ATTRIBUTES).expect("listed").contains("| `queue/scheduler` | rw |"));
    }

    #[test]
    fn an_unknown_page_lists_the_known_ones() {
        let message = page("cfq").expect_err("gone since 5.0").to_string();
        assert!(message.contains("none") && message.contains("null"), "{message}");
    }
}

//! The table of all attributes for readers, as in `docs/attributes.md`.

use super::rows;
use super::table::HW_QUEUE;
use super::{Permission, Unit};
use std::fmt::Write;

/// All attributes as a table in Markdown. The attributes of schedulers are one line of it: each scheduler's page
/// lists its own.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("| attribute | | unit | what it is |\n|---|---|---|---|\n");
    let mut line = |path: &str, permission, unit: &dyn std::fmt::Display, help: &str| {
        let permission = match permission {
            Permission::ReadOnly => "r",
            Permission::ReadWrite => "rw",
        };
        writeln!(text, "| `{path}` | {permission} | {unit} | {help} |")
            .expect("a String takes everything");
    };
    for row in rows() {
        line(row.path, row.permission(), &row.unit, row.help);
    }
    line(
        "iosched/*",
        Permission::ReadWrite,
        &"",
        "what the present scheduler lets you set; `blkmq doc NAME` lists it",
    );
    for row in HW_QUEUE {
        line(row.pattern, Permission::ReadOnly, &row.unit as &Unit, row.help);
    }
    text
}

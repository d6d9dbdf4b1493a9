//! The keys that a user presses, as events of the protocol.

use crate::Result;
use serde_json::{Value, json};

/// Names, their codes, and the text that they type.
const NAMED: [(&str, u32, &str); 10] = [
    ("Tab", 9, ""),
    ("Enter", 13, "\r"),
    ("Escape", 27, ""),
    ("Space", 32, " "),
    ("Home", 36, ""),
    ("End", 35, ""),
    ("ArrowLeft", 37, ""),
    ("ArrowUp", 38, ""),
    ("ArrowRight", 39, ""),
    ("ArrowDown", 40, ""),
];

/// The bit of the shift key.
const SHIFT: u32 = 8;

/// The events for key down and key up. `Shift+Tab` is a name, too.
pub(super) fn press(name: &str) -> Result<[Value; 2]> {
    let (modifiers, name) = match name.strip_prefix("Shift+") {
        Some(name) => (SHIFT, name),
        None => (0, name),
    };
    let named = NAMED.iter().find(|(known, ..)| *known == name);
    let mut characters = name.chars();
    let (key, code, text) = match (named, characters.next(), characters.next()) {
        (Some((_, code, text)), ..) => (if name == "Space" { " " } else { name }, *code, *text),
        (None, Some(one), None) => (name, u32::from(one.to_ascii_uppercase()), name),
        _ => return Err(format!("there is no key {name}").into()),
    };
    let event = |kind: &str| {
        json!({
            "type": kind, "key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers,
        })
    };
    let mut down = event(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
    if !text.is_empty() {
        down["text"] = text.into();
    }
    Ok([down, event("keyUp")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_or_are_characters() {
        let [down, up] = press("Shift+Tab").unwrap();
        assert_eq!((&down["key"], &down["modifiers"]), (&json!("Tab"), &json!(8)));
        assert_eq!((&down["type"], &up["type"]), (&json!("rawKeyDown"), &json!("keyUp")));
        let [down, _] = press("7").unwrap();
        assert_eq!((&down["text"], &down["windowsVirtualKeyCode"]), (&json!("7"), &json!(55)));
        assert!(press("Nothing").is_err());
    }
}

//! Rules on clients, a line each: a text is refused with the accepted forms, or read as a rule that is shown as it is
//! read.
//!
//! The file of the server that the grammar is in, without the server: TLS takes minutes to build.

#![no_main]

#[allow(dead_code)]
#[path = "../../crates/server/src/allow.rs"]
mod allow;

use allow::{Allow, Rule};
use libfuzzer_sys::fuzz_target;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stands for the function of the server's root.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fuzz_target!(|text: &str| {
    let mut rules = Vec::new();
    for line in text.lines() {
        match line.parse::<Rule>() {
            Ok(rule) => {
                assert_eq!(rule.to_string().parse(), Ok(rule.clone()));
                rules.push(rule);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("accepted: ") && error.len() < 1000, "{error}");
                assert!(!error.contains(char::is_control), "{error:?}");
            }
        }
    }
    match Allow::new(rules.clone()) {
        Ok(allow) => assert_eq!(allow.rules(), rules),
        Err(_) => assert!(rules.is_empty() || rules.len() > 256),
    }
});

//! The attributes of a crate: that it needs no operating system, and that it has no `unsafe`.

use super::banned::words;
use super::{File, Finding, Tree};

/// Policies and nouns are pure because they cannot name a clock, a thread or a random map.
const NO_STD: [&str; 2] = ["core", "sched"];
/// Crates that may contain `unsafe`; in each, only where [`may_be_unsafe`] allows it.
const WITH_UNSAFE: [&str; 9] =
    ["buf", "engine", "layer", "rbd", "remote", "threads", "ublk", "uring", "vhost"];

/// Finds missing attributes, and `unsafe` in files that must have none.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        if is_crate_root(file) {
            check_root(file, &rust.masked.code, out);
        }
        if may_be_unsafe(&file.path) {
            continue;
        }
        for at in words(&rust.masked.code, "unsafe") {
            let remedy = "keep it in crates/engine/src/shared/slots.rs and crates/engine/src/sync/";
            out.push(file.finding(file.line(at), "unsafe outside its files".into(), remedy));
        }
    }
}

fn check_root(file: &File, code: &str, out: &mut Vec<Finding>) {
    let krate = file.krate().unwrap_or("xtask");
    let has = |attribute: &str| code.lines().any(|line| line.trim() == attribute);
    if NO_STD.contains(&krate) && !has("#![no_std]") {
        let remedy = "add #![no_std]: it is how the build proves that policies are pure";
        out.push(file.finding(1, format!("{krate} is not no_std"), remedy));
    }
    if !WITH_UNSAFE.contains(&krate) && !has("#![forbid(unsafe_code)]") {
        let remedy = "add #![forbid(unsafe_code)]";
        out.push(file.finding(1, format!("{krate} does not forbid unsafe code"), remedy));
    }
}

fn is_crate_root(file: &File) -> bool {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let in_src =
        folder == "xtask/src" || (folder.split('/').count() == 3 && folder.ends_with("/src"));
    in_src
        && matches!(name, "lib.rs" | "main.rs")
        && (file.krate().is_some() || folder == "xtask/src")
}

fn may_be_unsafe(path: &str) -> bool {
    path == "crates/engine/src/shared/slots.rs"
        || path.starts_with("crates/engine/src/sync/")
        || path.starts_with("crates/buf/src/")
        || path.starts_with("crates/uring/src/")
        // A bare ring, to compare with.
        || path == "crates/uring/examples/futures.rs"
        || path == "crates/layer/src/lent.rs"
        || path == "crates/threads/src/file/request.rs"
        || path == "crates/remote/src/memory.rs"
        || path.starts_with("crates/rbd/src/sys/")
        || path == "crates/ublk/src/queues.rs"
        || path == "crates/vhost/src/memory.rs"
        // This code has bugs for Miri and the sanitizers to find.
        || path.starts_with("planted/src/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut out);
        out.len()
    }

    #[test]
    fn a_policy_crate_without_its_attributes_is_found_twice() {
        assert_eq!(count("crates/sched/src/lib.rs", "//! x\n"), 2);
        let good = "//! x\n#![no_std]\n#![forbid(unsafe_code)]\n";
        assert_eq!(count("crates/sched/src/lib.rs", good), 0);
    }

    #[test]
    fn an_attribute_in_a_comment_does_not_count() {
        assert_eq!(count("crates/lab/src/lib.rs", "// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(count("crates/cli/src/main.rs", "#![forbid(unsafe_code)]\n"), 0);
    }

    #[test]
    fn unsafe_has_its_files() {
        let code = "fn f() { unsafe { g() } }\n";
        assert_eq!(count("crates/engine/src/queue.rs", code), 1);
        assert_eq!(count("crates/engine/tests/a.rs", code), 1);
        assert_eq!(count("crates/engine/src/shared/slots.rs", code), 0);
        assert_eq!(count("crates/engine/src/sync/ring.rs", code), 0);
        assert_eq!(count("crates/remote/src/memory.rs", code), 0);
        assert_eq!(count("crates/remote/src/device.rs", code), 1);
        assert_eq!(count("crates/rbd/src/sys/mod.rs", code), 0);
        assert_eq!(count("crates/rbd/src/queue.rs", code), 1);
        assert_eq!(count("crates/engine/src/queue.rs", "// unsafe\n#[allow(unsafe_code)]\n"), 0);
    }
}

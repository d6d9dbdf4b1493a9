//! Calls, types and keywords that are banned from some files, each with its replacement; and the attributes of a crate:
//! that it needs no operating system, and that it has no `unsafe`.
//!
//! Some of these are also in `clippy.toml`. They are here as well because clippy cannot tell a test from a library,
//! nor one file from another.

use super::{File, Finding, Tree, is_word};

/// One ban: the names, the places where they are still allowed, and the remedy.
struct Ban {
    names: &'static [&'static str],
    /// Whether the name is allowed here.
    allowed: fn(&Place<'_>) -> bool,
    remedy: &'static str,
}

/// The place of a banned name.
struct Place<'a> {
    path: &'a str,
    krate: Option<&'a str>,
    is_test: bool,
}

impl Place<'_> {
    fn is_in(&self, crates: &[&str]) -> bool {
        self.krate.is_some_and(|krate| crates.contains(&krate))
    }

    /// Code that other programs link: not a binary, a chore or an example.
    fn is_library(&self) -> bool {
        let parts = || self.path.split('/');
        let aside = parts().any(|part| matches!(part, "examples" | "benches"));
        self.krate.is_some_and(|krate| krate != "cli" && krate != "daemon") && !aside
    }
}

const BANS: &[Ban] = &[
    Ban {
        names: &["Instant::now", "SystemTime::now"],
        allowed: |place| {
            // `shell.rs` reads it to print how long a step of CI took.
            matches!(place.path, "crates/runtime/src/clock.rs" | "xtask/src/shell.rs")
        },
        remedy: "time is an argument; only crates/runtime/src/clock.rs reads it",
    },
    Ban {
        names: &["thread::sleep"],
        allowed: |place| place.path == "crates/runtime/src/clock.rs",
        remedy: "park, or use virtual time in a test",
    },
    Ban {
        names: &["thread::spawn", "thread::scope", "thread::Builder"],
        // An example is a program, and shows a program's use of threads.
        allowed: |place| {
            // The planted bugs are of threads, too.
            let programs = ["/examples/", "planted/src/", "python/src/"];
            place.is_test
                || place.is_in(&["runtime", "server", "terminal", "cli", "daemon"])
                || programs.iter().any(|part| place.path.contains(part))
                // A device that is threads.
                || place.path == "crates/threads/src/pool.rs"
                // A timer that runs beside a measurement.
                || place.path == "xtask/src/beside_linux.rs"
        },
        remedy: "the engine is passive; threads are started in crates/runtime, crates/server or by a program",
    },
    Ban {
        names: &["std::sync", "core::sync", "alloc::sync"],
        allowed: |place| {
            let facade = place.path.starts_with("crates/engine/src/sync/");
            !(place.is_in(&["core", "sched"]) || (place.is_in(&["engine"]) && !place.is_test))
                || facade
        },
        remedy: "name it through crates/engine/src/sync/, where loom and shuttle can replace it",
    },
    Ban {
        names: &["std::thread", "std::hint"],
        allowed: |place| {
            let files = ["clock.rs", "placement.rs", "port.rs"];
            let path = place.path.strip_prefix("crates/runtime/src/");
            path.is_none_or(|path| files.contains(&path)) || place.is_test
        },
        remedy: "name it through crates/runtime/src/port.rs, where shuttle can replace it",
    },
    Ban {
        names: &["HashMap", "HashSet"],
        allowed: |_| false,
        remedy: "its order differs from run to run; use BTreeMap, BTreeSet or a Vec",
    },
    Ban {
        names: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        allowed: |place| place.is_test || !place.is_library(),
        remedy: "a library does not print; return it",
    },
    Ban {
        names: &[".unwrap()"],
        allowed: |place| place.is_test,
        remedy: "use expect with a sentence that says why it holds, or return the error",
    },
    Ban {
        names: &["f32", "f64"],
        allowed: |place| {
            let policy = place.path.starts_with("crates/sched/src/");
            place.is_test || !policy || place.path.contains("/testkit/")
        },
        remedy: "policies decide in integers, so that a replay agrees on every machine",
    },
    Ban {
        names: &["todo!", "unimplemented!"],
        allowed: |_| false,
        remedy: "finish it, or leave it out",
    },
    Ban { names: &["#[ignore]"], allowed: |_| false, remedy: "say why: #[ignore = \"...\"]" },
];

/// Left-over notes of an author, in comments.
const NOTES: [&str; 3] = ["FIXME", "XXX", "TODO"];

/// Finds banned names.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        for ban in BANS {
            for name in ban.names {
                for at in words(&rust.masked.code, name) {
                    let is_test = rust.scopes.is_test(at);
                    let place = Place { path: &file.path, krate: file.krate(), is_test };
                    if !(ban.allowed)(&place) {
                        out.push(file.finding(file.line(at), format!("{name} here"), ban.remedy));
                    }
                }
            }
        }
        check_notes(file, &rust.masked.comments, out);
    }
}

fn check_notes(file: &File, comments: &str, out: &mut Vec<Finding>) {
    for note in NOTES {
        for at in words(comments, note) {
            let remedy = "do it now, or write down a decision";
            out.push(file.finding(file.line(at), format!("{note} left in a comment"), remedy));
        }
    }
}

/// The offsets of `name` in `code` as whole words.
fn words<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    let ends_in_word = name.bytes().last().is_some_and(is_word);
    let starts_with_word = name.bytes().next().is_some_and(is_word);
    code.match_indices(name).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        let after = bytes.get(at + name.len()).copied();
        let is_part_of_a_longer_word = starts_with_word && before.is_some_and(is_word)
            || ends_in_word && after.is_some_and(is_word);
        !is_part_of_a_longer_word
    })
}

/// Policies and nouns are pure because they cannot name a clock, a thread or a random map.
const NO_STD: [&str; 2] = ["core", "sched"];
/// Crates that may contain `unsafe`; in each, only where [`may_be_unsafe`] allows it.
const WITH_UNSAFE: [&str; 9] =
    ["buf", "engine", "layer", "rbd", "remote", "threads", "ublk", "uring", "vhost"];

/// Finds missing attributes, and `unsafe` in files that must have none.
pub(super) fn check_attributes(tree: &Tree, out: &mut Vec<Finding>) {
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
    fn clocks_have_one_file() {
        let code = "fn f() { std::time::Instant::now(); }";
        assert_eq!(count("crates/lab/src/world.rs", code), 1);
        assert_eq!(count("crates/runtime/src/waiting.rs", code), 1);
        assert_eq!(count("crates/runtime/src/clock.rs", code), 0);
        assert_eq!(count("crates/cli/src/main.rs", "fn f() { SystemTime::now(); }"), 1);
    }

    #[test]
    fn sleeping_is_found_in_tests_too() {
        assert_eq!(count("crates/runtime/tests/a.rs", "fn f() { thread::sleep(x) }"), 1);
    }

    #[test]
    fn threads_start_in_runtime_programs_and_tests() {
        let code = "fn f() { std::thread::spawn(g); }";
        assert_eq!(count("crates/engine/src/queue.rs", code), 1);
        assert_eq!(count("crates/lab/src/world.rs", "fn f() { thread::scope(g); }"), 1);
        assert_eq!(count("crates/runtime/src/waiting.rs", "fn f() { thread::spawn(g); }"), 0);
        assert_eq!(count("crates/engine/tests/a.rs", code), 0);
        let module = format!("#[cfg(test)]\nmod tests {{ {code} }}");
        assert_eq!(count("crates/engine/src/queue.rs", &module), 0);
    }

    #[test]
    fn atomics_go_through_the_facade() {
        let code = "use std::sync::atomic::AtomicU32;";
        assert_eq!(count("crates/engine/src/queue.rs", code), 1);
        assert_eq!(count("crates/sched/src/none.rs", "use core::sync::atomic::AtomicU32;"), 1);
        assert_eq!(count("crates/engine/src/sync/mod.rs", code), 0);
        assert_eq!(count("crates/runtime/src/waiting.rs", code), 0);
    }

    #[test]
    fn waits_of_the_runtime_go_through_its_port() {
        let code = "fn f() { std::thread::park(); std::hint::spin_loop(); }";
        assert_eq!(count("crates/runtime/src/waiting.rs", code), 2);
        assert_eq!(count("crates/runtime/src/port.rs", code), 0);
        assert_eq!(count("crates/runtime/tests/a.rs", code), 0);
        assert_eq!(count("crates/server/src/threads.rs", code), 0);
    }

    #[test]
    fn random_maps_are_found_everywhere() {
        assert_eq!(count("crates/lab/tests/a.rs", "use std::collections::HashMap;"), 1);
        assert_eq!(count("crates/lab/src/a.rs", "use std::collections::BTreeMap;"), 0);
    }

    #[test]
    fn libraries_do_not_print() {
        let code = "fn f() { eprintln!(); }";
        assert_eq!(count("crates/engine/src/queue.rs", code), 1);
        assert_eq!(count("crates/cli/src/main.rs", code), 0);
        assert_eq!(count("crates/blkmq/examples/minimal.rs", code), 0);
        assert_eq!(count("crates/engine/src/queue.rs", "/// println!(x)\nfn f() {}"), 0);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let code = "fn f() { x.unwrap(); }";
        assert_eq!(count("crates/cli/src/main.rs", code), 1);
        assert_eq!(count("crates/cli/src/main.rs", "fn f() { x.unwrap_or(1); }"), 0);
        assert_eq!(count("crates/cli/tests/a.rs", code), 0);
    }

    #[test]
    fn policies_have_no_floats() {
        let code = "fn f(x: f64) {}";
        assert_eq!(count("crates/sched/src/kyber/mod.rs", code), 1);
        assert_eq!(count("crates/sched/src/testkit/script.rs", code), 0);
        assert_eq!(count("crates/core/src/rng.rs", code), 0);
    }

    #[test]
    fn unfinished_work_is_found() {
        assert_eq!(count("crates/lab/src/a.rs", "fn f() { todo!() }"), 1);
        assert_eq!(count("crates/lab/src/a.rs", "// FIXME: later\n"), 1);
        assert_eq!(count("crates/lab/src/a.rs", "const A: &str = \"FIXME\";\n"), 0);
    }

    #[test]
    fn an_ignored_test_says_why() {
        assert_eq!(count("crates/lab/tests/a.rs", "#[test]\n#[ignore]\nfn f() {}"), 1);
        assert_eq!(count("crates/lab/tests/a.rs", "#[ignore = \"needs fio\"]\nfn f() {}"), 0);
    }

    fn attributes_missing(path: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check_attributes(&Tree::of(&[(path, text)]), &mut out);
        out.len()
    }

    #[test]
    fn a_policy_crate_without_its_attributes_is_found_twice() {
        assert_eq!(attributes_missing("crates/sched/src/lib.rs", "//! x\n"), 2);
        let good = "//! x\n#![no_std]\n#![forbid(unsafe_code)]\n";
        assert_eq!(attributes_missing("crates/sched/src/lib.rs", good), 0);
    }

    #[test]
    fn an_attribute_in_a_comment_does_not_count() {
        assert_eq!(attributes_missing("crates/lab/src/lib.rs", "// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(attributes_missing("crates/cli/src/main.rs", "#![forbid(unsafe_code)]\n"), 0);
    }

    #[test]
    fn unsafe_has_its_files() {
        let code = "fn f() { unsafe { g() } }\n";
        assert_eq!(attributes_missing("crates/engine/src/queue.rs", code), 1);
        assert_eq!(attributes_missing("crates/engine/tests/a.rs", code), 1);
        assert_eq!(attributes_missing("crates/engine/src/shared/slots.rs", code), 0);
        assert_eq!(attributes_missing("crates/engine/src/sync/ring.rs", code), 0);
        assert_eq!(attributes_missing("crates/remote/src/memory.rs", code), 0);
        assert_eq!(attributes_missing("crates/remote/src/device.rs", code), 1);
        assert_eq!(attributes_missing("crates/rbd/src/sys/mod.rs", code), 0);
        assert_eq!(attributes_missing("crates/rbd/src/queue.rs", code), 1);
        assert_eq!(
            attributes_missing("crates/engine/src/queue.rs", "// unsafe\n#[allow(unsafe_code)]\n"),
            0
        );
    }
}

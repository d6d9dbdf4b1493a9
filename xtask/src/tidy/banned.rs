//! Calls and types that are banned from some files, each with its replacement.
//!
//! Some of these are also in `clippy.toml`. They are here as well because clippy cannot tell a test from a library,
//! nor one file from another.

use super::source::is_word;
use super::{File, Finding, Tree};

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
            let files = ["clock.rs", "placement.rs"];
            let path = place.path.strip_prefix("crates/runtime/src/");
            path.is_none_or(|path| path.starts_with("port/") || files.contains(&path))
                || place.is_test
        },
        remedy: "name it through crates/runtime/src/port/, where shuttle can replace it",
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
pub(super) fn words<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
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
        assert_eq!(count("crates/runtime/src/port/mod.rs", code), 0);
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
}

//! The chores of the workspace: `cargo xtask VERB`.
//!
//! A file or a folder has the verbs of one subject. The steps of `.ci/run` are here too, so that a person runs exactly
//! what CI runs. None of this is part of the product, and no crate of the product depends on it.

#![forbid(unsafe_code)]

mod bench;
mod beside_linux;
mod ci;
mod deny;
mod dist;
mod fio_fuzz;
mod fuzz;
mod interop;
mod mass;
mod measurement;
mod orderings;
mod publish;
mod random;
mod rbd;
mod serve;
mod shell;
mod soak;
mod suite;
pub(crate) mod tidy;
mod toolchains;
mod watchdog;

use std::process::ExitCode;

/// The result of a verb: nothing, or the reason to exit with status 1.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One line of the table below.
struct Verb {
    name: &'static str,
    usage: &'static str,
    summary: &'static str,
    run: fn(&[String]) -> Result<()>,
}

/// Every verb. The usage text is generated from this list.
const VERBS: &[Verb] = &[
    Verb { name: "tidy", usage: "", summary: "check the rules of STYLE.md", run: tidy::main },
    Verb {
        name: "mass",
        usage: "[DIR]",
        summary: "lines, files and circles of folders, in a table",
        run: mass::main,
    },
    Verb {
        name: "map",
        usage: "[WORD | --blocking]",
        summary: "what each source file is for, of all files or those with WORD in their path; or the page of calls that block",
        run: mass::map,
    },
    Verb {
        name: "ci",
        usage: "[--skip STEP]... [STEP]...",
        summary: "everything that CI runs, or the named steps of it",
        run: ci::main,
    },
    Verb {
        name: "api",
        usage: "[--bless]",
        summary: "what is public, compared with docs/api",
        run: publish::api,
    },
    Verb {
        name: "semver",
        usage: "[REVISION]",
        summary: "public items that break users' code since the revision in docs/api/baseline.txt",
        run: publish::semver,
    },
    Verb {
        name: "deny",
        usage: "",
        summary: "licences, sources and versions of dependencies, and advisories about them",
        run: deny::main,
    },
    Verb {
        name: "dist",
        usage: "[archive|debian|image]...",
        summary: "a release: an archive, a Debian package, and an image for containers",
        run: dist::main,
    },
    Verb {
        name: "outside",
        usage: "",
        summary: "a scheduler and a device outside of the workspace pass their kits",
        run: publish::outside,
    },
    Verb {
        name: "package",
        usage: "",
        summary: "each crate can be published",
        run: publish::package,
    },
    Verb {
        name: "msrv",
        usage: "",
        summary: "everything compiles with the oldest compiler that is promised",
        run: publish::msrv,
    },
    Verb {
        name: "systems",
        usage: "",
        summary: "the library compiles for macOS and Windows",
        run: toolchains::systems,
    },
    Verb {
        name: "python",
        usage: "",
        summary: "the wheel and the source distribution of the package of Python, its types and tests",
        run: dist::python,
    },
    Verb {
        name: "loom",
        usage: "[FILTER]",
        summary: "model-check the protocols",
        run: suite::loom,
    },
    Verb {
        name: "orderings",
        usage: "[FILTER]",
        summary: "weaken each ordering; a model must notice",
        run: orderings::main,
    },
    Verb {
        name: "shuttle",
        usage: "[FILTER]",
        summary: "random schedules of the whole queue",
        run: suite::shuttle,
    },
    Verb {
        name: "miri",
        usage: "",
        summary: "unsafe and concurrent parts, interpreted by the rules of the language",
        run: suite::miri,
    },
    Verb {
        name: "sanitize",
        usage: "[thread|address]",
        summary: "threads and raw memory under the sanitizers",
        run: suite::sanitize,
    },
    Verb {
        name: "aarch64",
        usage: "",
        summary: "policies and engine on another processor, under qemu",
        run: suite::aarch64,
    },
    Verb {
        name: "fuzz",
        usage: "[--seconds N] [TARGET]...",
        summary: "every parser, guided by coverage",
        run: fuzz::main,
    },
    Verb {
        name: "fio-fuzz",
        usage: "[--help] [OPTION]...",
        summary: "job files that are drawn, run by fio and by blkmq bench, and compared",
        run: fio_fuzz::main,
    },
    Verb {
        name: "soak",
        usage: "[--help] [OPTION]... [SEEDS]",
        summary: "simulate that many seeds in virtual time",
        run: soak::main,
    },
    Verb {
        name: "bench",
        usage: "[--help] [--test-size] [--out DIR] | --pairs [OPTION]... | --threads [OPTION]... | --layers [OPTION]... | --instructions [--bless]",
        summary: "the comparison set, against fio and the locks; pairs of runs; many threads on one file; a stripe \
                  beside its files; or instructions for an I/O",
        run: bench::main,
    },
    Verb {
        name: "beside-linux",
        usage: "[--help] [OPTION]...",
        summary: "our schedulers beside those of Linux, on the same modelled device",
        run: beside_linux::main,
    },
    Verb {
        name: "lost-cpu",
        usage: "[SECONDS [OPTION=VALUE]...]",
        summary: "how long I/Os lie idle where a runner has no CPU",
        run: watchdog::lost_cpu,
    },
    Verb {
        name: "watchdog",
        usage: "[--minutes N] [--seed S] [--file PATH] [--blkmq PATH]",
        summary: "I/Os that lie in the queue while the disk is idle and the threads sleep",
        run: watchdog::main,
    },
    Verb {
        name: "nbd",
        usage: "[PAIRS]",
        summary: "what a read costs the example's server and nbdkit's, in turns",
        run: serve::nbd,
    },
    Verb {
        name: "serve-peers",
        usage: "[--help] [OPTION]... [ROUNDS]",
        summary: "blkmqd beside nbdkit and QEMU's servers: rates, latencies, processor time",
        run: serve::peers,
    },
    Verb {
        name: "serve-attacks",
        usage: "[SECONDS [NAME]]",
        summary: "the latency of a client beside hostile ones",
        run: serve::attacks::attacks,
    },
    Verb {
        name: "serve-isolation",
        usage: "[SECONDS]",
        summary: "shares and latencies of real clients on a file and on models, all at its default",
        run: serve::shares::isolation,
    },
    Verb {
        name: "serve-floors",
        usage: "[SECONDS]",
        summary: "a tenant with a floor beside one that floods the model of a cloud disk",
        run: serve::shares::floors,
    },
    Verb {
        name: "ceilings",
        usage: "[ROUNDS [SECONDS]]",
        summary: "a client under a ceiling of blkmqd, of QEMU's throttle group, and of Linux' blkio controller",
        run: serve::shares::ceilings,
    },
    Verb {
        name: "serve-soak",
        usage: "[MINUTES]",
        summary: "64 connections that come, go and are killed; nothing of them may be left",
        run: serve::attacks::soak_main,
    },
    Verb {
        name: "serve-crash",
        usage: "[TIMES]",
        summary: "a killed server has every block that was flushed",
        run: serve::attacks::crash_main,
    },
    Verb {
        name: "nbd-kills",
        usage: "[TIMES]",
        summary: "NBD servers are killed under a verified load of ours, 100 times each",
        run: interop::storage::kills,
    },
    Verb {
        name: "upgrades",
        usage: "[TIMES]",
        summary: "the Debian package is upgraded below a load whose writes are all read back",
        run: interop::upgrades,
    },
    Verb {
        name: "rbd-kills",
        usage: "[SECONDS]",
        summary: "an OSD and a monitor are killed under verified load, and come back after 20 s",
        run: interop::rbd::kills,
    },
    Verb {
        name: "rbd-costs",
        usage: "[ROUNDS [SECONDS]]",
        summary: "what an I/O to an image of Ceph costs, of blkmq bench and of fio's own engine",
        run: rbd::costs,
    },
    Verb {
        name: "rbd-tenants",
        usage: "[--help] [OPTION]... [ROUNDS [SECONDS]]",
        summary: "a reader beside a flood on a cluster of Ceph: alone, throttled, and behind blkmqd",
        run: rbd::tenants,
    },
    Verb {
        name: "screenshots",
        usage: "",
        summary: "pictures of a report and of the live page, for docs/images",
        run: interop::screenshots,
    },
    Verb {
        name: "interop",
        usage: "[CHECK]...",
        summary: "checks with real clients",
        run: interop::main,
    },
];

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask VERB\n\n");
    for verb in VERBS {
        let call = format!("{} {}", verb.name, verb.usage);
        text.push_str(&format!("  {call:<34} {}\n", verb.summary));
    }
    text
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verb = args.first().and_then(|name| VERBS.iter().find(|verb| verb.name == name));
    let Some(verb) = verb else {
        let asked_for_help = matches!(args.first().map(String::as_str), Some("help" | "--help"));
        eprint!("{}", usage());
        return if asked_for_help { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match (verb.run)(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {}: {error}", verb.name);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The words behind `cargo xtask` in the pages of the repository, up to the end of the command.
    fn documented() -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        let root = shell::root();
        let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "STYLE.md"]
            .map(|it| root.join(it))
            .into();
        let crates = fs::read_dir(root.join("crates")).unwrap();
        let folders = crates.map(|it| it.unwrap().path().join("doc"));
        for folder in folders.chain(["docs", "docs/decisions", "docs/spec"].map(|it| root.join(it)))
        {
            pages.extend(fs::read_dir(folder).into_iter().flatten().map(|it| it.unwrap().path()));
        }
        for page in pages.iter().filter(|page| page.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(page).unwrap();
            for rest in text.split("cargo xtask ").skip(1) {
                let end = rest.find(['`', '\n']).unwrap_or(rest.len());
                let words = rest[..end].replace('\\', "");
                found.push((
                    page.display().to_string(),
                    words.split_whitespace().map(str::to_owned).collect(),
                ));
            }
        }
        found
    }

    #[test]
    fn every_chore_that_a_page_names_is_one_and_has_the_options() {
        let all = documented();
        assert!(all.len() > 40, "{}", all.len());
        for (page, words) in all {
            let verb = words.first().map_or("", |word| word.trim_matches(['.', ',', ')', ';']));
            let known = VERBS.iter().find(|known| known.name == verb || verb == "VERB");
            let known = known.unwrap_or_else(|| panic!("{page}: cargo xtask {words:?}"));
            let usage = [
                known.usage,
                bench::HELP,
                soak::HELP,
                fio_fuzz::HELP,
                serve::HELP,
                beside_linux::HELP,
                rbd::HELP,
            ]
            .concat();
            for option in words.iter().map(|word| word.trim_matches(['[', ']', '.'])) {
                assert!(!option.starts_with("--") || usage.contains(option), "{page}: {words:?}");
            }
        }
    }
}

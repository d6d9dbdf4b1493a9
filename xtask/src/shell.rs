//! Runs other programs from the root of the workspace, and prints their command lines; and a [`Guard`], which cleans up
//! at the end, however the chore ends: normally, by an error, by Ctrl-C or by SIGKILL.
//!
//! A shell that ignores signals reads the cleanup actions, line by line. When the other end of the pipe is closed, it
//! performs all of them. No other code cleans up, and no other file of the chores starts a process or reads the clock.

use crate::Result;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command line, kept as text so that it can be printed and recorded exactly.
#[derive(Clone, Debug)]
pub(crate) struct Cmd {
    /// The program as it is written; see [`Cmd::program`].
    words: Vec<String>,
    env: Vec<(&'static str, String)>,
}

/// The program that `cargo xtask bench` measures, as it is written down in results.
pub(crate) const BLKMQ: &str = "target/dist/blkmq";

/// The block server, as it is written down in results.
pub(crate) const BLKMQD: &str = "target/dist/blkmqd";

/// The client of the block server, as it is written down in results.
pub(crate) const BLKMQCTL: &str = "target/dist/blkmqctl";

const BUILD_PROGRAM: &str = "cargo build --profile dist -p blkmq-cli";

/// The command that builds [`BLKMQD`] and [`BLKMQCTL`]: apart, since cargo gives all programs of a build the features
/// of each of them.
const BUILD_SERVER: &str = "cargo build --profile dist -p blkmq-daemon";

/// The example that serves a disk over NBD, as it is written down in results.
pub(crate) const NBD_SERVER: &str = "target/dist/examples/nbd_server";

/// The example that serves a disk over NBD, built with the tests.
pub(crate) const TESTED_NBD_SERVER: &str = "target/debug/examples/nbd_server";

/// The example that is the front end of a virtual disk, built with the tests.
pub(crate) const VHOST_READS: &str = "target/debug/examples/vhost_reads";

/// The example that serves memory over NBD without a queue, as it is written down in results.
pub(crate) const RAM_DISK: &str = "target/dist/examples/ram_disk";

/// The example that measures runners without a CPU, as it is written down in results.
pub(crate) const LOST_CPU: &str = "target/release/examples/lost_cpu";

/// Options of cargo for models: the checkers are dependencies, and most of the time of a model is spent in them and in
/// the engine; the test profile builds both to compile quickly.
pub(crate) const FAST_MODELS: &str = "--config profile.test.package.'*'.opt-level=2 \
                                      --config profile.test.package.blkmq-engine.opt-level=2 \
                                      --config profile.test.package.blkmq-runtime.opt-level=2";

/// Builds the programs of a release, and [`RAM_DISK`].
///
/// # Errors
/// If it does not build.
pub(crate) fn build() -> Result<()> {
    build_programs()?;
    Cmd::new("cargo build --profile dist -p blkmq-nbd --example ram_disk").run()
}

/// Builds [`BLKMQ`], [`BLKMQD`] and [`BLKMQCTL`].
///
/// # Errors
/// If it does not build.
pub(crate) fn build_programs() -> Result<()> {
    build_program()?;
    Cmd::new(BUILD_SERVER).run()
}

/// Builds [`BLKMQ`].
///
/// # Errors
/// If it does not build.
pub(crate) fn build_program() -> Result<()> {
    Cmd::new(BUILD_PROGRAM).run()
}

/// Starts to build [`BLKMQ`] in parallel with other work, since for a minute of its optimisation one CPU is idle. A
/// command that needs it waits for the build, and reports its errors.
///
/// # Errors
/// If cargo cannot be started.
pub(crate) fn build_program_ahead() -> Result<Ahead> {
    let mut command = Cmd::new(BUILD_PROGRAM).command();
    Ok(Ahead(command.arg("--quiet").stderr(Stdio::null()).spawn()?))
}

/// A build in parallel with other work. Dropping it ends the build, so that a failed step leaves nothing behind.
pub(crate) struct Ahead(Child);

impl Drop for Ahead {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cmd {
    /// The words of `line`, split at blanks; nothing is expanded.
    pub(crate) fn new(line: &str) -> Self {
        Self { words: line.split_whitespace().map(str::to_owned).collect(), env: Vec::new() }
    }

    /// The command with one more word, which may hold any character.
    pub(crate) fn arg(mut self, word: impl Into<String>) -> Self {
        self.words.push(word.into());
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Puts `line`, a command that runs another one, in front of the command.
    pub(crate) fn under(mut self, line: &str) -> Self {
        self.words.splice(0..0, line.split_whitespace().map(str::to_owned));
        self
    }

    /// The program named by the first word: `cargo` is the cargo that runs this program.
    fn program(&self) -> PathBuf {
        match self.words[0].as_str() {
            "cargo" => cargo(),
            other => built(other, &target_dir()),
        }
    }

    /// The other words. The path of a built program is also resolved when it is the argument of another program.
    fn args(&self) -> impl Iterator<Item = PathBuf> {
        self.words[1..].iter().map(|word| built(word, &target_dir()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        // Cargo's variables about this package are hidden from another cargo: some build scripts depend on them, and
        // would be rerun, with all dependents, whenever a command is typed in between.
        let of_this_package = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            name.to_str().is_some_and(|name| {
                name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
            })
        });
        of_this_package.for_each(|name| {
            command.env_remove(name);
        });
        command.args(self.args()).envs(self.env.iter().map(|(k, v)| (k, v)));
        command.current_dir(root());
        command
    }

    /// Runs it with this program's output.
    ///
    /// # Errors
    /// If it cannot be started or does not succeed.
    pub(crate) fn run(&self) -> Result<()> {
        println!("$ {self}");
        let status = self.command().status().map_err(|error| format!("{self}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{self}: {status}").into()) }
    }

    /// Starts it, with all its output in `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(&self, log: File) -> Result<Child> {
        let mut command = self.command();
        command.stdout(log.try_clone()?).stderr(log);
        Ok(command.spawn().map_err(|error| format!("{self}: {error}"))?)
    }

    /// Starts it in `folder`, with its standard output in `out` and its standard error in `said`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start_in(&self, folder: &Path, out: File, said: File) -> Result<Child> {
        let mut command = self.command();
        command.current_dir(folder).stdin(Stdio::null()).stdout(out).stderr(said);
        Ok(command.spawn().map_err(|error| format!("{self}: {error}"))?)
    }

    /// Starts it with pipes for its standard input and output, and with its standard error in `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn piped(&self, log: File) -> Result<Child> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        Ok(command.spawn().map_err(|error| format!("{self}: {error}"))?)
    }

    /// Starts it with the output of another program as its input, and with its standard output in `out`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start_on(&self, input: ChildStdout, out: File) -> Result<Child> {
        let mut command = self.command();
        command.stdin(input).stdout(out);
        Ok(command.spawn().map_err(|error| format!("{self}: {error}"))?)
    }

    /// Runs it and returns its standard output; its standard error is passed on.
    ///
    /// # Errors
    /// If it cannot be started or does not succeed; the error has its own message.
    pub(crate) fn output(&self) -> Result<String> {
        let output = self.command().output().map_err(|error| format!("{self}: {error}"))?;
        let remarks = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{self}: {}: {}", output.status, remarks.trim()).into());
        }
        eprint!("{remarks}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs it in `folder`, where it may leave files, and returns its standard output.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub(crate) fn output_in(&self, folder: &Path) -> Result<String> {
        let output = self.command().current_dir(folder).output();
        let output = output.map_err(|error| format!("{self}: {error}"))?;
        if !output.status.success() {
            let remarks = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{self}: {}: {}", output.status, remarks.trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs it and returns its standard output, and whether it succeeded: for programs that print more when they fail.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn attempt(&self) -> Result<(bool, String)> {
        let output = self.command().output().map_err(|error| format!("{self}: {error}"))?;
        Ok((output.status.success(), String::from_utf8(output.stdout)?))
    }

    /// Runs it without any output, and returns its exit code, if it was not ended by a signal.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn quiet_code(&self) -> Result<Option<i32>> {
        self.quiet_code_in(&root())
    }

    /// Runs it in `folder` without any output, and returns its exit code, if it was not ended by a signal.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn quiet_code_in(&self, folder: &Path) -> Result<Option<i32>> {
        let mut command = self.command();
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.stderr(Stdio::null()).status();
        Ok(status.map_err(|error| format!("{self}: {error}"))?.code())
    }

    /// Runs it in `folder`, where it may leave files, and returns its standard output.
    ///
    /// # Errors
    /// If it cannot be started or does not succeed, or prints anything on standard error.
    pub(crate) fn silent_output_in(&self, folder: &Path) -> Result<String> {
        let output = self.command().current_dir(folder).output();
        let output = output.map_err(|error| format!("{self}: {error}"))?;
        let remarks = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !remarks.is_empty() {
            return Err(format!("{self}: {}: {}", output.status, remarks.trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a `cargo test` in parallel with another one; [`RunningTests::finish`] prints its output.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start_tests(&self) -> Result<RunningTests> {
        let mut command = self.command();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| format!("{self}: {error}"))?;
        Ok(RunningTests { cmd: self.clone(), child })
    }

    /// Runs a `cargo test`, passing its output on, and counts the tests that passed.
    ///
    /// # Errors
    /// If it does not succeed, or if no test ran: a filter that matches nothing must not look like success.
    pub(crate) fn run_tests(&self) -> Result<u32> {
        println!("$ {self}");
        let mut child = self.command().stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().expect("its standard output was asked for");
        let mut passed = 0;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            passed += passed_tests(&line).unwrap_or(0);
        }
        self.judge(child.wait()?, passed)
    }

    fn judge(&self, status: ExitStatus, passed: u32) -> Result<u32> {
        if !status.success() {
            return Err(format!("{self}: {status}").into());
        }
        if passed == 0 {
            return Err(format!("{self}: no test ran").into());
        }
        Ok(passed)
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            if value.contains(' ') {
                write!(f, "{name}='{value}' ")?;
            } else {
                write!(f, "{name}={value} ")?;
            }
        }
        for (at, word) in self.words.iter().enumerate() {
            let gap = if at > 0 { " " } else { "" };
            if word.contains(' ') { write!(f, "{gap}'{word}'")? } else { write!(f, "{gap}{word}")? }
        }
        Ok(())
    }
}

/// `Some(3)` for `test result: ok. 3 passed; 0 failed; ...`, or for the end of such a line: Miri prints the results of
/// several seeds at the same time.
pub(crate) fn passed_tests(line: &str) -> Option<u32> {
    let (before, _) = line.split_once(" passed; ")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

pub(crate) fn root() -> PathBuf {
    // Set by cargo for `cargo run` and `cargo test`; the alternative is for calling the binary directly.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
    let mut root = manifest.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    root.pop();
    root
}

/// The folder into which cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    let moved = |name| std::env::var_os(name);
    target_of(moved("CARGO_TARGET_DIR").or_else(|| moved("CARGO_BUILD_TARGET_DIR")))
}

/// Like [`target_dir`], but with this value of the variable. The result is never relative, since commands run in
/// several folders.
fn target_of(moved: Option<OsString>) -> PathBuf {
    root().join(moved.filter(|it| !it.is_empty()).unwrap_or_else(|| "target".into()))
}

/// The path of `word`, which may be that of a built program as it is written in the sources: the target folder may be
/// elsewhere.
fn built(word: &str, target: &Path) -> PathBuf {
    let programs =
        [BLKMQ, BLKMQD, BLKMQCTL, NBD_SERVER, TESTED_NBD_SERVER, VHOST_READS, RAM_DISK, LOST_CPU];
    let is_built = programs.contains(&word);
    match word.strip_prefix("target/").filter(|_| is_built) {
        Some(program) => target.join(program),
        None => word.into(),
    }
}

/// Returns whether there is a program called `name`.
pub(crate) fn is_installed(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs `work` and returns the time that it took, by the wall clock.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let start = now();
    let result = work();
    (result, now() - start)
}

/// A `cargo test` that was started.
pub(crate) struct RunningTests {
    cmd: Cmd,
    child: Child,
}

impl RunningTests {
    /// Waits for the end, prints all output, and counts the tests that passed.
    ///
    /// # Errors
    /// As [`Cmd::run_tests`].
    pub(crate) fn finish(self) -> Result<u32> {
        let output = self.child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        println!("$ {}\n{}{text}", self.cmd, String::from_utf8_lossy(&output.stderr));
        let passed = text.lines().filter_map(passed_tests).sum();
        self.cmd.judge(output.status, passed)
    }
}

/// A run of this program in parallel with others, with its output in a file.
pub(crate) struct Apart {
    name: &'static str,
    child: Child,
    log: PathBuf,
    start: Instant,
}

/// A run of this program that has ended.
pub(crate) struct Ended {
    pub name: &'static str,
    pub succeeded: bool,
    pub output: String,
    /// Wall-clock time.
    pub time: Duration,
    /// CPU time of its programs, in seconds.
    pub cpu: f64,
}

impl Apart {
    /// Starts this program with `args`; `name` is for people.
    ///
    /// # Errors
    /// If it cannot be started, or has no file for its output.
    pub(crate) fn start(name: &'static str, args: &[&str]) -> Result<Self> {
        let folder = target_dir().join("apart");
        std::fs::create_dir_all(&folder)?;
        let log = folder.join(name).with_extension("log");
        let program = std::env::current_exe()?;
        let cmd =
            args.iter().fold(Cmd::new("").arg(program.to_string_lossy()), |cmd, arg| cmd.arg(*arg));
        let child = cmd.start(File::create(&log)?)?;
        Ok(Self { name, child, log, start: now() })
    }
}

/// Waits until one of `runs` has ended, and takes it out.
///
/// # Errors
/// If the kernel does not report the end, or the output cannot be read.
///
/// # Panics
/// If there is none.
pub(crate) fn first_to_end(runs: &mut Vec<Apart>) -> Result<Ended> {
    assert!(!runs.is_empty(), "there is a run to wait for");
    loop {
        let before = cpu_of_programs();
        for at in 0..runs.len() {
            let Some(status) = runs[at].child.try_wait()? else { continue };
            let Apart { name, log, start, .. } = runs.swap_remove(at);
            let output = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
            let (time, cpu) = (now() - start, cpu_of_programs() - before);
            return Ok(Ended { name, succeeded: status.success(), output, time, cpu });
        }
        // Steps take minutes.
        Cmd::new("sleep 0.2").output()?;
    }
}

/// The clock, for times that are only printed.
fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the time of a step is only printed")]
    let now = Instant::now;
    now()
}

/// The CPU time, in seconds, of all programs that this one has run and waited for, including their children; 0 if the
/// kernel does not report it.
pub(crate) fn cpu_of_programs() -> f64 {
    /// In `/proc`, on every architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain blanks. User time is the 14th word behind it, kernel time
    // the next.
    let words = stat.rsplit(')').next().into_iter().flat_map(str::split_whitespace);
    words.skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / TICKS_PER_SECOND
}

/// The JSON object in the output of a program. fio puts its remarks in front of it.
pub(crate) fn parse_json(output: &str) -> Result<Value> {
    let start = output.find('{').ok_or("no JSON in the output")?;
    Ok(serde_json::from_str(&output[start..])?)
}

/// A loop device disappears when no process has it open, a mount when no process uses it: so neither waits for clients
/// that are still ending. By then, groups and the folder are empty.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r what it; do
  case $what in
    loop) loops="$loops $it" ;;
    mount) mounts="$mounts $it" ;;
    process) processes="$processes $it" ;;
    group) groups="$groups $it" ;;
    folder) folders="$folders $it" ;;
  esac
done
exec 2>/dev/null
for it in $loops; do losetup -d "$it"; done
for it in $mounts; do umount -l "$it"; done
for it in $processes; do kill "$it"; done
for try in 1 2 3 4 5; do
  left=
  for it in $processes; do if kill -0 "$it"; then left=1; fi; done
  if [ -z "$left" ]; then break; fi
  sleep 0.1
done
for it in $processes; do kill -9 "$it"; done
for it in $groups; do rmdir "$it"; done
for it in $folders; do rm -rf --one-file-system "$it"; done
exit 0
"#;

/// The shell; dropping it undoes everything.
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// # Errors
    /// If there is no shell.
    pub(crate) fn new() -> Result<Self> {
        let child = Cmd::new("sh -c").arg(SCRIPT).piped(File::create("/dev/null")?)?;
        Ok(Self { child })
    }

    /// Records an item to clean up: a `loop` device, a `mount`, a `process`, a `group` or a `folder`, and its name.
    ///
    /// # Errors
    /// If the shell has ended.
    pub(crate) fn note(&mut self, what: &str, it: &str) -> Result<()> {
        let pipe = self.child.stdin.as_mut().ok_or("the shell that cleans up has no pipe")?;
        Ok(writeln!(pipe, "{what} {it}")?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The shell does its work even without this wait.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn passed_tests_are_counted() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out";
        assert_eq!(passed_tests(line), Some(12));
        assert_eq!(passed_tests("test result: FAILED. 4 passed; 1 failed; 0 ignored"), Some(4));
        assert_eq!(passed_tests(". 1 passed; 0 failed; 0 ignored"), Some(1), "of two seeds");
        assert_eq!(passed_tests("running 12 tests"), None);
    }

    #[test]
    fn a_command_is_printed_as_it_can_be_typed() {
        let cmd = Cmd::new("cargo test -p x").env("RUSTFLAGS", "--cfg loom").env("A", "3");
        assert_eq!(cmd.to_string(), "RUSTFLAGS='--cfg loom' A=3 cargo test -p x");
        assert_eq!(Cmd::new("echo").arg("a b").arg("c").to_string(), "echo 'a b' c");
    }

    #[test]
    fn a_command_that_fails_is_an_error() {
        assert!(Cmd::new("false").run().is_err());
        assert!(Cmd::new("false").output().is_err());
        assert!(Cmd::new("no-such-program-here").run().is_err());
        assert!(Cmd::new("true").run().is_ok());
        assert_eq!(Cmd::new("sh -c").arg("exit 3").quiet_code().unwrap(), Some(3));
        let both = Cmd::new("sh -c").arg("echo words; exit 3").attempt().unwrap();
        assert_eq!(both, (false, "words\n".to_owned()));
        let error = Cmd::new("cargo no-such-chore").output().unwrap_err().to_string();
        assert!(error.contains("no such command"), "what it said is in {error}");
    }

    /// This program, in its tests, lists its tests.
    #[test]
    fn of_runs_beside_each_other_each_ends_once_with_its_own_output() {
        let mut runs = vec![
            Apart::start("listed", &["--list", "apart_none", "of_runs_beside"]).unwrap(),
            Apart::start("refused", &["--no-such-option"]).unwrap(),
        ];
        let mut ended = [first_to_end(&mut runs).unwrap(), first_to_end(&mut runs).unwrap()];
        assert!(runs.is_empty());
        ended.sort_by_key(|run| run.name);
        let [listed, refused] = ended;
        assert!(listed.succeeded && listed.output.contains("of_runs_beside"), "{}", listed.output);
        assert!(!refused.succeeded && refused.output.contains("no-such-option"));
    }

    #[test]
    fn cpu_time_of_programs_is_counted_once_they_have_ended() {
        let before = cpu_of_programs();
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        Cmd::new("sh -c").arg(count).run().unwrap();
        assert!(cpu_of_programs() > before);
    }

    #[test]
    fn a_test_run_without_tests_is_an_error() {
        let error = Cmd::new("true").run_tests().unwrap_err().to_string();
        assert!(error.contains("no test ran"), "{error}");
        let one = Cmd::new("echo test result: ok. 1 passed; 0 failed");
        assert_eq!(one.run_tests().unwrap(), 1);
    }

    /// `timeout 5 target/dist/blkmq` was searched for in `target`, and so was every path under a relative folder,
    /// relative to the folder in which the command ran.
    #[test]
    fn built_programs_are_found_in_a_target_folder_that_was_moved() {
        let target = target_of(Some("/elsewhere".into()));
        for (word, path) in [
            (BLKMQ, "/elsewhere/dist/blkmq"),
            (BLKMQD, "/elsewhere/dist/blkmqd"),
            (BLKMQCTL, "/elsewhere/dist/blkmqctl"),
            (NBD_SERVER, "/elsewhere/dist/examples/nbd_server"),
            (TESTED_NBD_SERVER, "/elsewhere/debug/examples/nbd_server"),
            (VHOST_READS, "/elsewhere/debug/examples/vhost_reads"),
            (RAM_DISK, "/elsewhere/dist/examples/ram_disk"),
            (LOST_CPU, "/elsewhere/release/examples/lost_cpu"),
            ("target/other", "target/other"),
            ("--device=target/dist/blkmq", "--device=target/dist/blkmq"),
        ] {
            assert_eq!(built(word, &target), Path::new(path), "{word}");
        }
        assert_eq!(target_of(Some("beside".into())), root().join("beside"));
        assert_eq!(target_of(Some("".into())), root().join("target"));
        assert_eq!(target_of(None), root().join("target"));
        let under = Cmd::new(BLKMQ).arg("bench").under("timeout 5");
        assert!(under.args().any(|word| word == target_dir().join("dist/blkmq")), "{under}");
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }

    #[test]
    fn remarks_before_the_json_are_skipped() {
        assert_eq!(parse_json("note: iodepth\n{\"a\": 1}").unwrap(), json!({ "a": 1 }));
        assert!(parse_json("nothing").is_err());
    }

    #[test]
    fn what_is_noted_is_undone() {
        let folder = std::env::temp_dir().join(format!("blkmq-guard-{}", std::process::id()));
        let group = folder.with_extension("group");
        fs::create_dir_all(folder.join("inside")).unwrap();
        fs::create_dir_all(&group).unwrap();
        let mut sleeper = Cmd::new("sleep 600").start(File::create("/dev/null").unwrap()).unwrap();
        let mut guard = Guard::new().unwrap();
        guard.note("process", &sleeper.id().to_string()).unwrap();
        guard.note("folder", &folder.display().to_string()).unwrap();
        guard.note("group", &group.display().to_string()).unwrap();
        drop(guard);
        assert!(!folder.exists() && !group.exists());
        assert!(!sleeper.wait().unwrap().success(), "it was killed");
    }
}

//! `blkmqd`, started and ended as by a user: its rules on clients, with refusals in its log, faults of a file and a
//! reload, and virtual disks of a server that is killed, whose requests in flight the next server takes over.

use crate::guest::{Ask, Guest, IN, OUT, SIZE};
use crate::{BIN, BLKMQD};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Starts a server. Returns it with the lines that it printed up to its readiness.
pub fn serve(args: &[&str]) -> (Child, Vec<String>) {
    let mut command = Command::new(BLKMQD);
    started(command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn started(command: &mut Command) -> (Child, Vec<String>) {
    let mut child = command.spawn().expect("it starts");
    let lines = ready(&mut child);
    (child, lines)
}

/// Returns the lines of a server until it serves or ends.
pub fn ready(child: &mut Child) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.as_mut().expect("it is piped")).lines() {
        lines.push(line.expect("text"));
        if lines.last().is_some_and(|line| line.starts_with("SIGTERM")) {
            break;
        }
    }
    lines
}

pub fn end(child: Child, signal: &str) -> (Option<i32>, String) {
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.expect("kill is everywhere").success());
    ended(child)
}

/// Waits for the end. Returns the exit code and standard error.
pub fn ended(mut child: Child) -> (Option<i32>, String) {
    let code = child.wait().expect("it ends").code();
    let mut errors = String::new();
    child.stderr.expect("it is piped").read_to_string(&mut errors).expect("text");
    (code, errors)
}

#[test]
fn a_server_says_where_it_is_and_ends_when_it_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("server.sock");
    let listen = format!("--listen=unix:{}", socket.display());
    for signal in ["-TERM", "-INT"] {
        let (child, lines) = serve(&[
            &listen,
            "--device=memory,size=8",
            "--scheduler=bfq",
            "--export=gold,size=4m,weight=300",
            "--export=rest,offset=4m,read-only=1",
            "--workers=1",
        ]);
        let text = lines.join("\n");
        for expected in [
            "device 1: memory,size=8, 8388608 bytes, none mq-deadline kyber [bfq] mclock",
            "export 'gold': device 1, read and write, weight 300",
            "export 'rest': device 1, read-only, weight 100",
            &format!("  nbd+unix:///gold?socket={}", socket.display()),
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let mut client = UnixStream::connect(&socket).expect("it listens");
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).expect("it greets");
        assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
        assert_eq!(end(child, signal), (Some(0), String::new()));
        assert!(!socket.exists(), "nothing is left");
    }
}

/// Regression test: the server printed nothing for minutes while it laid out a large file.
#[test]
fn a_file_that_is_laid_out_is_named_before_the_server_is_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.img");
    let device = format!("--device=uring:{},size=1,direct=0", file.display());
    let listen = format!("--listen=unix:{}", folder.path().join("server.sock").display());
    for (round, expected) in [true, false].into_iter().enumerate() {
        let (child, lines) = serve(&[&listen, &device]);
        let (_, log) = end(child, "-TERM");
        if log.contains("io_uring") {
            println!("skipped: {log}");
            return;
        }
        assert!(!lines.is_empty(), "{log}");
        let said =
            log.contains("is laid out") && log.contains("disk.img") && log.contains("1048576");
        assert_eq!(said, expected, "start {round}: {log}");
    }
}

#[test]
fn what_cannot_be_served_is_refused_with_what_can() {
    let refused = |args: &[&str]| {
        let output = Command::new(BLKMQD).args(args).output();
        let output = output.expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, error) = refused(&["--device=floppy", "--listen=tcp:127.0.0.1:0"]);
    assert!(code == Some(1) && error.contains("memory"), "{error}");
    let (code, error) = refused(&["--export=a,weight=much"]);
    assert!(code == Some(2) && error.contains("accepted: 1 to 1000"), "{error}");
    let (code, error) = refused(&["--listen=floppy"]);
    assert!(code == Some(2) && error.contains("unix:PATH and tcp:IP[:PORT]"), "{error}");
    let (code, error) = refused(&["--export=a,size=2g", "--listen=tcp:127.0.0.1:0"]);
    assert!(code == Some(1) && error.contains("not in a disk of 1073741824 bytes"), "{error}");
}

/// Regression test: a signal between the first answer to a client and the server's own note that it serves ended the
/// program with exit code 1, dropping the requests in flight.
#[test]
fn a_signal_after_the_first_answer_has_the_server_drain() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("early.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    for _ in 0..32 {
        let mut client = UnixStream::connect(&socket).expect("it listens");
        let handed = OwnedFd::from(listener.try_clone().expect("a descriptor"));
        let mut command = Command::new(BLKMQD);
        command.args(["--device=memory,size=1", "--workers=1"]).stdin(handed);
        command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", "0").env_remove("LISTEN_PID");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("it starts");
        client.read_exact(&mut [0; 18]).expect("it greets");
        // Not by `kill`, which takes a millisecond to start.
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("it is there");
        assert_eq!(ended(child), (Some(0), String::new()));
    }
}

#[test]
fn sockets_that_are_handed_over_are_served_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("handed.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let start = |args: &[&str]| {
        let listener = listener.try_clone().expect("a descriptor");
        let mut command = Command::new(BLKMQD);
        command.args(["--device=memory,size=1", "--workers=1"]).args(args);
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let command = command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", "0");
        started(command.env_remove("LISTEN_PID"))
    };
    for _ in 0..2 {
        // Connects before the server exists: the client waits in the socket.
        let mut client = UnixStream::connect(&socket).expect("it listens");
        let (child, lines) = start(&[]);
        let uri = format!("  nbd+unix:///disk?socket={}", socket.display());
        assert!(lines.contains(&uri), "{lines:?}");
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).expect("it greets");
        assert_eq!(end(child, "-TERM"), (Some(0), String::new()));
        assert!(socket.exists(), "it is not the server's");
    }
    let (child, _) = start(&["--listen=tcp:127.0.0.1:0"]);
    let (code, errors) = ended(child);
    assert!(code == Some(1) && errors.contains("accepted: one of both"), "{errors}");
}

#[test]
fn a_disk_that_another_server_leaves_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let device = format!("--device=uring:{},size=1", at("disk"));
    let listen = |name: &str| format!("--listen=unix:{}", at(name));
    let (first, lines) = serve(&[&listen("a"), &device]);
    if lines.is_empty() {
        eprintln!("skipped: no io_uring here: {:?}", ended(first));
        return;
    }
    let mut second = Command::new(BLKMQD);
    let second = second.args([&listen("b"), &device]);
    let mut second = second.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut log = BufReader::new(second.stderr.take().expect("it is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("text");
    assert!(line.contains("has it open for writing") && line.contains("trying again"), "{line}");
    assert_eq!(end(first, "-KILL").0, None);
    let lines = ready(&mut second);
    assert!(lines.iter().any(|line| line.starts_with("export 'disk'")), "{lines:?}");
    second.kill().and_then(|()| second.wait()).expect("it ends");
}

/// Runs `blkmqctl` with `words`. Returns its exit code, output and errors.
pub fn ctl(control: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(BIN);
    let output = command.arg("--control").arg(control).args(words).output();
    let output = output.expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_running_server_is_listed_changed_and_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, control) =
        (folder.path().join("data.sock"), folder.path().join("data.sock.control"));
    let listen = format!("--listen=unix:{}", socket.display());
    let (child, lines) = serve(&[&listen, "--device=memory,size=8", "--export=gold,weight=300"]);
    assert!(lines.iter().any(|line| line.starts_with("control: blkmqctl --control=")), "{lines:?}");
    let say = |words: &[&str]| {
        let (code, output, errors) = ctl(&control, words);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}");
        output
    };
    let list = say(&["list"]);
    assert!(list.contains("memory,size=8") && list.contains("gold"), "{list}");
    assert!(say(&["get", "queue/scheduler"]).contains("[mq-deadline]"));
    assert!(say(&["get", "blkmq/auto"]).starts_with("mq-deadline, since no groups compete"));
    assert!(say(&["switch", "bfq"]).starts_with("in force after "));
    assert_eq!(say(&["get", "queue/scheduler"]), "none mq-deadline kyber [bfq] mclock auto\n");
    assert_eq!(say(&["get", "blkmq/auto"]), "off\n");
    say(&["set", "queue/nr_requests", "64"]);
    assert_eq!(
        say(&["--json", "get", "queue/nr_requests"]).trim(),
        r#"{"attributes":[["queue/nr_requests","64"]]}"#
    );
    say(&["export", "gold", "--weight=7", "--max=wiops=100"]);
    let list = say(&["--json", "list"]);
    assert!(list.contains(r#""weight":7"#) && list.contains("wiops=100"), "{list}");
    let stat = say(&["stat", "--count=1"]);
    assert!(stat.contains("r_await") && stat.contains("gold"), "{stat}");

    for (words, accepted) in [
        (&["switch", "cfq"][..], "mq-deadline"),
        (&["get", "queue/nothing"], "queue/"),
        (&["get", "--device=2"], "1"),
        (&["export", "silver", "--weight=5"], "accepted: gold"),
        (&["export", "gold", "--max=rbps=much"], "rbps"),
    ] {
        let (code, _, errors) = ctl(&control, words);
        assert!(code == Some(1) && errors.contains(accepted), "{words:?}: {errors}");
    }
    assert!(say(&["list"]).contains("gold"), "refusals change nothing");

    say(&["drain"]);
    let (code, _) = ended(child);
    assert_eq!(code, Some(0));
    let (code, _, errors) = ctl(&control, &["list"]);
    assert!(code == Some(1) && errors.contains("no server"), "{errors}");
}

#[test]
fn a_file_is_checked_served_and_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (socket, file) = (at("data.sock"), at("serve.toml"));
    let text = format!(
        "listen = 'unix:{}'\nworkers = 1\nsocket-mode = '0640'\n\
         [[device]]\nname = 'a'\ndevice = 'memory,size=8'\n\
         [[export]]\nname = 'gold'\nweight = 300\n",
        socket.display()
    );
    let write = |text: &str| std::fs::write(&file, text).expect("the folder is ours");
    let path = file.to_str().expect("UTF-8");
    let checked = |text: &str| {
        write(text);
        let mut command = Command::new(BLKMQD);
        let output = command.args(["--check", path]).output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, faults) = checked(&text.replace("weight = 300", "weight = 3000\nwieght = 1"));
    assert_eq!(code, Some(2));
    let lines = Vec::from_iter(faults.lines());
    assert!(lines[0].starts_with(&format!("{path}:9:10: weight: ")), "{faults}");
    assert!(lines[1].starts_with(&format!("{path}:10:1: no such key 'wieght'; accepted: weight")));
    assert_eq!(checked(&text), (Some(0), format!("{path}: devices: 1, exports: 1, no faults\n")));

    let (child, lines) = serve(&[path]);
    assert!(lines.iter().any(|line| line.contains("export 'gold'")), "{lines:?}");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode();
    let control = at("data.sock.control");
    assert_eq!((mode(&socket) & 0o777, mode(&control) & 0o777), (0o640, 0o600));
    write(&text.replace("300", "7").replace("size=8'", "size=8'\nscheduler = 'bfq:low_latency=0'"));
    let (code, output, errors) = ctl(&control, &["reload"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(
        output,
        "device 1: queue/scheduler=bfq\ndevice 1: iosched/low_latency=0\nexport 'gold': weight=7\n"
    );
    assert_eq!(ctl(&control, &["get", "iosched/low_latency"]).1, "0\n");
    let weight = |expected: &str| ctl(&control, &["--json", "list"]).1.contains(expected);
    assert!(weight(r#""weight":7,"#));

    let silver = "[[export]]\nname = 'silver'\nsize = '1m'\n";
    let seven =
        text.replace("300", "7").replace("size=8'", "size=8'\nscheduler = 'bfq:low_latency=0'");
    let reloaded = |text: &str| {
        write(text);
        ctl(&control, &["reload"]).1
    };
    assert_eq!(reloaded(&(seven.clone() + silver)), "export 'silver': added\n");
    assert!(ctl(&control, &["list"]).1.contains("silver"));
    let large = seven.clone() + &silver.replace("1m", "9m").replace("silver", "large");
    let answer = reloaded(&large);
    assert!(
        answer.starts_with("export 'silver': removed\nexport 'large': not added: "),
        "{answer}"
    );
    assert!(reloaded(&large).starts_with("export 'large': not added: "), "it is tried again");
    assert_eq!(reloaded(&seven), "nothing has changed\n");

    write("nonsense");
    let (code, _, errors) = ctl(&control, &["reload"]);
    assert!(code == Some(1) && errors.contains("serve.toml:1:"), "{errors}");
    assert!(weight(r#""weight":7,"#), "nothing is changed");

    write(&text.replace("300", "9"));
    let hang_up = Command::new("kill").args(["-HUP", &child.id().to_string()]).status();
    assert!(hang_up.expect("kill is everywhere").success());
    while !weight(r#""weight":9,"#) {
        std::thread::yield_now();
    }
    let (code, log) = end(child, "-TERM");
    assert!(code == Some(0) && log.contains("reload: export 'gold': weight=9"), "{log}");
}

/// Regression test: switching a scheduler back gave it its defaults, not the options of the file; a reload reported no
/// change, and no command could show or save the difference.
#[test]
fn what_differs_from_the_file_is_shown_and_saved_and_a_switch_keeps_its_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (file, control) = (at("serve.toml"), at("data.sock.control"));
    let text = format!(
        "# Of tenants.\nlisten = 'unix:{}'\n[[device]]\nname = 'a' # the disk\ndevice = 'memory,size=8'\n\
         scheduler = 'bfq:low_latency=0'\n[[export]]\nname = 'gold'\nweight = 300 # see the contract\n\
         [[export]]\nname = 'silver'\n",
        at("data.sock").display()
    );
    std::fs::write(&file, &text).expect("the folder is ours");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
    let (child, _) = serve(&[file.to_str().expect("UTF-8")]);
    let say = |words: &[&str]| {
        let (code, output, errors) = ctl(&control, words);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}");
        output
    };
    assert_eq!(say(&["diff"]), "nothing differs\n");
    assert_eq!(say(&["save"]), "nothing differs\n");
    say(&["switch", "kyber"]);
    assert_eq!(say(&["diff"]), "device 'a': scheduler = kyber, configured bfq:low_latency=0\n");
    say(&["switch", "bfq"]);
    assert_eq!(say(&["get", "iosched/low_latency"]), "0\n");
    assert_eq!(say(&["diff"]), "nothing differs\n");

    say(&["set", "iosched/slice_idle", "4"]);
    say(&["set", "blkmq/device_depth", "16"]);
    say(&["set", "queue/nomerges", "1"]);
    say(&["export", "gold", "--weight=7", "--max=wiops=100 burst=2 burst_length=10"]);
    say(&["export", "silver", "--max=rbps=5000000"]);
    let expected = [
        "device 'a': scheduler = bfq:slice_idle=4,low_latency=0, configured bfq:low_latency=0",
        "device 'a': device-depth = 16, configured 0",
        "export 'gold': weight = 7, configured 300",
        "export 'gold': wiops = 100, configured max",
        "export 'gold': burst = 2, configured 1",
        "export 'gold': burst_length = 10, configured 1",
        "export 'silver': rbps = 5000000, configured max",
        "device 'a': queue/nomerges = 1, at the start 0; no key of a file",
    ];
    let found = say(&["diff"]);
    assert_eq!(Vec::from_iter(found.lines()), expected);
    let printed = say(&["save", "-o", "-"]);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), text, "not written");
    let copy = at("copy.toml");
    say(&["save", "-o", copy.to_str().expect("UTF-8")]);
    assert_eq!(std::fs::read_to_string(&copy).expect("it is there"), printed);
    assert_eq!(say(&["save"]), format!("{}: written\n", file.display()));
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), printed);
    for kept in ["# Of tenants.", "name = 'a' # the disk", "weight = 7 # see the contract"] {
        assert!(printed.contains(kept), "{kept}: {printed}");
    }
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(say(&["diff"]), format!("{}\n", expected[7]));
    // The file and the server agree: a reload changes nothing.
    say(&["reload"]);
    assert_eq!(say(&["diff"]), format!("{}\n", expected[7]));
    std::fs::write(&file, "nonsense").expect("the folder is ours");
    for words in [["diff"], ["save"]] {
        let (code, _, errors) = ctl(&control, &words);
        assert!(code == Some(1) && errors.contains("serve.toml:1:"), "{errors}");
    }
    assert_eq!(end(child, "-TERM").0, Some(0));
}

/// Names that TOML must escape are found in the file again.
#[test]
fn settings_of_an_export_with_an_odd_name_are_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let file = at("serve.toml");
    let text = format!(
        "listen = 'unix:{}'\n[[device]]\nname = 'a'\ndevice = 'memory,size=8'\n\
         [[export]]\nname = \"q\\\"u\\\\o\\u00e9 [x]#=\" # odd\n[[export]]\nname = 'other'\n",
        at("data.sock").display()
    );
    std::fs::write(&file, &text).expect("the folder is ours");
    let (child, lines) = serve(&[file.to_str().expect("UTF-8")]);
    assert!(!lines.is_empty(), "{:?}", ended(child));
    let control = at("data.sock.control");
    let name = "q\"u\\o\u{e9} [x]#=";
    assert_eq!(ctl(&control, &["export", name, "--weight=7"]).2, "");
    assert_eq!(ctl(&control, &["save"]).2, "");
    assert_eq!(ctl(&control, &["diff"]).1, "nothing differs\n");
    let saved = std::fs::read_to_string(&file).expect("it is there");
    assert_eq!(saved, text.replace("# odd\n", "# odd\nweight = 7\n"));
    assert_eq!(end(child, "-TERM").0, Some(0));
}

/// Without a file the command line is the configuration.
#[test]
fn without_a_file_what_differs_is_shown_and_not_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let listen = format!("--listen=unix:{}", at("data.sock").display());
    let device = ["--device=memory,size=8", "--scheduler=mq-deadline:fifo_batch=7"];
    let (child, _) = serve(&[&listen, device[0], device[1], "--export=gold"]);
    let control = at("data.sock.control");
    assert_eq!(ctl(&control, &["diff"]).1, "nothing differs\n");
    assert_eq!(ctl(&control, &["switch", "none"]).0, Some(0));
    let found = ctl(&control, &["diff"]).1;
    let scheduler = "scheduler = none, configured mq-deadline:fifo_batch=7\n";
    assert_eq!(found, format!("device 'memory,size=8': {scheduler}"));
    let (code, _, errors) = ctl(&control, &["save"]);
    assert!(code == Some(1) && errors.contains("without a configuration file"), "{errors}");
    assert_eq!(end(child, "-TERM").0, Some(0));
}

#[test]
fn a_reload_renews_certificates_without_a_file_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("random");
        std::fs::write(at("server-cert.pem"), made.cert.pem()).expect("it can be written");
        std::fs::write(at("server-key.pem"), made.signing_key.serialize_pem()).expect("likewise");
        let closed = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(at("server-key.pem"), closed).expect("likewise");
    };
    renew();
    let (listen, tls) = (
        format!("--listen=unix:{}", at("data").display()),
        format!("--tls-certificates={}", folder.path().display()),
    );
    let (child, _) = serve(&[&listen, &tls, "--device=null"]);
    let control = at("data.control");
    // A client without TLS, which disconnects as the protocol demands.
    let mut plain = UnixStream::connect(at("data")).expect("it listens");
    plain.read_exact(&mut [0; 18]).expect("it greets");
    let abort = [&1_u32.to_be_bytes()[..], b"IHAVEOPT", &2_u32.to_be_bytes(), &[0; 4]].concat();
    plain.write_all(&abort).expect("it reads");
    plain.read_to_end(&mut Vec::new()).expect("an answer and the end");
    let reloaded = || ctl(&control, &["reload"]).1;
    assert_eq!(reloaded(), "nothing has changed\n");
    renew();
    assert_eq!(reloaded(), "tls-certificates: renewed, for new connections\n");
    std::fs::remove_file(at("server-key.pem")).expect("it is there");
    assert!(reloaded().starts_with("tls-certificates: not changed: "));
    let (code, log) = end(child, "-TERM");
    assert!(code == Some(0) && log.contains("the client began no TLS"), "{log}");
    assert!(log.contains("ERROR reload: tls-certificates: not changed"), "{log}");
}

#[test]
fn a_file_and_options_exclude_each_other() {
    let mut command = Command::new(BLKMQD);
    let output = command.args(["x.toml", "--device=null"]).output().expect("it starts");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(2) && errors.contains("--device"), "{errors}");
}

/// If no scheduler is named, exports of one device share it by weight.
#[test]
fn exports_that_compete_have_a_scheduler_that_shares() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (file, control) = (at("serve.toml"), at("data.sock.control"));
    let one = format!(
        "listen = 'unix:{}'\nworkers = 1\n[[device]]\nname = 'a'\ndevice = 'memory,size=8'\n\
         [[export]]\nname = 'gold'\nweight = 300\n",
        at("data.sock").display()
    );
    let two = one.clone() + "[[export]]\nname = 'silver'\n";
    std::fs::write(&file, &two).expect("the folder is ours");
    let (child, lines) = serve(&[file.to_str().expect("UTF-8")]);
    let said = "  auto: mclock, since 2 groups compete";
    assert!(lines.iter().any(|line| line == said), "{lines:?}");
    let say = |words: &[&str]| {
        let (code, output, errors) = ctl(&control, words);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}");
        output
    };
    let policy = || say(&["get", "queue/scheduler"]);
    assert_eq!(policy(), "none mq-deadline kyber bfq [mclock] auto\n");
    let reloaded = |text: &str| {
        std::fs::write(&file, text).expect("the folder is ours");
        say(&["reload"])
    };
    let alone =
        "auto: mq-deadline, since no groups compete and it is Linux's choice for such a device";
    assert_eq!(reloaded(&one), format!("export 'silver': removed\ndevice 1: {alone}\n"));
    assert_eq!(policy(), "none [mq-deadline] kyber bfq mclock auto\n");
    let competing = "device 1: auto: mclock, since 2 groups compete\n";
    assert_eq!(reloaded(&two), format!("export 'silver': added\n{competing}"));
    assert!(say(&["switch", "bfq"]).starts_with("in force after "));
    assert_eq!(say(&["get", "blkmq/auto"]), "off\n");
    assert!(say(&["switch", "auto"]).starts_with("in force after "));
    assert_eq!(say(&["get", "blkmq/auto"]), "mclock, since 2 groups compete\n");
    let named = two.replace("size=8'", "size=8'\nscheduler = 'kyber'");
    assert_eq!(reloaded(&named), "device 1: queue/scheduler=kyber\n");
    assert_eq!(reloaded(&two), format!("device 1: queue/scheduler=auto\n{competing}"));
    say(&["drain"]);
    assert_eq!(ended(child).0, Some(0));
}

/// Creates a folder owned by this user, and returns the user's id.
fn own() -> (TempDir, u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let user = folder.path().metadata().expect("it is there").uid();
    (folder, user)
}

/// A configuration of two exports with these rules.
fn file(folder: &Path, gold: &str, silver: &str) -> String {
    format!(
        "listen = 'unix:{}'\n[[device]]\nname = 'd'\ndevice = 'memory,size=16'\n\
         [[export]]\nname = 'gold'\nsize = '8m'\nallow = ['{gold}']\n\
         [[export]]\nname = 'silver'\noffset = '8m'\nsize = '8m'\nallow = ['{silver}']\n",
        folder.join("data").display()
    )
}

/// A client of the export `name`, or `None` if the server closes the connection.
fn client(folder: &Path, name: &str) -> Option<UnixStream> {
    let mut socket = UnixStream::connect(folder.join("data")).expect("it listens");
    let mut bytes = [0; 134];
    socket.read_exact(&mut bytes[..18]).expect("a greeting");
    let length = (name.len() as u32).to_be_bytes();
    let option = [&[0, 0, 0, 1], &b"IHAVEOPT"[..], &[0, 0, 0, 1], &length, name.as_bytes()];
    socket.write_all(&option.concat()).expect("it reads");
    socket.read_exact(&mut bytes).ok().map(|()| socket)
}

fn serve_file(folder: &Path, text: &str) -> Child {
    let path = folder.join("serve.toml");
    std::fs::write(&path, text).expect("it can be written");
    serve(&[path.to_str().expect("text")]).0
}

/// Attempts to use another user's export over a local socket: the client is refused, and the log says so.
#[test]
fn a_refusal_is_logged_with_peer_identity_and_export() {
    let (folder, user) = own();
    let at = folder.path();
    let (own, other) = (format!("uid:{user}"), format!("uid:{}", user + 1));
    let child = serve_file(at, &file(at, &own, &other));
    let mut gold = client(at, "gold").expect("it is this user's");
    assert!(client(at, "silver").is_none());
    assert!(client(at, "copper").is_none());
    // After a reload without a restart, the export belongs to another user: the connection ends.
    std::fs::write(at.join("serve.toml"), file(at, &other, &own)).expect("it can be written");
    let control = at.join("data.control");
    let expected = format!("export 'gold': allow: {other}\nexport 'silver': allow: {own}\n");
    assert_eq!(ctl(&control, &["reload"]).1, expected);
    assert_eq!(gold.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    assert!(client(at, "gold").is_none() && client(at, "silver").is_some());
    let (code, log) = end(child, "-TERM");
    assert_eq!(code, Some(0));
    let process = format!("peer=\"process {}\" identity=\"{own}\"", std::process::id());
    for (level, of, what) in [
        ("INFO", "export=\"gold\"", "a connection begins"),
        ("WARN", "export=\"silver\"", "a client asked for an export that it may not use"),
        ("WARN", "export=\"copper\"", "a client asked for an unknown export"),
        ("WARN", "export=\"gold\"", "a client may not use its export any more and is closed"),
    ] {
        let has = |line: &str| [level, of, what, &process].iter().all(|part| line.contains(part));
        assert!(log.lines().any(has), "{level} {of} {what} {process}: {log}");
    }
}

#[test]
fn a_failed_handshake_of_tls_is_a_warning_with_the_peer() {
    let (folder, _) = own();
    let at = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("random");
    std::fs::write(at("server-cert.pem"), made.cert.pem()).expect("it can be written");
    std::fs::write(at("server-key.pem"), made.signing_key.serialize_pem()).expect("likewise");
    let mode =
        |mode| std::fs::set_permissions(at("server-key.pem"), PermissionsExt::from_mode(mode));
    mode(0o644).expect("it is this user's");
    let listen = format!("--listen=unix:{}", at("data").display());
    let tls = format!("--tls-certificates={}", folder.path().display());
    let start = |rest: &[&str]| serve(&[&[&listen[..], &tls, "--device=null"], rest].concat()).0;
    let (code, errors) = ended(start(&[]));
    assert!(code == Some(1) && errors.contains("chmod 0600"), "{errors}");
    mode(0o600).expect("it is this user's");
    let (code, errors) = ended(start(&["--allow=cn:gold"]));
    assert!(code == Some(1) && errors.contains("'cn:gold' can never match"), "{errors}");
    let text = file(folder.path(), "cn:gold", "san:silver");
    let text = format!("tls-certificates = '{}'\n{text}", folder.path().display());
    std::fs::write(at("serve.toml"), text).expect("it can be written");
    let path = at("serve.toml");
    let check = |rest: &[&str]| {
        let path = path.to_str().expect("text");
        let checked = Command::new(BLKMQD).args(["--check", path]).args(rest).output();
        String::from_utf8(checked.expect("it starts").stdout).expect("text")
    };
    assert!(check(&[]).contains("no faults"), "only the folder knows that there is no ca-cert.pem");
    let faults = check(&["--open"]);
    assert!(faults.contains("'cn:gold' can never match, since clients need no"), "{faults}");
    // Clients need certificates, and after the reload they would not: no client could connect any more.
    std::fs::write(at("ca-cert.pem"), made.cert.pem()).expect("it can be written");
    let child = start(&["--allow=cn:gold"]);
    std::fs::remove_file(at("ca-cert.pem")).expect("it is there");
    let (code, _, errors) = ctl(&at("data.control"), &["reload"]);
    assert!(code == Some(1) && errors.contains("'cn:gold' can never match"), "{errors}");
    assert_eq!(end(child, "-TERM").0, Some(0));
    let child = start(&[]);
    let mut socket = UnixStream::connect(at("data")).expect("it listens");
    socket.read_exact(&mut [0; 18]).expect("a greeting");
    let starttls = [&[0, 0, 0, 1], &b"IHAVEOPT"[..], &[0, 0, 0, 5], &[0; 4]].concat();
    socket.write_all(&starttls).expect("it reads");
    socket.read_exact(&mut [0; 20]).expect("an answer");
    socket.write_all(b"this is no TLS at all, not even half of it").expect("it reads");
    // The connection ends, or is reset because of unread bytes.
    let _ = socket.read_to_end(&mut Vec::new());
    let (_, log) = end(child, "-TERM");
    let process = format!("peer=\"process {}\"", std::process::id());
    let has = |line: &str| {
        ["WARN", "a handshake ended in TLS: ", &process].iter().all(|part| line.contains(part))
    };
    assert!(log.lines().any(has), "{log}");
}

const QUEUES: u16 = 2;
/// Requests in flight in each queue; 100 in total.
const PLACES: u16 = 50;
const BYTES: u32 = 4096;

/// The number of kills; `BLKMQ_KILLS` overrides it.
fn kills() -> u32 {
    std::env::var("BLKMQ_KILLS").map_or(20, |text| text.parse().expect("a number"))
}

fn served(folder: &Path) -> Child {
    let at = |name: &str| folder.join(name).display().to_string();
    let (child, lines) = serve(&[
        &format!("--device=uring:{},size=16m", at("disk.img")),
        "--scheduler=mq-deadline",
        &format!("--export=gold,vhost-user={},queues={QUEUES}", at("gold.sock")),
        &format!("--listen=unix:{}", at("nbd.sock")),
    ]);
    assert!(lines.last().is_some_and(|line| line.starts_with("SIGTERM")), "{lines:?}");
    child
}

fn sector(queue: u16, place: u16) -> u64 {
    u64::from(queue * SIZE + place) * 8
}

/// The byte that a round writes at a place, different from that of the previous rounds.
fn byte(round: u32, queue: u16, place: u16) -> u8 {
    (round * 7) as u8 ^ (queue * 128 + place) as u8
}

/// Takes the available answers, or waits for some. Each request must be answered once.
fn count(answers: Vec<(u16, u32, u8)>, answered: &mut [u32]) {
    for (place, _, status) in answers {
        assert_eq!(status, 0, "the request at place {place}");
        answered[usize::from(place)] += 1;
    }
}

#[test]
fn a_killed_server_loses_no_request_of_a_guest_and_answers_none_twice() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut server = served(folder.path());
    let socket = folder.path().join("gold.sock");
    let mut guest = Guest::start(&socket, QUEUES, 0);
    // The numbers of rounds in which no, some and all requests had been answered.
    let mut found = [0; 3];
    for round in 0..kills() {
        for queue in 0..QUEUES {
            for place in 0..PLACES {
                guest.set_data(queue, place, &[byte(round, queue, place); BYTES as usize]);
                let ask = Ask { kind: OUT, ioprio: 0, sector: sector(queue, place), len: BYTES };
                guest.offer(queue, place, ask, 512);
            }
            guest.kick(queue);
        }
        // Up to 1 ms after the kick: before, during and after the writes.
        std::thread::park_timeout(Duration::from_micros(u64::from(round * 37 % 100) * 10));
        server.kill().expect("it runs");
        server.wait().expect("it was started here");
        let mut answered = [[0; PLACES as usize]; QUEUES as usize];
        for (queue, answered) in (0..QUEUES).zip(&mut answered) {
            count(guest.answers(queue), answered);
        }
        let before: u32 = answered.as_flattened().iter().sum();
        let all = u32::from(QUEUES * PLACES);
        found[usize::from(before > 0) + usize::from(before == all)] += 1;
        server = served(folder.path());
        guest.reconnect(&socket);
        for (queue, answered) in (0..QUEUES).zip(&mut answered) {
            guest.kick(queue);
            while answered.contains(&0) {
                count(guest.wait(queue), answered);
            }
        }
        let once = answered.as_flattened().iter().all(|count| *count == 1);
        assert!(once, "round {round}: each is answered once: {answered:?}");
        for queue in 0..QUEUES {
            for place in 0..PLACES {
                let ask = Ask { kind: IN, ioprio: 0, sector: sector(queue, place), len: BYTES };
                assert_eq!(guest.carry_out(queue, ask), (BYTES + 1, 0), "round {round}");
                let expected = byte(round, queue, place);
                let data = guest.data(queue, 0, BYTES as usize);
                assert!(data.iter().all(|it| *it == expected), "round {round}: place {place}");
            }
        }
    }
    println!("answered before the kill: none {}, some {}, all {}", found[0], found[1], found[2]);
    server.kill().expect("it runs");
    server.wait().expect("it was started here");
}

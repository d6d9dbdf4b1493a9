//! `blkmqd` with devices that fail and change, interrupted starts, and files that are not disks.

use crate::serve::{ctl, end, ended, ready, serve};
use crate::{BIN, BLKMQD};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// A folder with a socket to listen on and a file to serve.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder") }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn listen(&self) -> String {
        format!("--listen=unix:{}", self.at("sock").display())
    }

    /// Creates a sparse file of `mib` MiB. Returns it with the option that serves it.
    fn file(&self, mib: u64) -> (File, String) {
        let path = self.at("disk.img");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let file = file.expect("the folder is ours");
        file.set_len(mib * MIB).expect("a sparse file");
        (file, format!("--device=uring:{}", path.display()))
    }

    /// A client of the only export, with simple replies.
    fn client(&self) -> Client {
        self.client_of("")
    }

    /// A client of the export `export`.
    fn client_of(&self, export: &str) -> Client {
        let mut socket = UnixStream::connect(self.at("sock")).expect("it listens");
        let mut bytes = [0; 152];
        socket.read_exact(&mut bytes[..18]).expect("a greeting");
        let (flags, option) = (1_u32.to_be_bytes(), 1_u32.to_be_bytes());
        let length = (export.len() as u32).to_be_bytes();
        let option = [&flags[..], b"IHAVEOPT", &option, &length, export.as_bytes()];
        socket.write_all(&option.concat()).expect("it reads");
        socket.read_exact(&mut bytes[..134]).expect("the export");
        Client(socket)
    }
}

struct Client(UnixStream);

impl Client {
    /// Sends a request of 4 KiB.
    fn send(&mut self, command: u16, offset: u64) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([&[0; 2][..], &command.to_be_bytes(), &[0; 8]].concat());
        request.extend(offset.to_be_bytes());
        request.extend(4096_u32.to_be_bytes());
        if command == WRITE {
            request.extend([7; 4096]);
        }
        self.0.write_all(&request).expect("it reads");
    }

    /// Sends a request of 4 KiB, and returns the errno of the reply.
    fn call(&mut self, command: u16, offset: u64) -> u32 {
        self.send(command, offset);
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("an answer");
        let errno = u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]);
        if command == READ && errno == 0 {
            self.0.read_exact(&mut [0; 4096]).expect("the data");
        }
        errno
    }
}

/// The server, unless it did not start for lack of io_uring.
fn is_without_io_uring(test: &str, child: Child, lines: &[String]) -> Result<Child, ()> {
    if !lines.is_empty() {
        return Ok(child);
    }
    let (_, errors) = ended(child);
    assert!(errors.contains("io_uring is not available"), "{errors}");
    println!("skipped {test}: {errors}");
    Err(())
}

/// Reads the log up to a line that contains all of `words`.
fn logged(log: &mut impl BufRead, words: &[&str]) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        let read = log.read_line(&mut line).expect("text");
        assert!(read > 0, "no line has {words:?}: {all}");
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
        all.push_str(&line);
    }
}

fn blkmqd(args: &[&str]) -> (Option<i32>, String, String) {
    outcome(BLKMQD, args)
}

fn blkmqctl(args: &[&str]) -> (Option<i32>, String, String) {
    outcome(BIN, args)
}

/// Runs a program. Returns its exit code, output and errors.
fn outcome(program: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).args(args).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Regression test: errors of a device were reported to clients but not to the operator.
#[test]
fn a_device_that_fails_is_in_the_log_once_a_second() {
    let scene = Scene::new();
    let device = "--device=faults,error=1,errno=28:memory,size=16";
    let http = format!("--http=unix:{}", scene.at("http").display());
    let (mut child, _) = serve(&[&scene.listen(), device, &http, "--stats=always"]);
    let mut client = scene.client();
    for n in 0..20 {
        assert!(client.call(if n % 2 == 0 { WRITE } else { READ }, n * 8192) > 0);
    }
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let what = ["ERROR", "operation=\"write\"", "offset=0", "errno=28", "before=0"];
    let line = logged(&mut log, &what);
    assert!(line.contains("export=\"disk\"") && line.contains("memory,size=16"), "{line}");
    let before = |line: &str| -> u64 {
        let count = line.split("before=").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).expect("a number")
    };
    let mut page = UnixStream::connect(scene.at("http")).expect("it listens");
    page.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut metrics = String::new();
    page.read_to_string(&mut metrics).expect("text");
    let errors = metrics.lines().find(|line| line.starts_with("blkmq_disk_errors_total{"));
    assert!(errors.is_some_and(|line| line.ends_with("} 20")), "{errors:?}");
    // The remaining errors are counted in the next line, which follows after a second.
    let (mut told, mut failed) = (1, 20);
    while told < failed {
        client.call(READ, 0);
        failed += 1;
        if let Some(next) = next_line(&mut log) {
            told += before(&next) + 1;
        }
    }
    child.kill().and_then(|()| child.wait()).expect("it ends");
}

/// The next line of the log if it has been written.
fn next_line<R: Read + std::os::fd::AsFd>(log: &mut BufReader<R>) -> Option<String> {
    let mut fds = [nix::poll::PollFd::new(log.get_ref().as_fd(), nix::poll::PollFlags::POLLIN)];
    let ready = log.buffer().contains(&b'\n')
        || nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).expect("a pipe") > 0;
    let mut line = String::new();
    ready.then(|| log.read_line(&mut line).expect("text"))?;
    Some(line)
}

/// Regression test: a file that was truncated, extended or removed beneath the server was not logged.
#[test]
fn a_file_that_is_cut_grows_or_goes_is_in_the_log() {
    let scene = Scene::new();
    let (file, device) = scene.file(16);
    let (child, lines) = serve(&[&scene.listen(), &device]);
    let Ok(mut child) = is_without_io_uring("a_file_that_is_cut", child, &lines) else { return };
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    file.set_len(MIB).expect("it can be cut");
    logged(&mut log, &["WARN", "from 16777216 to 1048576 bytes", "fails"]);
    assert_eq!(scene.client().call(WRITE, 8 * MIB), 5);
    assert_eq!(file.metadata().expect("it is open").len(), MIB, "it stays short");
    logged(&mut log, &["ERROR", "operation=\"write\"", "offset=8388608", "errno=5"]);
    file.set_len(32 * MIB).expect("it can grow");
    logged(&mut log, &["WARN", "from 1048576 to 33554432 bytes", "get that"]);
    logged(&mut log, &["INFO", "bytes=33554432", "have its new size"]);
    assert_eq!(scene.client().call(WRITE, 8 * MIB), 0);
    std::fs::remove_file(scene.at("disk.img")).expect("it is ours");
    logged(&mut log, &["WARN", "removed or replaced"]);
    child.kill().and_then(|()| child.wait()).expect("it ends");
}

/// Regression test: `welcome` described a read-only device as "read and write".
#[test]
fn a_device_that_takes_no_writes_is_listed_so() {
    let scene = Scene::new();
    let (_, device) = scene.file(1);
    let (child, lines) = serve(&[&scene.listen(), &format!("{device},readonly=1")]);
    let Ok(child) = is_without_io_uring("a_device_that_takes_no", child, &lines) else { return };
    assert!(lines.iter().any(|line| line.contains("device 1, read-only")), "{lines:?}");
    let control = scene.at("sock.control").display().to_string();
    let (_, list, _) = blkmqctl(&["--control", &control, "--json", "list"]);
    assert!(list.contains(r#""read_only":true"#), "{list}");
    end(child, "-TERM");
}

/// Regression test: the first write beyond the file size limit ended the server by SIGXFSZ, for every client.
#[test]
fn a_write_beyond_the_limit_of_files_fails_and_ends_nothing() {
    let scene = Scene::new();
    let (_, device) = scene.file(16);
    let program = BLKMQD;
    let mut command = Command::new("sh");
    // Blocks of 512 bytes.
    command.args(["-c", "ulimit -f 4096; exec \"$0\" \"$@\"", program]);
    command.args([&scene.listen(), &device]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let lines = ready(&mut child);
    let Ok(child) = is_without_io_uring("a_write_beyond_the_limit", child, &lines) else { return };
    let mut other = scene.client();
    assert_eq!(other.call(WRITE, MIB), 0);
    assert_eq!(scene.client().call(WRITE, 8 * MIB), 28);
    assert_eq!(other.call(WRITE, 0), 0, "other connections are served");
    let (code, log) = end(child, "-TERM");
    assert!(code == Some(0) && log.contains("errno=27"), "{code:?}: {log}");
}

/// Regression test: a layout stopped by the file size limit or a full disk left its space allocated; SIGXFSZ ended the
/// program before it could free the space.
#[test]
fn a_layout_beyond_the_limit_of_files_leaves_nothing() {
    let scene = Scene::new();
    let path = scene.at("new.img");
    let program = BLKMQD;
    let line = "ulimit -f 100; exec \"$0\" --device=\"uring:$1,size=16m\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, program]).arg(&path).arg(scene.listen());
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(!path.exists(), "{errors}");
}

/// Regression test: signals were ignored while a file was laid out, and sockets were listening in the meantime.
#[test]
fn a_layout_is_broken_off_by_a_signal_and_nothing_listens_before_it_is_over() {
    let scene = Scene::new();
    let path = scene.at("new.img");
    let device = format!("--device=uring:{},size=16g", path.display());
    let mut command = Command::new(BLKMQD);
    command.args([&scene.listen(), &device]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("text");
    if line.contains("io_uring is not available") {
        println!("skipped a_layout_is_broken_off: {line}");
        child.wait().expect("it ends");
        return;
    }
    assert!(line.contains("is laid out"), "{line}");
    while !path.exists() && child.try_wait().expect("a child").is_none() {
        std::thread::yield_now();
    }
    assert!(!scene.at("sock").exists(), "it does not listen");
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(kill.expect("kill is everywhere").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(!path.exists() && !scene.at("sock").exists(), "nothing is left");
    let mut rest = String::new();
    log.read_to_string(&mut rest).expect("text");
    assert!(rest.contains("before the server was ready"), "{rest}");
}

/// Regression test: a server restarted after a kill waited for the device but not for the socket, which the kernel
/// frees equally late.
#[test]
fn a_socket_that_another_server_leaves_is_waited_for() {
    let scene = Scene::new();
    // A server that dies while its client connects.
    let dying = UnixListener::bind(scene.at("sock")).expect("a socket");
    let mut command = Command::new(BLKMQD);
    command.args([&scene.listen(), "--device=memory,size=1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    logged(&mut log, &["in use", "trying again"]);
    drop(dying);
    assert!(!ready(&mut child).is_empty());
    assert_eq!(scene.client().call(READ, 0), 0);
    child.kill().and_then(|()| child.wait()).expect("it ends");
}

/// Regression test: given a disk as a configuration, the server reported a fault at 1:1; given `--device=disk.img`, it
/// named only the devices null and memory.
#[test]
fn a_disk_in_the_wrong_place_is_answered_with_the_right_one() {
    let scene = Scene::new();
    let (mut file, _) = scene.file(4);
    file.write_all(&[0xee; 4096]).expect("there is room");
    std::fs::write(scene.at("text.img"), "a disk\n").expect("the folder is ours");
    for name in ["disk.img", "text.img"] {
        let path = scene.at(name).display().to_string();
        let (code, _, errors) = blkmqd(&[&path]);
        let accepted = format!("--device=uring:{path}");
        assert!(code == Some(2) && errors.contains(&accepted), "{errors}");
        let (code, _, errors) = blkmqd(&["--device", &path, &scene.listen()]);
        let accepted = format!("uring:{path}");
        assert!(code == Some(1) && errors.contains(&accepted), "{errors}");
        let config = scene.at("serve.toml");
        let text = format!("[[device]]\nname = 'a'\ndevice = '{path}'\n");
        std::fs::write(&config, text).expect("the folder is ours");
        let (code, faults, _) = blkmqd(&["--check", &config.display().to_string()]);
        assert!(code == Some(2) && faults.contains(&accepted), "{faults}");
    }
    let (code, _, errors) = blkmqd(&["memory,size=64"]);
    assert!(code == Some(2) && errors.contains("--device=memory,size=64"), "{errors}");
}

/// Regression test: images of other formats were served with their tables as if they were raw disks.
#[test]
fn an_image_of_another_format_is_refused_by_name() {
    let scene = Scene::new();
    let path = scene.at("disk.vmdk");
    std::fs::write(&path, [&b"KDMV"[..], &[0; 65_532]].concat()).expect("the folder is ours");
    let device = format!("--device=uring:{}", path.display());
    let (code, _, errors) = blkmqd(&[&device, &scene.listen()]);
    if errors.contains("io_uring is not available") {
        println!("skipped an_image_of_another_format: {errors}");
        return;
    }
    assert!(
        code == Some(1) && errors.contains("VMDK") && errors.contains("format=raw"),
        "{errors}"
    );
    let (child, lines) = serve(&[&scene.listen(), &format!("{device},format=raw")]);
    assert!(!lines.is_empty());
    end(child, "-TERM");
}

/// Regression test: if a path was short enough for the socket but too long for the control socket beside it, the error
/// was the system's, and came after the device was opened.
#[test]
fn a_path_that_cannot_be_a_socket_is_refused_with_its_bound() {
    let scene = Scene::new();
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let path = |length: usize| -> PathBuf {
        folder.path().join("s".repeat(length - folder.path().as_os_str().len() - 1))
    };
    let listen = |path: &Path| {
        blkmqd(&["--device=memory,size=1", &format!("--listen=unix:{}", path.display())])
    };
    let (code, _, errors) = listen(&path(108));
    assert!(code == Some(1) && errors.contains("up to 107"), "{errors}");
    let (code, _, errors) = listen(&path(103));
    let words = ["up to 107", "--control="];
    assert!(code == Some(1) && words.iter().all(|word| errors.contains(word)), "{errors}");
    std::fs::write(scene.at("sock"), "a file").expect("the folder is ours");
    let (code, _, errors) = listen(&scene.at("sock"));
    assert!(code == Some(1) && errors.contains("no socket is there"), "{errors}");
}

/// Regression test: for an address named twice, the server waited as if another server had it.
#[test]
fn an_address_that_is_named_twice_is_refused() {
    let scene = Scene::new();
    let (listen, path) = (scene.listen(), scene.at("sock").display().to_string());
    for other in [listen.clone(), format!("--control={path}"), format!("--http=unix:{path}")] {
        let (code, _, errors) = blkmqd(&["--device=memory,size=1", &listen, &other]);
        assert!(code == Some(1) && errors.contains("is named twice"), "{other}: {errors}");
    }
}

/// Regression test: while a server waited for a device, signals could not end it.
#[test]
fn a_signal_ends_a_server_that_waits_for_a_device() {
    let scene = Scene::new();
    let (_, device) = scene.file(1);
    let (first, lines) = serve(&[&scene.listen(), &device]);
    let Ok(first) = is_without_io_uring("a_signal_ends_a_server", first, &lines) else { return };
    let mut command = Command::new(BLKMQD);
    let listen = format!("--listen=unix:{}", scene.at("other").display());
    command.args([&listen, &device]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut second = command.spawn().expect("it starts");
    let mut log = BufReader::new(second.stderr.take().expect("it is piped"));
    logged(&mut log, &["trying again"]);
    let kill = Command::new("kill").args(["-TERM", &second.id().to_string()]).status();
    assert!(kill.expect("kill is everywhere").success());
    assert_eq!(second.wait().expect("it ends").code(), Some(1));
    logged(&mut log, &["before the server was ready"]);
    end(first, "-TERM");
}

/// Regression test: the server refused to start because of too many groups, although `--check` had found no fault.
#[test]
fn more_exports_than_a_device_takes_are_a_fault_with_a_place() {
    let scene = Scene::new();
    let write = |exports: usize| {
        let mut text = "[[device]]\nname = 'a'\ndevice = 'memory,size=64'\n".to_owned();
        for n in 0..exports {
            text.push_str(&format!("[[export]]\nname = 'e{n}'\nsize = 4096\n"));
        }
        std::fs::write(scene.at("serve.toml"), text).expect("the folder is ours");
        scene.at("serve.toml").display().to_string()
    };
    let (code, faults, _) = blkmqd(&["--check", &write(1023)]);
    assert_eq!(code, Some(0), "{faults}");
    let (code, faults, _) = blkmqd(&["--check", &write(1025)]);
    let place = format!("serve.toml:{}:", 4 + 1023 * 3 + 1);
    let words = [place.as_str(), "'e1023'", "1023"];
    assert!(code == Some(2) && words.iter().all(|word| faults.contains(word)), "{faults}");
    let exports = Vec::from_iter((0..1024).map(|n| format!("--export=e{n},size=4096")));
    let args = Vec::from_iter(exports.iter().map(String::as_str));
    let (code, _, errors) = blkmqd(&args);
    assert!(code == Some(2) && errors.contains("'e1023'"), "{errors}");
}

/// Regression test: `--check` found no fault, and the start reported four, one after the other; as an ExecStartPre this
/// had let a good server be stopped.
#[test]
fn what_only_opening_shows_is_checked_at_once_and_changes_nothing() {
    let scene = Scene::new();
    let here = scene.at("").display().to_string();
    let (mut file, _) = scene.file(4);
    file.write_all(&[0xee; 4096]).expect("there is room");
    let config = scene.at("serve.toml").display().to_string();
    let check = |text: &str, more: &[&str]| {
        std::fs::write(&config, text).expect("the folder is ours");
        blkmqd(&[&["--check", &config], more].concat())
    };
    let bad = format!(
        "listen = 'unix:{here}/no-such-folder/socket'\ntls-certificates = '{here}/no-such-pki'\n\
         [[device]]\nname = 'lost'\ndevice = 'uring:{here}/no-such-folder/disk.img,size=8'\n\
         [[device]]\nname = 'missing'\ndevice = 'uring:{here}/missing.img'\n\
         [[device]]\nname = 'm'\ndevice = 'memory,size=8'\nscheduler = 'mclock'\n\
         [[export]]\nname = 'far'\ndevice = 'm'\noffset = '100m'\nsize = '1m'\n\
         [[export]]\nname = 'most'\ndevice = 'm'\nreserve_percent = 80\n\
         [[export]]\nname = 'more'\ndevice = 'm'\nreserve_percent = 80\n\
         [[export]]\nname = 'unknown'\ndevice = 'lost'\n"
    );
    let (code, said, errors) = check(&bad, &[]);
    assert_eq!(code, Some(0), "{said}{errors}");
    let (code, said, errors) = check(&bad, &["--open"]);
    let faults = [
        "no-such-folder/socket",
        "tls-certificates: ",
        "device 'lost': ",
        "device 'missing': ",
        "export 'far': the region",
        "export 'more': ",
    ];
    assert!(code == Some(2) && errors.contains("faults: 6"), "{said}{errors}");
    for fault in faults {
        assert!(said.contains(fault), "{fault}:\n{said}");
    }

    let good = format!(
        "listen = 'unix:{here}/socket'\n\
         [[device]]\nname = 'new'\ndevice = 'uring:{here}/new.img,size=64'\n\
         [[device]]\nname = 'old'\ndevice = 'faults,error=0:uring:{here}/disk.img'\n\
         [[export]]\nname = 'a'\ndevice = 'new'\noffset = '32m'\n\
         [[export]]\nname = 'b'\ndevice = 'old'\n"
    );
    // A running server uses the image, and is not disturbed.
    let image = format!("--device=uring:{}", scene.at("disk.img").display());
    let (first, _) = serve(&[&image, &scene.listen()]);
    let (code, said, errors) = check(&good, &["--open"]);
    assert_eq!(code, Some(0), "{said}{errors}");
    assert!(!scene.at("new.img").exists(), "nothing is laid out");
    end(first, "-TERM");
    let (code, _, errors) = blkmqd(&["--open"]);
    assert!(code == Some(2) && errors.contains("--check"), "{errors}");
}

/// Regression test: `--check --open` found no fault in a file whose server could not start for lack of a driver.
#[test]
fn a_missing_driver_of_block_devices_is_a_fault_of_opening() {
    let scene = Scene::new();
    let config = scene.at("serve.toml").display().to_string();
    let text = "[[device]]\nname = 'm'\ndevice = 'memory,size=8'\n\
                [[export]]\nname = 'a'\ndevice = 'm'\nublk = 9\n";
    let text = format!("listen = 'unix:{}/socket'\n{text}", scene.at("").display());
    std::fs::write(&config, text).expect("the folder is ours");
    let (code, said, errors) = blkmqd(&["--check", &config]);
    assert_eq!(code, Some(0), "{said}{errors}");
    let (_, said, errors) = blkmqd(&["--check", &config, "--open"]);
    let has_driver = Path::new("/dev/ublk-control").exists();
    let is_said = said.contains("export 'a': ublk: ") && said.contains("modprobe ublk_drv");
    assert_eq!(is_said, !has_driver, "{said}{errors}");
}

/// A device that holds each I/O for an hour.
const STUCK: &str = "null,irqmode=2,completion_nsec=3600000000000";

/// Runs `blkmq` with the control socket of the scene, in the background.
fn asking(scene: &Scene, words: &[&str]) -> Child {
    let control = scene.at("sock.control").display().to_string();
    let mut command = Command::new(BIN);
    command.args(["--control", &control]).args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Fetches a page by HTTP. Returns its status and body.
fn page(scene: &Scene, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(scene.at("http")).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let status = text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
}

/// Regression test: switching the scheduler of a stuck device blocked the only control thread. Lists, `top`, weights of
/// other devices and the end of the server waited for it, and interrupted commands were carried out later.
#[test]
fn control_answers_beside_a_stuck_device() {
    let scene = Scene::new();
    let device = format!("--device={STUCK}");
    let (child, _) = serve(&[
        &scene.listen(),
        &device,
        "--device=memory,size=8",
        "--scheduler=mq-deadline",
        "--export=a,device=1",
        "--export=good,device=2",
    ]);
    let control = scene.at("sock.control");
    let mut stuck = scene.client_of("a");
    stuck.send(READ, 0);
    while !ctl(&control, &["stat", "--inflight"]).1.starts_with("       1        0") {}
    let mut switch = asking(&scene, &["switch", "--device=1", "kyber"]);
    let top = || {
        let socket = control.display().to_string();
        blkmqctl(&["top", "--once", "--interval=1", "--control", &socket])
    };
    for _ in 0..2 {
        let (code, list, _) = ctl(&control, &["list"]);
        assert!(code == Some(0) && list.contains("good"), "{list}");
        let (code, _, errors) = ctl(&control, &["export", "good", "--weight=50"]);
        assert_eq!(code, Some(0), "{errors}");
    }
    let (code, text, errors) = top();
    assert!(code == Some(0) && text.contains("good"), "{text}{errors}");
    assert_eq!(scene.client_of("good").call(WRITE, 0), 0);
    assert!(switch.try_wait().expect("a child").is_none(), "it waited meanwhile");
    let (code, _, errors) = ctl(&control, &["drain"]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, _) = ended(switch);
    assert_eq!(code, Some(1), "it is given up with the server");
    drop(stuck);
    let (code, log) = ended(child);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("not Set") && !log.contains("control: Set"), "{log}");
    let weight = |line: &&str| line.contains("weight: Some(50)");
    let changed = Vec::from_iter(log.lines().filter(weight));
    assert!(changed[0].contains("before=\"weight=100\" after=\"weight=50\""), "{log}");
    assert!(changed[1].contains("before=\"weight=50\" after=\"weight=50\""), "{log}");
    let audited = |line: &&str| line.contains("control: Drain") && line.contains("by=\"uid:");
    assert_eq!(log.lines().filter(audited).count(), 1, "{log}");
}

/// Regression test: a tenant whose requests were stuck at the device seemed idle, because only finished requests were
/// shown.
#[test]
fn a_stuck_tenant_is_seen() {
    let scene = Scene::new();
    let (device, http) =
        (format!("--device={STUCK}"), format!("--http=unix:{}", scene.at("http").display()));
    let (child, _) = serve(&[&scene.listen(), &http, &device, "--stats=always", "--export=a"]);
    let control = scene.at("sock.control");
    assert_eq!(page(&scene, "/readyz"), (200, "ready, 0 of 256 connections\n".to_owned()));
    let mut stuck = scene.client_of("a");
    stuck.send(READ, 0);
    stuck.send(READ, 1 << 20);
    while !ctl(&control, &["stat", "--inflight"]).1.starts_with("       2        0") {}
    let (code, text, errors) = ctl(&control, &["--json", "stat", "--count=1"]);
    assert_eq!(code, Some(0), "{errors}");
    let rates: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for row in rates["rows"].as_array().expect("rows") {
        let oldest = row["oldest_ms"].as_f64().expect("a number");
        assert!(row["held"] == 2 && oldest >= 1000.0, "an interval long: {row}");
    }
    let socket = control.display().to_string();
    let (_, top, _) = blkmqctl(&["top", "--once", "--json", "--interval=1", "--control", &socket]);
    let top: serde_json::Value = serde_json::from_str(&top).expect("JSON");
    let text = top.to_string();
    assert_eq!(text.matches("\"flight\":2").count(), 2, "device and export: {text}");
    let metrics = page(&scene, "/metrics").1;
    let line = "blkmq_export_outstanding{export=\"a\",place=\"device\"} 2\n";
    assert!(metrics.contains(line), "{metrics}");
    drop(stuck);
    end(child, "-KILL");
}

/// Regression test: SIGHUP reloads in the signal thread, so that a change of scheduler for a stuck device kept the
/// server from ending.
#[test]
fn a_reload_that_waits_for_a_stuck_device_ends_with_the_server() {
    let scene = Scene::new();
    let config = scene.at("serve.toml");
    let text = format!(
        "listen = 'unix:{}'\n[bounds]\ndrain = '200ms'\n[[device]]\nname = 'd'\ndevice = '{STUCK}'\n\
         scheduler = 'mq-deadline'\n",
        scene.at("sock").display()
    );
    std::fs::write(&config, &text).expect("the folder is ours");
    let (mut child, _) = serve(&[&config.display().to_string()]);
    let control = scene.at("sock.control");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut stuck = scene.client();
    stuck.send(READ, 0);
    while !ctl(&control, &["stat", "--inflight"]).1.starts_with("       1        0") {}
    let text = text.replace("mq-deadline", "kyber").replace("[bounds]", "log = 'debug'\n[bounds]");
    std::fs::write(&config, text).expect("the folder is ours");
    let kill = |signal: &str| {
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.expect("kill is everywhere").success());
    };
    kill("-HUP");
    // The log level changes first.
    loop {
        ctl(&control, &["list"]);
        if next_line(&mut log).is_some_and(|line| line.contains("List")) {
            break;
        }
    }
    kill("-TERM");
    logged(&mut log, &["device 1: queue/scheduler=kyber: not changed"]);
    drop(stuck);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// A reload at the end of the server does not delay it, and a client can use a socket path of maximum length.
#[test]
fn a_reload_during_the_end_keeps_the_server_from_nothing() {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let socket = at(&"s".repeat(107 - folder.path().as_os_str().len() - 1));
    assert_eq!(socket.as_os_str().len(), 107);
    let config = at("serve.toml");
    let text = format!(
        "listen = 'unix:{}'\ncontrol = '{}'\n[bounds]\ndrain = '1s'\n[[device]]\nname = 'd'\n\
         device = '{STUCK}'\nscheduler = 'mq-deadline'\n[[export]]\nname = 'd'\n",
        socket.display(),
        at("control").display()
    );
    std::fs::write(&config, &text).expect("the folder is ours");
    let (mut child, lines) = serve(&[&config.display().to_string()]);
    assert!(!lines.is_empty(), "{:?}", ended(child));
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut stuck = Client(UnixStream::connect(&socket).expect("it listens"));
    stuck.0.read_exact(&mut [0; 18]).expect("a greeting");
    let option = [&1_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &[0; 4]];
    stuck.0.write_all(&option.concat()).expect("it reads");
    stuck.0.read_exact(&mut [0; 134]).expect("the export");
    stuck.send(READ, 0);
    while !ctl(&at("control"), &["stat", "--inflight"]).1.starts_with("       1        0") {}
    std::fs::write(&config, text.replace("mq-deadline", "kyber")).expect("the folder is ours");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGHUP] {
        nix::sys::signal::kill(pid, signal).expect("it is there");
    }
    let (code, done, _) = ctl(&at("control"), &["reload"]);
    assert!(code != Some(0) || done.contains("kyber: not changed"), "{done}");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let mut rest = String::new();
    log.read_to_string(&mut rest).expect("text");
    assert!(!rest.contains("panicked"), "{rest}");
}

//! `blkmqd` with rules on its clients: refusals in its log, faults of a file, and a reload.

use crate::BLKMQD;
use crate::serve::{ctl, end, ended, serve};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use tempfile::TempDir;

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

fn started(folder: &Path, text: &str) -> Child {
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
    let child = started(at, &file(at, &own, &other));
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

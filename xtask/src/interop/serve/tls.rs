//! libnbd's tools with `blkmqd` over TLS, with certificates made by openssl.

use super::{LARGE, nbd};
use crate::Result;
use crate::interop::Outcome;
use crate::nbd::Server;
use crate::shell::{Cmd, is_installed};
use std::fs;
use std::path::Path;

/// nbdinfo sees TLS, nbdcopy copies 1 GiB through it with one connection and with four, and a client without TLS or without a
/// certificate gets nothing.
pub(in crate::interop) fn tls() -> Result<Outcome> {
    // openssl does not accept --version.
    if Cmd::new("openssl version").quiet_code().is_err() {
        return Ok(Outcome::Skipped("openssl is not installed".into()));
    }
    if !is_installed("nbdcopy") {
        return Ok(Outcome::Skipped("nbdcopy is not installed".into()));
    }
    let folder = std::env::temp_dir().join(format!("blkmq-tls-{}", std::process::id()));
    let result = certificates(&folder).and_then(|()| copies(&folder));
    fs::remove_dir_all(&folder)?;
    result.map(|()| Outcome::Passed)
}

/// Makes an authority, and folders for a server and a client with certificates that it has signed.
pub(in crate::interop) fn certificates(folder: &Path) -> Result<()> {
    let openssl = |words: String| Cmd::new(&format!("openssl {words}")).output();
    let at = |name: &str| folder.join(name).display().to_string();
    for side in ["server", "client"] {
        fs::create_dir_all(folder.join(side))?;
    }
    let (authority, key) = (at("ca-cert.pem"), at("ca-key.pem"));
    let new = "-newkey rsa:2048 -noenc";
    openssl(format!("req -x509 {new} -days 2 -subj /CN=authority -keyout {key} -out {authority}"))?;
    for side in ["server", "client"] {
        let (request, names) = (at("request"), at("names"));
        fs::write(&names, "subjectAltName=DNS:localhost\n")?;
        let secret = at(&format!("{side}/{side}-key.pem"));
        openssl(format!("req {new} -subj /CN=localhost -keyout {secret} -out {request}"))?;
        let signed = at(&format!("{side}/{side}-cert.pem"));
        let by = format!("-CA {authority} -CAkey {key} -CAcreateserial");
        openssl(format!("x509 -req -in {request} {by} -days 2 -extfile {names} -out {signed}"))?;
        fs::copy(&authority, folder.join(side).join("ca-cert.pem"))?;
    }
    Ok(())
}

fn copies(folder: &Path) -> Result<()> {
    let certificates = |side: &str| folder.join(side).display().to_string();
    let more = format!("--export= --tls-certificates={}", certificates("server"));
    let server = Server::blkmq("serve-tls", LARGE, "mq-deadline", &more)?;
    let plain = server.uri("");
    let uri = format!(
        "{}&tls-certificates={}&tls-hostname=localhost",
        plain.replace("nbd+", "nbds+"),
        certificates("client")
    );
    let info = Cmd::new("nbdinfo").arg(&uri).output()?;
    if !info.contains("with TLS") {
        return Err(format!("nbdinfo sees no TLS: {info}").into());
    }
    if Cmd::new(&format!("nbdinfo --size {plain}")).quiet_code()? == Some(0) {
        return Err("a client without TLS was told the size".into());
    }
    nbd::copies(&server, &uri, 1024, &["--connections=1", "--connections=4"])
}

//! The forms of a release: reproducible, and usable on a machine without this repository.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::dist::Release;
use crate::shell::{Cmd, is_installed, parse_json};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs without which some form cannot be made here.
const TOOLS: [&str; 5] = ["dpkg-deb", "dpkg-shlibdeps", "tar", "xz", "strip"];
/// Files that an archive must have, among others.
const FILES: [&str; 5] = [
    "usr/bin/blkmq",
    "usr/share/man/man1/blkmqctl-list.1.gz",
    "usr/share/zsh/vendor-completions/_blkmqd",
    "usr/share/doc/blkmq/libraries.txt",
    "etc/blkmq/serve.toml",
];

/// The missing part of this machine, for checks of releases.
pub(super) fn lack() -> Option<String> {
    let missing = TOOLS.iter().find(|tool| !is_installed(tool));
    missing.map(|tool| format!("{tool} is not installed"))
}

/// Each form has the same bytes when it is made again, the archive is complete, lintian finds no error in the package,
/// and the image serves.
pub(in crate::interop) fn check() -> Result<Outcome> {
    if let Some(lack) = lack() {
        return Ok(Outcome::Skipped(lack));
    }
    let folder = Folder::new("release")?;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let files = made(&first)?;
    for (file, again) in files.iter().zip(made(&second)?) {
        if fs::read(file)? != fs::read(&again)? {
            return Err(format!("{} and {} differ", file.display(), again.display()).into());
        }
    }
    let [archive, package, image] = &files;
    unpacks(archive, folder.path())?;
    if is_installed("lintian") {
        Cmd::new("lintian --fail-on error").arg(package.to_string_lossy()).run()?;
    } else {
        println!("lintian: SKIPPED, it is not installed");
    }
    contained(image, folder.path())
}

/// The archive, the package and the image.
fn made(folder: &Path) -> Result<[PathBuf; 3]> {
    let release = Release::new(folder)?;
    Ok([release.archive()?, release.debian(1)?, release.image()?])
}

/// The archive has its files, and its program runs.
fn unpacks(archive: &Path, folder: &Path) -> Result<()> {
    let place = folder.join("unpacked");
    fs::create_dir(&place)?;
    let tar = Cmd::new("tar --extract --strip-components=1").arg("--file");
    tar.arg(archive.to_string_lossy()).output_in(&place)?;
    for file in FILES {
        if fs::metadata(place.join(file))?.len() == 0 {
            return Err(format!("{file} is empty").into());
        }
    }
    let program = place.join("usr/bin/blkmqctl").display().to_string();
    Cmd::new(&program).arg("--version").output().map(drop)
}

/// Starts a container's program with its root and user, in its own network. Its health is checked as by an engine, and
/// a client connects to an address that is not that of the container itself.
const SERVE: &str = "set -e; ip link set lo up; ip address add 192.0.2.1/32 dev lo
inside=\"env -i $ENVIRONMENT $(command -v chroot) --userspec=$OWNER $TREE\"
$inside $SERVER >&2 & server=$!
n=0; until $inside $HEALTH > /dev/null 2>&1; do n=$((n + 1)); [ $n -lt 600 ]; kill -0 $server; sleep 0.1; done
nbdinfo --size nbd://192.0.2.1/
kill -TERM $server; wait $server";

/// The image unpacks, serves and answers for its health.
fn contained(image: &Path, folder: &Path) -> Result<Outcome> {
    let (place, tree) = (folder.join("image"), folder.join("tree"));
    fs::create_dir(&place)?;
    fs::create_dir(&tree)?;
    let tar = Cmd::new("tar --extract --file").arg(image.to_string_lossy());
    tar.output_in(&place)?;
    let manifest: Value = serde_json::from_slice(&fs::read(place.join("manifest.json"))?)?;
    let config = place.join(manifest[0]["Config"].as_str().ok_or("no config")?);
    let config = &parse_json(&fs::read_to_string(config)?)?["config"];
    let words = |value: &Value| -> String {
        let words = value.as_array().map_or(&[][..], Vec::as_slice);
        words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    };
    let owns = Cmd::new("unshare --mount --net true").quiet_code().ok().flatten() == Some(0);
    if !owns || Cmd::new("id -u").output()?.trim() != "0" {
        return Ok(Outcome::Skipped("no right to a root and a network of its own".into()));
    }
    let tar = Cmd::new("tar --extract --numeric-owner --same-owner --file");
    tar.arg(place.join("layer.tar").to_string_lossy()).output_in(&tree)?;
    let health = words(&config["Healthcheck"]["Test"]);
    let size = Cmd::new("unshare --mount --net sh -c")
        .arg(SERVE)
        .env("TREE", tree.to_string_lossy())
        .env("OWNER", config["User"].as_str().ok_or("no user")?)
        .env("ENVIRONMENT", words(&config["Env"]))
        .env("SERVER", format!("{} {}", words(&config["Entrypoint"]), words(&config["Cmd"])))
        .env("HEALTH", health.strip_prefix("CMD ").ok_or("its health is a command")?)
        .output()?;
    let expected = (1_u64 << 30).to_string();
    if size.trim() == expected { Ok(Outcome::Passed) } else { Err(format!("size {size}").into()) }
}

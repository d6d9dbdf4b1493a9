//! The container image: the server, its client and the libraries that they load, and no other program. It is a file for
//! `docker load` and `podman load`; neither an engine nor a network is needed to create it.

use super::{Release, put, readable};
use crate::Result;
use crate::shell::{BLKMQCTL, BLKMQD, Cmd};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The user of the server in it, and the group.
const USER: u32 = 10_809;
/// Nanoseconds between two questions about its health.
const INTERVAL: u64 = 30_000_000_000;
/// Packages whose libraries are in it, for their licences.
const LIBRARIES: [&str; 2] = ["libc6", "libgcc-s1"];

impl Release {
    /// `blkmq-0.1.0-image.tar`, in the form of `docker save`.
    ///
    /// # Errors
    /// If a tool fails.
    pub(crate) fn image(&self) -> Result<PathBuf> {
        let place = self.folder.join("image");
        let tree = self.folder.join("image-files");
        self.lay_out_image(&tree)?;
        fs::create_dir_all(&place)?;
        let layer = place.join("layer.tar");
        self.tar("--create --owner=0 --group=0", &layer, &tree, &names(&tree)?)?;
        let own = self.folder.join("image-own");
        fs::create_dir_all(own.join("var/lib/blkmq"))?;
        fs::create_dir_all(own.join("run/blkmq"))?;
        let append = format!("--append --owner={USER} --group={USER}");
        self.tar(&append, &layer, &own, "run/blkmq var/lib/blkmq")?;
        let created = Cmd::new("date -u +%FT%TZ -d").arg(format!("@{}", self.time)).output()?;
        let config = config(created.trim(), &digest(&layer)?);
        put(&place.join("config"), config.to_string())?;
        let name = format!("{}.json", digest(&place.join("config"))?);
        fs::rename(place.join("config"), place.join(&name))?;
        let tag = format!("blkmq:{}", self.version);
        let manifest = json!([{ "Config": name, "RepoTags": [tag], "Layers": ["layer.tar"] }]);
        put(&place.join("manifest.json"), manifest.to_string())?;
        let image = self.folder.join(format!("blkmq-{}-image.tar", self.version));
        self.tar("--create --owner=0 --group=0", &image, &place, &names(&place)?)?;
        Ok(image)
    }

    /// Lays out the files that belong to root.
    fn lay_out_image(&self, tree: &Path) -> Result<()> {
        let documents = ["LICENSE-MIT", "LICENSE-APACHE", "libraries.txt"];
        let documents = documents.map(|name| format!("usr/share/doc/blkmq/{name}"));
        let programs = ["usr/bin/blkmqd", "usr/bin/blkmqctl"].map(str::to_owned);
        for name in programs.iter().chain(&documents) {
            put_copy(&self.tree.join(name), &tree.join(name))?;
        }
        for library in libraries()? {
            put_copy(Path::new(&library), &tree.join(library.trim_start_matches('/')))?;
        }
        for package in LIBRARIES {
            let licence = format!("usr/share/doc/{package}/copyright");
            // Another distribution has it elsewhere.
            if let Ok(text) = fs::read(Path::new("/").join(&licence)) {
                put(&tree.join(&licence), text)?;
            }
        }
        let user = format!("blkmq:x:{USER}:{USER}::/var/lib/blkmq:/nonexistent\n");
        put(&tree.join("etc/passwd"), user)?;
        readable(tree)
    }
}

/// The libraries of both programs, and the dynamic loader: `libc.so.6 => /lib/.../libc.so.6 (0x..)`.
fn libraries() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for program in [BLKMQD, BLKMQCTL] {
        let said = Cmd::new(&format!("ldd {program}")).output()?;
        let paths = said.split_whitespace().filter(|word| word.starts_with('/'));
        all.extend(paths.map(str::to_owned));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The settings of a container. `blkmqctl` finds the control socket in the runtime directory, beside the first socket.
fn config(created: &str, layer: &str) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin", "XDG_RUNTIME_DIR=/run/blkmq"],
            "Entrypoint": ["/usr/bin/blkmqd"],
            "Cmd": [
                "--device=uring:/var/lib/blkmq/disk.img,size=1g,format=raw",
                "--listen=unix:/run/blkmq/blkmq.sock",
                "--listen=tcp:0.0.0.0",
            ],
            "Healthcheck": { "Test": ["CMD", "/usr/bin/blkmqctl", "list"], "Interval": INTERVAL },
            "ExposedPorts": { "10809/tcp": {} },
            "Volumes": { "/var/lib/blkmq": {} },
            "StopSignal": "SIGTERM",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created": created, "comment": "blkmq" }],
    })
}

/// Copies a file with its mode, creating the folder if necessary.
fn put_copy(from: &Path, to: &Path) -> Result<()> {
    put(to, "")?;
    fs::copy(from, to)?;
    Ok(())
}

fn names(folder: &Path) -> Result<String> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string()));
    let names = names.collect::<std::io::Result<std::result::Result<Vec<_>, _>>>()?;
    let mut names = names.map_err(|name| format!("{name:?} is no text"))?;
    names.sort();
    Ok(names.join(" "))
}

fn digest(file: &Path) -> Result<String> {
    let said = Cmd::new("sha256sum").arg(file.to_string_lossy()).output()?;
    Ok(said.split_whitespace().next().ok_or("no digest")?.to_owned())
}

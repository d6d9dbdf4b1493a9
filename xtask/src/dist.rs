//! The forms in which users get the programs: `dist` builds a release archive, a Debian package and a container image,
//! each of the programs built with profile dist; and `python` the wheel and the source distribution of the package in
//! `python`, with its types and tests. Nothing is published.
//!
//! Equal programs give equal bytes: names are sorted, owners fixed, and the time is that of the last commit, or of
//! `SOURCE_DATE_EPOCH`. The Debian package is made by dpkg-deb. The image has the server, its client and the libraries
//! that they load, and no other program; it is a file for `docker load` and `podman load`, and neither an engine nor a
//! network is needed to create it.
//!
//! The tools for the wheel and the libraries that read results come from PyPI into a separate environment; without them
//! the step is skipped, with a message. The wheel is also installed into an empty environment, since it must not need
//! other packages.

use crate::Result;
use crate::shell::{
    BLKMQ, BLKMQCTL, BLKMQD, Cmd, build_program, build_programs, parse_json, root, target_dir,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The programs of a release, and the path of each where it was built.
const PROGRAMS: [(&str, &str); 3] = [("blkmq", BLKMQ), ("blkmqd", BLKMQD), ("blkmqctl", BLKMQCTL)];
/// Files of the repository, and their paths in a release.
const FILES: [(&str, &str); 9] = [
    ("contrib/systemd/blkmqd.service", "usr/lib/systemd/system/blkmqd.service"),
    ("contrib/systemd/blkmqd.socket", "usr/lib/systemd/system/blkmqd.socket"),
    ("contrib/debian/serve.toml", "etc/blkmq/serve.toml"),
    ("crates/daemon/examples/serve.toml", "usr/share/doc/blkmq/serve.toml"),
    ("docs/operate.md", "usr/share/doc/blkmq/operate.md"),
    ("docs/serve.md", "usr/share/doc/blkmq/serve.md"),
    ("docs/guarantees.md", "usr/share/doc/blkmq/guarantees.md"),
    ("LICENSE-MIT", "usr/share/doc/blkmq/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/blkmq/LICENSE-APACHE"),
];

/// A form of a release, and the function that makes its file.
type Form = (&'static str, fn(&Release) -> Result<PathBuf>);

const FORMS: [Form; 3] = [
    ("archive", Release::archive),
    ("debian", |release| release.debian(1)),
    ("image", Release::image),
];

/// A release in the making.
pub(crate) struct Release {
    version: String,
    /// Seconds since 1970, the time of every file.
    time: String,
    /// The folder for its files.
    folder: PathBuf,
    /// The installed files, below a folder with the name of the release.
    tree: PathBuf,
}

/// `cargo xtask dist [archive|debian|image]...`
///
/// # Errors
/// If a program does not build, or a tool is missing.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let forms = FORMS.map(|(name, _)| name);
    if let Some(arg) = args.iter().find(|arg| !forms.contains(&arg.as_str())) {
        return Err(format!("there is no form {arg}; there are {}", forms.join(", ")).into());
    }
    build_programs()?;
    let release = Release::new(&target_dir().join("release-files"))?;
    for (name, make) in FORMS {
        if args.is_empty() || args.iter().any(|arg| arg == name) {
            let file = make(&release)?;
            println!("{}, {} kB", file.display(), fs::metadata(&file)?.len() / 1000);
        }
    }
    Ok(())
}

impl Release {
    /// A release of the built programs, with its files in `folder`, which is emptied.
    ///
    /// # Errors
    /// If the time is unknown, a tool fails, or the folder cannot be written to.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = "));
        let version = version.ok_or("no version")?.trim_matches('"').to_owned();
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => Cmd::new("git log -1 --format=%ct")
                .output()
                .map_err(|error| format!("{error}; SOURCE_DATE_EPOCH names a time without git"))?,
        };
        let _ = fs::remove_dir_all(folder);
        let (time, folder) = (time.trim().to_owned(), folder.to_owned());
        let tree = folder.join(format!("blkmq-{version}-{}", std::env::consts::ARCH));
        let release = Self { version, time, folder, tree };
        release.lay_out()?;
        Ok(release)
    }

    /// `blkmq-0.1.0-x86_64.tar.xz`.
    ///
    /// # Errors
    /// If tar or xz fails.
    pub(crate) fn archive(&self) -> Result<PathBuf> {
        let name = self.tree.file_name().ok_or("a release has a name")?.to_string_lossy();
        let tar = self.folder.join(format!("{name}.tar"));
        self.tar("--create --owner=0 --group=0", &tar, &self.folder, &name)?;
        Cmd::new("xz -T1").arg(tar.to_string_lossy()).run()?;
        Ok(self.folder.join(format!("{name}.tar.xz")))
    }

    /// Lays out the files as below the root of a machine.
    fn lay_out(&self) -> Result<()> {
        let out = &self.tree;
        let man = out.join("usr/share/man/man1");
        fs::create_dir_all(&man)?;
        for printer in [BLKMQ, BLKMQCTL] {
            Cmd::new(&format!("{printer} man")).arg(format!("--dir={}", man.display())).output()?;
        }
        for page in fs::read_dir(&man)? {
            Cmd::new("gzip -9n").arg(page?.path().to_string_lossy()).output()?;
        }
        for (name, built) in PROGRAMS {
            let program = out.join("usr/bin").join(name);
            fs::create_dir_all(out.join("usr/bin"))?;
            let strip = Cmd::new(&format!("strip --strip-unneeded {built} -o"));
            strip.arg(program.to_string_lossy()).output()?;
            // The laboratory prints its own manuals, the client those of the server's programs.
            let (printer, of) = if name == "blkmq" { (BLKMQ, "") } else { (BLKMQCTL, name) };
            for (shell, file) in [
                ("bash", format!("bash-completion/completions/{name}")),
                ("zsh", format!("zsh/vendor-completions/_{name}")),
                ("fish", format!("fish/vendor_completions.d/{name}.fish")),
            ] {
                let script = Cmd::new(&format!("{printer} completions {shell} {of}")).output()?;
                put(&out.join("usr/share").join(file), script)?;
            }
        }
        for (from, to) in FILES {
            put(&out.join(to), fs::read(root().join(from))?)?;
        }
        put(&out.join("usr/share/doc/blkmq/libraries.txt"), notices()?)?;
        readable(out)
    }

    /// Calls tar for `names` of `folder`, in an order and with times that do not depend on the machine.
    fn tar(&self, how: &str, tar: &Path, folder: &Path, names: &str) -> Result<()> {
        let sorted = "--sort=name --format=gnu --numeric-owner --mode=u=rwX,go=rX";
        let tar = Cmd::new(&format!("tar {how} {sorted} --mtime=@{}", self.time))
            .arg(format!("--file={}", tar.display()))
            .arg(format!("--directory={}", folder.display()));
        names.split(' ').fold(tar, Cmd::arg).run()
    }
}

/// Writes a file, creating the folder if necessary.
fn put(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    fs::create_dir_all(path.parent().ok_or("a file has a folder")?)?;
    Ok(fs::write(path, contents)?)
}

/// Copies a folder to a path that does not exist.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copy = Cmd::new("cp --recursive --no-target-directory").arg(from.to_string_lossy());
    copy.arg(to.to_string_lossy()).output().map(drop)
}

/// Makes everything below `folder` readable for all users, whatever this process's umask.
fn readable(folder: &Path) -> Result<()> {
    Cmd::new("chmod -R u=rwX,go=rX").arg(folder.to_string_lossy()).output().map(drop)
}

/// The maintainer of the package, unless `DEBFULLNAME` and `DEBEMAIL` name one, as for Debian's own tools.
const MAINTAINER: (&str, &str) = ("blkmq authors", "maintainers@blkmq.example");
/// The scripts that dpkg calls while it installs, upgrades and removes.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

impl Release {
    /// `blkmq_0.1.0-1_amd64.deb`, of this revision.
    ///
    /// # Errors
    /// If a tool of dpkg fails, or is missing.
    pub(crate) fn debian(&self, revision: u32) -> Result<PathBuf> {
        let architecture = Cmd::new("dpkg --print-architecture").output()?.trim().to_owned();
        let version = format!("{}-{revision}", self.version);
        let name = format!("blkmq_{version}_{architecture}");
        let place = self.folder.join(&name);
        copy(&self.tree, &place)?;
        let named = |name: &str, other: &str| std::env::var(name).unwrap_or_else(|_| other.into());
        let maintainer =
            format!("{} <{}>", named("DEBFULLNAME", MAINTAINER.0), named("DEBEMAIL", MAINTAINER.1));
        self.documents(&place, &version, &maintainer)?;
        let control = fs::read_to_string(root().join("contrib/debian/control"))?
            .replace("VERSION", &version)
            .replace("ARCHITECTURE", &architecture)
            .replace("MAINTAINER", &maintainer)
            .replace("DEPENDS", &self.depends()?)
            .replace("SIZE", &kilobytes(&place)?.to_string());
        let sums = "cd \"$1\" && find usr -type f -print0 | sort -z | xargs -0 md5sum";
        let sums = Cmd::new("sh -c").arg(sums).arg("sh").arg(place.to_string_lossy()).output()?;
        put(&place.join("DEBIAN/control"), control)?;
        put(&place.join("DEBIAN/md5sums"), sums)?;
        put(&place.join("DEBIAN/conffiles"), "/etc/blkmq/serve.toml\n")?;
        readable(&place)?;
        for script in SCRIPTS {
            let from = root().join("contrib/debian").join(script);
            let install = Cmd::new("install -m 0755").arg(from.to_string_lossy());
            install.arg(place.join("DEBIAN").to_string_lossy()).output()?;
        }
        let package = self.folder.join(format!("{name}.deb"));
        Cmd::new("dpkg-deb --build --root-owner-group -Zxz")
            .arg(place.to_string_lossy())
            .arg(package.to_string_lossy())
            .env("SOURCE_DATE_EPOCH", self.time.as_str())
            .run()?;
        Ok(package)
    }

    /// The files that Debian's policy requires: changes, and licences under its names.
    fn documents(&self, place: &Path, version: &str, maintainer: &str) -> Result<()> {
        let documents = place.join("usr/share/doc/blkmq");
        let date = Cmd::new("date -u -R -d").arg(format!("@{}", self.time));
        let date = date.env("LC_ALL", "C").output()?;
        let entry = format!(
            "blkmq ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {maintainer}  {date}"
        );
        put(&documents.join("changelog.Debian"), entry)?;
        put(&documents.join("changelog"), fs::read(root().join("CHANGELOG.md"))?)?;
        for name in ["changelog.Debian", "changelog"] {
            Cmd::new("gzip -9n").arg(documents.join(name).to_string_lossy()).output()?;
        }
        let [mit, apache] = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| documents.join(name));
        let text = fs::read_to_string(&mit)?;
        let (_, text) = text.split_once("\n\n").ok_or("the licence has no title")?;
        let mut copyright = fs::read_to_string(root().join("contrib/debian/copyright"))?;
        for line in text.lines() {
            let line = if line.is_empty() { "." } else { line };
            copyright.push_str(&format!(" {line}\n"));
        }
        put(&documents.join("copyright"), copyright)?;
        // Both are in the file, or where it points to.
        fs::remove_file(mit)?;
        Ok(fs::remove_file(apache)?)
    }

    /// The packages whose libraries the programs are linked with.
    fn depends(&self) -> Result<String> {
        // The tool must run in the sources of a package.
        let (sources, source) = (self.folder.join("sources"), "Source: blkmq\n\nPackage: blkmq\n");
        put(&sources.join("debian/control"), format!("{source}Architecture: any\n"))?;
        let tool = PROGRAMS.iter().fold(Cmd::new("dpkg-shlibdeps -O"), |tool, (name, _)| {
            tool.arg(format!("-e{}", self.tree.join("usr/bin").join(name).display()))
        });
        let said = tool.output_in(&sources)?;
        let depends = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
        Ok(depends.ok_or("dpkg-shlibdeps names no package")?.to_owned())
    }
}

/// The size of the installed files in KiB, each rounded up, as dpkg-gencontrol counts them.
fn kilobytes(place: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let size = entry.metadata()?.len().div_ceil(1024);
        sum += if entry.file_type()?.is_dir() { 1 + kilobytes(&entry.path())? } else { size };
    }
    Ok(sum)
}

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

/// For each library: name, version, licence, and the texts in its sources, each text once.
fn notices() -> Result<String> {
    let mut used = Vec::new();
    for program in ["blkmq-cli", "blkmq-daemon"] {
        let tree = format!("cargo tree --locked -p {program} -e normal --prefix none --format");
        let tree = Cmd::new(&tree).arg("{p}").output()?;
        used.extend(tree.lines().filter_map(package));
    }
    used.sort();
    used.dedup();
    let metadata = Cmd::new("cargo metadata --locked --format-version=1").output()?;
    let metadata = parse_json(&metadata)?;
    let (mut out, mut texts) = (String::new(), BTreeMap::<String, Vec<String>>::new());
    for package in metadata["packages"].as_array().ok_or("no packages")? {
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let name = (field("name"), field("version"));
        // The crates of the workspace have the licence of the whole.
        if package["source"] == Value::Null || !used.contains(&name) {
            continue;
        }
        out.push_str(&format!("{} {}: {}\n", name.0, name.1, field("license")));
        for text in licences(Path::new(&field("manifest_path")))? {
            texts.entry(text).or_default().push(name.0.clone());
        }
    }
    for (text, mut names) in texts {
        names.dedup();
        out.push_str(&format!("\n---- {}\n\n{}\n", names.join(", "), text.trim_end()));
    }
    Ok(out)
}

/// The name and version in a line of cargo's tree: `name v1.2.3`, perhaps with a path or `(*)` behind it.
fn package(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    Some((name, words.next()?.strip_prefix('v')?.to_owned()))
}

/// The licence texts in the folder of a manifest.
fn licences(manifest: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(manifest.parent().ok_or("a manifest has a folder")?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_one = ["LICEN", "COPY", "NOTICE"].iter().any(|begin| name.starts_with(begin));
        if is_one && entry.file_type()?.is_file() {
            texts.push(fs::read_to_string(entry.path())?.replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

/// The tools, and the libraries that read results.
const PYTHON_TOOLS: &str = include_str!("../../python/requirements.txt");
/// The program that an empty environment runs with the wheel.
const FIRST_PROGRAM: &str = "import blkmq; print(blkmq.simulate(rw='randread', size='1m', device='flash', scheduler='bfq'))";

/// `cargo xtask python`
///
/// # Errors
/// If the wheel does not build, a type is wrong or a test fails.
pub(crate) fn python(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("python takes no argument, got {arg}").into());
    }
    let (package, place) = (root().join("python"), target_dir().join("python"));
    let tools = match environment("python/tools", PYTHON_TOOLS)? {
        Ok(tools) => tools,
        Err(lack) => {
            println!("python: SKIPPED wheel, types and tests: {lack}");
            return Ok(());
        }
    };
    let dist = place.join("dist");
    let _ = fs::remove_dir_all(&dist);
    let build = within(&tools, "maturin build --release --quiet --locked --manifest-path");
    build
        .arg(package.join("Cargo.toml").to_string_lossy())
        .arg("--out")
        .arg(dist.to_string_lossy())
        .env("CARGO_TARGET_DIR", place.join("build").to_string_lossy())
        .env("VIRTUAL_ENV", place.join("tools").to_string_lossy())
        // A wheel for tests only: whole-program optimisation is a fifth of its time.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .run()?;
    let sdist = within(&tools, "maturin sdist --manifest-path");
    let sdist = sdist.arg(package.join("Cargo.toml").to_string_lossy()).arg("--out");
    sdist.arg(dist.to_string_lossy()).run()?;
    let wheel = wheel_in(&dist)?;
    println!("python: {}, {} kB", wheel.display(), wheel.metadata()?.len() / 1000);
    let _ = fs::remove_dir_all(place.join("empty"));
    Cmd::new("python3 -m venv").arg(place.join("empty").to_string_lossy()).run()?;
    let empty = place.join("empty/bin");
    for (environment, more) in [(&empty, ""), (&tools, "--force-reinstall --no-deps")] {
        let install =
            within(environment, "python3 -m pip install --quiet --disable-pip-version-check");
        let install = more.split_whitespace().fold(install, Cmd::arg);
        install.arg(wheel.to_string_lossy()).run()?;
    }
    within(&empty, "python3 -c").arg(FIRST_PROGRAM).run()?;
    within(&empty, "python3 -m pip check").run()?;
    let mypy = within(&tools, "python3 -m mypy --strict --cache-dir");
    mypy.arg(place.join("mypy").to_string_lossy()).arg("-p").arg("blkmq").run()?;
    build_program()?;
    let program = target_dir().join("dist/blkmq");
    within(&tools, "python3 -m pytest -q -p no:cacheprovider -p no:logging -rP --durations=5")
        .arg(package.join("tests").to_string_lossy())
        .env("BLKMQ_PROGRAM", program.to_string_lossy())
        .run()
}

/// The folder with the programs of an environment at `place` below the target folder, with `pinned` packages. It is
/// created if it is missing or has other versions; otherwise returns why it cannot be created here.
///
/// # Errors
/// If the target folder cannot be written to.
pub(crate) fn environment(
    place: &str,
    pinned: &str,
) -> Result<std::result::Result<PathBuf, String>> {
    let folder = target_dir().join(place);
    let (programs, installed) = (folder.join("bin"), folder.join("pinned.txt"));
    if fs::read_to_string(&installed).is_ok_and(|text| text == pinned) {
        return Ok(Ok(programs));
    }
    // One that was interrupted, or has other versions.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let list = folder.join("wanted.txt");
    fs::write(&list, pinned)?;
    let made = Cmd::new("python3 -m venv").arg(folder.to_string_lossy()).output();
    let pip = within(&programs, "python3 -m pip install --quiet --disable-pip-version-check -r");
    match made.and_then(|_| pip.arg(list.to_string_lossy()).output()) {
        Ok(_) => {
            fs::write(installed, pinned)?;
            Ok(Ok(programs))
        }
        Err(lack) => {
            let text = lack.to_string();
            let last = text.trim_end().lines().next_back().unwrap_or_default();
            Ok(Err(format!("the packages for {place} cannot be installed: {last}")))
        }
    }
}

/// A command of an environment, whose programs are in `programs`.
fn within(programs: &Path, line: &str) -> Cmd {
    let mut words = line.split_whitespace();
    let program = programs.join(words.next().unwrap_or_default());
    words.fold(Cmd::new("").arg(program.to_string_lossy()), Cmd::arg)
}

fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let files = files.collect::<Result<Vec<_>>>()?;
    let wheel = files.into_iter().find(|path| path.extension().is_some_and(|it| it == "whl"));
    wheel.ok_or_else(|| format!("no wheel in {}", folder.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_read() {
        let of = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(package("nix v0.31.1"), of("nix", "0.31.1"));
        assert_eq!(package("serde_derive v1.0.2 (proc-macro) (*)"), of("serde_derive", "1.0.2"));
        assert_eq!(package(""), None);
    }
}

//! `dist`: a release archive, a Debian package and a container image, each of the programs built with profile dist.
//!
//! Equal programs give equal bytes: names are sorted, owners fixed, and the time is that of the last commit, or of
//! `SOURCE_DATE_EPOCH`. It publishes nothing.

mod debian;
mod image;
mod notices;

use crate::Result;
use crate::shell::{BLKMQ, BLKMQCTL, BLKMQD, Cmd, build_programs, root, target_dir};
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
        put(&out.join("usr/share/doc/blkmq/libraries.txt"), notices::text()?)?;
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

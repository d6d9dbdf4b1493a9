//! The Debian package, by dpkg-deb: its archive is reproducible, and needs only a folder.

use super::{PROGRAMS, Release, copy, put, readable};
use crate::Result;
use crate::shell::{Cmd, root};
use std::fs;
use std::path::{Path, PathBuf};

/// Its maintainer, unless `DEBFULLNAME` and `DEBEMAIL` name one, as for Debian's own tools.
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

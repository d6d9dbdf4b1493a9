//! The description of an RBD device: its typed options and their parsing from text, the name of an image in the form of
//! Ceph's tools ([`ImageSpec`]), the entry for programs that offer devices by name, and the reasons why an image cannot
//! be opened ([`OpenError`]).

use blkmq_core::{Given, Nanos, PairError, Parameter, RealDevice};
use std::fmt;
use std::io;

/// The most hardware queues: librbd serves an image from a few threads, so that more gain nothing.
const MAX_HW_QUEUES: u16 = 64;
/// The maximum depth: OSDs accept as many requests from a client, and more gain nothing.
pub(crate) const MAX_DEPTH: u32 = 1024;
/// One day, in seconds.
const MAX_SECONDS: u64 = 86_400;

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

/// All parameters, for help and for the parser below.
const PARAMETERS: &[Parameter] = &[
    parameter(
        "image",
        "",
        "POOL/[NAMESPACE/]IMAGE[@SNAP]; in rbd:IMAGE[,KEY=VALUE]... the first word",
    ),
    parameter(
        "conf",
        "",
        "the cluster's configuration; without it, where Ceph's tools look for it",
    ),
    parameter("id", "admin", "the user of the cluster, without 'client.'"),
    parameter(
        "cache",
        "none",
        "librbd's cache, which answers before the cluster does: none, writethrough, writearound, writeback",
    ),
    parameter("hw_queues", "1", "hardware queues onto the one open image, 1 to 64"),
    parameter("hw_queue_depth", "128", "requests in flight per hardware queue, 1 to 1024"),
    parameter("readonly", "0", "everything but reads is answered with EROFS, as on a snapshot"),
    parameter(
        "connect_timeout",
        "30",
        "seconds for which opening waits for the cluster, 1 to 86400; librados's client_mount_timeout",
    ),
    parameter(
        "timeout",
        "0",
        "seconds without an answer of the cluster after which an I/O fails with ETIMEDOUT, 1 to 86400; 0: never; \
         librados's rados_osd_op_timeout",
    ),
];

/// The mode of librbd's cache, named as in `rbd_cache_policy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Cache {
    /// Every I/O completes when the cluster has answered.
    #[default]
    None,
    /// Writes complete when the cluster has answered; reads may be served from memory.
    Writethrough,
    /// Writes complete before the cluster has them; reads bypass the cache.
    Writearound,
    /// Writes complete before the cluster has them; reads may be served from memory.
    Writeback,
}

impl Cache {
    /// The values of `rbd_cache` and `rbd_cache_policy`.
    pub(crate) fn settings(self) -> (&'static str, &'static str) {
        match self {
            Self::None => ("false", "writethrough"),
            Self::Writethrough => ("true", "writethrough"),
            Self::Writearound => ("true", "writearound"),
            Self::Writeback => ("true", "writeback"),
        }
    }
}

/// The options of an RBD device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The configuration file of the cluster, or `None` for the default locations of Ceph's tools.
    pub conf: Option<String>,
    /// The user name in the cluster, without `client.`.
    pub id: String,
    /// The mode of librbd's cache.
    pub cache: Cache,
    /// Hardware queues, which share one open image; at least 1.
    pub hw_queues: u16,
    /// Requests in flight per hardware queue, at least 1.
    pub hw_queue_depth: u32,
    /// Answers everything but reads with EROFS, whatever the cluster permits.
    pub readonly: bool,
    /// How long opening waits for the cluster, in whole seconds, at least 1.
    pub connect_timeout: Nanos,
    /// How long an I/O waits for the cluster, in whole seconds, or `None` to wait for ever.
    pub timeout: Option<Nanos>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            conf: None,
            id: "admin".into(),
            cache: Cache::None,
            hw_queues: 1,
            hw_queue_depth: 128,
            readonly: false,
            connect_timeout: Nanos::from_secs(30),
            timeout: None,
        }
    }
}

impl Options {
    /// Parses `POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...`. Names that contain a comma need
    /// [`from_pairs`](Self::from_pairs).
    ///
    /// # Errors
    /// For the first word that is not understood; the error names the accepted words.
    pub fn parse(text: &str) -> Result<(ImageSpec, Self), OpenError> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let mut pairs = Vec::new();
        // The image may be given anywhere by `image=` instead.
        if !first.trim().is_empty() {
            pairs.push(("image".to_owned(), first.trim().to_owned()));
        }
        for word in rest.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| OpenError::Syntax(word.to_owned()))?;
            pairs.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        Self::from_pairs(&pairs)
    }

    /// Parses pairs of names and values; if a name is repeated, the last value counts.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if none of them is `image`.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<(ImageSpec, Self), OpenError> {
        let (mut options, mut spec) = (Self::default(), None);
        for (name, value) in pairs {
            let given = Given::find(PARAMETERS, name, value)?;
            let seconds = |least| given.number(least..=MAX_SECONDS).map(Nanos::from_secs);
            match given.name {
                "image" => spec = Some(ImageSpec::parse(given.value)?),
                "conf" => options.conf = Some(given.value.to_owned()).filter(|it| !it.is_empty()),
                "id" if given.value.is_empty() => Err(given.refuse("a user, such as admin"))?,
                "id" => options.id = given.value.to_owned(),
                "cache" => options.cache = cache(&given)?,
                "hw_queues" => options.hw_queues = given.number(1..=MAX_HW_QUEUES)?,
                "hw_queue_depth" => options.hw_queue_depth = given.number(1..=MAX_DEPTH)?,
                "readonly" => options.readonly = given.flag()?,
                "connect_timeout" => options.connect_timeout = seconds(1)?,
                "timeout" => options.timeout = Some(seconds(0)?).filter(|time| *time > Nanos(0)),
                name => unreachable!("{name} is in the table and not read"),
            }
        }
        Ok((spec.ok_or(OpenError::NoImageGiven)?, options))
    }
}

fn cache(given: &Given<'_>) -> Result<Cache, OpenError> {
    match given.value {
        "none" => Ok(Cache::None),
        "writethrough" => Ok(Cache::Writethrough),
        "writearound" => Ok(Cache::Writearound),
        "writeback" => Ok(Cache::Writeback),
        _ => Err(given.refuse("none, writethrough, writearound, writeback"))?,
    }
}

/// The name of an image, `POOL/[NAMESPACE/]IMAGE[@SNAP]`: Ceph's image-spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageSpec {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool, or `None` for the default one.
    pub namespace: Option<String>,
    /// The name of the image.
    pub image: String,
    /// The snapshot, which is read-only, or `None` for the image itself.
    pub snapshot: Option<String>,
}

impl ImageSpec {
    /// Parses `POOL/[NAMESPACE/]IMAGE[@SNAP]`.
    ///
    /// # Errors
    /// If a part is missing or empty; the error names the accepted form.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let refused = || OpenError::Spec(text.to_owned());
        let (path, snapshot) = match text.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot)),
            None => (text, None),
        };
        let parts = Vec::from_iter(path.split('/'));
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(refused()),
        };
        let words = [Some(pool), namespace, Some(image), snapshot];
        let is_name = |word: &str| !word.is_empty() && !word.contains(['@', '/', '\0']);
        if !words.into_iter().flatten().all(is_name) {
            return Err(refused());
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

/// The help page of [`RBD`].
pub const RBD_PAGE: &str = include_str!("../doc/rbd.md");

/// The entry for programs that offer devices by name.
pub const RBD: RealDevice = RealDevice {
    name: "rbd",
    target: "POOL/IMAGE[@SNAP]",
    summary: "an image of a Ceph cluster, through the librbd of this machine: POOL/IMAGE[@SNAP]",
    parameters: PARAMETERS,
};

/// The reason why an image cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The description names no image.
    #[error("no image; accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...")]
    NoImageGiven,
    /// The name of the image is not understood.
    #[error("'{0}' names no image; accepted: POOL/[NAMESPACE/]IMAGE[@SNAP]")]
    Spec(String),
    /// A word of the description is not a pair, or contains a NUL.
    #[error(
        "'{}' is no KEY=VALUE; accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...",
        .0.escape_debug()
    )]
    Syntax(String),
    /// A parameter is unknown, or has an impossible value.
    #[error("{0}")]
    Parameter(#[from] PairError),
    /// The machine has no librados or librbd.
    #[error(
        "rbd: needs {name}, which this machine does not have: install the package librbd1 (Debian, \
         Ubuntu, Fedora, RHEL, openSUSE) or ceph-libs (Arch); the loader says: {why}"
    )]
    NoLibrary {
        /// The file that the loader searched for.
        name: String,
        /// The message of the loader.
        why: String,
    },
    /// The library lacks this function.
    #[error("librbd has no {0}; accepted: librbd of Ceph 16 (Pacific) or later")]
    OldLibrary(&'static str),
    /// The configuration of the cluster cannot be read.
    #[error("{}", unread(.path.as_deref(), *.errno))]
    Conf {
        /// The file, if one was given.
        path: Option<String>,
        /// The error number of librados.
        errno: i32,
    },
    /// The cluster has no such pool.
    #[error("the cluster has no pool '{0}'")]
    NoPool(String),
    /// The pool has no such image, or the image no such snapshot.
    #[error("there is no image '{0}'")]
    NoImage(String),
    /// A step on the way to the image failed.
    #[error("{what}: {}", io::Error::from_raw_os_error(*.errno))]
    Cluster {
        /// The step, as the beginning of a sentence.
        what: &'static str,
        /// The error number of librados or librbd.
        errno: i32,
    },
    /// The image cannot be a device, for the reason given.
    #[error("{0}")]
    Unfit(String),
}

/// The text of [`OpenError::Conf`].
fn unread(path: Option<&str>, errno: i32) -> String {
    let reason = io::Error::from_raw_os_error(errno);
    match path {
        Some(path) => format!("{path}: {reason}"),
        None => format!(
            "no configuration of a cluster in $CEPH_CONF, /etc/ceph/ceph.conf, ~/.ceph/config or ./ceph.conf \
             ({reason}); accepted: conf=PATH"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read() {
        let text = "p/i@s, conf=/c,id=u,cache=writeback,hw_queues=4,hw_queue_depth=32,readonly=y,\
                    connect_timeout=5,timeout=7";
        let (spec, options) = Options::parse(text).expect("valid");
        assert_eq!(spec.to_string(), "p/i@s");
        let expected = Options {
            conf: Some("/c".into()),
            id: "u".into(),
            cache: Cache::Writeback,
            hw_queues: 4,
            hw_queue_depth: 32,
            readonly: true,
            connect_timeout: Nanos::from_secs(5),
            timeout: Some(Nanos::from_secs(7)),
        };
        assert_eq!(options, expected);
        let (spec, _) = Options::parse(",image=p/n/i").expect("valid");
        assert_eq!(spec.to_string(), "p/n/i");
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let given = PARAMETERS.iter().filter(|p| !p.default.is_empty());
        let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
        let (_, options) = Options::parse(&format!("p/i,{}", words.join(","))).expect("valid");
        assert_eq!(options, Options::default());
    }

    #[test]
    fn refusals_list_what_is_accepted() {
        for (text, part) in [
            ("p/i,depth=1", "no parameter 'depth'; accepted: image, conf, id, cache"),
            ("p/i,hw_queues=65", "a whole number from 1 to 64"),
            ("p/i,cache=unsafe", "accepted: none, writethrough, writearound, writeback"),
            ("p/i,connect_timeout=0", "a whole number from 1 to 86400"),
            ("p/i,id=", "accepted: a user"),
            ("p/i,fast", "'fast' is no KEY=VALUE"),
            ("p", "'p' names no image; accepted: POOL/[NAMESPACE/]IMAGE[@SNAP]"),
            ("", "accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP]"),
        ] {
            let error = Options::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_read_and_written_as_ceph_does() {
        for text in ["rbd/t", "p/n/i", "p/i@s", "p/n/i@s 1"] {
            assert_eq!(ImageSpec::parse(text).expect(text).to_string(), text);
        }
        let spec = ImageSpec::parse("p/n/i@s").expect("all four");
        assert_eq!((spec.namespace.as_deref(), spec.snapshot.as_deref()), (Some("n"), Some("s")));
    }

    #[test]
    fn half_a_name_is_refused_with_the_form() {
        for text in ["", "t", "/t", "p/", "p//i", "p/i@", "p/i@s@t", "a/b/c/d", "p/i@s/t"] {
            let error = ImageSpec::parse(text).expect_err(text).to_string();
            assert!(error.contains("accepted: POOL/[NAMESPACE/]IMAGE[@SNAP]"), "{error}");
        }
    }

    #[test]
    fn the_page_names_every_parameter() {
        assert_eq!(RBD.undocumented(RBD_PAGE), None);
    }
}

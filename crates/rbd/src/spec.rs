//! [`ImageSpec`]: the name of an image, as the tools of Ceph write it.

use crate::OpenError;
use std::fmt;

/// The name of an image: `POOL/[NAMESPACE/]IMAGE[@SNAP]`, Ceph's image-spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageSpec {
    /// Its pool.
    pub pool: String,
    /// The namespace in the pool, if it is not the default one.
    pub namespace: Option<String>,
    /// Its name there.
    pub image: String,
    /// A snapshot of it, which is read-only.
    pub snapshot: Option<String>,
}

impl ImageSpec {
    /// Reads `POOL/[NAMESPACE/]IMAGE[@SNAP]`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

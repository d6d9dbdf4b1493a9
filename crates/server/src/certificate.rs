//! The parts of a certificate that the server itself inspects: its names and its expiry. Rustls decides whether it is
//! trusted.

use crate::identity::Names;
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The maximum number of names in a certificate that are compared with rules. Further names are ignored, so they
/// satisfy no rule.
const MOST_NAMES: usize = 256;
/// The maximum length of a name in bytes, as in rules.
const MOST: usize = 256;

/// The names of a client's certificate; none if the certificate cannot be parsed.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Names {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Names::default() };
    let mut common = read.subject().iter_common_name();
    let common = match (common.next(), common.next()) {
        (Some(only), None) => only.as_str().ok().filter(|name| is_plain(name)).map(str::to_owned),
        _ => None,
    };
    let alternative = match read.subject_alternative_name() {
        Ok(Some(found)) => &found.value.general_names[..],
        Ok(None) | Err(_) => &[],
    };
    let alternative = alternative.iter().filter_map(alternative_name).take(MOST_NAMES);
    Names { common, alternative: alternative.collect() }
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    let text = match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            (*text).to_owned()
        }
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok()?.to_string()
        }
        _ => return None,
    };
    is_plain(&text).then_some(text)
}

/// Returns whether a name may appear in a rule and in a line of the log.
fn is_plain(name: &str) -> bool {
    (1..=MOST).contains(&name.len()) && !name.contains(char::is_control)
}

/// The expiry of a certificate in seconds since 1970, or `None` if it cannot be parsed.
pub(crate) fn end(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, read) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(read.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn read(params: &CertificateParams) -> Names {
        let key = KeyPair::generate().expect("random numbers");
        names(params.self_signed(&key).expect("it can sign").der())
    }

    #[test]
    fn all_kinds_of_names_are_read() {
        let mut params =
            CertificateParams::new(vec!["a.example".to_owned(), "10.0.0.1".to_owned()])
                .expect("names");
        params.distinguished_name.push(DnType::CommonName, "gold.example");
        let uri = "spiffe://a.example/b".try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.push(SanType::IpAddress("2001:db8::1".parse().expect("valid")));
        let names = read(&params);
        assert_eq!(names.common.as_deref(), Some("gold.example"));
        let expected = ["a.example", "10.0.0.1", "spiffe://a.example/b", "2001:db8::1"];
        assert_eq!(names.alternative, expected);
    }

    /// Other programs may end a name at a NUL; rules and lines of the log contain none.
    #[test]
    fn a_name_with_control_characters_is_none() {
        for name in ["gold\0.evil", "gold\n", "", &"x".repeat(MOST + 1)] {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.distinguished_name.push(DnType::CommonName, name);
            assert_eq!(read(&params).common, None, "{name:?}");
        }
        assert_eq!(names(&CertificateDer::from(vec![0x30, 1, 0])), Names::default());
        assert_eq!(end(&CertificateDer::from(vec![])), None);
    }

    #[test]
    fn its_end_is_in_seconds() {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.self_signed(&key).expect("it can sign");
        assert_eq!(end(certificate.der()), Some(1_893_542_400));
    }
}

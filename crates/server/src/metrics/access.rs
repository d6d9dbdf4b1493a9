//! The metrics of clients: connections by identity, refusals by reason, and the expiry of the certificate.

use super::writer::{Kind, Value, Writer};
use crate::log::Reason;
use crate::tls::Tls;
use crate::worker::Shared;

#[derive(Debug, Default)]
pub(super) struct Access {
    refused: Vec<(&'static str, u64)>,
    /// Identities proved by a certificate or by the kernel, with their connections. Identities that are only an address
    /// are omitted: there may be a new one each minute, and each would be a series for ever.
    identities: Vec<(String, usize)>,
    /// The expiry of the server's certificate, in seconds since 1970.
    end: Option<u64>,
}

impl Access {
    pub(super) fn of(shared: &Shared) -> Self {
        let refused = |reason: Reason| (reason.label(), shared.refusals.count(reason));
        let is_proved = |(name, _): &(String, usize)| !name.starts_with("net:");
        Self {
            refused: Reason::ALL.map(refused).to_vec(),
            identities: shared.tenants.all().into_iter().filter(is_proved).collect(),
            end: shared.tls.as_ref().map(Tls::end),
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.family("blkmq_refused_clients", Kind::Counter, "Clients turned away, by reason.");
        for (reason, count) in &self.refused {
            out.sample(&[("reason", reason)], Value::Count(*count));
        }
        out.family(
            "blkmq_identity_connections",
            Kind::Gauge,
            "Connections to exports, by certificate or user.",
        );
        for (identity, count) in &self.identities {
            out.sample(&[("identity", identity)], Value::Count(*count as u64));
        }
        if let Some(end) = self.end {
            out.family(
                "blkmq_tls_certificate_expiry_seconds",
                Kind::Gauge,
                "The end of the server's certificate, in seconds since 1970.",
            );
            out.sample(&[], Value::Count(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::writer::Format;

    #[test]
    fn a_name_in_a_certificate_cannot_break_the_text() {
        let identities = vec![("cn:a\"b\\".to_owned(), 2)];
        let access = Access { refused: vec![("tls", 3)], identities, end: Some(1_893_542_400) };
        let mut out = Writer::new(Format::Prometheus);
        access.write(&mut out);
        let text = out.end();
        for line in [
            "blkmq_refused_clients_total{reason=\"tls\"} 3",
            "blkmq_identity_connections{identity=\"cn:a\\\"b\\\\\"} 2",
            "blkmq_tls_certificate_expiry_seconds 1893542400",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }
}

//! Writes families of samples in the text format of Prometheus 0.0.4 or of OpenMetrics 1.0.
//!
//! The counts are read when they are requested, so there is no registry. A client library would need its collector for
//! that, and writes only one of the two formats.

use std::fmt::Write;

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Prometheus, version 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client's `Accept` header requests. Clients that do not name OpenMetrics get the older format.
    #[must_use]
    pub fn wanted_by(accept: &str) -> Self {
        let names = |range: &str| range.trim_start().starts_with("application/openmetrics-text");
        if accept.split(',').any(names) { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The kind of a family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A value, in the unit of the family.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Count(u64),
    /// Nanoseconds, written as seconds.
    Nanos(u64),
}

/// Names and values of labels.
pub(super) type Labels<'a> = [(&'static str, &'a str)];

/// The text so far.
pub(super) struct Writer {
    out: String,
    format: Format,
    /// The name of the current family, without `_total`.
    family: &'static str,
    kind: Kind,
}

impl Writer {
    pub(super) fn new(format: Format) -> Self {
        Self { out: String::new(), format, family: "", kind: Kind::Gauge }
    }

    /// Begins a family; the name of a counter is given without `_total`.
    pub(super) fn family(&mut self, family: &'static str, kind: Kind, help: &str) {
        (self.family, self.kind) = (family, kind);
        let (total, word) = match kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
            Kind::Histogram => ("", "histogram"),
        };
        // In OpenMetrics only the sample has the suffix.
        let suffix = if self.format == Format::Prometheus { total } else { "" };
        self.line(format_args!("# TYPE {family}{suffix} {word}"));
        let unit = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
        self.line(format_args!("# HELP {family}{suffix} {help}"));
    }

    /// One sample of a counter or gauge.
    pub(super) fn sample(&mut self, labels: &Labels<'_>, value: Value) {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        self.put(suffix, labels, None, value);
    }

    /// Writes a histogram from its cumulative counts, with upper bounds in seconds as text, followed by the total.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        buckets: impl IntoIterator<Item = (String, u64)>,
        (count, sum): (u64, u64),
    ) {
        for (le, below) in buckets {
            self.put("_bucket", labels, Some(&le), Value::Count(below));
        }
        self.put("_bucket", labels, Some("+Inf"), Value::Count(count));
        self.put("_count", labels, None, Value::Count(count));
        self.put("_sum", labels, None, Value::Nanos(sum));
    }

    fn put(&mut self, suffix: &str, labels: &Labels<'_>, le: Option<&str>, value: Value) {
        let Self { out, family, .. } = self;
        out.push_str(family);
        out.push_str(suffix);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut before = '{';
        for (name, value) in all {
            out.push(before);
            out.push_str(name);
            out.push_str("=\"");
            escape(out, value);
            out.push('"');
            before = ',';
        }
        if before == ',' {
            out.push('}');
        }
        out.push(' ');
        // Writing to a text does not fail.
        let _ = match value {
            Value::Count(count) => write!(out, "{count}"),
            Value::Nanos(ns) => write!(out, "{}", seconds(ns)),
        };
        out.push('\n');
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.out, "{text}");
    }

    /// The whole text.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// Formats nanoseconds as seconds, exactly, without trailing zeroes except for one.
pub(super) fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

/// Escapes the value of a label.
fn escape(out: &mut String, text: &str) {
    for one in text.chars() {
        match one {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            one => out.push(one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let mut out = Writer::new(format);
        out.family("a_time_seconds", Kind::Counter, "Times.");
        out.sample(&[("export", "a\"b\\c\nd")], Value::Nanos(1_500_000_000));
        out.family("b", Kind::Gauge, "Things.");
        out.sample(&[], Value::Count(3));
        out.family("c_seconds", Kind::Histogram, "More.");
        out.histogram(&[("op", "read")], [("0.5".to_owned(), 1)], (2, 1_000_000_001));
        out.end()
    }

    #[test]
    fn both_forms_are_those_of_their_texts() {
        let samples = |type_, unit, help| {
            format!(
                "{type_}{unit}{help}a_time_seconds_total{{export=\"a\\\"b\\\\c\\nd\"}} 1.5\n\
                 # TYPE b gauge\n# HELP b Things.\nb 3\n# TYPE c_seconds histogram\n"
            )
        };
        let histogram = "# HELP c_seconds More.\nc_seconds_bucket{op=\"read\",le=\"0.5\"} 1\n\
            c_seconds_bucket{op=\"read\",le=\"+Inf\"} 2\nc_seconds_count{op=\"read\"} 2\n\
            c_seconds_sum{op=\"read\"} 1.000000001\n";
        let old = samples(
            "# TYPE a_time_seconds_total counter\n",
            "",
            "# HELP a_time_seconds_total Times.\n",
        );
        assert_eq!(written(Format::Prometheus), old + histogram);
        let new = samples(
            "# TYPE a_time_seconds counter\n",
            "# UNIT a_time_seconds seconds\n",
            "# HELP a_time_seconds Times.\n",
        );
        let unit = "# UNIT c_seconds seconds\n";
        assert_eq!(written(Format::OpenMetrics), new + unit + histogram + "# EOF\n");
    }

    #[test]
    fn seconds_are_exact() {
        let texts = [0, 1, 1_024, 1_000_000_000, 10_500_000_000].map(seconds);
        assert_eq!(texts, ["0.0", "0.000000001", "0.000001024", "1.0", "10.5"]);
    }

    #[test]
    fn openmetrics_is_given_to_clients_that_ask_for_it() {
        let asks = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(Format::wanted_by(asks), Format::OpenMetrics);
        assert_eq!(Format::wanted_by("text/plain, */*"), Format::Prometheus);
    }
}

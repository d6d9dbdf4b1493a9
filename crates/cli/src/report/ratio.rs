//! Quotients of figures.

/// `part / whole`, and 0 if the whole is 0.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

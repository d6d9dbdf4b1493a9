//! [`Around`]: faults around a device that the registry does not know.

use super::check_nesting;
use crate::DeviceError;
use crate::faults::{self, FaultsParams};

/// Faults around a device that is still a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Around<'a> {
    /// The parameters of the faults.
    pub params: FaultsParams,
    /// Notes on the parameters.
    pub notes: Vec<String>,
    /// The text of the inner device.
    pub inside: &'a str,
}

impl<'a> Around<'a> {
    /// Parses the faults around the device that `text` describes; `None` if it does not begin with faults.
    ///
    /// For devices that the registry does not know; the registry itself parses the inner device.
    ///
    /// # Errors
    /// If the parameters are not those of faults, there is no inner device, or too many faults are nested.
    pub fn parse(text: &'a str) -> Result<Option<Self>, DeviceError> {
        let end = text.find([',', ':']).unwrap_or(text.len());
        if text[..end].trim() != faults::ABOUT.name {
            return Ok(None);
        }
        check_nesting(text)?;
        let given = faults::ABOUT.describe(&text[end..])?;
        let (params, notes) = faults::parameters(&given)?;
        Ok(Some(Self { params, notes, inside: given.argument }))
    }
}

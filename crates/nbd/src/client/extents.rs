//! The extents in a reply to BLOCK_STATUS.

use super::broken::BrokenReply;
use super::pending::Pending;
use crate::extent::{Extent, ExtentCount};
use crate::style::HeaderStyle;
use crate::wire::Fields;

/// The extents of a context, in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    fields: Fields<'a>,
    style: HeaderStyle,
}

impl<'a> Extents<'a> {
    /// The extents in `payload`, the payload of a reply to `pending` with
    /// [`Content::Extents`](super::Content::Extents). The first one begins at the offset of the request, and the last one
    /// may reach beyond its range.
    ///
    /// # Errors
    /// If an extent has no length, if one behind another begins beyond the range of the request, or if there are
    /// several, or one that reaches beyond the range, and the client wanted one.
    pub fn read(
        payload: &'a [u8],
        style: HeaderStyle,
        pending: &Pending,
    ) -> Result<Self, BrokenReply> {
        let extents = Self { fields: Fields::new(payload), style };
        let (mut count, mut covered) = (0, 0u64);
        for extent in extents.clone() {
            if extent.length == 0 {
                return Err(BrokenReply::WrongExtents(pending.cookie));
            }
            if covered >= pending.span.length {
                return Err(BrokenReply::Outside(pending.cookie));
            }
            covered = covered.saturating_add(extent.length);
            count += 1;
        }
        let is_too_much = count > 1 || covered > pending.span.length;
        if pending.count == ExtentCount::One && is_too_much {
            return Err(BrokenReply::WrongExtents(pending.cookie));
        }
        Ok(extents)
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let fields = &mut self.fields;
        if self.style == HeaderStyle::Extended {
            Some(Extent { length: fields.u64()?, flags: fields.u64()? })
        } else {
            Some(Extent { length: fields.u32()?.into(), flags: fields.u32()?.into() })
        }
    }
}

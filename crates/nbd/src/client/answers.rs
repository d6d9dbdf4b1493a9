//! Replies to options as a client reads them: the header, then the data of each kind.

use super::broken::{BrokenHandshake, Refused};
use super::plan::Details;
use crate::block_sizes::BlockSizes;
use crate::code::{InfoType, OptionCode, OptionError, ReplyCode};
use crate::export::{Context, Listed};
use crate::flags::TransmissionFlags;
use crate::magic::{OPTION_REPLY, OPTION_REPLY_LEN};
use crate::wire::{Fields, text};

/// The bit that makes a reply an error, known or not.
const ERROR_BIT: u32 = 1 << 31;

/// A reply to an option, whole.
pub(super) struct Answer<'a> {
    pub(super) option: OptionCode,
    pub(super) kind: Kind,
    pub(super) data: &'a [u8],
    /// Bytes of header and data.
    pub(super) len: usize,
}

/// The kind of a reply, before a look at its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Known(ReplyCode),
    Error(u32),
    Unknown,
}

impl<'a> Answer<'a> {
    /// The reply to `option` at the beginning of `input`; `None` if it has not arrived as a whole.
    pub(super) fn read(
        option: OptionCode,
        input: &'a [u8],
        most: u32,
    ) -> Result<Option<Self>, BrokenHandshake> {
        let mut fields = Fields::new(input);
        let (Some(magic), Some(to), Some(code), Some(length)) =
            (fields.u64(), fields.u32(), fields.u32(), fields.u32())
        else {
            return Ok(None);
        };
        if magic != OPTION_REPLY {
            return Err(BrokenHandshake::Magic(magic));
        }
        if to != option.to_wire() {
            return Err(BrokenHandshake::WrongOption(to));
        }
        if length > most {
            return Err(BrokenHandshake::TooLong(length));
        }
        let kind = match ReplyCode::from_wire(code) {
            Some(known) => Kind::Known(known),
            None if code & ERROR_BIT != 0 => Kind::Error(code),
            None => Kind::Unknown,
        };
        let len = OPTION_REPLY_LEN + length as usize;
        Ok(fields.bytes(length).map(|data| Self { option, kind, data, len }))
    }

    /// The error of this number with the text of the data.
    pub(super) fn refused(&self, number: u32) -> Refused {
        let error = OptionError::from_wire(number).ok_or(number);
        let text = String::from_utf8_lossy(self.data).into_owned();
        Refused { option: self.option, error, text }
    }

    /// The export of a reply to LIST.
    pub(super) fn listed(&self) -> Option<Listed> {
        let mut fields = Fields::new(self.data);
        let name = text(fields.counted()?)?.to_owned();
        let description = text(fields.rest())?.to_owned();
        Some(Listed { name, description })
    }

    /// The context of a reply to SET_META_CONTEXT.
    pub(super) fn context(&self) -> Option<Context> {
        let mut fields = Fields::new(self.data);
        let id = fields.u32()?;
        Some(Context { id, name: text(fields.rest())?.to_owned() })
    }

    /// Adds the fact of a reply to INFO or GO. `true` if it was the size; a fact of an unknown type is ignored.
    pub(super) fn learn(&self, details: &mut Details) -> Option<bool> {
        let mut fields = Fields::new(self.data);
        let number = fields.u16()?;
        match InfoType::from_wire(number) {
            Some(InfoType::Export) => {
                details.size = fields.u64()?;
                details.flags = TransmissionFlags::from_wire(fields.u16()?);
                fields.end()?;
                return Some(true);
            }
            Some(InfoType::Name) => details.name = Some(text(fields.rest())?.to_owned()),
            Some(InfoType::Description) => {
                details.description = Some(text(fields.rest())?.to_owned());
            }
            Some(InfoType::BlockSize) => {
                let (min, preferred, most) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.end()?;
                details.blocks = Some(blocks([min, preferred, most])?);
            }
            None => {}
        }
        Some(false)
    }
}

/// Block sizes that a server announces: minimum, preferred, longest payload.
fn blocks([min, preferred, most]: [u32; 3]) -> Option<BlockSizes> {
    let widest = BlockSizes::DEFAULT.with_max_payload(u32::MAX).ok()?;
    let sizes = widest.with_min(min).ok()?.with_preferred(preferred).ok()?;
    sizes.with_max_payload(most).ok()
}

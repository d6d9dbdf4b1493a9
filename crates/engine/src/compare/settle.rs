//! Which choices of modes go with an access.

use super::modes::{Access, EffectiveModes, KickMode, Modes};
use crate::reconfiguration::config_error::ConfigError;

impl Modes {
    /// The modes that result with `access`.
    ///
    /// # Errors
    /// If a choice does not go with `access`.
    pub fn settle(&self, access: Access) -> Result<EffectiveModes, ConfigError> {
        let refuse = |option| ConfigError::Mode { access, option };
        Ok(EffectiveModes {
            access,
            dispatch: pick(self.dispatch, access.dispatch()).ok_or(refuse("dispatch"))?,
            insert: pick(self.insert, access.insert()).ok_or(refuse("insert"))?,
            merge: pick(self.merge, access.merge()).ok_or(refuse("merge"))?,
            kick: self.kick.unwrap_or(KickMode::Coalesced),
        })
    }
}

/// The chosen mode if it is among `goes`; the first of `goes` if no mode was chosen.
fn pick<M: Copy + PartialEq>(chosen: Option<M>, goes: &[M]) -> Option<M> {
    match chosen {
        None => goes.first().copied(),
        Some(mode) => goes.contains(&mode).then_some(mode),
    }
}

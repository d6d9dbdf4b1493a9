//! JSON objects whose keys are data.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A JSON object; the entries keep their order.
pub(super) struct Map<K, V>(pub(super) Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<K, V> Map<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

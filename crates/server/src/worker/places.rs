//! [`Places`]: the connections of a worker, by place, and those that it has still to look at.

use super::connection::Connection;
use crate::flight::Key;

/// A place for a connection.
#[derive(Default)]
pub(super) struct Place {
    generation: u32,
    pub(super) connection: Option<Box<Connection>>,
}

#[derive(Default)]
pub(super) struct Places {
    places: Vec<Place>,
    /// Connections for `finish`: they have output, may continue, or are over.
    pub(super) listed: Vec<Key>,
}

impl Places {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }

    /// The connections that are there.
    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.places.iter_mut().filter_map(|place| place.connection.as_deref_mut())
    }

    /// The key of the connection in `place`.
    pub(super) fn key(&self, place: u32) -> Key {
        Key { place, generation: self.places[place as usize].generation }
    }

    /// The key of the next connection.
    pub(super) fn free(&mut self) -> Key {
        let free = self.places.iter().position(|place| place.connection.is_none());
        let place = free.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.key(place as u32)
    }

    /// The connection of `key`, unless it is gone.
    pub(super) fn get(&mut self, key: Key) -> Option<&mut Connection> {
        let place = self.places.get_mut(key.place as usize)?;
        (place.generation == key.generation).then_some(place.connection.as_deref_mut()?)
    }

    /// Has the connection looked at in this turn.
    pub(super) fn list(&mut self, key: Key) {
        if let Some(connection) = self.get(key)
            && !connection.is_listed
        {
            connection.is_listed = true;
            self.listed.push(key);
        }
    }

    /// Takes the connection out, so that the worker can be used beside it.
    pub(super) fn take_out(&mut self, key: Key) -> Option<Box<Connection>> {
        let place = &mut self.places[key.place as usize];
        if place.generation == key.generation { place.connection.take() } else { None }
    }

    pub(super) fn put_back(&mut self, connection: Box<Connection>) {
        let place = connection.key.place as usize;
        self.places[place].connection = Some(connection);
    }

    /// The connection that was taken out does not come back.
    pub(super) fn retire(&mut self, key: Key) {
        self.places[key.place as usize].generation += 1;
    }
}

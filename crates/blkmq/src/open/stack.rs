//! Devices made of others, which the feature `layers` adds.

use super::error::Cause;
use super::opened::Opened;
use super::{Device, DeviceState, OpenError, Opener, Zeroing, open_on};
use crate::Layers;
use blkmq_buf::BufferPool;
use blkmq_core::Finding;
use blkmq_layer::{Kind, KindError, Stack, StackError};

pub(super) const OPENER: Opener = Opener {
    names: || Kind::ALL.map(|kind| kind.name).into(),
    open: |_, wrapped, machine| {
        let Some(described) = Kind::parse(wrapped.inside) else { return Ok(None) };
        let (kind, legs) = described.map_err(OpenError::Layer)?;
        let legs = legs.into_iter().enumerate().filter(|(leg, _)| kind.has(*leg));
        let legs = legs.map(|(_, leg)| open_on(leg, machine)).collect::<Result<_, _>>()?;
        let stack = Stack::new(kind, legs).map_err(OpenError::Stack)?;
        Ok(Some(Device::Stack(wrapped.around(stack))))
    },
};

impl Opened for Layers<Stack<Device>> {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        let legs = self.device.legs();
        let any = |one: fn(&DeviceState) -> bool| legs.iter().any(|leg| one(&leg.state()));
        DeviceState {
            bytes: self.device.bytes_left(|leg| leg.state().bytes),
            is_read_only: any(|leg| leg.is_read_only),
            is_removed: any(|leg| leg.is_removed),
            ..as_opened
        }
    }

    fn zeroing(&self) -> Zeroing {
        let legs = self.device.legs();
        let all = |one: fn(&Zeroing) -> bool| legs.iter().all(|leg| one(&leg.zeroing()));
        Zeroing { is_fast: all(|leg| leg.is_fast), keeps_room: all(|leg| leg.keeps_room) }
    }

    fn moves_data(&self) -> bool {
        self.device.legs().iter().all(Device::moves_data)
    }

    fn take_findings(&self) -> Vec<Finding> {
        let mut found = self.device.take_findings();
        for (number, leg) in self.device.legs().iter().enumerate() {
            found.extend(leg.take_findings().into_iter().map(|it| it.of_leg(number)));
        }
        found
    }

    fn register(&mut self, pool: &BufferPool) {
        self.device.legs_mut().iter_mut().for_each(|leg| leg.register(pool));
    }
}

impl Cause for KindError {}
impl Cause for StackError {}

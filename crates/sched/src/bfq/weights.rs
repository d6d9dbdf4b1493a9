//! The number of queues of each weight, which shows whether their claims differ.

/// The number of queues of each weight, among those that are busy or have requests in the device and are not raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights([u32; 8]);

impl Weights {
    pub(crate) const NEW: Self = Self([0; 8]);

    /// The index of a weight; weights are 10, 20 up to 80.
    pub(crate) fn index(weight: u32) -> u8 {
        (weight / 10 - 1).min(7) as u8
    }

    pub(crate) fn add(&mut self, index: u8) {
        self.0[usize::from(index)] += 1;
    }

    pub(crate) fn remove(&mut self, index: u8) {
        self.0[usize::from(index)] -= 1;
    }

    pub(crate) fn differ(&self) -> bool {
        self.0.iter().filter(|n| **n > 0).count() > 1
    }

    pub(crate) fn lowest(&self) -> Option<u8> {
        self.0.iter().position(|n| *n > 0).map(|at| at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_differ_when_two_are_there() {
        let mut weights = Weights::NEW;
        weights.add(Weights::index(40));
        weights.add(Weights::index(40));
        assert!(!weights.differ());
        weights.add(Weights::index(10));
        assert!(weights.differ());
        assert_eq!(weights.lowest(), Some(0));
        weights.remove(0);
        assert!(!weights.differ());
    }
}

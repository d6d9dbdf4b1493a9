//! blkmq

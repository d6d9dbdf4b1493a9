//! Feature bits, by their names in the virtio specification and the vhost-user protocol.

/// Features of the device and its rings, negotiated with the guest's driver.
pub mod virtio {
    /// The configuration has the maximum number of data segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// The configuration has the logical block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The disk supports flushes.
    pub const FLUSH: u64 = 1 << 9;
    /// The configuration has the physical block size and the optimal sizes of I/Os.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The guest may switch between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// The disk has several queues.
    pub const MQ: u64 = 1 << 12;
    /// The disk supports discards.
    pub const DISCARD: u64 = 1 << 13;
    /// The disk supports writes of zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side announces the index at which it wants to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Protocol features can be negotiated. A bit of vhost-user, which drivers do not see.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Version 1 of virtio: little-endian, any division of requests into descriptors.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol, negotiated with the front end.
pub mod protocol {
    /// The back end has several queues.
    pub const MQ: u64 = 1 << 0;
    /// A message can request an acknowledgement, which says whether it succeeded.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back end may send messages, too.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back end provides the configuration of the device.
    pub const CONFIG: u64 = 1 << 9;
    /// The record of requests in flight is in shared memory that the front end keeps.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

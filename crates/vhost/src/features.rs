//! The bits of features, by the names of the virtio specification and of the vhost-user protocol.

/// Features of the device and its rings, agreed on with the driver of the guest.
pub mod virtio {
    /// The most data segments of a request are in the configuration.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk takes no writes.
    pub const RO: u64 = 1 << 5;
    /// The logical block size is in the configuration.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// There is a flush.
    pub const FLUSH: u64 = 1 << 9;
    /// The physical block size and the best sizes of I/Os are in the configuration.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The guest may switch between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There are several queues.
    pub const MQ: u64 = 1 << 12;
    /// There is a discard.
    pub const DISCARD: u64 = 1 << 13;
    /// There is an operation that writes zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side says at which index it wants to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// There are features of the protocol. A bit of vhost-user, which drivers do not see.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Version 1 of virtio: little-endian, any division of requests into descriptors.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol, agreed on with the front end.
pub mod protocol {
    /// There are several queues.
    pub const MQ: u64 = 1 << 0;
    /// A message can ask for an answer that says whether it succeeded.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back end sends messages, too.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration of the device comes from the back end.
    pub const CONFIG: u64 = 1 << 9;
    /// The record of requests in flight is in memory that the front end keeps.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Regions of memory come and go one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

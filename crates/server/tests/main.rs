//! A server and its clients in one process.

mod allow;
mod bounds;
mod client;
mod clients;
mod control;
mod durability;
mod guest;
mod hostile;
mod http;
mod isolation;
mod life;
mod live;
mod recording;
mod requests;
mod rig;
mod talk;
mod tls;
mod truth;
mod until;
mod vhost;

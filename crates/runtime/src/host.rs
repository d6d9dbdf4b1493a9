//! The bells of a queue: one for each submitter and one for each pump, and the engine's view of them.

use crate::Clock;
use crate::bell::Bell;
#[cfg(target_os = "linux")]
use crate::bell::DeviceFds;
use crate::port::available_cpus;
use crate::post::Post;
use blkmq_core::{HwQueue, SubmitterId};
use blkmq_engine::{Config, Host, PumpMode};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The bells of one queue's threads, and the devices that some of them watch while they sleep.
pub(crate) struct Threads {
    submitters: Box<[Bell]>,
    pumps: Box<[Bell]>,
    pump_mode: PumpMode,
    /// Which of the clients that sleep watch the devices.
    pub(crate) post: Post,
    #[cfg(target_os = "linux")]
    pub(crate) devices: DeviceFds,
}

impl Threads {
    /// For the queue that `config` describes; duplicates the descriptors of its device queues.
    pub(crate) fn new<P>(config: &Config<P>) -> io::Result<Arc<Self>> {
        let (submitters, hw_queues) = (config.submitters, config.device.hw_queues);
        let post = Post::new(submitters, available_cpus());
        #[cfg(target_os = "linux")]
        {
            let devices = DeviceFds::of(&config.queues)?;
            if config.pump == PumpMode::Owner {
                let berths = config.queues.iter().filter_map(|queue| queue.berth());
                let submitters = berths.map(|it| it.map(Bell::Berth)).collect::<io::Result<_>>()?;
                let pumps = Box::default();
                return Ok(Arc::new(Self {
                    submitters,
                    pumps,
                    pump_mode: config.pump,
                    post,
                    devices,
                }));
            }
            let new: fn() -> io::Result<Bell> =
                if devices.is_empty() { || Ok(Bell::thread()) } else { Bell::event };
            let bells = |n: u16| (0..n).map(|_| new()).collect::<io::Result<_>>();
            let (submitters, pumps) = (bells(submitters)?, bells(hw_queues)?);
            Ok(Arc::new(Self { submitters, pumps, pump_mode: config.pump, post, devices }))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let bells = |n: u16| (0..n).map(|_| Bell::thread()).collect();
            let (submitters, pumps) = (bells(submitters), bells(hw_queues));
            Ok(Arc::new(Self { submitters, pumps, pump_mode: config.pump, post }))
        }
    }

    /// The number of threads that only pump hardware queues.
    pub(crate) fn pump_threads(&self) -> u16 {
        match self.pump_mode {
            PumpMode::Inline | PumpMode::Owner => 0,
            PumpMode::Thread => self.pumps.len() as u16,
        }
    }

    /// Do threads sleep on the devices themselves?
    pub(crate) fn watch_devices(&self) -> bool {
        #[cfg(target_os = "linux")]
        return !self.devices.is_empty();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// The hardware queues that a submitter watches: with pump threads none. Otherwise all, because the other clients
    /// of its elevator may sleep while its own requests are at the device; and the number of hardware queues that one
    /// elevator serves may change while it sleeps.
    pub(crate) fn watched_by_submitters(&self) -> Range<u16> {
        match self.pump_mode {
            PumpMode::Thread | PumpMode::Owner => 0..0,
            PumpMode::Inline => 0..self.pumps.len() as u16,
        }
    }

    pub(crate) fn submitter(&self, id: SubmitterId) -> &Bell {
        &self.submitters[usize::from(id.0)]
    }

    pub(crate) fn pump(&self, hw: HwQueue) -> &Bell {
        &self.pumps[usize::from(hw.0)]
    }

    /// Wakes the thread that waits as this submitter, or makes it return at once when it parks next.
    pub(crate) fn wake_submitter(&self, id: SubmitterId) {
        self.submitters[usize::from(id.0)].ring();
    }

    pub(crate) fn wake_all_pumps(&self) {
        self.pumps.iter().for_each(Bell::ring);
    }
}

/// The engine's view of [`Threads`], with the clock by which the engine measures waits for locks.
pub(crate) struct ThreadHost {
    pub(crate) threads: Arc<Threads>,
    pub(crate) clock: Clock,
}

impl Host for ThreadHost {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.threads.wake_submitter(submitter);
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.threads.pump(hw).ring();
    }

    fn ticks(&self) -> u64 {
        self.clock.now().as_nanos()
    }
}

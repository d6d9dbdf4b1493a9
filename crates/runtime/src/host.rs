//! The bells of a queue: one for each submitter and one for each pump, and the engine's view of them. The bell of a
//! submitter is made when a client first has its number.

use crate::Clock;
use crate::bell::Bell;
#[cfg(target_os = "linux")]
use crate::bell::DeviceFds;
use crate::port::available_cpus;
use crate::post::Post;
use blkmq_core::{HwQueue, Payload, SubmitterId};
use blkmq_engine::{Another, Config, DeviceQueue, Host, PumpMode, Submitter};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The bells of one queue's threads, and the devices that some of them watch while they sleep.
pub(crate) struct Threads {
    submitters: Box<[OnceLock<Arc<Bell>>]>,
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
        #[cfg(target_os = "linux")]
        let devices = DeviceFds::of(&config.queues)?;
        #[cfg(target_os = "linux")]
        let new = if devices.is_empty() { || Ok(Bell::thread()) } else { Bell::event };
        #[cfg(not(target_os = "linux"))]
        let new = || Ok(Bell::thread());
        let pumps = match config.pump {
            PumpMode::Inline | PumpMode::Thread => config.device.hw_queues,
            PumpMode::Owner => 0,
        };
        let threads = Self {
            submitters: (0..config.submitters).map(|_| OnceLock::new()).collect(),
            pumps: (0..pumps).map(|_| new()).collect::<io::Result<_>>()?,
            pump_mode: config.pump,
            post: Post::new(config.submitters, available_cpus()),
            #[cfg(target_os = "linux")]
            devices,
        };
        #[cfg(target_os = "linux")]
        if config.pump == PumpMode::Owner {
            for (id, queue) in (0..).map(SubmitterId).zip(&config.queues) {
                threads.set_berth(id, &**queue)?;
            }
        }
        Ok(Arc::new(threads))
    }

    /// Makes the resources on which the submitter sleeps, unless they are there: the bell, and with it the lane to the
    /// device that `another` makes, if submitters have lanes.
    pub(crate) fn prepare<P: Payload>(
        &self,
        submitter: &mut Submitter<P>,
        another: Option<&Another<P>>,
    ) -> io::Result<()> {
        let place = &self.submitters[usize::from(submitter.id().0)];
        if place.get().is_some() {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if self.pump_mode == PumpMode::Owner {
            let another = another.expect("a queue with lanes has been given all, or can make them");
            let lane = another()?;
            self.set_berth(submitter.id(), &*lane)?;
            submitter.install_lane(lane);
            return Ok(());
        }
        let _ = another;
        #[cfg(target_os = "linux")]
        let bell = if self.devices.is_empty() { Bell::thread() } else { Bell::event()? };
        #[cfg(not(target_os = "linux"))]
        let bell = Bell::thread();
        place.get_or_init(|| Arc::new(bell));
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn set_berth<P>(&self, id: SubmitterId, lane: &dyn DeviceQueue<P>) -> io::Result<()> {
        let berth = lane.berth().expect("a device with lanes has places to sleep on")?;
        self.submitters[usize::from(id.0)].get_or_init(|| Arc::new(Bell::Berth(berth)));
        Ok(())
    }

    /// The number of threads that only pump hardware queues.
    pub(crate) fn pump_threads(&self) -> u16 {
        match self.pump_mode {
            PumpMode::Inline | PumpMode::Owner => 0,
            PumpMode::Thread => self.pumps.len() as u16,
        }
    }

    /// Returns whether threads sleep on the devices themselves.
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

    /// The bell of a submitter that has been [prepared](Self::prepare).
    pub(crate) fn submitter(&self, id: SubmitterId) -> &Arc<Bell> {
        self.submitters[usize::from(id.0)].get().expect("a client has a bell")
    }

    pub(crate) fn pump(&self, hw: HwQueue) -> &Bell {
        &self.pumps[usize::from(hw.0)]
    }

    /// Wakes the thread that waits as this submitter, or makes it return immediately when it parks next.
    pub(crate) fn wake_submitter(&self, id: SubmitterId) {
        // No thread waits as one that has no bell.
        if let Some(bell) = self.submitters[usize::from(id.0)].get() {
            bell.ring();
        }
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

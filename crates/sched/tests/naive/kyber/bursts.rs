//! Bursts, written from the page of kyber: the verdict of a review about reads, and its effect on the period and on
//! tokens.

use super::{Adaptive, fine_end, fine_p90};

/// With `adaptive=2`.
#[derive(Clone, Copy, Default)]
pub(super) struct Bursts {
    pub(super) period: u64,
    content: u32,
    complaints_at_longest: u32,
    let_pass: u32,
    /// More was let through since the last complaint.
    more: bool,
    too_large: bool,
}

impl Bursts {
    /// Applies a verdict; returns the factor by which bursts grow, in eighths.
    fn judge(&mut self, verdict: &str, base: u64) -> u64 {
        let [shortest, longest] = [16, 4096].map(|times| (base * times).min(250_000_000));
        let hopeless = self.complaints_at_longest >= 8;
        if verdict == "met" || verdict == "content" {
            (self.complaints_at_longest, self.let_pass) = (0, 0);
        }
        if verdict == "content" || verdict == "tail" && hopeless {
            self.content += 1;
            self.more = true;
            if self.content.is_multiple_of(8) {
                self.period -= self.period / 8;
                if self.period < shortest {
                    self.period = 0;
                }
                return if self.too_large { 10 } else { 16 };
            }
            return if self.too_large { 8 } else { 16 };
        }
        if verdict == "met" {
            self.content = 0;
        }
        if verdict == "open" || verdict == "met" {
            return 8;
        }
        self.content = 0;
        if verdict == "tail" && self.let_pass > 0 {
            self.let_pass -= 1;
            return 8;
        }
        self.too_large = self.period > 0 && (self.too_large || self.more);
        self.more = false;
        let at_longest = verdict == "tail" && self.period >= longest;
        if verdict == "tail" {
            self.let_pass = 3;
        }
        self.complaints_at_longest += u32::from(at_longest);
        self.period *= if verdict == "far" { 4 } else { 2 };
        self.period = self.period.max(shortest).min(longest);
        if at_longest { 7 } else { 8 }
    }
}

impl Adaptive {
    /// Applies a review: reads that came back since they were last judged, and the judgement of READ.
    pub(super) fn judge_bursts(
        &mut self,
        target: u64,
        reads: &[usize],
        device: Option<usize>,
        total: Option<usize>,
        tokens: &mut [u32],
    ) {
        let (Some(mut bursts), Some(base)) = (self.bursts, self.base[0]) else { return };
        let verdict = self.verdict(target, reads, device, total, tokens);
        let eighths = bursts.judge(verdict, base);
        self.bursts = Some(bursts);
        for domain in [1, 2].into_iter().filter(|_| bursts.period > 0) {
            let before = u64::from(tokens[domain]);
            let larger = (before * eighths / 8).max(before + 1).min(1024);
            if eighths > 8 && self.refused[domain] {
                tokens[domain] = larger as u32;
                self.refused[domain] = larger <= before;
            } else if eighths < 8 {
                tokens[domain] = (before * eighths / 8).max(1) as u32;
            }
        }
    }

    /// The verdict of a review about reads.
    fn verdict(
        &self,
        target: u64,
        reads: &[usize],
        device: Option<usize>,
        total: Option<usize>,
        tokens: &[u32],
    ) -> &'static str {
        let (Some(p90), Some(device)) = (fine_p90(reads), device) else { return "open" };
        let late = reads.iter().filter(|bucket| fine_end(**bucket) * 256 - 1 > target).count();
        let in_bursts = self.bursts.is_some_and(|bursts| bursts.period > 0);
        let busy = self.busy.iter().sum::<u64>() / 4;
        let culprits = [1, 2].into_iter().filter(|d| self.busy[*d] >= busy);
        let most = culprits.map(|d| u64::from(tokens[d])).max().unwrap_or(1);
        if !in_bursts && self.busy[1] + self.busy[2] < busy {
            return "open";
        }
        match total {
            _ if device >= 4 && p90 / target >= most.max(4) => "far",
            _ if device >= 4 && (in_bursts || most == 1) => "missed",
            _ if device >= 4 => "open",
            Some(7) if !self.refused[0] => "tail",
            Some(0..=3) if 200 * late <= reads.len() => "content",
            Some(0..=3) => "met",
            _ => "open",
        }
    }
}

//! Bytes of an object that belong to no field and must be zero.

/// A run of padding that repeats inside a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Start of the first run, from the start of the period.
    pub first: u64,
    /// Bytes from run to run.
    pub stride: u64,
    /// Number of runs.
    pub count: u64,
    /// Bytes of a run; not 0.
    pub bytes: u64,
}

/// The padding of an object: gaps that repeat with a period.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Padding {
    /// Bytes after which the gaps repeat; 0 if there are none.
    pub period: u64,
    /// The gaps of one period.
    pub gaps: Vec<Gap>,
}

impl Padding {
    /// No padding at all.
    pub(crate) const NONE: Self = Self { period: 0, gaps: Vec::new() };

    /// Sum of all padding bytes in an object of `len_bytes` bytes.
    pub fn total_bytes(&self, len_bytes: u64) -> u64 {
        if self.period == 0 {
            return 0;
        }
        let per_period: u64 = self.gaps.iter().map(|gap| gap.count * gap.bytes).sum();
        len_bytes / self.period * per_period
    }

    /// First padding byte that is not zero in `chunk`, which starts `offset` bytes into the object;
    /// the answer counts from the start of the object.
    ///
    /// Any chunking finds the same bytes, so that a verifier can stream.
    pub fn first_nonzero(&self, offset: u64, chunk: &[u8]) -> Option<u64> {
        if self.period == 0 || chunk.is_empty() {
            return None;
        }
        let end = offset + chunk.len() as u64;
        let mut start_of_period = offset / self.period * self.period;
        let mut first = None;
        while start_of_period < end && first.is_none() {
            for gap in &self.gaps {
                let found = nonzero_in_gap(gap, start_of_period, offset, chunk);
                first = match (first, found) {
                    (Some(a), Some(b)) => Some(u64::min(a, b)),
                    (a, b) => a.or(b),
                };
            }
            start_of_period += self.period;
        }
        first
    }
}

/// First non-zero byte of one gap's runs in one period, as far as `chunk` covers them.
fn nonzero_in_gap(gap: &Gap, start_of_period: u64, offset: u64, chunk: &[u8]) -> Option<u64> {
    let end = offset + chunk.len() as u64;
    let first_run = start_of_period + gap.first;
    // Runs that end before the chunk are skipped at once: a chunk may start deep inside a row.
    let skipped = match offset.checked_sub(first_run) {
        Some(distance) if gap.stride > 0 => distance / gap.stride,
        _ => 0,
    };
    for run in skipped..gap.count {
        let at = first_run + run * gap.stride;
        if at >= end {
            break;
        }
        let from = at.max(offset);
        let to = (at + gap.bytes).min(end);
        if from >= to {
            continue;
        }
        let bytes = &chunk[(from - offset) as usize..(to - offset) as usize];
        if let Some(i) = bytes.iter().position(|&byte| byte != 0) {
            return Some(from + i as u64);
        }
    }
    None
}

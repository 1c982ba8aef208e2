//! How much memory there is, and how large a context that allows.

use std::fs;

/// Left to the system and to what is not counted here.
const RESERVE_BYTES: u64 = 128 << 20;

/// Bytes that this process can still get without swapping: the smaller of what the system has and
/// what the control group allows. Nothing if the system does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok();
    let system = meminfo.as_deref().and_then(mem_available);
    let group = CGROUPS.iter().find_map(|group| group.room());
    match (system, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Where a control group's memory files lie: limit, use, and the use's composition with the name
/// of its page-cache line.
struct Cgroup {
    limit: &'static str,
    used: &'static str,
    stat: &'static str,
    cache_line: &'static str,
}

const CGROUPS: [Cgroup; 2] = [
    Cgroup {
        limit: "/sys/fs/cgroup/memory.max",
        used: "/sys/fs/cgroup/memory.current",
        stat: "/sys/fs/cgroup/memory.stat",
        cache_line: "file ",
    },
    Cgroup {
        limit: "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        used: "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        stat: "/sys/fs/cgroup/memory/memory.stat",
        cache_line: "total_cache ",
    },
];

impl Cgroup {
    /// What the group may still use. Page cache counts as used but gives way.
    fn room(&self) -> Option<u64> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let number = |path: &str| -> Option<u64> { read(path)?.trim().parse().ok() };
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read(self.stat).unwrap_or_default();
        let cache =
            stat.lines().find_map(|line| line.strip_prefix(self.cache_line)?.trim().parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }
}

/// What a run needs, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Weights, read in place.
    pub(crate) weights: u64,
    /// Keys and values of one position.
    pub(crate) kv_per_token: u64,
    /// Activations and logits.
    pub(crate) compute: u64,
}

impl Need {
    /// All of it with a context of `n_ctx`.
    pub(crate) fn total(self, n_ctx: usize) -> u64 {
        let kv = self.kv_per_token.saturating_mul(n_ctx as u64);
        self.weights.saturating_add(kv).saturating_add(self.compute)
    }

    /// The largest context up to `n_ctx_train` that fits in `available`, at least 1.
    pub(crate) fn largest_ctx(self, n_ctx_train: usize, available: Option<u64>) -> usize {
        let Some(available) = available else { return n_ctx_train };
        // Mapped weights can be read from disk again and again; what the cache needs cannot.
        let fixed = self.weights.saturating_add(self.compute).saturating_add(RESERVE_BYTES);
        let room = available.saturating_sub(fixed).max(available / 8);
        let fits = room / self.kv_per_token.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, n_ctx_train.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need { weights: 1 << 30, kv_per_token: 1 << 16, compute: 0 };

    #[test]
    fn the_context_shrinks_to_what_fits() {
        assert_eq!(NEED.largest_ctx(8192, None), 8192);
        assert_eq!(NEED.largest_ctx(8192, Some(64 << 30)), 8192);
        assert_eq!(NEED.largest_ctx(1 << 20, Some(2 << 30)), (896 << 20) >> 16);
        assert_eq!(NEED.largest_ctx(8192, Some(0)), 1);
    }

    #[test]
    fn meminfo_is_read_in_kib() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn totals_do_not_overflow() {
        let need = Need { kv_per_token: u64::MAX, ..NEED };
        assert_eq!(need.total(usize::MAX), u64::MAX);
    }
}

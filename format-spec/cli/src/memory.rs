//! How much memory this process can have.

use std::fs;

/// Bytes that this process can still get without swapping: the smaller of what the system has and
/// what the control group allows. Nothing if neither tells.
pub fn available_memory() -> Option<u64> {
    available(|path| fs::read_to_string(path).ok())
}

/// The same, from files that `read` gives.
fn available(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let system = read("/proc/meminfo").as_deref().and_then(parse_available);
    let group = CGROUPS.iter().find_map(|group| group.room(&read));
    system.into_iter().chain(group).min()
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
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
    fn room(&self, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
        let number = |path: &str| -> Option<u64> { read(path)?.trim().parse().ok() };
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read(self.stat).unwrap_or_default();
        let cache =
            stat.lines().find_map(|line| line.strip_prefix(self.cache_line)?.trim().parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let text = "MemTotal:       24683956 kB\nMemAvailable:   22795776 kB\nBuffers: 1 kB\n";
        assert_eq!(parse_available(text), Some(22_795_776 * 1024));
        assert_eq!(parse_available("MemTotal: 1 kB"), None);
        assert_eq!(parse_available("MemAvailable: x kB"), None);
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_control_group_may_allow_less_than_the_system_has() {
        let system = ("/proc/meminfo", "MemAvailable: 2048 kB\n");
        let v2 = |limit| {
            [
                ("/sys/fs/cgroup/memory.max", limit),
                ("/sys/fs/cgroup/memory.current", "700000\n"),
                ("/sys/fs/cgroup/memory.stat", "anon 400000\nfile 300000\nfile_mapped 1\n"),
            ]
        };
        let with = |files: &[(&str, &str)]| {
            available(|path| {
                files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
            })
        };
        let [limit, used, stat] = v2("1000000\n");
        assert_eq!(with(&[system, limit, used, stat]), Some(600_000));
        assert_eq!(with(&[system, limit, used]), Some(300_000), "no cache known");
        assert_eq!(with(&[limit, used, stat]), Some(600_000));
        let [limit, ..] = v2("500000\n");
        assert_eq!(with(&[system, limit, used]), Some(0));
        for no_limit in ["max\n", "9223372036854771712\n"] {
            let [limit, ..] = v2(no_limit);
            assert_eq!(with(&[system, limit, used, stat]), Some(2 << 20));
        }
        let v1 = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_cache 100000\n"),
        ];
        let [limit, used, stat] = v1;
        assert_eq!(with(&[system, limit, used, stat]), Some(400_000));
        assert_eq!(with(&[]), None);
    }
}

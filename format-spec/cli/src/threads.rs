//! How many threads this process can really use.

use std::collections::BTreeSet;
use std::fs;

/// Threads to work with: `requested`, or the smallest of CPU affinity, cgroup CPU quota and
/// physical cores.
///
/// More threads than the quota allows are throttled together, and two threads on one core share
/// its vector units; both cost more than they bring.
pub fn threads(requested: Option<usize>) -> usize {
    match requested {
        Some(n) => n.max(1),
        None => {
            // The standard library looks at the affinity mask and the cgroup quotas.
            let usable = std::thread::available_parallelism().map_or(1, usize::from);
            usable.min(physical_cores().unwrap_or(usable)).max(1)
        }
    }
}

/// Physical cores behind the CPUs of this process's affinity mask, if the system tells.
fn physical_cores() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for cpu in parse_cpu_list(allowed.trim())? {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        let siblings = fs::read_to_string(format!("{topology}/core_cpus_list"))
            .or_else(|_| fs::read_to_string(format!("{topology}/thread_siblings_list")))
            .ok()?;
        cores.insert(siblings.trim().to_owned());
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Reads the kernel's CPU list format, e.g. `0-3,8,10-11`.
fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    /// More CPUs than any kernel is built for: a list beyond it is not believed.
    const MAX_CPUS: usize = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CPUS || first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list("5"), Some(vec![5]));
        for bad in ["", "a", "3-1", "0-99999999", "1,,2"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_wins_and_the_default_is_within_the_affinity() {
        assert_eq!(threads(Some(7)), 7);
        let default = threads(None);
        assert!(default >= 1);
        assert!(default <= std::thread::available_parallelism().map_or(1, usize::from));
    }
}

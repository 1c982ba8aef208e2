//! How much memory this process can have.

use std::fs;

/// Bytes that can be allocated without swapping, as far as the system tells.
pub fn available_memory() -> Option<u64> {
    parse_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
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
}

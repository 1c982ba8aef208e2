//! What is known of the machine and the moment.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The processor's name; empty if the system does not tell.
pub(crate) fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map(|rest| rest.trim_start_matches([' ', '\t', ':']).trim().to_owned()).unwrap_or_default()
}

/// Bytes of all last-level caches; 0 if the system does not tell.
pub(crate) fn cache_bytes() -> u64 {
    let mut caches = BTreeMap::new();
    for cpu in 0.. {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
        if !fs::exists(&folder).unwrap_or(false) {
            break;
        }
        let read = |index: u32, file: &str| {
            fs::read_to_string(format!("{folder}/index{index}/{file}")).ok()
        };
        let last = (0..8).take_while(|&index| read(index, "level").is_some()).last();
        let Some(last) = last else { continue };
        let size = read(last, "size").and_then(|size| cli::parse_size(size.trim()).ok());
        caches.insert(read(last, "shared_cpu_list").unwrap_or_default(), size.unwrap_or(0));
    }
    caches.values().sum()
}

/// Now, in UTC, as RFC 3339 has it.
pub(crate) fn time() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    rfc3339(seconds)
}

/// Seconds since 1970 as a date and time.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // A 400-year cycle has 146,097 days. Years begin in March, so that leap days end them.
    let shifted = days + 719_468;
    let (cycle, day_of_cycle) = (shifted / 146_097, shifted % 146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524
        - day_of_cycle / 146_096)
        / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * cycle + year_of_cycle + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d @N` prints them.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_767_323_045, "2026-01-02T03:04:05Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}

//! Sizes, durations and digests as people read and type them.

use std::fmt;
use std::time::Duration;

/// Prints a byte count with a binary unit: `2.41 GiB`, `512 B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 < 1024 {
            format!("{} B", self.0)
        } else {
            let mut value = self.0 as f64 / 1024.0;
            let mut unit = "KiB";
            for next in ["MiB", "GiB", "TiB", "PiB", "EiB"] {
                // 1023.995 would print as 1024.00 of the smaller unit.
                if value < 1023.995 {
                    break;
                }
                value /= 1024.0;
                unit = next;
            }
            format!("{value:.2} {unit}")
        };
        f.pad(&text)
    }
}

/// Prints a duration as `412 ms`, `4.1 s` or `2 min 05 s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let text = if seconds < 0.9995 {
            format!("{:.0} ms", seconds * 1e3)
        } else if seconds < 119.95 {
            format!("{seconds:.1} s")
        } else {
            let whole = self.0.as_secs();
            format!("{} min {:02} s", whole / 60, whole % 60)
        };
        f.pad(&text)
    }
}

/// Reads a size such as `4096`, `512M`, `2G`, `2GiB` or `1.5GB`; every unit is a power of 1024.
///
/// # Errors
/// Says what a size looks like when the text is not one, and how much 64 bits hold when it is more.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size (examples: 4096, 512M, 2G, 2GiB)");
    let too_large = || format!("{text:?} is out of range: expected less than 16777216T");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let unit_bytes = 1u64 << shift;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit_bytes).ok_or_else(too_large);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * unit_bytes as f64;
    // 2^64 as f64: everything below it converts without saturating.
    if value.is_finite() && value < 18_446_744_073_709_551_616.0 {
        Ok(value as u64)
    } else {
        Err(too_large())
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_with_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_048_575, "1.00 MiB"),
            (98_362_432, "93.81 MiB"),
            (u64::MAX, "16.00 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}", Bytes(5)), "       5 B");
    }

    #[test]
    fn durations_never_print_sixty_seconds_wrongly() {
        assert_eq!(Seconds(Duration::from_millis(412)).to_string(), "412 ms");
        assert_eq!(Seconds(Duration::from_millis(4120)).to_string(), "4.1 s");
        assert_eq!(Seconds(Duration::from_secs(125)).to_string(), "2 min 05 s");
    }

    #[test]
    fn typed_sizes_are_powers_of_1024_and_nonsense_is_refused() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        for bad in ["", "M", "-1", "2X", "1e3", "99999999999999999999", "16777216T", "1..5k"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        for large in ["99999999999999999999", "16777216T", "16777216.5T"] {
            let error = parse_size(large).expect_err("more than 64 bits");
            assert!(error.ends_with("out of range: expected less than 16777216T"), "{error}");
        }
    }

    #[test]
    fn hex_is_lower_case() {
        assert_eq!(hex(&[0, 0xab, 0xff]), "00abff");
    }
}

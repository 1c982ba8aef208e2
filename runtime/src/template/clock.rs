//! The date that templates print: UTC, so that a chat renders alike everywhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

/// A point in time, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    unix_seconds: i64,
}

/// `SOURCE_DATE_EPOCH` is no number of seconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("SOURCE_DATE_EPOCH is '{0}': expected seconds since 1970, at most 253402300799")]
pub struct ClockError(String);

/// The last second of the year 9999.
const MAX_SECONDS: i64 = 253_402_300_799;

impl Default for Clock {
    /// Now.
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { unix_seconds: i64::try_from(since.as_secs()).unwrap_or(0).min(MAX_SECONDS) }
    }
}

impl Clock {
    /// The time that `SOURCE_DATE_EPOCH` fixes; now if it is not set.
    ///
    /// # Errors
    /// If it is set to something that is no time.
    pub fn from_source_date_epoch(value: Option<&str>) -> Result<Self, ClockError> {
        let Some(value) = value else { return Ok(Self::default()) };
        match value.parse() {
            Ok(unix_seconds @ 0..=MAX_SECONDS) => Ok(Self { unix_seconds }),
            _ => Err(ClockError(value.to_owned())),
        }
    }

    /// Python's `strftime`, as far as templates go.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut letter = chars.next();
            let no_padding = letter == Some('-');
            if no_padding {
                letter = chars.next();
            }
            let text = letter.and_then(|letter| self.field(letter)).ok_or_else(|| {
                let message = format!("strftime_now: '{format}' holds a field that is not known");
                Error::new(ErrorKind::InvalidOperation, message)
            })?;
            let shorter = text.trim_start_matches(['0', ' ']);
            match (no_padding, shorter.is_empty()) {
                (false, _) => out.push_str(&text),
                (true, true) => out.push('0'),
                (true, false) => out.push_str(shorter),
            }
        }
        Ok(out)
    }

    fn field(self, letter: char) -> Option<String> {
        const DAYS: [&str; 7] =
            ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let days = self.unix_seconds.div_euclid(86_400);
        let of_day = self.unix_seconds.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let (year, month, day) = civil(days);
        let day_name = DAYS.get(usize::try_from(days.rem_euclid(7)).ok()?)?;
        let month_name = MONTHS.get(usize::try_from(month - 1).ok()?)?;
        let hour12 = (hour + 11) % 12 + 1;
        Some(match letter {
            'Y' => format!("{year:04}"),
            'y' => format!("{:02}", year % 100),
            'C' => format!("{:02}", year / 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => (*month_name).to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => (*day_name).to_owned(),
            'a' => day_name[..3].to_owned(),
            'j' => format!("{:03}", days - days_from_civil(year, 1, 1) + 1),
            'u' => ((days + 3).rem_euclid(7) + 1).to_string(),
            'w' => (days + 4).rem_euclid(7).to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            's' => self.unix_seconds.to_string(),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'F' => format!("{year:04}-{month:02}-{day:02}"),
            'T' | 'X' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'D' | 'x' => format!("{month:02}/{day:02}/{:02}", year % 100),
            'c' => format!(
                "{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year:04}",
                &day_name[..3],
                &month_name[..3]
            ),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted from 1 March of the year 0, months are a repeating pattern of 153 days a five.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Days since 1970 of a date.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: &str) -> Clock {
        Clock::from_source_date_epoch(Some(value)).unwrap()
    }

    #[test]
    fn dates_are_those_of_pythons_strftime() {
        // datetime.fromtimestamp(t, timezone.utc).strftime(...)
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %y %I %p %u %w %e %-d %%";
        for (seconds, expected) in [
            ("0", "1970-01-01 00:00:00 001 Thu Thursday Jan January 70 12 AM 4 4  1 1 %"),
            ("951827696", "2000-02-29 12:34:56 060 Tue Tuesday Feb February 00 12 PM 2 2 29 29 %"),
            ("1767323045", "2026-01-02 03:04:05 002 Fri Friday Jan January 26 03 AM 5 5  2 2 %"),
            ("4107542399", "2100-02-28 23:59:59 059 Sun Sunday Feb February 00 11 PM 7 0 28 28 %"),
            (
                "253402300799",
                "9999-12-31 23:59:59 365 Fri Friday Dec December 99 11 PM 5 5 31 31 %",
            ),
        ] {
            assert_eq!(at(seconds).strftime(all).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_time_or_no_field_is_an_error() {
        for value in ["", "x", "-1", "1e9", "253402300800"] {
            assert!(Clock::from_source_date_epoch(Some(value)).is_err(), "{value}");
        }
        assert!(at("0").strftime("%Q").is_err());
        assert!(at("0").strftime("%").is_err());
        assert!(at("0").strftime("%-").is_err());
    }
}

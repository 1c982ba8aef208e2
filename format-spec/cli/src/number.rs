//! Whole numbers as people type them. What is no number and what is out of range are told apart,
//! however large it is: a number that the type behind a flag cannot hold is still a number.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Reads a whole number that lies in `range`.
///
/// # Errors
/// Says whether the text is no whole number or out of range, and the range.
pub fn whole<T>(text: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: Copy + PartialOrd + Display + TryFrom<i128>,
{
    let (min, max) = (range.start(), range.end());
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("expected a whole number from {min} to {max}"));
    }
    // Digits that 128 bits cannot hold are out of any range, too.
    let value = text.parse::<i128>().ok().and_then(|value| T::try_from(value).ok());
    value
        .filter(|value| range.contains(value))
        .ok_or_else(|| format!("out of range: expected {min} to {max}"))
}

/// [`whole`] as clap wants a parser of values.
pub fn number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + PartialOrd + Display + TryFrom<i128>,
{
    move |text: &str| whole(text, &range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_and_what_is_out_of_range_are_told_apart() {
        assert_eq!(whole("7", &(1..=1024u16)), Ok(7));
        assert_eq!(whole("+7", &(1..=1024u16)), Ok(7));
        assert_eq!(whole("-1", &(-1..=5i64)), Ok(-1));
        assert_eq!(whole(&u64::MAX.to_string(), &(0..=u64::MAX)), Ok(u64::MAX));
        let out = Err("out of range: expected 1 to 1024".to_owned());
        let huge = "9".repeat(60);
        for text in ["0", "-1", "1025", "65536", "4294967297", "18446744073709551617", &huge] {
            assert_eq!(whole(text, &(1..=1024u16)), out, "{text}");
        }
        let none = Err("expected a whole number from 1 to 1024".to_owned());
        for text in ["", "-", "x", "1.5", "1e3", " 1", "1 ", "--1", "0x10", "٣"] {
            assert_eq!(whole(text, &(1..=1024u16)), none, "{text}");
        }
    }
}

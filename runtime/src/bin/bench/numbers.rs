//! Lists of numbers as llama-bench takes them: `512`, `1,2,4`, `1-8`, `128-512+128`, `1-64*2`.

use crate::device::is_digits;
use std::str::FromStr;

/// More tests than this nobody waits for.
const MAX_VALUES: usize = 4096;

/// The largest number that llama-bench could hold.
const MAX: u64 = i32::MAX as u64;

/// The numbers of one occurrence of a flag, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers(pub(crate) Vec<u32>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for item in text.split(',') {
            push_item(&mut values, item)?;
        }
        Ok(Self(values))
    }
}

fn push_item(values: &mut Vec<u32>, item: &str) -> Result<(), String> {
    let Some((first, rest)) = item.split_once('-') else {
        values.push(narrow(number(item)?));
        return Ok(());
    };
    let (last, multiply, step) = match rest.find(['+', '*']) {
        None => (rest, false, 1),
        Some(at) => (&rest[..at], rest[at..].starts_with('*'), number(&rest[at + 1..])?),
    };
    let (first, last) = (number(first)?, number(last)?);
    if last < first {
        return Err(format!("`{item}` ends before it begins"));
    }
    let mut value = first;
    while value <= last {
        if values.len() == MAX_VALUES {
            return Err(format!("more than {MAX_VALUES} values"));
        }
        values.push(narrow(value));
        // Both are below 2^31, so that neither overflows.
        let next = if multiply { value * step } else { value + step };
        if next <= value {
            return Err(format!("`{item}` never reaches its end"));
        }
        value = next;
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, String> {
    if !is_digits(text) {
        let expected = "expected numbers and ranges such as 512, 1,2,4, 1-8, 128-512+128 or 1-64*2";
        return Err(expected.to_owned());
    }
    cli::whole(text, &(0..=MAX)).map_err(|why| format!("`{text}`: {why}"))
}

fn narrow(value: u64) -> u32 {
    // At most MAX, as `number` has checked.
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Reads a list of numbers of which each is 1 to `max`.
pub(crate) fn up_to(max: u32) -> impl Fn(&str) -> Result<Numbers, String> + Clone {
    move |text: &str| {
        let list: Numbers = text.parse()?;
        match list.0.iter().find(|&&n| n == 0 || n > max) {
            Some(n) => Err(format!("`{n}`: out of range: expected 1 to {max}")),
            None => Ok(list),
        }
    }
}

/// Reads `pp,tg`.
pub(crate) fn pair(text: &str) -> Result<(u32, u32), String> {
    let expected = || "expected two numbers: PROMPT,GENERATED".to_owned();
    let (prompt, generated) = text.split_once(',').ok_or_else(expected)?;
    if !is_digits(prompt) || !is_digits(generated) {
        return Err(expected());
    }
    let number = |text| number(text).map(narrow);
    Ok((number(prompt)?, number(generated)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<u32> {
        text.parse::<Numbers>().unwrap().0
    }

    /// What llama-bench makes of them.
    #[test]
    fn lists_and_ranges() {
        assert_eq!(values("512"), [512]);
        assert_eq!(values("0"), [0]);
        assert_eq!(values("8,4,8"), [8, 4, 8]);
        assert_eq!(values("1-4"), [1, 2, 3, 4]);
        assert_eq!(values("3-3"), [3]);
        assert_eq!(values("128-512+128"), [128, 256, 384, 512]);
        assert_eq!(values("1-10+4"), [1, 5, 9]);
        assert_eq!(values("1-64*2"), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(values("5,1-9*3,2-3"), [5, 1, 3, 9, 2, 3]);
        assert_eq!(values("2147483647"), [2147483647]);
        assert_eq!(values("2147483647-2147483647*2"), [2147483647]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            "",
            ",",
            "1,",
            "x",
            "-1",
            "1-",
            "-",
            "1-4+",
            "1-4+0",
            "1-4*1",
            "0-4*2",
            "4-1",
            "1--4",
            "1-4-6",
            "1+2",
            "1.5",
            "2147483648",
            "1-99999",
            " 1",
            "1-4+1*2",
            "+1",
        ] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_number_that_is_too_large_is_a_number() {
        for large in ["2147483648", "1,99999999999999999999", "1-2147483648", "1-4+2147483648"] {
            let error = large.parse::<Numbers>().unwrap_err();
            assert!(error.ends_with("out of range: expected 0 to 2147483647"), "{error}");
        }
        assert!(pair("2147483648,1").unwrap_err().contains("out of range"));
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        for bad in ["", "512", "512,", "1,2,3", "1-2,3", "a,b"] {
            assert!(pair(bad).is_err(), "{bad:?}");
        }
    }
}

//! Names of the files of a model that is split over several: `NAME-00001-of-00003.gguf`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The name of one part of a split GGUF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartName {
    /// What all parts have in common, without the dash.
    pub name: OsString,
    /// Number of the part, from 1.
    pub part: u64,
    /// Number of parts.
    pub n_parts: u64,
    /// `.gguf`, as the file has it.
    extension: OsString,
}

impl PartName {
    /// Reads `NAME-NNNNN-of-NNNNN.gguf`; `None` for any other name.
    pub fn parse(file_name: &OsStr) -> Option<Self> {
        let bytes = file_name.as_bytes();
        let (stem, extension) = bytes.split_at_checked(bytes.len().checked_sub(5)?)?;
        let (rest, n_parts) = stem.split_at_checked(stem.len().checked_sub(5)?)?;
        let (rest, part) = rest.strip_suffix(b"-of-").and_then(|rest| {
            let at = rest.len().checked_sub(5)?;
            rest.split_at_checked(at)
        })?;
        let name = rest.strip_suffix(b"-")?;
        let number = |digits: &[u8]| {
            let all = digits.iter().all(u8::is_ascii_digit);
            std::str::from_utf8(digits).ok().filter(|_| all)?.parse::<u64>().ok()
        };
        let (part, n_parts) = (number(part)?, number(n_parts)?);
        let is_gguf = extension.eq_ignore_ascii_case(b".gguf");
        (is_gguf && (1..=n_parts).contains(&part)).then(|| Self {
            name: OsString::from_vec(name.to_vec()),
            part,
            n_parts,
            extension: OsString::from_vec(extension.to_vec()),
        })
    }

    /// The name of another part, from 1, of the same model.
    pub fn of(&self, part: u64) -> OsString {
        let mut name = self.name.clone();
        name.push(format!("-{part:05}-of-{:05}", self.n_parts));
        name.push(&self.extension);
        name
    }

    /// The name of part `part`, from 1, of `n_parts` parts of `file_name`, which may be the name
    /// of a part or any other name.
    pub fn made(file_name: &OsStr, part: u64, n_parts: u64) -> OsString {
        let name = match Self::parse(file_name) {
            Some(name) => name.name,
            None => {
                let bytes = file_name.as_bytes();
                let at = bytes.len().saturating_sub(5);
                let (stem, extension) = bytes.split_at_checked(at).unwrap_or((bytes, b""));
                let is_gguf = extension.eq_ignore_ascii_case(b".gguf");
                OsString::from_vec(if is_gguf { stem.to_vec() } else { bytes.to_vec() })
            }
        };
        Self { name, part, n_parts, extension: OsString::from(".gguf") }.of(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_and_made() {
        let parse = |name: &str| PartName::parse(OsStr::new(name));
        let part = parse("Qwen3-4B-Q4_K_M-00002-of-00003.gguf").expect("a part");
        assert_eq!((part.name.to_str(), part.part, part.n_parts), (Some("Qwen3-4B-Q4_K_M"), 2, 3));
        assert_eq!(part.of(3), "Qwen3-4B-Q4_K_M-00003-of-00003.gguf");
        assert_eq!(parse("-00001-of-00001.GGUF").expect("a part").of(1), "-00001-of-00001.GGUF");
        for other in [
            "",
            "a.gguf",
            "00001-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-00000-of-00002.gguf",
            "a-0001-of-00002.gguf",
            "a-00001-of-00002.mpk",
            "a-+0001-of-00002.gguf",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let made = |name: &str| PartName::made(OsStr::new(name), 1, 12);
        assert_eq!(made("m.gguf"), "m-00001-of-00012.gguf");
        assert_eq!(made("m-00002-of-00003.gguf"), "m-00001-of-00012.gguf");
        assert_eq!(made("llama-3.1"), "llama-3.1-00001-of-00012.gguf");
    }
}

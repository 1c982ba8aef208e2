//! The text of `--version`, put together when this is compiled.

use format_spec::container::VERSION;

const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("MINFER_COMMIT_OR_UNKNOWN"),
    "\ntarget: ",
    env!("MINFER_TARGET"),
    "\n.mpk versions: reads ",
);

/// The commit that this was built from, `unknown` unless the build set `MINFER_COMMIT`.
pub const COMMIT: &str = env!("MINFER_COMMIT_OR_UNKNOWN");

/// How many commits that is from the first, in decimal; 0 unless the build set `MINFER_BUILD_NUMBER`.
pub const BUILD_NUMBER: &str = env!("MINFER_BUILD_NUMBER_OR_0");

/// Text for `--version`: commit, target and the container versions that this build knows.
///
/// The commit is known when the build sets `MINFER_COMMIT`.
pub const LONG_VERSION: &str = match str::from_utf8(TEXT.as_slice()) {
    Ok(text) => text,
    Err(_) => panic!("made of text"),
};

const TEXT: &Text = &Text::new()
    .str(BUILD)
    .number(VERSION.0)
    .str(".x, writes ")
    .number(VERSION.0)
    .str(".")
    .number(VERSION.1);

/// Text of a bounded length that grows while this is compiled.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

#[expect(
    clippy::indexing_slicing,
    reason = "runs when this is compiled; too long is an error there"
)]
impl Text {
    const fn new() -> Self {
        Self { bytes: [0; 512], len: 0 }
    }

    const fn as_slice(&self) -> &[u8] {
        self.bytes.split_at(self.len).0
    }

    const fn byte(mut self, byte: u8) -> Self {
        self.bytes[self.len] = byte;
        self.len += 1;
        self
    }

    const fn str(mut self, text: &str) -> Self {
        let mut rest = text.as_bytes();
        while let [byte, behind @ ..] = rest {
            self = self.byte(*byte);
            rest = behind;
        }
        self
    }

    const fn number(self, n: u16) -> Self {
        let text = if n >= 10 { self.number(n / 10) } else { self };
        text.byte(b'0' + (n % 10) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        for n in [0, 9, 10, 107, u16::MAX] {
            assert_eq!(Text::new().str("v").number(n).as_slice(), format!("v{n}").as_bytes());
        }
    }

    #[test]
    fn the_container_version_is_said() {
        let (major, minor) = VERSION;
        assert!(LONG_VERSION.ends_with(&format!("reads {major}.x, writes {major}.{minor}")));
    }
}

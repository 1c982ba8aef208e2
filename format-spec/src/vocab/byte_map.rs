//! GPT-2's table of printable characters for bytes.
//!
//! The printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 onwards in
//! ascending order.

/// Whether a byte stands for itself.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100u16;
    let mut byte = 0usize;
    while byte < 256 {
        let latin = byte as u8;
        chars[byte] = if is_printable(latin) {
            latin as char
        } else {
            next += 1;
            // 0x100..0x144: never a surrogate.
            match char::from_u32(next as u32 - 1) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    chars
};

/// The character that stands for `byte` in a byte-encoded vocabulary.
pub fn byte_to_char(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte that `c` stands for, if any.
pub fn char_to_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        low @ 0..=0xff => u8::try_from(low).ok().filter(|&byte| is_printable(byte)),
        // The other bytes in order: 0x00..=0x20, 0x7f..=0xa0, 0xad.
        high @ 0x100..=0x120 => u8::try_from(high - 0x100).ok(),
        high @ 0x121..=0x142 => u8::try_from(high - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_a_bijection_with_gpt2s_known_entries() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        // Known from any GPT-2 vocabulary: space is Ġ, newline is Ċ, tab is ĉ.
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(b'\t'), 'ĉ');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('\u{144}'), None);
    }
}

//! Turning token bytes into text that may be shown at once: no half character, and nothing that
//! could still become a stop string.

/// Bytes in, text out. What it returns, put together, equals the whole output decoded at once and
/// cut before the stop string, however the bytes are split into tokens.
#[derive(Debug, Default)]
pub struct TextStream {
    stops: Vec<Vec<u8>>,
    pending: Vec<u8>,
    stopped: Option<usize>,
}

impl TextStream {
    /// A stream that ends before the first of `stops` to be completed. Empty ones are ignored.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let stops = stops.iter().map(|s| s.as_ref().as_bytes().to_vec());
        Self { stops: stops.filter(|s| !s.is_empty()).collect(), ..Self::default() }
    }

    /// Takes the bytes of one token; returns the text that is now certain. Bytes that are no
    /// UTF-8 become U+FFFD, as `String::from_utf8_lossy` has it.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.pending.extend_from_slice(bytes);
        let ready = match self.find_stop() {
            Some((start, which)) => {
                self.stopped = Some(which);
                self.pending.truncate(start);
                start
            }
            None => self.held_from().min(complete_chars(&self.pending)),
        };
        let text = String::from_utf8_lossy(&self.pending[..ready]).into_owned();
        self.pending.drain(..ready);
        text
    }

    /// Which stop string has been met, as an index into the list given.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// What was held back, at the end of the output.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// The stop string that is complete first: (where it starts, which).
    fn find_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(which, stop)| {
            let start = self.pending.windows(stop.len()).position(|w| w == stop)?;
            Some((start + stop.len(), start, which))
        });
        found.min().map(|(_, start, which)| (start, which))
    }

    /// Start of the longest ending that may still grow into a stop string.
    fn held_from(&self) -> usize {
        let n = self.pending.len();
        let longest = self.stops.iter().filter_map(|stop| {
            (1..stop.len().min(n + 1)).rev().find(|&k| self.pending.ends_with(&stop[..k]))
        });
        n - longest.max().unwrap_or(0)
    }
}

/// Length of `bytes` without an unfinished character at the end.
fn complete_chars(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(_) => return bytes.len(),
            Err(e) => match e.error_len() {
                None => return at + e.valid_up_to(),
                Some(bad) => at += e.valid_up_to() + bad,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams `text` in every split into up to three pieces and asserts the result.
    fn check(text: &[u8], stops: &[&str], expected: &str) {
        for a in 0..=text.len() {
            for b in a..=text.len() {
                let mut stream = TextStream::new(stops);
                let mut out = String::new();
                for piece in [&text[..a], &text[a..b], &text[b..]] {
                    out += &stream.push(piece);
                    assert!(expected.starts_with(&out), "{out:?} shown too early ({a}, {b})");
                }
                out += &stream.finish();
                assert_eq!(out, expected, "split at {a} and {b}");
            }
        }
    }

    #[test]
    fn characters_are_never_split() {
        check("a€🙂é".as_bytes(), &[], "a€🙂é");
        let mut stream = TextStream::new::<&str>(&[]);
        assert_eq!(stream.push(&[0xf0, 0x9f]), "");
        assert_eq!(stream.push(&[0x99]), "");
        assert_eq!(stream.push(&[0x82, b'!']), "🙂!");
    }

    #[test]
    fn broken_utf8_becomes_the_replacement_character() {
        for bytes in
            [&b"a\xffb"[..], b"\xe2\x82", b"\xe2\x82x", b"\x80\x80", b"\xf0\x9f\xe2\x82\xac"]
        {
            check(bytes, &[], &String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn stop_strings_span_tokens_and_are_not_shown() {
        check(b"one two\n\nthree", &["\n\n"], "one two");
        check(b"stop", &["stop"], "");
        check("x€y".as_bytes(), &["€"], "x");
    }

    #[test]
    fn false_prefixes_come_out_in_the_end() {
        check(b"a##b## c##", &["###"], "a##b## c##");
        check(b"aab", &["aaab"], "aab");
        check(b"aaaab", &["aaab"], "a");
        check(b"ababac", &["abac"], "ab");
    }

    #[test]
    fn the_stop_completed_first_wins() {
        check(b"xabcdef", &["xabcdef", "bc"], "xa");
        check(b"abcd", &["cd", "bcd"], "a");
    }

    #[test]
    fn a_stop_after_broken_utf8_still_counts() {
        check(b"\xe2\x82END", &["END"], "\u{fffd}");
    }

    #[test]
    fn nothing_follows_a_stop() {
        let mut stream = TextStream::new(&["."]);
        assert_eq!(stream.push(b"a.b"), "a");
        assert_eq!(stream.stopped(), Some(0));
        assert_eq!(stream.push(b"c"), "");
        assert_eq!(stream.finish(), "");
    }
}

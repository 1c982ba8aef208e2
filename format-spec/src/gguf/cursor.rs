//! A reader over untrusted bytes that knows what remains.

use std::fmt::Arguments;

use crate::{Error, Result};

/// Position in a header. Every read is checked against what remains, and no read allocates.
///
/// `what` names the thing being read; it is formatted only when the read fails.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    /// Offset of the next byte from the start.
    pub(super) fn offset(&self) -> u64 {
        to_u64(self.pos)
    }

    /// Bytes not yet read.
    pub(super) fn remaining(&self) -> u64 {
        to_u64(self.rest().len())
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or(&[])
    }

    /// The next `n_bytes` bytes.
    pub(super) fn take(&mut self, n_bytes: u64, what: Arguments<'_>) -> Result<&'a [u8]> {
        let taken = usize::try_from(n_bytes).ok().and_then(|n| self.rest().get(..n));
        let Some(taken) = taken else {
            return Err(Error::Truncated {
                what: what.to_string(),
                offset: self.offset(),
                end: self.offset().saturating_add(n_bytes),
                have: to_u64(self.bytes.len()),
            });
        };
        self.pos = self.pos.saturating_add(taken.len());
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub(super) fn array<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N]> {
        let taken = self.take(to_u64(N), what)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: Arguments<'_>) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: Arguments<'_>) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length as u64, then its bytes.
    pub(super) fn string(&mut self, what: Arguments<'_>) -> Result<&'a [u8]> {
        let n_bytes = self.u64(format_args!("length of {what}"))?;
        self.take(n_bytes, what)
    }
}

/// `usize` as the `u64` of an [`Error`]; no supported target has a wider `usize`.
pub(super) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

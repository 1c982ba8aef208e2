//! Positioned reads and writes: what the library needs of a file without opening one.

use std::fs::File;
use std::io;
use std::sync::Mutex;

use crate::pipeline::lock;

/// Something that can be read at any offset by several threads at once.
///
/// Reads are copies (`pread`), never a map: a file that shrinks meanwhile is an error here and a
/// SIGBUS there.
pub trait ReadAt: Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the bytes end before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Something that can be written at any offset by several threads at once.
pub trait WriteAt: Sync {
    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// Whatever the system says; a part may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buf, offset)
    }
}

impl WriteAt for File {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, buf, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..buf.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl WriteAt for Mutex<Vec<u8>> {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = lock(self);
        let slot = usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get_mut(start..)?.get_mut(..buf.len()))
            .ok_or(io::ErrorKind::StorageFull)?;
        slot.copy_from_slice(buf);
        Ok(())
    }
}

/// A buffer of `len` bytes, or the error that it does not fit in memory: lengths come from files.
pub(crate) fn buffer(len: u64) -> io::Result<Vec<u8>> {
    let mut buf = Vec::new();
    resize(&mut buf, len)?;
    Ok(buf)
}

/// Gives `buf` a length from a file, or the error that it does not fit in memory. What was in it is
/// not kept: a buffer that grows is never there twice, nor larger than it must be.
pub(crate) fn resize(buf: &mut Vec<u8>, len: u64) -> io::Result<()> {
    let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
    let len = usize::try_from(len).map_err(|_| out_of_memory())?;
    if buf.capacity() < len {
        *buf = Vec::new();
        buf.try_reserve_exact(len).map_err(|_| out_of_memory())?;
    }
    buf.resize(len, 0);
    Ok(())
}

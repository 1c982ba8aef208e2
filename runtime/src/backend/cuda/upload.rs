//! The way of bytes from the map to the arena: several readers, each with a stream of its own.

use crate::error::Result;
use crate::open::Load;
use kernels::cuda::{CudaError, Gpu, Span, Uploader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Readers that work at the same time.
const MAX_READERS: usize = 12;
/// A reader takes this many bytes at a time where they go through pinned buffers.
const PINNED_BYTES: usize = 4 * Uploader::PIECE_BYTES;
/// Pages that are pinned in place start on this. Larger pages are made of such ones.
const PAGE_BYTES: usize = 4096;

/// Bytes of the file and their place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) len: usize,
}

/// What went to the device, as the readers counted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) n_bytes: u64,
    /// Without a copy into pinned buffers.
    pub(crate) n_in_place: u64,
}

/// How to send.
pub(super) struct Sending<'s> {
    pub(super) load: Load,
    pub(super) n_threads: usize,
    /// Is told of every piece that has been handed over.
    pub(super) sent: &'s (dyn Fn(u64) + Sync),
}

impl Sending<'_> {
    /// Sends all parts, which are in file order.
    pub(super) fn send_all(
        &self,
        gpu: &Arc<Gpu>,
        file: &[u8],
        parts: &[Part],
        memory: Span<'_, u8>,
    ) -> Result<Sent> {
        let granule = match self.load {
            Load::Pinned => PINNED_BYTES,
            Load::Map(granule) => granule.max(PAGE_BYTES).next_multiple_of(PAGE_BYTES),
        };
        let tasks = cut(parts, file.as_ptr().addr() % PAGE_BYTES, granule);
        let next = AtomicUsize::new(0);
        let outcome: Mutex<Result<Sent, CudaError>> = Mutex::new(Ok(Sent::default()));
        let reader = || -> Result<Sent, CudaError> {
            let mut uploader = Uploader::new(gpu)?;
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.send(&mut uploader, file, task, memory)?;
                (self.sent)(task.iter().map(|part| part.len as u64).sum());
            }
            let (n_bytes, n_in_place) = uploader.finish()?;
            Ok(Sent { n_bytes, n_in_place })
        };
        let join = |one: Result<Sent, CudaError>| {
            let mut all = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *all, one) {
                (Ok(sum), Ok(sent)) => {
                    sum.n_bytes += sent.n_bytes;
                    sum.n_in_place += sent.n_in_place;
                }
                (Ok(_), Err(e)) => *all = Err(e),
                (Err(_), _) => {}
            }
        };
        let n_readers = self.n_threads.clamp(1, MAX_READERS).min(tasks.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..n_readers {
                scope.spawn(|| join(reader()));
            }
            join(reader());
        });
        Ok(outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?)
    }

    fn send(
        &self,
        uploader: &mut Uploader,
        file: &[u8],
        task: &[Part],
        memory: Span<'_, u8>,
    ) -> Result<(), CudaError> {
        let (Some(first), Some(last)) = (task.first(), task.last()) else { return Ok(()) };
        let to = |part: &Part| memory.span(part.to..part.to + part.len);
        if let Load::Map(_) = self.load {
            let bytes = &file[first.from..last.from + last.len];
            let parts: Vec<_> =
                task.iter().map(|part| (part.from - first.from, part.len, to(part))).collect();
            match uploader.send_in_place(bytes, &parts) {
                // Not every system lets a file's pages be pinned.
                Err(CudaError::Driver { what: "pinning the file", .. }) => {}
                other => return other,
            }
        }
        for part in task {
            let from = &file[part.from..part.from + part.len];
            uploader.send(to(part), part.len, |at, buffer| {
                buffer.copy_from_slice(&from[at..at + buffer.len()]);
                Ok::<(), CudaError>(())
            })?;
        }
        Ok(())
    }
}

/// Cuts parts at multiples of `granule` in memory, where the file starts `first` bytes after one,
/// and puts together what lies between two such borders: no two tasks share a page.
fn cut(parts: &[Part], first: usize, granule: usize) -> Vec<Vec<Part>> {
    let mut tasks: Vec<Vec<Part>> = Vec::new();
    let mut end = 0;
    for part in parts {
        let mut done = 0;
        while done < part.len {
            let at = part.from + done;
            if tasks.is_empty() || at >= end {
                end = ((at + first) / granule + 1) * granule - first;
                tasks.push(Vec::new());
            }
            let len = (part.len - done).min(end - at);
            if let Some(task) = tasks.last_mut() {
                task.push(Part { from: at, to: part.to + done, len });
            }
            done += len;
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_task_and_no_page_in_two() {
        let parts = [(5000, 300), (5376, 70_000), (81_920, 1), (90_000, 8192)];
        let mut to = 0;
        let parts: Vec<Part> = parts
            .iter()
            .map(|&(from, len)| {
                let part = Part { from, to, len };
                to += len + 256;
                part
            })
            .collect();
        for first in [0, 1, 4095] {
            for granule in [4096, 8192, 1 << 20] {
                let tasks = cut(&parts, first, granule);
                let mut pages = std::collections::HashSet::new();
                let mut bytes = Vec::new();
                for task in &tasks {
                    let (a, b) = (task[0].from, task[task.len() - 1]);
                    let range = (a + first) / 4096..=(b.from + b.len - 1 + first) / 4096;
                    for page in range {
                        assert!(pages.insert(page), "page {page} twice, granule {granule}");
                    }
                    for part in task {
                        bytes.extend((0..part.len).map(|i| (part.from + i, part.to + i)));
                    }
                }
                let expected: Vec<_> = parts
                    .iter()
                    .flat_map(|part| (0..part.len).map(|i| (part.from + i, part.to + i)))
                    .collect();
                assert_eq!(bytes, expected, "{first} {granule}");
            }
        }
    }
}

//! From the container to the device: one arena, objects in file order, bytes as they are.

use crate::error::{Error, Result};
use format_spec::PlaneKind;
use format_spec::container::{Container, Object};
use kernels::cuda::{Buffer, CudaError, DEVICE_ALIGN, Gpu, Span, Uploader};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Readers that copy out of the map at the same time.
const MAX_READERS: usize = 12;
/// A reader takes this many bytes at a time.
const TASK_BYTES: usize = 4 * Uploader::PIECE_BYTES;

/// The objects on the device.
pub(super) struct Arena {
    memory: Buffer<u8>,
    /// Offset in the file to place in the arena.
    places: HashMap<u64, (usize, usize)>,
    /// Bytes that were sent, as the readers counted them.
    n_bytes: u64,
}

/// One piece of an object.
struct Task {
    from: usize,
    to: usize,
    len: usize,
}

/// Which objects a run reads. Others stay in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    /// `bf16`.
    pub(super) bf16: bool,
    /// `eb` and `sb`.
    pub(super) int8: bool,
    /// `exp` and `dsc`.
    pub(super) exp: bool,
}

impl Used {
    pub(super) fn has(self, object: &Object) -> bool {
        match object.kind {
            PlaneKind::Bf16 => self.bf16,
            PlaneKind::Eb | PlaneKind::Sb => self.int8,
            PlaneKind::Exp | PlaneKind::Dsc => self.exp,
            // The base, and a `planar` object beside it: decode reads that.
            kind => kind.is_base(),
        }
    }
}

/// The base of a tensor comes first among its objects; a second one would not be read.
fn used<'c>(container: &'c Container<'_>, used: Used) -> impl Iterator<Item = &'c Object> {
    container.objects().iter().filter(move |object| used.has(object))
}

/// Bytes of device memory that a container's objects take.
pub(super) fn arena_bytes(container: &Container<'_>, which: Used) -> u64 {
    let used = used(container, which);
    used.map(|object| object.len.next_multiple_of(DEVICE_ALIGN as u64)).sum()
}

impl Arena {
    /// Takes memory for all objects that are used and fills it.
    pub(super) fn load(
        gpu: &Arc<Gpu>,
        file: &[u8],
        container: &Container<'_>,
        which: Used,
        n_threads: usize,
    ) -> Result<Self> {
        let mut places = HashMap::new();
        let mut tasks = Vec::new();
        let mut at = 0;
        for object in used(container, which) {
            let bytes = object.bytes(file);
            if bytes.len() as u64 != object.len {
                let tensor = object.tensor.clone();
                let reason = "its bytes are not in the file".to_owned();
                return Err(Error::Weight { tensor, reason });
            }
            let start = usize::try_from(object.offset).unwrap_or(usize::MAX);
            places.insert(object.offset, (at, bytes.len()));
            for from in (0..bytes.len()).step_by(TASK_BYTES) {
                let len = TASK_BYTES.min(bytes.len() - from);
                tasks.push(Task { from: start + from, to: at + from, len });
            }
            at += bytes.len().next_multiple_of(DEVICE_ALIGN);
        }
        let memory = gpu.alloc(at)?;
        let n_readers = n_threads.clamp(1, MAX_READERS).min(tasks.len().max(1));
        let n_bytes = send_all(gpu, file, &tasks, memory.all(), n_readers)?;
        Ok(Self { memory, places, n_bytes })
    }

    /// Bytes that were sent.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Whether an object is on the device.
    pub(super) fn has(&self, object: &Object) -> bool {
        self.places.contains_key(&object.offset)
    }

    /// Where an object lies on the device.
    pub(super) fn object(&self, object: &Object) -> Result<Span<'_, u8>> {
        match self.places.get(&object.offset) {
            Some(&(at, len)) => Ok(self.memory.span(at..at + len)),
            None => Err(Error::Weight {
                tensor: object.tensor.clone(),
                reason: format!("object `{}` is not on the device", object.name),
            }),
        }
    }
}

/// Sends all tasks on `n_readers` threads; returns the bytes sent.
fn send_all(
    gpu: &Arc<Gpu>,
    file: &[u8],
    tasks: &[Task],
    memory: Span<'_, u8>,
    n_readers: usize,
) -> Result<u64> {
    let next = AtomicUsize::new(0);
    let outcome: Mutex<Result<u64, CudaError>> = Mutex::new(Ok(0));
    let reader = || -> Result<u64, CudaError> {
        let mut uploader = Uploader::new(gpu)?;
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let from = &file[task.from..task.from + task.len];
            let to = memory.span(task.to..task.to + task.len);
            uploader.send(to, task.len, |at, buffer| {
                buffer.copy_from_slice(&from[at..at + buffer.len()]);
                Ok::<(), CudaError>(())
            })?;
        }
        uploader.finish()
    };
    let join = |one: Result<u64, CudaError>| {
        let mut all = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *all, one) {
            (Ok(sum), Ok(n)) => *sum += n,
            (Ok(_), Err(e)) => *all = Err(e),
            (Err(_), _) => {}
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_readers {
            scope.spawn(|| join(reader()));
        }
        join(reader());
    });
    Ok(outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?)
}

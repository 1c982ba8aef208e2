//! From the container to the device: one arena, objects in file order, bytes as they are.

use super::upload::{Part, Sending, Sent};
use crate::error::{Error, Result};
use format_spec::PlaneKind;
use format_spec::container::{Container, Object};
use kernels::cuda::{Buffer, DEVICE_ALIGN, Gpu, Span};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The objects on the device.
pub(super) struct Arena {
    memory: Buffer<u8>,
    /// Offset in the file to place in the arena.
    places: HashMap<u64, (usize, usize)>,
    sent: Sent,
}

/// Which kinds of objects a run reads. Others stay in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kinds {
    /// `bf16`.
    pub(super) bf16: bool,
    /// `eb` and `sb`.
    pub(super) int8: bool,
    /// `exp` and `dsc`.
    pub(super) exp: bool,
}

impl Kinds {
    /// Whatever the family, these go.
    pub(super) const BASES: Self = Self { bf16: false, int8: false, exp: false };

    fn has(self, object: &Object, is_base: bool) -> bool {
        // Products of experts read the base: planes of stacks would only lie there.
        let is_stack = object.tensor.contains("_exps.");
        match object.kind {
            PlaneKind::Bf16 => self.bf16,
            PlaneKind::Eb | PlaneKind::Sb => self.int8 && !is_stack,
            PlaneKind::Exp | PlaneKind::Dsc => self.exp && !is_stack,
            // A GPU reads `tile` only where there is nothing else.
            PlaneKind::Tile => is_base,
            // The base, and a `planar` object beside it: decode reads that.
            kind => kind.is_base(),
        }
    }
}

/// The objects that go to the device.
pub(super) struct Used<'u> {
    pub(super) kinds: Kinds,
    /// Tensors that the CPU has, and the device has no use for.
    pub(super) elsewhere: HashSet<&'u str>,
}

impl Used<'_> {
    pub(super) fn of<'c>(&self, container: &'c Container<'_>) -> impl Iterator<Item = &'c Object> {
        let bases: HashSet<u64> = container.tensors().map(|entry| entry.base.offset).collect();
        let goes = move |object: &&Object| {
            self.kinds.has(object, bases.contains(&object.offset))
                && !self.elsewhere.contains(object.tensor.as_str())
        };
        container.objects().iter().filter(goes)
    }
}

/// Bytes of device memory that an object takes.
pub(super) fn bytes_on_device(object: &Object) -> u64 {
    object.len.next_multiple_of(DEVICE_ALIGN as u64)
}

impl Arena {
    /// Takes memory for all objects that are used.
    pub(super) fn reserve(
        gpu: &Arc<Gpu>,
        container: &Container<'_>,
        used: &Used<'_>,
    ) -> Result<Self> {
        let n_bytes: u64 = used.of(container).map(bytes_on_device).sum();
        let memory = gpu.alloc(usize::try_from(n_bytes).unwrap_or(usize::MAX))?;
        Ok(Self { memory, places: HashMap::new(), sent: Sent::default() })
    }

    /// Fills it.
    pub(super) fn fill(
        &mut self,
        gpu: &Arc<Gpu>,
        file: &[u8],
        container: &Container<'_>,
        used: &Used<'_>,
        sending: &Sending<'_>,
    ) -> Result<()> {
        let mut parts = Vec::new();
        let mut at = 0;
        for object in used.of(container) {
            let bytes = object.bytes(file);
            if bytes.len() as u64 != object.len {
                let tensor = object.tensor.clone();
                let reason = "its bytes are not in the file".to_owned();
                return Err(Error::Weight { tensor, reason });
            }
            let from = usize::try_from(object.offset).unwrap_or(usize::MAX);
            self.places.insert(object.offset, (at, bytes.len()));
            parts.push(Part { from, to: at, len: bytes.len() });
            at += bytes.len().next_multiple_of(DEVICE_ALIGN);
        }
        self.sent = sending.send_all(gpu, file, &parts, self.memory.all())?;
        Ok(())
    }

    /// What was sent.
    pub(super) fn sent(&self) -> Sent {
        self.sent
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

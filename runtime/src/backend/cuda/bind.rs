//! Binding weights that are on the device to their kernels.

use super::Cuda;
use super::moe::Experts;
use crate::backend::{Bind, ExpertMatrices, ExpertShape, cpu};
use crate::error::{Error, Result};
use format_spec::container::{Container, TensorEntry};
use format_spec::{Geometry, PlaneKind};
use kernels::cuda::{Buffer, CudaError, DeviceWeight, MAX_GEMV_TOKENS};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Taller matrices (embeddings) are no shapes of a prompt's products.
pub(super) const MAX_WARM_UP_ROWS: u64 = 1 << 16;

/// What a matrix is for, where that decides which kernels read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Dense,
    /// It chooses experts.
    Router,
    /// Experts' matrices, or one expert's.
    Experts {
        /// There is an int8 product of many tokens.
        int8: bool,
        /// Steps of few tokens find their weights by descriptors.
        by_descriptors: bool,
    },
}

/// A weight on the device, its bias, and how often each path ran.
pub(crate) struct Matrix {
    pub(super) name: String,
    pub(super) weight: DeviceWeight,
    pub(super) bias: Option<Buffer<f32>>,
    /// Kind of the base.
    pub(super) base: PlaneKind,
    /// Kinds that the container has for it, whether they are on the device or not.
    pub(super) kinds: Vec<PlaneKind>,
    pub(super) role: Role,
    /// Where its copy in bf16 begins, once there is one.
    pub(super) copy: OnceLock<usize>,
    pub(super) n_gemv: Arc<AtomicU64>,
    pub(super) n_gemm: AtomicU64,
    pub(super) n_mmq: AtomicU64,
}

/// The shapes, (rows, row length), of a container's matrices, each once.
pub(super) fn product_shapes(container: &Container<'_>) -> Vec<(usize, usize)> {
    let matrices = container.tensors().map(|entry| entry.geometry).filter(|geometry| {
        (2..=MAX_WARM_UP_ROWS).contains(&geometry.n_rows) && geometry.row_len.is_multiple_of(32)
    });
    let shape =
        |g: Geometry| Some((usize::try_from(g.n_rows).ok()?, usize::try_from(g.row_len).ok()?));
    let mut shapes: Vec<_> = matrices.filter_map(shape).collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

impl<'a> Bind<'a> for Cuda {
    fn matrix(
        &self,
        _file: &'a [u8],
        entry: &TensorEntry<'a>,
        bias: Option<Vec<f32>>,
    ) -> Result<Matrix> {
        let base = (&entry.base.layout, self.arena.object(entry.base)?);
        let here = entry.planes.iter().filter(|plane| self.arena.has(plane));
        let planes = here
            .map(|plane| Ok((&plane.layout, self.arena.object(plane)?)))
            .collect::<Result<Vec<_>>>()?;
        let weight = DeviceWeight::new(&self.gpu, base, &planes).map_err(|e| {
            let e = CudaError::Weight(format!("tensor {}: {e}", entry.name));
            Error::Device(e)
        })?;
        // Some steps would multiply it in int8, and cannot: they need the bf16 form of activations.
        if weight.mmq(MAX_GEMV_TOKENS + 1).is_none() {
            self.needs_bf16.store(true, Ordering::Relaxed);
        }
        let kinds = entry.planes.iter().map(|plane| plane.kind).collect();
        Ok(Matrix {
            name: entry.name.to_owned(),
            weight,
            bias: bias.map(|bias| self.gpu.upload(&bias)).transpose()?,
            base: entry.base.kind,
            kinds,
            role: Role::Dense,
            copy: OnceLock::new(),
            n_gemv: Arc::default(),
            n_gemm: AtomicU64::new(0),
            n_mmq: AtomicU64::new(0),
        })
    }

    fn experts(&self, matrices: ExpertMatrices<Matrix>, shape: ExpertShape) -> Result<Experts> {
        Experts::new(self, matrices, shape)
    }

    fn values(&self, file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Vec<f32>> {
        cpu::values(file, entry)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Buffer<f32>> {
        Ok(self.gpu.upload(&values)?)
    }
}

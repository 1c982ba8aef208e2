//! Where the experts' matrices are, and which kernels read them.

use std::sync::Arc;

use format_spec::QuantType;
use format_spec::plane::PlaneKind;

use crate::cuda::any::RawLayout;
use crate::cuda::driver::Gpu;
use crate::cuda::error::{CudaError, CudaResult};
use crate::cuda::launch::Kernel;
use crate::cuda::memory::Buffer;
use crate::cuda::mmq::{MMQ_KERNELS, MmqArgs, MmqKernel};
use crate::cuda::ops::u32_of;
use crate::cuda::weight::DeviceWeight;

/// Where each expert's rows are, in each of the forms that are on the device.
#[derive(Debug)]
pub struct ExpertTable {
    pub(super) quant: QuantType,
    pub(super) n_expert: usize,
    /// Of one expert.
    pub(super) n_rows: usize,
    pub(super) row_len: usize,
    /// What a GEMV reads.
    pub(super) few: Buffer<u64>,
    pub(super) few_stride: u64,
    pub(super) few_planar: bool,
    /// The layouts that a GEMV finds weights by where no kernel is made for them: that of a stack,
    /// or one an expert.
    pub(super) any: Option<Buffer<RawLayout>>,
    pub(super) gemv: Kernel,
    /// The int8 product, its arguments without addresses and tokens, and the experts' rows.
    pub(super) mmq: Option<(Kernel, MmqArgs, Buffer<u64>)>,
    /// The `bf16` planes and the elements from row to row.
    pub(super) bf16: Option<(Buffer<u64>, usize)>,
}

/// The weights of a table: one that has all experts, one below the other, or one an expert.
struct Members<'w> {
    weights: &'w [&'w DeviceWeight],
    first: &'w DeviceWeight,
    n_expert: usize,
    /// Of one expert.
    n_rows: usize,
}

impl<'w> Members<'w> {
    fn of(weights: &'w [&'w DeviceWeight], n_expert: usize) -> CudaResult<Self> {
        let refuse = |why: String| Err(CudaError::Weight(format!("experts: expected {why}")));
        let (n, first) = (weights.len(), weights.first().copied());
        let Some(first) = first.filter(|_| n == 1 || n == n_expert) else {
            return refuse(format!("{n_expert} matrices, found {n}"));
        };
        let (rows, row_len) = (first.n_rows(), first.row_len());
        if n == 1 && !rows.is_multiple_of(n_expert) {
            return refuse(format!("a multiple of {n_expert} rows, found {rows}"));
        }
        for (expert, w) in weights.iter().enumerate() {
            if (w.n_rows(), w.row_len()) != (rows, row_len) {
                let found = format!("{} x {} for expert {expert}", w.n_rows(), w.row_len());
                return refuse(format!("{rows} x {row_len} as for expert 0, found {found}"));
            }
        }
        let n_rows = if n == 1 { rows / n_expert } else { rows };
        Ok(Self { weights, first, n_expert, n_rows })
    }

    fn is_stack(&self) -> bool {
        self.weights.len() == 1
    }

    /// Whether one kernel that is made for a type and a form serves them all.
    fn are_alike(&self) -> bool {
        let form = |w: &DeviceWeight| (w.quant(), w.few_kind());
        self.weights.iter().all(|w| form(w) == form(self.first))
    }

    /// The address of each expert's first row, from that of a weight and the bytes of `rows` rows.
    fn addresses(
        &self,
        address: impl Fn(&DeviceWeight) -> Option<u64>,
        bytes: u64,
        rows: u64,
    ) -> Option<Vec<u64>> {
        let step = self.n_rows as u64 / rows * bytes;
        let place = |expert: usize| match self.is_stack() {
            true => Some(address(self.first)? + expert as u64 * step),
            false => address(self.weights[expert]),
        };
        (0..self.n_expert).map(place).collect()
    }
}

impl ExpertTable {
    /// The experts of `weights`: a weight each, or one that has them all, one below the other.
    /// Where no kernel is made for what they are in (another base, types that differ, a `planar`
    /// stack whose experts are not made of four rows) they are read by their descriptors.
    ///
    /// # Errors
    /// [`CudaError::Weight`] if there are too few or their shapes differ, or if the rows of a stack
    /// are none of whole experts; if memory is short or the driver fails.
    pub fn new(gpu: &Arc<Gpu>, weights: &[&DeviceWeight], n_expert: usize) -> CudaResult<Self> {
        let members = Members::of(weights, n_expert)?;
        let Members { first, n_rows, .. } = members;
        let (few, are_alike) = (first.few(), members.are_alike());
        let by_descriptors = few.any || !are_alike || (few.planar && !n_rows.is_multiple_of(4));
        let layouts: Vec<RawLayout> = weights.iter().map(|w| RawLayout::of_base(w)).collect();
        let name = match (by_descriptors, few.planar) {
            (true, _) => "gemv_experts_any".to_owned(),
            (_, true) => format!("gemv_experts_planar_{}", first.quant().name()),
            _ => format!("gemv_experts_{}", first.quant().name()),
        };
        let rows_of_few = if few.planar { 4 } else { 1 };
        let few_rows = members.addresses(|w| Some(w.few().address), few.stride, rows_of_few);
        Ok(Self {
            quant: first.quant(),
            n_expert,
            n_rows,
            row_len: first.row_len(),
            few: gpu.upload(&few_rows.unwrap_or_default())?,
            few_stride: few.stride,
            few_planar: few.planar,
            any: if by_descriptors { Some(gpu.upload(&layouts)?) } else { None },
            gemv: gpu.kernel(&name)?,
            mmq: if are_alike { int8(gpu, &members)? } else { None },
            bf16: match first.bf16() {
                None => None,
                Some((_, stride)) => {
                    let plane = |w: &DeviceWeight| w.address_of(PlaneKind::Bf16);
                    match members.addresses(plane, 2 * stride as u64, 1) {
                        Some(rows) => Some((gpu.upload(&rows)?, stride)),
                        None => None,
                    }
                }
            },
        })
    }

    /// Rows of one expert.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Whether there is an int8 product of many tokens that reads what is on the device.
    pub fn has_mmq(&self) -> bool {
        self.mmq.is_some()
    }

    /// Whether products of few tokens read them by their descriptors, slowly.
    pub fn is_read_by_descriptors(&self) -> bool {
        self.any.is_some()
    }

    /// Whether the `bf16` planes are on the device.
    pub fn has_bf16(&self) -> bool {
        self.bf16.is_some()
    }

    /// Whether `other` can share a launch with this: the same type, shape and form.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        let same_layout = self.any.is_none() && other.any.is_none();
        same_layout
            && (self.quant, self.n_rows, self.row_len) == (other.quant, other.n_rows, other.row_len)
            && (self.few_planar, self.few_stride) == (other.few_planar, other.few_stride)
            && self.n_expert == other.n_expert
    }

    /// How many of `tables` one GEMV takes, from the first on.
    pub fn n_together(tables: &[&Self]) -> usize {
        let Some(first) = tables.first() else { return 0 };
        1 + tables[1..].iter().take(1).take_while(|table| first.goes_with(table)).count()
    }
}

/// The int8 product of many tokens that reads what is there, if there is one.
fn int8(
    gpu: &Arc<Gpu>,
    members: &Members<'_>,
) -> CudaResult<Option<(Kernel, MmqArgs, Buffer<u64>)>> {
    let Some((name, kernel)) = mmq_of(members.first) else { return Ok(None) };
    let n_rows = u32_of(members.n_rows);
    let args = MmqArgs { n_rows, ldy: n_rows, ..members.first.mmq_args(kernel)? };
    let base = |w: &DeviceWeight| w.address_of(PlaneKind::Padded);
    let Some(rows) = members.addresses(base, args.w_row_stride, 1) else { return Ok(None) };
    Ok(Some((gpu.kernel(name)?, args, gpu.upload(&rows)?)))
}

/// The int8 product that reads a weight's `padded` base in any shape, and its namesake of experts.
fn mmq_of(weight: &DeviceWeight) -> Option<(&'static str, &'static MmqKernel)> {
    let has_base = weight.address_of(PlaneKind::Padded).is_some();
    let kernel = MMQ_KERNELS
        .iter()
        .find(|kernel| kernel.quant == weight.quant() && kernel.module == "mmq_generic")?;
    has_base.then_some((name_of_experts(kernel)?, kernel))
}

/// Name of a kernel of `moe/mmq.cu`.
fn name_of_experts(kernel: &MmqKernel) -> Option<&'static str> {
    EXPERT_MMQ.iter().copied().find(|name| name.strip_prefix("experts_") == Some(kernel.name))
}

/// The int8 products of experts.
const EXPERT_MMQ: [&str; 10] = [
    "experts_mmq_q4_0",
    "experts_mmq_q4_1",
    "experts_mmq_q5_0",
    "experts_mmq_q5_1",
    "experts_mmq_q8_0",
    "experts_mmq_q2_k",
    "experts_mmq_q3_k",
    "experts_mmq_q4_k_narrow",
    "experts_mmq_q5_k",
    "experts_mmq_q6_k_narrow",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_with_an_int8_product_has_one_for_experts() {
        let narrow = MMQ_KERNELS.iter().filter(|kernel| kernel.module == "mmq_generic");
        assert_eq!(narrow.clone().count(), EXPERT_MMQ.len());
        for kernel in narrow {
            assert!(name_of_experts(kernel).is_some(), "{}", kernel.name);
            assert_eq!((kernel.tile_tokens, kernel.tile_rows), (64, 64), "{}", kernel.name);
        }
    }
}

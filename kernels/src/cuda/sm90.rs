//! bf16 products on Hopper: the copy engine for tensors and the products of warpgroups.

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::Span;
use super::ops::{Gate, address, params, u32_of};
use super::tensor_map::{TensorMap, rows_bf16};

/// Tokens of a block's tile.
const BLOCK_TOKENS: usize = 128;
/// Elements of a row in one buffer of the ring.
const STEP_ELEMS: usize = 64;
/// Most matrices of one launch.
const MAX_MATRICES: usize = 3;

/// A matrix in bf16, `[n_rows, row_len]`.
#[derive(Debug, Clone, Copy)]
pub struct DenseMatrix<'b> {
    /// Its elements.
    pub w: Span<'b, half::bf16>,
    /// Elements from row to row.
    pub stride: usize,
    /// Its rows.
    pub n_rows: usize,
    /// `[n_rows]`.
    pub bias: Option<Span<'b, f32>>,
}

/// One of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sm90Kernel {
    /// Its name.
    pub name: &'static str,
    /// Rows of a block's tile.
    pub block_rows: usize,
    /// Blocks that share their rows.
    pub cluster: usize,
    /// Whether it bends one matrix's product and multiplies it with another's.
    pub gated: bool,
    /// What a row of its tiles takes on a full device, by measurement: 100 is the best.
    percent: usize,
}

macro_rules! kernels {
    ($($gated:literal $block_rows:literal: $pair:literal $p:literal, $one:literal $q:literal;)*) => {
        /// All of them; those that are to be preferred come first.
        pub static SM90_KERNELS: &[Sm90Kernel] = &[$(
            Sm90Kernel {
                name: $pair, block_rows: $block_rows, cluster: 2, gated: $gated, percent: $p,
            },
            Sm90Kernel {
                name: $one, block_rows: $block_rows, cluster: 1, gated: $gated, percent: $q,
            },
        )*];
    };
}

kernels! {
    false 256: "gemm_sm90_256_pair" 100, "gemm_sm90_256" 101;
    false 240: "gemm_sm90_240_pair" 100, "gemm_sm90_240" 101;
    false 192: "gemm_sm90_192_pair" 100, "gemm_sm90_192" 101;
    false 144: "gemm_sm90_144_pair" 100, "gemm_sm90_144" 107;
    false 128: "gemm_sm90_128_pair" 102, "gemm_sm90_128" 111;
    false 112: "gemm_sm90_112_pair" 106, "gemm_sm90_112" 120;
    false 64: "gemm_sm90_64_pair" 152, "gemm_sm90_64" 164;
    true 256: "gemm_sm90_gated_256_pair" 100, "gemm_sm90_gated_256" 102;
    true 240: "gemm_sm90_gated_240_pair" 100, "gemm_sm90_gated_240" 102;
    true 144: "gemm_sm90_gated_144_pair" 105, "gemm_sm90_gated_144" 119;
}

impl Sm90Kernel {
    /// Rows of a matrix that a tile covers.
    fn matrix_rows(&self) -> usize {
        if self.gated { self.block_rows / 2 } else { self.block_rows }
    }

    /// The ring of buffers (as many as `Sm90Shape` in `gemm/sm90.cuh` has), its barriers, and what
    /// aligns it.
    fn shared_bytes(&self) -> u32 {
        let stage_bytes = (BLOCK_TOKENS + self.block_rows) * STEP_ELEMS * 2;
        let n_stages = (227 * 1024 - 2048) / stage_bytes;
        u32_of(n_stages * (stage_bytes + 16) + 1024)
    }

    /// Tiles of a launch: of tokens (a cluster's counted once), of rows.
    fn tiles(&self, n_tokens: usize, rows: impl Iterator<Item = usize>) -> (usize, usize) {
        let n_rows = rows.map(|n| n.div_ceil(self.matrix_rows())).sum();
        (n_tokens.div_ceil(BLOCK_TOKENS * self.cluster), n_rows)
    }

    /// What a launch takes, in some unit: the rows of the tiles that the busiest multiprocessor
    /// makes.
    fn cost(&self, n_tokens: usize, rows: &[usize], n_multiprocessors: u32) -> usize {
        let (n_m, n_n) = self.tiles(n_tokens, rows.iter().copied());
        let n_clusters = (n_multiprocessors as usize / self.cluster).max(1);
        // Tiles without tokens cost what they fetch.
        let (made, wanted) = (n_m * self.cluster, n_tokens.div_ceil(BLOCK_TOKENS));
        (n_m * n_n).div_ceil(n_clusters) * self.block_rows * self.percent * made / wanted.max(1)
    }

    /// The kernel for products of matrices of so many rows each with as many tokens.
    fn choose(
        gated: bool,
        n_tokens: usize,
        rows: &[usize],
        n_multiprocessors: u32,
    ) -> &'static Self {
        let all = SM90_KERNELS.iter().filter(|kernel| kernel.gated == gated);
        let best = all.min_by_key(|kernel| kernel.cost(n_tokens, rows, n_multiprocessors));
        best.unwrap_or(&SM90_KERNELS[0])
    }

    /// The kernel for products of matrices of so many rows each with the same tokens.
    pub fn for_products(gpu: &Gpu, n_tokens: usize, rows: &[usize]) -> &'static Self {
        Self::choose(false, n_tokens, rows, gpu.info().n_multiprocessors)
    }

    /// The kernel for a gated pair of matrices of so many rows each.
    pub fn for_gated(gpu: &Gpu, n_tokens: usize, n_rows: usize) -> &'static Self {
        Self::choose(true, n_tokens, &[n_rows], gpu.info().n_multiprocessors)
    }
}

/// As `Sm90Out` in `gemm/sm90.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawOut {
    y: u64,
    bias: u64,
    n_rows: u32,
    first: u32,
}

/// As `Sm90Job` in `gemm/sm90.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawJob {
    x: TensorMap,
    w: [TensorMap; MAX_MATRICES],
    out: [RawOut; MAX_MATRICES],
    n_tokens: u32,
    n_steps: u32,
    n_m: u32,
    n_n: u32,
    add: u32,
    activation: u32,
}

impl Gpu {
    /// Whether the device has what these kernels are made of.
    pub fn has_sm90(&self) -> bool {
        self.info().compute == (9, 0)
    }

    /// Whether rows of `row_len` elements, `stride` apart, can be read by these kernels.
    pub fn fits_sm90(row_len: usize, stride: usize) -> bool {
        row_len.is_multiple_of(8) && stride.is_multiple_of(8) && row_len > 0
    }

    /// Products of up to three matrices with the same tokens: `y` (added to, if `add`)
    /// `= x w^T + bias`, `[n_tokens, n_rows]` each. `x`: `[n_tokens, row_len]`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or rows do not fit ([`fits_sm90`](Self::fits_sm90)).
    pub fn gemm_sm90(
        &self,
        kernel: &'static Sm90Kernel,
        outs: &[(DenseMatrix<'_>, Span<'_, f32>)],
        x: Span<'_, half::bf16>,
        (n_tokens, row_len): (usize, usize),
        add: bool,
    ) -> CudaResult<()> {
        assert!(!kernel.gated && (1..=MAX_MATRICES).contains(&outs.len()), "{}", kernel.name);
        let (n_m, n_n) = kernel.tiles(n_tokens, outs.iter().map(|(m, _)| m.n_rows));
        let mut job = self.job(x, (n_tokens, row_len), (n_m, n_n))?;
        let mut first = 0;
        for ((raw, map), (matrix, y)) in job.out.iter_mut().zip(&mut job.w).zip(outs) {
            assert!(y.len() >= n_tokens * matrix.n_rows, "outputs");
            assert!(matrix.n_rows % 4 != 0 || y.ptr.is_multiple_of(16), "outputs at {}", y.ptr);
            *map = matrix.map(row_len, kernel.block_rows / 2)?;
            *raw = matrix.out(y.ptr, first);
            first += u32_of(matrix.n_rows.div_ceil(kernel.block_rows));
        }
        job.add = u32::from(add);
        self.launch_sm90(kernel, job)
    }

    /// `y = activation(x gate^T) * (x up^T)` in bf16, `[n_tokens, n_rows]`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree, rows do not fit ([`fits_sm90`](Self::fits_sm90)), or there are not a
    /// multiple of eight of them.
    #[allow(clippy::too_many_arguments)]
    pub fn gated_sm90(
        &self,
        kernel: &'static Sm90Kernel,
        y: Span<'_, half::bf16>,
        (gate, up): (&DenseMatrix<'_>, &DenseMatrix<'_>),
        activation: Gate,
        x: Span<'_, half::bf16>,
        (n_tokens, row_len): (usize, usize),
    ) -> CudaResult<()> {
        assert!(kernel.gated && gate.n_rows == up.n_rows && gate.n_rows.is_multiple_of(8));
        assert!(y.len() >= n_tokens * gate.n_rows && y.ptr.is_multiple_of(16), "outputs");
        let tiles = kernel.tiles(n_tokens, std::iter::once(gate.n_rows));
        let mut job = self.job(x, (n_tokens, row_len), tiles)?;
        for ((raw, map), matrix) in job.out.iter_mut().zip(&mut job.w).zip([gate, up]) {
            *map = matrix.map(row_len, kernel.block_rows / 2)?;
            *raw = matrix.out(y.ptr, 0);
        }
        job.activation = match activation {
            Gate::Silu => 0,
            Gate::GeluTanh => 1,
        };
        self.launch_sm90(kernel, job)
    }

    fn job(
        &self,
        x: Span<'_, half::bf16>,
        (n_tokens, row_len): (usize, usize),
        (n_m, n_n): (usize, usize),
    ) -> CudaResult<RawJob> {
        assert!(Self::fits_sm90(row_len, row_len), "rows of {row_len}");
        let none = RawOut { y: 0, bias: 0, n_rows: 0, first: u32::MAX };
        let map = rows_bf16(x, (n_tokens, row_len, row_len), u32_of(BLOCK_TOKENS))?;
        Ok(RawJob {
            x: map,
            w: [map; MAX_MATRICES],
            out: [none; MAX_MATRICES],
            n_tokens: u32_of(n_tokens),
            n_steps: u32_of(row_len.div_ceil(STEP_ELEMS)),
            n_m: u32_of(n_m),
            n_n: u32_of(n_n),
            add: 0,
            activation: 0,
        })
    }

    fn launch_sm90(&self, kernel: &'static Sm90Kernel, job: RawJob) -> CudaResult<()> {
        assert!(self.has_sm90(), "{} is made for another device", kernel.name);
        let cluster = u32_of(kernel.cluster);
        let n_clusters = (self.info().n_multiprocessors / cluster).min(job.n_m * job.n_n);
        let shape = Shape {
            grid: (n_clusters * cluster, 1, 1),
            block: 384,
            shared: kernel.shared_bytes(),
            waits: true,
        };
        let function = self.known_with(kernel.name, shape.shared)?;
        // SAFETY: the parameter of every `gemm_sm90_*`; lengths are checked by the callers.
        unsafe { self.launch(function, shape, params![job]) }
    }
}

impl DenseMatrix<'_> {
    fn map(&self, row_len: usize, box_rows: usize) -> CudaResult<TensorMap> {
        let (n_rows, stride) = (self.n_rows, self.stride);
        assert!(Gpu::fits_sm90(row_len, stride), "rows of {row_len}, {stride}");
        rows_bf16(self.w, (n_rows, row_len, stride), u32_of(box_rows))
    }

    fn out(&self, y: u64, first: u32) -> RawOut {
        assert!(self.bias.is_none_or(|bias| bias.len() >= self.n_rows), "bias");
        RawOut { y, bias: address(self.bias), n_rows: u32_of(self.n_rows), first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own lines behind [`Sm90Kernel::shared_bytes`]: whoever changes them comes by here.
    #[test]
    fn shared_memory_is_what_the_kernel_lays_out() {
        let source = include_str!("../../cuda/gemm/sm90.cuh");
        for line in [
            "constexpr int SM90_BM = 128, SM90_BK = 64, SM90_THREADS = 384;",
            "X_BYTES = SM90_BM * SM90_BK * 2, W_BYTES = BN * SM90_BK * 2;",
            "STAGES = (227 * 1024 - 2048) / STAGE_BYTES;",
            "full = buffers + S::STAGES * S::STAGE_BYTES, empty = full + S::STAGES * 8;",
        ] {
            assert!(source.contains(line), "{line}");
        }
        for kernel in SM90_KERNELS {
            assert!(kernel.shared_bytes() <= 227 * 1024, "{}", kernel.name);
        }
    }

    /// Shapes of a 7B model on 132 multiprocessors: what was fastest there.
    #[test]
    fn the_fastest_kernels_are_chosen() {
        let choose =
            |gated, n_tokens, rows: &[usize]| Sm90Kernel::choose(gated, n_tokens, rows, 132).name;
        assert_eq!(choose(false, 3325, &[3584]), "gemm_sm90_240_pair");
        assert_eq!(choose(false, 3325, &[3584, 512, 512]), "gemm_sm90_192_pair");
        assert_eq!(choose(false, 3325, &[18944]), "gemm_sm90_144_pair");
        assert_eq!(choose(true, 3325, &[18944]), "gemm_sm90_gated_256_pair");
        assert_eq!(choose(false, 512, &[3584]), "gemm_sm90_112_pair");
        assert_eq!(choose(false, 512, &[3584, 512, 512]), "gemm_sm90_144_pair");
        assert_eq!(choose(true, 512, &[18944]), "gemm_sm90_gated_240_pair");
        assert_eq!(choose(true, 128, &[18944]), "gemm_sm90_gated_144");
        assert_eq!(choose(false, 128, &[3584]), "gemm_sm90_64");
        assert_eq!(choose(false, 128, &[18944]), "gemm_sm90_144");
    }
}

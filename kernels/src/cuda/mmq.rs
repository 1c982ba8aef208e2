//! The int8 tensor-core products of many tokens (`kernels/cuda/mmq/`): which kernels there are,
//! what each reads, and how it is launched.
//!
//! A product is `y[token][row] = sum over k of w[row][k] * x[token][k]`, plus bias and residual.
//! Activations are int8 with a scale and a sum for each 32 elements (`quantize/q8.cuh`). Every
//! kernel takes one [`MmqArgs`] by value, [`MmqKernel::THREADS`] threads a block,
//! [`MmqKernel::grid`] blocks and [`MmqKernel::shared_bytes`] of dynamic shared memory (which may
//! have to be allowed first). Any number of rows and tokens is right, whatever the tile.
//!
//! Reading strides: [`MmqArgs::new`] takes them from the layouts' descriptors and from nothing else.

use format_spec::QuantType;
use format_spec::plane::{FieldName, Layout, PlaneKind};

use crate::{Error, Result};

/// The objects that a kernel reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MmqObjects {
    /// The base alone.
    Padded,
    /// Integers from the base, scales from `dsc`.
    PaddedDsc,
    /// Integers from `exp`, scales from the base.
    Exp,
    /// Integers from `exp`, scales from `dsc`.
    ExpDsc,
    /// Integers from `eb`, scales and minimums from `sb`.
    EbSb,
}

impl MmqObjects {
    /// The kind with the integers and the kind with the scales.
    pub fn kinds(self) -> (PlaneKind, PlaneKind) {
        match self {
            Self::Padded => (PlaneKind::Padded, PlaneKind::Padded),
            Self::PaddedDsc => (PlaneKind::Padded, PlaneKind::Dsc),
            Self::Exp => (PlaneKind::Exp, PlaneKind::Padded),
            Self::ExpDsc => (PlaneKind::Exp, PlaneKind::Dsc),
            Self::EbSb => (PlaneKind::Eb, PlaneKind::Sb),
        }
    }
}

/// One kernel: its name in its module, and how it is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmqKernel {
    /// Name of the function.
    pub name: &'static str,
    /// The fatbin that has it.
    pub module: &'static str,
    /// Type of the weights.
    pub quant: QuantType,
    /// What it reads.
    pub objects: MmqObjects,
    /// Tokens of a block.
    pub tile_tokens: u32,
    /// Rows of a block.
    pub tile_rows: u32,
    /// Elements of a row that `row_len` must be a multiple of.
    pub row_len_step: u32,
    /// Tiles in shared memory that take turns.
    pub buffers: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl MmqKernel {
    /// Threads of a block.
    pub const THREADS: u32 = 256;

    /// Blocks of a launch: tiles of tokens, tiles of rows.
    pub fn grid(&self, n_tokens: u32, n_rows: u32) -> (u32, u32, u32) {
        (n_tokens.div_ceil(self.tile_tokens), n_rows.div_ceil(self.tile_rows), 1)
    }

    const fn q6_k(name: &'static str, objects: MmqObjects, kdr: u32, raw: bool) -> Self {
        // `Tile<KDR>` in q6_k.cu: integers, pairs of the tokens, scales of the rows. Three buffers
        // where they leave room for three blocks and nothing else has a second buffer.
        let row = kdr * 32 + 16;
        let pairs = if kdr > 2 { kdr + 2 } else { kdr };
        let tile = (128 + 64) * row + 128 * pairs * 8 + kdr * 2 * 64 * 4;
        let raw_bytes = if raw { 64 * kdr * 2 * 32 } else { 0 };
        let buffers = if raw || kdr > 2 { 2 } else { 3 };
        Self {
            name,
            module: "mmq_q6_k",
            quant: QuantType::Q6_K,
            objects,
            tile_tokens: 128,
            tile_rows: 64,
            row_len_step: 256,
            buffers,
            shared_bytes: buffers * (tile + raw_bytes),
        }
    }

    const fn q4_k(name: &'static str, objects: MmqObjects, kd: u32, buffers: u32) -> Self {
        let tile = 2 * 128 * (kd * 32 + 16) + 128 * (kd + 2) * 8 + kd * 132 * 8;
        Self {
            name,
            module: "mmq_q4_k",
            quant: QuantType::Q4_K,
            objects,
            tile_tokens: 128,
            tile_rows: 128,
            row_len_step: 256,
            buffers,
            shared_bytes: buffers * tile,
        }
    }

    const fn narrow(name: &'static str, quant: QuantType, row_len_step: u32) -> Self {
        Self {
            name,
            module: "mmq_generic",
            quant,
            objects: MmqObjects::Padded,
            tile_tokens: 64,
            tile_rows: 64,
            row_len_step,
            buffers: 2,
            shared_bytes: 0,
        }
    }
}

/// Every kernel. The first that fits what a container has is the one to launch; those behind
/// [`N_CHOSEN`] exist to be measured.
pub static MMQ_KERNELS: &[MmqKernel] = &[
    MmqKernel::q6_k("mmq_q6_k_kdr4_exp_dsc", MmqObjects::ExpDsc, 4, false),
    MmqKernel::q6_k("mmq_q6_k_kdr4_exp", MmqObjects::Exp, 4, false),
    MmqKernel::q6_k("mmq_q6_k_kdr2_padded", MmqObjects::Padded, 2, false),
    MmqKernel::q4_k("mmq_q4_k_kd8_eb", MmqObjects::EbSb, 8, 1),
    MmqKernel::q4_k("mmq_q4_k_kd4_eb", MmqObjects::EbSb, 4, 2),
    MmqKernel::q4_k("mmq_q4_k_kd8_padded", MmqObjects::Padded, 8, 1),
    MmqKernel::q4_k("mmq_q4_k_kd4_padded", MmqObjects::Padded, 4, 2),
    MmqKernel::narrow("mmq_q4_0", QuantType::Q4_0, 32),
    MmqKernel::narrow("mmq_q4_1", QuantType::Q4_1, 32),
    MmqKernel::narrow("mmq_q5_0", QuantType::Q5_0, 32),
    MmqKernel::narrow("mmq_q5_1", QuantType::Q5_1, 32),
    MmqKernel::narrow("mmq_q8_0", QuantType::Q8_0, 32),
    MmqKernel::narrow("mmq_q2_k", QuantType::Q2_K, 256),
    MmqKernel::narrow("mmq_q3_k", QuantType::Q3_K, 256),
    MmqKernel::narrow("mmq_q5_k", QuantType::Q5_K, 256),
    MmqKernel::narrow("mmq_q4_k_narrow", QuantType::Q4_K, 256),
    MmqKernel::narrow("mmq_q6_k_narrow", QuantType::Q6_K, 256),
    MmqKernel::q6_k("mmq_q6_k_kdr2_padded_dsc", MmqObjects::PaddedDsc, 2, false),
    MmqKernel::q6_k("mmq_q6_k_kdr2_padded_copied", MmqObjects::Padded, 2, true),
    MmqKernel::q6_k("mmq_q6_k_kdr2_exp_loaded", MmqObjects::Exp, 2, false),
    MmqKernel::q6_k("mmq_q6_k_kdr4_padded", MmqObjects::Padded, 4, false),
    MmqKernel::q6_k("mmq_q6_k_kdr2_exp", MmqObjects::Exp, 2, false),
    MmqKernel::q6_k("mmq_q6_k_kdr2_exp_dsc", MmqObjects::ExpDsc, 2, false),
];

/// How many of [`MMQ_KERNELS`] [`choose_for`] looks at.
pub const N_CHOSEN: usize = 17;

/// Tokens from which a wide tile is worth it: below, half of it would be zeros.
const WIDE_TOKENS: u32 = 64;
/// Blocks from which a wide tile is worth it: with fewer, half of an H200's 132 multiprocessors
/// would be idle, and more blocks of a narrow tile are faster.
const WIDE_BLOCKS: u32 = 66;
/// Blocks from which a tile of a whole super-block in one buffer is worth it: the two blocks of a
/// multiprocessor hide each other's waits.
const ONE_BUFFER_BLOCKS: u32 = 264;

/// The kernel for a weight of many rows: `has` are the kinds of the objects that may be read.
/// `None` for types without one (plain floats).
pub fn choose(quant: QuantType, has: &[PlaneKind], n_tokens: u32) -> Option<&'static MmqKernel> {
    choose_for(quant, has, u32::MAX, n_tokens)
}

/// As [`choose`], for a weight of `n_rows` rows: few blocks are better off with narrow tiles.
pub fn choose_for(
    quant: QuantType,
    has: &[PlaneKind],
    n_rows: u32,
    n_tokens: u32,
) -> Option<&'static MmqKernel> {
    let fits = |kernel: &MmqKernel| {
        // `exp` is read wherever it is there: with few blocks it is as fast as the narrow kernel.
        let exp = kernel.objects.kinds().0 == PlaneKind::Exp;
        if kernel.tile_tokens <= WIDE_TOKENS || exp {
            return true;
        }
        let (tokens, rows, _) = kernel.grid(n_tokens, n_rows);
        let least = if kernel.buffers > 1 { WIDE_BLOCKS } else { ONE_BUFFER_BLOCKS };
        n_tokens > WIDE_TOKENS && tokens.saturating_mul(rows) >= least
    };
    MMQ_KERNELS[..N_CHOSEN].iter().find(|kernel| {
        let (w, p) = kernel.objects.kinds();
        kernel.quant == quant && has.contains(&w) && has.contains(&p) && fits(kernel)
    })
}

/// The one argument of every kernel, as `MmqArgs` in `kernels/cuda/mmq/mma.cuh`. Addresses are
/// device addresses; 0 is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MmqArgs {
    /// f32 `[n_tokens][ldy]`.
    pub y: u64,
    /// i8 `[n_tokens][row_len]`, 16-byte aligned.
    pub xq: u64,
    /// Pairs of f32 (scale, scale * sum), `[n_tokens][row_len / 32]`, 16-byte aligned.
    pub xds: u64,
    /// The object with the integers.
    pub w: u64,
    /// The object with the scales; the same where there is one object.
    pub p: u64,
    /// f32 `[n_rows]`, or 0.
    pub bias: u64,
    /// f32 `[n_tokens][ldy]`, or 0; may be `y` itself.
    pub residual: u64,
    /// Bytes from row to row of the integers.
    pub w_row_stride: u64,
    /// Bytes from (super-)block to (super-)block.
    pub w_k_stride: u64,
    /// Bytes from row to row of the scales.
    pub p_row_stride: u64,
    /// Bytes from group to group of the scales.
    pub p_k_stride: u64,
    /// Tokens.
    pub n_tokens: u32,
    /// Rows of the weight.
    pub n_rows: u32,
    /// Elements of a row.
    pub row_len: u32,
    /// Elements from token to token of `y`.
    pub ldy: u32,
}

impl MmqArgs {
    /// Shape and strides for a kernel and the layouts of the objects that it reads; addresses and
    /// tokens are left 0, `ldy` is the number of rows.
    ///
    /// # Errors
    /// [`Error::Plane`] if a layout is of another kind or type than the kernel reads,
    /// [`Error::Shape`] if they are of different tensors, or rows do not fit the kernel.
    pub fn new(kernel: &MmqKernel, w: &Layout, p: &Layout) -> Result<Self> {
        let kinds = kernel.objects.kinds();
        for (layout, kind) in [(w, kinds.0), (p, kinds.1)] {
            if layout.kind() != kind || layout.quant() != kernel.quant {
                let plane = layout.kind().name();
                return Err(Error::Plane { plane, why: "this kernel does not read it" });
            }
        }
        let (geometry, other) = (w.geometry(), p.geometry());
        let shape = |what, expected, found| Err(Error::Shape { what, expected, found });
        if geometry != other {
            return shape("rows of the scales", geometry.n_rows, other.n_rows);
        }
        let step = u64::from(kernel.row_len_step);
        let (Ok(n_rows), Ok(row_len)) =
            (u32::try_from(geometry.n_rows), u32::try_from(geometry.row_len))
        else {
            return shape("rows and elements", u64::from(u32::MAX), geometry.n_rows);
        };
        if !geometry.row_len.is_multiple_of(step) {
            return shape("elements of a row", step, geometry.row_len);
        }
        let integers = w.field(FieldName::Quant);
        let scales = p.field(FieldName::Scale).or(p.field(FieldName::D));
        let (Some(integers), Some(scales)) = (integers, scales) else {
            return Err(Error::Plane { plane: w.kind().name(), why: "it has no integers" });
        };
        Ok(Self {
            w_row_stride: integers.row_group_stride,
            w_k_stride: integers.k_group_stride,
            p_row_stride: scales.row_group_stride,
            p_k_stride: scales.k_group_stride,
            n_rows,
            row_len,
            ldy: n_rows,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format_spec::Geometry;
    use std::mem::{offset_of, size_of};

    fn layout(kind: PlaneKind, quant: QuantType, n_rows: u64, row_len: u64) -> Layout {
        Layout::new(kind, quant, Geometry { n_rows, row_len }).expect("a layout")
    }

    #[test]
    fn arguments_lie_as_the_c_struct_has_them() {
        // Seven pointers, four 64-bit strides, four 32-bit numbers: no padding.
        assert_eq!(size_of::<MmqArgs>(), 7 * 8 + 4 * 8 + 4 * 4);
        assert_eq!(offset_of!(MmqArgs, w_row_stride), 56);
        assert_eq!(offset_of!(MmqArgs, n_tokens), 88);
    }

    #[test]
    fn strides_are_those_of_the_layouts() {
        let kernel = choose(QuantType::Q6_K, &[PlaneKind::Padded, PlaneKind::Exp], 512).unwrap();
        assert_eq!(kernel.name, "mmq_q6_k_kdr4_exp");
        let exp = layout(PlaneKind::Exp, QuantType::Q6_K, 40, 512);
        let padded = layout(PlaneKind::Padded, QuantType::Q6_K, 40, 512);
        let args = MmqArgs::new(kernel, &exp, &padded).unwrap();
        assert_eq!((args.w_row_stride, args.w_k_stride), (512, 256));
        assert_eq!((args.p_row_stride, args.p_k_stride), (448, 224));
        let all = [PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc];
        let kernel = choose(QuantType::Q6_K, &all, 512).unwrap();
        let dsc = layout(PlaneKind::Dsc, QuantType::Q6_K, 40, 512);
        let args = MmqArgs::new(kernel, &exp, &dsc).unwrap();
        assert_eq!((args.p_row_stride, args.p_k_stride), (4, 160));
        // Another tensor's plane, another kind, another type.
        let other = layout(PlaneKind::Dsc, QuantType::Q6_K, 44, 512);
        assert!(MmqArgs::new(kernel, &exp, &other).is_err());
        assert!(MmqArgs::new(kernel, &padded, &dsc).is_err());
        let q4_k = layout(PlaneKind::Padded, QuantType::Q4_K, 40, 512);
        assert!(MmqArgs::new(kernel, &q4_k, &dsc).is_err());
    }

    #[test]
    fn every_quantized_type_has_a_kernel_and_planes_come_first() {
        for &quant in QuantType::ALL {
            for n_tokens in [1, 64, 65, 4096] {
                let found = choose(quant, &[PlaneKind::Padded], n_tokens);
                assert_eq!(found.is_some(), !quant.is_float(), "{quant:?}");
            }
        }
        let name = |has: &[PlaneKind], n_rows, n_tokens| {
            choose_for(QuantType::Q4_K, has, n_rows, n_tokens).map(|k| k.name)
        };
        let base = [PlaneKind::Padded];
        let planes = [PlaneKind::Padded, PlaneKind::Eb, PlaneKind::Sb];
        // Few tokens, few blocks, enough blocks, enough for one buffer.
        assert_eq!(name(&base, 18944, 33), Some("mmq_q4_k_narrow"));
        assert_eq!(name(&planes, 512, 512), Some("mmq_q4_k_narrow"));
        assert_eq!(name(&base, 3584, 512), Some("mmq_q4_k_kd4_padded"));
        assert_eq!(name(&planes, 3584, 512), Some("mmq_q4_k_kd4_eb"));
        assert_eq!(name(&base, 18944, 3325), Some("mmq_q4_k_kd8_padded"));
        assert_eq!(name(&planes, 3584, 3325), Some("mmq_q4_k_kd8_eb"));
        // One of two planes is none.
        let lone = [PlaneKind::Padded, PlaneKind::Eb];
        assert_eq!(name(&lone, 3584, 512), Some("mmq_q4_k_kd4_padded"));
    }

    #[test]
    fn names_are_unique_and_shared_memory_fits() {
        for (i, kernel) in MMQ_KERNELS.iter().enumerate() {
            assert!(MMQ_KERNELS[..i].iter().all(|other| other.name != kernel.name));
            // The largest block of an H200; sm_86, 89 and 120 have 99 KiB.
            assert!(kernel.shared_bytes <= 99 << 10, "{}", kernel.name);
        }
    }
}

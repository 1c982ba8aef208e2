//! What a matrix product on the GPU reports about itself.

use super::bind::Role;
use super::{Cuda, Family, MAX_SMALL_TOKENS, Matrix};
use crate::open::Prefill;
use crate::report::{KernelReport, MatmulReport};
use format_spec::PlaneKind;
use kernels::cuda::MAX_GEMV_TOKENS;
use std::sync::atomic::Ordering;

/// Planes that int8 products read.
const PLANES: [PlaneKind; 4] = [PlaneKind::Exp, PlaneKind::Dsc, PlaneKind::Eb, PlaneKind::Sb];

/// Why a base is slow on a GPU.
const BY_DESCRIPTORS: &str = "no GPU kernel is made for this base: read by its descriptors, slowly";

/// Why experts are slow on a GPU though each of their matrices has a kernel.
const MIXED_EXPERTS: &str = "no GPU kernel is made for experts of several types, or planar ones whose rows are not made of \
                             four: read by their descriptors, slowly";

/// Why a router has kernels of its own.
const AFFINITIES: &str = "affinities to experts are summed in f32";

/// Tokens of the prefill that the table is about.
const MANY_TOKENS: usize = 512;

pub(super) fn matmul(cuda: &Cuda, matrix: &Matrix) -> MatmulReport {
    let weight = &matrix.weight;
    let (quant, few) = (weight.quant().name(), weight.few_kind());
    let of = if matches!(matrix.role, Role::Experts { .. }) { "experts_" } else { "" };
    let is_mixed = matches!(matrix.role, Role::Experts { by_descriptors: true, .. });
    let is_slow = weight.is_read_by_descriptors() || is_mixed;
    // By descriptors it is always the base.
    let reads = if is_mixed { matrix.base.name() } else { few.name() };
    let (kernel, reason) = if weight.is_read_by_descriptors() {
        (format!("gemv_{of}any"), BY_DESCRIPTORS.to_owned())
    } else if is_mixed {
        (format!("gemv_{of}any"), MIXED_EXPERTS.to_owned())
    } else if matrix.role == Role::Router && weight.f32_rows().is_some() {
        ("moe_logits_few".to_owned(), AFFINITIES.to_owned())
    } else {
        let form = if few == PlaneKind::Planar { "planar_" } else { "" };
        let plain = format!("gemv_{of}{form}{quant}");
        let is_dense = matches!(matrix.role, Role::Dense);
        match is_dense && cuda.rings(&[matrix], 1, false) {
            true => {
                // A launch takes several matrices, of one type or more, or a gated pair.
                let reason = format!("one token; {plain} for 2 to {MAX_GEMV_TOKENS}");
                (format!("gemv_ring_{}", few.name()), reason)
            }
            false => (plain, format!("steps of {MAX_GEMV_TOKENS} tokens or fewer")),
        }
    };
    MatmulReport {
        name: matrix.name.clone(),
        quant,
        n_rows: weight.n_rows() as u64,
        row_len: weight.row_len() as u64,
        prefill: match matrix.role {
            Role::Dense => prefill(cuda, matrix),
            Role::Router => router(cuda, matrix),
            Role::Experts { int8, .. } => experts(cuda, matrix, int8),
        },
        decode: KernelReport {
            reads: reads.to_owned(),
            kernel,
            label: reads.to_owned(),
            reason,
            is_slow,
            n_launches: matrix.n_gemv.load(Ordering::Relaxed),
        },
    }
}

fn prefill(cuda: &Cuda, matrix: &Matrix) -> KernelReport {
    let n_gemm = matrix.n_gemm.load(Ordering::Relaxed);
    let n_mmq = matrix.n_mmq.load(Ordering::Relaxed);
    let report = |reads: &str, kernel: String, label: &str, reason: String| KernelReport {
        reads: reads.to_owned(),
        kernel,
        label: label.to_owned(),
        reason,
        is_slow: false,
        n_launches: n_gemm + n_mmq,
    };
    let has = |kind| matrix.kinds.contains(&kind);
    if let (Family::Mmq, Some(kernel)) = (cuda.family, matrix.weight.mmq(MANY_TOKENS)) {
        let reads = kernel.objects.kinds().0;
        let (label, reason) = if reads != PlaneKind::Padded {
            (reads.name(), "int8 products read the plane".to_owned())
        } else if has(PlaneKind::Exp) && !cuda.exp_plane {
            ("off", "the exp plane is switched off".to_owned())
        } else if matrix.weight.mmq(usize::MAX).is_some_and(|k| k.objects.kinds().0 != reads) {
            ("padded", "too few blocks at 512 tokens for the kernel of the plane".to_owned())
        } else if PLANES.iter().any(|&plane| has(plane)) {
            ("fallback!", "a plane is in the container and no kernel takes it".to_owned())
        } else {
            ("padded", "int8 products from the base: no plane for them is in the file".to_owned())
        };
        return report(reads.name(), kernel.name.to_owned(), label, reason);
    }
    let gemm = cuda.dense.kernel();
    let small = match cuda.small_in_int8() {
        true if cuda.family == Family::Bf16 && !matrix.weight.quant().is_float() => {
            format!("; up to {MAX_SMALL_TOKENS} tokens int8 products ({n_mmq} launches)")
        }
        _ => String::new(),
    };
    if matrix.weight.bf16().is_some() {
        return report("bf16", gemm.to_owned(), "bf16", format!("bf16 products{small}"));
    }
    let quant = matrix.weight.quant().name();
    let base = matrix.base;
    let form = if base == PlaneKind::Planar { "planar_" } else { "" };
    let label =
        if has(PlaneKind::Bf16) && cuda.family == Family::Bf16 { "fallback!" } else { base.name() };
    if matrix.weight.is_read_by_descriptors() {
        let kernel = format!("dequant_any + {gemm}");
        let reason = BY_DESCRIPTORS.to_owned();
        return KernelReport { is_slow: true, ..report(base.name(), kernel, label, reason) };
    }
    let into = match (matrix.copy.get(), cuda.copies.are_kept(), n_gemm) {
        (Some(_), ..) => "a copy that is kept",
        (None, true, 0) => "a copy that is kept, if there is room for it",
        _ => "scratch",
    };
    let reason = format!("bf16 products, dequantized into {into}{small}");
    report(base.name(), format!("dequant_{form}{quant} + {gemm}"), label, reason)
}

fn router(cuda: &Cuda, matrix: &Matrix) -> KernelReport {
    if matrix.weight.f32_rows().is_none() {
        return prefill(cuda, matrix);
    }
    let label = matrix.base.name().to_owned();
    KernelReport {
        reads: label.clone(),
        kernel: "moe_logits".to_owned(),
        label,
        reason: AFFINITIES.to_owned(),
        is_slow: false,
        n_launches: matrix.n_gemm.load(Ordering::Relaxed),
    }
}

fn experts(cuda: &Cuda, matrix: &Matrix, has_int8: bool) -> KernelReport {
    let (quant, base) = (matrix.weight.quant().name(), matrix.base.name());
    let n_gemm = matrix.n_gemm.load(Ordering::Relaxed);
    let n_mmq = matrix.n_mmq.load(Ordering::Relaxed);
    let report = |reads: &str, kernel: String, label: &str, reason: String| KernelReport {
        reads: reads.to_owned(),
        kernel,
        label: label.to_owned(),
        reason,
        is_slow: false,
        n_launches: n_gemm + n_mmq,
    };
    let both = matches!(cuda.options.prefill, Prefill::Auto) && cuda.family == Family::Bf16;
    let int8 = has_int8 && (cuda.family == Family::Mmq || both);
    if int8 {
        let more = if both {
            format!(", up to {MAX_SMALL_TOKENS} tokens an expert; beyond, bf16 ({n_gemm} launches)")
        } else {
            String::new()
        };
        let planes = if PLANES.iter().any(|plane| matrix.kinds.contains(plane)) {
            " (planes for int8 are in the file; products of experts have no kernel for them)"
        } else {
            ""
        };
        let reason = format!("int8 products of experts read the base{planes}{more}");
        return report(base, format!("experts_mmq_{quant}"), base, reason);
    }
    let kernel = "experts_gemm_bf16";
    if matrix.weight.bf16().is_some() {
        let reason = "bf16 products of experts".to_owned();
        return report("bf16", kernel.to_owned(), "bf16", reason);
    }
    let is_slow = matrix.weight.is_read_by_descriptors();
    let (dequant, reason) = if is_slow {
        ("dequant_any".to_owned(), BY_DESCRIPTORS)
    } else {
        let form = if matrix.base == PlaneKind::Planar { "planar_" } else { "" };
        (format!("dequant_{form}{quant}"), "bf16 products of experts, dequantized into scratch")
    };
    let report = report(base, format!("{dequant} + {kernel}"), base, reason.to_owned());
    KernelReport { is_slow, ..report }
}

//! Checks a plane against its base weight by weight, through the fields and nothing else.
//!
//! This shares no code with the functions that produce planes, so that a wrong producer is found
//! even when the hashes agree.

use std::ops::Range;

use half::bf16;

use super::{Encoding, FieldName, Geometry, Layout};

/// A place where a plane says something else than the base.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// Which part of the weight: `quant`, `scale`, `min` or `value`.
    pub part: &'static str,
    /// Row.
    pub row: u64,
    /// Element of the row.
    pub k: u64,
    /// Byte inside the plane object.
    pub byte: u64,
    /// What the base gives.
    pub expected: f32,
    /// What the plane holds.
    pub found: f32,
}

/// First weight in `rows` for which the plane's bytes differ from what its base gives.
///
/// `base` and `plane`: layouts of one tensor with the bytes of the whole objects. A part that the
/// base does not have (a minimum of q6_K) counts as different. A plane of bf16 values holds the
/// rounded weights of its base.
///
/// # Panics
/// If the layouts are of different geometry, or bytes are shorter than their layout.
pub fn find_mismatch(
    base: (&Layout, &[u8]),
    plane: (&Layout, &[u8]),
    rows: Range<u64>,
) -> Option<Mismatch> {
    let ((base, base_bytes), (plane, plane_bytes)) = (base, plane);
    assert_eq!(base.geometry(), plane.geometry(), "layouts of two tensors");
    type Part = fn(&Layout, &[u8], u64, u64) -> Option<f32>;
    let parts: [(&'static str, FieldName, Part); 5] = [
        ("quant", FieldName::Quant, Layout::quant_at),
        ("scale", FieldName::Scale, Layout::scale_at),
        ("scale", FieldName::D, Layout::scale_at),
        ("min", FieldName::Min, Layout::min_at),
        ("value", FieldName::Value, |layout, bytes, row, k| Some(layout.value(bytes, row, k))),
    ];
    let Geometry { row_len, .. } = base.geometry();
    for (part, name, read) in parts {
        let Some(field) = plane.field(name) else { continue };
        // A cell that covers several elements is compared once.
        let shared = field.k_bits.iter().all(|&stride| stride == 0);
        let step = if shared { field.k_per_group as usize } else { 1 };
        for row in rows.clone() {
            for k in (0..row_len).step_by(step) {
                let expected = read(base, base_bytes, row, k);
                let expected = match field.encoding {
                    Encoding::Bf16 => expected.map(|value| bf16::from_f32(value).to_f32()),
                    _ => expected,
                };
                let found = read(plane, plane_bytes, row, k);
                if !same(expected, found) {
                    let byte = field.locate(row, k).byte;
                    let [expected, found] = [expected, found].map(|part| part.unwrap_or(f32::NAN));
                    return Some(Mismatch { part, row, k, byte, expected, found });
                }
            }
        }
    }
    None
}

/// Bit equality; of two NaN the payload does not matter, since arithmetic need not keep it.
fn same(a: Option<f32>, b: Option<f32>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
        _ => false,
    }
}

//! The scan for scales and weights that are infinite or not a number.
//!
//! One such block makes every logit NaN, and a chat that is only somewhat wrong hides it. The scan
//! costs a few loads a block, on bytes that the packer holds anyway.

use format_spec::plane::{Encoding, Field, Geometry, Layout, PlaneKind};

use crate::error::Error;

/// Finds the first non-finite float of base rows. `rows`: bytes of consecutive rows of the object;
/// `source`: the first row's number in the tensor, and the GGUF bytes of these rows.
pub(crate) fn check(
    layout: &Layout,
    tensor: &str,
    source: (u64, &[u8]),
    rows: &[u8],
) -> Result<(), Error> {
    let (first_row, gguf_rows) = source;
    let row_stride = layout.row_stride().and_then(|n| usize::try_from(n).ok());
    let Some(row_stride) = row_stride.filter(|_| layout.kind() == PlaneKind::Padded) else {
        return check_gguf(layout, tensor, first_row, gguf_rows);
    };
    let floats = layout
        .fields()
        .iter()
        .filter(|field| matches!(field.encoding, Encoding::F16 | Encoding::Bf16 | Encoding::F32));
    for field in floats {
        for (row, bytes) in (first_row..).zip(rows.chunks_exact(row_stride)) {
            if let Some(group) = first_in_row(layout, field, bytes) {
                return Err(describe(layout, tensor, field, row, group, bytes));
            }
        }
    }
    Ok(())
}

/// The same on GGUF rows, for a base whose rows do not lie on their own.
fn check_gguf(layout: &Layout, tensor: &str, first_row: u64, rows: &[u8]) -> Result<(), Error> {
    let quant = layout.quant();
    let row_bytes = usize::try_from(layout.gguf_row_bytes()).unwrap_or(usize::MAX);
    for (row, bytes) in (first_row..).zip(rows.chunks_exact(row_bytes)) {
        if quant.find_non_finite_scale(bytes).is_none() {
            continue;
        }
        let geometry = Geometry { n_rows: 1, ..layout.geometry() };
        let padded = Layout::new(PlaneKind::Padded, quant, geometry)?;
        let mut object = vec![0; usize::try_from(padded.len_bytes()).unwrap_or(0)];
        padded.write_units(bytes, 0..1, &mut object)?;
        check(&padded, tensor, (row, bytes), &object)?;
    }
    Ok(())
}

/// The first group of elements in a row whose float has all exponent bits set.
fn first_in_row(layout: &Layout, field: &Field, row: &[u8]) -> Option<u64> {
    let n_groups = layout.geometry().row_len / u64::from(field.k_per_group);
    let stride = usize::try_from(field.k_group_stride).ok()?;
    let cells = row.get(usize::try_from(field.base).ok()?..)?.chunks(stride);
    let exponent = match field.encoding {
        Encoding::F16 => 0x7c00,
        Encoding::Bf16 => 0x7f80,
        _ => 0x7f80_0000,
    };
    let is_bad = |cell: &[u8]| {
        let bits = match (field.encoding, cell) {
            (Encoding::F32, &[a, b, c, d, ..]) => u32::from_le_bytes([a, b, c, d]),
            (_, &[a, b, ..]) => u32::from(u16::from_le_bytes([a, b])),
            _ => 0,
        };
        bits & exponent == exponent
    };
    (0..n_groups).zip(cells).find_map(|(group, cell)| is_bad(cell).then_some(group))
}

fn describe(
    layout: &Layout,
    tensor: &str,
    field: &Field,
    row: u64,
    group: u64,
    bytes: &[u8],
) -> Error {
    let block_bytes = layout.quant().block_bytes() as u64;
    let block = group * u64::from(field.k_per_group) / layout.quant().block_elems() as u64;
    let start = row * layout.gguf_row_bytes() + block * block_bytes;
    // The row's own bytes are all that is here: its cell is where row 0 would have it.
    let raw = field.read(bytes, 0, group * u64::from(field.k_per_group));
    let value = match field.encoding {
        Encoding::F32 => f32::from_bits(raw),
        Encoding::Bf16 => f32::from_bits(raw << 16),
        // Of a half with all exponent bits set only the mantissa says which.
        _ if raw & 0x3ff != 0 => f32::NAN,
        _ if raw & 0x8000 != 0 => f32::NEG_INFINITY,
        _ => f32::INFINITY,
    };
    Error::NonFinite {
        tensor: tensor.to_owned(),
        row,
        block,
        start,
        end: start + block_bytes,
        field: field.name.name(),
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format_spec::QuantType;
    use format_spec::plane::{Geometry, PlaneKind};

    fn padded(quant: QuantType, n_blocks: u64) -> Layout {
        let row_len = quant.block_elems() as u64 * n_blocks;
        let geometry = Geometry { n_rows: 3, row_len };
        Layout::new(PlaneKind::Padded, quant, geometry).expect("a layout")
    }

    /// Puts each bad pattern into each float field of one block of every type, and demands that
    /// exactly that place is named.
    #[test]
    fn every_float_field_of_every_type_is_looked_at() {
        for &quant in QuantType::ALL {
            let layout = padded(quant, 5);
            let n_bytes = layout.len_bytes() as usize;
            assert!(check(&layout, "t", (0, &[]), &vec![0; n_bytes]).is_ok());
            let elem = 3 * quant.block_elems() as u64;
            let mut n_fields = 0;
            for field in layout.fields() {
                let patterns: [&[u8]; 3] = match field.encoding {
                    Encoding::F16 => [&[0, 0x7c], &[0, 0xfc], &[1, 0x7e]],
                    Encoding::Bf16 => [&[0x80, 0x7f], &[0x80, 0xff], &[0xc0, 0x7f]],
                    Encoding::F32 => {
                        [&[0, 0, 0x80, 0x7f], &[0, 0, 0x80, 0xff], &[1, 0, 0xc0, 0x7f]]
                    }
                    _ => continue,
                };
                n_fields += 1;
                for pattern in patterns {
                    let mut bytes = vec![0; n_bytes];
                    let at = field.locate(2, elem).byte as usize;
                    bytes[at..at + pattern.len()].copy_from_slice(pattern);
                    match check(&layout, "t", (10, &[]), &bytes) {
                        Err(Error::NonFinite { row, block, field: name, value, .. }) => {
                            assert_eq!((row, block, name), (12, 3, field.name.name()), "{quant:?}");
                            assert!(!value.is_finite());
                        }
                        other => panic!("{quant:?} {field:?}: {other:?}"),
                    }
                }
            }
            assert!(n_fields > 0, "{quant:?} has no float");
        }
    }

    #[test]
    fn the_largest_finite_values_pass() {
        let layout = padded(QuantType::F16, 16);
        let mut bytes = vec![0; layout.len_bytes() as usize];
        bytes[..2].copy_from_slice(&0x7bffu16.to_le_bytes());
        assert!(check(&layout, "t", (0, &[]), &bytes).is_ok());
        let layout = padded(QuantType::BF16, 16);
        let mut bytes = vec![0; layout.len_bytes() as usize];
        // 3e38 overflows f16 but is a fine bf16.
        bytes[..2].copy_from_slice(&0x7f61u16.to_le_bytes());
        assert!(check(&layout, "t", (0, &[]), &bytes).is_ok());
    }

    #[test]
    fn a_base_of_interleaved_rows_is_looked_at_through_its_source() {
        let geometry = Geometry { n_rows: 6, row_len: 512 };
        let layout = Layout::new(PlaneKind::Planar, QuantType::Q4_K, geometry).expect("a layout");
        let mut gguf = vec![0; layout.gguf_bytes() as usize];
        let units = vec![0; layout.len_bytes() as usize];
        assert!(check(&layout, "t", (4, &gguf), &units).is_ok());
        // dmin of the second block of the third row.
        gguf[5 * 144 + 2..][..2].copy_from_slice(&[1, 0x7e]);
        match check(&layout, "t", (4, &gguf), &units) {
            Err(Error::NonFinite { row: 6, block: 1, field: "dmin", value, .. }) => {
                assert!(value.is_nan());
            }
            other => panic!("{other:?}"),
        }
    }
}

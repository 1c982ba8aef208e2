//! Planes against vectors that another program made (tests/golden/make_quant_vectors.py), and over
//! arbitrary shapes.

use std::path::PathBuf;

use format_spec::plane::{FieldName, find_mismatch};
use format_spec::{Geometry, Layout, PlaneKind, QuantType};
use proptest::prelude::*;

fn golden(quant: QuantType, ext: &str) -> Vec<u8> {
    let name = format!("{}.{ext}", quant.name().to_lowercase());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden_elems(quant: QuantType) -> Vec<f32> {
    let bytes = golden(quant, "f32");
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn produce(layout: &Layout, gguf: &[u8]) -> Vec<u8> {
    let mut object = vec![0xaa; layout.len_bytes() as usize];
    layout.write_units(gguf, 0..layout.n_units(), &mut object).expect("whole blocks");
    object
}

/// The golden blocks of a type as a tensor of rows of one block.
fn golden_tensor(quant: QuantType, kind: PlaneKind) -> (Layout, Vec<u8>) {
    let blocks = golden(quant, "blocks");
    let n_rows = (blocks.len() / quant.block_bytes()) as u64;
    let geometry = Geometry { n_rows, row_len: quant.block_elems() as u64 };
    let layout = Layout::new(kind, quant, geometry).expect("whole blocks");
    let object = produce(&layout, &blocks);
    (layout, object)
}

#[test]
fn values_of_padded_objects_are_those_of_gguf_py() {
    for &quant in QuantType::ALL {
        let (layout, object) = golden_tensor(quant, PlaneKind::Padded);
        for (i, expected) in golden_elems(quant).iter().enumerate() {
            let (row, k) = (i / quant.block_elems(), i % quant.block_elems());
            let found = layout.value(&object, row as u64, k as u64);
            assert_eq!(found.to_bits(), expected.to_bits(), "{} {row} {k}", quant.name());
        }
    }
}

#[test]
fn exp_times_dsc_is_the_weight_of_gguf_py() {
    let (exp, exp_bytes) = golden_tensor(QuantType::Q6_K, PlaneKind::Exp);
    let (dsc, dsc_bytes) = golden_tensor(QuantType::Q6_K, PlaneKind::Dsc);
    let rounded_rows = exp.geometry().n_rows.next_multiple_of(4) as usize;
    for (i, expected) in golden_elems(QuantType::Q6_K).iter().enumerate() {
        let (row, k) = (i / 256, i % 256);
        // Once through the fields, once as the specification puts it in words.
        let fields = dsc.value(&dsc_bytes, row as u64, k as u64)
            * exp.value(&exp_bytes, row as u64, k as u64);
        let at = 4 * (k / 16 * rounded_rows + row);
        let scale = f32::from_le_bytes(dsc_bytes[at..at + 4].try_into().unwrap());
        let words = scale * f32::from(exp_bytes[row * 256 + k] as i8);
        assert_eq!(fields.to_bits(), expected.to_bits(), "{row} {k}");
        assert_eq!(words.to_bits(), expected.to_bits(), "{row} {k}");
    }
}

fn any_quant() -> impl Strategy<Value = QuantType> {
    prop::sample::select(QuantType::ALL)
}

proptest! {
    #[test]
    fn any_tensor_goes_to_padded_and_back(
        quant in any_quant(),
        n_rows in 1u64..20,
        n_blocks in 1u64..9,
        seed in any::<u64>(),
    ) {
        let geometry = Geometry { n_rows, row_len: n_blocks * quant.block_elems() as u64 };
        let layout = Layout::new(PlaneKind::Padded, quant, geometry).unwrap();
        let gguf: Vec<_> = (0..layout.gguf_bytes())
            .map(|i| (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let object = produce(&layout, &gguf);
        prop_assert_eq!(layout.padding().first_nonzero(0, &object), None);
        let n_padding = layout.padding().total_bytes(layout.len_bytes());
        prop_assert_eq!(n_padding + layout.gguf_bytes(), layout.len_bytes());
        let mut back = vec![0x55; gguf.len()];
        layout.restore_units(&object, &mut back).unwrap();
        prop_assert!(back == gguf);
    }

    #[test]
    fn planes_of_any_shape_say_what_the_base_says(
        n_rows in 1u64..40,
        n_blocks in 1u64..5,
        seed in any::<u64>(),
    ) {
        let geometry = Geometry { n_rows, row_len: n_blocks * 256 };
        let base = Layout::new(PlaneKind::Padded, QuantType::Q6_K, geometry).unwrap();
        let gguf: Vec<_> = (0..base.gguf_bytes())
            .map(|i| (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let base_bytes = produce(&base, &gguf);
        for kind in [PlaneKind::Exp, PlaneKind::Dsc] {
            let plane = Layout::new(kind, QuantType::Q6_K, geometry).unwrap();
            let plane_bytes = produce(&plane, &gguf);
            let mismatch = find_mismatch((&base, &base_bytes), (&plane, &plane_bytes), 0..n_rows);
            prop_assert_eq!(mismatch, None);
        }
    }

    /// No two weights share bits: an index function that folds two positions into one loses data.
    #[test]
    fn two_positions_never_share_a_quant(n_rows in 1u64..6, n_blocks in 1u64..4) {
        let geometry = Geometry { n_rows, row_len: n_blocks * 256 };
        for kind in [PlaneKind::Padded, PlaneKind::Exp] {
            let layout = Layout::new(kind, QuantType::Q6_K, geometry).unwrap();
            let quant = layout.field(FieldName::Quant).unwrap();
            let mut cells = std::collections::HashSet::new();
            for row in 0..n_rows {
                for k in 0..geometry.row_len {
                    let cell = quant.locate(row, k);
                    prop_assert!(cells.insert((cell.byte, cell.shift)));
                }
            }
        }
    }
}

//! Quant types against vectors that another program made (tests/golden/make_quant_vectors.py).

use std::path::PathBuf;

use format_spec::QuantType;

fn golden(quant: QuantType, ext: &str) -> Vec<u8> {
    let name = format!("{}.{ext}", quant.name().to_lowercase());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden_elems(quant: QuantType) -> Vec<f32> {
    let bytes = golden(quant, "f32");
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn dequantize_gives_the_bits_of_gguf_py() {
    for &quant in QuantType::ALL {
        let blocks = golden(quant, "blocks");
        let expected = golden_elems(quant);
        let mut found = vec![f32::NAN; expected.len()];
        quant.dequantize(&blocks, &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (block, k) = (i / quant.block_elems(), i % quant.block_elems());
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{} block {block} element {k}: {found} instead of {expected}",
                quant.name()
            );
        }
    }
}

#[test]
fn one_block_is_dequantized_as_in_a_row() {
    for &quant in QuantType::ALL {
        let blocks = golden(quant, "blocks");
        let expected = golden_elems(quant);
        let elems = expected.chunks(quant.block_elems());
        for (block, expected) in blocks.chunks(quant.block_bytes()).zip(elems) {
            let mut found = vec![f32::NAN; quant.block_elems()];
            quant.dequantize_block(block, &mut found);
            assert_eq!(found, expected, "{}", quant.name());
        }
    }
}

/// Byte offsets of f16 factors, from ggml's block definitions.
fn factor_offsets(quant: QuantType) -> &'static [usize] {
    match quant {
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => &[],
        QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => &[0],
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        QuantType::Q2_K => &[80, 82],
        QuantType::Q3_K => &[108],
        QuantType::Q6_K => &[208],
    }
}

#[test]
fn non_finite_factors_are_found() {
    for &quant in QuantType::ALL {
        let good = golden(quant, "blocks");
        assert_eq!(quant.find_non_finite_scale(&good), None, "{}", quant.name());
        for block in [0, 3, good.len() / quant.block_bytes() - 1] {
            for &offset in factor_offsets(quant) {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut blocks = good.clone();
                    let at = block * quant.block_bytes() + offset;
                    let bits = half::f16::from_f32(bad).to_le_bytes();
                    blocks[at..at + 2].copy_from_slice(&bits);
                    let found = quant.find_non_finite_scale(&blocks);
                    assert_eq!(found, Some(block), "{} {bad} at {offset}", quant.name());
                }
            }
        }
    }
}

#[test]
fn non_finite_floats_are_found() {
    let f32s = |v: f32| [1.0, f32::MAX, v, v].map(f32::to_le_bytes).concat();
    let f16s = |v: f32| [1.0, 65504.0, v, v].map(|v| half::f16::from_f32(v).to_le_bytes()).concat();
    let bf16s = |v: f32| [1.0, 3e38, v, v].map(|v| half::bf16::from_f32(v).to_le_bytes()).concat();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(QuantType::F32.find_non_finite_scale(&f32s(bad)), Some(2));
        assert_eq!(QuantType::F16.find_non_finite_scale(&f16s(bad)), Some(2));
        assert_eq!(QuantType::BF16.find_non_finite_scale(&bf16s(bad)), Some(2));
    }
    assert_eq!(QuantType::F32.find_non_finite_scale(&f32s(-0.0)), None);
    assert_eq!(QuantType::F16.find_non_finite_scale(&f16s(-6e-8)), None);
    assert_eq!(QuantType::BF16.find_non_finite_scale(&bf16s(1e-40)), None);
}

#[test]
fn rows_have_the_bytes_that_blocks_and_padding_give() {
    // od 18944, id 3584 of the 7B: 14 super-blocks a row.
    assert_eq!(QuantType::Q6_K.row_bytes(3584), 14 * 210);
    assert_eq!(QuantType::Q6_K.padded_row_stride(3584), 14 * 224);
    assert_eq!(QuantType::Q4_K.padded_row_stride(3584), 14 * 144);
    // Rounded up to 16: 2 * 84, 3 * 18 and 5 floats.
    assert_eq!(QuantType::Q2_K.padded_row_stride(512), 176);
    assert_eq!(QuantType::Q4_0.padded_row_stride(96), 64);
    assert_eq!(QuantType::F32.padded_row_stride(5), 32);
    for &quant in QuantType::ALL {
        for n_blocks in 1..40 {
            let row_len = n_blocks * quant.block_elems();
            let (bytes, stride) = (quant.row_bytes(row_len), quant.padded_row_stride(row_len));
            assert_eq!(bytes, n_blocks * quant.block_bytes());
            assert!(stride.is_multiple_of(16) && stride >= bytes);
            assert_eq!(quant.checked_row_bytes(row_len as u64), Some(bytes as u64));
            assert_eq!(quant.checked_padded_row_stride(row_len as u64), Some(stride as u64));
            if !quant.is_float() {
                assert_eq!(quant.checked_row_bytes(row_len as u64 + 1), None);
            }
        }
        let huge = u64::MAX / 256 * 256;
        if quant.block_bytes() > quant.block_elems() {
            assert_eq!(quant.checked_row_bytes(huge), None, "{}", quant.name());
        }
    }
}

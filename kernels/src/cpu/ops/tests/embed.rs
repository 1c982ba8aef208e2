use format_spec::QuantType;

use super::super::dequantize_row;
use super::Random;

/// A padded row gives what its blocks give one by one; the bytes between blocks do not matter.
#[test]
fn padding_between_blocks_is_skipped() {
    for &quant in QuantType::ALL {
        let (elems, n_bytes) = (quant.block_elems(), quant.block_bytes());
        let stride = quant.padded_block_stride();
        let n_blocks = 512 / elems;
        let mut random = Random(u64::from(quant.ggml_id()));
        let mut row = vec![0xA5; n_blocks * stride];
        let mut expected = vec![0.0; 512];
        for (i, out) in expected.chunks_mut(elems).enumerate() {
            // Bytes below 0x3C make no NaN or infinity of any float in a block.
            let block: Vec<u8> = (0..n_bytes).map(|_| random.below(0x3C) as u8).collect();
            quant.dequantize_block(&block, out);
            row[i * stride..][..n_bytes].copy_from_slice(&block);
        }
        let mut got = vec![f32::NAN; 512];
        dequantize_row(&mut got, quant, &row);
        assert_eq!(got, expected, "{}", quant.name());
        assert!(expected.iter().any(|&v| v != 0.0), "{}", quant.name());
    }
}

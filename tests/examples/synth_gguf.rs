//! A GGUF of real geometry and random weights: `synth_gguf HEADER.gguf[.xz] OUT.gguf`
//!
//! HEADER is the front of a real GGUF, metadata and tensor inventory whole. Every block is random
//! with scales that keep weights near 0.015, so that activations stay finite; the same header
//! gives the same file.
#![allow(clippy::unwrap_used)] // a program for developers

use format_spec::QuantType;
use format_spec::gguf::Gguf;
use half::{bf16, f16};
use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};

/// Blocks that are made once and repeated at random.
const N_POOL: usize = 1 << 14;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    assert!(args.len() == 2, "usage: synth_gguf HEADER.gguf[.xz] OUT.gguf");
    let mut header = std::fs::read(&args[0]).unwrap();
    if args[0].ends_with(".xz") {
        let mut plain = Vec::new();
        lzma_rust2::XzReader::new(&header[..], false).read_to_end(&mut plain).unwrap();
        header = plain;
    }
    let gguf = Gguf::parse_header(&header).unwrap();
    let mut out = BufWriter::with_capacity(8 << 20, File::create(&args[1]).unwrap());
    let data_offset = gguf.data_offset();
    out.write_all(&header[..gguf.header_len() as usize]).unwrap();
    let mut at = gguf.header_len();
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for tensor in gguf.tensors() {
        let start = data_offset + tensor.offset();
        out.write_all(&vec![0; (start - at) as usize]).unwrap();
        let quant = tensor.quant();
        let pool = pool(quant, &mut rng);
        let block = quant.block_bytes();
        // Stretches of the pool from random places: random enough, and as fast as the disk.
        let mut left = tensor.n_bytes() as usize / block;
        while left > 0 {
            let first = rng.next() as usize % N_POOL;
            let n = left.min(N_POOL - first);
            out.write_all(&pool[first * block..(first + n) * block]).unwrap();
            left -= n;
        }
        at = start + tensor.n_bytes();
    }
    let end = at.next_multiple_of(gguf.alignment());
    out.write_all(&vec![0; (end - at) as usize]).unwrap();
    out.flush().unwrap();
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Near a standard normal: the sum of twelve uniforms.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() & 0xffff) as f32 / 65536.0).sum::<f32>() - 6.0
    }
}

/// f16 factors of a block: (byte, value).
fn factors(quant: QuantType) -> &'static [(usize, f32)] {
    match quant {
        QuantType::Q4_0 => &[(0, 3e-3)],
        QuantType::Q4_1 | QuantType::Q5_1 => &[(0, 2e-3), (2, -1.6e-2)],
        QuantType::Q5_0 => &[(0, 1.6e-3)],
        QuantType::Q8_0 => &[(0, 2e-4)],
        QuantType::Q2_K => &[(80, 1.3e-3), (82, 2e-3)],
        QuantType::Q3_K => &[(108, 2e-4)],
        QuantType::Q4_K => &[(0, 1e-4), (2, 7.5e-4)],
        QuantType::Q5_K => &[(0, 5e-5), (2, 7.5e-4)],
        QuantType::Q6_K => &[(208, 8.5e-5)],
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => &[],
    }
}

fn pool(quant: QuantType, rng: &mut Rng) -> Vec<u8> {
    match quant {
        // Norms and biases.
        QuantType::F32 => {
            (0..N_POOL).flat_map(|_| (1.0 + 0.05 * rng.normal()).to_le_bytes()).collect()
        }
        QuantType::F16 => {
            (0..N_POOL).flat_map(|_| f16::from_f32(0.015 * rng.normal()).to_le_bytes()).collect()
        }
        QuantType::BF16 => {
            (0..N_POOL).flat_map(|_| bf16::from_f32(0.015 * rng.normal()).to_le_bytes()).collect()
        }
        _ => {
            let block = quant.block_bytes();
            let mut bytes: Vec<u8> = (0..N_POOL * block).map(|_| rng.next() as u8).collect();
            for block in bytes.chunks_exact_mut(block) {
                for &(at, value) in factors(quant) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
                if quant == QuantType::Q6_K {
                    for scale in &mut block[192..208] {
                        *scale = (rng.next() % 33) as u8;
                        *scale = scale.wrapping_sub(16);
                    }
                }
            }
            bytes
        }
    }
}

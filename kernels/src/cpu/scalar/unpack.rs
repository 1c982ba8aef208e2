//! Eight chunks of a row, from the blocks of each quant type: stored values, scales, minimums.

use format_spec::QuantType;
use half::f16;

use crate::cpu::form::{CHUNK, GROUP, Group, N_CHAINS};
use crate::cpu::stride;
use crate::view::{ExpPlane, Weight};

/// Unpacks group `group_idx` of a row: `blocks` are the row's bytes in `padded` form, `n_chunks`
/// (1..=8) how many chunks the row still has there. What belongs to absent chunks is left alone.
///
/// Unsafe since the unpackers of SIMD tiers need their instructions.
pub(crate) type UnpackFn =
    unsafe fn(blocks: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group);

/// The unpacker of a quant type; plain floats have none.
pub(crate) fn unpacker(quant: QuantType) -> Option<UnpackFn> {
    Some(match quant {
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => return None,
        QuantType::Q4_0 => |row, g, n, out| each_block(row, g, n, out, q4_0),
        QuantType::Q4_1 => |row, g, n, out| each_block(row, g, n, out, q4_1),
        QuantType::Q5_0 => |row, g, n, out| each_block(row, g, n, out, q5_0),
        QuantType::Q5_1 => |row, g, n, out| each_block(row, g, n, out, q5_1),
        QuantType::Q8_0 => |row, g, n, out| each_block(row, g, n, out, q8_0),
        QuantType::Q2_K => |row, g, _, out| q2_k(super_block(row, g, stride::Q2_K), out),
        QuantType::Q3_K => |row, g, _, out| q3_k(super_block(row, g, stride::Q3_K), out),
        QuantType::Q4_K => |row, g, _, out| q4_k(super_block(row, g, stride::Q4_K), out),
        QuantType::Q5_K => |row, g, _, out| q5_k(super_block(row, g, stride::Q5_K), out),
        QuantType::Q6_K => |row, g, _, out| q6_k(super_block(row, g, stride::Q6_K), out),
    })
}

/// Unpacks group `group_idx` of row `row` of q6_K from its `exp` and `dsc` planes.
pub(crate) fn unpack_exp(
    w: &Weight<'_>,
    plane: &ExpPlane<'_>,
    row: usize,
    group_idx: usize,
    out: &mut Group,
) {
    let start = row * w.row_len() + group_idx * GROUP;
    for (q, &centred) in out.q.iter_mut().zip(&plane.exp[start..start + GROUP]) {
        *q = centred.wrapping_add(32);
    }
    let (scales, _) = plane.dsc.as_chunks::<4>();
    let first = group_idx * 2 * N_CHAINS * plane.dsc_rows + row;
    let column = scales[first..].iter().step_by(plane.dsc_rows);
    for (scale, stored) in out.scale.iter_mut().zip(column) {
        *scale = f32::from_le_bytes(*stored);
    }
}

fn super_block(row: &[u8], block_idx: usize, stride: usize) -> &[u8] {
    &row[block_idx * stride..][..stride]
}

/// Runs `block` over the blocks of 32 elements of a group; `BYTES` is their stride.
#[inline(always)]
fn each_block<const BYTES: usize>(
    row: &[u8],
    group_idx: usize,
    n_chunks: usize,
    out: &mut Group,
    block: impl Fn(&[u8; BYTES], &mut [u8; CHUNK]) -> (f32, f32),
) {
    let (blocks, _) = row[group_idx * N_CHAINS * BYTES..].as_chunks::<BYTES>();
    let (qs, _) = out.q.as_chunks_mut::<CHUNK>();
    for (j, (bytes, q)) in blocks.iter().zip(qs).take(n_chunks).enumerate() {
        (out.scale[j], out.min[j]) = block(bytes, q);
    }
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sixteen bytes of two nibbles: the low ones are the first half of a chunk.
fn nibbles(qs: &[u8], q: &mut [u8; CHUNK]) {
    for (j, &byte) in qs.iter().enumerate() {
        q[j] = byte & 15;
        q[j + 16] = byte >> 4;
    }
}

/// Adds bit 4 of each element from a 32-bit mask.
fn fifth_bits(mask: u32, q: &mut [u8; CHUNK]) {
    for (j, q) in q.iter_mut().enumerate() {
        *q |= (((mask >> j) & 1) << 4) as u8;
    }
}

fn q4_0(block: &[u8; stride::Q4_0], q: &mut [u8; CHUNK]) -> (f32, f32) {
    nibbles(&block[2..], q);
    (f16_at(block, 0), 0.0)
}

fn q4_1(block: &[u8; stride::Q4_1], q: &mut [u8; CHUNK]) -> (f32, f32) {
    nibbles(&block[4..], q);
    (f16_at(block, 0), f16_at(block, 2))
}

fn q5_0(block: &[u8; stride::Q5_0], q: &mut [u8; CHUNK]) -> (f32, f32) {
    nibbles(&block[6..], q);
    fifth_bits(u32_at(block, 2), q);
    (f16_at(block, 0), 0.0)
}

fn q5_1(block: &[u8; stride::Q5_1], q: &mut [u8; CHUNK]) -> (f32, f32) {
    nibbles(&block[8..], q);
    fifth_bits(u32_at(block, 4), q);
    (f16_at(block, 0), f16_at(block, 2))
}

fn q8_0(block: &[u8; stride::Q8_0], q: &mut [u8; CHUNK]) -> (f32, f32) {
    for (q, &signed) in q.iter_mut().zip(&block[2..]) {
        *q = signed.wrapping_add(128);
    }
    (f16_at(block, 0), 0.0)
}

fn q2_k(block: &[u8], out: &mut Group) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for chunk in 0..N_CHAINS {
        let stretch = &block[16 + chunk / 4 * CHUNK..][..CHUNK];
        for (q, &byte) in out.q[chunk * CHUNK..][..CHUNK].iter_mut().zip(stretch) {
            *q = (byte >> (2 * (chunk % 4))) & 3;
        }
    }
    for (half, &packed) in block[..2 * N_CHAINS].iter().enumerate() {
        out.scale[half] = d * f32::from(packed & 15);
        out.min[half] = -(dmin * f32::from(packed >> 4));
    }
}

fn q3_k(block: &[u8], out: &mut Group) {
    let d = f16_at(block, 108);
    for chunk in 0..N_CHAINS {
        let stretch = &block[32 + chunk / 4 * CHUNK..][..CHUNK];
        let high = &block[..CHUNK];
        let q = &mut out.q[chunk * CHUNK..][..CHUNK];
        for (q, (&byte, &high)) in q.iter_mut().zip(stretch.iter().zip(high)) {
            *q = ((byte >> (2 * (chunk % 4))) & 3) | (((high >> chunk) & 1) << 2);
        }
    }
    // Sixteen 6-bit scales in 12 bytes: low nibbles in the first eight, two high bits in the rest.
    let packed = &block[96..108];
    for half in 0..2 * N_CHAINS {
        let low = if half < 8 { packed[half] & 15 } else { packed[half - 8] >> 4 };
        let high = (packed[8 + half % 4] >> (2 * (half / 4))) & 3;
        out.scale[half] = d * f32::from((low | (high << 4)) as i8 - 32);
    }
}

/// Scale and minimum of q4_K and q5_K: eight 6-bit pairs in 12 bytes.
fn scales_k4(block: &[u8], out: &mut Group) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let packed = &block[4..16];
    for j in 0..N_CHAINS {
        let (scale, min) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (
                (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
                (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
            )
        };
        out.scale[j] = d * f32::from(scale);
        out.min[j] = -(dmin * f32::from(min));
    }
}

/// Stretches of 32 bytes: low nibbles are one chunk, high nibbles the next.
fn nibbles_k4(qs: &[u8], out: &mut Group) {
    for (pair, stretch) in out.q.chunks_exact_mut(2 * CHUNK).zip(qs.chunks_exact(CHUNK)) {
        for (j, &byte) in stretch.iter().enumerate() {
            pair[j] = byte & 15;
            pair[j + CHUNK] = byte >> 4;
        }
    }
}

fn q4_k(block: &[u8], out: &mut Group) {
    scales_k4(block, out);
    nibbles_k4(&block[16..144], out);
}

fn q5_k(block: &[u8], out: &mut Group) {
    scales_k4(block, out);
    nibbles_k4(&block[48..176], out);
    let high = &block[16..48];
    for (chunk, q) in out.q.chunks_exact_mut(CHUNK).enumerate() {
        for (q, &high) in q.iter_mut().zip(high) {
            *q |= ((high >> chunk) & 1) << 4;
        }
    }
}

fn q6_k(block: &[u8], out: &mut Group) {
    let d = f16_at(block, 208);
    for (e, q) in out.q.iter_mut().enumerate() {
        let (it, n) = (e >> 7, e & 127);
        let low = (block[it * 64 + (n & 63)] >> (4 * (n >> 6))) & 15;
        let high = (block[128 + it * 32 + (n & 31)] >> (2 * (n >> 5))) & 3;
        *q = low | (high << 4);
    }
    for (scale, &stored) in out.scale.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(stored as i8);
    }
}

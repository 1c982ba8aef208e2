//! How a quant type takes part in the canonical arithmetic.

use format_spec::QuantType;

/// Elements that share an activation scale.
pub(crate) const CHUNK: usize = 32;
/// Chains of one dot product: chunk `b` is added to chain `b % N_CHAINS`.
pub(crate) const N_CHAINS: usize = 8;
/// Elements of one chunk of every chain.
pub(crate) const GROUP: usize = CHUNK * N_CHAINS;

/// Scales, minimum and offset of an integer quant type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// A scale for 16 elements; otherwise for 32.
    pub(crate) per16: bool,
    /// weight = scale * stored + minimum; otherwise scale * (stored - offset).
    pub(crate) has_min: bool,
    /// log2 of the offset of the stored, unsigned value; 0 for types with a minimum.
    pub(crate) offset_log2: u32,
    /// Bits of a stored value.
    pub(crate) bits: u32,
}

impl Form {
    const fn new(per16: bool, has_min: bool, bits: u32) -> Self {
        let offset_log2 = if has_min { 0 } else { bits - 1 };
        Self { per16, has_min, offset_log2, bits }
    }

    /// What is subtracted from a stored value.
    pub(crate) fn offset(self) -> i32 {
        if self.has_min { 0 } else { 1 << self.offset_log2 }
    }

    /// The form of a quant type; `None` for plain floats.
    pub(crate) const fn of(quant: QuantType) -> Option<Self> {
        Some(match quant {
            QuantType::F32 | QuantType::F16 | QuantType::BF16 => return None,
            QuantType::Q4_0 => Self::new(false, false, 4),
            QuantType::Q5_0 => Self::new(false, false, 5),
            QuantType::Q8_0 => Self::new(false, false, 8),
            QuantType::Q4_1 | QuantType::Q4_K => Self::new(false, true, 4),
            QuantType::Q5_1 | QuantType::Q5_K => Self::new(false, true, 5),
            QuantType::Q2_K => Self::new(true, true, 2),
            QuantType::Q3_K => Self::new(true, false, 3),
            QuantType::Q6_K => Self::new(true, false, 6),
        })
    }
}

/// Up to eight consecutive chunks of a weight row with their parameters.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Group {
    /// Stored values, unsigned, in element order.
    pub(crate) q: [u8; GROUP],
    /// Scale of chunk `j` at `j`, or of its half `h` at `2j + h`.
    pub(crate) scale: [f32; 2 * N_CHAINS],
    /// What is added per element, indexed as `scale`; only for types with a minimum.
    pub(crate) min: [f32; 2 * N_CHAINS],
}

impl Group {
    pub(crate) const ZERO: Self =
        Self { q: [0; GROUP], scale: [0.0; 2 * N_CHAINS], min: [0.0; 2 * N_CHAINS] };
}

/// Where the chunks of a row lie when they are stored chain by chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chains {
    n_chunks: usize,
}

impl Chains {
    pub(crate) fn new(row_len: usize) -> Self {
        Self { n_chunks: row_len / CHUNK }
    }

    /// Chunks of chain `s`.
    pub(crate) fn len(self, s: usize) -> usize {
        (self.n_chunks + N_CHAINS - 1 - s) / N_CHAINS
    }

    /// Position of the first chunk of each chain.
    pub(crate) fn starts(self) -> [usize; N_CHAINS] {
        let mut starts = [0; N_CHAINS];
        for s in 1..N_CHAINS {
            starts[s] = starts[s - 1] + self.len(s - 1);
        }
        starts
    }
}

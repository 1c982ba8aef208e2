//! Sixteen f32 lanes: the one vector type every op is written over.
//!
//! An op is a generic function over [`Lanes`]; each tier instantiates it once. Every method is one
//! IEEE operation a lane (no reassociation, no approximate instruction), so the tiers agree in
//! every bit. `max` and `min` follow the x86 rule (`a > b ? a : b`, so a NaN in either operand
//! yields `b`), which the scalar lanes spell out.

use half::f16;

/// Number of lanes.
pub(crate) const LANES: usize = 16;

/// `1.5 * 2^23`: adding it to a small float leaves the float rounded to an integer (ties to even)
/// in the low mantissa bits.
pub(crate) const ROUND_MAGIC: f32 = 12_582_912.0;

/// Sixteen-lane arithmetic of one tier. `self` is the proof that the tier's instructions exist.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;

    /// Rows of the largest attention tile: what fits the register file.
    const TILE_ROWS: usize;
    /// Whether 32 vector registers hold sixteen lanes each.
    const WIDE: bool;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Lanes from memory.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Lanes to memory.
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Magnitude of `magnitude`, sign of `sign`.
    fn copysign(self, magnitude: Self::V, sign: Self::V) -> Self::V;
    /// `a < b ? x : y`; a NaN takes `y`.
    fn if_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Lane `i` of `x` where bit `i` of `mask` is set, else of `y`.
    fn select(self, mask: u16, x: Self::V, y: Self::V) -> Self::V;
    /// `2^n` from `t = ROUND_MAGIC + n`, for integers `n` in -127 (gives 0) to 127.
    fn exp2_of_magic(self, t: Self::V) -> Self::V;
    /// Lanes 0 and 1 exchanged, 2 and 3, and so on.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// Sixteen halves, widened.
    fn load_f16(self, x: &[f16; LANES]) -> Self::V;
    /// Rounded to halves, ties to even, overflow to infinity.
    fn store_f16(self, v: Self::V, out: &mut [f16; LANES]);

    /// Zero in every lane.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// Up to sixteen values; the lanes beyond are `fill`.
    #[inline(always)]
    fn load_partial(self, x: &[f32], fill: f32) -> Self::V {
        let mut lanes = [fill; LANES];
        for (lane, &value) in lanes.iter_mut().zip(x) {
            *lane = value;
        }
        self.load(&lanes)
    }

    /// The first `out.len()` lanes, at most sixteen.
    #[inline(always)]
    fn store_partial(self, v: Self::V, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for (value, &lane) in out.iter_mut().zip(&lanes) {
            *value = lane;
        }
    }

    /// The lanes added in one fixed order: halves folded onto each other, 8, 4, 2, 1.
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        self.fold(v, |a, b| a + b)
    }

    /// The largest lane, by the rule of [`max`](Self::max).
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        self.fold(v, |a, b| if a > b { a } else { b })
    }

    /// Folds halves onto each other.
    #[inline(always)]
    fn fold(self, v: Self::V, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = f(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// The scalar tier: plain Rust, the oracle of the others and what other architectures compile.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Scalar {
    #[inline(always)]
    fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
        std::array::from_fn(|i| f(a[i], b[i]))
    }
}

impl Lanes for Scalar {
    type V = [f32; LANES];
    const TILE_ROWS: usize = 4;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn copysign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        Self::map2(magnitude, sign, f32::copysign)
    }
    #[inline(always)]
    fn if_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn select(self, mask: u16, x: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if mask >> i & 1 == 1 { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn exp2_of_magic(self, t: Self::V) -> Self::V {
        t.map(|t| f32::from_bits((t.to_bits() << 23).wrapping_add(0x3F80_0000)))
    }
    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        std::array::from_fn(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        x.map(f16::to_f32)
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, out: &mut [f16; LANES]) {
        *out = v.map(f16::from_f32);
    }
}

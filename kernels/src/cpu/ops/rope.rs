//! Rotary position embedding.
//!
//! The angles are computed in f64 and rounded once; the rotation is two roundings an element:
//! `a c - b s` as `fma(-b, s, a c)`, `a s + b c` as `fma(a, s, b c)`, in both pairings.

use super::lanes::{LANES, Lanes};

/// Which elements of a head form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `(2i, 2i + 1)`: llama.
    Normal,
    /// Halves `(i, i + n_rot / 2)`: qwen2, gemma3 and most others.
    Neox,
}

/// What the angles are made of. The angle of pair `i` at position `p` is
/// `p * freq_scale * freq_base^(-2 i / n_rot) / freq_factors[i]`.
#[derive(Debug, Clone)]
pub struct RopeParams {
    /// Pairing.
    pub style: RopeStyle,
    /// Rotated elements of a head (even); those beyond pass unchanged.
    pub n_rot: usize,
    /// Base of the geometric series of frequencies.
    pub freq_base: f64,
    /// Linear position scaling: 1 for none, `1 / factor` for a context stretched by `factor`.
    pub freq_scale: f64,
    /// Multiplies sine and cosine (1 for none).
    pub attn_factor: f64,
    /// A divisor for each frequency (llama 3's `rope_freqs`), `[n_rot / 2]`, or empty.
    pub freq_factors: Vec<f32>,
}

/// Sines and cosines by position; grows on demand.
#[derive(Debug, Clone)]
pub struct RopeTable {
    style: RopeStyle,
    n_rot: usize,
    attn_factor: f64,
    /// Angle of each pair at position 1, `[n_rot / 2]`.
    steps: Vec<f64>,
    n_positions: usize,
    /// `[n_positions][2][width]`: cosines, then sines. Neox: `width = n_rot / 2`. Normal: `n_rot`,
    /// each value twice, the sine of the even element negated.
    values: Vec<f32>,
}

impl RopeTable {
    /// An empty table; [`extend`](Self::extend) fills it.
    ///
    /// # Panics
    /// If `n_rot` is odd, or `freq_factors` is neither empty nor `n_rot / 2` long.
    pub fn new(params: &RopeParams) -> Self {
        let half = params.n_rot / 2;
        assert!(params.n_rot.is_multiple_of(2), "n_rot {} is odd", params.n_rot);
        let factors = &params.freq_factors;
        assert!(factors.is_empty() || factors.len() == half, "{} frequency factors", factors.len());
        let step = |i: usize| {
            let exponent = -2.0 * i as f64 / params.n_rot as f64;
            let factor = factors.get(i).map_or(1.0, |&f| f64::from(f));
            params.freq_scale * params.freq_base.powf(exponent) / factor
        };
        Self {
            style: params.style,
            n_rot: params.n_rot,
            attn_factor: params.attn_factor,
            steps: (0..half).map(step).collect(),
            n_positions: 0,
            values: Vec::new(),
        }
    }

    /// Positions the table holds.
    pub fn n_positions(&self) -> usize {
        self.n_positions
    }

    /// Makes the table hold positions `0..n_positions`.
    pub fn extend(&mut self, n_positions: usize) {
        self.values.reserve(n_positions.saturating_sub(self.n_positions) * 2 * self.width());
        for position in self.n_positions..n_positions {
            self.push(position);
        }
        self.n_positions = self.n_positions.max(n_positions);
    }

    fn width(&self) -> usize {
        match self.style {
            RopeStyle::Normal => self.n_rot,
            RopeStyle::Neox => self.n_rot / 2,
        }
    }

    fn push(&mut self, position: usize) {
        let angle = |&step: &f64| position as f64 * step;
        let cos = |step| (angle(step).cos() * self.attn_factor) as f32;
        let sin = |step| (angle(step).sin() * self.attn_factor) as f32;
        match self.style {
            RopeStyle::Neox => {
                self.values.extend(self.steps.iter().map(cos));
                self.values.extend(self.steps.iter().map(sin));
            }
            RopeStyle::Normal => {
                self.values.extend(self.steps.iter().flat_map(|step| [cos(step); 2]));
                self.values.extend(self.steps.iter().flat_map(|step| [-sin(step), sin(step)]));
            }
        }
    }

    /// `(cosines, sines)` of a position.
    #[inline(always)]
    fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let width = self.width();
        let start = position * 2 * width;
        self.values[start..start + 2 * width].split_at(width)
    }
}

#[inline(always)]
pub(super) fn rope<L: Lanes>(
    l: L,
    x: &mut [f32],
    n_head: usize,
    head_dim: usize,
    table: &RopeTable,
    pos0: usize,
) {
    let row_len = n_head * head_dim;
    assert!(row_len > 0 && x.len().is_multiple_of(row_len), "rows of {row_len}");
    assert!(table.n_rot <= head_dim, "n_rot {} of {head_dim}", table.n_rot);
    for (token, row) in x.chunks_exact_mut(row_len).enumerate() {
        let (cos, sin) = table.row(pos0 + token);
        for head in row.chunks_exact_mut(head_dim) {
            let rotated = &mut head[..table.n_rot];
            match table.style {
                RopeStyle::Normal => rotate_neighbours(l, rotated, cos, sin),
                RopeStyle::Neox => rotate_halves(l, rotated, cos, sin),
            }
        }
    }
}

/// Neighbouring lanes, `cos` and `sin` of a pair in both, the first `sin` negated.
#[inline(always)]
fn rotate_pairs<L: Lanes>(l: L, x: L::V, cos: L::V, sin: L::V) -> L::V {
    l.fma(l.swap_pairs(x), sin, l.mul(x, cos))
}

/// Pairs of lanes of `a` and `b`.
#[inline(always)]
fn rotate<L: Lanes>(l: L, a: L::V, b: L::V, cos: L::V, sin: L::V) -> (L::V, L::V) {
    (l.fnma(b, sin, l.mul(a, cos)), l.fma(a, sin, l.mul(b, cos)))
}

#[inline(always)]
fn rotate_neighbours<L: Lanes>(l: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (x_blocks, x_rest) = x.as_chunks_mut::<LANES>();
    let (cos_blocks, cos_rest) = cos.as_chunks::<LANES>();
    let (sin_blocks, sin_rest) = sin.as_chunks::<LANES>();
    for ((x, cos), sin) in x_blocks.iter_mut().zip(cos_blocks).zip(sin_blocks) {
        l.store(rotate_pairs(l, l.load(x), l.load(cos), l.load(sin)), x);
    }
    if !x_rest.is_empty() {
        let x = l.load_partial(x_rest, 0.0);
        let (cos, sin) = (l.load_partial(cos_rest, 0.0), l.load_partial(sin_rest, 0.0));
        l.store_partial(rotate_pairs(l, x, cos, sin), x_rest);
    }
}

#[inline(always)]
fn rotate_halves<L: Lanes>(l: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = x.split_at_mut(x.len() / 2);
    let (a_blocks, a_rest) = a.as_chunks_mut::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks_mut::<LANES>();
    let (cos_blocks, cos_rest) = cos.as_chunks::<LANES>();
    let (sin_blocks, sin_rest) = sin.as_chunks::<LANES>();
    let blocks = a_blocks.iter_mut().zip(b_blocks).zip(cos_blocks.iter().zip(sin_blocks));
    for ((a, b), (cos, sin)) in blocks {
        let (new_a, new_b) = rotate(l, l.load(a), l.load(b), l.load(cos), l.load(sin));
        l.store(new_a, a);
        l.store(new_b, b);
    }
    if !a_rest.is_empty() {
        let (a, b) = (l.load_partial(a_rest, 0.0), l.load_partial(b_rest, 0.0));
        let (cos, sin) = (l.load_partial(cos_rest, 0.0), l.load_partial(sin_rest, 0.0));
        let (new_a, new_b) = rotate(l, a, b, cos, sin);
        l.store_partial(new_a, a_rest);
        l.store_partial(new_b, b_rest);
    }
}

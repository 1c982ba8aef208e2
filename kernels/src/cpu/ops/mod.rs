//! The operations beside matrix products: norms, activations, RoPE, KV cache, attention.
//!
//! [`Ops`] is the table of one tier, chosen once at load. Every op gives the same bits in every
//! tier (NaN payloads aside) and for any split of its rows, heads or tokens over calls: a result
//! depends on its own row alone, sums have one fixed order, and every lane operation is one IEEE
//! operation. Buffers come from the caller; nothing allocates and nothing spawns.
//!
//! To add an op, write its generic body over [`Lanes`](lanes::Lanes) and its line in the table
//! below.
// Calling a `#[target_feature]` function and creating the token that proves its tier are unsafe.
#![allow(unsafe_code)]

mod attention;
mod elementwise;
mod embed;
mod experts;
mod kv;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
mod math;
mod rope;
mod rows;
#[cfg(test)]
mod tests;

use half::f16;

use super::Tier;
use crate::{OutView, Result};

pub use attention::{AttentionShape, AttentionUnit, KvView, attention_scratch_len};
pub use embed::dequantize_row;
pub use experts::Choice;
pub use kv::{KV_BLOCK, KvShape};
pub use rope::{RopeParams, RopeStyle, RopeTable};

/// Makes the table, one instance of every op a tier, and the methods of [`Ops`].
macro_rules! ops {
    ($(
        $(#[$doc:meta])*
        fn $name:ident = $module:ident ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;
    )*) => {
        /// Function pointers of one tier.
        struct Table {
            $($name: unsafe fn($($ty),*) $(-> $ret)?,)*
        }

        mod scalar {
            use super::*;
            $(fn $name($($arg: $ty),*) $(-> $ret)? {
                super::$module::$name(lanes::Scalar, $($arg),*)
            })*
            pub(super) static TABLE: Table = Table { $($name,)* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $(#[target_feature(enable = "avx2,fma,f16c")]
            fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function enables the tier's features.
                let lanes = unsafe { lanes_x86::Avx2::new_unchecked() };
                super::$module::$name(lanes, $($arg),*)
            })*
            pub(super) static TABLE: Table = Table { $($name,)* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $(#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
            fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function enables the tier's features.
                let lanes = unsafe { lanes_x86::Avx512::new_unchecked() };
                super::$module::$name(lanes, $($arg),*)
            })*
            pub(super) static TABLE: Table = Table { $($name,)* };
        }

        #[cfg(target_arch = "aarch64")]
        mod neon {
            use super::*;
            $(#[target_feature(enable = "neon")]
            fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function enables the tier's features.
                let lanes = unsafe { lanes_neon::Neon::new_unchecked() };
                super::$module::$name(lanes, $($arg),*)
            })*
            pub(super) static TABLE: Table = Table { $($name,)* };
        }

        impl Ops {
            $($(#[$doc])*
            #[allow(clippy::too_many_arguments)]
            pub fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: `new` hands out a table only where its tier's instructions exist.
                unsafe { (self.table.$name)($($arg),*) }
            })*
        }
    };
}

/// The ops of one tier.
#[derive(Clone, Copy)]
pub struct Ops {
    tier: Tier,
    table: &'static Table,
}

impl Ops {
    /// The ops of `tier`.
    ///
    /// # Errors
    /// If this machine lacks the tier's instructions.
    pub fn new(tier: Tier) -> Result<Self> {
        let tier = tier.require()?;
        let table = match tier {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 | Tier::AvxVnni => &avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => &avx512::TABLE,
            #[cfg(target_arch = "aarch64")]
            Tier::Neon | Tier::DotProd | Tier::I8mm => &neon::TABLE,
            _ => &scalar::TABLE,
        };
        Ok(Self { tier, table })
    }

    /// The tier of this table.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Appends the keys and values of whole tokens, all KV heads.
    ///
    /// `k_cache`, `v_cache`: the layer's cache, of `shape`. `k`, `v`: `[n_tokens, n_head_kv *
    /// head_dim]`; the first token goes to position `pos0`. Values are rounded to f16, ties to
    /// even; what f16 cannot hold becomes infinite.
    ///
    /// # Panics
    /// If the tokens do not fit the cache.
    pub fn append_kv(
        &self,
        k_cache: &mut [f16],
        v_cache: &mut [f16],
        shape: &KvShape,
        k: &[f32],
        v: &[f32],
        pos0: usize,
    ) {
        let row_len = shape.n_head_kv * shape.head_dim;
        let k_heads = k_cache.chunks_exact_mut(shape.head_elems());
        let v_heads = v_cache.chunks_exact_mut(shape.head_elems());
        for (head, (k_head, v_head)) in k_heads.zip(v_heads).enumerate() {
            let start = head * shape.head_dim;
            let (k, v) = (k.get(start..), v.get(start..));
            self.append_k(k_head, k.unwrap_or(&[]), row_len, shape.head_dim, pos0);
            self.append_v(v_head, v.unwrap_or(&[]), row_len, shape.head_dim, pos0);
        }
    }

    /// [`attention`](Self::attention) of all heads and rows of `q`, unit after unit on this
    /// thread; row 0 is at position `pos0`.
    ///
    /// `scratch`: [`attention_scratch_len`] of [`AttentionShape::tile_tokens`] and the heads of a
    /// group.
    ///
    /// # Panics
    /// As [`attention`](Self::attention).
    pub fn attention_serial(
        &self,
        out: &mut [f32],
        q: &[f32],
        kv: &KvView<'_>,
        shape: &AttentionShape,
        pos0: usize,
        scratch: &mut [f32],
    ) {
        let row_len = shape.n_head * kv.shape.head_dim;
        let n_tokens = q.len() / row_len;
        let group = shape.n_head / kv.shape.n_head_kv;
        let tile = shape.tile_tokens(group, pos0 + n_tokens);
        // SAFETY: units run one after another, and `out` is borrowed for all of them.
        let out = unsafe { OutView::new(out, row_len) };
        for start in (0..n_tokens).step_by(tile) {
            let tokens = start..(start + tile).min(n_tokens);
            for head in (0..shape.n_head).step_by(group) {
                let unit =
                    AttentionUnit { tokens: tokens.clone(), heads: head..head + group, pos0 };
                self.attention(&out, q, kv, shape, &unit, scratch);
            }
        }
    }
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops").field("tier", &self.tier).finish_non_exhaustive()
    }
}

ops! {
    /// RMS norm of each row: `y = x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// `y`, `x`: `[n_rows, row_len]`, `weight`: `[row_len]`.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn rmsnorm = rows(y: &mut [f32], x: &[f32], weight: &[f32], eps: f32);

    /// [`rmsnorm`](Self::rmsnorm) in place; with `weight` of `head_dim` elements, the per-head
    /// norm of queries or keys.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn rmsnorm_in_place = rows(x: &mut [f32], weight: &[f32], eps: f32);

    /// Softmax of one row.
    fn softmax = rows(x: &mut [f32]);

    /// Index of the first largest element; NaN never wins, and a row without numbers gives 0.
    fn argmax = rows(x: &[f32]) -> usize;

    /// `y += x`.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn add = elementwise(y: &mut [f32], x: &[f32]);

    /// Adds `bias`, `[row_len]`, to each row of `y`, `[n_rows, row_len]`.
    fn add_bias = elementwise(y: &mut [f32], bias: &[f32]);

    /// `x *= factor`.
    fn scale = elementwise(x: &mut [f32], factor: f32);

    /// `x = cap * tanh(x / cap)`.
    fn soft_cap = elementwise(x: &mut [f32], cap: f32);

    /// `gate = silu(gate) * up`.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn silu_mul = elementwise(gate: &mut [f32], up: &[f32]);

    /// `gate = gelu(gate) * up`, with gelu's tanh form.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn gelu_tanh_mul = elementwise(gate: &mut [f32], up: &[f32]);

    /// The experts that one token goes to: `choices.len()` of `logits.len()`, those with the
    /// largest logits, the larger first, of equal ones that with the lower number. Weights are the
    /// softmax over all experts, divided by the sum over those chosen. Overwrites `logits`.
    ///
    /// # Panics
    /// If there are more choices than experts.
    fn route = experts(choices: &mut [Choice], logits: &mut [f32]);

    /// Adds to `x`, `[row_len]`, the weighted sum of what a token's experts made of it, in the
    /// order of `choices`: row `places[i]` of `rows`, `[n_rows, row_len]`, has `choices[i].weight`.
    ///
    /// # Panics
    /// If `places` and `choices` differ in length or a place is beyond `rows`.
    fn add_weighted = experts(
        x: &mut [f32], rows: &[f32], places: &[u32], choices: &[Choice],
    );

    /// Rotates every head of every row: `x` is `[n_tokens, n_head * head_dim]`, row `t` at
    /// position `pos0 + t`.
    ///
    /// # Panics
    /// If the lengths disagree or the table ends before the last position.
    fn rope = rope(x: &mut [f32], n_head: usize, head_dim: usize, table: &RopeTable, pos0: usize);

    /// Appends the keys of one KV head.
    ///
    /// `k_head`: the head's part of K, `[n_ctx / 16][head_dim][16]`. `x` starts at the head's
    /// first element of the first token; a token's row is `row_stride` elements after the one
    /// before, and the last may end with the head. The first token goes to position `pos0`.
    ///
    /// # Panics
    /// If the tokens do not fit.
    fn append_k = kv(
        k_head: &mut [f16], x: &[f32], row_stride: usize, head_dim: usize, pos0: usize,
    );

    /// Appends the values of one KV head; as [`append_k`](Self::append_k), with `v_head`
    /// `[n_ctx][head_dim]`.
    ///
    /// # Panics
    /// If the tokens do not fit.
    fn append_v = kv(
        v_head: &mut [f16], x: &[f32], row_stride: usize, head_dim: usize, pos0: usize,
    );

    /// Causal attention of one unit of work.
    ///
    /// `out`, `q`: `[n_tokens, n_head * head_dim]`; the unit writes its tokens and heads of `out`
    /// and reads the cache up to the position of its last token, which must have been appended.
    /// `scratch`: [`attention_scratch_len`] f32, contents irrelevant. The result of a (token,
    /// head) does not depend on how the work is cut into units.
    ///
    /// # Panics
    /// If the unit's heads do not share a KV head, or a shape or the scratch is too small.
    fn attention = attention(
        out: &OutView<'_>,
        q: &[f32],
        kv: &KvView<'_>,
        shape: &AttentionShape,
        unit: &AttentionUnit,
        scratch: &mut [f32],
    );
}

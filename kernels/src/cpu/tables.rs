//! What a tier is made of. Each tier's folder has one such table; [`Tier::tables`](super::Tier)
//! names them.

use format_spec::QuantType;

use super::activations::QuantizeRowFn;
use super::kernels::Kernels;
use super::scalar::unpack::UnpackFn;
use super::units::UnitKernels;

/// One weight row times several tokens: `y`: `[n_tokens]`, `x`: `[n_tokens, row_len]`.
pub(crate) type FloatFn = unsafe fn(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]);

/// The functions of one tier. Their pointers are called where `available` said yes, and nowhere else.
pub(crate) struct Tables {
    /// Whether this machine has the tier's instructions.
    pub(crate) available: fn() -> bool,
    /// The kernels of a quantized type, given its scalar unpacker; without: the scalar tier's loops.
    pub(crate) kernels: Option<fn(QuantType, UnpackFn) -> Kernels>,
    /// The kernels that read `tile` units; f32 has none.
    pub(crate) unit_kernels: fn(QuantType) -> Option<UnitKernels>,
    /// Products with plain floats.
    pub(crate) float_rows: FloatFn,
    /// The name of these.
    pub(crate) float_name: &'static str,
    /// Activations to 8 bits.
    pub(crate) quantize_row: QuantizeRowFn,
}

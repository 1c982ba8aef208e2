//! The compiled kernels, as `scripts/kernels.sh` left them in `kernels/dist/`.

/// One module: its name in messages, and its code for every architecture.
pub(super) struct Fatbin {
    pub(super) name: &'static str,
    pub(super) bytes: &'static [u8],
}

macro_rules! fatbins {
    ($($name:literal,)*) => {
        /// Every module of this part of the kernels.
        pub(super) static FATBINS: &[Fatbin] = &[$(Fatbin {
            name: $name,
            bytes: include_bytes!(concat!("../../dist/", $name, ".fatbin")),
        },)*];
    };
}

fatbins! {
    "any",
    "argmax",
    "attention_cluster",
    "attention_decode",
    "attention_prefill",
    "attention_wgmma",
    "dequant",
    "elementwise",
    "gemm_bf16",
    "gemm_sm90",
    "gemv",
    "gemv_planar",
    "gemv_ring",
    "mmq_generic",
    "mmq_q4_k",
    "mmq_q6_k",
    "moe_gemm",
    "moe_gemv",
    "moe_gemv_any",
    "moe_gemv_planar",
    "moe_mmq",
    "moe_route",
    "norm",
    "rope",
}

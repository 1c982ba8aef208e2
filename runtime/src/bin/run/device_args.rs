//! The options that say on what and how a model runs.

pub(crate) use crate::device::{Device, Layers, Prefill, Verify};
use crate::device::{parse_device, parse_layers};
use clap::Args as ClapArgs;

/// On what and how the model runs.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where to run
    #[arg(
        short,
        long,
        value_name = "auto|cpu|cuda|cuda:N",
        value_parser = parse_device,
        default_value = "auto",
        env = "MINFER_DEVICE",
        hide_env_values = true
    )]
    pub(crate) device: Device,

    /// How a GPU multiplies many tokens: int8 (mmq), bf16, or what is faster there
    #[arg(long, value_name = "FAMILY", value_enum, default_value_t)]
    pub(crate) prefill: Prefill,

    /// Layers on the GPU: the last N, with the output behind them, or as many as fit (auto); those
    /// before run on the CPU. Without it: all, and the model must fit (llama.cpp's -ngl)
    #[arg(long, value_name = "N|all|auto", allow_negative_numbers = true, aliases = ["n-gpu-layers", "ngl"], value_parser = parse_layers,
          env = "MINFER_GPU_LAYERS", hide_env_values = true)]
    pub(crate) gpu_layers: Option<Layers>,

    /// Prompt tokens computed together
    #[arg(short, long, value_name = "N", default_value_t = 512, env = "MINFER_BATCH", hide_env_values = true,
          allow_negative_numbers = true,
          value_parser = cli::number(1..=32768u32))]
    pub(crate) batch: u32,

    /// llama.cpp's -fa: attention never writes its scores to memory, so that there is nothing to switch
    #[arg(long = "flash-attn", value_name = "on", hide = true, value_parser = ["1", "on", "auto"])]
    pub(crate) _flash_attn: Option<String>,

    /// End with exit 6, not a warning, where a matrix is slower than need be: a plane in the file that is
    /// not used, or nothing in the file that this device has kernels for (planar on a CPU, tile on a GPU).
    /// What a variable switches off is not refused
    #[arg(long)]
    pub(crate) strict: bool,

    /// How much of the file to check before running: header and index always, every byte with
    /// fast (xxh3) or full (sha256)
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub(crate) verify: Verify,
}

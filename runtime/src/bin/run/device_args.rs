//! The options that say on what and how a model runs.

use clap::{Args as ClapArgs, ValueEnum};

/// On what and how the model runs.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where to run
    #[arg(
        short,
        long,
        value_name = "auto|cpu|cuda|cuda:N",
        value_parser = device,
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
    #[arg(long, value_name = "N|auto", aliases = ["n-gpu-layers", "ngl"], value_parser = gpu_layers,
          env = "MINFER_GPU_LAYERS", hide_env_values = true)]
    pub(crate) gpu_layers: Option<Layers>,

    /// Prompt tokens computed together
    #[arg(short, long, value_name = "N", default_value_t = 512, env = "MINFER_BATCH", hide_env_values = true,
          allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub(crate) batch: u32,

    /// A fast path that is not taken ends the run (exit 6) instead of being reported
    #[arg(long)]
    pub(crate) strict: bool,

    /// How much of the file to check before running: header and index always, every byte with
    /// fast (xxh3) or full (sha256)
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub(crate) verify: Verify,
}

/// Where to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The first GPU, if it can be used, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// This NVIDIA GPU.
    Cuda(usize),
}

/// How many layers are on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layers {
    /// As many as fit.
    Auto,
    /// The last so many.
    Last(usize),
}

/// How a GPU multiplies many tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prefill {
    /// What is faster on the device
    #[default]
    Auto,
    /// int8 tensor cores, from quantized blocks or their planes
    Mmq,
    /// bf16 tensor cores, from the bf16 plane or a dequantized copy
    Bf16,
}

/// How much of the file is checked before running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// What every start checks anyway: header and index
    Off,
    /// Header and index
    #[default]
    Header,
    /// xxh3 of every object
    Fast,
    /// sha256 of every object
    Full,
}

fn device(text: &str) -> Result<Device, String> {
    match text {
        "auto" => return Ok(Device::Auto),
        "cpu" => return Ok(Device::Cpu),
        "cuda" => return Ok(Device::Cuda(0)),
        _ => {}
    }
    let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    number.map(Device::Cuda).ok_or_else(|| "expected auto, cpu, cuda or cuda:N".to_owned())
}

fn gpu_layers(text: &str) -> Result<Layers, String> {
    match text {
        "auto" => Ok(Layers::Auto),
        _ => text.parse().map(Layers::Last).map_err(|_| "expected auto or a number".to_owned()),
    }
}

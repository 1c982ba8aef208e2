//! On what and how a model runs: what flags and variables say about it, and opening it that way.

use clap::ValueEnum;
use cli::{ExitCode, Failure, Ui};
use format_spec::container::Container;
use kernels::Tier;
use runtime::report::{KernelReport, MatmulReport};
use runtime::{CudaError, CudaOptions, Gemm, GpuLayers, Load, LoadOptions, LoadWatch, Model};

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

/// Reads `--device`.
pub(crate) fn parse_device(text: &str) -> Result<Device, String> {
    match text {
        "auto" => return Ok(Device::Auto),
        "cpu" => return Ok(Device::Cpu),
        "cuda" => return Ok(Device::Cuda(0)),
        _ => {}
    }
    let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    number.map(Device::Cuda).ok_or_else(|| "expected auto, cpu, cuda or cuda:N".to_owned())
}

/// Reads `--gpu-layers`.
pub(crate) fn parse_layers(text: &str) -> Result<Layers, String> {
    match text {
        "auto" => Ok(Layers::Auto),
        // As llama.cpp has it.
        "all" | "-1" => Ok(Layers::Last(usize::MAX)),
        _ => {
            text.parse().map(Layers::Last).map_err(|_| "expected auto, all or a number".to_owned())
        }
    }
}

/// Where a model goes, and what must have room beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) device: Device,
    pub(crate) prefill: Prefill,
    pub(crate) layers: Option<Layers>,
    /// Positions; 0: those that a session begins with.
    pub(crate) n_ctx: usize,
    pub(crate) n_batch: usize,
}

impl Placement {
    /// The options of a run on GPU `ordinal`.
    ///
    /// # Errors
    /// Wrong use: a variable with a value that it cannot have.
    fn cuda_options(&self, ordinal: usize) -> Result<CudaOptions, Failure> {
        Ok(CudaOptions {
            ordinal,
            prefill: match self.prefill {
                Prefill::Auto => runtime::Prefill::Auto,
                Prefill::Mmq => runtime::Prefill::Mmq,
                Prefill::Bf16 => runtime::Prefill::Bf16,
            },
            gemm: gemm()?,
            // For looking into a problem: each of them only takes time.
            graphs: on("MINFER_CUDA_GRAPHS")?,
            chained: on("MINFER_CUDA_CHAIN")?,
            argmax: on("MINFER_GPU_ARGMAX")?,
            fused: on("MINFER_GPU_FUSE")?,
            ring: on("MINFER_GPU_RING")?,
            wgmma_attention: on("MINFER_GPU_WGMMA_ATTENTION")?,
            cluster_attention: on("MINFER_GPU_CLUSTER_ATTENTION")?,
            keep_bf16: on("MINFER_GPU_KEEP_BF16")?,
            wide: on("MINFER_GPU_WIDE")?,
            load: load()?,
            n_ctx: self.n_ctx,
            n_batch: self.n_batch,
            layers: match self.layers {
                None => GpuLayers::All,
                Some(Layers::Auto) => GpuLayers::Auto,
                Some(Layers::Last(n)) => GpuLayers::Last(n),
            },
            max_bytes: max_bytes()?,
        })
    }

    /// Opens the model of `container`, which lies in `file`, on the device that was asked for;
    /// without a wish on the first GPU, if it can be used, and a line says why where it cannot.
    ///
    /// # Errors
    /// If the model cannot be used, or not there.
    pub(crate) fn open<'a>(
        &self,
        ui: &Ui,
        file: &'a [u8],
        container: &'a Container<'a>,
        options: &LoadOptions,
        watch: LoadWatch<'_>,
    ) -> Result<Model<'a>, Failure> {
        let on_gpu = |cuda: &CudaOptions| Model::open_cuda(file, container, options, cuda, watch);
        match self.on_gpu(ui, on_gpu)? {
            Some(model) => Ok(model),
            None => Model::open(file, container, options).map_err(failure),
        }
    }

    /// Does `work` with the GPU that was asked for; without a wish with the first, if it can be used.
    /// `None`: it is the CPU's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn on_gpu<R>(
        &self,
        ui: &Ui,
        work: impl FnOnce(&CudaOptions) -> Result<R, runtime::Error>,
    ) -> Result<Option<R>, Failure> {
        let ordinal = match self.device {
            Device::Cpu => return Ok(None),
            _ if self.layers == Some(Layers::Last(0)) => return Ok(None),
            Device::Auto => 0,
            Device::Cuda(ordinal) => ordinal,
        };
        match work(&self.cuda_options(ordinal)?) {
            Err(e @ (runtime::Error::Device(_) | runtime::Error::DeviceMemory { .. }))
                if self.device == Device::Auto =>
            {
                let why = format_args!("running on the CPU: {e}");
                match e {
                    // A machine without a GPU has nothing to fall back from, unless layers were to be on one.
                    runtime::Error::Device(CudaError::NoDriver) if self.layers.is_none() => {
                        ui.verbose(1, why);
                    }
                    _ => ui.note(why),
                }
                Ok(None)
            }
            other => other.map(Some).map_err(failure),
        }
    }
}

/// The options of a load, with the switches that variables are.
///
/// # Errors
/// Wrong use: a variable with a value that it cannot have.
pub(crate) fn load_options(tier: Tier, n_threads: usize) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        tier,
        n_threads,
        exp_plane: on("MINFER_MMQ_Q6K_EXP")?,
        tile_units: on("MINFER_CPU_TILE")?,
    })
}

/// A switch: on, unless the variable says otherwise.
fn on(variable: &str) -> Result<bool, Failure> {
    let Some(text) = cli::variable(variable) else { return Ok(true) };
    let text = text.to_string_lossy();
    parse_switch(&text)
        .ok_or_else(|| Failure::usage(format!("{variable}={text}: expected 0 (off) or 1 (on)")))
}

fn parse_switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "false" | "no" => Some(false),
        "1" | "on" | "true" | "yes" => Some(true),
        _ => None,
    }
}

/// `MINFER_GPU_LOAD`: `pinned`, `map`, or `map:N` with N MiB pinned at a time.
fn load() -> Result<Load, Failure> {
    let Some(text) = cli::variable("MINFER_GPU_LOAD") else {
        return Ok(CudaOptions::default().load);
    };
    parse_load(&text.to_string_lossy()).ok_or_else(|| {
        let text = text.to_string_lossy();
        Failure::usage(format!("MINFER_GPU_LOAD={text}: expected pinned, map or map:MIB"))
    })
}

/// `MINFER_GPU_GEMM`: whose kernels make bf16 products, `auto`, `own` or `cublas`.
fn gemm() -> Result<Gemm, Failure> {
    let Some(text) = cli::variable("MINFER_GPU_GEMM") else { return Ok(Gemm::Auto) };
    let text = text.to_string_lossy();
    parse_gemm(&text).ok_or_else(|| {
        Failure::usage(format!("MINFER_GPU_GEMM={text}: expected auto, own or cublas"))
    })
}

fn parse_gemm(text: &str) -> Option<Gemm> {
    match text {
        "auto" => Some(Gemm::Auto),
        "own" => Some(Gemm::Own),
        "cublas" => Some(Gemm::Cublas),
        _ => None,
    }
}

/// `MINFER_GPU_MEMORY`: bytes that may be used, e.g. `8G`; 0 without it.
pub(crate) fn max_bytes() -> Result<u64, Failure> {
    let Some(text) = cli::variable("MINFER_GPU_MEMORY") else { return Ok(0) };
    let text = text.to_string_lossy();
    cli::parse_size(&text).map_err(|e| Failure::usage(format!("MINFER_GPU_MEMORY={text}: {e}")))
}

fn parse_load(text: &str) -> Option<Load> {
    match text.split_once(':') {
        None if text == "pinned" => Some(Load::Pinned),
        None if text == "map" => Some(Load::Map(Load::MAP_BYTES)),
        Some(("map", mib)) => {
            let mib: usize = mib.parse().ok().filter(|mib| (1..=1 << 20).contains(mib))?;
            Some(Load::Map(mib << 20))
        }
        _ => None,
    }
}

/// The exit code and line of a runtime error.
pub(crate) fn failure(error: runtime::Error) -> Failure {
    use runtime::Error;
    let code = match &error {
        Error::ContextFull { .. } | Error::Stopped => ExitCode::Failed,
        Error::Memory { .. }
        | Error::DeviceMemory { .. }
        | Error::Device(CudaError::Memory { .. }) => ExitCode::Memory,
        Error::Device(_) => ExitCode::Device,
        Error::Threads(_) => ExitCode::Io,
        Error::NoTokens => ExitCode::Usage,
        _ => ExitCode::Input,
    };
    Failure::new(code, error.to_string())
}

/// Says once, loudly, that matrices are slower than they could be, and ends the run under `--strict`:
/// a plane that is there, usable and not used, or objects that the device has no kernels for.
///
/// # Errors
/// Such a matrix under `--strict` (6).
pub(crate) fn report_fallbacks(ui: &Ui, model: &Model<'_>, strict: bool) -> Result<(), Failure> {
    let report = model.explain();
    let of = |wanted: fn(&KernelReport) -> bool, what: &str| {
        let phase = |row: &'_ MatmulReport| {
            [&row.prefill, &row.decode].into_iter().find(|phase| wanted(phase)).cloned()
        };
        let rows: Vec<_> = report.iter().filter_map(|row| Some((row, phase(row)?))).collect();
        let (row, phase) = rows.first()?;
        Some(format!(
            "{} of {} matrices {what} ({}: {}); --explain lists them",
            rows.len(),
            report.len(),
            row.name,
            phase.reason
        ))
    };
    let messages = [
        of(
            |phase| phase.falls_short() && phase.is_slow,
            "are slow here: no kernel is made for what the file holds of them, other --planes help",
        ),
        of(
            |phase| phase.falls_short() && !phase.is_slow,
            "do not use the fast path that the file holds for them",
        ),
    ];
    for message in messages.into_iter().flatten() {
        if strict {
            return Err(Failure::new(ExitCode::Device, message));
        }
        ui.warn(format_args!("{message}"));
    }
    Ok(())
}

/// # Errors
/// If the device asked for is not there.
pub(crate) fn check_device(device: Device) -> Result<(), Failure> {
    let Device::Cuda(ordinal) = device else { return Ok(()) };
    match runtime::probe_gpu(ordinal) {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::new(ExitCode::Device, format!("--device cuda:{ordinal}: {e}"))),
    }
}

/// The instruction-set tier: `MINFER_CPU`, else the best of this processor.
///
/// # Errors
/// A name that is none (2), or a tier that this processor does not have (6).
pub(crate) fn tier() -> Result<Tier, Failure> {
    let Some(name) = cli::variable("MINFER_CPU") else { return Ok(Tier::detect()) };
    tier_named("MINFER_CPU", &name.to_string_lossy())
}

/// The tier of this name, which `from` gave.
///
/// # Errors
/// As [`tier`].
pub(crate) fn tier_named(from: &str, name: &str) -> Result<Tier, Failure> {
    let tier = Tier::parse(name).map_err(|e| Failure::usage(format!("{from}: {e}")))?;
    if tier.available() {
        return Ok(tier);
    }
    Err(Failure::new(ExitCode::Device, format!("{from}={name}: this processor does not have it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_or_refused() {
        for text in ["0", "off", "False", "no"] {
            assert_eq!(parse_switch(text), Some(false), "{text}");
        }
        for text in ["1", "on", "TRUE", "yes"] {
            assert_eq!(parse_switch(text), Some(true), "{text}");
        }
        assert_eq!(parse_switch("2"), None);
        assert_eq!(parse_switch("of"), None);
    }

    #[test]
    fn layers_are_read_as_llama_cpp_reads_them() {
        assert_eq!(parse_layers("all"), Ok(Layers::Last(usize::MAX)));
        assert_eq!(parse_layers("-1"), parse_layers("all"));
        assert_eq!(parse_layers("20"), Ok(Layers::Last(20)));
        assert!(parse_layers("-2").is_err());
    }

    #[test]
    fn whose_kernels_is_read() {
        assert_eq!(parse_gemm("own"), Some(Gemm::Own));
        assert_eq!(parse_gemm("cublas"), Some(Gemm::Cublas));
        assert_eq!(["", "Own", "cublaslt", "1"].map(parse_gemm), [None; 4]);
    }

    #[test]
    fn ways_to_load_are_read() {
        assert_eq!(parse_load("pinned"), Some(Load::Pinned));
        assert_eq!(parse_load("map"), Some(Load::Map(64 << 20)));
        assert_eq!(parse_load("map:3"), Some(Load::Map(3 << 20)));
        for bad in ["", "map:", "map:0", "map:-1", "pinned:1", "maps", "map:99999999999999999999"] {
            assert_eq!(parse_load(bad), None, "{bad}");
        }
    }
}

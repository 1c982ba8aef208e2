//! On what and how a model runs: what flags say about it, and opening it that way.

use crate::switches::Switches;
use clap::ValueEnum;
use cli::{ExitCode, Failure, Ui};
use format_spec::container::Container;
use kernels::Tier;
use runtime::report::KernelReport;
use runtime::{CudaError, CudaOptions, GpuLayers, LoadOptions, LoadWatch, Model};
use std::ops::RangeInclusive;
use std::path::Path;

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

/// Numbers of devices, and of layers, as drivers and models count them.
const ORDINALS: RangeInclusive<usize> = 0..=i32::MAX as usize;

/// Whether it is a whole number without a sign, however large.
pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads `--device`.
pub(crate) fn parse_device(text: &str) -> Result<Device, String> {
    match text {
        "auto" => return Ok(Device::Auto),
        "cpu" => return Ok(Device::Cpu),
        "cuda" => return Ok(Device::Cuda(0)),
        _ => {}
    }
    match text.strip_prefix("cuda:") {
        Some(number) if is_digits(number) => cli::whole(number, &ORDINALS).map(Device::Cuda),
        _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
    }
}

/// Reads `--gpu-layers`.
pub(crate) fn parse_layers(text: &str) -> Result<Layers, String> {
    match text {
        "auto" => Ok(Layers::Auto),
        // As llama.cpp has it.
        "all" | "-1" => Ok(Layers::Last(usize::MAX)),
        _ if is_digits(text) => cli::whole(text, &ORDINALS).map(Layers::Last),
        _ => Err("expected auto, all or a number".to_owned()),
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
    pub(crate) switches: Switches,
}

impl Placement {
    /// The options of a run on GPU `ordinal`.
    fn cuda_options(&self, ordinal: usize) -> CudaOptions {
        CudaOptions {
            ordinal,
            prefill: match self.prefill {
                Prefill::Auto => runtime::Prefill::Auto,
                Prefill::Mmq => runtime::Prefill::Mmq,
                Prefill::Bf16 => runtime::Prefill::Bf16,
            },
            n_ctx: self.n_ctx,
            n_batch: self.n_batch,
            layers: match self.layers {
                None => GpuLayers::All,
                Some(Layers::Auto) => GpuLayers::Auto,
                Some(Layers::Last(n)) => GpuLayers::Last(n),
            },
            ..self.switches.cuda_options()
        }
    }

    /// Whether it is known before anything is loaded that a model would be on the CPU alone.
    #[allow(dead_code)] // one of the commands asks
    pub(crate) fn is_on_cpu(&self) -> bool {
        match self.device {
            _ if self.layers == Some(Layers::Last(0)) => true,
            Device::Auto => runtime::probe_gpu(0).is_err(),
            Device::Cpu => true,
            Device::Cuda(_) => false,
        }
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
        match work(&self.cuda_options(ordinal)) {
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

/// Warns that matrices of the model of `path` are slower than they could be, and ends the run under
/// `--strict`: a plane that is there, usable and not used, or objects that the device has no kernels for.
///
/// # Errors
/// Such a matrix under `--strict` (6).
pub(crate) fn report_fallbacks(
    path: &Path,
    model: &Model<'_>,
    strict: bool,
    mut warn: impl FnMut(String),
) -> Result<(), Failure> {
    let report = model.explain();
    let of = |wanted: fn(&KernelReport) -> bool, what: &str| {
        let phases = report.iter().map(|row| (row, [&row.prefill, &row.decode]));
        let found = phases.filter_map(|(row, phases)| {
            let phase = phases.into_iter().find(|phase| wanted(phase))?;
            Some((row, phase))
        });
        let rows: Vec<_> = found.collect();
        let (row, phase) = rows.first()?;
        Some(format!(
            "{}: {} of {} matrices {what} ({}: {}); minfer-run --explain lists them",
            path.display(),
            rows.len(),
            report.len(),
            row.name,
            phase.reason
        ))
    };
    let messages = [
        of(
            |phase| phase.falls_short() && phase.is_slow,
            "are slow here: no kernel is made for what the file holds of them, other --planes may help",
        ),
        of(
            |phase| phase.falls_short() && !phase.is_slow,
            "do not use the fast path that the file holds for them",
        ),
    ];
    for message in messages.into_iter().flatten() {
        if strict {
            // With --strict it does not come to the table.
            let message = format!("{message}, without --strict");
            return Err(Failure::new(ExitCode::Device, message));
        }
        warn(message);
    }
    Ok(())
}

/// # Errors
/// If the device asked for is not there.
pub(crate) fn check_device(device: Device) -> Result<(), Failure> {
    let Device::Cuda(ordinal) = device else { return Ok(()) };
    match runtime::probe_gpu(ordinal) {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::new(ExitCode::Device, format!("cuda:{ordinal}: {e}"))),
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
    fn layers_are_read_as_llama_cpp_reads_them() {
        assert_eq!(parse_layers("all"), Ok(Layers::Last(usize::MAX)));
        assert_eq!(parse_layers("-1"), parse_layers("all"));
        assert_eq!(parse_layers("20"), Ok(Layers::Last(20)));
        assert!(parse_layers("-2").is_err());
    }

    #[test]
    fn devices_that_cannot_be_are_told_their_range() {
        assert_eq!(parse_device("cuda:3"), Ok(Device::Cuda(3)));
        let range = "out of range: expected 0 to 2147483647";
        assert_eq!(parse_device("cuda:99999999999999999999"), Err(range.to_owned()));
        let words = "expected auto, cpu, cuda or cuda:N";
        for text in ["tpu", "cuda:", "cuda:x", "cuda:-1", "cuda1"] {
            assert_eq!(parse_device(text), Err(words.to_owned()), "{text}");
        }
        let range = "out of range: expected 0 to 2147483647";
        assert_eq!(parse_layers("99999999999999999999"), Err(range.to_owned()));
    }
}

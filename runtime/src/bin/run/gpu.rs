//! Running on a GPU: which options the command line and the environment make, what memory it takes,
//! and the bar while weights are on their way.

use crate::args::{Layers, Prefill};
use crate::setup::{Job, on};
use cli::{Bytes, Failure, Stage};
use runtime::report::GpuPlan;
use runtime::{CudaOptions, GpuLayers, Load, LoadOptions, LoadWatch, Model};
use std::sync::OnceLock;

impl<'a> Job<'_, 'a> {
    /// The options of a run on GPU `ordinal`.
    ///
    /// # Errors
    /// Wrong use: a variable with a value that it cannot have.
    pub(crate) fn cuda_options(&self, ordinal: usize) -> Result<CudaOptions, Failure> {
        let device = &self.args.device;
        Ok(CudaOptions {
            ordinal,
            prefill: match device.prefill {
                Prefill::Auto => runtime::Prefill::Auto,
                Prefill::Mmq => runtime::Prefill::Mmq,
                Prefill::Bf16 => runtime::Prefill::Bf16,
            },
            // For looking into a problem: each of them only takes time.
            graphs: on("MINFER_CUDA_GRAPHS"),
            chained: on("MINFER_CUDA_CHAIN"),
            argmax: on("MINFER_GPU_ARGMAX"),
            wgmma_attention: on("MINFER_GPU_WGMMA_ATTENTION"),
            load: load()?,
            n_ctx: self.args.length.ctx_size as usize,
            n_batch: device.batch as usize,
            layers: match device.gpu_layers {
                None => GpuLayers::All,
                Some(Layers::Auto) => GpuLayers::Auto,
                Some(Layers::Last(n)) => GpuLayers::Last(n),
            },
            max_bytes: max_bytes()?,
        })
    }

    /// Puts the model on a GPU, with a bar.
    pub(crate) fn open_gpu(
        &self,
        options: &LoadOptions,
        cuda: &CudaOptions,
    ) -> Result<Model<'a>, runtime::Error> {
        let stage: OnceLock<Stage> = OnceLock::new();
        let planned = |plan: &GpuPlan| {
            let level = u8::from(!self.args.inspect.explain);
            self.ui.verbose(level, format_args!("{}", table(plan, cuda.n_ctx > 0).trim_end()));
            if plan.need_bytes() <= plan.free_bytes {
                let progress = self.ui.progress(&["upload"]);
                let _ = stage.set(progress.stage("upload", plan.upload_bytes));
            }
        };
        let sent = |n_bytes| {
            if let Some(stage) = stage.get() {
                stage.add(n_bytes);
            }
        };
        let watch = LoadWatch { planned: &planned, sent: &sent };
        let model = Model::open_cuda(&self.file.map, self.container, options, cuda, watch)?;
        drop(stage);
        self.ui.verbose(
            1,
            format_args!(
                "uploaded {}, {} of it from the map",
                Bytes(model.uploaded_bytes()),
                Bytes(model.uploaded_in_place_bytes())
            ),
        );
        Ok(model)
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

/// `MINFER_GPU_MEMORY`: bytes that may be used, e.g. `8G`; 0 without it.
fn max_bytes() -> Result<u64, Failure> {
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

/// What the model takes of the GPU's memory, row by row.
fn table(plan: &GpuPlan, n_ctx_given: bool) -> String {
    let mut text = match plan.first_layer {
        0 => format!("GPU memory, all {} layers\n", plan.n_layer),
        first => {
            format!("GPU memory, layers {first} to {} of {}\n", plan.n_layer - 1, plan.n_layer)
        }
    };
    let mut row = |name: &str, n_bytes: u64| {
        text += &format!("  {name:<40}{:>12}\n", Bytes(n_bytes).to_string());
    };
    for kind in &plan.weights {
        row(&format!("{} ({} objects)", kind.kind, kind.n_objects), kind.n_bytes);
    }
    let grows = if n_ctx_given { "" } else { " at first" };
    row(&format!("KV cache f16 ({} tokens{grows})", plan.n_ctx), plan.kv_bytes);
    row(&format!("scratch (-b {}), at most", plan.n_batch), plan.scratch_bytes);
    row("total", plan.need_bytes());
    row("free", plan.free_bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::report::KindBytes;

    #[test]
    fn ways_to_load_are_read() {
        assert_eq!(parse_load("pinned"), Some(Load::Pinned));
        assert_eq!(parse_load("map"), Some(Load::Map(64 << 20)));
        assert_eq!(parse_load("map:3"), Some(Load::Map(3 << 20)));
        for bad in ["", "map:", "map:0", "map:-1", "pinned:1", "maps", "map:99999999999999999999"] {
            assert_eq!(parse_load(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_table_adds_up() {
        let weights = vec![
            KindBytes { kind: "padded", n_objects: 3, n_bytes: 3 << 20 },
            KindBytes { kind: "exp", n_objects: 1, n_bytes: 1 << 20 },
        ];
        let plan = GpuPlan {
            first_layer: 3,
            n_layer: 8,
            weights,
            upload_bytes: 4 << 20,
            kv_bytes: 2 << 20,
            n_ctx: 4096,
            scratch_bytes: 10 << 20,
            n_batch: 512,
            free_bytes: 1 << 30,
            total_bytes: 2 << 30,
        };
        let text = table(&plan, false);
        assert!(text.starts_with("GPU memory, layers 3 to 7 of 8\n"));
        assert!(text.contains("padded (3 objects)") && text.contains("4096 tokens at first"));
        assert!(text.contains(&Bytes(16 << 20).to_string()), "{text}");
        assert_eq!(plan.need_bytes(), 16 << 20);
    }
}

//! Opening a model with a table of the GPU memory that it takes, and a bar while weights are on
//! their way.

use crate::device::{Device, Placement};
use crate::setup::Job;
use cli::{Bytes, Failure, Seconds, Stage};
use runtime::report::GpuPlan;
use runtime::{GpuOutlook, LoadOptions, LoadWatch, Model};
use std::sync::OnceLock;

impl<'a> Job<'_, 'a> {
    /// Where the arguments put it.
    fn placement(&self) -> Placement {
        let device = &self.args.device;
        Placement {
            device: device.device,
            prefill: device.prefill,
            layers: device.gpu_layers,
            n_ctx: self.args.length.ctx_size as usize,
            n_batch: device.batch as usize,
            switches: self.switches,
        }
    }

    /// The GPU on which [`open`](Self::open) would put the model, with nothing loaded; `None`: it would
    /// be on the CPU.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn outlook(&self, options: &LoadOptions) -> Result<Option<GpuOutlook<'a>>, Failure> {
        let placement = self.placement();
        placement.on_gpu(self.ui, |cuda| {
            let gpu = GpuOutlook::new(self.container, options, cuda)?;
            let plan = gpu.plan(placement.n_ctx)?;
            let (need, free) = (plan.need_bytes(), plan.free_bytes);
            match need > free && placement.device == Device::Auto {
                true => Err(runtime::Error::DeviceMemory { what: "the model", need, free }),
                false => Ok(gpu),
            }
        })
    }

    /// On the device that was asked for.
    ///
    /// # Errors
    /// If the model cannot be used, or not there.
    pub(crate) fn open(&self, options: &LoadOptions) -> Result<Model<'a>, Failure> {
        let placement = self.placement();
        let stage: OnceLock<Stage> = OnceLock::new();
        let planned = |plan: &GpuPlan| {
            let level = u8::from(!self.args.inspect.explain);
            self.ui.verbose(level, format_args!("{}", table(plan, placement.n_ctx > 0).trim_end()));
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
        let model = placement.open(self.ui, &self.file.map, self.container, options, watch)?;
        drop(stage);
        if let Some(load) = model.gpu_load() {
            self.ui.verbose(
                1,
                format_args!(
                    "uploaded {}, {} of it from the map\n\
                     context and kernels {}, {} read ahead; upload {}; library {}",
                    Bytes(model.uploaded_bytes()),
                    Bytes(model.uploaded_in_place_bytes()),
                    Seconds(load.context),
                    Bytes(load.read_ahead),
                    Seconds(load.upload),
                    Seconds(load.library)
                ),
            );
        }
        Ok(model)
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
    if plan.copies_bytes > 0 {
        row("copies in bf16 (MINFER_GPU_KEEP_BF16=0: none)", plan.copies_bytes);
    }
    row("total", plan.need_bytes());
    row("free", plan.free_bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::report::KindBytes;

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
            copies_bytes: 5 << 20,
            n_batch: 512,
            free_bytes: 1 << 30,
            total_bytes: 2 << 30,
        };
        let text = table(&plan, false);
        assert!(text.starts_with("GPU memory, layers 3 to 7 of 8\n"));
        assert!(text.contains("padded (3 objects)") && text.contains("4096 tokens at first"));
        assert!(text.contains(&Bytes(21 << 20).to_string()), "{text}");
        assert!(text.contains("copies in bf16") && text.contains(&Bytes(5 << 20).to_string()));
        assert_eq!(plan.need_bytes(), 21 << 20);
    }
}

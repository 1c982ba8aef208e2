//! `--dry-run`: where memory would go.

use crate::memory::Need;
use crate::setup::{Job, available_bytes, device, failure};
use cli::{Bytes, ExitCode, Failure};
use runtime::GpuOutlook;
use runtime::report::GpuPlan;
use serde_json::json;

/// The rows of the table.
struct Table {
    device: String,
    on_gpu: bool,
    n_ctx: usize,
    need: Need,
    available: Option<u64>,
}

/// Prints the memory table; exit 5 if it does not fit. No weights are read, on a GPU neither.
///
/// # Errors
/// If the model cannot be used; standard output.
pub(super) fn run(job: &mut Job<'_, '_>) -> Result<ExitCode, Failure> {
    let asked = job.args.length.ctx_size as usize;
    let options = job.load_options()?;
    let table = match job.outlook(&options).map_err(|e| job.file.blame(e))? {
        None => {
            let model = job.load()?;
            let (need, available) = (job.need(&model), available_bytes(&model));
            let n_ctx = match asked {
                0 => need.largest_ctx(model.config().n_ctx_train, available),
                asked => asked,
            };
            Table { device: device(&model), on_gpu: false, n_ctx, need, available }
        }
        Some(gpu) => {
            let failed = |e| job.file.blame(failure(e));
            let plan = match asked {
                0 => longest(&gpu).map_err(failed)?,
                asked => gpu.plan(asked).map_err(failed)?,
            };
            let info = gpu.gpu();
            let layers = match plan.first_layer {
                0 => String::new(),
                n => format!(" behind {n} layers on the cpu"),
            };
            Table {
                device: format!("cuda:{} {}{layers}", info.ordinal, info.name),
                on_gpu: true,
                n_ctx: plan.n_ctx,
                need: Need::of(&plan),
                available: Some(plan.free_bytes),
            }
        }
    };
    print(job, &table)
}

/// The plan with the longest context that fits, as a run without `-c` has it.
fn longest(gpu: &GpuOutlook<'_>) -> Result<GpuPlan, runtime::Error> {
    let shortest = gpu.plan(0)?;
    let need = Need::of(&shortest);
    let n_ctx = need.largest_ctx(gpu.config().n_ctx_train, Some(shortest.free_bytes));
    let mut plan = gpu.plan(n_ctx)?;
    // Tables grow with the context, too.
    while plan.need_bytes() > plan.free_bytes && plan.n_ctx > 1 {
        let excess = plan.need_bytes() - plan.free_bytes;
        let n_fewer = excess.div_ceil(need.kv_per_token.max(1));
        plan = gpu.plan(plan.n_ctx.saturating_sub(n_fewer as usize).max(1))?;
    }
    Ok(plan)
}

fn print(job: &Job<'_, '_>, table: &Table) -> Result<ExitCode, Failure> {
    let Table { device, on_gpu, n_ctx, need, available } = table;
    let n_batch = job.args.device.batch;
    let kv = need.kv_per_token.saturating_mul(*n_ctx as u64);
    let total = need.total(*n_ctx);
    let fits = available.is_none_or(|available| total <= available);
    if job.ui.is_json() {
        job.ui.set(
            "memory",
            json!({
                "device": device, "n_ctx": n_ctx, "n_batch": n_batch,
                "weights_bytes": need.weights, "kv_bytes": kv, "compute_bytes": need.compute,
                "copies_bytes": need.copies,
                "total_bytes": total, "available_bytes": available, "fits": fits,
            }),
        );
    } else {
        let compute = if *on_gpu { "scratch" } else { "activations and logits" };
        let mut rows = vec![
            (if *on_gpu { "weights" } else { "weights (mapped, shared)" }.to_owned(), need.weights),
            (format!("KV cache f16 ({n_ctx} tokens)"), kv),
            (format!("{compute} (-b {n_batch})"), need.compute),
        ];
        if need.copies > 0 {
            rows.push(("copies in bf16, kept to spare time".to_owned(), need.copies));
        }
        rows.push((format!("total on {device}"), total));
        let mut text = String::new();
        for (name, bytes) in rows {
            text += &format!("{name:<36}{:>12}\n", Bytes(bytes).to_string());
        }
        let known = available.map_or("unknown".to_owned(), |a| Bytes(a).to_string());
        job.ui.print(format!("{text}{:<36}{known:>12}\n", "available"))?;
    }
    if fits {
        return Ok(ExitCode::Ok);
    }
    let room = available.unwrap_or(0);
    Err(Failure::new(
        ExitCode::Memory,
        format!("does not fit: {} needed, {} available", Bytes(total), Bytes(room)),
    ))
}

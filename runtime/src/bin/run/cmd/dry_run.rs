//! `--dry-run`: where memory would go.

use crate::setup::{Job, available_bytes, device};
use cli::{Bytes, ExitCode, Failure};
use serde_json::json;

/// Prints the memory table; exit 5 if it does not fit. On the CPU no weights are read, on a GPU they
/// are loaded first.
///
/// # Errors
/// If the model cannot be used; standard output.
pub(super) fn run(job: &mut Job<'_, '_>) -> Result<ExitCode, Failure> {
    let model = job.load()?;
    let need = job.need(&model);
    let available = available_bytes(&model);
    let trained = model.config().n_ctx_train;
    let n_ctx = match job.args.length.ctx_size {
        0 => need.largest_ctx(trained, available),
        asked => asked as usize,
    };
    let kv = need.kv_per_token.saturating_mul(n_ctx as u64);
    let total = need.total(n_ctx);
    let fits = available.is_none_or(|available| total <= available);
    if job.ui.is_json() {
        job.ui.set(
            "memory",
            json!({
                "device": device(&model), "n_ctx": n_ctx, "n_batch": job.args.device.batch,
                "weights_bytes": need.weights, "kv_bytes": kv, "compute_bytes": need.compute,
                "total_bytes": total, "available_bytes": available, "fits": fits,
            }),
        );
    } else {
        let known = available.map_or("unknown".to_owned(), |a| Bytes(a).to_string());
        job.ui.print(format!(
            "{:<36}{:>12}\n{:<36}{:>12}\n{:<36}{:>12}\n{:<36}{:>12}\n{:<36}{:>12}\n",
            if model.gpu().is_some() { "weights" } else { "weights (mapped, shared)" },
            Bytes(need.weights),
            format!("KV cache f16 ({n_ctx} tokens)"),
            Bytes(kv),
            format!("activations and logits (-b {})", job.args.device.batch),
            Bytes(need.compute),
            format!("total on {}", device(&model)),
            Bytes(total),
            "available",
            known,
        ))?;
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

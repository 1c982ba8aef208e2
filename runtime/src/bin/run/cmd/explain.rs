//! `--explain`: which object and kernel each matrix uses, and why.

use crate::setup::Job;
use cli::{Bytes, ExitCode, Failure};
use runtime::Model;
use runtime::report::{
    AttentionReport, ChoiceReport, CopiesReport, GemmReport, KernelReport, MatmulReport,
    RingReport, WideReport,
};
use serde_json::{Value, json};
use std::ops::Range;

/// Prints the table of a model that does not run.
///
/// # Errors
/// If the model cannot be used; standard output.
pub(super) fn run(job: &mut Job<'_, '_>) -> Result<ExitCode, Failure> {
    let model = job.load()?;
    if job.ui.is_json() {
        job.ui.set("explain", to_json(&model.explain()));
        if let Some(layers) = model.gpu_layers() {
            job.ui.set("gpu_layers", json!([layers.start, layers.end]));
        }
    } else {
        job.ui.print(table(&model.explain()))?;
        if let Some(layers) = model.gpu_layers() {
            job.ui.print(layers_line(&layers) + "\n")?;
        }
    }
    Ok(ExitCode::Ok)
}

/// After a run: the table with launch counts, on standard error.
pub(super) fn after_run(job: &Job<'_, '_>, model: &Model<'_>) {
    let report = model.explain();
    if job.ui.is_json() {
        job.ui.set("explain", to_json(&report));
        if let Some(layers) = model.gpu_layers() {
            job.ui.set("gpu_layers", json!([layers.start, layers.end]));
        }
        if let Some(choice) = model.gpu_choice() {
            job.ui.set("gpu_argmax", json!({"on": choice.on, "n_launches": choice.n_launches}));
        }
        if let Some(by) = model.gpu_attention() {
            let by = json!({
                "on": by.on, "n_wgmma": by.n_wgmma, "n_plain": by.n_plain,
                "fused": by.fused, "cluster": by.cluster, "n_cluster": by.n_cluster,
                "n_fresh": by.n_fresh, "n_few": by.n_few,
            });
            job.ui.set("gpu_attention", by);
        }
        if let Some(by) = model.gpu_ring() {
            let by = json!({"on": by.on, "n_ring": by.n_ring, "n_fused": by.n_fused, "n_plain": by.n_plain});
            job.ui.set("gpu_ring", by);
        }
        if let Some(by) = model.gpu_wide() {
            let by = json!({"on": by.on, "n_wide": by.n_wide, "n_narrow": by.n_narrow});
            job.ui.set("gpu_wide", by);
        }
        if let Some(by) = model.gpu_gemm() {
            let counts = json!({"n_sm90": by.n_sm90, "n_cublas": by.n_cublas, "n_mma": by.n_mma});
            job.ui.set("gpu_gemm", json!({"kernel": by.kernel, "n_launches": counts}));
        }
        if let Some(by) = model.gpu_copies() {
            let by = json!({"n_bytes": by.n_bytes, "n_made": by.n_made, "n_read": by.n_read});
            job.ui.set("gpu_copies", by);
        }
    } else {
        // Asked for by name, so that not even `-q` hides it.
        job.ui.verbose(0, format_args!("{}", table(&report).trim_end()));
        if let Some(layers) = model.gpu_layers() {
            job.ui.verbose(0, format_args!("{}", layers_line(&layers)));
        }
        if let Some(choice) = model.gpu_choice() {
            job.ui.verbose(0, format_args!("{}", choice_line(choice)));
        }
        if let Some(by) = model.gpu_attention() {
            job.ui.verbose(0, format_args!("{}", attention_line(by)));
            job.ui.verbose(0, format_args!("{}", decode_attention_line(by)));
        }
        if let Some(by) = model.gpu_ring() {
            job.ui.verbose(0, format_args!("{}", ring_line(by)));
        }
        if let Some(by) = model.gpu_wide() {
            job.ui.verbose(0, format_args!("{}", wide_line(by)));
        }
        if let Some(by) = model.gpu_gemm() {
            job.ui.verbose(0, format_args!("{}", gemm_line(by)));
        }
        if let Some(by) = model.gpu_copies() {
            job.ui.verbose(0, format_args!("{}", copies_line(by)));
        }
    }
}

/// Which layers are where, in a model that has some on a GPU.
fn layers_line(gpu: &Range<usize>) -> String {
    match gpu.start {
        0 => format!("layers: all {} on the GPU", gpu.end),
        n => format!(
            "layers: 0 to {} on the CPU, {n} to {} and the output on the GPU",
            n - 1,
            gpu.end - 1
        ),
    }
}

/// Where greedy choice happened.
fn choice_line(choice: ChoiceReport) -> String {
    match (choice.on, choice.n_launches) {
        (false, _) => "greedy choice: off (MINFER_GPU_ARGMAX=0), on the host".to_owned(),
        (true, 0) => "greedy choice: not on the GPU (--temp 0 alone is)".to_owned(),
        (true, n) => format!("greedy choice: on the GPU, kernel argmax, {n} launches"),
    }
}

/// Which kernels attended to the prompt.
fn attention_line(by: AttentionReport) -> String {
    let AttentionReport { on, n_wgmma, n_plain, .. } = by;
    let why = match (on, n_wgmma, n_plain) {
        (false, ..) => "wgmma off (MINFER_GPU_WGMMA_ATTENTION=0), ",
        (true, 0, 1..) => "no wgmma for this GPU or these heads, ",
        _ => "",
    };
    format!(
        "prompt attention: {why}{n_wgmma} launches of attention_wgmma, {n_plain} of attention_prefill"
    )
}

/// Which kernel attended to few tokens.
fn decode_attention_line(by: AttentionReport) -> String {
    let AttentionReport { fused, cluster, n_cluster, n_fresh, n_few, .. } = by;
    let why = match (fused, cluster) {
        (false, _) => "with rotation off (MINFER_GPU_FUSE=0), ",
        (true, false) => "clusters off (MINFER_GPU_CLUSTER_ATTENTION=0), ",
        (true, true) if n_cluster == 0 && n_fresh > 0 => {
            "no clusters on this GPU or for these heads, "
        }
        _ => "",
    };
    format!(
        "decode attention: {why}{n_cluster} launches of attention_cluster, {n_fresh} of attention_fresh, \
         both of which rotate, {n_few} of attention_decode"
    )
}

/// Which kernels made products of few tokens.
fn ring_line(by: RingReport) -> String {
    let RingReport { on, n_ring, n_fused, n_plain } = by;
    let why = if on { "" } else { "ring off (MINFER_GPU_RING=0), " };
    format!(
        "products of few tokens: {why}{n_ring} launches of gemv_ring ({n_fused} with norms), {n_plain} of gemv"
    )
}

/// How many elements a thread norms, gates, conversions and rotation took.
fn wide_line(by: WideReport) -> String {
    let WideReport { on, n_wide, n_narrow } = by;
    let why = if on { "" } else { "wide off (MINFER_GPU_WIDE=0), " };
    format!(
        "norms, gates, conversions, rotation: {why}{n_wide} launches of eight elements a thread, \
         {n_narrow} of one or a pair"
    )
}

/// Which kernels made bf16 products.
fn gemm_line(by: GemmReport) -> String {
    let GemmReport { n_sm90, n_cublas, n_mma, .. } = by;
    format!(
        "bf16 products: {n_sm90} launches of gemm_sm90, {n_cublas} of cuBLASLt, {n_mma} of gemm_bf16"
    )
}

/// Whether copies in bf16 are kept.
fn copies_line(by: CopiesReport) -> String {
    let CopiesReport { n_bytes, n_made, n_read } = by;
    match n_bytes {
        0 => "copies in bf16: none are kept".to_owned(),
        _ => format!("copies in bf16: {n_made} made, in {}; read {n_read} times", Bytes(n_bytes)),
    }
}

fn phase_json(phase: &KernelReport) -> Value {
    json!({
        "reads": phase.reads, "kernel": phase.kernel, "label": phase.label,
        "reason": phase.reason, "slow": phase.is_slow, "n_launches": phase.n_launches,
    })
}

fn to_json(report: &[MatmulReport]) -> Value {
    let row = |r: &MatmulReport| {
        json!({
            "tensor": r.name, "quant": r.quant, "n_rows": r.n_rows, "row_len": r.row_len,
            "prefill": phase_json(&r.prefill), "decode": phase_json(&r.decode),
        })
    };
    report.iter().map(row).collect()
}

/// One line a matrix and phase, in columns as wide as their widest cell.
fn table(report: &[MatmulReport]) -> String {
    let header =
        ["matmul", "shape", "type", "phase", "reads", "label", "kernel", "launches", "reason"];
    let mut rows = vec![header.map(str::to_owned)];
    for r in report {
        for (phase, k) in [("prefill", &r.prefill), ("decode", &r.decode)] {
            rows.push([
                r.name.clone(),
                format!("{}x{}", r.n_rows, r.row_len),
                r.quant.to_owned(),
                phase.to_owned(),
                k.reads.clone(),
                k.label.clone(),
                k.kernel.clone(),
                k.n_launches.to_string(),
                k.reason.clone(),
            ]);
        }
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let kernel = |label: &str| KernelReport {
            reads: "padded".to_owned(),
            kernel: "gemv avx2".to_owned(),
            label: label.to_owned(),
            reason: "few tokens".to_owned(),
            is_slow: false,
            n_launches: 3,
        };
        let report = [MatmulReport {
            name: "blk.0.attn_q.weight".to_owned(),
            quant: "q6_K",
            n_rows: 64,
            row_len: 256,
            prefill: kernel("exp"),
            decode: kernel("padded"),
        }];
        let table = table(&report);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = lines[0].find("reads").unwrap();
        assert!(lines[1..].iter().all(|line| line[column..].starts_with("padded")));
        assert!(lines[1].contains(" exp ") && lines[1].ends_with("few tokens"));
        assert_eq!(to_json(&report)[0]["prefill"]["n_launches"], 3);
    }
}

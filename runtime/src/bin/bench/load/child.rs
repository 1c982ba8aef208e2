//! The process that loads, and the line that it reports in.

use crate::args::Args;
use crate::device::{failure, report_fallbacks};
use crate::open::ModelFile;
use crate::subject::Subject;
use crate::work::Work;
use cli::{ExitCode, Failure, Ui};
use runtime::report::GpuLoadReport;
use runtime::{LoadWatch, LogitsWanted, Session};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// What a child has reported. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) started: u64,
    pub(super) opened: u64,
    pub(super) usable: u64,
    pub(super) token: u64,
    pub(super) bytes: u64,
    pub(super) gpu: Option<(usize, String)>,
    pub(super) gpu_times: Option<GpuTimes>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) peak_rss_bytes: Option<u64>,
    pub(super) anon_rss_bytes: Option<u64>,
    pub(super) kv_bytes: u64,
}

/// The parts of a load onto a GPU: nanoseconds, and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GpuTimes {
    pub(super) context: u64,
    pub(super) upload: u64,
    pub(super) library: u64,
    pub(super) read_ahead: u64,
}

impl GpuTimes {
    fn parse(list: &Value) -> Option<Self> {
        let numbers: Option<Vec<u64>> = list.as_array()?.iter().map(Value::as_u64).collect();
        match numbers?[..] {
            [context, upload, library, read_ahead] => {
                Some(Self { context, upload, library, read_ahead })
            }
            _ => None,
        }
    }

    fn to_json(load: &GpuLoadReport) -> Value {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        json!([ns(load.context), ns(load.upload), ns(load.library), load.read_ahead])
    }
}

impl Child {
    /// Of its line; nothing if it is not what a child prints.
    pub(super) fn parse(line: &[u8], started: u64) -> Option<Self> {
        let report: Value = serde_json::from_slice(line).ok()?;
        let number = |key: &str| report.get(key).and_then(Value::as_u64);
        let gpu = report.get("gpu").and_then(Value::as_array).and_then(|gpu| {
            let ordinal = usize::try_from(gpu.first()?.as_u64()?).ok()?;
            Some((ordinal, gpu.get(1)?.as_str()?.to_owned()))
        });
        let child = Self {
            started,
            opened: number("opened")?,
            usable: number("usable")?,
            token: number("token")?,
            bytes: number("bytes")?,
            gpu,
            gpu_times: report.get("gpu_times").and_then(GpuTimes::parse),
            disk_bytes: number("disk_bytes"),
            peak_rss_bytes: number("peak_rss_bytes"),
            anon_rss_bytes: number("anon_rss_bytes"),
            kv_bytes: number("kv_bytes")?,
        };
        let in_order =
            started <= child.opened && child.opened <= child.usable && child.usable <= child.token;
        in_order.then_some(child)
    }
}

/// Nanoseconds of the clock that all processes share.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

/// The child: loads, makes a first token, and reports.
///
/// # Errors
/// If the model cannot be loaded or run.
pub(crate) fn child(args: &Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let grid = super::grid(args)?;
    let (Some(path), Some((setup, test))) = (args.models().next(), grid.tests().into_iter().next())
    else {
        return Err(Failure::usage("--child needs a model"));
    };
    let opened = now();
    let file = ModelFile::open(path)?;
    let container = file.container()?;
    file.verify(&container, args.flags.device.verify, ui)?;
    let bos = Subject::bos(path, &container)?;
    let placement = &setup.placement;
    let options = placement.switches.load_options(setup.tier, setup.n_threads);
    let model = placement
        .open(ui, &file.map, &container, &options, LoadWatch::SILENT)
        .map_err(|e| file.blame(e))?;
    report_fallbacks(path, &model, args.flags.device.strict, |line| {
        ui.warn(format_args!("{line}"));
    })?;
    let usable = now();
    // As minfer-run without -c; the cache grows with the positions in use.
    let n_ctx = model.n_ctx_train().max(test.n_ctx());
    let mut session = Session::new(&model, n_ctx).map_err(failure)?;
    // Any token does; the prompt is not the question.
    let mut prompt = vec![bos.unwrap_or(0); test.n_prompt];
    let others = (1u32..).map(|i| i % model.n_tokens().max(1) as u32);
    prompt.iter_mut().skip(1).zip(others).for_each(|(token, other)| *token = other);
    let logits = session.prefill(&prompt, test.n_ubatch, LogitsWanted::Last).map_err(failure)?;
    let first = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let token = now();
    if !first.is_finite() {
        return Err(file.blame(Failure::failed("no logit is finite")));
    }
    let work = Work::of(&model, &container);
    let bytes = match model.gpu() {
        Some(_) => model.uploaded_bytes(),
        None => work.weight_bytes(test.n_prompt),
    };
    let memory = Memory::of_this_process();
    let report = json!({
        "opened": opened, "usable": usable, "token": token,
        "bytes": bytes, "gpu": model.gpu().map(|gpu| json!([gpu.ordinal, gpu.name])),
        "disk_bytes": disk_bytes(), "peak_rss_bytes": memory.peak, "anon_rss_bytes": memory.anon,
        "kv_bytes": session.cache_bytes(),
        "gpu_times": model.gpu_load().as_ref().map(GpuTimes::to_json),
    });
    ui.print(format!("{report}\n"))?;
    Ok(ExitCode::Ok)
}

/// What the system says of this process's memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Memory {
    peak: Option<u64>,
    anon: Option<u64>,
}

impl Memory {
    fn of_this_process() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Self { peak: field("VmHWM:"), anon: field("RssAnon:") }
    }
}

/// Bytes that this process has made the system fetch from storage.
fn disk_bytes() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_line_is_read() {
        let line = br#"{"opened":5,"usable":7,"token":9,"bytes":3,"gpu":[1,"X"],"disk_bytes":null,
            "peak_rss_bytes":4096,"anon_rss_bytes":1,"kv_bytes":2,"gpu_times":[4,5,6,7]}"#;
        let child = Child::parse(line, 4).unwrap();
        assert_eq!((child.started, child.token, child.gpu), (4, 9, Some((1, "X".to_owned()))));
        let times = GpuTimes { context: 4, upload: 5, library: 6, read_ahead: 7 };
        assert_eq!(child.gpu_times, Some(times));
        assert_eq!((child.disk_bytes, child.peak_rss_bytes), (None, Some(4096)));
        // Another clock than the parent's.
        assert_eq!(Child::parse(line, 6), None);
        assert_eq!(Child::parse(b"{}", 0), None);
        assert_eq!(Child::parse(b"", 0), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t   12 kB\nVmRSS:\t 9 kB\nRssAnon:\t       3 kB\n";
        assert_eq!(Memory::parse(status), Memory { peak: Some(12288), anon: Some(3072) });
        assert_eq!(Memory::parse(""), Memory::default());
        assert!(Memory::of_this_process().peak.is_some_and(|peak| peak > 1 << 20));
    }
}

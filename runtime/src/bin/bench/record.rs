//! What is known of a test when it is over, as the named values that every format prints.
//!
//! The first are llama-bench's, with its names, types and order; where one of them has no meaning
//! here it says what is done instead. Ours follow.

use crate::device::{Device, Prefill};
use crate::limits::Limit;
use crate::load::Loaded;
use crate::plan::{Setup, Test, layers_number};
use crate::subject::Subject;
use crate::work::Work;
use crate::{machine, stats};
use runtime::Model;

/// A value with llama-bench's types, and the absence of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Flag(bool),
    Int(i64),
    Float(f64),
    Nothing,
}

/// SQL's name of a column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Integer,
    Real,
}

/// Where a model turned out to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number and name of the GPU.
    pub(crate) gpu: Option<(usize, String)>,
}

/// How far a test came towards what the machine can do.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Reached {
    /// Weights that a generated token reads, and keys and values that it moves, in bytes.
    pub(crate) token_bytes: Option<(u64, u64)>,
    /// Operations of a prompt's products with weights.
    pub(crate) prompt_ops: Option<u64>,
    /// Bytes or operations a second.
    pub(crate) per_second: Option<f64>,
    /// What the machine does of them.
    pub(crate) limit: Option<Limit>,
}

/// A finished test.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) subject: Subject,
    pub(crate) place: Place,
    pub(crate) setup: Setup,
    pub(crate) test: Test,
    pub(crate) greedy: bool,
    pub(crate) test_time: String,
    pub(crate) samples_ns: Vec<u64>,
    pub(crate) reached: Reached,
    /// Of a test with `--load`.
    pub(crate) load: Option<Loaded>,
}

impl Place {
    /// Of a loaded model.
    pub(crate) fn of(model: &Model<'_>, _setup: &Setup) -> Self {
        Self { gpu: model.gpu().map(|gpu| (gpu.ordinal, gpu.name.clone())) }
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// llama-bench's name of the backend.
    pub(crate) fn backend(&self) -> &'static str {
        if self.is_gpu() { "CUDA" } else { "CPU" }
    }

    /// As `--device` names it.
    pub(crate) fn device(&self) -> String {
        self.gpu.as_ref().map_or("cpu".to_owned(), |(ordinal, _)| format!("cuda:{ordinal}"))
    }
}

impl Reached {
    /// Of a test that took `seconds`. Nothing of one that has both a prompt and a generation.
    pub(crate) fn of(
        work: &Work,
        test: &Test,
        seconds: f64,
        read: Option<Limit>,
        dot: Option<Limit>,
    ) -> Self {
        match (test.n_prompt, test.n_gen) {
            (0, n_gen) => {
                let (weights, kv) = (work.decode_weight_bytes, work.kv_bytes(test));
                let moved = (weights + kv) as f64 * n_gen as f64;
                let per_second = Some(moved / seconds);
                let token_bytes = Some((weights, kv));
                Self { token_bytes, prompt_ops: None, per_second, limit: read }
            }
            (n_prompt, 0) => {
                let ops = work.prompt_ops(n_prompt);
                let per_second = Some(ops as f64 / seconds);
                Self { token_bytes: None, prompt_ops: Some(ops), per_second, limit: dot }
            }
            _ => Self::default(),
        }
    }

    /// Percent of the limit.
    pub(crate) fn percent(&self) -> Option<f64> {
        Some(100.0 * self.per_second? / self.limit.as_ref()?.per_second)
    }
}

/// Names and types of all values, in order: llama-bench's, then ours.
pub(crate) fn columns() -> Vec<(&'static str, Type)> {
    LLAMA_BENCH.iter().chain(OURS).copied().collect()
}

/// llama-bench's.
pub(crate) const LLAMA_BENCH: &[(&str, Type)] = &[
    ("build_commit", Type::Text),
    ("build_number", Type::Integer),
    ("cpu_info", Type::Text),
    ("gpu_info", Type::Text),
    ("backends", Type::Text),
    ("model_filename", Type::Text),
    ("model_type", Type::Text),
    ("model_size", Type::Integer),
    ("model_n_params", Type::Integer),
    ("n_batch", Type::Integer),
    ("n_ubatch", Type::Integer),
    ("n_threads", Type::Integer),
    ("cpu_mask", Type::Text),
    ("cpu_strict", Type::Integer),
    ("poll", Type::Integer),
    ("type_k", Type::Text),
    ("type_v", Type::Text),
    ("n_gpu_layers", Type::Integer),
    ("n_cpu_moe", Type::Integer),
    ("split_mode", Type::Text),
    ("main_gpu", Type::Integer),
    ("no_kv_offload", Type::Integer),
    ("flash_attn", Type::Integer),
    ("devices", Type::Text),
    ("tensor_split", Type::Text),
    ("tensor_buft_overrides", Type::Text),
    ("load_mode", Type::Text),
    ("lazy_mode", Type::Text),
    ("embeddings", Type::Integer),
    ("no_op_offload", Type::Integer),
    ("no_host", Type::Integer),
    ("repack", Type::Integer),
    ("fit_target", Type::Integer),
    ("fit_min_ctx", Type::Integer),
    ("n_prompt", Type::Integer),
    ("n_gen", Type::Integer),
    ("n_depth", Type::Integer),
    ("test_time", Type::Text),
    ("avg_ns", Type::Integer),
    ("stddev_ns", Type::Integer),
    ("avg_ts", Type::Real),
    ("stddev_ts", Type::Real),
];

/// Ours.
pub(crate) const OURS: &[(&str, Type)] = &[
    ("median_ns", Type::Integer),
    ("median_ts", Type::Real),
    ("device", Type::Text),
    ("tier", Type::Text),
    ("prefill", Type::Text),
    ("greedy", Type::Integer),
    ("planes", Type::Text),
    ("container_bytes", Type::Integer),
    ("token_weight_bytes", Type::Integer),
    ("token_kv_bytes", Type::Integer),
    ("prompt_ops", Type::Integer),
    ("reached_per_s", Type::Real),
    ("limit_per_s", Type::Real),
    ("limit_name", Type::Text),
    ("limit_percent", Type::Real),
    ("cold", Type::Integer),
    ("usable_ns", Type::Integer),
    ("context_ns", Type::Integer),
    ("upload_ns", Type::Integer),
    ("library_ns", Type::Integer),
    ("read_ahead_bytes", Type::Integer),
    ("first_token_ns", Type::Integer),
    ("loaded_bytes", Type::Integer),
    ("loaded_per_s", Type::Real),
    ("disk_bytes", Type::Integer),
    ("peak_rss_bytes", Type::Integer),
    ("anon_rss_bytes", Type::Integer),
    ("kv_bytes", Type::Integer),
];

fn int(value: u64) -> Value {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn some<T>(value: Option<T>, make: impl Fn(T) -> Value) -> Value {
    value.map_or(Value::Nothing, make)
}

fn text(value: impl Into<String>) -> Value {
    Value::Text(value.into())
}

impl Row {
    /// Tokens a second of each repetition.
    pub(crate) fn samples_ts(&self) -> Vec<f64> {
        let n_tokens = (self.test.n_prompt + self.test.n_gen) as f64;
        self.samples_ns.iter().map(|&ns| 1e9 * n_tokens / ns as f64).collect()
    }

    /// The values of [`columns`].
    pub(crate) fn values(&self) -> Vec<Value> {
        let mut values = self.llama_bench();
        values.extend(self.ours());
        values
    }

    fn llama_bench(&self) -> Vec<Value> {
        let Self { subject, place, setup, test, .. } = self;
        let ns: Vec<f64> = self.samples_ns.iter().map(|&ns| ns as f64).collect();
        let ts = self.samples_ts();
        let devices = match setup.placement.device {
            Device::Auto => "auto",
            Device::Cpu => "none",
            Device::Cuda(_) => &place.device(),
        };
        vec![
            text(cli::COMMIT),
            int(cli::BUILD_NUMBER.parse().unwrap_or(0)),
            text(machine::cpu_name()),
            text(place.gpu.as_ref().map_or("", |(_, name)| name)),
            text(place.backend()),
            text(&subject.filename),
            text(&subject.kind),
            int(subject.n_bytes),
            int(subject.n_params),
            int(test.n_batch as u64),
            int(test.n_ubatch as u64),
            int(test.n_threads as u64),
            text("0x0"),
            Value::Flag(false),
            // Nobody spins for longer than it takes to make one region follow another.
            int(0),
            text("f16"),
            text("f16"),
            Value::Int(layers_number(setup.placement.layers)),
            int(0),
            text("none"),
            int(place.gpu.as_ref().map_or(0, |(ordinal, _)| *ordinal as u64)),
            Value::Flag(false),
            int(1),
            text(devices),
            text("0.00"),
            text("none"),
            text("mmap"),
            text("auto"),
            Value::Flag(false),
            int(0),
            Value::Flag(false),
            Value::Flag(false),
            int(0),
            int(0),
            int(test.n_prompt as u64),
            int(test.n_gen as u64),
            int(test.n_depth as u64),
            text(&self.test_time),
            int(stats::mean(&ns) as u64),
            int(stats::deviation(&ns) as u64),
            Value::Float(stats::mean(&ts)),
            Value::Float(stats::deviation(&ts)),
        ]
    }

    fn ours(&self) -> Vec<Value> {
        let Self { subject, place, setup, reached, load, .. } = self;
        let ns: Vec<f64> = self.samples_ns.iter().map(|&ns| ns as f64).collect();
        let prefill = match setup.placement.prefill {
            Prefill::Auto => "auto",
            Prefill::Mmq => "mmq",
            Prefill::Bf16 => "bf16",
        };
        let load = load.as_ref();
        vec![
            int(stats::median(&ns) as u64),
            Value::Float(stats::median(&self.samples_ts())),
            text(place.device()),
            text(setup.tier.name()),
            text(prefill),
            Value::Flag(self.greedy),
            text(&subject.planes),
            int(subject.container_bytes),
            some(reached.token_bytes, |(weights, _)| int(weights)),
            some(reached.token_bytes, |(_, kv)| int(kv)),
            some(reached.prompt_ops, int),
            some(reached.per_second, Value::Float),
            some(reached.limit.as_ref(), |limit| Value::Float(limit.per_second)),
            some(reached.limit.as_ref(), |limit| text(&limit.name)),
            some(reached.percent(), Value::Float),
            some(load, |load| Value::Flag(load.cold)),
            some(load, |load| int(load.usable_ns)),
            some(load.and_then(|load| load.context_ns), int),
            some(load.and_then(|load| load.upload_ns), int),
            some(load.and_then(|load| load.library_ns), int),
            some(load.and_then(|load| load.read_ahead_bytes), int),
            some(load, |load| int(load.first_token_ns)),
            some(load, |load| int(load.bytes)),
            some(load, |load| Value::Float(load.bytes_per_second())),
            some(load.and_then(|load| load.disk_bytes), int),
            some(load.and_then(|load| load.peak_rss_bytes), int),
            some(load.and_then(|load| load.anon_rss_bytes), int),
            some(load, |load| int(load.kv_bytes)),
        ]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::tests::{PLACEMENT, test};
    use kernels::Tier;

    pub(crate) fn row(test: Test, samples_ns: &[u64]) -> Row {
        Row {
            subject: Subject {
                filename: "dir/a \"b\".mpk".to_owned(),
                kind: "qwen2 1.5B Q4_K - Medium".to_owned(),
                n_bytes: 1_111_376_384,
                n_params: 1_777_088_000,
                container_bytes: 1_123_000_000,
                planes: "padded+exp+dsc".to_owned(),
                bos: None,
            },
            place: Place { gpu: None },
            setup: Setup { placement: PLACEMENT, tier: Tier::Avx2, n_threads: 2 },
            test,
            greedy: false,
            test_time: "2026-01-02T03:04:05Z".to_owned(),
            samples_ns: samples_ns.to_vec(),
            reached: Reached::default(),
            load: None,
        }
    }

    /// Keys and types of an object that llama-bench (build 11434) has printed.
    const SAMPLE: &str = include_str!("llama_bench_sample.json");

    #[test]
    fn keys_and_types_are_llama_benchs() {
        let sample: serde_json::Value = serde_json::from_str(SAMPLE).unwrap();
        let theirs = sample[0].as_object().unwrap();
        let row = row(test(512, 0, 0), &[5_000_000, 7_000_000]);
        let values = row.values();
        assert_eq!(values.len(), columns().len());
        let keys: Vec<&str> = LLAMA_BENCH.iter().map(|(name, _)| *name).collect();
        let samples = ["samples_ns", "samples_ts"];
        let theirs_in_order: Vec<&str> =
            theirs.keys().map(String::as_str).filter(|key| !samples.contains(key)).collect();
        assert_eq!(keys, theirs_in_order);
        for ((name, of_type), value) in LLAMA_BENCH.iter().zip(&values) {
            use serde_json::Value as Json;
            let same = match (value, &theirs[*name]) {
                (Value::Text(_), Json::String(_)) => *of_type == Type::Text,
                (Value::Flag(_), Json::Bool(_)) => *of_type == Type::Integer,
                (Value::Int(_), Json::Number(n)) => n.is_i64() && *of_type == Type::Integer,
                (Value::Float(_), Json::Number(n)) => n.is_f64() && *of_type == Type::Real,
                _ => false,
            };
            assert!(same, "{name}: {value:?} beside {}", theirs[*name]);
        }
    }

    #[test]
    fn figures_are_those_of_the_samples() {
        let row = row(test(0, 10, 0), &[1_000_000_000, 2_000_000_000, 4_000_000_000]);
        let names = columns();
        let values = row.values();
        let value =
            |name: &str| values[names.iter().position(|(of, _)| *of == name).unwrap()].clone();
        assert_eq!(value("avg_ns"), Value::Int(2_333_333_333));
        assert_eq!(value("stddev_ns"), Value::Int(1_527_525_231));
        assert_eq!(value("median_ns"), Value::Int(2_000_000_000));
        assert_eq!(value("median_ts"), Value::Float(5.0));
        let Value::Float(mean) = value("avg_ts") else { panic!() };
        assert!((mean - 17.5 / 3.0).abs() < 1e-12);
        assert_eq!(value("limit_percent"), Value::Nothing);
    }
}

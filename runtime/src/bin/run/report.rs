//! What is said about a run: the summary line, `--timings`, and the fields of `--json`.

use crate::answer::{Answer, Stop};
use crate::setup::Job;
use cli::{Bytes, ExitCode, Failure, Seconds};
use runtime::report::Timings;
use runtime::sampler::{Knob, Settings};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Name and version of the `--json` object.
pub(crate) const SCHEMA: &str = "minfer.run/1";

/// How long the steps of the start took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    /// Opening, mapping, checking header and index.
    pub(crate) open: Duration,
    /// Hashes, with `--verify fast` or `full`.
    pub(crate) verify: Duration,
    /// Binding weights to kernels, starting threads.
    pub(crate) bind: Duration,
}

impl Clock {
    /// All of the start.
    pub(crate) fn load(&self) -> Duration {
        self.open + self.verify + self.bind
    }
}

/// Tokens per second; 0 for no time at all.
fn rate(n_tokens: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n_tokens as f64 / time.as_secs_f64() }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// `reason` of the answer's end for people.
fn stop_text(stop: &Stop) -> String {
    match stop {
        Stop::Text(text) => format!("stop {text:?}"),
        other => other.name().to_owned(),
    }
}

/// The one line after a run.
pub(crate) fn summary(
    job: &Job<'_, '_>,
    device: &str,
    times: Timings,
    seed: u64,
    stop: Option<&Stop>,
) {
    let size = Bytes(job.file.map.len() as u64);
    let mut line = format!("{device} · loaded {size} in {}", Seconds(job.clock.load()));
    let phases = [
        ("prompt ", times.n_prefill_tokens, times.prefill),
        ("", times.n_decode_tokens, times.decode),
    ];
    for (name, n, time) in phases {
        if n > 0 {
            line += &format!(" · {name}{n} tok {:.1} t/s", rate(n, time));
        }
    }
    if let Some(stop) = stop {
        line += &format!(" · seed {seed} · stop: {}", stop_text(stop));
    }
    job.ui.note(format_args!("{line}"));
}

/// The table of `--timings`, which not even `-q` hides.
pub(crate) fn timings(job: &Job<'_, '_>, times: Timings) {
    let c = &job.clock;
    let rows = [
        ("open and map", 0, c.open),
        ("verify", 0, c.verify),
        ("bind kernels", 0, c.bind),
        ("prompt", times.n_prefill_tokens, times.prefill),
        ("generation", times.n_decode_tokens, times.decode),
    ];
    for (name, n, time) in rows {
        if n == 0 {
            job.ui.verbose(0, format_args!("{name:<14}{:>12.3} ms", ms(time)));
        } else {
            job.ui.verbose(
                0,
                format_args!(
                    "{name:<14}{:>12.3} ms {n:>7} tok {:>9.3} ms/tok {:>9.2} t/s",
                    ms(time),
                    ms(time) / n as f64,
                    rate(n, time)
                ),
            );
        }
    }
}

/// `timings` of the `--json` object.
pub(crate) fn timings_json(clock: &Clock, times: Timings) -> Value {
    json!({
        "open_ms": ms(clock.open),
        "verify_ms": ms(clock.verify),
        "bind_ms": ms(clock.bind),
        "load_ms": ms(clock.load()),
        "prompt_n": times.n_prefill_tokens,
        "prompt_ms": ms(times.prefill),
        "prompt_per_second": rate(times.n_prefill_tokens, times.prefill),
        "predicted_n": times.n_decode_tokens,
        "predicted_ms": ms(times.decode),
        "predicted_per_second": rate(times.n_decode_tokens, times.decode),
    })
}

/// `sampling` of the `--json` object: every setting with its origin.
pub(crate) fn sampling_json(settings: &Settings) -> Value {
    let knob = |&knob: &Knob| {
        let spec = knob.spec();
        // The shortest decimal that reads back as the same f32, not its long f64 expansion.
        let value: Value = match settings.get(knob).to_string().parse::<f64>() {
            Ok(value) if spec.integer => (value as i64).into(),
            Ok(value) => value.into(),
            Err(_) => Value::Null,
        };
        (spec.name.to_owned(), json!({"value": value, "origin": settings.origin(knob).name()}))
    };
    let mut object: Map<String, Value> = Knob::ALL.iter().map(knob).collect();
    let order: Vec<_> = settings.order().iter().map(|kind| kind.name()).collect();
    let origin = settings.order_origin().name();
    object.insert("samplers".to_owned(), json!({"value": order.join(";"), "origin": origin}));
    Value::Object(object)
}

/// The fields of the `--json` object that are known before there is an answer.
pub(crate) fn prompt_json(job: &Job<'_, '_>, prompt: &[u32]) {
    job.ui.set("n_prompt_tokens", prompt.len());
    job.ui.set("prompt_token_ids", prompt);
}

/// `stop_reason`, where ^C ended the work before there was an answer.
pub(crate) fn interruption(job: &Job<'_, '_>, failure: &Failure) {
    if failure.code == ExitCode::Interrupted {
        job.ui.set("stop_reason", Stop::Interrupted.name());
    }
}

/// The fields that an answer adds to the `--json` object.
pub(crate) fn answer_json(job: &Job<'_, '_>, answer: &Answer) {
    let ui = job.ui;
    ui.set("text", answer.text.as_str());
    ui.set("token_ids", answer.token_ids.as_slice());
    ui.set("stop_reason", answer.stop.name());
    if let Stop::Text(text) = &answer.stop {
        ui.set("stop_text", text.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_reported_as_typed() {
        let json = sampling_json(&Settings::default());
        assert_eq!(json["temp"], json!({"value": 0.8, "origin": "built-in"}));
        assert_eq!(json["top_k"], json!({"value": 40, "origin": "built-in"}));
        assert_eq!(json["min_p"]["value"], json!(0.05));
        assert!(json["samplers"]["value"].as_str().unwrap().starts_with("penalties;dry;"));
    }
}

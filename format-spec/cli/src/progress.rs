//! Progress on standard error: a bar, a line every 10 %, or JSON lines.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::ui::line;
use crate::{Bytes, GlobalArgs, ProgressMode, Seconds};

/// Progress over a list of stages that is announced first.
#[derive(Debug)]
pub struct Progress {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bar,
    /// Lines only once the stage has taken this long.
    Plain {
        after: Duration,
    },
    Json,
    None,
}

impl Progress {
    pub(crate) fn new(global: &GlobalArgs, stages: &[&str]) -> Self {
        let kind = match global.progress {
            ProgressMode::None => Kind::None,
            ProgressMode::Json => Kind::Json,
            _ if global.quiet > 0 => Kind::None,
            ProgressMode::Bar => Kind::Bar,
            ProgressMode::Plain => Kind::Plain { after: Duration::ZERO },
            ProgressMode::Auto if io::stderr().is_terminal() => Kind::Bar,
            ProgressMode::Auto => Kind::Plain { after: Duration::from_secs(1) },
        };
        if kind == Kind::Json {
            line(format_args!("{}", json!({"event": "stages", "stages": stages})));
        }
        Self { kind }
    }

    /// Starts a stage of `total_bytes` of work. Several threads may [`add`](Stage::add) to it.
    pub fn stage(&self, name: &str, total_bytes: u64) -> Stage {
        let stage = Stage {
            kind: self.kind,
            name: name.to_owned(),
            total_bytes,
            done_bytes: AtomicU64::new(0),
            bar: (self.kind == Kind::Bar).then(|| bar(name, total_bytes)),
            start: Instant::now(),
            said: Mutex::default(),
        };
        if self.kind == Kind::Json {
            stage.json(&mut stage.said(), 0);
        }
        stage
    }
}

/// One stage of work; dropping it ends its line.
#[derive(Debug)]
pub struct Stage {
    kind: Kind,
    name: String,
    total_bytes: u64,
    done_bytes: AtomicU64,
    bar: Option<ProgressBar>,
    start: Instant,
    said: Mutex<Said>,
}

/// What a stage has told already. Lines are written while it is locked, so that they come in
/// order whichever threads write them.
#[derive(Debug, Default)]
struct Said {
    done_bytes: u64,
    /// From the start of the stage to the last JSON event.
    at: Duration,
}

/// JSON events are at least this far apart.
const JSON_EVERY: Duration = Duration::from_millis(100);

impl Stage {
    /// Counts `n_bytes` more as done.
    pub fn add(&self, n_bytes: u64) {
        self.done_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc(n_bytes);
        }
        if !matches!(self.kind, Kind::Plain { .. } | Kind::Json) {
            return;
        }
        let mut said = self.said();
        // Read under the lock: what is said never goes back.
        let done = self.done_bytes();
        match self.kind {
            Kind::Plain { after } => self.plain(&mut said, done, after),
            _ => {
                let is_due = self.start.elapsed() >= said.at + JSON_EVERY;
                if is_due || (done >= self.total_bytes && said.done_bytes < self.total_bytes) {
                    self.json(&mut said, done);
                }
            }
        }
    }

    /// Bytes counted so far.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plain(&self, said: &mut Said, done: u64, after: Duration) {
        let tenth = |bytes: u64| {
            u128::from(bytes.min(self.total_bytes)) * 10 / u128::from(self.total_bytes.max(1))
        };
        let elapsed = self.start.elapsed();
        if tenth(done) > tenth(said.done_bytes) && elapsed >= after {
            said.done_bytes = done;
            let rate = (done as f64 / elapsed.as_secs_f64().max(1e-9)) as u64;
            let eta = match self.eta(done) {
                Some(eta) if done < self.total_bytes => format!(", {} left", Seconds(eta)),
                _ => String::new(),
            };
            line(format_args!(
                "{}: {:3} % ({} of {}, {}/s{eta})",
                self.name,
                tenth(done) * 10,
                Bytes(done),
                Bytes(self.total_bytes),
                Bytes(rate),
            ));
        }
    }

    fn json(&self, said: &mut Said, done: u64) {
        *said = Said { done_bytes: done, at: self.start.elapsed() };
        let eta_ms = self.eta(done).map(|eta| u64::try_from(eta.as_millis()).unwrap_or(u64::MAX));
        let event = json!({
            "event": "progress",
            "stage": self.name,
            "done": done,
            "total": self.total_bytes,
            "bytes": done,
            "eta_ms": eta_ms,
        });
        line(format_args!("{event}"));
    }

    fn eta(&self, done: u64) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(done) as f64;
        (done > 0)
            .then(|| self.start.elapsed().as_secs_f64() * left / done as f64)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(name: &str, total_bytes: u64) -> ProgressBar {
    const TEMPLATE: &str =
        "{msg:8} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}";
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
    // The template is constant; a wrong one shows as indicatif's own default bar.
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_template_is_valid() {
        let bar = bar("pack", 10);
        bar.inc(10);
        assert_eq!(bar.position(), 10);
        assert!(
            ProgressStyle::with_template(
                "{msg:8} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}"
            )
            .is_ok()
        );
    }

    #[test]
    fn many_threads_count_every_byte() {
        let global = GlobalArgs { progress: ProgressMode::None, ..GlobalArgs::default() };
        let progress = Progress::new(&global, &["x"]);
        let stage = progress.stage("x", 8000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| stage.add(1)));
            }
        });
        assert_eq!(stage.done_bytes(), 8000);
    }
}

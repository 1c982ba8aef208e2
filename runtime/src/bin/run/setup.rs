//! From a checked container to something that runs: options, context size, sampler, errors.

use crate::answer::Limits;
use crate::args::Args;
use crate::device::report_fallbacks;
pub(crate) use crate::device::{check_device, failure, tier};
use crate::memory::Need;
use crate::open::ModelFile;
use crate::report::Clock;
use crate::switches::Switches;
use cli::{Bytes, ExitCode, Failure, Ui};
use format_spec::container::Container;
use runtime::sampler::{DRY_BREAKERS, Knob, Sampler, Settings, Surroundings};
use runtime::tokenizer::Tokenizer;
use runtime::{LoadOptions, Model};
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// What every command starts from.
pub(crate) struct Job<'j, 'a> {
    pub(crate) args: &'j Args,
    pub(crate) ui: &'j Ui,
    pub(crate) file: &'a ModelFile,
    pub(crate) container: &'a Container<'a>,
    /// Nothing, if the model has none: it runs on token ids alone.
    pub(crate) tokenizer: Option<&'j Tokenizer<'a>>,
    pub(crate) clock: Clock,
    pub(crate) switches: Switches,
}

impl<'j, 'a> Job<'j, 'a> {
    /// The tokenizer, where the work is on text.
    ///
    /// # Errors
    /// If the model has none.
    pub(crate) fn tokenizer(&self) -> Result<&'j Tokenizer<'a>, Failure> {
        self.tokenizer.ok_or_else(|| {
            self.file.blame(Failure::input(
                "holds no tokenizer: it runs on token ids (--ids with --json or --logits)",
            ))
        })
    }

    /// Size of the vocabulary: rows of the token embedding where no tokenizer says it.
    fn n_tokens(&self) -> u64 {
        let rows = || self.container.tensor("token_embd.weight").map(|t| t.geometry.n_rows);
        match self.tokenizer {
            Some(tokenizer) => u64::from(tokenizer.n_tokens()),
            None => rows().unwrap_or(0),
        }
    }

    /// With which kernels, and on how many threads.
    ///
    /// # Errors
    /// If the instruction set that was asked for is not there.
    pub(crate) fn load_options(&self) -> Result<LoadOptions, Failure> {
        Ok(self.switches.load_options(tier()?, self.ui.threads()))
    }

    /// Binds the weights to kernels. The model stays until the process ends: a driver takes everything
    /// back at once then, and piece by piece it takes a tenth of a second.
    ///
    /// # Errors
    /// If the model cannot be used, or a choice that was asked for is not there.
    pub(crate) fn load(&mut self) -> Result<ManuallyDrop<Model<'a>>, Failure> {
        let start = Instant::now();
        let options = self.load_options()?;
        let model = self.open(&options).map_err(|e| self.file.blame(e))?;
        self.clock.bind = start.elapsed();
        report_fallbacks(&self.file.path, &model, self.args.device.strict, |line| {
            self.ui.warn(format_args!("{line}"));
        })?;
        Ok(ManuallyDrop::new(model))
    }

    /// What a run needs.
    pub(crate) fn need(&self, model: &Model<'_>) -> Need {
        let memory = model.memory();
        let c = model.config();
        // Experts have a row for each that a token goes to.
        let second = match &c.experts {
            None => 4 * c.n_ff,
            Some(experts) => experts.n_used * 4 * (experts.n_ff + c.n_embd),
        };
        let width =
            4 * c.n_embd + 2 * c.n_head * c.head_dim + 2 * c.n_head_kv * c.head_dim + second;
        let batch = self.args.device.batch as usize;
        Need {
            weights: if model.gpu().is_some() {
                model.uploaded_bytes()
            } else {
                memory.mapped_bytes
            },
            mapped: model.gpu().is_none(),
            kv_per_token: match model.gpu_plan() {
                // Of the layers that are there.
                Some(plan) => plan.kv_bytes / plan.n_ctx.max(1) as u64,
                None => memory.kv_bytes_per_token,
            },
            compute: 4 * (width * batch + c.n_vocab) as u64,
            // Those of a model that is there are no longer free.
            copies: 0,
        }
    }

    /// The context size: what was asked for, else the largest of the model's that fits.
    ///
    /// # Errors
    /// If the size asked for does not fit in memory.
    pub(crate) fn n_ctx(&self, model: &Model<'_>) -> Result<usize, Failure> {
        let trained = model.config().n_ctx_train;
        let need = self.need(model);
        let available = available_bytes(model);
        let asked = self.args.length.ctx_size as usize;
        if asked == 0 {
            let n_ctx = need.largest_ctx(trained, available);
            if n_ctx < trained {
                self.ui.note(format_args!(
                    "context: {n_ctx} of the model's {trained} tokens; more does not fit in memory"
                ));
            }
            return Ok(n_ctx);
        }
        if asked > trained {
            self.ui.warn(format_args!(
                "-c {asked} is beyond the {trained} tokens that the model was trained on"
            ));
        }
        let kv = need.kv_per_token.saturating_mul(asked as u64);
        // Weights in GPU memory cannot give way, mapped ones can.
        let taken = if model.gpu().is_some() { need.weights } else { 0 };
        match available.map(|available| available.saturating_sub(taken)) {
            Some(available) if kv.saturating_add(need.compute) > available => Err(Failure::new(
                ExitCode::Memory,
                format!(
                    "-c {asked} needs {} for keys and values, {} are available",
                    Bytes(kv),
                    Bytes(available)
                ),
            )),
            _ => Ok(asked),
        }
    }

    /// Refuses a prompt that leaves no room, before any work.
    ///
    /// # Errors
    /// Failed work (1), reason `context`.
    pub(crate) fn check_fits(&self, n_prompt: usize, n_ctx: usize) -> Result<(), Failure> {
        if n_prompt <= n_ctx {
            return Ok(());
        }
        self.ui.set("stop_reason", "context");
        Err(Failure::failed(format!(
            "context: the prompt has {n_prompt} tokens, the context {n_ctx}; use a shorter prompt or a larger -c"
        )))
    }

    /// The sampling settings: flags and variables, then the model's own values, then defaults.
    ///
    /// # Errors
    /// Wrong use: a bias for a token that does not exist.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let mut settings = Settings::default();
        self.args.sampling.apply(&mut settings);
        let n_tokens = self.n_tokens();
        let mut biased = settings.logit_bias.iter().map(|&(id, _)| id);
        if let Some(id) = biased.find(|&id| u64::from(id) >= n_tokens) {
            return Err(Failure::usage(format!(
                "--logit-bias: token id {id} is not below the vocabulary's {n_tokens}"
            )));
        }
        let metadata = self.container.gguf().metadata();
        let number = |key: &str| {
            metadata.get(key).and_then(|value| {
                value.as_f32().map(f64::from).or_else(|| value.as_int().map(|n| n as f64))
            })
        };
        let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_owned);
        for warning in settings.apply_model(number, text) {
            self.ui.warn(format_args!("{warning}"));
        }
        let Some(tokenizer) = self.tokenizer else { return Ok(settings) };
        let never = tokenizer.vocab().suppressed();
        settings.logit_bias.extend(never.map(|id| (id, f32::NEG_INFINITY)));
        if self.args.length.ignore_eos {
            let ends = tokenizer.vocab().eog();
            settings.logit_bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        Ok(settings)
    }

    /// A sampler for these settings.
    pub(crate) fn sampler(&self, settings: &Settings, n_ctx: usize, seed: u64) -> Sampler {
        let mut around = Surroundings { n_ctx, dry_breakers: HashSet::new() };
        if let Some(tokenizer) = self.tokenizer.filter(|_| settings.get(Knob::DryMultiplier) != 0.0)
        {
            let breaks = |id: &u32| {
                let piece = tokenizer.piece(*id);
                DRY_BREAKERS.iter().any(|b| piece.windows(b.len()).any(|w| w == b.as_bytes()))
            };
            around.dry_breakers = (0..tokenizer.n_tokens()).filter(breaks).collect();
        }
        Sampler::new(settings, &around, seed)
    }

    /// What ends an answer.
    pub(crate) fn limits(&self) -> Limits {
        let length = &self.args.length;
        Limits {
            n_predict: length.predict.and_then(|n| usize::try_from(n).ok()),
            stops: length.stop.clone(),
            max_time: length.max_time.map(Duration::from_secs_f64),
        }
    }

    /// The seed that was given, else a random one.
    pub(crate) fn seed(&self) -> u64 {
        // A hasher's random keys come from the system. 32 bits are easy to type again.
        self.args.sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0u8) >> 32)
    }
}

/// Bytes that a context may take besides the weights, where that is known: what is free on the
/// model's GPU once they are there, and with the mapped weights on a CPU.
pub(crate) fn available_bytes(model: &Model<'_>) -> Option<u64> {
    if model.gpu().is_none() {
        return cli::available_memory();
    }
    model.gpu_free_bytes().ok().map(|free| free.saturating_add(model.uploaded_bytes()))
}

/// Which layers a GPU leaves to the CPU, where it does.
fn behind_cpu(model: &Model<'_>) -> String {
    match model.gpu_layers() {
        Some(layers) if layers.start > 0 => {
            let (n, threads) = (layers.start, model.n_threads());
            format!(" behind {n} layers on the cpu ({}, {threads} threads)", model.tier().name())
        }
        _ => String::new(),
    }
}

/// What runs the model, for people.
pub(crate) fn device(model: &Model<'_>) -> String {
    if let Some(gpu) = model.gpu() {
        return format!("cuda:{} {}{}", gpu.ordinal, gpu.name, behind_cpu(model));
    }
    let n = model.n_threads();
    format!("cpu {} · {n} thread{}", model.tier().name(), if n == 1 { "" } else { "s" })
}

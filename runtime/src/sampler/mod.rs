//! Choosing the next token from the logits: llama.cpp's chain of steps, in its order and with its
//! defaults.
//!
//! To add a step: one file with a `build` function, a `mod` line here and a line in the table of
//! `step.rs`; its settings are lines in `knob.rs`.

mod candidates;
mod dry;
mod knob;
mod min_p;
mod penalties;
mod rng;
mod settings;
mod step;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use candidates::{Candidate, Candidates};
pub use knob::{BadValue, Knob, KnobSpec, Origin};
pub use rng::Rng;
pub use settings::Settings;
pub use step::{DRY_BREAKERS, StepKind, Surroundings};

use step::Step;

/// Why no token could be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model gave no finite logit: its weights or the arithmetic are broken.
    #[error("no logit is finite: the weights hold NaN or infinity, or the computation failed")]
    NotFinite,
}

/// Chooses tokens. Holds the random state and what the penalties remember of the text.
pub struct Sampler {
    bias: Vec<(u32, f32)>,
    chain: Vec<Box<dyn Step>>,
    greedy: bool,
    rng: Rng,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for one run.
    pub fn new(settings: &Settings, around: &Surroundings, seed: u64) -> Self {
        let greedy = settings.is_greedy();
        let chain = if greedy {
            greedy_chain(settings, around)
        } else {
            settings.order().iter().filter_map(|kind| kind.build(settings, around)).collect()
        };
        Self {
            bias: settings.logit_bias.clone(),
            chain,
            greedy,
            rng: Rng::new(seed),
            candidates: Candidates::default(),
        }
    }

    /// Goes on with the random state of another sampler, e.g. after a change of settings.
    #[must_use]
    pub fn with_rng_of(self, other: &Self) -> Self {
        Self { rng: other.rng.clone(), ..self }
    }

    /// Chooses a token from `logits`, `[n_vocab]`. Does not yet count it as part of the text: see
    /// [`Sampler::accept`].
    ///
    /// # Errors
    /// When no logit is finite, or a step has left none.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        if self.greedy && self.chain.is_empty() && self.bias.is_empty() {
            return greedy(logits);
        }
        let candidates = &mut self.candidates;
        candidates.fill(logits);
        for &(id, bias) in &self.bias {
            candidates.add(id, bias);
        }
        for step in &mut self.chain {
            step.apply(candidates, &mut self.rng);
        }
        if !candidates.max_logit().is_finite() {
            return Err(SampleError::NotFinite);
        }
        if self.greedy {
            return candidates.best().map(|c| c.id).ok_or(SampleError::NotFinite);
        }
        draw(candidates, &mut self.rng).ok_or(SampleError::NotFinite)
    }

    /// If this is greedy choice and nothing but tokens that are never chosen stands beside it:
    /// those. The choice can then be made without the sampler, where the logits are.
    pub fn plain_greedy(&self) -> Option<Vec<u32>> {
        let never = |&(id, bias): &(u32, f32)| (bias == f32::NEG_INFINITY).then_some(id);
        let plain = self.greedy && self.chain.is_empty();
        plain.then(|| self.bias.iter().map(never).collect()).flatten()
    }

    /// Tells the penalties that `token` is now part of the text.
    pub fn accept(&mut self, token: u32) {
        for step in &mut self.chain {
            step.accept(token);
        }
    }

    /// Forgets the text; the random state runs on.
    pub fn reset(&mut self) {
        for step in &mut self.chain {
            step.reset();
        }
    }
}

/// The steps that greedy choice needs. A temperature of 0 leaves the best alone, so that nothing
/// after it matters; before it, steps that only drop what is not the best matter if a later one
/// could drop the best.
fn greedy_chain(settings: &Settings, around: &Surroundings) -> Vec<Box<dyn Step>> {
    let order = settings.order().iter().take_while(|&&kind| kind != StepKind::Temperature);
    let mut steps: Vec<_> =
        order.filter_map(|&kind| kind.build(settings, around).map(|step| (kind, step))).collect();
    if !steps.iter().any(|(kind, _)| kind.can_drop_best()) {
        steps.retain(|(kind, _)| kind.changes_logits());
    }
    steps.into_iter().map(|(_, step)| step).collect()
}

/// The largest finite logit, lowest id among equals.
fn greedy(logits: &[f32]) -> Result<u32, SampleError> {
    // The maximum in lanes, which the compiler turns into vectors; then the first place it stands
    // at. A comparison with NaN is false, so that NaN never becomes the maximum.
    const N_LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; N_LANES];
    let (chunks, rest) = logits.as_chunks::<N_LANES>();
    for chunk in chunks {
        for (best, &logit) in lanes.iter_mut().zip(chunk) {
            *best = if logit > *best { logit } else { *best };
        }
    }
    let max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let first = logits.iter().position(|&logit| logit == max);
    match first.and_then(|id| u32::try_from(id).ok()) {
        Some(id) if max.is_finite() => Ok(id),
        _ => Err(SampleError::NotFinite),
    }
}

/// Draws by probability.
fn draw(candidates: &mut Candidates, rng: &mut Rng) -> Option<u32> {
    let point = rng.next_f64();
    candidates.softmax();
    let total: f64 = candidates.items().iter().map(|c| f64::from(c.p)).sum();
    let mut sum = 0f64;
    let hit = candidates.items().iter().find(|c| {
        sum += f64::from(c.p);
        sum > point * total
    });
    hit.or(candidates.items().last()).map(|c| c.id)
}

#[cfg(test)]
mod testing {
    use super::*;

    type Build = fn(&Settings, &Surroundings) -> Option<Box<dyn Step>>;

    pub(in crate::sampler) fn chain_around(
        build: Build,
        values: &[(Knob, f32)],
        around: &Surroundings,
    ) -> Box<dyn Step> {
        let mut settings = Settings::default();
        for &(knob, value) in values {
            settings.set(knob, knob.check(value).unwrap(), Origin::Flag);
        }
        build(&settings, around).unwrap()
    }

    pub(in crate::sampler) fn chain(build: Build, values: &[(Knob, f32)]) -> Box<dyn Step> {
        chain_around(build, values, &Surroundings { n_ctx: 64, ..Surroundings::default() })
    }

    fn run(step: &mut Box<dyn Step>, logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.fill(logits);
        step.apply(&mut candidates, &mut Rng::new(1));
        candidates
    }

    pub(in crate::sampler) fn logits_after(step: &mut Box<dyn Step>, logits: &[f32]) -> Vec<f32> {
        run(step, logits).items().iter().map(|c| c.logit).collect()
    }

    pub(in crate::sampler) fn ids_after(step: &mut Box<dyn Step>, logits: &[f32]) -> Vec<u32> {
        run(step, logits).items().iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &[(Knob, f32)]) -> Settings {
        let mut settings = Settings::default();
        for &(knob, value) in values {
            settings.set(knob, value, Origin::Flag);
        }
        settings
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        let mut sampler = Sampler::new(&with(&[(Knob::Temp, 0.0)]), &Surroundings::default(), 1);
        assert_eq!(sampler.sample(&[1.0, f32::NAN, 3.0, 3.0]), Ok(2));
        assert_eq!(sampler.sample(&[f32::NAN; 4]), Err(SampleError::NotFinite));
        assert_eq!(sampler.sample(&[]), Err(SampleError::NotFinite));
        // Beyond the vector part, inside it, and across its lanes.
        for at in [0, 15, 16, 31, 47, 48, 49] {
            let mut logits = [-1.0; 50];
            logits[at] = 2.0;
            logits[49] = 2.0;
            assert_eq!(sampler.sample(&logits), Ok(at as u32));
        }
    }

    #[test]
    fn plain_greedy_choice_is_known() {
        let plain = |values: &[(Knob, f32)], bias: &[(u32, f32)]| {
            let mut settings = with(values);
            settings.logit_bias = bias.to_vec();
            Sampler::new(&settings, &Surroundings::default(), 1).plain_greedy()
        };
        let greedy = (Knob::Temp, 0.0);
        let never = f32::NEG_INFINITY;
        assert_eq!(plain(&[greedy], &[]), Some(vec![]));
        assert_eq!(plain(&[greedy], &[(3, never), (5, never)]), Some(vec![3, 5]));
        assert_eq!(plain(&[greedy], &[(3, never), (5, 1.0)]), None);
        assert_eq!(plain(&[greedy, (Knob::RepeatPenalty, 1.1)], &[]), None);
        assert_eq!(plain(&[(Knob::Temp, 0.5)], &[]), None);
    }

    #[test]
    fn greedy_honours_bias_and_penalties() {
        let mut settings = with(&[(Knob::Temp, 0.0), (Knob::PresencePenalty, 5.0)]);
        settings.logit_bias = vec![(2, f32::NEG_INFINITY)];
        let mut sampler = Sampler::new(&settings, &Surroundings::default(), 1);
        assert_eq!(sampler.sample(&[1.0, 2.0, 9.0]), Ok(1));
        sampler.accept(1);
        assert_eq!(sampler.sample(&[1.0, 2.0, 9.0]), Ok(0));
    }

    #[test]
    fn greedy_runs_the_steps_that_can_drop_the_best() {
        let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let greedy = |values: &[(Knob, f32)], order: &str| {
            let mut settings = with(&[&[(Knob::Temp, 0.0)], values].concat());
            if !order.is_empty() {
                settings.set_order(StepKind::parse_order(order).unwrap(), Origin::Flag);
            }
            Sampler::new(&settings, &Surroundings::default(), 1).sample(&logits)
        };
        let xtc = [(Knob::XtcProbability, 1.0), (Knob::XtcThreshold, 0.15)];
        assert_eq!(greedy(&[], ""), Ok(0));
        assert_eq!(greedy(&xtc, ""), Ok(2));
        // The steps before it count: of the two best it drops one.
        assert_eq!(greedy(&[&xtc[..], &[(Knob::TopK, 2.0)]].concat(), ""), Ok(1));
        assert_eq!(greedy(&xtc, "temperature;xtc"), Ok(0));
        // llama.cpp's case for typical-p: it keeps the three of 0.2.
        let mut typical = Sampler::new(
            &with(&[(Knob::Temp, 0.0), (Knob::TypicalP, 0.5)]),
            &Surroundings::default(),
            1,
        );
        assert_eq!(typical.sample(&[0.4f32.ln(), 0.2f32.ln(), 0.2f32.ln(), 0.2f32.ln()]), Ok(1));
    }

    #[test]
    fn a_tiny_temperature_is_nearly_greedy() {
        for temp in [1e-30, 1e-38, f32::from_bits(1)] {
            for base in [-1e6, 0.0, 1e6] {
                let settings = with(&[(Knob::Temp, temp)]);
                let mut sampler = Sampler::new(&settings, &Surroundings::default(), 1);
                let logits = [base, base + 2.0, base + 1.0, f32::NEG_INFINITY];
                assert_eq!(sampler.sample(&logits), Ok(1), "{temp:e} {base}");
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_draws_and_others_do_not() {
        let logits: Vec<f32> = (0..100u32).map(|i| ((i * 37) % 100) as f32 * 0.02).collect();
        let draw = |seed: u64| -> Vec<u32> {
            let mut sampler = Sampler::new(&Settings::default(), &Surroundings::default(), seed);
            (0..20).map(|_| sampler.sample(&logits).unwrap()).collect()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let settings = with(&[(Knob::Temp, 1.0), (Knob::TopP, 1.0), (Knob::MinP, 0.0)]);
        let mut sampler = Sampler::new(&settings, &Surroundings::default(), 5);
        let logits = [0.7f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let mut counts = [0u32; 3];
        for _ in 0..20_000 {
            counts[sampler.sample(&logits).unwrap() as usize] += 1;
        }
        for (count, p) in counts.iter().zip([0.7, 0.2, 0.1]) {
            assert!((f64::from(*count) / 20_000.0 - p).abs() < 0.015, "{counts:?}");
        }
    }
}

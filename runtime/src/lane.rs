//! A sequence on some backend: what a session needs of it, whatever the backend is.

use crate::backend::Backend;
use crate::error::Result;
use crate::model::{Network, Scratch, Step, cache_shape};
use format_spec::model::Config;
use std::ops::Range;

/// A sequence on some backend: what a session needs of it.
pub(crate) trait Run: Send {
    /// Makes room for positions `0..n_positions`.
    fn reserve(&mut self, n_positions: usize) -> Result<()>;
    /// Runs tokens through the layers and leaves the wanted rows of the residual stream.
    fn forward(&mut self, tokens: &[u32], first_pos: usize, wanted: Range<usize>) -> Result<()>;
    /// Computes the logits of some of those rows.
    fn logits(&mut self, rows: Range<usize>) -> Result<()>;
    /// One token, and the logits after it.
    fn decode(&mut self, token: u32, pos: usize) -> Result<()>;
    /// Lets [`decode_greedy`](Self::decode_greedy) choose; says whether it can.
    fn choose_greedily(&mut self, n_tokens: usize, banned: &[u32]) -> Result<bool>;
    /// As [`decode`](Self::decode), and the choice after it: nothing if no logit is finite, or
    /// nothing chooses. With `ahead` the step after it is begun.
    fn decode_greedy(&mut self, token: u32, pos: usize, ahead: bool) -> Result<Option<u32>>;
    /// The first rows of the logits computed last, `[n_rows, n_vocab]`.
    fn read(&mut self, n_rows: usize) -> Result<&[f32]>;
    /// Waits for what was begun.
    fn finish(&self) -> Result<()>;
    /// Bytes of keys and values.
    fn cache_bytes(&self) -> u64;
}

/// A network, a cache for one sequence, and buffers.
pub(crate) struct Lane<'m, B: Backend> {
    backend: &'m B,
    network: &'m (dyn Network<B> + 'm),
    cache: B::Cache,
    scratch: Scratch<B>,
    replay: B::Replay,
    greedy: Option<Greedy<B>>,
    /// Whether the first layer is here, and embeddings go into it.
    starts: bool,
}

/// Tokens chosen where the logits are.
struct Greedy<B: Backend> {
    banned: Vec<u32>,
    chooser: B::Chooser,
    replay: B::Replay,
    /// The step that was begun ahead of its call: its token, once known, and its position.
    ahead: Option<(Option<u32>, usize)>,
}

impl<'m, B: Backend> Lane<'m, B> {
    /// An empty sequence of at most `n_ctx` positions through `layers`.
    pub(crate) fn new(
        backend: &'m B,
        network: &'m (dyn Network<B> + 'm),
        config: &Config,
        layers: &Range<usize>,
        n_ctx: usize,
    ) -> Result<Self> {
        Ok(Self {
            backend,
            network,
            cache: backend.cache(cache_shape(config, layers.len(), n_ctx))?,
            scratch: Scratch::new(backend, config)?,
            replay: B::Replay::default(),
            greedy: None,
            starts: layers.start == 0,
        })
    }

    /// A step that was begun ahead followed the tokens before it, which are others now.
    fn forget_step_ahead(&mut self) {
        if let Some(greedy) = &mut self.greedy {
            greedy.ahead = None;
        }
    }

    /// The residual stream that [`forward`](Run::forward) has left, `[n_tokens, n_embd]`.
    pub(crate) fn stream(&mut self, n_tokens: usize) -> Result<&[f32]> {
        self.backend.read(&mut self.scratch.x, n_tokens)
    }

    /// Makes `stream` what the next step starts from, where the first layer is elsewhere.
    pub(crate) fn start_from(&mut self, stream: &[f32]) -> Result<()> {
        self.backend.write(&mut self.scratch.x, stream)
    }
}

impl<B: Backend> Run for Lane<'_, B> {
    fn reserve(&mut self, n_positions: usize) -> Result<()> {
        self.backend.reserve(&mut self.cache, n_positions)?;
        // Before the step, so that a step of one token moves no buffer.
        self.backend.rotate_to(&mut self.scratch.rotation, n_positions);
        if let Some(local) = &mut self.scratch.rotation_local {
            self.backend.rotate_to(local, n_positions);
        }
        Ok(())
    }

    fn forward(&mut self, tokens: &[u32], first_pos: usize, wanted: Range<usize>) -> Result<()> {
        self.forget_step_ahead();
        let Self { backend, network, cache, scratch, starts, .. } = self;
        let step = Step { tokens, first_pos, wanted };
        let mut body = || {
            if *starts {
                network.embed(backend, scratch, tokens);
            }
            network.forward(backend, cache, scratch, &step);
        };
        // Not what `decode` does, so nothing that it could repeat.
        backend.step(&mut B::Replay::default(), tokens, first_pos, &mut body)
    }

    fn logits(&mut self, rows: Range<usize>) -> Result<()> {
        self.network.logits(self.backend, &mut self.scratch, rows);
        Ok(())
    }

    fn decode(&mut self, token: u32, pos: usize) -> Result<()> {
        self.forget_step_ahead();
        let Self { backend, network, cache, scratch, replay, starts, .. } = self;
        let tokens = [token];
        let step = Step { tokens: &tokens, first_pos: pos, wanted: 0..1 };
        let mut body = || {
            if *starts {
                network.embed(backend, scratch, &tokens);
            }
            network.forward(backend, cache, scratch, &step);
            network.logits(backend, scratch, 0..1);
        };
        backend.step(replay, &tokens, pos, &mut body)
    }

    fn choose_greedily(&mut self, n_tokens: usize, banned: &[u32]) -> Result<bool> {
        if self.greedy.as_ref().is_none_or(|greedy| greedy.banned != banned) {
            let chooser = self.backend.chooser(n_tokens, banned)?;
            let replay = B::Replay::default();
            let banned = banned.to_vec();
            self.greedy = chooser.map(|chooser| Greedy { banned, chooser, replay, ahead: None });
        }
        Ok(self.greedy.is_some())
    }

    fn decode_greedy(&mut self, token: u32, pos: usize, ahead: bool) -> Result<Option<u32>> {
        let Self { backend, network, cache, scratch, greedy, starts, .. } = self;
        let Some(Greedy { chooser, replay, ahead: begun, .. }) = greedy else { return Ok(None) };
        let mut step = |token: Option<u32>, pos| {
            // What it goes on with is in device memory; here it is not looked at.
            let tokens = [token.unwrap_or(0)];
            let step = Step { tokens: &tokens, first_pos: pos, wanted: 0..1 };
            let mut body = || {
                if *starts {
                    network.embed(backend, scratch, &tokens);
                }
                network.forward(backend, cache, scratch, &step);
                network.logits(backend, scratch, 0..1);
                backend.choose(chooser, &scratch.logits);
            };
            backend.step_choosing(chooser, replay, token, pos, &mut body)
        };
        if begun.take() != Some((Some(token), pos)) {
            step(Some(token), pos)?;
        }
        // What comes before these layers waits for the token.
        if ahead && *starts && step(None, pos + 1)? {
            *begun = Some((None, pos + 1));
        }
        let chosen = backend.chosen(chooser, pos)?;
        *begun = begun.and_then(|(_, pos)| chosen.map(|token| (Some(token), pos)));
        Ok(chosen)
    }

    fn read(&mut self, n_rows: usize) -> Result<&[f32]> {
        self.backend.read(&mut self.scratch.logits, n_rows)
    }

    fn finish(&self) -> Result<()> {
        self.backend.finish()
    }

    fn cache_bytes(&self) -> u64 {
        self.backend.cache_bytes(&self.cache)
    }
}

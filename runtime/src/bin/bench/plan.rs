//! Which tests are made, in llama-bench's order.

use crate::device::{Layers, Placement};
use cli::Failure;
use kernels::Tier;

/// One test: what is timed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) n_prompt: usize,
    pub(crate) n_gen: usize,
    /// Positions in the cache before the clock starts.
    pub(crate) n_depth: usize,
    /// `-b`.
    pub(crate) n_batch: usize,
    /// Prompt tokens computed together.
    pub(crate) n_ubatch: usize,
    pub(crate) n_threads: usize,
}

impl Test {
    /// Positions that it needs.
    pub(crate) fn n_ctx(&self) -> usize {
        self.n_prompt + self.n_gen + self.n_depth
    }

    /// As llama-bench's table calls it.
    pub(crate) fn name(&self) -> String {
        let name = match (self.n_prompt, self.n_gen) {
            (pp, 0) => format!("pp{pp}"),
            (0, tg) => format!("tg{tg}"),
            (pp, tg) => format!("pp{pp}+tg{tg}"),
        };
        if self.n_depth > 0 { format!("{name} @ d{}", self.n_depth) } else { name }
    }
}

/// What a model is opened with; a model stays open while this stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) placement: Placement,
    pub(crate) tier: Tier,
    pub(crate) n_threads: usize,
}

/// How a prompt is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The number of `-b`; without it that of `-ub`.
    pub(crate) given: usize,
    /// Tokens computed together.
    pub(crate) together: usize,
}

/// Every value of every flag that a test depends on, besides the model.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    /// Device, family and layers in every wanted combination.
    pub(crate) placements: Vec<Placement>,
    pub(crate) tiers: Vec<Tier>,
    pub(crate) batches: Vec<Batch>,
    pub(crate) n_threads: Vec<usize>,
    pub(crate) n_depth: Vec<usize>,
    pub(crate) n_prompt: Vec<usize>,
    pub(crate) n_gen: Vec<usize>,
    pub(crate) pairs: Vec<(usize, usize)>,
}

/// More tests of a model than these nobody waits for, and their table must fit into memory.
pub(crate) const MAX_TESTS: usize = 65_536;

/// Refuses lists, of these lengths, of which every combination would be a test, or part of one, where
/// there are too many.
///
/// # Errors
/// Wrong use (2).
pub(crate) fn check_combinations(lens: &[usize]) -> Result<(), Failure> {
    match lens.iter().try_fold(1usize, |product, &len| product.checked_mul(len)) {
        Some(product) if product <= MAX_TESTS => Ok(()),
        _ => Err(Failure::usage(format!("more than {MAX_TESTS} tests: the lists are too long"))),
    }
}

impl Grid {
    /// # Errors
    /// Wrong use: more tests than [`MAX_TESTS`].
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let n_kinds = self.n_prompt.len() + self.n_gen.len() + self.pairs.len();
        check_combinations(&[
            self.placements.len(),
            self.tiers.len(),
            self.batches.len(),
            self.n_threads.len(),
            self.n_depth.len(),
            n_kinds,
        ])
    }

    /// The tests of one model. Those of no token are left out.
    pub(crate) fn tests(&self) -> Vec<(Setup, Test)> {
        let mut tests = Vec::new();
        for &placement in &self.placements {
            for &tier in &self.tiers {
                for &Batch { given: n_batch, together: n_ubatch } in &self.batches {
                    for &n_threads in &self.n_threads {
                        let setup = Setup { placement, tier, n_threads };
                        for &n_depth in &self.n_depth {
                            let of = |n_prompt, n_gen| Test {
                                n_prompt,
                                n_gen,
                                n_depth,
                                n_batch,
                                n_ubatch,
                                n_threads,
                            };
                            let prompts = self.n_prompt.iter().map(|&n| (n, 0));
                            let generations = self.n_gen.iter().map(|&n| (0, n));
                            let all = prompts.chain(generations).chain(self.pairs.iter().copied());
                            let some = all.filter(|&(n_prompt, n_gen)| n_prompt + n_gen > 0);
                            tests.extend(some.map(|(p, g)| (setup, of(p, g))));
                        }
                    }
                }
            }
        }
        tests
    }

    /// The most positions that a test needs.
    pub(crate) fn n_ctx(&self) -> usize {
        self.tests().iter().map(|(_, test)| test.n_ctx()).max().unwrap_or(0)
    }
}

/// `n_gpu_layers` as llama-bench writes it: -1 is as many as there are, or fit.
pub(crate) fn layers_number(layers: Option<Layers>) -> i64 {
    match layers {
        None | Some(Layers::Auto | Layers::Last(usize::MAX)) => -1,
        Some(Layers::Last(n)) => i64::try_from(n).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::{Device, Prefill};
    use crate::switches::Switches;

    pub(crate) const PLACEMENT: Placement = Placement {
        device: Device::Cpu,
        prefill: Prefill::Auto,
        layers: None,
        n_ctx: 0,
        n_batch: 512,
        switches: Switches::UNSET,
    };

    pub(crate) fn test(n_prompt: usize, n_gen: usize, n_depth: usize) -> Test {
        Test { n_prompt, n_gen, n_depth, n_batch: 512, n_ubatch: 512, n_threads: 2 }
    }

    #[test]
    fn names_are_llama_benchs() {
        assert_eq!(test(512, 0, 0).name(), "pp512");
        assert_eq!(test(0, 128, 0).name(), "tg128");
        assert_eq!(test(512, 128, 0).name(), "pp512+tg128");
        assert_eq!(test(0, 4, 512).name(), "tg4 @ d512");
    }

    #[test]
    fn the_order_is_llama_benchs() {
        let grid = Grid {
            placements: vec![PLACEMENT],
            tiers: vec![Tier::Scalar],
            batches: vec![Batch { given: 512, together: 512 }],
            n_threads: vec![1, 2],
            n_depth: vec![0, 8],
            n_prompt: vec![4, 0],
            n_gen: vec![2],
            pairs: vec![(4, 2), (0, 0)],
        };
        let names: Vec<String> = grid
            .tests()
            .iter()
            .map(|(setup, test)| format!("{} t{}", test.name(), setup.n_threads))
            .collect();
        let expected = [
            "pp4 t1",
            "tg2 t1",
            "pp4+tg2 t1",
            "pp4 @ d8 t1",
            "tg2 @ d8 t1",
            "pp4+tg2 @ d8 t1",
            "pp4 t2",
            "tg2 t2",
            "pp4+tg2 t2",
            "pp4 @ d8 t2",
            "tg2 @ d8 t2",
            "pp4+tg2 @ d8 t2",
        ];
        assert_eq!(names, expected);
        assert_eq!(grid.n_ctx(), 14);
    }
}

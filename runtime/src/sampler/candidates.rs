//! The tokens still in the running, with the order and softmax that the steps share.

use std::cmp::Ordering;

/// One token that may still be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Logit, as changed by the steps so far.
    pub logit: f32,
    /// Probability; valid after [`Candidates::softmax`].
    pub p: f32,
}

/// The remaining tokens.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    items: Vec<Candidate>,
    sorted: bool,
}

/// Best first; equal logits by lowest id, so that no result depends on how a sort treats ties.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

impl Candidates {
    /// Starts over from `logits`, `[n_vocab]`; token ids are the positions. NaN counts as minus
    /// infinity: it can then never be chosen.
    pub fn fill(&mut self, logits: &[f32]) {
        self.items.clear();
        self.items.extend((0u32..).zip(logits).map(|(id, &logit)| Candidate {
            id,
            logit: if logit.is_nan() { f32::NEG_INFINITY } else { logit },
            p: 0.0,
        }));
        self.sorted = false;
    }

    /// The candidates, best first if a step has sorted them, else by id.
    pub fn items(&self) -> &[Candidate] {
        &self.items
    }

    /// How many remain.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none remains.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Changes logits in place; the order is no longer known afterwards.
    pub fn change(&mut self, change: impl FnMut(&mut Candidate)) {
        self.items.iter_mut().for_each(change);
        self.sorted = false;
    }

    /// Adds `bias` to the logit of token `id`, if there is one; only right after [`Self::fill`].
    pub fn add(&mut self, id: u32, bias: f32) {
        if let Some(c) = self.items.get_mut(id as usize).filter(|c| c.id == id) {
            c.logit += bias;
        }
    }

    /// Divides every logit by `temp` (above zero), which keeps the order. Where the largest would
    /// overflow, it is subtracted first, which changes no probability.
    pub fn scale(&mut self, temp: f32) {
        let max = self.max_logit();
        let overflows = max.is_finite() && !(max / temp).is_finite();
        let shift = if overflows { max } else { 0.0 };
        self.items.iter_mut().for_each(|c| c.logit = (c.logit - shift) / temp);
    }

    /// The largest logit.
    pub fn max_logit(&self) -> f32 {
        self.items.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// The best candidate: largest logit, lowest id among equals.
    pub fn best(&self) -> Option<Candidate> {
        self.items.iter().copied().min_by(best_first)
    }

    /// Best first.
    pub fn sort(&mut self) {
        if !self.sorted {
            self.items.sort_unstable_by(best_first);
            self.sorted = true;
        }
    }

    /// Keeps the best `k`, sorted.
    pub fn keep_best(&mut self, k: usize) {
        if !self.sorted && k < self.items.len() && k > 0 {
            self.items = best_of(&self.items, k);
        }
        self.items.truncate(k);
        self.sort();
    }

    /// Keeps the first `n` of the present order.
    pub fn truncate(&mut self, n: usize) {
        self.items.truncate(n);
    }

    /// Drops the first `n` of the present order.
    pub fn drop_first(&mut self, n: usize) {
        self.items.drain(..n.min(self.items.len()));
    }

    /// Keeps the candidates that `keep` accepts; the order stays.
    pub fn retain(&mut self, keep: impl FnMut(&Candidate) -> bool) {
        self.items.retain(keep);
    }

    /// Replaces the candidates by `items`, in an order of their own.
    pub fn replace(&mut self, items: Vec<Candidate>) {
        self.items = items;
        self.sorted = false;
    }

    /// Fills in the probabilities of what remains.
    pub fn softmax(&mut self) {
        let max = self.max_logit();
        let mut sum = 0f64;
        for c in &mut self.items {
            c.p = (c.logit - max).exp();
            sum += f64::from(c.p);
        }
        for c in &mut self.items {
            c.p = (f64::from(c.p) / sum) as f32;
        }
    }

    /// How many of the best make up at least probability `p`, sorting no more than it must.
    pub fn keep_mass(&mut self, p: f32) {
        const FIRST_TRY: usize = 256;
        self.softmax();
        if !self.sorted && self.items.len() > 4 * FIRST_TRY {
            // A whole vocabulary: the answer nearly always lies among the few hundred best.
            self.items.select_nth_unstable_by(FIRST_TRY - 1, best_first);
            self.items[..FIRST_TRY].sort_unstable_by(best_first);
            if let Some(n) = mass_reached(&self.items[..FIRST_TRY], p) {
                self.items.truncate(n);
                self.sorted = true;
                return;
            }
        }
        self.sort();
        if let Some(n) = mass_reached(&self.items, p) {
            self.items.truncate(n);
        }
    }
}

/// The best `k` (above zero) of `items`, unsorted. One pass over a whole vocabulary that touches
/// little else: nearly all of it lies below the worst of the best so far.
fn best_of(items: &[Candidate], k: usize) -> Vec<Candidate> {
    let most = k.saturating_mul(2).max(64).min(items.len());
    let mut kept = Vec::with_capacity(most);
    let mut floor = f32::NEG_INFINITY;
    for &item in items {
        if item.logit < floor {
            continue;
        }
        kept.push(item);
        if kept.len() == most {
            kept.select_nth_unstable_by(k - 1, best_first);
            kept.truncate(k);
            floor = kept[k - 1].logit;
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, best_first);
        kept.truncate(k);
    }
    kept
}

/// Length of the shortest beginning of `items` whose probabilities add up to `p`.
fn mass_reached(items: &[Candidate], p: f32) -> Option<usize> {
    let mut sum = 0f32;
    items
        .iter()
        .position(|c| {
            sum += c.p;
            sum >= p
        })
        .map(|i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(logits: &[f32]) -> Candidates {
        let mut c = Candidates::default();
        c.fill(logits);
        c
    }

    fn ids(c: &Candidates) -> Vec<u32> {
        c.items().iter().map(|c| c.id).collect()
    }

    #[test]
    fn ties_go_to_the_lowest_id_and_nan_never_wins() {
        let c = filled(&[f32::NAN, 2.0, 2.0, -1.0]);
        assert_eq!(c.best().map(|c| c.id), Some(1));
        let mut c = filled(&[1.0, 2.0, 1.0, 2.0, 1.0]);
        c.keep_best(3);
        assert_eq!(ids(&c), [1, 3, 0]);
    }

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        let logits: Vec<f32> = (0..3000u32).map(|i| ((i * 7919) % 611) as f32).collect();
        for k in [1, 2, 31, 32, 40, 1500, 2999, 3000, 4000] {
            let mut fast = filled(&logits);
            fast.keep_best(k);
            let mut slow = filled(&logits);
            slow.sort();
            slow.truncate(k);
            assert_eq!(ids(&fast), ids(&slow), "k = {k}");
        }
    }

    #[test]
    fn mass_is_the_same_with_and_without_the_short_cut() {
        let logits: Vec<f32> = (0..5000u32).map(|i| ((i * 7919) % 5000) as f32 * 0.01).collect();
        for p in [0.1, 0.5, 0.9, 0.999, 0.999_999] {
            let mut fast = filled(&logits);
            fast.keep_mass(p);
            let mut slow = filled(&logits);
            slow.sort();
            slow.keep_mass(p);
            assert_eq!(ids(&fast), ids(&slow), "p = {p}");
        }
        // Flat: the first try cannot reach the mass.
        let mut flat = filled(&[0.0; 3000]);
        flat.keep_mass(0.5);
        assert!((1490..=1510).contains(&flat.len()), "{}", flat.len());
    }

    #[test]
    fn softmax_adds_up_to_one_for_large_logits() {
        let mut c = filled(&[1e4, 1e4 - 1.0, -1e4]);
        c.softmax();
        let sum: f32 = c.items().iter().map(|c| c.p).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}

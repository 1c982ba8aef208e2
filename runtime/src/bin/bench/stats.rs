//! Mean, standard deviation and median of samples.

/// Mean; 0 of nothing.
pub(crate) fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// Standard deviation of the population that the samples are drawn from; 0 of fewer than two.
pub(crate) fn deviation(samples: &[f64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

/// Median: of an even number the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(low), sorted.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_few_numbers() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&samples), 5.0);
        // 32 / 7
        assert!((deviation(&samples) - 2.138_089_935_299_395).abs() < 1e-12);
        assert_eq!(median(&samples), 4.5);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!((mean(&[]), deviation(&[]), median(&[])), (0.0, 0.0, 0.0));
        assert_eq!((mean(&[3.0]), deviation(&[3.0]), median(&[3.0])), (3.0, 0.0, 3.0));
    }
}

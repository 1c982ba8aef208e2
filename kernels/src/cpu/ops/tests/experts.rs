use super::{Random, all_ops, assert_close, bits, same_in_all_tiers};
use crate::cpu::ops::Choice;

fn route(logits: &[f32], n_used: usize) -> Vec<Choice> {
    let mut found: Option<Vec<Choice>> = None;
    for ops in all_ops() {
        let mut choices = vec![Choice { expert: 7777, weight: f32::NAN }; n_used];
        ops.route(&mut choices, &mut logits.to_vec());
        let as_bits = |choices: &[Choice]| {
            let weights: Vec<f32> = choices.iter().map(|choice| choice.weight).collect();
            let experts: Vec<u32> = choices.iter().map(|choice| choice.expert).collect();
            (experts, bits(&weights))
        };
        let expected = found.get_or_insert_with(|| choices.clone());
        assert_eq!(as_bits(expected), as_bits(&choices), "{:?}", ops.tier());
    }
    found.expect("a tier")
}

#[test]
fn the_largest_logits_are_chosen_with_weights_that_add_up_to_one() {
    for n_expert in [1, 2, 3, 8, 60, 128, 160] {
        for n_used in [1, 2, 8, 60].into_iter().filter(|&n| n <= n_expert) {
            let logits = Random(n_expert as u64).vec(n_expert, 6.0);
            let mut order: Vec<usize> = (0..n_expert).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let found = route(&logits, n_used);
            let experts: Vec<usize> = found.iter().map(|choice| choice.expert as usize).collect();
            assert_eq!(experts, order[..n_used]);
            let e: Vec<f64> = order[..n_used].iter().map(|&i| f64::from(logits[i]).exp()).collect();
            let expected: Vec<f64> = e.iter().map(|w| w / e.iter().sum::<f64>()).collect();
            let weights: Vec<f32> = found.iter().map(|choice| choice.weight).collect();
            assert_close(&weights, &expected, 1e-5, 0.0);
        }
    }
}

#[test]
fn of_equal_logits_the_lower_number_comes_first() {
    let mut logits = vec![1.0; 40];
    (logits[9], logits[33]) = (2.0, 2.0);
    let experts: Vec<u32> = route(&logits, 4).iter().map(|choice| choice.expert).collect();
    assert_eq!(experts, [9, 33, 0, 1]);
    // So far below the largest that they have no probability at all: still experts, each once.
    logits.fill(-1e6);
    logits[20] = 0.0;
    let choices = route(&logits, 3);
    assert_eq!(choices.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [20, 0, 1]);
    assert_eq!(choices.iter().map(|choice| choice.weight).collect::<Vec<_>>(), [1.0, 0.0, 0.0]);
}

#[test]
fn a_token_that_is_not_finite_has_experts_too() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = vec![0.5; 20];
        logits[13] = bad;
        let choices = route(&logits, 8);
        let experts: Vec<u32> = choices.iter().map(|choice| choice.expert).collect();
        assert_eq!(experts, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(choices.iter().all(|choice| choice.weight.is_nan()));
    }
}

#[test]
fn add_weighted_is_close_to_f64() {
    for len in [1, 15, 16, 17, 80, 1000] {
        let mut random = Random(3 * len as u64);
        let (start, rows) = (random.vec(len, 2.0), random.vec(9 * len, 3.0));
        let places = [8, 0, 5];
        let choices = [0.5, 0.3, 0.2].map(|weight| Choice { expert: 99, weight });
        let found = same_in_all_tiers(|ops| {
            let mut x = start.clone();
            ops.add_weighted(&mut x, &rows, &places, &choices);
            x
        });
        let expected: Vec<f64> = (0..len)
            .map(|k| {
                let terms = places.iter().zip(&choices).map(|(&place, choice)| {
                    f64::from(choice.weight) * f64::from(rows[place as usize * len + k])
                });
                f64::from(start[k]) + terms.sum::<f64>()
            })
            .collect();
        assert_close(&found, &expected, 0.0, 1e-6);
        // Terms are added in order, products rounded: as llama.cpp's graph has it.
        let mut sum = 0.0f32;
        for (i, (&place, choice)) in places.iter().zip(&choices).enumerate() {
            let term = choice.weight * rows[place as usize * len];
            sum = if i == 0 { term } else { sum + term };
        }
        assert_eq!(found[0].to_bits(), (sum + start[0]).to_bits());
    }
}

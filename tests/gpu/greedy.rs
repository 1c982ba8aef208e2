//! Greedy choice on the device against the host's, whatever happens between two steps.

use crate::Test;
use crate::model::{ids, on_gpu, on_host, options, packed};
use runtime::{Choice, CudaOptions, LogitsWanted, Prefill, Session};

pub(crate) const TESTS: &[Test] = &[
    ("choices_are_those_of_the_host", choices_are_those_of_the_host),
    ("sessions_take_turns", sessions_take_turns),
    ("going_back_leaves_no_trace", going_back_leaves_no_trace),
    ("banned_tokens_are_not_chosen", banned_tokens_are_not_chosen),
    ("a_full_context_stops_ahead_of_its_end", a_full_context_stops_ahead_of_its_end),
];

const N_TOKENS: usize = 40;

fn step(session: &mut Session<'_, '_>, token: u32, more: bool) -> u32 {
    match session.decode_greedy(token, more).unwrap() {
        Choice::Token(token) => token,
        other => panic!("no choice on the device: {other:?}"),
    }
}

fn on_device(session: &mut Session<'_, '_>, first: u32, n: usize, more: bool) -> Vec<u32> {
    let mut tokens = vec![first];
    for _ in 0..n {
        tokens.push(step(session, tokens[tokens.len() - 1], more));
    }
    tokens
}

fn choices_are_those_of_the_host() {
    let file = packed("default");
    for (graphs, chained) in [(true, true), (true, false), (false, true)] {
        let cuda = CudaOptions { graphs, chained, ..options(Prefill::Auto) };
        on_gpu(&file, &cuda, true, |model| {
            let mut host = Session::new(model, 512).unwrap();
            host.prefill(&ids(9), 512, LogitsWanted::None).unwrap();
            let expected = on_host(&mut host, 3, N_TOKENS);
            for more in [false, true] {
                let mut session = Session::new(model, 512).unwrap();
                assert!(session.choose_greedily(&[]).unwrap());
                session.prefill(&ids(9), 512, LogitsWanted::None).unwrap();
                assert_eq!(on_device(&mut session, 3, N_TOKENS, more), expected, "ahead: {more}");
                assert_eq!(session.n_past(), 9 + N_TOKENS);
            }
            // One choice a step, and one step begun that nobody asked for.
            let choices = model.gpu_choice().unwrap();
            assert_eq!((choices.on, choices.n_launches), (true, 2 * N_TOKENS as u64 + 1));
        });
    }
    let off = CudaOptions { argmax: false, ..options(Prefill::Auto) };
    on_gpu(&file, &off, true, |model| {
        let mut session = Session::new(model, 64).unwrap();
        assert!(!session.choose_greedily(&[]).unwrap());
        assert!(matches!(session.decode_greedy(3, true).unwrap(), Choice::Open(_)));
        assert_eq!(model.gpu_choice().unwrap().n_launches, 0);
    });
}

fn sessions_take_turns() {
    on_gpu(&packed("default"), &options(Prefill::Auto), true, |model| {
        let expected: Vec<Vec<u32>> = [3, 8]
            .map(|first| on_host(&mut Session::new(model, 512).unwrap(), first, N_TOKENS))
            .to_vec();
        let mut sessions = [Session::new(model, 512).unwrap(), Session::new(model, 512).unwrap()];
        let mut tokens = [vec![3], vec![8]];
        for session in &mut sessions {
            assert!(session.choose_greedily(&[]).unwrap());
        }
        for turn in 0..N_TOKENS {
            for (session, tokens) in sessions.iter_mut().zip(&mut tokens) {
                // Now and then one goes two steps, with nobody in between.
                if turn % 5 != 4 && tokens.len() <= N_TOKENS {
                    tokens.push(step(session, tokens[tokens.len() - 1], true));
                }
            }
            if turn % 5 == 4 {
                for (session, tokens) in sessions.iter_mut().zip(&mut tokens) {
                    while tokens.len() < turn + 2 {
                        tokens.push(step(session, tokens[tokens.len() - 1], true));
                    }
                }
            }
        }
        assert_eq!(tokens.to_vec(), expected);
    });
}

fn going_back_leaves_no_trace() {
    on_gpu(&packed("default"), &options(Prefill::Auto), true, |model| {
        let mut host = Session::new(model, 512).unwrap();
        let expected = on_host(&mut host, 3, N_TOKENS);
        host.truncate(5);
        let other = on_host(&mut host, 7, 10);
        let mut session = Session::new(model, 512).unwrap();
        session.choose_greedily(&[]).unwrap();
        // Each time a step is under way that takes a token which is not to be.
        on_device(&mut session, 9, 6, true);
        session.truncate(0);
        assert_eq!(on_device(&mut session, 3, N_TOKENS, true), expected);
        session.truncate(5);
        assert_eq!(on_device(&mut session, 7, 10, true), other);
        session.truncate(5);
        session.decode(1).unwrap();
        session.truncate(5);
        assert_eq!(on_device(&mut session, 7, 3, true), other[..4]);
        // The same token at the same position, behind other tokens: what was begun is void.
        for session in [&mut host, &mut session] {
            session.truncate(0);
        }
        let six = on_device(&mut session, 3, 6, true);
        session.truncate(0);
        for session in [&mut host, &mut session] {
            session.prefill(&[5, 9, 2, 77, 41, 8], 512, LogitsWanted::None).unwrap();
        }
        assert_eq!(session.n_past(), 6);
        assert_eq!(on_device(&mut session, six[6], 3, true), on_host(&mut host, six[6], 3));
        // A prompt goes through other kernels, which may decide a near-tie in another way.
        for session in [&mut host, &mut session] {
            session.truncate(0);
            session.prefill(&expected[..20], 512, LogitsWanted::None).unwrap();
        }
        let other = on_host(&mut host, expected[20], 20);
        assert_eq!(on_device(&mut session, expected[20], 20, true), other);
    });
}

fn banned_tokens_are_not_chosen() {
    on_gpu(&packed("default"), &options(Prefill::Auto), true, |model| {
        let all: Vec<u32> = (0..model.n_tokens() as u32).collect();
        for allowed in [0, 31, 32, 95] {
            let banned: Vec<u32> = all.iter().copied().filter(|&id| id != allowed).collect();
            let mut session = Session::new(model, 64).unwrap();
            assert!(session.choose_greedily(&banned).unwrap());
            assert_eq!(on_device(&mut session, 3, 5, true)[1..], [allowed; 5]);
            // The next answer of a chat, with other wishes.
            assert!(session.choose_greedily(&all).unwrap());
            assert_eq!(session.decode_greedy(3, true).unwrap(), Choice::NotFinite);
        }
    });
}

fn a_full_context_stops_ahead_of_its_end() {
    on_gpu(&packed("default"), &options(Prefill::Auto), true, |model| {
        let expected = on_host(&mut Session::new(model, 64).unwrap(), 3, 16);
        let mut session = Session::new(model, 16).unwrap();
        session.choose_greedily(&[]).unwrap();
        assert_eq!(on_device(&mut session, 3, 16, true), expected);
        assert!(session.decode_greedy(3, true).is_err(), "the context is full");
    });
}

//! Which tokens may be chosen, and who comes first.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use common::{ask, config, fixture, greedy, tiny};
use taper_base::{Engine, GenRequest, GenerationError, SamplingParams, SubmitError, TokenId};
use taper_engine::{EngineConfig, Scheduling, channel};

fn banning(request: GenRequest, words: &[&[TokenId]]) -> GenRequest {
    GenRequest { bad_words: words.iter().map(|word| word.to_vec()).collect(), ..request }
}

#[test]
fn a_bad_word_is_never_written_and_its_parts_are() {
    let (engine, fixture) = (tiny(&config()), fixture());
    let request = greedy(&fixture.prompt, 6);
    let free = ask(&engine, request.clone()).tokens;
    let word = [free[1], free[2]];
    let banned = ask(&engine, banning(request.clone(), &[&word])).tokens;
    assert_eq!(banned[..2], free[..2]);
    assert!(banned.windows(2).all(|pair| pair != word), "{banned:?}");
    let single = ask(&engine, banning(request.clone(), &[&[free[0]], &[free[5]]])).tokens;
    assert!(!single.contains(&free[0]) && !single.contains(&free[5]));
    // What the prompt ends with is no part of the output.
    let across = [*fixture.prompt.last().unwrap(), free[0]];
    assert_eq!(ask(&engine, banning(request, &[&across])).tokens, free);
}

#[test]
fn only_allowed_tokens_are_chosen() {
    let engine = tiny(&config());
    let request = |allowed: &[TokenId]| GenRequest {
        allowed: Some(allowed.iter().copied().collect()),
        sampling: SamplingParams { seed: 7, ..SamplingParams::default() },
        ..greedy(&[11, 12, 13], 20)
    };
    let tokens = ask(&engine, request(&[5, 40])).tokens;
    assert_eq!(tokens.len(), 20);
    assert!(tokens.contains(&5) && tokens.contains(&40));
    assert!(tokens.iter().all(|token| [5, 40].contains(token)), "{tokens:?}");
    let none = ask(&engine, banning(request(&[5]), &[&[5]]));
    assert!(matches!(none.error, Some(GenerationError::NoCandidate { .. })), "{:?}", none.error);
}

#[test]
fn a_priority_needs_an_engine_that_has_an_order_of_them() {
    let request = || GenRequest { priority: -3, ..greedy(&[11], 2) };
    let (sink, _events) = channel();
    let refused = tiny(&config()).submit(request(), sink);
    assert_eq!(refused, Err(SubmitError::NoPriorities { asked: -3 }));
    let config = EngineConfig { scheduling: Scheduling::Priority, ..config() };
    assert_eq!(ask(&tiny(&config), request()).tokens.len(), 2);
}

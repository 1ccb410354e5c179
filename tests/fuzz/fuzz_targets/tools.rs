//! A model's output in each format of tool calls and reasoning: cutting it changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use taper_chat::{
    KnownTools, OutputParser, ParsedMessage, ParserOptions, ReasoningFormat, Tool, ToolFormat,
};
use taper_fuzz::text;

fuzz_target!(|data: &[u8]| {
    let [format, reasoning, seed, flags, rest @ ..] = data else { return };
    let text = text(rest);
    let (formats, reasonings) = (ToolFormat::names(), ReasoningFormat::names());
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        description: None,
        parameters: None,
        strict: None,
    };
    let known: Arc<[Tool]> = [tool("get_weather"), tool("bash")].into();
    let options = ParserOptions {
        tools: formats[usize::from(*format) % formats.len()].parse().expect("a known name"),
        reasoning: reasonings[usize::from(*reasoning) % reasonings.len()]
            .parse()
            .expect("a known name"),
        starts_in_reasoning: flags & 1 > 0,
        recovery: flags & 2 > 0,
        known_tools: if flags & 4 > 0 { KnownTools::any() } else { KnownTools::from(known) },
        id_seed: Some(1),
        ..ParserOptions::default()
    };
    let whole = OutputParser::parse(options.clone(), text);
    let mut parser = OutputParser::new(options);
    let mut cut = ParsedMessage::default();
    let mut random = u64::from(*seed);
    let mut rest = text;
    while !rest.is_empty() {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = rest.floor_char_boundary(1 + (random >> 33) as usize % 7).max(1);
        let (piece, tail) = rest.split_at(rest.ceil_char_boundary(at));
        parser.push(piece).into_iter().for_each(|delta| cut.apply(delta));
        rest = tail;
    }
    parser.finish().into_iter().for_each(|delta| cut.apply(delta));
    assert_eq!(whole, cut, "{text:?}");
});

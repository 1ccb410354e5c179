//! gpt-oss's channels.

use crate::{cuts_change_nothing, options};
use taper_chat::{OutputParser, ParsedMessage, ToolFormat};

#[track_caller]
fn parse(text: &str) -> ParsedMessage {
    let mut options = options("openai");
    options.reasoning = "openai_gptoss".parse().unwrap();
    cuts_change_nothing(&options, text);
    let whole = OutputParser::parse(options.clone(), text);
    // Channels are read without tools, too.
    if whole.tool_calls.is_empty() {
        options.tools = ToolFormat::NONE;
        assert_eq!(OutputParser::parse(options, text), whole);
    }
    whole
}

#[test]
fn every_channel_is_read() {
    let message = parse(
        "<|channel|>analysis<|message|>Two and two.\nFour.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.\n\nReally.<|return|>",
    );
    assert_eq!(message.reasoning.as_deref(), Some("Two and two.\nFour."));
    assert_eq!(message.content.as_deref(), Some("It is 4.\n\nReally."));
    // A preamble to the user is content; a call has its own channel.
    let message = parse(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
    );
    assert_eq!(message.reasoning.as_deref(), Some("Hm."));
    assert_eq!(message.content.as_deref(), Some("I look."));
    assert_eq!(
        (message.tool_calls[0].name.as_str(), message.tool_calls[0].arguments.as_str()),
        ("f", "{\"a\": 1}")
    );
    // The recipient before the channel; no constraint; two calls; an end that is missing.
    let message = parse(
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{\"a\": 1}<|call|><|start|>assistant<|channel|>analysis to=functions.f code<|message|>{\"a\": 2}",
    );
    let calls: Vec<_> = message.tool_calls.iter().map(|c| c.arguments.as_str()).collect();
    assert_eq!((calls, message.content), (vec!["{\"a\": 1}", "{\"a\": 2}"], None));
    // A new channel without an end; text without any channel.
    let message = parse("<|channel|>analysis<|message|>a<|channel|>final<|message|>b");
    assert_eq!((message.reasoning.as_deref(), message.content.as_deref()), (Some("a"), Some("b")));
    assert_eq!(parse("plain text").content.as_deref(), Some("plain text"));
}

#[test]
fn what_is_no_call_of_harmony_is_content() {
    for (text, content) in [
        (
            "<|channel|>commentary to=functions.nobody <|constrain|>json<|message|>{\"a\": 1}<|call|>",
            "{\"a\": 1}",
        ),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>none<|call|>", "none"),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{none}<|call|>",
            "{none}",
        ),
        ("<|channel|>fin", "<|channel|>fin"),
        ("<|channel|>final<|message|>a <|e", "a <|e"),
        ("<|channel|>final<|message|>a < b <|endless|>", "a < b <|endless|>"),
        ("<|channel|>\nfinal", "<|channel|>\nfinal"),
    ] {
        let message = parse(text);
        assert_eq!(
            (message.content.as_deref(), message.tool_calls.len()),
            (Some(content), 0),
            "{text}"
        );
    }
}

//! Chat templates: equality with Hugging Face transformers, and errors at load.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Map, Value, json};
use std::{fs, path::Path};
use taper_chat::{
    ChatError, ChatTemplate, Content, ContentPart, Message, Role, TemplateRequest, Tool, ToolCall,
};

fn data(name: &str) -> String {
    fs::read_to_string(Path::new("tests/data").join(name)).unwrap()
}

fn message(value: &Value) -> Message {
    let role = match value["role"].as_str().unwrap() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => panic!("role {other}"),
    };
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let calls = value["tool_calls"].as_array().cloned().unwrap_or_default();
    Message {
        role,
        content: text("content").map(Content::Text),
        name: None,
        reasoning_content: text("reasoning_content"),
        tool_calls: calls
            .iter()
            .map(|call| ToolCall {
                id: call["id"].as_str().unwrap().to_owned(),
                name: call["function"]["name"].as_str().unwrap().to_owned(),
                arguments: call["function"]["arguments"].to_string(),
            })
            .collect(),
        tool_call_id: text("tool_call_id"),
    }
}

fn tool(value: &Value) -> Tool {
    let function = &value["function"];
    Tool {
        name: function["name"].as_str().unwrap().to_owned(),
        description: function["description"].as_str().map(str::to_owned),
        parameters: Some(function["parameters"].clone()),
        strict: None,
    }
}

/// `golden.json` holds what `render.py` got from transformers.
#[test]
fn prompts_equal_those_of_transformers() {
    let input: Value = serde_json::from_str(&data("conversations.json")).unwrap();
    let golden: Map<String, Value> = serde_json::from_str(&data("golden.json")).unwrap();
    let all_tools: Vec<Tool> = input["tools"].as_array().unwrap().iter().map(tool).collect();
    let mut wrong = Vec::new();
    for (name, results) in &golden {
        let source = data(&format!("templates/{name}.jinja"));
        let template = ChatTemplate::from_source(&source, Some("<s>"), Some("</s>"))
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .at(1_709_210_096);
        let cases = input["cases"].as_array().unwrap();
        assert_eq!(cases.len(), results.as_array().unwrap().len());
        for (case, expected) in cases.iter().zip(results.as_array().unwrap()) {
            let conversation = &input["conversations"][case["conversation"].as_str().unwrap()];
            let messages: Vec<Message> =
                conversation.as_array().unwrap().iter().map(message).collect();
            let mut kwargs = case["kwargs"].as_object().cloned().unwrap_or_default();
            kwargs.insert("values".to_owned(), input["values"].clone());
            let got = template.render(&TemplateRequest {
                messages: &messages,
                tools: if case["tools"] == true { &all_tools } else { &[] },
                add_generation_prompt: case["add_generation_prompt"] != false
                    && case["continue_final_message"] != true,
                continue_final_message: case["continue_final_message"] == true,
                kwargs: &kwargs,
            });
            let got = match got {
                Ok(prompt) => json!({ "prompt": prompt }),
                Err(ChatError::TemplateRaised { message }) => json!({ "raised": message }),
                Err(error) => json!({ "failed": error.to_string() }),
            };
            if got != *expected {
                wrong.push(format!("{name} {case}\n  got  {got}\n  want {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, ChatError> {
    template.render(&TemplateRequest {
        messages,
        tools: &[],
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
    })
}

#[track_caller]
fn broken(source: &str, at_line: usize, doing: &str, because: &str) {
    match ChatTemplate::from_source(source, None, None) {
        Err(error @ ChatError::BrokenTemplate { .. }) => {
            let text = error.to_string();
            let ChatError::BrokenTemplate { line, while_doing, reason, .. } = error else { return };
            assert_eq!(line, at_line, "{text}");
            assert_eq!(while_doing, doing, "{text}");
            assert!(reason.contains(because), "{text}");
            assert!(text.contains(&format!("line {line}")) && text.contains(because), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn broken_templates_fail_at_load() {
    broken("a\n{% if %}", 2, "compiling", "syntax error");
    broken("a\n{% for m in messages %}", 2, "compiling", "syntax error");
    broken("\n\n{{ messages | frobnicate }}", 3, "one user message", "unknown filter");
    broken("{{ messages is frobnicated }}", 1, "one user message", "unknown test");
    broken("{{ frobnicate(messages) }}", 1, "one user message", "unknown function");
    broken("{{ messages[0].content.frobnicate() }}", 1, "one user message", "no method named");
    broken("{{ messages[0].x.y }}", 1, "one user message", "undefined");
    broken("{{ messages[0].x.y() }}", 1, "one user message", "undefined");
}

/// Conversations that nobody has asked for never keep a template from loading.
#[test]
fn what_a_template_cannot_do_is_the_requests_error() {
    let user = [Message::text(Role::User, "hi")];
    let system = "{% if messages[0].role == 'system' %}{{ messages[0].content.nope() }}{% endif %}";
    let template = ChatTemplate::from_source(system, None, None).unwrap();
    assert_eq!(render(&template, &user).unwrap(), "");
    let error = render(&template, &[Message::text(Role::System, "hi")]).unwrap_err();
    assert!(matches!(&error, ChatError::Render { line: 1, .. }), "{error}");
    assert!(error.to_string().contains("no method named nope"), "{error}");

    let nullable = "{{ messages[0].content }}{% for t in tools or [] %}{% for n, p in t.function.parameters.properties.items() %}{{ ' ' + n + ':' + p.type }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::from_source(nullable, None, None).unwrap();
    assert_eq!(render(&template, &user).unwrap(), "hi");
    let ask = |kind: Value| {
        let parameters = Some(json!({ "type": "object", "properties": { "n": { "type": kind } } }));
        let tools = [Tool { name: "f".to_owned(), description: None, parameters, strict: None }];
        template.render(&TemplateRequest {
            messages: &user,
            tools: &tools,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &Map::new(),
        })
    };
    assert_eq!(ask(json!("string")).unwrap(), "hi n:string");
    let error = ask(json!(["string", "null"])).unwrap_err();
    assert!(error.to_string().contains("unsupported operand"), "{error}");

    // A plain chat breaks, one with tools works.
    let only_tools = "{{ tools[0].function.name }}";
    assert!(ChatTemplate::from_source(only_tools, None, None).is_ok());
}

#[test]
fn parts_are_given_to_templates_that_go_through_them() {
    let loops = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endif %}{% endfor %}";
    let mut message = Message::text(Role::User, "");
    message.content = Some(Content::Parts(
        ["one ", " two"].map(|text| ContentPart::Text(text.to_owned())).to_vec(),
    ));
    let template = ChatTemplate::from_source(loops, None, None).unwrap();
    assert_eq!(render(&template, std::slice::from_ref(&message)).unwrap(), "<user>onetwo");
    let continued = template.render(&TemplateRequest {
        messages: std::slice::from_ref(&message),
        tools: &[],
        add_generation_prompt: false,
        continue_final_message: true,
        kwargs: &Map::new(),
    });
    assert!(matches!(continued, Ok(_) | Err(ChatError::NothingToContinue)), "{continued:?}");
    // The others get one text.
    for source in ["{{ messages[0].content }}", "{{ messages[0].content | tojson }}"] {
        let template = ChatTemplate::from_source(source, None, None).unwrap();
        let prompt = render(&template, std::slice::from_ref(&message)).unwrap();
        assert!(prompt.replace("\\n", "\n").contains("one \n two"), "{prompt}");
    }
}

#[test]
fn constants_that_multiply_a_little_are_fine() {
    let rules = ["{{ ('-' * 60) ~ ('=' * 60) ~ ('-' * 60) ~ ('=' * 60) }}", "{{ [1, 2] * 9 * 9 }}"];
    for source in rules {
        ChatTemplate::from_source(source, None, None).unwrap();
    }
}

/// Each would end the process or keep it busy for hours.
#[test]
fn templates_of_other_ill_will_end_in_an_error() {
    let many = "*l, ".repeat(100);
    let bodies = [
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.me = [{'a': ns}] %}{{ ns | tojson }}".to_owned(),
        "{% set ns = namespace(x=none) %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [{'a': 1, 'b': ns.x}] | groupby('a') %}{% endfor %}".to_owned(),
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}".to_owned(),
        "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ raise_exception(ns.a) }}".to_owned(),
        "{% set x = 'x' * 90000000 %}{{ ([x] * 1000) | upper }}".to_owned(),
        "{% set x = 'x' * 90000000 %}{{ ([x] * 1000) | pprint }}".to_owned(),
        "{% set x = 'x' * 90000000 %}{{ [].index([x] * 1000) }}".to_owned(),
        "{% set x = 'x' * 90000000 %}{{ ([x] * 1000) | map('upper') }}".to_owned(),
        "{% set x = 'x' * 90000000 %}{{ ([x] * 1000) | sum(start='') }}".to_owned(),
        "{{ [1] | batch(10000000000, 0) }}".to_owned(),
        "{{ [1] | slice(10000000000) }}".to_owned(),
        "{% set x = 'a,' * 60000000 %}{{ x.split(',') | length }}".to_owned(),
        "{% set x = 'a,' * 60000000 %}{{ x | list | length }}".to_owned(),
        format!("{{% set l = [0] * 5000000 %}}{{{{ dict({many} 1) }}}}"),
        "{% include 'default' %}".to_owned(),
        "{% import 'default' as d %}".to_owned(),
        "{{ '{:x<100000000}'.format('') }}".to_owned(),
        "{% set l = [0] * 9000000 %}{% for i in range(100000) %}{{ 1 in l }}{% endfor %}".to_owned(),
    ];
    for body in bodies {
        let source = format!("{{% if messages[0].content == 'now' %}}{body}{{% endif %}}");
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let start = std::time::Instant::now();
        let rendered = render(&template, &[Message::text(Role::User, "now")]);
        assert!(rendered.is_err(), "{body}: {:?}", rendered.map(|text| text.len()));
        assert!(start.elapsed().as_secs() < 40, "{body}: {:?}", start.elapsed());
    }
    for constant in
        ["{{ 'a' * 1e9 }}", "{{ (0,) * 100000000 }}", "{{ 'a' * (90000000 + 90000000) }}"]
    {
        let error = ChatTemplate::from_source(constant, None, None).unwrap_err();
        assert!(matches!(error, ChatError::BrokenTemplate { while_doing: "compiling", .. }));
    }
}

/// Each would take gigabytes. The conversation says when, so that loading does not notice.
#[test]
fn hostile_templates_end_in_an_error() {
    let bodies = [
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
        "{% set x = 'x' * 90000000 %}{% set ns = namespace(x=x, l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + [ns.x ~ i] %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x | replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = '%s%s' | format(ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
        "{% macro f(x, n) %}{% if n %}{{ f(x ~ x, n - 1) }}{% endif %}{% endmacro %}{{ f('xxxxxxxx', 64) }}",
        "{% set x = 'x' * 99999999 %}{{ [x] * 99 }}",
        "{{ 'x' * n * n * n * n }}",
        "{{ '%9999999999d' % n }}",
        "{{ '%*d' % (n * n * n, n) }}",
        "{{ '{:>9999999999}'.format(n) }}",
        "{{ 'x' | center(n * n * n) }}{{ 'x'.ljust(n * n * n) }}",
        "{{ ('x\n' * n * n) | indent(n * n) }}",
        "{% for i in range(n) %}{% for j in range(n) %}{{ 'xxxxxxxxxxxxxxxx' * n }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'x': ns.x} %}{% endfor %}",
        "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, 1) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x | reverse %}{% set ns.x = {'x': ns.x}.items() %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x | batch(1) %}{% endfor %}",
    ];
    for body in bodies {
        let source = format!(
            "{{% if messages[0].content == 'now' %}}{{% set n = 9999 %}}{body}{{% endif %}}"
        );
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let error = render(&template, &[Message::text(Role::User, "now")]).unwrap_err();
        assert!(matches!(error, ChatError::TemplateOutOfMemory { .. }), "{body}: {error:?}");
        assert!(error.to_string().contains("256 MiB"), "{error}");
    }
    // One that computes its constants while it compiles.
    for constant in ["{{ ('x' * 99999999) ~ ('x' * 99999999) }}", "{{ ['x' * 99999999] * 99 }}"] {
        let error = ChatTemplate::from_source(constant, None, None).unwrap_err();
        assert!(matches!(error, ChatError::BrokenTemplate { while_doing: "compiling", .. }));
    }
}

/// As `TemplateReference` of Jinja2, which has the blocks of the template and nothing else.
#[test]
fn what_is_asked_of_the_template_itself_is_undefined() {
    let source =
        "{{ self.MESSAGE }}{{ self is defined }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    assert_eq!(render(&template, &[Message::text(Role::User, "a")]).unwrap(), "Truea");
}

#[test]
fn refusals_are_no_faults() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    assert_eq!(render(&template, &[Message::text(Role::User, "hi")]).unwrap(), "hi");
    let error = render(&template, &[Message::text(Role::System, "hi")]).unwrap_err();
    assert!(
        matches!(&error, ChatError::TemplateRaised { message } if message == "System role not supported")
    );
    assert_eq!(
        error.to_string(),
        "the chat template refuses this conversation: System role not supported"
    );
    let always = "{{ raise_exception('no') }}";
    assert!(ChatTemplate::from_source(always, None, None).is_ok());
}

#[test]
fn endless_templates_end() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    broken(endless, 1, "one user message", "ran out of fuel");
    // Not found by a probe: the error comes with the request.
    let source = format!("{{% if messages[0].content == 'loop' %}}{endless}{{% endif %}}");
    let template = ChatTemplate::from_source(&source, None, None).unwrap();
    let error = render(&template, &[Message::text(Role::User, "loop")]).unwrap_err();
    assert!(matches!(error, ChatError::TemplateOutOfFuel { .. }), "{error}");
}

#[test]
fn long_conversations_are_not_endless() {
    let template = ChatTemplate::from_source(&data("templates/qwen3.jinja"), None, None).unwrap();
    let turn = [Message::text(Role::User, "q"), Message::text(Role::Assistant, "a")];
    let messages: Vec<Message> = turn.iter().cycle().take(5000).cloned().collect();
    assert!(render(&template, &messages).unwrap().len() > 100_000);
}

#[test]
fn templates_get_what_they_take() {
    // Content as parts only.
    let source =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    assert_eq!(render(&template, &[Message::text(Role::User, "hi")]).unwrap(), "hi");
    // Arguments as text only.
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    assert!(!template.supports_tools());
    let mut call = Message::text(Role::Assistant, "");
    let arguments = "{\"a\":  1}".to_owned();
    call.tool_calls = vec![ToolCall { id: "call_1".to_owned(), name: "f".to_owned(), arguments }];
    assert_eq!(render(&template, &[call.clone()]).unwrap(), "<{\"a\":  1}>");
    // Ids of nine characters only.
    let template =
        ChatTemplate::from_source(&data("templates/mistral.jinja"), Some(""), Some("")).unwrap();
    assert!(template.supports_tools());
    call.tool_calls[0].id = "call_0123456789abcdefABCDEF00".to_owned();
    let prompt = render(&template, &[Message::text(Role::User, "x"), call.clone()]).unwrap();
    assert!(prompt.contains(r#""id": "fABCDEF00""#), "{prompt}");
    call.tool_calls[0].id = "a-b".to_owned();
    let prompt = render(&template, &[Message::text(Role::User, "x"), call]).unwrap();
    assert!(prompt.contains(r#""id": "0000000ab""#), "{prompt}");
    // "developer" where the template knows it; no content is empty content.
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content + '' }};{% endfor %}";
    let mut developer = Message::text(Role::Developer, "x");
    developer.content = None;
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    assert_eq!(render(&template, std::slice::from_ref(&developer)).unwrap(), "system:;");
    let template =
        ChatTemplate::from_source(&format!("{{# developer #}}{source}"), None, None).unwrap();
    assert_eq!(render(&template, &[developer]).unwrap(), "developer:;");
}

#[test]
fn continuing_the_final_message() {
    let source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    let template = ChatTemplate::from_source(source, None, None).unwrap();
    let ask = |content: Option<&str>, add_generation_prompt: bool| {
        let mut message = Message::text(Role::Assistant, "");
        message.content = content.map(|c| Content::Text(c.to_owned()));
        template.render(&TemplateRequest {
            messages: &[Message::text(Role::User, "q"), message],
            tools: &[],
            add_generation_prompt,
            continue_final_message: true,
            kwargs: &Map::new(),
        })
    };
    assert_eq!(ask(Some("Sure, "), false).unwrap(), "[q][Sure,");
    assert!(matches!(ask(Some("x"), true), Err(ChatError::GenerationPromptAndContinue)));
    assert!(matches!(ask(None, false), Err(ChatError::NothingToContinue)));
}

#[test]
fn where_templates_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let hi = [Message::text(Role::User, "hi")];
    let loaded = || ChatTemplate::load(dir.path());

    assert!(matches!(loaded(), Err(ChatError::NoTemplate { .. })));
    put("tokenizer_config.json", "{");
    assert!(
        matches!(loaded(), Err(ChatError::Json { path, .. }) if path.ends_with("tokenizer_config.json"))
    );
    put("tokenizer_config.json", r#"{"chat_template": 5}"#);
    assert!(
        matches!(loaded(), Err(ChatError::TemplateShape { path }) if path.ends_with("tokenizer_config.json"))
    );
    put("tokenizer_config.json", r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#);
    assert!(matches!(loaded(), Err(ChatError::TemplateShape { .. })));

    put(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}<&>"}"#,
    );
    put("special_tokens_map.json", r#"{"bos_token": "old", "eos_token": "</s>"}"#);
    assert_eq!(render(&loaded().unwrap(), &hi).unwrap(), "<s></s>hi<&>");

    put(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].function.name }}"}]}"#,
    );
    let template = loaded().unwrap();
    assert!(template.supports_tools());
    assert_eq!(render(&template, &hi).unwrap(), "plain");
    let tools =
        [Tool { name: "f".to_owned(), description: None, parameters: None, strict: Some(true) }];
    let request = TemplateRequest {
        messages: &hi,
        tools: &tools,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
    };
    assert_eq!(template.render(&request).unwrap(), "f");
    assert_eq!(
        serde_json::to_value(&tools[0]).unwrap(),
        json!({ "type": "function", "function": { "name": "f", "strict": true } })
    );

    put("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(render(&loaded().unwrap(), &hi).unwrap(), "json");
    put("chat_template.jinja", "jinja {{ messages[0].content }}\n");
    assert_eq!(render(&loaded().unwrap(), &hi).unwrap(), "jinja hi");
    // A file of its own has the same special tokens.
    let other = dir.path().join("other.jinja");
    put("other.jinja", "{{ bos_token }}{{ unk_token }}|{{ messages[0].content }}");
    put("tokenizer_config.json", r#"{"bos_token": null, "unk_token": "<unk>"}"#);
    put("special_tokens_map.json", r#"{"bos_token": "<s>"}"#);
    let template = ChatTemplate::load_file(&other, dir.path()).unwrap();
    assert_eq!(render(&template, &hi).unwrap(), "<s><unk>|hi");

    put("chat_template.jinja", "\n{{ nope() }}");
    let error = loaded().unwrap_err();
    assert!(
        matches!(&error, ChatError::BrokenTemplate { file, line: 2, .. } if file.ends_with("chat_template.jinja"))
    );
    assert!(error.to_string().contains("chat_template.jinja, line 2: "), "{error}");
}

//! The document as a page: plain HTML that loads and runs nothing.

use serde_json::Value;
use std::fmt::Write;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width\"><title>Taper API</title><style>\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem}code{font-family:ui-monospace,monospace}details{border:1px solid #8886;border-radius:6px;\
margin:.4rem 0;padding:.4rem .8rem}summary{cursor:pointer}table{border-collapse:collapse;width:100%;\
margin:.5rem 0}td,th{border-bottom:1px solid #8884;padding:.25rem .6rem .25rem 0;text-align:left;\
vertical-align:top}.m{display:inline-block;min-width:3.2rem;font-weight:600}</style></head><body>\n";

/// Renders a document of [`super::build`].
pub(super) fn render(document: &Value) -> String {
    let mut page = String::from(HEAD);
    let info = &document["info"];
    line(&mut page, &format!("<h1>{} {}</h1>", text(&info["title"]), text(&info["version"])));
    line(&mut page, &format!("<p>{}</p>", text(&info["description"])));
    line(
        &mut page,
        "<p>For programs: <a href=\"/openapi.json\">/openapi.json</a></p><h2>Routes</h2>",
    );
    let mut tag = &Value::Null;
    for (path, methods) in members(&document["paths"]) {
        for (method, operation) in members(methods) {
            let own = &operation["tags"][0];
            if own != tag {
                line(&mut page, &format!("<h3>{}</h3>", text(own)));
                tag = own;
            }
            render_operation(&mut page, method, path, operation, document);
        }
    }
    line(&mut page, "<h2>Schemas</h2>");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let name = escaped(name);
        line(
            &mut page,
            &format!("<details id=\"{name}\" open><summary><code>{name}</code></summary>"),
        );
        render_schema(&mut page, schema);
        line(&mut page, "</details>");
    }
    page + "</body></html>\n"
}

fn render_operation(
    page: &mut String,
    method: &str,
    path: &str,
    operation: &Value,
    document: &Value,
) {
    let (method, path) = (method.to_uppercase(), escaped(path));
    let summary = text(&operation["summary"]);
    line(
        page,
        &format!(
            "<details><summary><span class=\"m\">{method}</span> <code>{path}</code> {summary}</summary>"
        ),
    );
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        line(page, &format!("<p>Body: {}</p>", kind(body)));
    }
    line(page, "<table><tr><th>Status</th><th>Response</th></tr>");
    for (status, response) in members(&operation["responses"]) {
        let shared = &document["components"]["responses"][status];
        let response = if response.get("$ref").is_some() { shared } else { response };
        let contents = members(&response["content"]);
        let contents = contents
            .map(|(mime, content)| format!("<code>{mime}</code> {}", kind(&content["schema"])));
        let contents = contents.collect::<Vec<_>>().join(", ");
        let description = text(&response["description"]);
        line(page, &format!("<tr><td>{status}</td><td>{description}<br>{contents}</td></tr>"));
    }
    line(page, "</table></details>");
}

fn render_schema(page: &mut String, schema: &Value) {
    let description = text(&schema["description"]);
    if !description.is_empty() {
        line(page, &format!("<p>{description}</p>"));
    }
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    if schema["properties"].is_null() {
        return line(page, &format!("<p>{}</p>", kind(schema)));
    }
    line(page, "<table><tr><th>Field</th><th>Type</th><th></th></tr>");
    for (name, field) in members(&schema["properties"]) {
        let must = required.iter().any(|required| *required == name);
        let must = if must { " (always)" } else { "" };
        let (name, kind, description) = (escaped(name), kind(field), text(&field["description"]));
        line(
            page,
            &format!(
                "<tr><td><code>{name}</code>{must}</td><td>{kind}</td><td>{description}</td></tr>"
            ),
        );
    }
    line(page, "</table>");
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        let name = escaped(name);
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(options) = schema[key].as_array() {
            return options.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    for key in ["const", "enum"] {
        if !schema[key].is_null() {
            return format!("<code>{}</code>", escaped(&schema[key].to_string()));
        }
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => escaped(name),
        Value::Array(names) => {
            let one = |name: &Value| match name.as_str() {
                Some("array") => format!("list of {}", kind(&schema["items"])),
                name => escaped(name.unwrap_or_default()),
            };
            // Everything may be null.
            let names = names.iter().filter(|name| *name != "null");
            names.map(one).collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_owned(),
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

fn line(page: &mut String, html: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "{html}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_in_words() {
        for (schema, words) in [
            (json!({ "$ref": "#/components/schemas/A" }), "<a href=\"#A\">A</a>"),
            (
                json!({ "type": ["array", "null"], "items": { "type": "integer" } }),
                "list of integer",
            ),
            (
                json!({ "anyOf": [{ "type": "string" }, { "enum": ["a<"] }] }),
                "string or <code>[&quot;a&lt;&quot;]</code>",
            ),
            (json!({}), "any"),
        ] {
            assert_eq!(kind(&schema), words);
        }
    }
}

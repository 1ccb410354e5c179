//! Formats of strings, each as an expression that matches only what every validator takes.
//!
//! They are narrower than the RFCs: what is left out is a text that an output cannot have, while one
//! too many would be an output that does not validate.

const DATE: &str = concat!(
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    // Leap years.
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
const TIME: &str = concat!(
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);
const LABEL: &str = r"[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,20}){0,2}";
const OCTET: &str = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const HEX: &str = r"[0-9a-fA-F]{1,4}";

/// Formats that JSON Schema defines and that have no expression here.
const KNOWN: [&str; 11] = [
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
    "color",
    "phone",
];

/// What a format means.
pub(crate) enum Format {
    /// The whole string must match.
    Expression(String),
    /// It is not supported.
    Unsupported,
    /// Nobody defines it: it is a note to the reader.
    Annotation,
}

/// Looks a format up.
pub(crate) fn format(name: &str) -> Format {
    Format::Expression(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => concat!(
            r"P(?:[0-9]{1,6}W|[0-9]{1,6}D|[0-9]{1,4}M(?:[0-9]{1,4}D)?",
            r"|[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?",
            r"|T(?:[0-9]{1,6}S|[0-9]{1,6}M(?:[0-9]{1,4}S)?",
            r"|[0-9]{1,6}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?))",
        )
        .to_owned(),
        "email" => format!(
            r"[a-zA-Z0-9_+]{{1,20}}(?:[.-][a-zA-Z0-9_+]{{1,20}}){{0,2}}@{LABEL}(?:\.{LABEL}){{1,2}}"
        ),
        "hostname" => format!(r"{LABEL}(?:\.{LABEL}){{0,2}}"),
        "ipv4" => format!(r"{OCTET}(?:\.{OCTET}){{3}}"),
        "ipv6" => {
            let around = (1..=6).map(|n| {
                let after = 7 - n;
                format!(r"|(?:{HEX}:){{{n}}}(?::{HEX}){{1,{after}}}|(?:{HEX}:){{{n}}}:")
            });
            let around: String = around.collect();
            format!(r"(?:(?:{HEX}:){{7}}{HEX}|::(?:{HEX}:){{0,5}}{HEX}|::{around})")
        }
        "uuid" => r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "uri" => format!(
            concat!(
                r"(?:[a-z][a-z0-9]{{1,15}}://{label}(?:\.{label}){{0,3}}(?::[1-9][0-9]{{0,3}})?",
                r"(?:/[a-zA-Z0-9._~-]*)*(?:\?[a-zA-Z0-9=&._~-]*)?(?:#[a-zA-Z0-9._~-]*)?",
                r"|mailto:[a-zA-Z0-9]{{1,20}}@{label}(?:\.{label}){{1,2}})",
            ),
            label = LABEL
        ),
        name if KNOWN.contains(&name) => return Format::Unsupported,
        _ => return Format::Annotation,
    })
}

//! What can go wrong between messages and tokens.

use std::path::PathBuf;

/// Every error of this crate. Loading errors name the file.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file is not the JSON that it should be.
    #[error("{} is not valid: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// `tokenizer.json` does not describe a tokenizer.
    #[error("{} is not a tokenizer: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizers library's own error.
        #[source]
        source: tokenizers::Error,
    },
    /// The tokenizer decodes in a way that cannot be streamed.
    #[error("{} uses the decoder {decoder}, which cannot be streamed", path.display())]
    UnsupportedDecoder {
        /// The file.
        path: PathBuf,
        /// Type of the decoder, as `tokenizer.json` names it.
        decoder: &'static str,
    },
    /// The tokenizer refused a text or a token.
    #[error("the tokenizer failed: {source}")]
    Tokenization {
        /// The tokenizers library's own error.
        #[source]
        source: tokenizers::Error,
    },
    /// No file of the model holds a chat template.
    #[error(
        "{} has no chat template: neither chat_template.jinja, chat_template.json nor \"chat_template\" in tokenizer_config.json",
        dir.display()
    )]
    NoTemplate {
        /// The model's directory.
        dir: PathBuf,
    },
    /// `chat_template` in a JSON file is neither a text nor a list of named texts with a "default".
    #[error("\"chat_template\" in {} is neither a text nor a list with a \"default\"", path.display())]
    TemplateShape {
        /// The file.
        path: PathBuf,
    },
    /// The template does not compile, or broke on a probe conversation.
    #[error("{}, line {line}: the chat template is broken ({while_doing}): {reason}", file.display())]
    BrokenTemplate {
        /// The file, or `chat template` for one given as text.
        file: PathBuf,
        /// Line in the template, counted from 1; 0 if unknown.
        line: usize,
        /// Compiling, or the probe conversation that was rendered.
        while_doing: &'static str,
        /// The template engine's words.
        reason: String,
        /// The template engine's own error.
        #[source]
        source: minijinja::Error,
    },
    /// The template called `raise_exception`: it does not take this conversation.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's words.
        message: String,
    },
    /// The template broke on this conversation.
    #[error("the chat template failed at line {line}: {reason}")]
    Render {
        /// Line in the template, counted from 1; 0 if unknown.
        line: usize,
        /// The template engine's words.
        reason: String,
        /// The template engine's own error.
        #[source]
        source: minijinja::Error,
    },
    /// The template ran for too long, as an endless loop would.
    #[error("the chat template did not end within {fuel} steps")]
    TemplateOutOfFuel {
        /// The limit.
        fuel: u64,
        /// The template engine's own error.
        #[source]
        source: minijinja::Error,
    },
    /// The template makes more or longer texts, lists and maps than a prompt can need.
    #[error("the chat template needs more than {limit} MiB at line {line}: {source}")]
    TemplateOutOfMemory {
        /// Line in the template, counted from 1; 0 if unknown.
        line: usize,
        /// The limit in MiB.
        limit: usize,
        /// The template engine's own error.
        #[source]
        source: minijinja::Error,
    },
    /// `add_generation_prompt` and `continue_final_message` exclude each other.
    #[error("add_generation_prompt and continue_final_message cannot both be set")]
    GenerationPromptAndContinue,
    /// There is no final message with text to continue, or the template leaves its text out.
    #[error("continue_final_message is set, but the final message has no text in the prompt")]
    NothingToContinue,
    /// No parser has this name.
    #[error("there is no {kind} named {name:?}; choose from {}", choices.join(", "))]
    UnknownFormat {
        /// What was to be chosen.
        kind: &'static str,
        /// The name given.
        name: String,
        /// The names there are.
        choices: Vec<&'static str>,
    },
    /// A stop string is empty, so that it would match at once.
    #[error("a stop string must not be empty")]
    EmptyStopString,
    /// Stop strings that would take too much memory.
    #[error("the stop strings have {bytes} bytes together; at most {limit} are allowed")]
    LongStopStrings {
        /// Bytes of all of them.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

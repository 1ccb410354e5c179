//! Why a grammar cannot be used.

/// Why what an output should match is not a grammar here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A part of a JSON schema that is not supported.
    #[error("{detail} is not supported (at {pointer})")]
    Unsupported {
        /// JSON pointer to the schema's place, as a URI fragment.
        pointer: String,
        /// What is not supported.
        detail: String,
    },
    /// A part of a JSON schema that is wrong, or that nothing can match.
    #[error("{detail} (at {pointer})")]
    Schema {
        /// JSON pointer to the schema's place, as a URI fragment.
        pointer: String,
        /// What is wrong.
        detail: String,
    },
    /// An error in the parameters of a tool.
    #[error("{source}")]
    Tool {
        /// Its index among the tools.
        index: usize,
        /// What is wrong.
        #[source]
        source: Box<GrammarError>,
    },
    /// A regular expression, a grammar or a list of choices that is wrong.
    #[error("{0}")]
    Syntax(String),
    /// There is more of it than is taken.
    #[error("{what} must be at most {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// It could not be prepared in time.
    #[error("the grammar took more than {seconds} seconds to prepare")]
    TooSlow {
        /// The limit.
        seconds: u64,
    },
    /// Too many grammars are being prepared at once. Try again later.
    #[error("too many grammars are being prepared at once")]
    Busy,
    /// Calls in this format cannot be constrained.
    #[error(
        "tool calls in the format {format} cannot be constrained: use the tool choice 'auto', \
         without strict tools and without another format of the output"
    )]
    Format {
        /// Name of the format.
        format: &'static str,
    },
    /// The tokenizer gives no vocabulary that can be masked.
    #[error("this model's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
}

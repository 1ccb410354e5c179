//! Languages whose definitions are found: their grammars, and the kinds of nodes that define.

use tree_sitter::Language;

/// A language.
pub(super) struct Lang {
    pub(super) name: &'static str,
    suffixes: &'static [&'static str],
    /// Programs that `#!` lines name.
    programs: &'static [&'static str],
    pub(super) grammar: fn() -> Language,
    /// Kinds of nodes that are one chunk.
    pub(super) leaves: &'static [&'static str],
    /// Kinds of nodes that hold definitions.
    pub(super) containers: &'static [&'static str],
}

macro_rules! languages {
    ($($name:literal $suffixes:expr, $programs:expr, $grammar:expr, $leaves:expr, $containers:expr;)*) => {
        static LANGUAGES: &[Lang] = &[$(Lang {
            name: $name,
            suffixes: &$suffixes,
            programs: &$programs,
            grammar: || $grammar.into(),
            leaves: &$leaves,
            containers: &$containers,
        }),*];
    };
}

const NO: [&str; 0] = [];
/// Definitions of JavaScript; a variable is one if its value is a function.
const JS_LEAVES: [&str; 4] = [
    "function_declaration",
    "generator_function_declaration",
    "method_definition",
    "variable_declarator",
];
const TS_LEAVES: [&str; 8] = [
    "function_declaration",
    "generator_function_declaration",
    "method_definition",
    "variable_declarator",
    "type_alias_declaration",
    "enum_declaration",
    "function_signature",
    "abstract_method_signature",
];
const TS_CONTAINERS: [&str; 5] = [
    "class_declaration",
    "abstract_class_declaration",
    "interface_declaration",
    "internal_module",
    "module",
];
const C_LEAVES: [&str; 5] = [
    "function_definition",
    "struct_specifier",
    "union_specifier",
    "enum_specifier",
    "preproc_function_def",
];
const CPP_LEAVES: [&str; 4] =
    ["function_definition", "union_specifier", "enum_specifier", "preproc_function_def"];

languages! {
    "rust" ["rs"], NO, tree_sitter_rust::LANGUAGE,
        ["function_item", "function_signature_item", "struct_item", "enum_item", "union_item",
         "macro_definition", "type_item"],
        ["impl_item", "trait_item", "mod_item"];
    "python" ["py", "pyi", "pyw"], ["python", "python3"], tree_sitter_python::LANGUAGE,
        ["function_definition"], ["class_definition"];
    "javascript" ["js", "jsx", "mjs", "cjs"], ["node"], tree_sitter_javascript::LANGUAGE,
        JS_LEAVES, ["class_declaration", "class"];
    "typescript" ["ts", "mts", "cts"], ["deno", "bun"], tree_sitter_typescript::LANGUAGE_TYPESCRIPT,
        TS_LEAVES, TS_CONTAINERS;
    "tsx" ["tsx"], NO, tree_sitter_typescript::LANGUAGE_TSX, TS_LEAVES, TS_CONTAINERS;
    "go" ["go"], NO, tree_sitter_go::LANGUAGE,
        ["function_declaration", "method_declaration", "type_spec"], NO;
    "c" ["c", "h"], NO, tree_sitter_c::LANGUAGE, C_LEAVES, NO;
    "cpp" ["cc", "cpp", "cxx", "hpp", "hh", "hxx", "cu", "cuh", "metal"], NO,
        tree_sitter_cpp::LANGUAGE,
        CPP_LEAVES, ["class_specifier", "struct_specifier", "namespace_definition"];
    "java" ["java"], NO, tree_sitter_java::LANGUAGE,
        ["method_declaration", "constructor_declaration", "enum_declaration"],
        ["class_declaration", "interface_declaration", "record_declaration",
         "annotation_type_declaration"];
    "ruby" ["rb", "rake"], ["ruby"], tree_sitter_ruby::LANGUAGE,
        ["method", "singleton_method"], ["class", "module", "singleton_class"];
    "c-sharp" ["cs"], NO, tree_sitter_c_sharp::LANGUAGE,
        ["method_declaration", "constructor_declaration", "enum_declaration",
         "delegate_declaration", "operator_declaration"],
        ["class_declaration", "interface_declaration", "struct_declaration",
         "record_declaration", "namespace_declaration"];
    "bash" ["sh", "bash"], ["sh", "bash", "dash", "zsh"], tree_sitter_bash::LANGUAGE,
        ["function_definition"], NO;
    "php" ["php"], ["php"], tree_sitter_php::LANGUAGE_PHP,
        ["function_definition", "method_declaration", "enum_declaration"],
        ["class_declaration", "interface_declaration", "trait_declaration"];
    "swift" ["swift"], NO, tree_sitter_swift::LANGUAGE,
        ["function_declaration", "init_declaration", "protocol_function_declaration"],
        ["class_declaration", "protocol_declaration"];
}

/// The language of a file with this suffix in lower case, or of a script with this first line.
pub(super) fn of(suffix: &str, first_line: &str) -> Option<&'static Lang> {
    if !suffix.is_empty() {
        return LANGUAGES.iter().find(|lang| lang.suffixes.contains(&suffix));
    }
    let mut words = first_line.strip_prefix("#!")?.split(['/', ' ']).rev();
    words.find_map(|word| LANGUAGES.iter().find(|lang| lang.programs.contains(&word)))
}

pub(super) fn names() -> Vec<&'static str> {
    LANGUAGES.iter().map(|lang| lang.name).collect()
}

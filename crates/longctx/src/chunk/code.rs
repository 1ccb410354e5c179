//! Definitions of code, by tree-sitter.

use super::{Chunk, ChunkKind, count, languages::Lang, window::windows};
use std::{
    cell::RefCell,
    collections::HashMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};
use tree_sitter::{Node, ParseOptions, Parser, Tree};

/// Longer definitions are cut into windows.
const LONG: u32 = 80;

/// In longer functions, definitions inside are searched for too.
const HUGE: u32 = 200;

/// A file that takes longer to parse is cut into windows.
const PATIENCE: Duration = Duration::from_secs(2);

/// Definitions inside of one another that are told apart.
const MAX_DEPTH: u32 = 24;

/// Nodes around one definition, which begin and end with it.
const WRAPPERS: [&str; 8] = [
    "ambient_declaration",
    "declaration",
    "decorated_definition",
    "export_statement",
    "lexical_declaration",
    "template_declaration",
    "type_declaration",
    "variable_declaration",
];

/// Bytes of a signature or of a documentation that are kept.
const MAX_SIGNATURE: usize = 600;
const MAX_DOC: usize = 4 << 10;

/// A definition in a file. Lines are from 1, and the last belongs to it.
struct Definition {
    start: u32,
    end: u32,
    is_leaf: bool,
    name: String,
    parent: String,
    signature: String,
    doc: String,
}

/// The chunks of a source, unless its grammar cannot be used or parsing takes too long.
pub(super) fn chunks(lang: &'static Lang, text: &str, lines: &[&str]) -> Option<Vec<Chunk>> {
    let tree = parse(lang, text)?;
    let mut finder = Finder { lang, text, found: Vec::new() };
    finder.descend(tree.root_node(), "", 0, None);
    let mut found = finder.found;
    found.sort_by_key(|d| (d.start, std::cmp::Reverse(d.end)));
    let mut chunks = Vec::new();
    let top = Chunk::text(0, 0, "");
    cut(lines, (1, count(lines)), &top, &mut found.into_iter().peekable(), &mut chunks);
    Some(chunks)
}

thread_local! {
    static PARSERS: RefCell<HashMap<&'static str, Parser>> = RefCell::default();
}

fn parse(lang: &'static Lang, text: &str) -> Option<Tree> {
    PARSERS.with_borrow_mut(|parsers| {
        let parser = parsers.entry(lang.name).or_default();
        if parser.language().is_none() {
            parser.set_language(&(lang.grammar)()).ok()?;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut progress = |_: &_| match Instant::now() < deadline {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        let options = ParseOptions::new().progress_callback(&mut progress);
        let bytes = text.as_bytes();
        let mut read = |at: usize, _| bytes.get(at..).unwrap_or_default();
        let tree = parser.parse_with_options(&mut read, None, Some(options));
        if tree.is_none() {
            // Otherwise the next parse goes on with this text.
            parser.reset();
        }
        tree
    })
}

type Definitions = std::iter::Peekable<std::vec::IntoIter<Definition>>;

/// Cuts the lines of one range: definitions in it, and windows of what is between them.
fn cut(
    lines: &[&str],
    (first, last): (u32, u32),
    like: &Chunk,
    definitions: &mut Definitions,
    out: &mut Vec<Chunk>,
) {
    let mut at = first;
    // The head of a container is named for it, and what follows a definition is not.
    let mut own = like.clone();
    while let Some(next) = definitions.next_if(|d| d.start <= last) {
        // Two on one line, or one inside of a leaf: the first has it.
        if next.start < at {
            continue;
        }
        windows(lines, at, next.start - 1, &own, out);
        if at > first || next.start > first {
            own = rest_of(like);
        }
        let end = next.end.min(last);
        let chunk = Chunk {
            start: 0,
            end: 0,
            kind: if next.is_leaf { ChunkKind::Function } else { ChunkKind::Class },
            name: next.name,
            parent: next.parent,
            signature: next.signature,
            doc: next.doc,
        };
        if next.is_leaf && end - next.start < LONG {
            out.push(Chunk { start: next.start, end, ..chunk });
        } else if next.is_leaf {
            let from = out.len();
            windows(lines, next.start, end, &chunk, out);
            // The documentation is in the first.
            out[from..].iter_mut().skip(1).for_each(|c| c.doc.clear());
        } else {
            cut(lines, (next.start, end), &chunk, definitions, out);
        }
        at = end + 1;
    }
    windows(lines, at, last, &own, out);
}

/// Lines of a container that are not its head.
fn rest_of(like: &Chunk) -> Chunk {
    let mut parent = like.parent.clone();
    join(&mut parent, &like.name);
    Chunk::text(0, 0, &parent)
}

fn join(path: &mut String, name: &str) {
    if !path.is_empty() && !name.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Where a definition begins, and the comments above it.
#[derive(Clone)]
struct Beginning {
    /// From 0.
    row: usize,
    doc: String,
}

struct Finder<'a> {
    lang: &'static Lang,
    text: &'a str,
    found: Vec<Definition>,
}

impl Finder<'_> {
    /// Finds the definitions below a node. `outer` is the beginning of a wrapper whose definition is
    /// among the children.
    fn descend(&mut self, node: Node<'_>, parent: &str, depth: u32, outer: Option<&Beginning>) {
        if depth > MAX_DEPTH {
            return;
        }
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
        for (at, child) in children.iter().enumerate().filter(|(_, c)| c.is_named()) {
            let kind = child.kind();
            let is_leaf = self.lang.leaves.contains(&kind) && is_definition(*child);
            let wraps = WRAPPERS.contains(&kind);
            let own = || match (at, node.prev_sibling()) {
                // Ruby's first comment stands before the body that it begins.
                (0, Some(above)) if node.kind() == "body_statement" => {
                    self.beginning(&[above], *child)
                }
                _ => self.beginning(&children[..at], *child),
            };
            if is_leaf || (self.lang.containers.contains(&kind) && is_definition(*child)) {
                let beginning = outer.cloned().unwrap_or_else(own);
                self.define(*child, parent, is_leaf, depth, beginning);
            } else if wraps {
                let beginning = outer.cloned().unwrap_or_else(own);
                self.descend(*child, parent, depth + 1, Some(&beginning));
            } else if child.end_position().row > child.start_position().row {
                self.descend(*child, parent, depth + 1, None);
            }
        }
    }

    fn define(
        &mut self,
        node: Node<'_>,
        parent: &str,
        is_leaf: bool,
        depth: u32,
        beginning: Beginning,
    ) {
        let name = self.name_of(node);
        let (start, mut doc) = (line(beginning.row), beginning.doc);
        let last = node.end_position();
        let end = (line(last.row) - u32::from(last.column == 0)).max(start);
        let is_leaf = is_leaf && end - start < HUGE;
        doc.push_str(self.docstring(node));
        let mut inner = parent.to_owned();
        join(&mut inner, &name);
        let (parent, signature) = (parent.to_owned(), self.signature(node));
        self.found.push(Definition { start, end, is_leaf, name, parent, signature, doc });
        if !is_leaf {
            self.descend(node, &inner, depth + 1, None);
        }
    }

    /// Where a definition begins with its decorators and the comments above it.
    fn beginning(&self, before: &[Node<'_>], node: Node<'_>) -> Beginning {
        let mut row = node.start_position().row;
        let mut doc = Vec::new();
        for (at, above) in before.iter().enumerate().rev() {
            let kind = above.kind();
            let is_comment = kind.contains("comment");
            let attached = is_comment || kind.contains("attribute") || kind.contains("decorator");
            // A comment behind the code of a line belongs to that.
            let alone = at == 0 || last_row(before[at - 1]) < above.start_position().row;
            if !attached || last_row(*above) + 1 < row || !alone {
                break;
            }
            if is_comment {
                doc.push(self.slice(above.start_byte(), above.end_byte(), MAX_DOC));
            }
            row = above.start_position().row;
        }
        let doc = doc.into_iter().rev().flat_map(|text| [text, "\n"]).collect();
        Beginning { row, doc }
    }

    /// Python's documentation: a string that is the first statement.
    fn docstring(&self, node: Node<'_>) -> &str {
        let body = node.child_by_field_name("body");
        let first = body.and_then(|b| b.named_child(0));
        let string = first
            .map(|f| f.named_child(0).filter(|_| f.kind() == "expression_statement").unwrap_or(f));
        match string {
            Some(s) if self.lang.name == "python" && s.kind() == "string" => {
                self.slice(s.start_byte(), s.end_byte(), MAX_DOC)
            }
            _ => "",
        }
    }

    fn signature(&self, node: Node<'_>) -> String {
        let body = ["body", "value"].iter().find_map(|field| node.child_by_field_name(field));
        let end = body.map_or(node.end_byte(), |body| body.start_byte());
        let text = self.slice(node.start_byte(), end, MAX_SIGNATURE);
        // Without a body, its first line says most.
        let text = if body.is_some() { text } else { text.lines().next().unwrap_or("") };
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").trim_end_matches(['{', ' ', '=']).to_owned()
    }

    fn name_of(&self, node: Node<'_>) -> String {
        let text = |n: Node<'_>| self.slice(n.start_byte(), n.end_byte(), 200).to_owned();
        if let Some(name) = node.child_by_field_name("name") {
            return text(name);
        }
        // Rust's `impl Trait for Type`.
        if let Some(of) = node.child_by_field_name("type").filter(|_| node.kind() == "impl_item") {
            return text(of);
        }
        // C declares around the name: `int *f(int)`.
        let mut at = node;
        while let Some(inner) = at.child_by_field_name("declarator") {
            at = inner;
        }
        if at == node {
            return if node.kind() == "init_declaration" {
                "init".to_owned()
            } else {
                String::new()
            };
        }
        text(at)
    }

    /// Some text, cut at `most` bytes.
    fn slice(&self, start: usize, end: usize, most: usize) -> &str {
        let text = self.text.get(start..end).unwrap_or("");
        &text[..text.floor_char_boundary(most)]
    }
}

/// The last row that has something of a node.
fn last_row(node: Node<'_>) -> usize {
    let (start, end) = (node.start_position(), node.end_position());
    end.row - usize::from(end.column == 0 && end.row > start.row)
}

fn line(row: usize) -> u32 {
    u32::try_from(row + 1).unwrap_or(u32::MAX)
}

/// Whether a node of a kind that may define something does.
fn is_definition(node: Node<'_>) -> bool {
    match node.kind() {
        "variable_declarator" => node.child_by_field_name("value").is_some_and(|value| {
            matches!(
                value.kind(),
                "arrow_function" | "function_expression" | "function" | "generator_function"
            )
        }),
        // Uses of a type have no body.
        "struct_specifier" | "union_specifier" | "enum_specifier" | "class_specifier"
        | "mod_item" => node.child_by_field_name("body").is_some(),
        // A keyword of Ruby, and JavaScript's class of no name.
        "class" | "module" => node.is_named() && node.child_by_field_name("name").is_some(),
        _ => true,
    }
}

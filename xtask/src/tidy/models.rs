//! The table of docs/models.md, made of the registry of model families.

use super::Finding;
use anyhow::{Context, Result};
use std::{fmt::Write as _, fs, path::Path};
use taper_models::{FAMILIES, Family};
use taper_weights::Gguf;

const PAGE: &str = "docs/models.md";
const BEGIN: &str = "<!-- models:begin -->\n";
const END: &str = "<!-- models:end -->";

/// The page must have the table that the registry gives.
pub(super) fn check(page: &str) -> Vec<Finding> {
    let message = "the table is not the registry's: run `cargo xtask docs`";
    let same = parts(page).is_some_and(|[_, table, _]| table == self::table());
    if same { Vec::new() } else { vec![Finding::error(PAGE, 1, message)] }
}

/// Writes the table into the page.
pub(crate) fn write(root: &Path) -> Result<()> {
    let path = root.join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("reading {PAGE}"))?;
    let [before, _, after] = parts(&page).context("the page has no place for the table")?;
    fs::write(&path, [before, &table(), after].concat()).with_context(|| format!("writing {PAGE}"))
}

/// What is before the table, the table, and what is after it.
fn parts(page: &str) -> Option<[&str; 3]> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    let end = begin + page[begin..].find(END)?;
    Some([&page[..begin], &page[begin..end], &page[end..]])
}

fn table() -> String {
    let head = "| `model_type` | models | GPUs | architecture of GGUF files |\n";
    let mut table = format!("{head}| --- | --- | --- | --- |\n");
    for Family { model_types, models, gpu, .. } in FAMILIES {
        let code = |names: &mut dyn Iterator<Item = &str>| {
            names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let read = Gguf::architectures().filter(|(_, of)| model_types.contains(of));
        let (types, gguf) =
            (code(&mut model_types.iter().copied()), code(&mut read.map(|(name, _)| name)));
        let gpu = if *gpu { "yes" } else { "no" };
        let _ = writeln!(table, "| {types} | {models} | {gpu} | {gguf} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_table_is_found() {
        let page = |table: &str| format!("text\n{BEGIN}{table}{END}\nmore\n");
        assert_eq!(check(&page(&table())), []);
        assert_eq!(check(&page("| `qwen9` |\n")).len(), 1);
        assert_eq!(check("no table").len(), 1);
        assert!(
            table()
                .contains("| `qwen3_moe` | Qwen 3 with experts | yes | `qwen3moe`, `qwen3vlmoe` |")
        );
    }
}

//! docs/models.md against the registry of model families.

use super::Finding;
use std::collections::BTreeSet;

const PAGE: &str = "docs/models.md";
const BEGIN: &str = "<!-- models:begin -->";
const END: &str = "<!-- models:end -->";

/// Compares the first column of the page's table with the `model_type`s that there are.
pub(super) fn check(page: &str, families: &[&str]) -> Vec<Finding> {
    let table = page.lines().zip(1..).skip_while(|(line, _)| *line != BEGIN);
    let mut missing: BTreeSet<_> = families.iter().copied().collect();
    let mut findings = Vec::new();
    for (line, number) in table.take_while(|(line, _)| *line != END) {
        let first = line.split('|').nth(1).unwrap_or_default();
        // What stands between backticks, but for the heading.
        for name in first.split('`').skip(1).step_by(2).filter(|name| *name != "model_type") {
            if !missing.remove(name) {
                let message = format!("there is no model_type {name:?}, or it stands there twice");
                findings.push(Finding::error(PAGE, number, message));
            }
        }
    }
    for name in missing {
        findings.push(Finding::error(PAGE, 1, format!("model_type {name:?} has no row")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_family_once() {
        let page = |rows: &str| format!("`x`\n{BEGIN}\n| `model_type` |\n{rows}\n{END}\n`y`\n");
        let found = |rows: &str| check(&page(rows), &["a", "b"]).len();
        assert_eq!(found("| `a`, `b` | `z` |"), 0);
        assert_eq!(found("| `a` |"), 1, "b is missing");
        assert_eq!(found("| `a`, `b` |\n| `c` |"), 1, "c is none");
        assert_eq!(found("| `a`, `b` |\n| `a` |"), 1, "a stands there twice");
        assert_eq!(check("", &["a"]).len(), 1);
    }
}

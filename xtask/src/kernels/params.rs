//! Parameter structs in MSL against those in Rust.

use anyhow::{Context, Result, ensure};
use taper_tensor::gpu::Family;

/// Fails unless each parameter struct of a family has the same fields in Rust.
pub(super) fn compare(family: &Family) -> Result<()> {
    let (path, text) = (family.source.path, family.source.metal());
    for (name, fields) in family.params {
        let got = fields_of(&text, name).with_context(|| format!("struct {name} in {path}"))?;
        let want: Vec<_> = fields.iter().map(|(n, t)| (msl(t), *n)).collect();
        ensure!(got == want, "struct {name}: {path} has {got:?}, and Rust has {want:?}");
    }
    Ok(())
}

fn msl(rust: &str) -> &str {
    match rust {
        "u32" => "uint",
        "f32" => "float",
        other => other,
    }
}

/// Types and names of a struct's fields.
fn fields_of<'a>(text: &'a str, name: &str) -> Option<Vec<(&'a str, &'a str)>> {
    let (_, body) = text.split_once(&format!("struct {name} {{"))?;
    let (body, _) = body.split_once('}')?;
    let code = |line: &'a str| line.split("//").next().unwrap_or_default().trim();
    let lines = body.lines().map(code).filter(|line| !line.is_empty());
    lines.map(|line| line.strip_suffix(';')?.split_once(' ')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let text = "struct A {\n    uint n;  // so many\n\n    float eps;\n};\nstruct B { };";
        assert_eq!(fields_of(text, "A"), Some(vec![("uint", "n"), ("float", "eps")]));
        assert_eq!(fields_of(text, "C"), None);
    }
}

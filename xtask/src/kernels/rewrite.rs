//! Signatures of MSL kernels as C++ for OpenCL.
//!
//! Works on preprocessed text. Arguments with a builtin's attribute become locals, `[[buffer(n)]]` is
//! dropped, and the parameter struct (`constant T&`) becomes a pointer on the host and a value in PTX,
//! which puts it into the launch itself. On the host, threadgroup memory is filled with garbage where
//! it is declared. In PTX a kernel begins by waiting for the launch before it (`taper/common.h`).

use super::Target;
use anyhow::{Context, Result, bail, ensure};

const KERNEL: &str = "kernel void ";
const THREADGROUP: &str = "__local ";
/// What a kernel begins with that waits for the launch before it at a point of its own.
const EARLY: &str = "msl_early_launch();";
/// What other kernels for PTX begin with.
const WAIT: &str = "    msl_early_launch(); previous_launch_done();\n";

/// Rewrites every kernel of a preprocessed file.
pub(super) fn kernels(text: &str, target: Target) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(KERNEL) {
        out.push_str(&rest[..at]);
        let signature = &rest[at + KERNEL.len()..];
        let open = signature.find('(').context("a kernel has arguments")?;
        let name = signature[..open].trim();
        let close = matching(signature, open).with_context(|| format!("arguments of {name}"))?;
        let after = signature[close + 1..].trim_start();
        let body = after.strip_prefix('{').with_context(|| format!("{name} has a body"))?;
        let (arguments, locals) = arguments(&signature[open + 1..close], target)
            .with_context(|| format!("arguments of {name}"))?;
        let wait = match target {
            Target::Ptx if !body.trim_start().starts_with(EARLY) => WAIT,
            _ => "",
        };
        out.push_str(&format!("{KERNEL}{name}({arguments})\n{{\n{wait}{locals}"));
        rest = body;
    }
    out.push_str(rest);
    Ok(match target {
        Target::Host => poisoned(&out),
        Target::Ptx => out,
    })
}

/// The parenthesis that closes the one at `open`.
fn matching(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in text.char_indices().skip_while(|(i, _)| *i < open) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

fn arguments(text: &str, target: Target) -> Result<(String, String)> {
    let (mut arguments, mut locals) = (Vec::new(), String::new());
    let mut buffers = 0;
    for argument in text.split(',').map(str::trim) {
        let (declared, attribute) = argument
            .split_once("[[")
            .with_context(|| format!("{argument:?} has an [[attribute]]"))?;
        let attribute = attribute.trim_end().trim_end_matches("]]").trim();
        let declared = declared.trim();
        let cut = declared.rfind([' ', '*', '&']).context("a type and a name")?;
        let (kind, name) = (declared[..=cut].trim(), &declared[cut + 1..]);
        if let Some(index) = attribute.strip_prefix("buffer(") {
            let index: usize = index.trim_end_matches(')').trim().parse()?;
            ensure!(index == buffers, "{name} is buffer {index}, and the {buffers}th argument");
            buffers += 1;
            let Some(of) = kind.strip_suffix('&') else {
                arguments.push(format!("{kind} {name}"));
                continue;
            };
            let value = of.replace("__global", "").replace("const", "");
            match target {
                Target::Host => {
                    arguments.push(format!("{of}* {name}_at"));
                    locals.push_str(&format!("    {of}& {name} = *{name}_at;\n"));
                }
                Target::Ptx => arguments.push(format!("const {} {name}", value.trim())),
            }
        } else {
            let value = builtin(attribute, kind)?;
            locals.push_str(&format!("    const {kind} {name} = {value};\n"));
        }
    }
    Ok((arguments.join(", "), locals))
}

fn builtin(attribute: &str, kind: &str) -> Result<&'static str> {
    Ok(match (attribute, kind) {
        ("threadgroup_position_in_grid", "uint") => "msl_group(0)",
        ("threadgroup_position_in_grid", "uint2") => "{msl_group(0), msl_group(1)}",
        ("threadgroup_position_in_grid", "uint3") => "{msl_group(0), msl_group(1), msl_group(2)}",
        ("thread_position_in_grid", "uint") => "msl_group(0) * msl_threads() + msl_thread()",
        ("thread_index_in_threadgroup", "uint") => "msl_thread()",
        ("thread_index_in_simdgroup", "uint") => "msl_thread() & 31u",
        ("simdgroup_index_in_threadgroup", "uint") => "msl_thread() >> 5",
        _ => bail!("[[{attribute}]] of type {kind} is not known"),
    })
}

/// Adds a call after each declaration of threadgroup memory.
fn poisoned(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        out.push_str(line);
        let mut rest = line;
        while let Some(at) = rest.find(THREADGROUP) {
            rest = &rest[at + THREADGROUP.len()..];
            let Some(end) = rest.find(';') else { break };
            // `float name[n]...;`, and not an argument or a pointer.
            if let Some((declared, _)) = rest[..end].split_once('[')
                && declared.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ' ')
                && let Some(name) = declared.split_whitespace().nth(1)
            {
                let insert = format!(" msl_poison((__local void*){name}, sizeof({name}));");
                let from = out.len() - rest.len() + end + 1;
                out.insert_str(from, &insert);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "template <int N> void f() {}\n\
        kernel void k( __global const float* x [[buffer(0)]], __global const P& p [[buffer(1)]],\n\
        uint2 at [[threadgroup_position_in_grid]])\n{ __local float a[2][3]; __local uint b[4]; }\n";

    #[test]
    fn signatures_change_and_the_rest_stays() {
        let host = kernels(SOURCE, Target::Host).unwrap();
        assert!(host.contains("kernel void k(__global const float* x, __global const P* p_at)"));
        assert!(host.contains("__global const P& p = *p_at;"));
        assert!(host.contains("const uint2 at = {msl_group(0), msl_group(1)};"));
        assert!(host.contains("a[2][3]; msl_poison((__local void*)a, sizeof(a));"), "{host}");
        assert!(host.contains("b[4]; msl_poison((__local void*)b, sizeof(b));"), "{host}");
        let ptx = kernels(SOURCE, Target::Ptx).unwrap();
        assert!(ptx.contains("kernel void k(__global const float* x, const P p)"), "{ptx}");
        assert!(ptx.contains(WAIT) && !host.contains(WAIT));
        let early = SOURCE.replace("{ __local", &format!("{{ {EARLY} __local"));
        assert!(!kernels(&early, Target::Ptx).unwrap().contains(WAIT));
        assert!(!ptx.contains("poison") && ptx.contains("template <int N> void f() {}"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let with =
            |argument: &str| kernels(&format!("kernel void k({argument}) {{}}"), Target::Ptx);
        assert!(with("uint x [[thread_position_in_grid]]").is_ok());
        assert!(with("uint x").is_err(), "no attribute");
        assert!(with("uint x [[threads_per_grid]]").is_err(), "unknown attribute");
        assert!(with("__global float* x [[buffer(1)]]").is_err(), "buffers out of order");
        assert!(
            kernels("kernel void k(uint x [[thread_position_in_grid]]);", Target::Ptx).is_err()
        );
    }
}

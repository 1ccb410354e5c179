//! What a launch wants of an Apple GPU beside threadgroup memory: that its kernel is compiled for Metal,
//! and that its threads have registers.
//!
//! Registers are counted in the PTX, before anybody limits them: the most that are alive at one place. Apple's
//! compiler counts in its own way, so this is an estimate.

use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use taper_kernels::SOURCES;

/// Registers of 32 bits that threads of one threadgroup have together: 1,024 of them are started with at most 52
/// each on M1 and M2 (see docs/metal.md).
const MOST: usize = 1024 * 52;

/// Kernels that want more, and how many a thread at most. The backend asks Metal to compile each for the threads of
/// its launch, so that these put some into memory; what that costs only a Mac can tell.
const SPILL: [(&str, usize); 10] = [
    ("attend_coded_8", 600),
    ("attend_coded_16", 850),
    ("attend_coded_16_of_33_33", 450),
    ("attend_coded_sketched_8", 520),
    ("attend_coded_sketched_16", 900),
    ("encode_coded", 400),
    ("encode_wide", 256),
    ("encode_sketched", 208),
    ("sample", 240),
    ("walk_delta_4", 208),
];

/// Kernels that are not compiled for Metal, as the sources say: how their names begin.
const NOT_COMPILED: [&str; 2] = ["widen_", "add_bias"];

/// Compares what was launched with what there is.
pub(super) fn check(launched: &BTreeMap<String, u32>) -> Result<()> {
    let mut wrong = Vec::new();
    let mut there = BTreeSet::new();
    for source in SOURCES.iter().filter(|source| source.is_for_metal()) {
        let all = of_kernels(&source.ptx()?).into_iter();
        let compiled = all.filter(|(name, _)| !NOT_COMPILED.iter().any(|n| name.starts_with(n)));
        for (name, registers) in compiled {
            match launched.get(&name) {
                None => wrong.push(format!("{name}: no path of Metal's launches it")),
                Some(&threads) => wrong.extend(too_many(&name, registers, threads)),
            }
            there.insert(name);
        }
    }
    let missing = launched.keys().filter(|name| !there.contains(*name));
    wrong.extend(missing.map(|name| format!("{name}: is launched, and not compiled for Metal")));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!(
        "{} kernels: each is launched on an Apple GPU, and its threads have registers",
        there.len()
    );
    Ok(())
}

fn too_many(name: &str, registers: usize, threads: u32) -> Option<String> {
    let allowed = SPILL.iter().find(|(spills, _)| *spills == name).map_or(0, |(_, n)| *n);
    (registers > allowed && registers * threads as usize > MOST)
        .then(|| format!("{name}: {registers} registers in each of {threads} threads"))
}

/// Each kernel of a PTX with the registers that a thread of it needs, of 32 bits.
fn of_kernels(ptx: &str) -> Vec<(String, usize)> {
    let (mut kernels, mut name) = (Vec::new(), None);
    let mut body = Body::default();
    for line in ptx.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            name = Some(rest.trim_end_matches('(').to_owned());
            body = Body::default();
        } else if line == "}" && body.depth == 1 {
            kernels.extend(name.take().map(|name| (name, body.most_alive())));
        } else if name.is_some() {
            body.line(line);
        }
    }
    kernels
}

/// An instruction: the registers that it writes and reads.
#[derive(Debug, Default)]
struct Instruction {
    writes: Vec<usize>,
    reads: Vec<usize>,
    /// Where it may go on, beside the next one.
    to: Option<String>,
    /// Whether it never goes on with the next one.
    ends: bool,
}

/// A kernel's instructions.
#[derive(Debug, Default)]
struct Body {
    depth: usize,
    /// Halves of registers of 32 bits that each takes, by its kind.
    kinds: HashMap<String, usize>,
    names: HashMap<String, usize>,
    halves: Vec<usize>,
    labels: HashMap<String, usize>,
    code: Vec<Instruction>,
}

/// What has no result.
const NO_RESULT: [&str; 11] = [
    "st",
    "bra",
    "bar",
    "barrier",
    "ret",
    "exit",
    "red",
    "membar",
    "fence",
    "cp",
    "griddepcontrol",
];

impl Body {
    fn line(&mut self, line: &str) {
        match line {
            "{" => self.depth += 1,
            "}" => self.depth -= 1,
            _ if line.starts_with(".reg ") => self.declare(line),
            _ if line.starts_with('.') || line.is_empty() => {}
            _ => match line.strip_suffix(':') {
                Some(label) => drop(self.labels.insert(label.to_owned(), self.code.len())),
                None => self.instruction(line.trim_end_matches(';')),
            },
        }
    }

    /// `.reg .b32 %r<9>;`
    fn declare(&mut self, line: &str) {
        let mut words = line.split_whitespace().skip(1);
        let bits =
            words.next().map_or("", |word| word.trim_start_matches(['.', 'b', 'f', 's', 'u']));
        let halves = bits.parse::<usize>().map_or(0, |bits| bits.div_ceil(16));
        for name in words.flat_map(|word| word.split(',')) {
            let kind = name.split('<').next().unwrap_or(name).trim_end_matches(';');
            self.kinds
                .insert(kind.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), halves);
        }
    }

    fn instruction(&mut self, line: &str) {
        let (guard, line) = match line.strip_prefix('@') {
            Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
            None => ("", line),
        };
        let line = line.trim();
        let (code, operands) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let op = code.split('.').next().unwrap_or(code);
        let mut out = Instruction { reads: self.registers(guard), ..Instruction::default() };
        if op == "bra" {
            out.to = operands.split_whitespace().last().map(str::to_owned);
        }
        out.ends = guard.is_empty() && ["bra", "ret", "exit"].contains(&op);
        let first = if NO_RESULT.contains(&op) { "" } else { first_operand(operands) };
        out.writes = self.registers(first);
        out.reads.extend(self.registers(&operands[first.len()..]));
        // Sums of the tensor cores are read too; of what is left out under a guard the old value stays.
        if op == "wgmma" || !guard.is_empty() {
            out.reads.extend(&out.writes);
        }
        self.code.push(out);
    }

    /// The numbers of all registers in a text.
    fn registers(&mut self, text: &str) -> Vec<usize> {
        let mut found = Vec::new();
        for part in text.split('%').skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
            let name = &part[..end];
            let kind = format!("%{}", name.trim_end_matches(|c: char| c.is_ascii_digit()));
            let Some(&halves) = self.kinds.get(&kind) else { continue };
            let next = self.names.len();
            let number = *self.names.entry(name.to_owned()).or_insert(next);
            if number == next {
                self.halves.push(halves);
            }
            found.push(number);
        }
        found
    }

    /// The most registers of 32 bits that are alive at one place.
    fn most_alive(&self) -> usize {
        let starts = self.starts();
        let words = self.halves.len().div_ceil(64);
        let mut alive = vec![vec![0u64; words]; starts.len()];
        let block_at: HashMap<usize, usize> =
            starts.iter().enumerate().map(|(block, &at)| (at, block)).collect();
        let (mut most, mut changed) = (0, true);
        while changed {
            (changed, most) = (false, 0);
            for block in (0..starts.len()).rev() {
                let end = starts.get(block + 1).copied().unwrap_or(self.code.len());
                let code = &self.code[starts[block]..end];
                let mut set = vec![0u64; words];
                let last = code.last();
                let jumps = last.and_then(|i| i.to.as_ref()).and_then(|to| self.labels.get(to));
                let falls = last.is_none_or(|i| !i.ends).then_some(end);
                let next = jumps.copied().into_iter().chain(falls);
                for successor in next.filter_map(|at| block_at.get(&at)) {
                    set.iter_mut().zip(&alive[*successor]).for_each(|(a, b)| *a |= b);
                }
                most = most.max(self.walk(code, &mut set));
                changed |= alive[block] != set;
                alive[block] = set;
            }
        }
        most.div_ceil(2)
    }

    /// Goes through a block backwards from what is alive after it; the most halves at one place.
    fn walk(&self, code: &[Instruction], alive: &mut [u64]) -> usize {
        let bits = |set: &[u64]| -> usize {
            let of = |(i, word): (usize, &u64)| {
                let halves = self.halves[64 * i..].iter().take(64).enumerate();
                halves.filter(|(bit, _)| word >> bit & 1 == 1).map(|(_, n)| n).sum::<usize>()
            };
            set.iter().enumerate().map(of).sum()
        };
        let mut now = bits(alive);
        let mut most = now;
        for instruction in code.iter().rev() {
            for &register in &instruction.writes {
                let (word, bit) = (register / 64, 1 << (register % 64));
                now -= if alive[word] & bit == 0 { 0 } else { self.halves[register] };
                alive[word] &= !bit;
            }
            for &register in &instruction.reads {
                let (word, bit) = (register / 64, 1 << (register % 64));
                now += if alive[word] & bit == 0 { self.halves[register] } else { 0 };
                alive[word] |= bit;
            }
            most = most.max(now);
        }
        most
    }

    /// Where blocks begin: at labels and after jumps.
    fn starts(&self) -> Vec<usize> {
        let jumps = self.code.iter().enumerate().filter(|(_, i)| i.ends || i.to.is_some());
        let mut starts: Vec<_> = jumps.map(|(at, _)| at + 1).collect();
        starts.extend(self.labels.values().copied().chain([0]));
        starts.retain(|&at| at < self.code.len());
        starts.sort_unstable();
        starts.dedup();
        starts
    }
}

/// The text of the first operand: a name, or several in braces or joined by `|`.
fn first_operand(operands: &str) -> &str {
    let end = match operands.starts_with('{') {
        true => operands.find('}').map(|at| at + 1),
        false => operands.find(','),
    };
    &operands[..end.unwrap_or(operands.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: &str = ".visible .entry a(\n.param .u64 a_0\n)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<9>;\n\
        .reg .b64 %rd<3>;\n.reg .b16 %rs<2>;\n\
        ld.param.u64 %rd1, [a_0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, 0;\n\
        $L__BB0_1:\nld.global.v2.u32 {%r3, %r4}, [%rd1];\nadd.s32 %r2, %r3, %r4;\n\
        setp.lt.u32 %p1, %r2, %r1;\n@%p1 bra $L__BB0_1;\nst.global.u32 [%rd1], %r2;\nret;\n}\n";

    #[test]
    fn registers_are_counted_where_most_are_alive() {
        // The address, the thread's number, and two words.
        assert_eq!(of_kernels(LOOP), [("a".to_owned(), 5)]);
    }

    /// As many as a kernel that M1 and M2 would refuse.
    #[test]
    fn a_thousand_threads_of_two_hundred_registers_are_too_many() {
        let mut ptx = String::from(".visible .entry a(\n)\n{\n.reg .b32 %r<201>;\n");
        (0..200).for_each(|i| ptx.push_str(&format!("ld.global.u32 %r{i}, [x];\n")));
        (0..200).for_each(|i| ptx.push_str(&format!("st.global.u32 [x], %r{i};\n")));
        ptx.push_str("ret;\n}\n");
        let [(name, registers)] = &of_kernels(&ptx)[..] else { panic!("one kernel") };
        assert_eq!((name.as_str(), *registers), ("a", 200));
        assert!(too_many(name, *registers, 1024).is_some());
        assert!(too_many(name, *registers, 256).is_none());
    }

    #[test]
    fn kernels_that_are_not_launched_are_named() {
        let error = check(&BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("sample: no path of Metal's launches it"), "{error}");
        let error = check(&[("widen_q4".to_owned(), 128)].into()).unwrap_err().to_string();
        assert!(error.contains("widen_q4: is launched, and not compiled for Metal"), "{error}");
    }
}

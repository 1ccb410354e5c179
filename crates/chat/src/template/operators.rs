//! Operators as Python has them, with their memory counted.
//!
//! The engine has no hook for its operators. Its instructions are therefore rewritten: an operator
//! becomes a filter of a name that no template can write, and what makes strings, lists or maps is
//! followed by one that counts them.

use super::{memory, python};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value,
    formatting::FormatStyle,
    machinery::{self, Instruction, Instructions},
    value::ValueKind,
};
use std::collections::BTreeMap;

const ADD: &str = "operator+";
const MUL: &str = "operator*";
const REM: &str = "operator%";
const CONCAT: &str = "operator~";
const SLICE: &str = "operator[:]";
const CHARGE: &str = "operator.charge";
const STORE: &str = "operator.store";
const TICK: &str = "operator.tick";
const OTHER_TEMPLATE: &str = "operator.include";
const MANY_LISTS: &str = "operator**";

pub(super) fn add_to(env: &mut Environment<'static>) {
    env.add_filter(ADD, |state: &mut State, a: &Value, b: &Value| add(state, a, b));
    env.add_filter(MUL, |state: &mut State, a: &Value, b: &Value| mul(state, a, b));
    env.add_filter(REM, |state: &mut State, a: &Value, b: &Value| rem(state, a, b));
    env.add_filter(CONCAT, |state: &mut State, a: &Value, b: &Value| {
        let mut text = memory::Text::default();
        python::write_str(&mut text, a)?;
        python::write_str(&mut text, b)?;
        memory::string(state, text.take())
    });
    env.add_filter(
        SLICE,
        |state: &mut State, value: &Value, start: &Value, stop: &Value, step: &Value| {
            slice(state, value, start, stop, step)
        },
    );
    env.add_filter(CHARGE, |state: &mut State, value: Value| memory::charge(state, value));
    env.add_filter(STORE, |state: &mut State, value: Value| memory::store(state, value));
    env.add_filter(TICK, |state: &mut State, _: &Value| memory::tick(state));
    let refused = |what: &'static str| {
        move |_: &Value| Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, what))
    };
    env.add_filter(OTHER_TEMPLATE, refused("a chat template cannot load other templates"));
    env.add_filter(MANY_LISTS, refused("a call takes the elements of two lists at most"));
}

/// Renders a template of the environment with these operators.
pub(super) fn render(
    env: &Environment<'static>,
    name: &str,
    context: Value,
) -> Result<String, Error> {
    let template = env.get_template(name)?;
    let compiled = machinery::get_compiled_template(&template);
    let instructions = rewrite(&compiled.instructions);
    let blocks: BTreeMap<_, _> =
        compiled.blocks.iter().map(|(name, block)| (*name, rewrite(block))).collect();
    let mut prompt = String::new();
    let mut out = machinery::make_string_output(&mut prompt);
    machinery::eval(env, &instructions, context, &blocks, &mut out, AutoEscape::None)?;
    drop(out);
    Ok(prompt)
}

fn call(name: &'static str, arguments: u16) -> Instruction<'static> {
    // The last number would be an index into the engine's cache of filters; this one is outside it.
    Instruction::ApplyFilter(name, Some(arguments), !0)
}

fn rewrite<'s>(old: &Instructions<'s>) -> Instructions<'s> {
    let all: Vec<&Instruction<'s>> = (0..).map_while(|i| old.get(i)).collect();
    // Where each instruction begins in the new ones.
    let mut starts = Vec::with_capacity(all.len() + 1);
    let mut next = 0;
    for instruction in &all {
        starts.push(next);
        next += expand(instruction).len() as u32;
    }
    starts.push(next);
    let mut new = Instructions::new(old.name(), old.source());
    for (i, instruction) in (0..).zip(&all) {
        for mut instruction in expand(instruction) {
            if let Some(target) = target(&mut instruction)
                && let Some(start) = starts.get(*target as usize)
            {
                *target = *start;
            }
            match (old.get_span(i), old.get_line(i).and_then(|line| u16::try_from(line).ok())) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => new.add_with_line(instruction, line),
                (None, None) => new.add(instruction),
            };
        }
    }
    new
}

fn expand<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    match instruction {
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::Add => vec![call(ADD, 2)],
        Instruction::Mul => vec![call(MUL, 2)],
        Instruction::Rem => vec![call(REM, 2)],
        Instruction::StringConcat => vec![call(CONCAT, 2)],
        Instruction::Slice => vec![call(SLICE, 4)],
        Instruction::Iterate(_) => vec![
            Instruction::LoadConst(Value::from(())),
            call(TICK, 1),
            Instruction::DiscardTop,
            instruction.clone(),
        ],
        // They would run the engine's own instructions.
        Instruction::Include(_) | Instruction::LoadBlocks => vec![call(OTHER_TEMPLATE, 1)],
        Instruction::UnpackLists(3..) => vec![call(MANY_LISTS, 1)],
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, call(STORE, 1), Instruction::Swap, instruction.clone()]
        }
        Instruction::BuildList(_)
        | Instruction::BuildMap(_)
        | Instruction::BuildTuple(_)
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_)
        | Instruction::EndCapture => vec![instruction.clone(), call(CHARGE, 1)],
        other => vec![other.clone()],
    }
}

fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Two numbers; booleans are numbers in Python.
enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    let number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if !number(a) || !number(b) {
        return None;
    }
    let integer = |v: &Value| v.is_integer() || v.kind() == ValueKind::Bool;
    if integer(a) && integer(b) {
        let (a, b) = (i128::try_from(a.clone()).ok()?, i128::try_from(b.clone()).ok()?);
        return Some(Numbers::Integers(a, b));
    }
    Some(Numbers::Floats(as_float(a)?, as_float(b)?))
}

fn as_float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    }
}

fn number(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn overflow(operator: &str) -> Error {
    let detail = format!("the result of {operator} is out of range");
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        memory::check_length(a.len().saturating_add(b.len()))?;
        return memory::string(state, [a, b].concat());
    }
    if is_list(a) && is_list(b) && memory::is_tuple(a) == memory::is_tuple(b) {
        let mut items = memory::items(state, a)?;
        items.extend(memory::items(state, b)?);
        return memory::sequence(state, items, memory::is_tuple(a));
    }
    match numbers(a, b) {
        Some(Numbers::Integers(a, b)) => a.checked_add(b).map(number).ok_or_else(|| overflow("+")),
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a + b)),
        None => Err(python::unsupported("+", a, b)),
    }
}

fn mul(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    let repeated = |v: &Value| v.as_str().is_some() || is_list(v);
    let (what, times) = if repeated(a) { (a, b) } else { (b, a) };
    if repeated(what) && (times.is_integer() || times.kind() == ValueKind::Bool) {
        let times = i128::try_from(times.clone())?.max(0);
        let times = usize::try_from(times).unwrap_or(usize::MAX);
        if let Some(text) = what.as_str() {
            memory::check_length(text.len().saturating_mul(times))?;
            return memory::string(state, text.repeat(times));
        }
        let items = memory::items(state, what)?;
        memory::check_length(size_of::<Value>().saturating_mul(items.len()).saturating_mul(times))?;
        let count = items.len().saturating_mul(times);
        let repeated = items.into_iter().cycle().take(count).collect();
        return memory::sequence(state, repeated, memory::is_tuple(what));
    }
    match numbers(a, b) {
        Some(Numbers::Integers(a, b)) => a.checked_mul(b).map(number).ok_or_else(|| overflow("*")),
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a * b)),
        None => Err(python::unsupported("*", a, b)),
    }
}

fn rem(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        let arguments =
            if memory::is_tuple(b) { memory::items(state, b)? } else { vec![b.clone()] };
        return memory::string(state, formatted(FormatStyle::Printf, format, &arguments)?);
    }
    let zero = || Error::new(ErrorKind::InvalidOperation, "integer modulo by zero");
    match numbers(a, b) {
        Some(Numbers::Integers(_, 0)) => Err(zero()),
        Some(Numbers::Integers(a, b)) => {
            let rest = a.checked_rem(b).unwrap_or(0);
            Ok(number(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        Some(Numbers::Floats(_, 0.0)) => Err(zero()),
        Some(Numbers::Floats(a, b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        None => Err(python::unsupported("%", a, b)),
    }
}

/// `format % arguments` or `format.format(arguments)`, refused where widths would make it large.
pub(super) fn formatted(
    style: FormatStyle,
    format: &str,
    arguments: &[Value],
) -> Result<String, Error> {
    let digits = format.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let widths =
        digits.map(|run| run.parse::<usize>().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    let fields = format.matches(['%', '{']).count();
    // A width may be an argument.
    let widths_given = format.contains('*') || format.contains(":{") || format.contains(".{");
    let mut largest = 0;
    for argument in arguments {
        let size = match argument.as_usize() {
            Some(number) if widths_given => number,
            _ if argument.is_kwargs() => {
                let mut sum = 0;
                for key in argument.try_iter()? {
                    sum = python::str(&argument.get_item(&key)?)?.len().max(sum);
                }
                sum
            }
            _ => python::str(argument)?.len(),
        };
        largest = largest.max(size);
    }
    let each = largest.saturating_add(400).saturating_mul(fields);
    // What fills a width may take four bytes.
    let widths = widths.saturating_mul(4);
    memory::check_length(format.len().saturating_add(widths).saturating_add(each))?;
    minijinja::formatting::format(style, format, arguments)
}

fn index(value: &Value) -> Result<Option<i64>, Error> {
    match value.kind() {
        ValueKind::None => Ok(None),
        ValueKind::Number | ValueKind::Bool => Ok(Some(i64::try_from(value.clone())?)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "slice indices must be integers or None or have an __index__ method",
        )),
    }
}

fn slice(
    state: &mut State<'_, '_>,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let (start, stop, step) = (index(start)?, index(stop)?, index(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        memory::check_length(text.len().saturating_mul(4))?;
        let chars: Vec<char> = text.chars().collect();
        let kept: String = places(chars.len(), start, stop, step).map(|i| chars[i]).collect();
        return memory::string(state, kept);
    }
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    if !is_list(value) {
        let detail = format!("'{}' object is not subscriptable", python::type_name(value));
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let items = memory::items(state, value)?;
    let kept = places(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
    memory::sequence(state, kept, memory::is_tuple(value))
}

/// The indices that Python's slice of a sequence of `len` takes.
fn places(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |i: i64| (if i < 0 { i.saturating_add(len) } else { i }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let inside = move |i: &i64| if step > 0 { *i < stop } else { *i > stop };
    std::iter::successors(Some(start), move |i| i.checked_add(step))
        .take_while(inside)
        .filter_map(|i| usize::try_from(i).ok())
}

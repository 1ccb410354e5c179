//! Quantization by other tools than MLX.

use super::Quantization;
use crate::WeightsError;
use serde_json::{Map, Value};

/// Who wrote the tensors, and what these do not say.
#[derive(Debug, Clone)]
pub(super) enum Method {
    Gptq(Gptq),
    /// The group size.
    Awq(Option<usize>),
    Fp8 {
        /// Rows and columns of a block.
        block: Option<[usize; 2]>,
    },
    /// compressed-tensors.
    Compressed {
        /// Bits of a code, of each group of layers.
        bits: Vec<u64>,
        /// Rows and columns of a block of FP8.
        block: Option<[usize; 2]>,
    },
    /// The tensors say all.
    Plain,
}

/// What GPTQ's tensors do not say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gptq {
    pub(crate) bits: u8,
    /// Inputs that share a scale; `None` is all.
    pub(crate) group: Option<usize>,
    /// What is added to zero points.
    pub(crate) added: f32,
}

fn bad(reason: &'static str) -> WeightsError {
    WeightsError::BadQuantization { layer: "*".to_owned(), reason }
}

fn unsupported<T>(method: impl Into<String>) -> Result<T, WeightsError> {
    Err(WeightsError::UnsupportedQuantization { method: method.into() })
}

impl Method {
    /// The method of a section; `None` where MLX has written it.
    pub(super) fn of(section: &Map<String, Value>) -> Result<Option<Self>, WeightsError> {
        let Some(method) = section.get("quant_method") else {
            // ModelOpt's sections have a name for the numbers only.
            return Ok(section.contains_key("quant_algo").then_some(Self::Plain));
        };
        let method = method.as_str().unwrap_or("unknown");
        Ok(Some(match method {
            "gptq" => gptq(section)?,
            "awq" => awq(section)?,
            "fp8" | "fbgemm_fp8" => fp8(section)?,
            "compressed-tensors" => compressed(section)?,
            "bitsandbytes" if says(section, "load_in_8bit") => {
                return unsupported("bitsandbytes with 8 bits");
            }
            "bitsandbytes" | "modelopt" | "mxfp4" => Self::Plain,
            other => return unsupported(other),
        }))
    }
}

impl Quantization {
    /// What GPTQ's tensors do not say, if they are GPTQ's.
    pub(crate) fn gptq(&self) -> Option<Gptq> {
        match self.method {
            Some(Method::Gptq(gptq)) => Some(gptq),
            _ => None,
        }
    }

    /// Whether words of codes are AWQ's.
    pub(crate) fn is_awq(&self) -> bool {
        matches!(self.method, Some(Method::Awq(_)))
    }

    /// Inputs that share one of AWQ's scales; `None` is all.
    pub(crate) fn awq_group(&self) -> Option<usize> {
        match self.method {
            Some(Method::Awq(group)) => group,
            _ => None,
        }
    }

    /// Rows and columns of a block of FP8 with one scale.
    pub(crate) fn block(&self) -> Option<[usize; 2]> {
        match self.method {
            Some(Method::Fp8 { block } | Method::Compressed { block, .. }) => block,
            _ => None,
        }
    }

    /// Whether a group of layers of compressed-tensors has codes of so many bits.
    pub(crate) fn names_bits(&self, bits: u8) -> bool {
        match &self.method {
            Some(Method::Compressed { bits: named, .. }) => named.contains(&bits.into()),
            _ => false,
        }
    }

    /// The format of codes that are packed in words.
    pub(crate) fn describe(&self) -> String {
        let group = |group: Option<usize>| match group {
            Some(group) => format!("group {group}"),
            None => "a scale a row".to_owned(),
        };
        match &self.method {
            Some(Method::Gptq(own)) => format!("GPTQ {}-bit, {}", own.bits, group(own.group)),
            Some(Method::Awq(own)) => format!("AWQ 4-bit, {}", group(*own)),
            Some(Method::Compressed { bits, .. }) => match bits[..] {
                [bits] => format!("int{bits}"),
                _ => "packed integers".to_owned(),
            },
            _ => "packed integers".to_owned(),
        }
    }
}

fn says(section: &Map<String, Value>, field: &str) -> bool {
    section.get(field).and_then(Value::as_bool).unwrap_or(false)
}

/// Whether a field is there and says anything.
fn is_given(section: &Map<String, Value>, field: &str) -> bool {
    section.get(field).is_some_and(|value| match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    })
}

fn text<'a>(section: &'a Map<String, Value>, fields: &[&str]) -> Option<&'a str> {
    fields.iter().find_map(|field| section.get(*field)?.as_str())
}

/// A group size; -1 is a whole row.
fn group(section: &Map<String, Value>, fields: &[&str]) -> Result<Option<usize>, WeightsError> {
    let value = fields.iter().find_map(|field| section.get(*field)?.as_i64());
    match value {
        Some(-1) => Ok(None),
        Some(n) => match usize::try_from(n) {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(bad("\"group_size\" is neither -1 nor positive")),
        },
        None => Err(bad("has no integer \"group_size\"")),
    }
}

fn gptq(section: &Map<String, Value>) -> Result<Method, WeightsError> {
    let format = text(section, &["checkpoint_format", "format"]).unwrap_or("gptq");
    let added = match format {
        "gptq" => 1.0,
        "gptq_v2" => 0.0,
        other => return unsupported(format!("gptq with checkpoint_format {other}")),
    };
    if is_given(section, "dynamic") {
        return unsupported("gptq with \"dynamic\" settings of layers");
    }
    let bits = section.get("bits").and_then(Value::as_u64);
    let bits = bits.and_then(|bits| u8::try_from(bits).ok()).filter(|b| [2, 3, 4, 8].contains(b));
    let bits = bits.ok_or_else(|| bad("\"bits\" is none of 2, 3, 4, 8"))?;
    Ok(Method::Gptq(Gptq { bits, group: group(section, &["group_size"])?, added }))
}

fn awq(section: &Map<String, Value>) -> Result<Method, WeightsError> {
    let version = text(section, &["version", "format"]).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return unsupported(format!("awq with version {version}"));
    }
    let bits = ["bits", "w_bit"].iter().find_map(|field| section.get(*field)?.as_u64());
    if bits.is_some_and(|bits| bits != 4) {
        return Err(bad("\"bits\" of AWQ are not 4"));
    }
    group(section, &["group_size", "q_group_size"]).map(Method::Awq)
}

fn fp8(section: &Map<String, Value>) -> Result<Method, WeightsError> {
    let Some(said) = section.get("weight_block_size").filter(|v| !v.is_null()) else {
        return Ok(Method::Fp8 { block: None });
    };
    match sizes(said).as_deref() {
        Some(&[high, wide]) => Ok(Method::Fp8 { block: Some([high, wide]) }),
        _ => Err(bad("\"weight_block_size\" is no pair of sizes")),
    }
}

fn compressed(section: &Map<String, Value>) -> Result<Method, WeightsError> {
    if is_given(section, "transform_config") {
        return unsupported("compressed-tensors with \"transform_config\"");
    }
    let sparsity = section.get("sparsity_config").and_then(Value::as_object);
    let sparse = sparsity.and_then(|s| text(s, &["format"])).filter(|&f| f != "dense");
    if let Some(sparse) = sparse {
        return unsupported(format!("compressed-tensors with sparsity {sparse}"));
    }
    let groups = section.get("config_groups").and_then(Value::as_object);
    let groups = groups.into_iter().flat_map(|groups| groups.values());
    let (mut bits, mut blocks) = (Vec::new(), Vec::new());
    for weights in groups.filter_map(|group| group.get("weights")?.as_object()) {
        let block = weights.get("block_structure").filter(|v| !v.is_null()).map(structure);
        let integers = text(weights, &["type"]).is_none_or(|t| t.eq_ignore_ascii_case("int"));
        if integers
            && (block.is_some()
                || text(weights, &["strategy"]).is_some_and(|s| s.eq_ignore_ascii_case("block")))
        {
            return unsupported("compressed-tensors with integers and strategy block");
        }
        // The library's default.
        bits.push(weights.get("num_bits").map_or(Some(8), Value::as_u64).unwrap_or(0));
        blocks.extend(block.transpose()?);
    }
    bits.sort_unstable();
    bits.dedup();
    blocks.dedup();
    match blocks[..] {
        [] => Ok(Method::Compressed { bits, block: None }),
        [block] => Ok(Method::Compressed { bits, block: Some(block) }),
        _ => unsupported("compressed-tensors with several \"block_structure\""),
    }
}

/// Rows and columns of a block: a list, or text such as `128x128`, as older files have it.
fn structure(value: &Value) -> Result<[usize; 2], WeightsError> {
    let sizes: Option<Vec<usize>> = match value {
        Value::String(text) => text.split('x').map(|n| n.trim().parse().ok()).collect(),
        _ => sizes(value),
    };
    match sizes.as_deref() {
        Some(&[high, wide]) if high > 0 && wide > 0 => Ok([high, wide]),
        _ => Err(bad("\"block_structure\" is no pair of sizes")),
    }
}

fn sizes(value: &Value) -> Option<Vec<usize>> {
    let size = |v: &Value| usize::try_from(v.as_u64()?).ok().filter(|&n| n > 0);
    value.as_array()?.iter().map(size).collect()
}

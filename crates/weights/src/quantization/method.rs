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
        /// Bits of a code, for listings.
        bits: Option<u64>,
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
            Some(Method::Fp8 { block }) => block,
            _ => None,
        }
    }

    /// The format of codes that are packed in words.
    pub(crate) fn describe(&self) -> String {
        let group = |group: Option<usize>| match group {
            Some(group) => format!("group {group}"),
            None => "a scale a row".to_owned(),
        };
        match self.method {
            Some(Method::Gptq(own)) => format!("GPTQ {}-bit, {}", own.bits, group(own.group)),
            Some(Method::Awq(own)) => format!("AWQ 4-bit, {}", group(own)),
            Some(Method::Compressed { bits: Some(bits) }) => format!("int{bits}"),
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
    let Some(sizes) = section.get("weight_block_size").filter(|v| !v.is_null()) else {
        return Ok(Method::Fp8 { block: None });
    };
    let size = |v: &Value| usize::try_from(v.as_u64()?).ok().filter(|&n| n > 0);
    let sizes: Option<Vec<usize>> = sizes.as_array().and_then(|s| s.iter().map(size).collect());
    match sizes.as_deref() {
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
    let bits =
        groups.and_then(|g| g.values().find_map(|g| g.pointer("/weights/num_bits")?.as_u64()));
    let blocks = groups.and_then(|g| {
        let list = g.values().find_map(|g| g.pointer("/weights/block_structure")?.as_array())?;
        let size = |i: usize| usize::try_from(list.get(i)?.as_u64()?).ok().filter(|&n| n > 0);
        Some([size(0)?, size(1)?])
    });
    Ok(match blocks {
        Some(block) => Method::Fp8 { block: Some(block) },
        None => Method::Compressed { bits },
    })
}

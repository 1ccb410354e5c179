//! Names of the source as MLX has them.

use super::{ConvertError, source::Source};
use safetensors::Dtype;
use std::collections::HashMap;

/// A tensor of the source, by its name there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    pub(super) source: Source<'a>,
}

/// A name in the destination, and what goes there.
type Tensors<'a> = (String, Vec<Part<'a>>);

/// Mixtral's names of an expert's maps as MLX has them: `w3.weight` to `up_proj.weight`.
fn mlx_name(map: &str) -> String {
    let (name, rest) = map.split_once('.').unwrap_or((map, ""));
    match name {
        "w1" => format!("gate_proj.{rest}"),
        "w2" => format!("down_proj.{rest}"),
        "w3" => format!("up_proj.{rest}"),
        _ => map.to_owned(),
    }
}

/// Experts' tensors together, as MLX has them: `experts.3.up_proj` to `switch_mlp.up_proj`.
pub(super) fn stacked<'a>(sorted: Vec<Part<'a>>) -> Result<Vec<Tensors<'a>>, ConvertError> {
    let (mut all, mut places) = (Vec::<Tensors<'a>>::new(), HashMap::<String, usize>::new());
    for part @ Part { name, source } in sorted {
        let fused = ["gate_up_proj", "gate_up_proj_blocks"];
        if fused.iter().any(|own| name.ends_with(&format!(".experts.{own}")))
            && source.shape().len() >= 3
        {
            return Err(ConvertError::Layout { what: "experts that are all in one tensor" });
        }
        let Some((before, (number, after))) =
            name.split_once(".experts.").and_then(|(b, rest)| Some((b, rest.split_once('.')?)))
        else {
            all.push((name.to_owned(), vec![part]));
            continue;
        };
        let to = format!("{before}.switch_mlp.{}", mlx_name(after));
        let place = *places.entry(to.clone()).or_insert_with(|| {
            all.push((to, Vec::new()));
            all.len() - 1
        });
        let sources = &mut all[place].1;
        let same =
            |p: &Part<'_>| p.source.shape() == source.shape() && p.source.dtype() == source.dtype();
        let fits = sources.first().is_none_or(same);
        if number.parse() != Ok(sources.len()) || !fits || source.shape().len() != 2 {
            return Err(ConvertError::Layout { what: "experts that are not all of one kind" });
        }
        sources.push(part);
    }
    Ok(all)
}

/// The layer and row length of a matrix that MLX holds in a `Linear` or an `Embedding`, or of
/// experts' matrices that are stacked already.
pub(super) fn layer_of<'a>(
    name: &'a str,
    source: Source<'_>,
) -> Result<Option<(&'a str, usize)>, ConvertError> {
    let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
    let cols = match *source.shape() {
        [_, cols] => cols,
        [_, _, cols] if layer.contains(".switch_mlp.") => cols,
        _ => return Ok(None),
    };
    if !matches!(source.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        let got = format!("{:?}", source.dtype());
        return Err(ConvertError::DType { name: name.to_owned(), got });
    }
    Ok((cols > 0).then_some((layer, cols)))
}

/// Sorts layer 2 before layer 10.
pub(super) fn natural(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|s| (s.parse().unwrap_or(u64::MAX), s)).collect()
}

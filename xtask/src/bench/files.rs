//! The models that are compared, made once and kept in a folder.

use super::{
    cell::Format,
    child,
    gguf::{self, Stored},
    random,
    shape::{self, Shape},
    vocabulary::{END_OF_TEXT, END_OF_TURN, Vocabulary},
};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
};
use taper_tensor::AffineFormat;
use taper_weights::{ConvertOptions, convert};

/// Weights that share a scale.
const GROUP: usize = 64;

/// Where models and peers are kept.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    dir: PathBuf,
}

impl Files {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Self { dir: std::path::absolute(dir)? })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A checkpoint of random weights, in bf16 or as this project's converter quantizes it.
    pub(crate) fn checkpoint(&self, shape: &Shape, format: Format) -> Result<PathBuf> {
        let (suffix, bits) = match format {
            Format::Bf16 => ("bf16", None),
            Format::Bits4 => ("4bit-g64", Some(4)),
            Format::Bits8 => ("8bit-g64", Some(8)),
        };
        let dir = self.dir.join(format!("{}-{suffix}", shape.name));
        if dir.is_dir() {
            return Ok(dir);
        }
        match bits {
            None => write_checkpoint(shape, &dir)?,
            Some(bits) => {
                let source = self.checkpoint(shape, Format::Bf16)?;
                let bar = bar(&format!("quantizing {}", shape.name), 0);
                let options = ConvertOptions::new(AffineFormat { bits, group: GROUP });
                convert(&source, &dir, &options, &mut |done, total| {
                    bar.set_length(total);
                    bar.set_position(done);
                })?;
                bar.finish_and_clear();
            }
        }
        Ok(dir)
    }

    /// A checkpoint of random 4-bit weights, made in a fraction of the time that [`Self::checkpoint`] takes.
    pub(crate) fn random_checkpoint(&self, shape: &Shape) -> Result<PathBuf> {
        let dir = self.dir.join(format!("{}-random-4bit-g64", shape.name));
        if !dir.is_dir() {
            println!("making {}", dir.display());
            let part = start(&dir, random::config(shape))?;
            fs::write(part.join("model.safetensors"), random::checkpoint(shape)?)?;
            fs::rename(&part, &dir).with_context(|| format!("naming {}", dir.display()))?;
        }
        Ok(dir)
    }

    /// The weights for llama.cpp, quantized by its own program. `pure` keeps the embedding at
    /// the bits of the rest, where llama.cpp would choose more for a tied one.
    pub(crate) fn gguf(
        &self,
        shape: &Shape,
        format: Format,
        quantize: &Path,
        pure: bool,
    ) -> Result<PathBuf> {
        let kind = match format {
            Format::Bf16 => return self.bf16_gguf(shape),
            Format::Bits4 => "Q4_0",
            Format::Bits8 => "Q8_0",
        };
        let suffix = if pure { "-pure" } else { "" };
        let path = self.dir.join(format!("{}-{kind}{suffix}.gguf", shape.name));
        if !path.is_file() {
            let part = path.with_extension("part");
            let mut command = Command::new(quantize);
            command.args(pure.then_some("--pure")).arg(self.bf16_gguf(shape)?).arg(&part);
            println!("quantizing {}", path.display());
            child::run(command.arg(kind))?;
            fs::rename(&part, &path)?;
        }
        Ok(path)
    }

    fn bf16_gguf(&self, shape: &Shape) -> Result<PathBuf> {
        self.written(shape, Stored::Bf16, &format!("{}-BF16.gguf", shape.name))
    }

    /// Random weights in `Q4_0`, the embedding too; not those of a checkpoint.
    pub(crate) fn random_gguf(&self, shape: &Shape) -> Result<PathBuf> {
        self.written(shape, Stored::Q4, &format!("{}-random-Q4_0.gguf", shape.name))
    }

    fn written(&self, shape: &Shape, stored: Stored, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if !path.is_file() {
            let part = path.with_extension("part");
            let bar = bar(&format!("writing {}", path.display()), 2 * shape.parameters() as u64);
            let mut out = BufWriter::new(File::create(&part)?);
            gguf::write(&mut out, shape, stored, &Vocabulary::random(), &mut |done| {
                bar.set_position(done);
            })?;
            out.flush()?;
            fs::rename(&part, &path)?;
            bar.finish_and_clear();
        }
        Ok(path)
    }
}

/// Bytes of a checkpoint's weights, or of a GGUF file.
pub(crate) fn weight_bytes(path: &Path) -> Result<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    let mut bytes = 0;
    for entry in path.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            bytes += path.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Makes the folder that becomes a checkpoint's, with all but its weights.
fn start(dir: &Path, mut config: Map<String, Value>) -> Result<PathBuf> {
    let part = dir.with_extension("part");
    if part.is_dir() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(&part)?;
    Vocabulary::random().write(&part)?;
    let ids = [("bos_token_id", json!(END_OF_TEXT)), ("eos_token_id", json!(END_OF_TURN))];
    config.extend(ids.clone().map(|(key, id)| (key.to_owned(), id)));
    fs::write(part.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    let generation: Map<_, _> = ids.map(|(key, id)| (key.to_owned(), id)).into_iter().collect();
    fs::write(part.join("generation_config.json"), serde_json::to_vec_pretty(&generation)?)?;
    Ok(part)
}

fn write_checkpoint(shape: &Shape, dir: &Path) -> Result<()> {
    let part = start(dir, shape.config())?;
    let bar = bar(&format!("writing {}", dir.display()), 2 * shape.parameters() as u64);
    let mut out = BufWriter::new(File::create(part.join("model.safetensors"))?);
    let tensors = shape.tensors();
    let (mut header, mut at) = (Map::new(), 0);
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for tensor in &tensors {
        for (name, dims) in tensor.parts() {
            let end = at + 2 * dims.iter().product::<usize>();
            let entry = json!({"dtype": "BF16", "shape": dims, "data_offsets": [at, end]});
            header.insert(name, entry);
            at = end;
        }
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (i, tensor) in tensors.iter().enumerate() {
        out.write_all(&shape::values(i, tensor))?;
        bar.inc(2 * tensor.len() as u64);
    }
    out.flush()?;
    bar.finish_and_clear();
    fs::rename(&part, dir).with_context(|| format!("naming {}", dir.display()))
}

fn bar(what: &str, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(what.to_owned());
    let style = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_written_once_and_opens() {
        let temp = std::env::temp_dir().join(format!("taper-bench-{}", std::process::id()));
        let files = Files::new(&temp).unwrap();
        let tiny = Shape { name: "tiny", hidden: 8, layers: 1, intermediate: 8, ..shape::SMALL };
        let dir = files.checkpoint(&tiny, Format::Bf16).unwrap();
        let bytes = fs::read(dir.join("model.safetensors")).unwrap();
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), tiny.tensors().len());
        for tensor in tiny.tensors() {
            assert_eq!(read.tensor(&tensor.name).unwrap().shape(), tensor.dims);
        }
        assert!(weight_bytes(&dir).unwrap() > 2 * tiny.parameters() as u64);
        assert_eq!(files.checkpoint(&tiny, Format::Bf16).unwrap(), dir);
        fs::remove_dir_all(temp).unwrap();
    }
}

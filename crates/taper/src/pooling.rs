//! How the vectors of a text's tokens become one, as sentence-transformers' files say.

use crate::{Error, Result};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};
use taper_tensor::{Linear, Phase, Tensor, Weight, cpu::RowSource};
use taper_weights::TensorFile;

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one's.
    Cls,
    /// The last one's.
    LastToken,
    /// The largest of each element.
    Max,
}

/// What is done with the encoder's vectors, how long a text may be, and what is written before one.
#[derive(Debug)]
pub(crate) struct Modules {
    pub(crate) pooling: Pooling,
    /// In their order.
    pub(crate) after: Vec<After>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) prompts: Prompts,
}

/// What is done with a text's vector.
#[derive(Debug)]
pub(crate) enum After {
    /// A linear map, and perhaps `tanh` of what it gives.
    Dense { map: Box<Linear>, bias: Option<Vec<f32>>, tanh: bool },
    /// Its length becomes 1.
    Normalize,
}

#[derive(Deserialize)]
struct TokenizerLimit {
    model_max_length: Option<f64>,
}

impl After {
    /// A `Dense` module in a directory, for vectors of `inputs` elements where that is known.
    fn dense(dir: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            in_features: usize,
            out_features: usize,
            bias: Option<bool>,
            activation_function: Option<String>,
        }
        let path = dir.join("config.json");
        let wrong = |what: &str| Error::Embedding { path: path.clone(), what: what.to_owned() };
        let config: Config = json(&path)?.ok_or_else(|| wrong("no config"))?;
        let tanh = match config.activation_function.as_deref() {
            // As sentence-transformers has it where nothing is said.
            None | Some("torch.nn.modules.activation.Tanh") => true,
            Some("torch.nn.modules.linear.Identity") => false,
            Some(other) => return Err(wrong(&format!("activation_function {other}"))),
        };
        let file = TensorFile::open(&dir.join("model.safetensors"))?;
        let weight = file.matrix("linear.weight")?;
        if [weight.rows(), weight.cols()] != [config.out_features, config.in_features] {
            return Err(wrong("in_features and out_features, beside a matrix of another shape"));
        }
        let bias = match config.bias {
            Some(false) => None,
            _ => Some(file.vector("linear.bias")?),
        };
        if bias.as_ref().is_some_and(|bias| bias.len() != config.out_features) {
            return Err(wrong("out_features, beside a bias of another length"));
        }
        Ok(Self::Dense { map: Box::new(Linear::new(Weight::Dense(weight))), bias, tanh })
    }

    /// Elements of a vector after one of so many.
    pub(crate) fn outputs(&self, inputs: usize) -> Option<usize> {
        match self {
            Self::Dense { map, .. } => (map.in_features() == inputs).then(|| map.out_features()),
            Self::Normalize => Some(inputs),
        }
    }

    pub(crate) fn of(&self, mut vector: Vec<f32>) -> Result<Vec<f32>> {
        match self {
            Self::Normalize => {
                normalize(&mut vector);
                Ok(vector)
            }
            Self::Dense { map, bias, tanh } => {
                let n = vector.len();
                let y = map.forward(&Tensor::from_vec(vector, &[1, n])?, Phase::Decode)?;
                let mut y = y.to_vec()?;
                y.iter_mut().zip(bias.iter().flatten()).for_each(|(y, b)| *y += b);
                if *tanh {
                    y.iter_mut().for_each(|y| *y = y.tanh());
                }
                Ok(y)
            }
        }
    }
}

/// Makes a vector's length 1.
pub(crate) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= length);
}

/// What is written before a text, by what the text is for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Prompts {
    #[serde(default)]
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    path: PathBuf,
    r#type: String,
}

#[derive(Deserialize)]
struct Sentence {
    max_seq_length: Option<usize>,
}

/// Vectors are averaged, as sentence-transformers does it where nothing is said.
impl Default for Modules {
    fn default() -> Self {
        let (after, prompts) = (Vec::new(), Prompts::default());
        Self { pooling: Pooling::Mean, after, max_tokens: None, prompts }
    }
}

impl Modules {
    /// Reads `modules.json`, and the files that it names. Without it vectors are averaged, as
    /// sentence-transformers does it.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let prompts = dir.join("config_sentence_transformers.json");
        modules.prompts = json(&prompts)?.unwrap_or_default();
        let Prompts { prompts: named, default_prompt_name } = &modules.prompts;
        if let Some(name) = default_prompt_name.as_ref().filter(|name| !named.contains_key(*name)) {
            let what = format!("default_prompt_name {name:?}, which is none of its prompts");
            return Err(Error::Embedding { path: prompts, what });
        }
        let sentence: Option<Sentence> = json(&dir.join("sentence_bert_config.json"))?;
        let tokenizer: Option<TokenizerLimit> = json(&dir.join("tokenizer_config.json"))?;
        // What says nothing there is a number that no text has.
        let own = tokenizer.and_then(|t| t.model_max_length).filter(|&n| n < f64::from(u32::MAX));
        let own = own.map(|n| n as usize);
        modules.max_tokens = sentence.and_then(|s| s.max_seq_length).or(own);
        let file = dir.join("modules.json");
        let Some(list) = json::<Vec<Module>>(&file)? else { return Ok(modules) };
        for Module { path, r#type } in list {
            // It stays below the checkpoint.
            if !path.components().all(|part| matches!(part, Component::Normal(_))) {
                let what = format!("the path {} of modules.json", path.display());
                return Err(Error::Embedding { path: file, what });
            }
            // Versions of the library name their modules by different paths.
            match r#type.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Normalize" => modules.after.push(After::Normalize),
                "Dense" => modules.after.push(After::dense(&dir.join(path))?),
                "Pooling" => modules.pooling = Pooling::read(&dir.join(path).join("config.json"))?,
                other => {
                    let what = format!("the module {other} of modules.json");
                    return Err(Error::Embedding { path: file, what });
                }
            }
        }
        Ok(modules)
    }
}

impl Pooling {
    /// The one way that a file switches on.
    fn read(path: &Path) -> Result<Self> {
        let missing = || Error::Embedding { path: path.to_owned(), what: "no pooling".to_owned() };
        let config: serde_json::Value = json(path)?.ok_or_else(missing)?;
        let fields = config.as_object().ok_or_else(missing)?;
        if config.get("include_prompt").is_some_and(|include| include == false) {
            let what = "include_prompt false".to_owned();
            return Err(Error::Embedding { path: path.to_owned(), what });
        }
        let on = |name: &&String| name.starts_with("pooling_mode_") && fields[*name] == true;
        let mut modes: Vec<_> = fields.keys().filter(on).map(String::as_str).collect();
        modes.extend(config.get("pooling_mode").and_then(|mode| mode.as_str()));
        match modes[..] {
            ["pooling_mode_mean_tokens" | "mean"] => Ok(Self::Mean),
            ["pooling_mode_cls_token" | "cls"] => Ok(Self::Cls),
            ["pooling_mode_lasttoken" | "lasttoken"] => Ok(Self::LastToken),
            ["pooling_mode_max_tokens" | "max"] => Ok(Self::Max),
            [] => Err(missing()),
            _ => Err(Error::Embedding { path: path.to_owned(), what: modes.join(" with ") }),
        }
    }

    /// The vector of a text, of its tokens' vectors.
    pub(crate) fn of(self, tokens: &[Vec<f32>]) -> Vec<f32> {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return Vec::new() };
        match self {
            Self::Cls => first.clone(),
            Self::LastToken => last.clone(),
            Self::Max => fold(tokens, first, |x, y| *x = x.max(y)),
            Self::Mean => {
                let mut sum = fold(tokens, first, |x, y| *x += y);
                sum.iter_mut().for_each(|x| *x /= tokens.len() as f32);
                sum
            }
        }
    }
}

/// The tokens behind the first, folded into it.
fn fold(tokens: &[Vec<f32>], first: &[f32], with: impl Fn(&mut f32, f32)) -> Vec<f32> {
    let mut out = first.to_vec();
    for token in &tokens[1..] {
        out.iter_mut().zip(token).for_each(|(x, y)| with(x, *y));
    }
    out
}

/// Reads a file that need not be there.
fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|source| {
        let what = source.to_string();
        Error::Embedding { path: path.to_owned(), what }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_become_one() {
        let tokens = [vec![1.0, 8.0], vec![3.0, 2.0], vec![5.0, 2.0]];
        assert_eq!(Pooling::Mean.of(&tokens), [3.0, 4.0]);
        assert_eq!(Pooling::Cls.of(&tokens), [1.0, 8.0]);
        assert_eq!(Pooling::LastToken.of(&tokens), [5.0, 2.0]);
        assert_eq!(Pooling::Max.of(&tokens), [5.0, 8.0]);
    }

    #[test]
    fn files_say_how() -> Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let bare = Modules::read(dir.path())?;
        assert!(
            bare.pooling == Pooling::Mean && bare.after.is_empty() && bare.max_tokens.is_none()
        );
        fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        write("sentence_bert_config.json", r#"{"max_seq_length": 256}"#);
        write(
            "modules.json",
            r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#,
        );
        let missing = Modules::read(dir.path()).unwrap_err().to_string();
        assert!(missing.contains("1_Pooling"), "{missing}");
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": false}"#,
        );
        let read = Modules::read(dir.path())?;
        assert_eq!((read.pooling, read.max_tokens), (Pooling::Cls, Some(256)));
        assert!(matches!(read.after[..], [After::Normalize]));
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}"#,
        );
        assert!(Modules::read(dir.path()).is_err(), "two at once");
        write(
            "modules.json",
            r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#,
        );
        let dense = Modules::read(dir.path()).unwrap_err().to_string();
        assert!(dense.contains("2_Dense"), "{dense}");
        write("modules.json", r#"[{"path": "3", "type": "sentence_transformers.models.LSTM"}]"#);
        let other = Modules::read(dir.path()).unwrap_err().to_string();
        assert!(other.contains("LSTM"), "{other}");
        write("modules.json", "[]");
        write("config_sentence_transformers.json", r#"{"default_prompt_name": "q"}"#);
        let prompts = Modules::read(dir.path()).unwrap_err().to_string();
        assert!(prompts.contains("default_prompt_name"), "{prompts}");
        Ok(())
    }

    #[test]
    fn modules_are_below_their_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, outer) = (dir.path().join("model"), dir.path().join("1_Pooling"));
        fs::create_dir(&inner).unwrap();
        fs::create_dir(&outer).unwrap();
        fs::write(outer.join("config.json"), r#"{"pooling_mode": "cls"}"#).unwrap();
        let absolute = outer.to_str().unwrap();
        for path in ["../1_Pooling", "1_Pooling/../../1_Pooling", absolute] {
            let modules = serde_json::json!([{"path": path, "type": "models.Pooling"}]);
            fs::write(inner.join("modules.json"), modules.to_string()).unwrap();
            let error = Modules::read(&inner).unwrap_err();
            assert!(matches!(error, Error::Embedding { .. }), "{error}");
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}

//! How the vectors of a text's tokens become one, as sentence-transformers' files say.

use crate::{Error, Result};
use serde::Deserialize;
use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

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

/// What is done with the encoder's vectors, and how long a text may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modules {
    pub(crate) pooling: Pooling,
    pub(crate) normalise: bool,
    pub(crate) max_tokens: Option<usize>,
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

impl Modules {
    /// Reads `modules.json`, and the files that it names. Without it vectors are averaged, as
    /// sentence-transformers does it.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut modules = Self { pooling: Pooling::Mean, normalise: false, max_tokens: None };
        let sentence: Option<Sentence> = json(&dir.join("sentence_bert_config.json"))?;
        modules.max_tokens = sentence.and_then(|s| s.max_seq_length);
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
                "Normalize" => modules.normalise = true,
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
        assert_eq!((bare.pooling, bare.normalise, bare.max_tokens), (Pooling::Mean, false, None));
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
        assert_eq!(
            (read.pooling, read.normalise, read.max_tokens),
            (Pooling::Cls, true, Some(256))
        );
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
        assert!(dense.contains("Dense"), "{dense}");
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

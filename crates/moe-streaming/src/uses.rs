//! How often experts were used, kept from run to run.

use crate::ExpertError;
use serde::{Deserialize, Serialize};
use std::{fs, io, path::Path};

/// Decayed uses of every expert of every layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Uses {
    /// `[layers][experts]`
    pub layers: Vec<Vec<f32>>,
}

impl Uses {
    /// Name of the file in a pack.
    pub const FILE: &'static str = "uses.json";

    /// Reads them; `None` where there are none, or none of a model of these shapes.
    ///
    /// # Errors
    /// There is a file, and it cannot be read.
    pub fn read(path: &Path, experts: &[usize]) -> Result<Option<Self>, ExpertError> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| ExpertError::File { path: path.to_owned(), source })?,
        };
        let uses: Option<Self> = serde_json::from_slice(&text).ok();
        let fits = |uses: &Self| uses.layers.iter().map(Vec::len).eq(experts.iter().copied());
        Ok(uses.filter(fits))
    }

    /// Writes them, at once.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ExpertError> {
        let io = |source| ExpertError::File { path: path.to_owned(), source };
        let text = serde_json::to_vec(self).map_err(|e| io(e.into()))?;
        // Two servers on one pack write files of their own.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        fs::write(&part, text).and_then(|()| fs::rename(&part, path)).map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_come_back_for_the_same_shapes_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Uses::FILE);
        assert_eq!(Uses::read(&path, &[2]).unwrap(), None);
        let uses = Uses { layers: vec![vec![1.0, 0.5], vec![3.0]] };
        uses.write(&path).unwrap();
        assert_eq!(Uses::read(&path, &[2, 1]).unwrap(), Some(uses.clone()));
        assert_eq!(Uses::read(&path, &[2, 2]).unwrap(), None);
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(Uses::read(&path, &[2, 1]).unwrap(), None);
        assert!(uses.write(&dir.path().join("no/file")).is_err());
    }
}

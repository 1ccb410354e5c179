//! Low-rank changes of maps, which some rows of a step go through (LoRA: Hu et al., arXiv 2106.09685).

use super::{Linear, LinearGroup, Place};
use crate::{
    Bytes, DType, DenseWeight, Phase, Result, RmsNorm, Tensor, TensorError, Weight, cpu::RowSource,
    host, ops,
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Columns of a matrix on a GPU are a multiple of so many.
const GPU_COLUMNS: usize = 32;

/// Which matrix of a checkpoint a map was made of, and of which of its rows.
#[derive(Debug, Clone)]
pub struct Module {
    /// Of this map alone.
    id: u64,
    name: Arc<str>,
    outputs: usize,
    /// `None`: all of them, in their order.
    rows: Option<Arc<[usize]>>,
}

impl Module {
    pub(super) fn new(name: &str, outputs: usize) -> Self {
        Self { id: next_id(), name: name.into(), outputs, rows: None }
    }

    /// Module of a map with these of the outputs.
    pub(super) fn take(&self, rows: impl Iterator<Item = usize>) -> Self {
        let rows = match &self.rows {
            Some(own) => rows.filter_map(|row| own.get(row).copied()).collect(),
            None => rows.collect(),
        };
        Self { id: next_id(), rows: Some(rows), ..self.clone() }
    }

    /// Its name, as [`Linear::named`] was told.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Outputs of the matrix, those that the map lacks included.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `up(down(x))`, which is added to what a map gives.
#[derive(Debug, Clone)]
struct LowRank {
    down: Linear,
    up: Linear,
}

impl LowRank {
    /// Adds to the `rows` of `y`, or all, what it makes of those of `x`.
    fn add(&self, x: &Tensor, y: Tensor, rows: Option<&[u32]>, phase: Phase) -> Result<Tensor> {
        let on = |x: &Tensor, y: &Tensor| {
            self.up.forward_add(&self.down.forward(x, phase)?, y, None, phase)
        };
        match rows {
            None => on(x, &y),
            Some(rows) => {
                let sum = on(&ops::take_rows(x, rows)?, &ops::take_rows(&y, rows)?)?;
                ops::put_rows(y, rows, &sum)
            }
        }
    }
}

/// Low-rank changes of a model's maps: an adapter.
#[derive(Debug, Clone, Default)]
pub struct LowRankChanges {
    maps: HashMap<u64, LowRank>,
    bytes: u64,
    parameters: u64,
}

impl LowRankChanges {
    /// Adds the change `scale · up · down` of the matrix that a map was made of; the map takes its part of it. Where
    /// products are computed is the map's.
    ///
    /// # Shapes
    /// `down [rank, in]`, `up [outputs of the matrix, rank]`.
    ///
    /// # Errors
    /// Another shape, a map without a name, or a GPU without room.
    pub fn insert(
        &mut self,
        map: &Module,
        [down, up]: [&DenseWeight; 2],
        scale: f32,
        place: Place<'_>,
    ) -> Result<()> {
        let (rank, inputs) = (down.rows(), down.cols());
        if up.cols() != rank || up.rows() != map.outputs {
            let expected = format!("[{}, {rank}]", map.outputs);
            return Err(TensorError::shape("low-rank change", expected, &[up.rows(), up.cols()]));
        }
        // Rows and columns of zeros change nothing.
        let padded = match place.gpu {
            Some(_) => rank.next_multiple_of(GPU_COLUMNS),
            None => rank,
        };
        let mut first = vec![0.0; padded * inputs];
        down.read_rows(0, &mut first[..rank * inputs]);
        let outputs = map.rows.as_ref().map_or(map.outputs, |rows| rows.len());
        let mut second = vec![0.0; outputs * padded];
        for (i, to) in second.chunks_exact_mut(padded.max(1)).enumerate() {
            let row = map.rows.as_ref().map_or(i, |rows| rows[i]);
            up.read_rows(row, &mut to[..rank]);
            to.iter_mut().for_each(|x| *x *= scale);
        }
        let linear = |values: Vec<f32>, shape| {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let weight = DenseWeight::new(shape, DType::F32, Bytes::from_vec(bytes))?;
            let linear = Linear::new(Weight::Dense(weight));
            // On the CPU it stays as it is: its products are exact.
            match place.gpu {
                Some(_) => linear.place(place),
                None => Ok(linear),
            }
        };
        let down = linear(first, (padded, inputs))?;
        let up = linear(second, (outputs, padded))?;
        self.bytes += down.bytes() + up.bytes();
        self.parameters += (rank * (inputs + outputs)) as u64;
        self.maps.insert(map.id, LowRank { down, up });
        Ok(())
    }

    /// Maps that it changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Numbers that it has.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }
}

/// Which rows of a step go through which changes.
#[derive(Debug, Clone, Default)]
pub struct ChangedRows<'a> {
    /// Rows of the step.
    rows: usize,
    groups: Vec<(&'a LowRankChanges, Vec<u32>)>,
}

impl<'a> ChangedRows<'a> {
    /// Rows of a step, of which each has its own changes or none.
    pub fn new(rows: impl IntoIterator<Item = Option<&'a LowRankChanges>>) -> Self {
        let mut changed = Self::default();
        for change in rows {
            let row = changed.rows as u32;
            changed.rows += 1;
            let Some(change) = change else { continue };
            match changed.groups.iter_mut().find(|(own, _)| std::ptr::eq(*own, change)) {
                Some((_, rows)) => rows.push(row),
                None => changed.groups.push((change, vec![row])),
            }
        }
        changed
    }

    /// Changes of the rows that are kept, in their order.
    #[must_use]
    pub fn take(&self, kept: &[u32]) -> Self {
        let mut of = vec![None; self.rows];
        for (change, rows) in &self.groups {
            rows.iter().for_each(|&row| of[row as usize] = Some(*change));
        }
        Self::new(kept.iter().map(|&row| of.get(row as usize).copied().flatten()))
    }

    /// Whether no row is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// How maps are applied in a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pass<'a> {
    /// Whose arithmetic it is.
    pub phase: Phase,
    /// Rows that adapters change; `None` where there are none.
    pub changes: Option<&'a ChangedRows<'a>>,
}

impl From<Phase> for Pass<'_> {
    fn from(phase: Phase) -> Self {
        Self { phase, changes: None }
    }
}

impl<'a> Pass<'a> {
    /// What changes a map, and the rows, or all, that it changes.
    fn of(self, map: &Linear) -> impl Iterator<Item = (&'a LowRank, Option<&'a [u32]>)> {
        let id = map.module.as_ref().map(|module| module.id);
        let changes = self.changes.filter(|_| id.is_some());
        let groups = changes.into_iter().flat_map(|c| c.groups.iter().map(|g| (c.rows, g)));
        groups.filter_map(move |(all, (change, rows))| {
            let rows = Some(rows.as_slice()).filter(|rows| rows.len() < all);
            Some((change.maps.get(&id?)?, rows))
        })
    }

    /// Whether something changes a map.
    #[must_use]
    pub fn changes(self, map: &Linear) -> bool {
        self.of(map).next().is_some()
    }
}

impl Linear {
    /// Says of which matrix of a checkpoint the map is, for changes to find.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let module = Some(Arc::new(Module::new(name, self.out_features())));
        Self { module, ..self }
    }

    /// The matrix that it was made of, if it was told.
    #[must_use]
    pub fn module(&self) -> Option<&Module> {
        self.module.as_deref()
    }

    /// What changes make of the rows `y` that the map made of `x`.
    pub(super) fn changed(&self, x: &Tensor, mut y: Tensor, pass: Pass<'_>) -> Result<Tensor> {
        for (change, rows) in pass.of(self) {
            let (t, _) = host::dims2("linear", x)?;
            match pass.changes.map(|changes| changes.rows) {
                Some(rows) if rows != t => {
                    let expected = format!("the {rows} rows of the step");
                    return Err(TensorError::shape("changed linear", expected, x.dims()));
                }
                _ => y = change.add(x, y, rows, pass.phase)?,
            }
        }
        Ok(y)
    }
}

impl<const N: usize> LinearGroup<N> {
    pub(super) fn is_changed(&self, pass: Pass<'_>) -> bool {
        pass.changes.is_some() && self.parts.iter().any(|part| pass.changes(part))
    }

    /// What changes make of the rows that the maps made of `norm(x)`.
    pub(super) fn changed(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        mut outs: [Tensor; N],
        pass: Pass<'_>,
    ) -> Result<[Tensor; N]> {
        if !self.is_changed(pass) {
            return Ok(outs);
        }
        let normed = norm.map(|norm| norm.forward(x)).transpose()?;
        let x = normed.as_ref().unwrap_or(x);
        for (part, out) in self.parts.iter().zip(&mut outs) {
            let own = std::mem::replace(out, x.clone());
            *out = part.changed(x, own, pass)?;
        }
        Ok(outs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Activation;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let next = |x: &mut u32| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*x >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        std::iter::successors(Some(seed), |&x| Some(x)).scan(seed, |x, _| next(x)).take(n).collect()
    }

    fn dense(values: &[f32], shape: (usize, usize)) -> DenseWeight {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        DenseWeight::new(shape, DType::F32, Bytes::from_vec(bytes)).unwrap()
    }

    fn linear(rows: usize, cols: usize, seed: u32) -> Linear {
        Linear::new(Weight::Dense(dense(&numbers(rows * cols, seed), (rows, cols)))).named("m")
    }

    /// The changes of a map of rank 2, and the map with them in its weights.
    fn changed(map: &Linear, seed: u32, changes: &mut LowRankChanges) -> Linear {
        let (rows, cols) = (map.out_features(), map.in_features());
        let (a, b) = (numbers(2 * cols, seed), numbers(2 * rows, seed + 1));
        let pair = [&dense(&a, (2, cols)), &dense(&b, (rows, 2))];
        changes.insert(map.module().unwrap(), pair, 0.5, Place::default()).unwrap();
        let unit = |i| Tensor::from_vec((0..cols).map(|c| f32::from(c == i)).collect(), &[1, cols]);
        let mut weights = vec![0.0; rows * cols];
        for c in 0..cols {
            let own = map.forward(&unit(c).unwrap(), Phase::Decode).unwrap().to_vec().unwrap();
            for r in 0..rows {
                let delta: f32 = (0..2).map(|k| b[2 * r + k] * a[k * cols + c]).sum();
                weights[r * cols + c] = own[r] + 0.5 * delta;
            }
        }
        Linear::new(Weight::Dense(dense(&weights, (rows, cols))))
    }

    fn close(got: &Tensor, want: &Tensor) {
        let (got, want) = (got.to_vec().unwrap(), want.to_vec().unwrap());
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() < 1e-4 * (1.0 + w.abs()), "{g} {w}");
        }
    }

    #[test]
    fn each_row_goes_through_its_own_changes() {
        let map = linear(6, 8, 1);
        let (mut one, mut two) = (LowRankChanges::default(), LowRankChanges::default());
        let merged = [changed(&map, 5, &mut one), changed(&map, 9, &mut two), map.clone()];
        let x = Tensor::from_vec(numbers(5 * 8, 77), &[5, 8]).unwrap();
        let rows = [Some(&one), None, Some(&two), Some(&one), None];
        let changes = ChangedRows::new(rows);
        let pass = Pass { phase: Phase::Decode, changes: Some(&changes) };
        let got = map.forward(&x, pass).unwrap();
        for (i, own) in [0, 2, 1, 0, 2].into_iter().enumerate() {
            let row = x.entries(i..i + 1).unwrap();
            let got = got.entries(i..i + 1).unwrap();
            close(&got, &merged[own].forward(&row, Phase::Decode).unwrap());
            // Alone it has the same bits.
            let alone = ChangedRows::new([rows[i]]);
            let pass = Pass { phase: Phase::Decode, changes: Some(&alone) };
            assert_eq!(map.forward(&row, pass).unwrap().to_vec().unwrap(), got.to_vec().unwrap());
        }
        let kept = changes.take(&[4, 2]);
        let pass = Pass { phase: Phase::Decode, changes: Some(&kept) };
        let some = ops::take_rows(&x, &[4, 2]).unwrap();
        let want = ops::take_rows(&got, &[4, 2]).unwrap();
        assert_eq!(map.forward(&some, pass).unwrap().to_vec().unwrap(), want.to_vec().unwrap());
        let wrong = map.forward(&x, pass);
        assert!(matches!(wrong, Err(TensorError::Shape { .. })), "rows of another step");
    }

    #[test]
    fn parts_of_a_matrix_take_their_part_of_a_change() {
        let whole = linear(6, 8, 1);
        let mut changes = LowRankChanges::default();
        let merged = changed(&whole, 5, &mut changes);
        let parts = [whole.outputs(4, 2).unwrap(), whole.take_outputs(&[3, 0]).unwrap()];
        let of = [merged.outputs(4, 2).unwrap(), merged.take_outputs(&[3, 0]).unwrap()];
        let again = parts[1].take_outputs(&[1]).unwrap();
        let x = Tensor::from_vec(numbers(8, 7), &[1, 8]).unwrap();
        let pair = [&dense(&numbers(16, 5), (2, 8)), &dense(&numbers(12, 6), (6, 2))];
        for part in parts.iter().chain([&again]) {
            changes.insert(part.module().unwrap(), pair, 0.5, Place::default()).unwrap();
        }
        let rows = ChangedRows::new([Some(&changes)]);
        let pass = Pass { phase: Phase::Decode, changes: Some(&rows) };
        for (part, of) in parts.iter().zip(&of) {
            close(&part.forward(&x, pass).unwrap(), &of.forward(&x, Phase::Decode).unwrap());
        }
        let want = of[1].take_outputs(&[1]).unwrap().forward(&x, Phase::Decode).unwrap();
        close(&again.forward(&x, pass).unwrap(), &want);
        let short = [pair[0], &dense(&numbers(10, 6), (5, 2))];
        let error = changes.insert(whole.module().unwrap(), short, 0.5, Place::default());
        assert!(matches!(error, Err(TensorError::Shape { .. })));
    }

    #[test]
    fn groups_norms_gates_and_sums_are_changed() {
        let (gate, up, down) = (linear(6, 8, 1), linear(6, 8, 2), linear(8, 6, 3));
        let norm = RmsNorm::new(numbers(8, 4), 1e-5);
        let x = Tensor::from_vec(numbers(3 * 8, 77), &[3, 8]).unwrap();
        let mut changes = LowRankChanges::default();
        let merged = [&gate, &up].map(|map| changed(map, 5, &mut changes));
        let merged_down = changed(&down, 8, &mut changes);
        let rows = ChangedRows::new([Some(&changes); 3]);
        let pass = Pass { phase: Phase::Decode, changes: Some(&rows) };
        let (group, merged) = (LinearGroup::new([gate, up]), LinearGroup::new(merged));
        let (group, merged) = (group.unwrap(), merged.unwrap());
        let run = |group: &LinearGroup<2>, down: &Linear, pass: Pass<'_>| {
            let residual = Some((&x, None));
            let act = Activation::Silu;
            group.forward_down(down, &x, Some(&norm), act, residual, pass).unwrap()
        };
        let want = run(&merged, &merged_down, Phase::Decode.into());
        close(&run(&group, &down, pass), &want);
        let unchanged = run(&group, &down, Phase::Decode.into()).to_vec().unwrap();
        assert!(unchanged.iter().zip(want.to_vec().unwrap()).any(|(a, b)| (a - b).abs() > 0.1));
    }
}

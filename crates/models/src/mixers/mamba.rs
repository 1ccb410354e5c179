//! Mamba's selective scan between its projections, some of which are behind its convolution.

use super::{Mixer, Out, Step, convolution};
use crate::{LoadOptions, ModelError, StateSession, norms::Input, source::Source, spec::Spec};
use taper_tensor::{
    CausalConv, ConvShape, Linear, LinearGroup, RmsNorm, SelectiveScan, SelectiveScanInputs,
    SelectiveScanParams, SelectiveScanShape, Tensor, ops,
};

/// What makes one family's Mamba differ from another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MambaSpec {
    pub(crate) scan: SelectiveScanShape,
    /// Tokens that the convolution sees.
    pub(crate) kernel: usize,
    /// Elements that time steps are projected from.
    pub(crate) rank: usize,
    /// Whether the outer projections have biases.
    pub(crate) bias: bool,
    pub(crate) conv_bias: bool,
    pub(crate) norms: ScanNorms,
}

/// Norms of time steps, inputs and readers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScanNorms {
    None,
    /// With weights (Jamba).
    Weights,
    /// Without, and what is added to the mean square (Falcon Mamba).
    Plain(f32),
}

impl MambaSpec {
    pub(crate) fn conv(&self) -> ConvShape {
        ConvShape { channels: self.scan.channels, kernel: self.kernel }
    }
}

/// A layer's recurrence.
#[derive(Debug)]
pub(crate) struct Mamba {
    /// That of the convolution's state among layers with recurrent states; the scan's is the next.
    id: usize,
    spec: MambaSpec,
    /// What is convolved, and the gate.
    projection: LinearGroup<1>,
    conv: CausalConv,
    /// Time steps, inputs and readers.
    inner: Linear,
    norms: Option<[RmsNorm; 3]>,
    time_step: Linear,
    scan: SelectiveScan,
    out: Linear,
}

impl Mamba {
    /// The layer's recurrence below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: MambaSpec,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.mamba");
        let MambaSpec { scan, rank, bias, .. } = spec;
        let SelectiveScanShape { channels, state } = scan;
        let linear = |name: &str, inputs, rows, bias| {
            weights.linear(&format!("{at}.{name}"), inputs, rows, bias)
        };
        let norms = match spec.norms {
            ScanNorms::None => None,
            ScanNorms::Plain(eps) => {
                Some([rank, state, state].map(|n| RmsNorm::new(vec![1.0; n], eps)))
            }
            ScanNorms::Weights => {
                let norm = |name: &str, n| {
                    let gains = weights.vector(&format!("{at}.{name}_layernorm.weight"), n)?;
                    Ok::<_, ModelError>(RmsNorm::new(gains, model.norm_eps))
                };
                Some([norm("dt", rank)?, norm("b", state)?, norm("c", state)?])
            }
        };
        let weight = convolution(weights, &format!("{at}.conv1d"), spec.conv())?;
        let conv_bias = || weights.vector(&format!("{at}.conv1d.bias"), channels);
        let conv_bias = spec.conv_bias.then(conv_bias).transpose()?;
        let params = SelectiveScanParams {
            a_log: weights.array(&format!("{at}.A_log"), &[channels, state])?,
            skip: weights.vector(&format!("{at}.D"), channels)?,
        };
        Ok(Self {
            id,
            spec,
            projection: LinearGroup::new([linear("in_proj", model.hidden, 2 * channels, bias)?])?,
            conv: CausalConv::new(spec.conv(), &weight, conv_bias, true)?,
            inner: linear("x_proj", channels, rank + 2 * state, false)?,
            norms,
            time_step: linear("dt_proj", rank, channels, true)?,
            scan: SelectiveScan::new(scan, params)?,
            out: linear("out_proj", channels, model.hidden, bias)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        Ok(Self {
            projection: self.projection.place(place)?,
            inner: self.inner.place(place)?,
            time_step: self.time_step.place(place)?,
            out: self.out.place(place)?,
            ..self
        })
    }
}

impl Mixer for Mamba {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let SelectiveScanShape { channels, state: size } = self.spec.scan;
        let rank = self.spec.rank;
        let [both] = &self.projection.forward_normed(&input.x, input.norm, step.pass)?;
        let x = &self
            .conv
            .forward(both, 0..channels, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))?;
        let inner = self.inner.forward(x, step.pass)?;
        let mut parts = [
            ops::columns(&inner, 0..rank)?,
            ops::columns(&inner, rank..rank + size)?,
            ops::columns(&inner, rank + size..rank + 2 * size)?,
        ];
        if let Some(norms) = &self.norms {
            for (part, norm) in parts.iter_mut().zip(norms) {
                *part = norm.forward(part)?;
            }
        }
        let [dt, b, c] = &parts;
        let (dt, z) =
            (&self.time_step.forward(dt, step.pass)?, &ops::columns(both, channels..2 * channels)?);
        let inputs = SelectiveScanInputs { x, z, dt, b, c };
        self.scan.forward(inputs, |run| Ok::<_, ModelError>(state.recur(self.id + 1, run)?))
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        let own = [&self.inner, &self.time_step, &self.out];
        self.projection.parts().iter().chain(own).collect()
    }
}

//! The files of kernels.

use super::{
    attention, coded, coded_new, compact, edits, expand, experts, gates, head_maps, key_scores,
    layer, masks, matmul, ops,
    recurrent::{conv, heads, scan, states},
    sampling, shapes, weight,
};
use taper_kernels::Source;

/// Kernels that are compiled together.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// File with the family's kernels.
    pub source: &'static Source,
    /// The parameter structs, as Rust lays them out: name, and name and type of each field.
    pub params: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

/// A file, and the structs that its kernels read.
macro_rules! family {
    ($source:ident, [$($params:ty),*]) => {
        Family { source: &taper_kernels::$source, params: &[$(<$params>::LAYOUT),*] }
    };
}

/// All families of kernels.
pub const FAMILIES: &[Family] = &[
    family!(MATVEC, [weight::MatvecParams]),
    family!(MATVEC_ROWS, [weight::MatvecParams]),
    family!(MATVEC_TILE, [weight::MatvecParams]),
    family!(MATMUL, [matmul::MatmulParams, matmul::FinishParams]),
    family!(MATMUL_TILE, [matmul::PrepareParams, matmul::NextParams, matmul::MatmulParams]),
    family!(MATMUL_WIDE, [matmul::MatmulParams]),
    family!(HEAD_MAPS, [head_maps::HeadMapsParams]),
    family!(EMBED, [weight::EmbedParams]),
    family!(ROWS, [ops::NormParams, ops::LatentParams, ops::RopeParams]),
    family!(LAYER, [layer::LayerParams]),
    family!(ELEMENTWISE, [ops::ElementParams, ops::RowsParams, ops::SumParams]),
    family!(GATES, [gates::ActivationParams, gates::GateParams]),
    family!(SHAPES, [shapes::TakeParams, shapes::JoinParams, shapes::MixParams]),
    family!(
        ATTEND,
        [
            attention::WriteParams,
            attention::AttendTile,
            attention::AttendParams,
            attention::MergeParams
        ]
    ),
    family!(ATTEND_MORE, [attention::WriteParams, attention::AttendTile, attention::AttendParams]),
    family!(ATTEND_PROMPT, [attention::AttendTile, attention::AttendParams]),
    family!(ATTEND_TILE, [attention::AttendTile, attention::AttendParams]),
    family!(CODED, [coded::CodedTile, coded::CodedParams, coded::CodedMergeParams]),
    family!(CODED_MORE, [coded::CodedTile, coded::CodedParams]),
    family!(
        ENCODE,
        [coded::EncodeRun, coded::EncodeParams, coded::ExactParams, coded_new::NewRowsParams]
    ),
    family!(EXPAND, [expand::ExpandParams, expand::RotateParams]),
    family!(EXPERTS, [experts::ExpertParams, experts::AddExpertsParams, experts::ExpertSumParams]),
    family!(EXPERTS_MATMUL, [experts::BeginParams, experts::ExpertTileParams]),
    family!(EXPERTS_TILE, [experts::ExpertTileParams]),
    family!(EXPERTS_WIDE, [experts::ExpertTileParams]),
    family!(ROUTE, [experts::RouteParams, experts::ScoredParams]),
    family!(STATES, [states::CopyStateParams, states::WatchStateParams]),
    family!(CONV, [states::StateRun, states::StateCut, conv::ConvParams]),
    family!(
        HEADS,
        [
            states::StateRun,
            states::StateCut,
            heads::MixParams,
            heads::WalkParams,
            heads::GatedHeadsParams,
            heads::GatedRowsParams
        ]
    ),
    family!(
        SCAN,
        [
            states::StateRun,
            states::StateCut,
            scan::ScanParams,
            scan::LruGatesParams,
            scan::LruParams
        ]
    ),
    family!(SCORE, [key_scores::KeyScoreParams, key_scores::CodedKeyScoreParams]),
    family!(COMPACT, [compact::GatherParams, compact::GatherExactParams]),
    family!(ARGMAX, [sampling::ArgmaxParams]),
    family!(EDIT, [edits::EditRow, edits::Edit, edits::EditParams]),
    family!(MASK, [masks::MaskParams]),
    family!(SAMPLE, [sampling::SampleRow, sampling::SampleParams]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_kernels_has_its_structs() {
        let sorted = |mut names: Vec<&'static str>| {
            names.sort_unstable();
            names
        };
        let ours = sorted(FAMILIES.iter().map(|f| f.source.name).collect());
        assert_eq!(ours, sorted(taper_kernels::SOURCES.iter().map(|s| s.name).collect()));
    }
}

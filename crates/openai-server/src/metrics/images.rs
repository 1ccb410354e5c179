//! Images on the metrics page.

use super::Metrics;
use crate::images::ImageCounts;
use std::{fmt::Write as _, sync::atomic::Ordering::Relaxed};

impl Metrics {
    /// Adds what was done about images, on a server whose model takes them.
    pub(crate) fn render_images(&self, out: &mut String, counts: &ImageCounts) {
        let label = &self.label;
        let [prepare, encode] = counts.times().map(|time| time.as_secs_f64());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed) as f64;
        let all = [
            ("images_total", "Images of requests.", count(&counts.images)),
            ("image_tokens_total", "Prompt tokens that stand for them.", count(&counts.tokens)),
            ("image_cache_hits_total", "Images that were encoded already.", count(&counts.hits)),
            ("images_fetched_total", "Images that came from the web.", count(&counts.fetched)),
            ("videos_total", "Videos of requests.", count(&counts.videos)),
            ("video_frames_total", "Frames of them that were seen.", count(&counts.frames)),
            ("image_prepare_seconds_total", "Time of reading and resizing images.", prepare),
            ("image_encode_seconds_total", "Time of the vision tower.", encode),
        ];
        for (name, help, value) in all {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "# HELP taper:{name} {help}\n# TYPE taper:{name} counter\ntaper:{name}{{{label}}} {value}"
            );
        }
    }
}

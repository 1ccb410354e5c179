//! Speech on the metrics page.

use super::Metrics;
use crate::speech::SpeechCounts;
use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

impl Metrics {
    /// Adds what was done about speech, on a server whose model transcribes it.
    pub(crate) fn render_speech(&self, out: &mut String, counts: &SpeechCounts) {
        let label = &self.label;
        let count = |counter: &AtomicU64| counter.load(Relaxed) as f64;
        let seconds = |counter: &AtomicU64| count(counter) / 1e3;
        let all = [
            ("transcripts_waiting", "gauge", "Files in the queue.", count(&counts.waiting)),
            ("transcripts_total", "counter", "Files written down.", count(&counts.transcripts)),
            (
                "transcripts_failed_total",
                "counter",
                "Files that could not be written down.",
                count(&counts.failed),
            ),
            (
                "transcripts_cancelled_total",
                "counter",
                "Files whose clients went away.",
                count(&counts.cancelled),
            ),
            (
                "transcript_windows_total",
                "counter",
                "Windows whose text stood.",
                count(&counts.windows),
            ),
            (
                "transcript_windows_again_total",
                "counter",
                "Texts of windows that were thrown away for one at a higher temperature.",
                count(&counts.again),
            ),
            ("transcript_segments_total", "counter", "Segments written.", count(&counts.segments)),
            (
                "audio_seconds_total",
                "counter",
                "Seconds of sound written down.",
                seconds(&counts.heard),
            ),
            (
                "transcribe_seconds_total",
                "counter",
                "Time of reading sound and writing it down.",
                seconds(&counts.took),
            ),
        ];
        for (name, kind, help, value) in all {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "# HELP taper:{name} {help}\n# TYPE taper:{name} {kind}\ntaper:{name}{{{label}}} {value}"
            );
        }
    }
}

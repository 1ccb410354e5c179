//! Speech to text: forms on their way in, one worker that transcribes, transcripts on their way out.

mod form;
mod formats;
mod queue;

pub(crate) use form::{FIELDS, Form, Upload};
pub(crate) use formats::{Format, Shown, usage};
pub(crate) use queue::{Progress, SpeechCounts, Transcripts, Waiting};

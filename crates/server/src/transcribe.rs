//! `taper transcribe`: what is said in a file.

use crate::{model, output::Out, transcribe_args::TranscribeArgs};
use anyhow::{Context, Result, ensure};
use std::fs;
use taper::{Speech, SpeechLimits};

pub(crate) fn run(args: &TranscribeArgs) -> Result<()> {
    let source = model::find(Some(&args.model))?;
    ensure!(
        Speech::is_for(&source)?,
        "{source} is no model for speech: its model_type is not whisper"
    );
    if let Some(threads) = args.threads {
        taper::set_threads(threads.into())?;
    }
    let file = fs::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    // Whoever runs this may read a file of any length.
    let limits = SpeechLimits { bytes: usize::MAX, seconds: usize::MAX };
    let model = Speech::from_source(&source, limits)?;
    let mut written = Ok(());
    let transcript = model.transcribe_with(&file, &args.options(), |segment| {
        if args.format == "text" && written.is_ok() {
            written = writeln!(Out, "{}", segment.text.trim());
        }
    });
    let transcript = transcript.with_context(|| args.file.display().to_string())?;
    written?;
    match args.format.as_str() {
        "srt" => write!(Out, "{}", transcript.srt())?,
        "vtt" => write!(Out, "{}", transcript.vtt())?,
        _ => {}
    }
    Ok(())
}

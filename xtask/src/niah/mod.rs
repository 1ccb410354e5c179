//! `cargo xtask niah`: needles in haystacks, against transformers' answers to the same prompts.

mod arm;
mod generate;
mod log;
mod prompt;
mod summary;

use crate::subject::{Subject, UNQUANTIZED, chat, read_json};
use anyhow::{Context, Result, bail, ensure};
use arm::{Arm, Prepared};
use generate::{Job, generate};
use indicatif::{ProgressBar, ProgressStyle};
use log::{Line, Log};
use prompt::{Haystack, Needle, Others};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use summary::{Cell, Summary};

/// Share of right answers below which a run fails, in percent.
const PASS_PERCENT: usize = 95;

/// Most tokens of an answer.
const ANSWER_TOKENS: usize = 48;

/// What statistics of queries are made of: the text that `taper convert` calibrates with.
const CALIBRATION: &str = include_str!("../../../crates/server/src/convert/calibration.txt");

/// Groups of depths in the table.
const BUCKETS: usize = 5;

/// What to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    subject: Subject,
    /// Context lengths in tokens; k is 1,024.
    #[arg(long, default_value = "2k", value_delimiter = ',', value_parser = parse_tokens)]
    ctx: Vec<usize>,
    /// Prompts a context length; the fixture's number by default, 20 where it has none.
    #[arg(long)]
    samples: Option<usize>,
    /// Where the needle is, in percent of the haystack; spread evenly otherwise.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=100))]
    depth: Vec<u8>,
    /// Further needles with other keys.
    #[arg(long, default_value_t = 0)]
    distractors: usize,
    /// Put the further needles right behind the first one.
    #[arg(long)]
    near: bool,
    /// Needles in each text, each of which is asked for in a prompt of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    needles: u8,
    /// What becomes of the cache between prompt and answer: dense, window=ROWS or triattention=ROWS, with rows as
    /// a number or as a share of the prompt's, such as 10%; or recall=PAGES, which an answer attends to beside the
    /// first page and the recent ones; recall=PAGES@ROWS has so many rows that no step reads in memory, and the others on
    /// disk.
    #[arg(long, default_value = "dense", value_delimiter = ',')]
    arm: Vec<Arm>,
    /// Append a JSON object for each context length and arm to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Seed of the first prompt, for prompts that the fixture has not; nothing is compared then.
    #[arg(long, value_name = "SEED")]
    fresh: Option<u64>,
    /// Keep every answer in this file, one JSON object a line, and take from it those that it has:
    /// a long run may be cut off and started again.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Fixture {
    runs: Vec<Run>,
    haystack_sha256: String,
}

impl Fixture {
    /// The run of this model; where it is missing or too short, that of the unquantized model,
    /// whose prompts are the same.
    fn reference(&self, name: &str, ctx: usize, options: &Options) -> Option<&Run> {
        let of = |model: &str| {
            let asked = |r: &&Run| r.ctx == ctx && r.distractors == options.distractors;
            self.runs.iter().filter(asked).find(|r| r.model == model)
        };
        let wanted = options.samples.unwrap_or(0);
        of(name)
            .filter(|r| r.samples.len() >= wanted)
            .or_else(|| of(UNQUANTIZED))
            .or_else(|| of(name))
    }
}

#[derive(Deserialize)]
struct Run {
    model: String,
    ctx: usize,
    distractors: usize,
    haystack_bytes: usize,
    samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    seed: u64,
    depth_permille: usize,
    tokens: usize,
    key: String,
    value: usize,
    message_sha256: String,
    prompt_sha256: String,
    answer: String,
}

/// One prompt, and what became of it.
struct Case<'a> {
    needle: Needle,
    depth_permille: usize,
    theirs: Option<&'a Sample>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let fixtures = root.join("tests/fixtures");
    let fixture: Fixture = serde_json::from_value(read_json(&fixtures.join("niah.json"))?)?;
    let haystack = Haystack::read(&fixtures, &fixture.haystack_sha256)?;
    let name = options.subject.reference(root)?;
    let compare = options.fresh.is_none()
        && options.depth.is_empty()
        && options.needles == 1
        && !options.near;
    println!("{}", options.subject.settings());
    let mut log = options.json.as_deref().map_or_else(|| Ok(Log::default()), Log::open)?;
    let calibration = options.subject.tokenizer(root)?.encode(CALIBRATION, true)?;
    let mut summary = Summary::new(options.out.clone());
    let mut failures = Vec::new();
    for &ctx in &options.ctx {
        let reference = fixture.reference(&name, ctx, options).filter(|_| compare);
        match reference {
            Some(run) => println!("{ctx}: compared with {} in transformers", run.model),
            None => println!("{ctx}: compared with nothing"),
        }
        let cases = cases(&haystack, ctx, options, reference)?;
        for &arm in &options.arm {
            let arm = Prepared { arm, calibration: &calibration };
            let (found, cell) = measure(root, options, (ctx, &arm), &cases, &mut log)?;
            // What is lost by evicting is a result, not a failure.
            failures.extend(found.into_iter().filter(|_| arm.arm == Arm::Dense));
            summary.add(cell)?;
        }
    }
    summary.print();
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

fn cases<'a>(
    haystack: &Haystack,
    ctx: usize,
    options: &Options,
    reference: Option<&'a Run>,
) -> Result<Vec<Case<'a>>> {
    let bytes = 3 * ctx;
    if let Some(run) = reference {
        ensure!(run.haystack_bytes == bytes, "the fixture has haystacks of another size");
        let wanted = options.samples.unwrap_or(run.samples.len());
        if wanted > run.samples.len() {
            println!("{ctx}: the fixture has {} samples, all of which run", run.samples.len());
        }
        return spread(&run.samples, wanted)
            .map(|s| {
                let needle = haystack.needle(s.seed, bytes, s.depth_permille, run.distractors);
                ensure!((&needle.key, needle.value) == (&s.key, s.value), "another needle");
                ensure!(sha256(&needle.message) == s.message_sha256, "another message");
                Ok(Case { needle, depth_permille: s.depth_permille, theirs: Some(s) })
            })
            .collect();
    }
    let texts = options.samples.unwrap_or(20);
    let first = options.fresh.unwrap_or(1);
    let needles = usize::from(options.needles);
    let n = texts * needles;
    let case = |i: usize| {
        let (i, asked, n) = (i / needles, i % needles, texts);
        let depth_permille = match options.depth.as_slice() {
            [] => (2 * i + 1) * 500 / n,
            depths => usize::from(depths[i % depths.len()]) * 10,
        };
        let seed = first.wrapping_add(i as u64);
        let distractors = options.distractors + needles - 1;
        let others = Others { distractors, near: options.near, asked };
        let needle = haystack.needle_among(seed, bytes, depth_permille, others);
        Case { needle, depth_permille, theirs: None }
    };
    Ok((0..n).map(case).collect())
}

/// `n` of the items, evenly spread, so that fewer samples still cover every depth.
fn spread<T>(items: &[T], n: usize) -> impl Iterator<Item = &T> {
    let n = n.min(items.len());
    (0..n).map(move |i| &items[(2 * i + 1) * items.len() / (2 * n)])
}

/// Runs one context length as one arm, prints its table, and says what is wrong with the result.
fn measure(
    root: &Path,
    options: &Options,
    (ctx, arm): (usize, &Prepared<'_>),
    cases: &[Case<'_>],
    log: &mut Log,
) -> Result<(Vec<String>, Cell)> {
    let start = Instant::now();
    let tokenizer = options.subject.tokenizer(root)?;
    let stop = options.subject.stop_tokens(root)?;
    let template = options.subject.template(root)?;
    let job = |case: &Case<'_>| {
        let text = chat(&template, &case.needle.message)?;
        let prompt = tokenizer.encode(&text, false)?;
        if let Some(theirs) = case.theirs {
            ensure!(sha256(&text) == theirs.prompt_sha256, "the template gives another prompt");
            ensure!(
                prompt.len() == theirs.tokens,
                "{} tokens, not {}",
                prompt.len(),
                theirs.tokens
            );
        }
        Ok(Job { prompt, max_tokens: ANSWER_TOKENS })
    };
    let subject = options.subject.settings();
    let mut settings = format!("{}, {subject}", options.subject.dir(root).display());
    if arm.arm != Arm::Dense {
        settings = format!("{settings}, {}", arm.arm);
    }
    let known = |case: &Case<'_>| {
        log.find(&settings, ctx, &sha256(&case.needle.message)).map(str::to_owned)
    };
    let known: Vec<Option<String>> = cases.iter().map(known).collect();
    let open: Vec<usize> = (0..cases.len()).filter(|&i| known[i].is_none()).collect();
    let jobs: Vec<Job> = open.iter().map(|&i| job(&cases[i])).collect::<Result<_>>()?;
    let total: usize = jobs.iter().map(|j| j.prompt.len()).sum();
    let bar = ProgressBar::new(total as u64);
    bar.set_style(ProgressStyle::with_template("{prefix} [{wide_bar}] {percent} % {msg} {eta}")?);
    bar.set_prefix(format!("{ctx} {}", arm.arm));
    let mut answers: Vec<_> = known.into_iter().map(Option::unwrap_or_default).collect();
    let is_right = |i: usize, answer: &String| *answer == cases[i].needle.answer();
    let mut right = answers.iter().enumerate().filter(|(i, a)| is_right(*i, a)).count();
    let mut done = cases.len() - jobs.len();
    let answered = |job: usize, tokens: &[u32]| -> Result<()> {
        let i = open[job];
        answers[i] = tokenizer.decode(tokens, true)?;
        let is_right = is_right(i, &answers[i]);
        right += usize::from(is_right);
        done += 1;
        bar.set_message(format!("{right}/{done} right"));
        log.add(&Line {
            settings: settings.clone(),
            ctx,
            depth_permille: cases[i].depth_permille,
            message_sha256: sha256(&cases[i].needle.message),
            right: is_right,
            answer: answers[i].clone(),
            seconds: start.elapsed().as_secs_f64(),
        })
    };
    let load = |tokens| options.subject.runner(root, tokens);
    let evicted = generate(load, arm, &jobs, &stop, |tokens| bar.inc(tokens as u64), answered)?;
    bar.finish_and_clear();
    println!("{}", arm.arm);
    let failures = report(ctx, cases, &answers);
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds:.0} s, {total} prompt tokens");
    let right = answers.iter().zip(cases).filter(|(a, case)| **a == case.needle.answer()).count();
    let cell = Cell {
        ctx,
        arm: arm.arm.to_string(),
        settings: subject,
        needles: usize::from(options.needles),
        distractors: options.distractors,
        near: options.near,
        n: cases.len(),
        right,
        prompt_tokens: total,
        evicted_tokens: evicted.iter().sum(),
        evictions: evicted.iter().filter(|&&rows| rows > 0).count(),
        seconds,
    };
    Ok((failures, cell))
}

/// Right answers, of how many.
#[derive(Default)]
struct Score {
    of: usize,
    ours: usize,
    theirs: usize,
    equal: usize,
    compared: usize,
}

fn report(ctx: usize, cases: &[Case<'_>], answers: &[String]) -> Vec<String> {
    let mut rows: Vec<Score> = (0..=BUCKETS).map(|_| Score::default()).collect();
    for (case, ours) in cases.iter().zip(answers) {
        let (want, bucket) = (case.needle.answer(), case.depth_permille * BUCKETS / 1000);
        for row in [bucket.min(BUCKETS - 1), BUCKETS] {
            let row = &mut rows[row];
            row.of += 1;
            row.ours += usize::from(*ours == want);
            if let Some(theirs) = case.theirs {
                row.compared += 1;
                row.theirs += usize::from(theirs.answer == want);
                row.equal += usize::from(theirs.answer == *ours);
            }
        }
    }
    println!(
        "{:>8} {:>10} {:>9} {:>13} {:>8}",
        "context", "depth", "taper", "transformers", "equal"
    );
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.of > 0) {
        let edge = |i: usize| i * 100 / BUCKETS;
        let depth =
            if i < BUCKETS { format!("{}-{} %", edge(i), edge(i + 1)) } else { "all".into() };
        let against =
            |n: usize| if row.compared > 0 { format!("{n}/{}", row.compared) } else { "-".into() };
        let ours = format!("{}/{}", row.ours, row.of);
        let (theirs, equal) = (against(row.theirs), against(row.equal));
        println!("{ctx:>8} {depth:>10} {ours:>9} {theirs:>13} {equal:>8}");
    }
    for (case, ours) in cases.iter().zip(answers).filter(|(c, a)| **a != c.needle.answer()) {
        println!(
            "wrong at {} permille: {ours:?}, not {:?}",
            case.depth_permille,
            case.needle.answer()
        );
    }
    let all = &rows[BUCKETS];
    let mut failures = Vec::new();
    if all.ours * 100 < all.of * PASS_PERCENT {
        failures.push(format!("{ctx}: {}/{} is below {PASS_PERCENT} %", all.ours, all.of));
    }
    if all.compared > 0 && all.ours + 1 < all.theirs {
        failures
            .push(format!("{ctx}: {} right answers, transformers has {}", all.ours, all.theirs));
    }
    failures
}

/// `8k` is 8,192.
fn parse_tokens(text: &str) -> Result<usize> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let n: usize = digits.parse().with_context(|| format!("{text:?} is no number of tokens"))?;
    ensure!((1..=1 << 20).contains(&n.saturating_mul(unit)), "{text:?} is out of range");
    Ok(n * unit)
}

pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_read() {
        assert_eq!(parse_tokens("8k").unwrap(), 8192);
        assert_eq!(parse_tokens("512").unwrap(), 512);
        assert!(["", "k", "8m", "0", "-1", "9999999k"].iter().all(|t| parse_tokens(t).is_err()));
    }

    #[test]
    fn fewer_samples_cover_all_depths() {
        let items: Vec<_> = (0..50).collect();
        assert_eq!(spread(&items, 5).copied().collect::<Vec<_>>(), [5, 15, 25, 35, 45]);
        assert_eq!(spread(&items, 80).copied().collect::<Vec<_>>(), items);
    }

    #[test]
    fn a_run_fails_below_95_percent_or_behind_transformers() {
        let case = |i: usize| Case { needle: needle(i), depth_permille: i * 50, theirs: None };
        let cases: Vec<_> = (0..20).map(case).collect();
        let mut answers: Vec<_> = cases.iter().map(|c| c.needle.answer()).collect();
        assert_eq!(report(1, &cases, &answers), [""; 0]);
        answers[3] = "wrong".into();
        assert_eq!(report(1, &cases, &answers), [""; 0]);
        answers[4] = "wrong".into();
        assert_eq!(report(1, &cases, &answers).len(), 1);
        let theirs: Vec<_> = (0..50).map(|i| sample(i, &needle(i).answer())).collect();
        let case = |i: usize| Case { theirs: Some(&theirs[i]), ..case(i) };
        let cases: Vec<_> = (0..50).map(case).collect();
        let mut answers: Vec<_> = cases.iter().map(|c| c.needle.answer()).collect();
        answers[7].clear();
        assert_eq!(report(1, &cases, &answers), [""; 0], "one less is within the noise");
        answers[8].clear();
        assert_eq!(report(1, &cases, &answers).len(), 1);
    }

    fn needle(i: usize) -> Needle {
        Needle { message: String::new(), key: "k".into(), value: i }
    }

    fn sample(i: usize, answer: &str) -> Sample {
        Sample {
            seed: i as u64,
            depth_permille: 0,
            tokens: 0,
            key: String::new(),
            value: i,
            message_sha256: String::new(),
            prompt_sha256: String::new(),
            answer: answer.to_owned(),
        }
    }
}

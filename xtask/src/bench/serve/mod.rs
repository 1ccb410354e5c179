//! `cargo xtask bench serve`: whole requests over HTTP, as users send them, to any server with OpenAI's API;
//! several servers take turns.

mod client;
mod load;

use super::{files::Files, gpu};
use crate::ci::served::Served;
use anyhow::{Context, Result, ensure};
use client::Client;
use load::{Arrivals, Load, Quantiles, Seen};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What to send, and to whom.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Servers: URLs of running ones, and models for which this program starts `taper serve`.
    #[arg(required_unless_present = "shape", value_name = "URL|MODEL")]
    servers: Vec<String>,
    /// Makes a model of random 4-bit weights of this shape, such as qwen3-8b, and serves it.
    #[arg(long, conflicts_with = "servers")]
    shape: Option<String>,
    /// Flags of `taper serve`; may be given several times: each is a server of its own.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    flags: Vec<String>,
    /// Clients at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    clients: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [30])]
    prompt: Vec<usize>,
    /// Tokens at a prompt's begin that all prompts share.
    #[arg(long, default_value_t = 0)]
    shared: usize,
    /// Tokens of an output. With 1, speeds are those of prompts.
    #[arg(long, default_value_t = 128)]
    tokens: u32,
    /// Requests of each client, one after the other.
    #[arg(long, default_value_t = 2)]
    requests: usize,
    /// Prompts that arrive while the clients decode: clients x tokens / seconds, as 32x8192/20.
    #[arg(long, value_name = "LOAD")]
    arrivals: Option<Arrivals>,
    /// Turns of each server; medians are shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Key of the servers.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Name of the model to ask for [default: the first that a server lists].
    #[arg(long)]
    model: Option<String>,
    /// Program that serves models [default: `taper` beside this program].
    #[arg(long, value_name = "PROGRAM")]
    taper: Option<PathBuf>,
    /// Folder for the model of `--shape`.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    work: PathBuf,
    /// Write every figure to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A server to measure.
struct Target {
    name: String,
    /// A model and flags, unless it runs already.
    start: Option<Vec<String>>,
}

/// What one turn of a server showed.
#[derive(Debug, Clone, Copy)]
struct Turn {
    prompt_speed: f64,
    output_speed: f64,
    first: Quantiles,
    gap: Quantiles,
    /// Between tokens, and to the first one of the prompts that arrived, while they did.
    beside: Option<(Quantiles, Quantiles)>,
    errors: usize,
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    ensure!(args.rounds > 0 && args.requests > 0, "--rounds and --requests are at least 1");
    let targets = args.targets()?;
    println!("medians of {} turns; times in ms; tokens a second of all clients", args.rounds);
    let mut rows = Vec::new();
    for &prompt in &args.prompt {
        for &clients in &args.clients {
            let load = Load {
                clients,
                requests: args.requests,
                prompt,
                shared: args.shared,
                tokens: args.tokens,
                seed: 0,
            };
            rows.extend(args.compare(&targets, load)?);
        }
    }
    if let Some(path) = &args.json {
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

impl ServeArgs {
    fn targets(&self) -> Result<Vec<Target>> {
        let made = match &self.shape {
            None => None,
            Some(name) => {
                let dir = Files::new(&self.work)?.random_checkpoint(gpu::shape_of(name)?)?;
                Some(dir.display().to_string())
            }
        };
        let mut targets = Vec::new();
        for server in self.servers.iter().chain(&made) {
            if server.starts_with("http://") || server.starts_with("https://") {
                targets.push(Target { name: server.clone(), start: None });
                continue;
            }
            for flags in &self.flags {
                let mut start = vec![server.clone(), "--log-level=warn".to_owned()];
                start.extend(flags.split_whitespace().map(str::to_owned));
                let model = Path::new(server).file_name().unwrap_or_default().display();
                targets.push(Target { name: format!("{model} {flags}"), start: Some(start) });
            }
        }
        Ok(targets)
    }

    /// The program that serves models.
    fn program(&self) -> Result<PathBuf> {
        if let Some(program) = &self.taper {
            return Ok(program.clone());
        }
        let own = std::env::current_exe()?;
        let program = own.with_file_name(format!("taper{}", std::env::consts::EXE_SUFFIX));
        let built = program.is_file();
        ensure!(
            built,
            "there is no {}: `cargo build --release -p taper-server`",
            program.display()
        );
        Ok(program)
    }

    /// Prints a row a server, and returns them.
    fn compare(&self, targets: &[Target], load: Load) -> Result<Vec<Value>> {
        println!(
            "\n{} clients, prompts of {} tokens ({} shared), outputs of {}",
            load.clients, load.prompt, load.shared, load.tokens
        );
        println!(
            "{:<44} {:>10} {:>10} {:>18} {:>16} {:>7} {:>6}",
            "server", "prompt", "output", "first p50/p99", "gap p50/p99", "errors", "ratio"
        );
        let mut turns = vec![Vec::new(); targets.len()];
        for round in 0..self.rounds {
            for (target, turns) in targets.iter().zip(&mut turns) {
                let load = Load { seed: seed([round, load.clients, load.prompt]), ..load };
                turns.push(self.turn(target, load).with_context(|| target.name.clone())?);
            }
        }
        let medians: Vec<_> = turns.iter().map(|turns| Turn::median(turns)).collect();
        let main =
            |turn: &Turn| if load.tokens == 1 { turn.prompt_speed } else { turn.output_speed };
        let base = medians.first().map_or(f64::NAN, main);
        let mut rows = Vec::new();
        for (target, turn) in targets.iter().zip(&medians) {
            let ratio = main(turn) / base;
            turn.print(&target.name, ratio);
            rows.push(turn.row(&target.name, load, ratio));
        }
        Ok(rows)
    }

    fn turn(&self, target: &Target, load: Load) -> Result<Turn> {
        let key = self.api_key.as_deref();
        let server = match &target.start {
            None => None,
            Some(start) => {
                let args: Vec<_> = start.iter().map(String::as_str).collect();
                Some(Served::start(&self.program()?, Path::new("."), &args)?)
            }
        };
        let url = server
            .as_ref()
            .map_or_else(|| target.name.clone(), |s| format!("http://{}", s.address));
        let client = Client::new(&url, key, self.model.as_deref())?;
        // The first requests of a server pay for what is made once: graphs, pages, threads.
        load::send(&client, Load { requests: 1, seed: load.seed + 3, ..load });
        let seen = load::send(&client, load);
        let beside = self.arrivals.map(|arrivals| {
            let next = Load { seed: load.seed + 1, ..load };
            load::send_beside(&client, next, arrivals)
        });
        let beside_errors =
            beside.iter().flat_map(|(seen, late)| seen.errors.iter().chain(&late.errors));
        for error in seen.errors.iter().chain(beside_errors).take(3) {
            eprintln!("{}: {error}", target.name);
        }
        Ok(Turn::of(&seen, beside.as_ref()))
    }
}

impl Turn {
    fn of(seen: &Seen, beside: Option<&(Seen, Seen)>) -> Self {
        let late = beside.map_or(0, |(seen, late)| seen.errors.len() + late.errors.len());
        Self {
            prompt_speed: seen.prompt_speed(),
            output_speed: seen.output_speed(),
            first: seen.firsts(),
            gap: seen.gaps(),
            beside: beside.map(|(seen, late)| (seen.gaps(), late.firsts())),
            errors: seen.errors.len() + late,
        }
    }

    /// Each figure's median; errors are added up.
    fn median(turns: &[Self]) -> Self {
        let of = |figure: &dyn Fn(&Self) -> f64| {
            let mut values: Vec<_> = turns.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let quantiles = |part: &dyn Fn(&Self) -> Quantiles| Quantiles {
            p50: of(&|turn| part(turn).p50),
            p99: of(&|turn| part(turn).p99),
        };
        let beside = turns.iter().all(|turn| turn.beside.is_some()).then(|| {
            (
                quantiles(&|turn| turn.beside.unwrap_or_default().0),
                quantiles(&|turn| turn.beside.unwrap_or_default().1),
            )
        });
        Self {
            prompt_speed: of(&|turn| turn.prompt_speed),
            output_speed: of(&|turn| turn.output_speed),
            first: quantiles(&|turn| turn.first),
            gap: quantiles(&|turn| turn.gap),
            beside,
            errors: turns.iter().map(|turn| turn.errors).sum(),
        }
    }

    fn print(&self, name: &str, ratio: f64) {
        let pair = |q: Quantiles| format!("{:.1} / {:.1}", q.p50, q.p99);
        println!(
            "{name:<44} {:>10.1} {:>10.1} {:>18} {:>16} {:>7} {ratio:>6.2}",
            self.prompt_speed,
            self.output_speed,
            pair(self.first),
            pair(self.gap),
            self.errors
        );
        if let Some((gap, first)) = self.beside {
            println!(
                "{:<44} gap {}, {:.1} times alone at p99; first output of what arrives {}",
                "  while prompts arrive:",
                pair(gap),
                gap.p99 / self.gap.p99,
                pair(first)
            );
        }
    }

    fn row(&self, name: &str, load: Load, ratio: f64) -> Value {
        let pair = |q: Quantiles| json!({ "p50": q.p50, "p99": q.p99 });
        let mut row = json!({ "server": name, "clients": load.clients, "prompt": load.prompt,
            "shared": load.shared, "tokens": load.tokens, "prompt_tokens_per_second": self.prompt_speed,
            "output_tokens_per_second": self.output_speed, "first_ms": pair(self.first),
            "gap_ms": pair(self.gap), "errors": self.errors, "ratio": ratio });
        if let Some((gap, first)) = self.beside {
            row["arrivals"] = json!({ "gap_ms": pair(gap), "first_ms": pair(first) });
        }
        row
    }
}

/// The first of four seeds, others for each load of a run: a server that runs on has the prompts of earlier loads in
/// its prefix cache.
fn seed(parts: [usize; 3]) -> u64 {
    let mixed = parts.iter().fold(0x9e37_79b9_u64, |seed, &part| {
        (seed ^ part as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    });
    // Prompts are numbered in the lower half of a seed.
    (mixed & 0x3fff_ffff) << 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_each_figure() {
        let turn = |speed, p99| Turn {
            prompt_speed: 1.0,
            output_speed: speed,
            first: Quantiles::default(),
            gap: Quantiles { p50: 0.0, p99 },
            beside: None,
            errors: 1,
        };
        let median = Turn::median(&[turn(3.0, 1.0), turn(1.0, 2.0), turn(2.0, 3.0)]);
        assert_eq!((median.output_speed, median.gap.p99, median.errors), (2.0, 2.0, 3));
        assert!(median.beside.is_none());
    }
}

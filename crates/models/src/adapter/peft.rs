//! Adapters as PEFT writes them: `adapter_model.safetensors` with `lora_A` and `lora_B` of each module.

use super::{
    AdapterError, Change, Layout,
    config::{Config, Pattern, count, number},
};
use serde_json::Value;
use std::{collections::BTreeSet, path::Path};
use taper_weights::TensorFile;

pub(super) const FILE: &str = "adapter_model.safetensors";

/// Fields that are read, or that say nothing about what the adapter computes.
const KNOWN: &[&str] = &[
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
];

/// Ways to begin that leave the model's own weights as they are.
const INITIAL: &[&str] = &["gaussian", "eva", "orthogonal", "mica"];

/// Which modules `target_modules` names.
#[derive(Debug)]
enum Targets {
    All,
    Names(Vec<String>),
    Pattern(Pattern),
}

impl Targets {
    fn read(config: &Config) -> Result<Self, AdapterError> {
        let wrong = |reason: String| config.wrong("target_modules", reason);
        match config.value("target_modules") {
            Value::Null => Ok(Self::All),
            Value::String(all) if all == "all-linear" => Ok(Self::All),
            Value::String(pattern) => {
                Pattern::new(&format!("^(?:{pattern})$")).map(Self::Pattern).map_err(wrong)
            }
            Value::Array(names) => {
                let name = |name: &Value| name.as_str().map(str::to_owned);
                let names = names.iter().map(name).collect::<Option<_>>();
                names.map(Self::Names).ok_or_else(|| wrong("must be a list of names".into()))
            }
            _ => Err(wrong("must be a list of names or a pattern".into())),
        }
    }

    fn has(&self, module: &str) -> bool {
        let ends = |name: &String| {
            let rest = module.strip_suffix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        match self {
            Self::All => true,
            Self::Names(names) => names.iter().any(ends),
            Self::Pattern(pattern) => pattern.matches(module),
        }
    }
}

/// Refuses what is not plain LoRA.
fn check(config: &Config) -> Result<(), AdapterError> {
    if config.text("peft_type") != Some("LORA") {
        return Err(config.refuse("peft_type", config.value("peft_type")));
    }
    if let Some(bias) = config.get("bias").filter(|bias| *bias != "none") {
        return Err(config.refuse("bias", bias));
    }
    match config.get("init_lora_weights") {
        Some(Value::String(way)) if !INITIAL.contains(&way.as_str()) => {
            return Err(config.refuse("init_lora_weights", &Value::from(way.as_str())));
        }
        _ => {}
    }
    match config.others(KNOWN) {
        Some((field, value)) => Err(config.refuse(field, value)),
        None => Ok(()),
    }
}

/// Reads an adapter's files.
pub(super) fn read(dir: &Path) -> Result<Layout, AdapterError> {
    let config = Config::read(dir)?;
    check(&config)?;
    let (rank, alpha) = (config.count("r")?, config.number("lora_alpha")?);
    let ranks = config.patterns("rank_pattern", count)?;
    let alphas = config.patterns("alpha_pattern", number)?;
    let targets = Targets::read(&config)?;
    let stabilized = config.flag("use_rslora")?;
    let file = TensorFile::open(&dir.join(FILE))?;
    let mut modules = BTreeSet::new();
    for name in file.names() {
        let own = name.strip_prefix("base_model.model.").unwrap_or(name);
        let pair = [".lora_A.weight", ".lora_B.weight"];
        let module = pair.iter().find_map(|end| own.strip_suffix(end));
        let unknown = || AdapterError::UnknownTensor { name: name.to_owned() };
        modules.insert((name.len() != own.len(), module.ok_or_else(unknown)?.to_owned()));
    }
    let change = |(prefixed, module): (bool, String)| {
        if !targets.has(&module) {
            return Err(AdapterError::NotTargeted { module });
        }
        let prefix = if prefixed { "base_model.model." } else { "" };
        let matrix = |side: &str| {
            let name = format!("{prefix}{module}.lora_{side}.weight");
            match file.shape(&name) {
                Some(_) => Ok(file.matrix(&name)?),
                None => Err(AdapterError::HalfAPair { name }),
            }
        };
        let of = |patterns: &[(Pattern, usize)]| {
            patterns.iter().find(|(p, _)| p.matches(&module)).map(|&(_, own)| own)
        };
        let rank = of(&ranks).unwrap_or(rank);
        let own = alphas.iter().find(|(p, _)| p.matches(&module)).map(|&(_, own)| own);
        let by = if stabilized { (rank as f64).sqrt() } else { rank as f64 };
        let scale = (own.unwrap_or(alpha) / by) as f32;
        Change::new(module.clone(), rank, scale, [matrix("A")?, matrix("B")?])
    };
    let changes = modules.into_iter().map(change).collect::<Result<_, _>>()?;
    Ok(Layout { base: config.text("base_model_name_or_path").map(str::to_owned), changes })
}

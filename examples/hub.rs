//! taper-hub: which models are on this machine, without any network.

use anyhow::Result;
use taper_hub::{HubConfig, catalogue, resolve};

fn main() -> Result<()> {
    // The cache of Hugging Face's own tools, wherever their variables put it.
    let config = HubConfig::from_env()?;
    println!("models in {}:", config.cache.path().display());
    for model in catalogue(&config.cache)? {
        let state = if model.complete { "" } else { ", not complete" };
        println!("  {} at {}, {} bytes{state}", model.name, model.commit, model.size_bytes);
    }

    // A name becomes a directory, or an error that says what to do.
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");
    println!("{}", resolve(dir, &config.cache)?.dir.display());
    match resolve("example/not-downloaded", &config.cache) {
        Ok(found) => println!("{}", found.dir.display()),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}

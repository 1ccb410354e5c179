//! `embed MODEL`: a vector of each line that is read, as a line of JSON.

use std::io::{BufRead, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: embed MODEL < LINES")?;
    let model = taper::Embedder::load(&model)?;
    let lines: Vec<_> = std::io::stdin().lock().lines().collect::<Result<_, _>>()?;
    let mut out = std::io::stdout().lock();
    for vector in model.embed(&lines)? {
        writeln!(out, "{}", serde_json::to_string(&vector)?)?;
    }
    Ok(())
}

//! Downloads a model and prints where it is: `cargo run -p taper-hub --example download -- org/name`.

use std::io::{self, Write};
use taper_hub::{HubConfig, Progress, download};

#[derive(Default)]
struct Percent {
    size_bytes: u64,
    done_bytes: u64,
}

impl Progress for Percent {
    fn started(&mut self, file: &str, size_bytes: u64, present_bytes: u64) {
        (self.size_bytes, self.done_bytes) = (size_bytes, present_bytes);
        eprintln!("{file}");
    }

    fn advanced(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        eprint!("\r{:>4} %", self.done_bytes * 100 / self.size_bytes.max(1));
        let _ = io::stderr().flush();
    }

    fn finished(&mut self, _: &str) {
        eprintln!("\r 100 %");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("give a model's name: org/name")?;
    let model = download(&name.parse()?, &HubConfig::from_env()?, &mut Percent::default())?;
    println!("{}", model.dir.display());
    Ok(())
}

//! taper: a model answers, all at once and word by word.

use std::io::Write;
use taper::{Delta, Options, Result, Taper};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");

fn main() -> Result<()> {
    let model = Taper::builder(DEMO).kv("taper4").build()?;
    let mut chat = model.chat().options(Options::default().temperature(0.0));
    println!("{}", chat.say("What is 12 + 30?")?.text());
    for delta in chat.stream("Hello")? {
        if let Delta::Content(text) = delta? {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
    }
    println!();
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}

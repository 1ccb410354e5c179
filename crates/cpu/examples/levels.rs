//! Prints the levels of this machine, best first; `levels KIND NAME` asks for one by name instead, and fails
//! where the processor lacks it. KIND is `float`, `dense`, `int8` or `codes`.

use std::fmt::Debug;
use taper_cpu::{Level, TensorError, codes::CodeLevel, dense::DenseLevel, int8::Int8Level};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked: Vec<_> = std::env::args().skip(1).collect();
    let level: &dyn Debug = match asked.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            println!("float {:?}", Level::available());
            println!("dense {:?}", DenseLevel::available());
            println!("int8 {:?}", Int8Level::available());
            println!("codes {:?}", CodeLevel::available());
            return Ok(());
        }
        ["float", name] => &named::<Level>(name)?,
        ["dense", name] => &named::<DenseLevel>(name)?,
        ["int8", name] => &named::<Int8Level>(name)?,
        ["codes", name] => &named::<CodeLevel>(name)?,
        _ => return Err("usage: levels [float|dense|int8|codes NAME]".into()),
    };
    println!("{level:?}");
    Ok(())
}

fn named<L: std::str::FromStr<Err = TensorError>>(name: &str) -> Result<L, TensorError> {
    name.parse()
}

//! taper-kv-cache: two sequences share blocks of memory, and one step attends for both.

use anyhow::Result;
use taper_base::{LayerId, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange, StateSession};
use taper_kv_codecs::{AttnParams, KvGeometry};
use taper_tensor::{Projected, Tensor};

fn main() -> Result<()> {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 32, block_tokens: 16 };
    let codec = taper_kv_codecs::parse("f16")?;
    let mut cache = KvCache::new(KvConfig::new(codec, 2, geometry, 8));
    let (long, short) = (SeqId(1), SeqId(2));

    // A step: room first, then the session that a model gets.
    cache.grow(long, 40)?;
    cache.grow(short, 3)?;
    println!("after the prompts: {:?}", cache.usage());
    println!("blocks of the long one: {:?}", cache.blocks(long));
    let ranges =
        [SeqRange { seq: long, start: 0, len: 40 }, SeqRange { seq: short, start: 0, len: 3 }];
    let t = 40 + 3;
    let mut session = cache.session(&ranges)?;
    for layer in [LayerId(0), LayerId(1)] {
        // Four query heads over two key/value heads; the two sequences lie one after the other.
        let q = Tensor::from_vec(vec![0.5; t * 4 * 32], &[t, 4 * 32])?;
        let kv = (0..t * 2 * 32).map(|i| (i as f32 * 0.1).sin()).collect();
        let kv = Tensor::from_vec(kv, &[t, 2 * 32])?;
        let params = AttnParams::new(0.18);
        let (k, v) = (&kv, &kv);
        let rows = Projected { q: &q, k, v, head_dim: 32, norms: None, rope: None, next: None };
        let out = session.attend(layer, &rows, &params)?;
        println!("layer {}: attention gives {:?}", layer.index(), out.dims());
    }

    // A cache that is full says so and changes nothing; the scheduler then preempts somebody.
    if let Err(error) = cache.grow(short, 500) {
        println!("{error}");
    }
    cache.release(long);
    println!("after the long one ended: {:?}", cache.usage());
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}

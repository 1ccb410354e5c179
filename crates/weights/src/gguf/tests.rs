//! Files made here, and what becomes of them.

use super::*;
use serde_json::Value;
use taper_tensor::cpu::RowSource;

const HEAD: usize = 32;

/// A file in the making.
#[derive(Default)]
pub(crate) struct Maker {
    /// Keys with kinds and values.
    pairs: Vec<(String, Vec<u8>)>,
    infos: Vec<u8>,
    data: Vec<u8>,
    tensor_count: u64,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Maker {
    /// Takes the place of another value of the key.
    pub(crate) fn pair(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.pairs.retain(|(other, _)| other != key);
        self.pairs.push((key.to_owned(), [&kind.to_le_bytes(), value].concat()));
        self
    }

    pub(crate) fn word(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.pair(key, 8, &bytes)
    }

    pub(crate) fn number(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn words(&mut self, key: &str, words: &[&str]) -> &mut Self {
        let mut bytes =
            [8u32.to_le_bytes().as_slice(), &(words.len() as u64).to_le_bytes()].concat();
        words.iter().for_each(|w| text(&mut bytes, w));
        self.pair(key, 9, &bytes)
    }

    pub(crate) fn tensor(
        &mut self,
        name: &str,
        kind: u32,
        sizes: &[u64],
        data: &[u8],
    ) -> &mut Self {
        text(&mut self.infos, name);
        self.infos.extend((sizes.len() as u32).to_le_bytes());
        sizes.iter().for_each(|n| self.infos.extend(n.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.tensor_count += 1;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            text(&mut out, key);
            out.extend(value);
        }
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

/// A small llama: tokens, one matrix of queries in Q8_0, a norm.
pub(crate) fn llama() -> Maker {
    let mut maker = Maker::default();
    maker.word("general.architecture", "llama");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 128),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 1),
    ] {
        maker.number(&format!("llama.{key}"), value);
    }
    maker.word("tokenizer.ggml.model", "gpt2").word("tokenizer.ggml.pre", "smollm");
    maker.words("tokenizer.ggml.tokens", &["a", "b", "ab", "<end>"]);
    maker.words("tokenizer.ggml.merges", &["a b"]);
    maker.number("tokenizer.ggml.eos_token_id", 3);
    maker.tensor("token_embd.weight", 0, &[32, 4], &[0; 512]);
    // Row r of the file holds r, 32 times.
    let row = |r: u8| [&[0x00, 0x3c], [r; 32].as_slice()].concat();
    let rows: Vec<u8> = (0..32).flat_map(row).collect();
    maker.tensor("blk.0.attn_q.weight", 8, &[32, 32], &rows);
    maker.tensor("output_norm.weight", 0, &[32], &[0; 128]);
    maker
}

fn open(bytes: &[u8]) -> Result<Gguf, WeightsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Gguf::open(&path)
}

#[test]
fn a_file_is_a_checkpoint_with_its_tokenizer() {
    let gguf = open(&llama().bytes()).unwrap();
    let checkpoint = gguf.checkpoint().unwrap();
    let config = checkpoint.config();
    assert_eq!((&config["model_type"], &config["hidden_size"]), (&"llama".into(), &32.into()));
    assert_eq!(config["eos_token_id"], serde_json::json!([3]));
    assert_eq!(config["tie_word_embeddings"], true);
    assert!(checkpoint.has("model.norm.weight"));
    let (tokenizer, _) = gguf.tokenizer_files().unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    assert_eq!(tokenizer["model"]["vocab"]["ab"], 2);
}

#[test]
fn parts_are_found_by_their_names_and_only_where_there_are_some() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, maker: &Maker| {
        let path = dir.path().join(name);
        std::fs::write(&path, maker.bytes()).unwrap();
        path
    };
    assert!(Gguf::open(&write("best-model-of-2025.gguf", &llama())).is_ok());
    let mut first = llama();
    first.number("split.count", 2);
    let mut second = Maker::default();
    second.number("split.count", 2).tensor("output.weight", 0, &[32, 4], &[0; 512]);
    let first = write("m-00001-of-00002.gguf", &first);
    assert!(Gguf::open(&first).unwrap_err().to_string().contains("m-00002-of-00002.gguf"));
    let second = write("m-00002-of-00002.gguf", &second);
    for path in [&first, &second] {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!(gguf.paths(), [first.clone(), second.clone()]);
        assert!(gguf.checkpoint().unwrap().has("lm_head.weight"));
    }
    let mut lost = llama();
    lost.number("split.count", 2);
    assert!(Gguf::open(&write("lost.gguf", &lost)).unwrap_err().to_string().contains("split"));
}

#[test]
fn rows_of_heads_are_those_of_hugging_face() {
    let checkpoint = open(&llama().bytes()).unwrap().checkpoint().unwrap();
    let queries = checkpoint.weight("model.layers.0.self_attn.q_proj", HEAD, 32).unwrap();
    let taper_tensor::Weight::Affine(queries) = queries else { panic!("repacked") };
    let mut out = vec![0.0; HEAD * 32];
    queries.read_rows(0, &mut out);
    let firsts: Vec<f32> = out.chunks(32).map(|row| row[31]).collect();
    let expected: Vec<f32> =
        (0..16).map(|i| 2.0 * i as f32).chain((0..16).map(|i| 2.0 * i as f32 + 1.0)).collect();
    assert_eq!(firsts, expected);
}

#[test]
fn what_is_not_read_is_named() {
    let why = |maker: &Maker| open(&maker.bytes()).unwrap().checkpoint().unwrap_err().to_string();
    let mut other = llama();
    other.tensor("blk.0.attn_k.weight", 16, &[32, 32], &[]);
    assert!(why(&other).contains("blk.0.attn_k.weight") && why(&other).contains("Q4_K"));
    let mut other = llama();
    other.tensor("blk.0.ssm_a", 0, &[1], &[0; 4]);
    assert!(why(&other).contains("blk.0.ssm_a"));
    let mut other = llama();
    other.word("general.architecture", "mamba");
    assert!(why(&other).contains("mamba"));
    assert!(open(b"not one").unwrap_err().to_string().contains("GGUF"));
    let mut vector = llama();
    vector.tensor("blk.0.attn_norm.weight", 8, &[32], &[0; 34]);
    assert!(why(&vector).contains("blk.0.attn_norm.weight") && why(&vector).contains("Q8_0"));
}

#[test]
fn names_that_stand_twice_are_refused() {
    let why = |maker: &Maker| open(&maker.bytes()).unwrap().checkpoint().unwrap_err().to_string();
    let mut same = llama();
    same.tensor("output_norm.weight", 0, &[32], &[0; 128]);
    assert!(why(&same).contains("\"output_norm.weight\" twice"), "{}", why(&same));
    let mut two = llama();
    for name in ["blk.0.ffn_norm.weight", "blk.0.post_attention_norm.weight"] {
        two.tensor(name, 0, &[32], &[0; 128]);
    }
    assert!(why(&two).contains("ffn_norm") && why(&two).contains("post_attention_norm"));
    for second in ["rope_freqs.weight", "rope_factors_long.weight"] {
        let mut divisors = llama();
        divisors.tensor("rope_freqs.weight", 0, &[1], &[0; 4]);
        divisors.tensor(second, 0, &[1], &[0; 4]);
        assert!(why(&divisors).contains(second), "{}", why(&divisors));
    }
    let mut keys = llama();
    keys.pairs.push(keys.pairs[0].clone());
    let error = open(&keys.bytes()).unwrap_err();
    assert!(matches!(&error, WeightsError::Gguf { source: GgufError::Damaged { .. }, .. }));
    assert!(error.to_string().contains("\"general.architecture\" twice"), "{error}");
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |n| dir.path().join(format!("m-0000{n}-of-00002.gguf"));
    let mut part = llama();
    part.number("split.count", 2);
    std::fs::write(path(1), part.bytes()).unwrap();
    std::fs::write(path(2), part.bytes()).unwrap();
    let error = Gguf::open(&path(1)).unwrap().checkpoint().unwrap_err();
    assert!(error.to_string().contains("\"token_embd.weight\" twice"), "{error}");
}

#[test]
fn gemmas_gains_are_less_by_one_in_every_type() {
    let half = |v: f32| f16::from_f32(v).to_le_bytes();
    let brain = |v: f32| bf16::from_f32(v).to_le_bytes();
    let file = |kind, data: &[u8]| {
        let mut maker = llama();
        maker.word("general.architecture", "gemma3");
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 128),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 1),
        ] {
            maker.number(&format!("gemma3.{key}"), value);
        }
        maker.tensor("blk.0.ffn_norm.weight", kind, &[2], data);
        open(&maker.bytes()).unwrap().checkpoint()
    };
    let values = [1.5f32, 0.25];
    for (kind, data) in [
        (0, values.map(f32::to_le_bytes).concat()),
        (1, values.map(half).concat()),
        (30, values.map(brain).concat()),
    ] {
        let gains = file(kind, &data).unwrap();
        let name = "model.layers.0.pre_feedforward_layernorm.weight";
        assert_eq!(gains.vector(name, 2).unwrap(), [0.5, -0.75], "{kind}");
    }
}

#[test]
fn lists_of_numbers_are_read_in_every_type() {
    let list = |kind: u32, bytes: &[u8], n: u64| {
        let mut maker = llama();
        let value = [&kind.to_le_bytes()[..], &n.to_le_bytes(), bytes].concat();
        maker.pair("llama.attention.head_count", 9, &value);
        let checkpoint = open(&maker.bytes()).unwrap().checkpoint();
        checkpoint.map(|c| c.config()["num_attention_heads"].clone())
    };
    for (kind, one) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (10, 8), (11, 8)] {
        let one = &1u64.to_le_bytes()[..one];
        assert_eq!(list(kind, &one.repeat(3), 3).unwrap(), 1, "{kind}");
        assert!(list(kind, &[], 0).is_err());
    }
    for (kind, bytes) in [(6, &[0; 4][..]), (7, &[1]), (12, &[0; 8]), (0, &[1, 2]), (1, &[255])] {
        let n = if bytes.len() == 2 { 2 } else { 1 };
        let error = list(kind, bytes, n).unwrap_err().to_string();
        assert!(error.contains("llama.attention.head_count"), "{error}");
    }
}

#[test]
fn merges_stay_within_a_multiple_of_the_tokens() {
    let runs: Vec<String> = (1..400).map(|n| "a".repeat(n)).collect();
    let file = |count: usize| {
        let mut maker = llama();
        maker.word("tokenizer.ggml.model", "llama");
        let runs: Vec<&str> = runs[..count].iter().map(String::as_str).collect();
        maker.words("tokenizer.ggml.tokens", &runs);
        let scores: Vec<u8> = (0..count).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let head = [6u32.to_le_bytes().as_slice(), &(count as u64).to_le_bytes()].concat();
        maker.pair("tokenizer.ggml.scores", 9, &[head, scores].concat());
        open(&maker.bytes()).unwrap().tokenizer_files()
    };
    assert!(file(31).is_ok(), "runs of blanks, as Gemma has them");
    assert!(file(399).unwrap_err().to_string().contains("more ways"));
}

/// Blocks of bytes `(37 i + 11) mod 256` with halves of 0.5 and 0.25 where scales stand, and what
/// ggml's own `dequantize_row_*` (gguf 0.19 of PyPI) makes of them.
#[test]
fn blocks_are_what_ggml_makes_of_them() {
    for (kind, scales, expected) in GOLDENS {
        let kind = BlockType::of(kind).unwrap();
        let (weights, size) = kind.block();
        let mut block: Vec<u8> = (0..size).map(|i| (37 * i + 11) as u8).collect();
        for (i, &at) in scales.iter().enumerate() {
            let half = if i == 0 { 0x3800u16 } else { 0x3400 };
            block[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        let mut exact = vec![0.0; weights];
        kind.decode(&block, &mut exact);
        let (shape, bytes) = ((1, weights), Bytes::from_vec(block));
        let mut out = vec![0.0; weights];
        match tables::read(kind, shape, &bytes, Changes::default()).unwrap() {
            Some(matrix) => matrix.read_rows(0, &mut out),
            None => blocks::repack(kind, shape, &bytes, Changes::default())
                .unwrap()
                .read_rows(0, &mut out),
        }
        let range = out.iter().fold(0f32, |m, v| m.max(v.abs()));
        // These get other steps.
        let other = matches!(kind, BlockType::Q2_K | BlockType::Q3_K | BlockType::Q6_K);
        let tolerance = if other { range / 200.0 } else { 0.0 };
        for (at, want) in expected {
            assert_eq!(exact[at], want, "{kind:?} {at}");
            assert!((out[at] - want).abs() <= tolerance, "{kind:?} {at}: {} {want}", out[at]);
        }
    }
}

/// ggml's number, where the halves stand, and some weights.
type Golden = (u32, &'static [usize], [(usize, f32); 6]);

#[rustfmt::skip]
const GOLDENS: [Golden; 13] = [
    (2, &[0], [(0, -1.5), (1, 1.0), (15, -4.0), (17, -0.5), (30, -1.5), (31, 0.0)]),
    (3, &[0, 2], [(0, 7.75), (1, 2.25), (15, 5.25), (17, 6.25), (30, 5.25), (31, 6.25)]),
    (6, &[0], [(0, 4.5), (1, -1.0), (15, -6.0), (17, 0.0), (30, 7.0), (31, 0.5)]),
    (7, &[0, 2], [(0, 9.75), (1, 12.25), (15, 15.25), (17, 2.75), (30, 1.75), (31, 2.75)]),
    (8, &[0], [(0, 42.5), (1, 61.0), (15, -64.0), (17, -27.0), (30, -42.5), (31, -24.0)]),
    (10, &[80, 82], [(0, 16.5), (17, -0.75), (45, 6.25), (100, 10.0), (170, 17.75), (255, 2.25)]),
    (11, &[108], [(0, 40.5), (17, 64.0), (45, 5.5), (100, 0.0), (170, -19.5), (255, 21.0)]),
    (12, &[0, 2], [(0, 157.75), (17, -12.75), (45, 0.0), (100, 47.5), (170, -7.5), (255, 24.25)]),
    (13, &[0, 2], [(0, 405.75), (17, -12.75), (45, 20.0), (100, 117.5), (170, 292.5), (255, 54.25)]),
    (14, &[208], [(0, -715.5), (17, 256.0), (45, 294.0), (100, 1261.5), (170, 884.5), (255, -30.0)]),
    (20, &[0], [(0, -17.5), (1, 12.5), (15, -63.5), (17, -5.0), (30, -17.5), (31, 0.5)]),
    (23, &[0], [(0, 32.5), (17, 17.5), (45, 171.5), (100, 20.0), (170, -245.0), (255, -8.0)]),
    (39, &[], [(0, 0.0), (1, 3.6111186e-35), (15, -1.8055593e-35), (17, 3.6111186e-35), (30, 1.8055593e-35), (31, 3.6111186e-35)]),
];

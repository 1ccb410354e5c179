//! Tables as Markdown and CSV, and the plot.

use std::fmt::Write as _;

/// Rows of text under a heading.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) note: String,
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = vec!["---".to_owned(); self.header.len()];
        let rows: String = self.rows.iter().map(|r| line(r)).collect();
        format!("## {}\n\n{}\n\n{}{}{rows}", self.title, self.note, line(&self.header), line(&rule))
    }

    /// A figure of a codec's row.
    fn figure(&self, codec: &str, column: &str) -> Option<f64> {
        let column = self.header.iter().position(|h| h == column)?;
        self.rows.iter().find(|r| r[0] == codec)?[column].parse().ok()
    }
}

/// Taper's codes against TurboQuant's of the same bits: divergence, and bytes.
pub(super) fn claims(simulated: &Table, text: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for bits in ["4", "3", "2"] {
        let (taper, turbo) = (format!("taper{bits}"), format!("turbo{bits}"));
        for (table, column) in [(simulated, "attention KL"), (text, "KL")] {
            let of = |name: &str, column| table.figure(name, column);
            if let (Some(a), Some(b)) = (of(&taper, column), of(&turbo, column)) {
                let bytes = |name| simulated.figure(name, "bytes a row").unwrap_or(f64::NAN);
                lines.push(format!(
                    "- {}: {taper} {a} against {turbo} {b}, {:.1} % lower, with {:.2} against {:.2} bytes a row",
                    table.title,
                    (1.0 - a / b) * 100.0,
                    bytes(&taper),
                    bytes(&turbo),
                ));
            }
        }
    }
    lines
}

pub(super) fn markdown(tables: &[Table], claims: &[String]) -> String {
    let mut out = String::from(
        "# KV codecs, measured\n\n\
         Written by `cargo run --release -p xtask -- kv`; the figures are also in\n\
         [kv-codecs.csv](kv-codecs.csv).\n\
         \n\
         How to read this page: a codec is a value of `--kv-cache-dtype`. `taper4` has 4 bits a value,\n\
         `taper4v3` 4 for keys and 3 for values. Smaller rows mean longer contexts in the same memory; a\n\
         smaller KL (Kullback-Leibler divergence from the uncompressed cache, in nats) means answers nearer\n\
         to those of an uncompressed cache. Start with `taper4`, or run `taper kv-report MODEL` to measure\n\
         your own model.\n\
         \n\
         ![KL against bytes](kv-codecs.svg)\n\n",
    );
    for line in claims {
        out += line;
        out.push('\n');
    }
    for table in tables {
        out.push('\n');
        out += &table.markdown();
    }
    out
}

pub(super) fn csv(tables: &[Table]) -> String {
    let mut out = String::from("table,row,column,value\n");
    for table in tables {
        for row in &table.rows {
            for (column, value) in table.header.iter().zip(row).skip(1) {
                let _ =
                    writeln!(out, "\"{}\",\"{}\",\"{column}\",\"{value}\"", table.title, row[0]);
            }
        }
    }
    out
}

/// Points of the plot: codec, bytes a row of 128, divergence.
pub(super) type Points = Vec<(String, f64, f64)>;

/// Divergence (logarithmic) over bytes.
pub(super) fn svg(points: &Points) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 420.0;
    const EDGE: f64 = 60.0;
    let points: Vec<_> = points.iter().filter(|p| p.2 > 0.0).collect();
    let span = |f: fn(&(String, f64, f64)) -> f64| {
        let low = points.iter().map(|p| f(p)).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(|p| f(p)).fold(f64::NEG_INFINITY, f64::max);
        (low, (high - low).max(1e-9))
    };
    let (x0, xs) = span(|p| p.1.log2());
    let (y0, ys) = span(|p| p.2.log10());
    let x = |v: f64| EDGE + (v.log2() - x0) / xs * (WIDTH - 2.5 * EDGE);
    let y = |v: f64| HEIGHT - EDGE - (v.log10() - y0) / ys * (HEIGHT - 2.0 * EDGE);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for bytes in [32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0] {
        if bytes >= x0.exp2() && bytes <= (x0 + xs).exp2() {
            let at = x(bytes);
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{EDGE}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{bytes}</text>",
                HEIGHT - EDGE,
                HEIGHT - EDGE + 16.0,
            );
        }
    }
    for power in y0.floor() as i32..=(y0 + ys).ceil() as i32 {
        let value = 10f64.powi(power);
        if value.log10() >= y0 - 1e-9 && value.log10() <= y0 + ys + 1e-9 {
            let at = y(value);
            let _ = writeln!(
                out,
                "<line x1=\"{EDGE}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">1e{power}</text>",
                WIDTH - EDGE,
                EDGE - 6.0,
                at + 4.0,
            );
        }
    }
    for (name, bytes, kl) in points {
        let color = match name.get(..5) {
            Some("taper") => "#c2410c",
            Some("turbo") => "#1d4ed8",
            _ => "#555",
        };
        let (cx, cy) = (x(*bytes), y(*kl));
        let _ = writeln!(
            out,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>",
            cx + 7.0,
            cy + 4.0,
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bytes of a row of 128 (mean of K and V)</text>\
         <text x=\"{EDGE}\" y=\"30\">KL from the f32 cache on held-out text, nats</text></svg>",
        WIDTH / 2.0,
        HEIGHT - 18.0,
    );
    out
}

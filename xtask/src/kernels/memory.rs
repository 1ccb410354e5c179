//! Threadgroup memory of the kernels, by their PTX: Metal has 32 KiB, and refuses to start what wants more.

/// What Metal grants a threadgroup (Apple's feature set tables, every family of GPUs of Apple silicon).
const MOST: usize = 32 << 10;

/// Each kernel of a PTX with the bytes that a threadgroup of it shares.
fn of_kernels(ptx: &str) -> Vec<(&str, usize)> {
    let mut kernels: Vec<(&str, usize)> = Vec::new();
    for line in ptx.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix(".visible .entry ") {
            kernels.push((name.trim_end_matches('('), 0));
        } else if line.starts_with(".shared ")
            && let Some((_, bytes)) = kernels.last_mut()
        {
            *bytes += declared(line);
        }
    }
    kernels
}

/// Bytes of a line as `.shared .align 4 .b8 name[1024];` or `.shared .align 8 .u64 name;`.
fn declared(line: &str) -> usize {
    let mut words = line.split_whitespace().skip(3);
    let element =
        words.next().map_or("", |word| word.trim_start_matches(['.', 'b', 'f', 's', 'u']));
    let bits: usize = element.parse().unwrap_or(usize::MAX);
    let count = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let count: usize = count.map_or(Ok(1), |(n, _)| n.parse()).unwrap_or(usize::MAX);
    (bits / 8).saturating_mul(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::SOURCES;

    #[test]
    fn declarations_are_read() {
        let ptx = ".visible .entry a(\n.shared .align 4 .b8 x[1024];\n\t.shared .align 8 .u64 y;\n\
                   st.shared.f32 z;\n.visible .entry b(\n";
        assert_eq!(of_kernels(ptx), [("a", 1032), ("b", 0)]);
        assert!(of_kernels(".visible .entry a(\n.shared .align 4 .what x[9];")[0].1 > MOST);
        assert!(of_kernels(".visible .entry a(\n.shared .align 4 .b8 x[33792];")[0].1 > MOST);
    }

    #[test]
    fn what_metal_runs_fits() {
        for source in SOURCES.iter().filter(|s| s.is_for_metal()) {
            let ptx = source.ptx().unwrap();
            let kernels = of_kernels(&ptx);
            assert!(!kernels.is_empty(), "{}", source.name);
            for (kernel, bytes) in kernels {
                assert!(bytes <= MOST, "{kernel}: {bytes} bytes");
            }
        }
    }
}

//! What chunks of each language are.

use super::*;
use proptest::prelude::*;

fn of(name: &str, text: &str) -> Vec<Chunk> {
    chunks(Path::new(name), text)
}

#[test]
fn unknown_files_are_windows_that_end_at_empty_lines() {
    let text: String = (1..=100)
        .map(|n| if n % 30 == 0 { "\n".to_owned() } else { format!("line {n}\n") })
        .collect();
    let found = of("a.unknown", &text);
    let ranges: Vec<_> = found.iter().map(|c| (c.start, c.end)).collect();
    assert_eq!(ranges, [(1, 29), (31, 59), (61, 100)]);
    assert!(of("a.txt", "").is_empty() && of("a.txt", "\n--\n{}\n").is_empty());
    // One line of any length is a chunk.
    assert_eq!(of("a.txt", &"word ".repeat(10_000)).len(), 1);
}

#[test]
fn prose_is_cut_at_headings_outside_of_fences() {
    let text = "intro\n# A\ntext\n## B\n```\n# no heading\n```\n# C\nmore\n";
    let found = of("a.md", text);
    let told: Vec<_> =
        found.iter().map(|c| (c.start, c.end, c.name.as_str(), c.parent.as_str())).collect();
    assert_eq!(told, [(1, 1, "", ""), (2, 3, "A", ""), (4, 6, "B", "A"), (8, 9, "C", "")]);
}

proptest! {
    /// Chunks are in order, do not overlap, lie in the file, and leave out no line with a letter.
    #[test]
    fn chunks_cover_what_is_said(
        text in "([a-z {}()#:=\n\t\"']|def f|class A:|fn g|\\{|//|/\\*){0,200}",
        suffix in prop::sample::select(vec!["rs", "py", "js", "ts", "go", "c", "cpp", "java", "rb",
            "cs", "sh", "swift", "php", "md", "txt"]),
    ) {
        let found = of(&format!("a.{suffix}"), &text);
        let lines: Vec<&str> = text.lines().collect();
        let mut last = 0;
        for chunk in &found {
            prop_assert!(chunk.start > last && chunk.end >= chunk.start, "{found:?}");
            prop_assert!(chunk.end as usize <= lines.len(), "{found:?}");
            last = chunk.end;
        }
        for (line, text) in (1_u32..).zip(&lines) {
            if window::says_something(text) {
                prop_assert!(found.iter().any(|c| c.start <= line && line <= c.end), "{line} {found:?}");
            }
        }
    }
}

#[cfg(feature = "tree-sitter")]
mod languages {
    use super::*;

    /// Name, parent and lines of the definitions.
    fn defined(file: &str, text: &str) -> Vec<(String, String, u32, u32)> {
        let found = of(file, text).into_iter().filter(|c| c.kind == ChunkKind::Function);
        found.map(|c| (c.name, c.parent, c.start, c.end)).collect()
    }

    fn check(file: &str, text: &str, expected: &[(&str, &str, u32, u32)]) {
        let found = defined(file, text);
        let found: Vec<_> =
            found.iter().map(|(n, p, s, e)| (n.as_str(), p.as_str(), *s, *e)).collect();
        assert_eq!(found, expected, "{file}: {:#?}", of(file, text));
    }

    #[test]
    fn every_language_gives_functions_with_their_parents() {
        check(
            "a.rs",
            "use x;\n\n/// Doc.\n#[inline]\nfn f(a: u8) {\n}\nimpl T for S {\n    fn g() {}\n}\n",
            &[("f", "", 3, 6), ("g", "S", 8, 8)],
        );
        check(
            "a.py",
            "import x\n@dec\ndef f(a):\n    \"\"\"Doc.\"\"\"\n    pass\nclass A(B):\n    \"\"\"Of A.\"\"\"\n    def g(self):\n        return 1\n",
            &[("f", "", 2, 5), ("g", "A", 8, 9)],
        );
        check(
            "a.js",
            "// Doc.\nexport function f() {\n}\nclass A {\n  g() {\n  }\n}\nconst h = () => {\n};\n",
            &[("f", "", 1, 3), ("g", "A", 5, 6), ("h", "", 8, 9)],
        );
        check(
            "a.ts",
            "interface I {\n  a: number;\n}\nexport class A {\n  async g(x: number): Promise<void> {\n  }\n}\n",
            &[("g", "A", 5, 6)],
        );
        check("a.tsx", "export const C = (p: P) => {\n  return <div/>;\n};\n", &[("C", "", 1, 3)]);
        check(
            "a.go",
            "package x\n\n// F does.\nfunc F() int {\n\treturn 1\n}\n\ntype T struct {\n\tA int\n}\n\nfunc (t *T) G() {\n}\n",
            &[("F", "", 3, 6), ("T", "", 8, 10), ("G", "", 12, 13)],
        );
        check(
            "a.c",
            "#include <x.h>\n/* Doc. */\nstatic int *f(int a) {\n  return 0;\n}\nstruct s {\n  int a;\n};\n",
            &[("f", "", 2, 5), ("s", "", 6, 8)],
        );
        check(
            "a.cpp",
            "namespace n {\ntemplate <class T>\nint f(T a) {\n  return 0;\n}\nclass A {\n  void g() {\n  }\n};\n}\n",
            &[("f", "n", 2, 5), ("g", "n.A", 7, 8)],
        );
        check(
            "A.java",
            "package p;\n/** Doc. */\npublic class A {\n  @Override\n  public int g(int a) {\n    return a;\n  }\n}\n",
            &[("g", "A", 4, 7)],
        );
        check(
            "a.rb",
            "module M\n  class A\n    # Doc.\n    def g(a)\n      a\n    end\n  end\nend\n",
            &[("g", "M.A", 3, 6)],
        );
        check(
            "a.cs",
            "namespace N {\n  class A {\n    int G(int a) {\n      return a;\n    }\n  }\n}\n",
            &[("G", "N.A", 3, 5)],
        );
        check("a.sh", "#!/bin/sh\n# Doc.\nf() {\n  echo 1\n}\n", &[("f", "", 1, 5)]);
        check(
            "a.php",
            "<?php\nfunction f($a) {\n  return 1;\n}\nclass A {\n  function g() {\n  }\n}\n",
            &[("f", "", 2, 4), ("g", "A", 6, 7)],
        );
        check(
            "a.swift",
            "import X\n/// Doc.\nfunc f(a: Int) -> Int {\n  return a\n}\nclass A {\n  func g() {\n  }\n}\n",
            &[("f", "", 2, 5), ("g", "A", 7, 8)],
        );
        // A script is known by its first line.
        check("tool", "#!/usr/bin/env python3\ndef f():\n    pass\n", &[("f", "", 1, 3)]);
    }

    #[test]
    fn documentation_and_signature_are_told_apart() {
        let found = of(
            "a.py",
            "class A(B):\n    \"\"\"Holds things.\"\"\"\n\n    def g(self, a: int) -> str:\n        \"\"\"Gives one.\"\"\"\n        return x\n",
        );
        let [class, method] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((class.kind, class.signature.as_str()), (ChunkKind::Class, "class A(B):"));
        assert!(class.doc.contains("Holds things."));
        assert_eq!(method.signature, "def g(self, a: int) -> str:");
        assert!(method.doc.contains("Gives one.") && method.parent == "A");
    }

    #[test]
    fn long_functions_are_windows_with_one_name() {
        let body: String = (0..150).map(|n| format!("    x{n} = {n}\n")).collect();
        let found = of("a.py", &format!("def long():\n    \"\"\"Doc.\"\"\"\n{body}"));
        assert!(found.len() >= 4 && found.iter().all(|c| c.name == "long"), "{found:?}");
        assert_eq!(found.iter().filter(|c| !c.doc.is_empty()).count(), 1);
    }

    #[test]
    fn deep_nesting_ends() {
        let deep = format!("{}{}", "(".repeat(20_000), ")".repeat(20_000));
        for suffix in ["py", "js", "c", "rs", "java"] {
            let _ = of(&format!("a.{suffix}"), &deep.replace('(', "(\n"));
        }
    }
}

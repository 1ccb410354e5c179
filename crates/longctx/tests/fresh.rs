//! An index follows its files, and says what it could not do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path, sync::Arc};
use taper_longctx::{Error, Library, ReadRequest, SearchAnswer, SearchRequest, Settings};

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn open(root: &Path) -> Library {
    Library::open(&[root], &Settings { watch: true, ..Settings::default() }).unwrap()
}

fn search(library: &Library, query: &str) -> SearchAnswer {
    library.search(&SearchRequest { max_results: 64, ..SearchRequest::new(query) }).unwrap()
}

fn files(answer: &SearchAnswer) -> Vec<&str> {
    let mut files: Vec<_> = answer.chunks.iter().map(|c| c.file_path.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    files
}

#[test]
fn what_is_written_is_found_by_the_next_search() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a.py", "def alpha():\n    return 1\n");
    let library = open(root.path());
    for n in 0..20 {
        write(root.path(), "b.py", &format!("def zebra{n}x():\n    return {n}\n"));
        let found = search(&library, &format!("zebra{n}x"));
        assert!(found.is_fully_fresh, "{n}");
        assert_eq!(found.chunks[0].text, format!("def zebra{n}x():\n    return {n}"));
    }
    // Directories that are new, and files in them, at any depth.
    write(root.path(), "new/deep/er/c.py", "def okapi():\n    pass\n");
    assert_eq!(files(&search(&library, "okapi")), ["new/deep/er/c.py"]);
    write(root.path(), "new/deep/er/d.py", "def okapi_two():\n    pass\n");
    assert_eq!(
        files(&search(&library, "okapi two"))[..2],
        ["new/deep/er/c.py", "new/deep/er/d.py"]
    );
}

#[test]
fn a_refactoring_of_twenty_files_leaves_no_stale_line() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let of =
        |n: usize, word: &str| format!("def {word}_{n}(a):\n    return giraffe({n}, '{word}')\n");
    for n in 0..15 {
        write(root, &format!("src/f{n}.py"), &of(n, "before"));
    }
    let library = open(root);
    assert_eq!(files(&search(&library, "giraffe")).len(), 15);
    (0..10).for_each(|n| write(root, &format!("src/f{n}.py"), &of(n, "after")));
    (10..13).for_each(|n| fs::remove_file(root.join(format!("src/f{n}.py"))).unwrap());
    (13..15).for_each(|n| {
        fs::rename(root.join(format!("src/f{n}.py")), root.join(format!("src/renamed{n}.py")))
            .unwrap();
    });
    (0..5).for_each(|n| write(root, &format!("new/g{n}.py"), &of(n, "fresh")));
    let found = search(&library, "giraffe");
    assert!(found.is_fully_fresh && found.stale_files.is_empty());
    assert_eq!(files(&found).len(), 17, "{:?}", files(&found));
    for chunk in &found.chunks {
        let text = fs::read_to_string(root.join(&chunk.file_path)).unwrap();
        assert!(text.contains(&chunk.text), "{}", chunk.file_path);
    }
    assert!(search(&library, "before").chunks.iter().all(|c| c.file_path.contains("renamed")));
}

#[test]
fn ignore_files_that_change_change_what_is_found() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a/x.py", "def walrus():\n    pass\n");
    write(root.path(), "b/y.py", "def walrus():\n    return 2\n");
    let library = open(root.path());
    assert_eq!(files(&search(&library, "walrus")).len(), 2);
    write(root.path(), ".gitignore", "a/\n");
    assert_eq!(files(&search(&library, "walrus")), ["b/y.py"]);
    write(root.path(), "a/z.py", "def walrus():\n    return 3\n");
    assert_eq!(files(&search(&library, "walrus")), ["b/y.py"]);
    fs::remove_file(root.path().join(".gitignore")).unwrap();
    assert_eq!(files(&search(&library, "walrus")).len(), 3);
}

#[test]
fn many_searches_and_changes_at_once_end() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a.py", "def alpha():\n    pass\n");
    let library = Arc::new(open(root.path()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (library, root) = (Arc::clone(&library), root.path().to_owned());
            scope.spawn(move || {
                for n in 0..10 {
                    let word = format!("lemur{thread}x{n}y");
                    write(&root, &format!("t{thread}.py"), &format!("def {word}():\n    pass\n"));
                    let found = search(&library, &word);
                    assert!(!found.is_fully_fresh || found.chunks[0].symbol == word);
                }
            });
        }
    });
}

#[test]
fn a_root_that_goes_is_said_and_comes_back() {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().join("root");
    write(&root, "a.py", "def alpha():\n    pass\n");
    let library = open(&root);
    fs::rename(&root, top.path().join("away")).unwrap();
    let gone = search(&library, "alpha");
    assert!(gone.chunks.is_empty() && !gone.is_fully_fresh);
    library.projects()[0].settle(std::time::Duration::from_millis(500));
    fs::rename(top.path().join("away"), &root).unwrap();
    let library = open(&root);
    assert_eq!(files(&search(&library, "alpha")), ["a.py"]);
}

#[test]
fn a_root_that_another_takes_the_place_of_is_watched() {
    let top = tempfile::tempdir().unwrap();
    let (root, next) = (top.path().join("root"), top.path().join("next"));
    write(&root, "a.py", "def alpha():\n    pass\n");
    write(&next, "b.py", "def beta():\n    pass\n");
    let library = open(&root);
    fs::rename(&root, top.path().join("away")).unwrap();
    fs::rename(&next, &root).unwrap();
    let found = search(&library, "beta");
    assert_eq!((files(&found), found.is_fully_fresh), (vec!["b.py"], true));
    write(&root, "c.py", "def gamma():\n    pass\n");
    let found = search(&library, "gamma");
    assert_eq!((files(&found), found.is_fully_fresh), (vec!["c.py"], true));
}

#[test]
fn roots_that_cannot_be_read_are_refused() {
    let top = tempfile::tempdir().unwrap();
    let none = Library::open::<&Path>(&[], &Settings::default()).unwrap_err();
    assert!(matches!(none, Error::NoRoots));
    let missing = Library::open(&[top.path().join("none")], &Settings::default()).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
    write(top.path(), "file", "x");
    assert!(Library::open(&[top.path().join("file")], &Settings::default()).is_err());
    write(top.path(), ".ssh/config", "Host x");
    let secret = Library::open(&[top.path().join(".ssh")], &Settings::default()).unwrap_err();
    assert!(matches!(secret, Error::SecretRoot { .. }), "{secret}");
}

#[test]
fn stored_indexes_are_used_once_and_never_misread() {
    let (root, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..50 {
        write(root.path(), &format!("f{n}.py"), &format!("def tapir_{n}():\n    return {n}\n"));
    }
    let settings = Settings { index_dir: Some(dir.path().to_owned()), ..Settings::default() };
    let open = || Library::open(&[root.path()], &settings).unwrap();
    let first = search(&open(), "tapir 7");
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let stored = fs::read(&file).unwrap();
    assert_eq!(search(&open(), "tapir 7"), first, "from disk");
    // What changes while nobody looks.
    write(root.path(), "f7.py", "def ocelot():\n    return 7\n");
    fs::remove_file(root.path().join("f8.py")).unwrap();
    let library = open();
    assert_eq!(search(&library, "ocelot").chunks[0].file_path, "f7.py");
    assert!(search(&library, "tapir 8").chunks.iter().all(|c| c.file_path != "f8.py"));
    let good = search(&library, "tapir 9");
    for (at, what) in [(0, "mark"), (9, "version"), (20, "sum"), (stored.len() / 2, "body")] {
        let mut bad = fs::read(&file).unwrap();
        bad[at] ^= 0x55;
        fs::write(&file, &bad).unwrap();
        let library = open();
        assert_eq!(search(&library, "tapir 9"), good, "{what}");
        assert!(library.status().projects[0].saved, "{what}: it is written anew");
    }
    for length in [0, 5, 40] {
        fs::write(&file, &stored[..length]).unwrap();
        assert_eq!(search(&open(), "tapir 9"), good, "{length} bytes");
    }
}

#[test]
fn an_index_that_cannot_be_written_stays_in_memory() {
    let (root, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(root.path(), "a.py", "def alpha():\n    pass\n");
    // No directory can be made below a file, as none can on a full disk.
    let blocked = dir.path().join("file");
    fs::write(&blocked, "x").unwrap();
    let settings = Settings { index_dir: Some(blocked), ..Settings::default() };
    let library = Library::open(&[root.path()], &settings).unwrap();
    assert_eq!(files(&search(&library, "alpha")), ["a.py"]);
    let status = &library.status().projects[0];
    assert!(!status.saved && status.error.as_deref().unwrap().contains("cannot write the index"));
}

#[test]
fn incremental_indexes_rank_as_fresh_ones() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text = |n: usize| {
        format!("def heron_{n}(x):\n    \"\"\"Heron of kind {}.\"\"\"\n    return x + {n}\n", n % 3)
    };
    (0..30).for_each(|n| write(a.path(), &format!("f{n}.py"), &text(n)));
    let library = open(a.path());
    (10..20).for_each(|n| fs::remove_file(a.path().join(format!("f{n}.py"))).unwrap());
    (30..40).for_each(|n| write(a.path(), &format!("f{n}.py"), &text(n)));
    (0..40)
        .filter(|n| !(10..20).contains(n))
        .for_each(|n| write(b.path(), &format!("f{n}.py"), &text(n)));
    let fresh = open(b.path());
    let told = |library: &Library| {
        let found = search(library, "heron kind 2");
        found.chunks.into_iter().map(|c| (c.file_path, c.text)).collect::<Vec<_>>()
    };
    assert_eq!(told(&library), told(&fresh));
}

#[test]
fn limits_are_kept_and_checked() {
    let root = tempfile::tempdir().unwrap();
    for n in 0..30 {
        let body: String = (0..20).map(|line| format!("    badger{n}_{line} = {line}\n")).collect();
        write(root.path(), &format!("f{}.py", n / 6), "");
        write(root.path(), &format!("d{}/f{n}.py", n % 2), &format!("def badger_{n}():\n{body}"));
    }
    let library = open(root.path());
    let ask = |request: SearchRequest| library.search(&request).unwrap().chunks;
    let few = |max_tokens| SearchRequest { max_tokens, ..SearchRequest::new("badger") };
    assert_eq!(ask(few(1)).len(), 1, "the first is returned whatever its length");
    assert!(ask(few(400)).len() > 1);
    let one = SearchRequest { max_results: 1, ..SearchRequest::new("badger") };
    assert_eq!(ask(one).len(), 1);
    let below = SearchRequest { path_prefix: Some("d1/".into()), ..SearchRequest::new("badger") };
    assert!(ask(below).iter().all(|c| c.file_path.starts_with("d1/")));
    for bad in [
        SearchRequest { max_results: 0, ..SearchRequest::new("x") },
        SearchRequest { max_results: 65, ..SearchRequest::new("x") },
        SearchRequest { max_tokens: 0, ..SearchRequest::new("x") },
        SearchRequest { wait_ms: 501, ..SearchRequest::new("x") },
        SearchRequest::new(" .,! "),
        SearchRequest { project: Some("none".into()), ..SearchRequest::new("x") },
    ] {
        assert!(library.search(&bad).is_err(), "{bad:?}");
    }
    assert!(search(&library, "quantum chromodynamics lattice").no_relevant_results);
    let read = |start_line, end_line, max_tokens| {
        let file_path = "d0/f0.py".to_owned();
        library
            .read(&ReadRequest { file_path, project: None, start_line, end_line, max_tokens })
            .unwrap()
    };
    let whole = read(1, None, 4096);
    assert_eq!((whole.end_line, whole.total_lines, whole.truncated), (21, 21, false));
    assert_eq!(read(2, Some(3), 4096).text.lines().count(), 2);
    assert!(read(1, None, 10).truncated);
    assert_eq!(read(99, None, 10).text, "");
}

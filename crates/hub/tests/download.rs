//! Downloads from a stand-in of the hub, on good days and bad ones.
#![allow(unreachable_pub, missing_docs, clippy::unwrap_used)]

mod stand_in;

use stand_in::{COMMIT, Fault, StandIn, git_hash, sha256};
use std::fs;
use taper_hub::{
    CacheDir, HubConfig, HubError, ModelId, Progress, Token, catalogue, download, remove, resolve,
    search, stored_bytes,
};

const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    (0..300_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn hub() -> StandIn {
    StandIn::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"a\":1}"),
        ("README.md", b"no"),
        ("pytorch_model.bin", b"no"),
        ("model.gguf", b"no"),
        ("onnx/model.safetensors", b"no"),
        (WEIGHTS, &weights()),
    ])
}

fn id(name: &str) -> ModelId {
    name.parse().unwrap()
}

fn fails(hub: &StandIn, config: &HubConfig, name: &str) -> HubError {
    let error = download(&id(name), config, &mut ()).unwrap_err();
    let cached = resolve("org/name", &CacheDir::new(hub.cache.path()));
    assert!(cached.is_err(), "what failed is not found afterwards");
    error
}

#[derive(Default)]
struct Log(Vec<String>, u64);

impl Progress for Log {
    fn planned(&mut self, files: usize, total_bytes: u64) {
        self.0.push(format!("{files} {total_bytes}"));
    }
    fn started(&mut self, file: &str, size_bytes: u64, present_bytes: u64) {
        self.0.push(format!("{file} {present_bytes}/{size_bytes}"));
    }
    fn advanced(&mut self, bytes: u64) {
        self.1 += bytes;
    }
    fn finished(&mut self, file: &str) {
        self.0.push(format!("{file} done"));
    }
}

#[test]
fn what_a_model_needs_arrives_and_is_found() {
    let (hub, mut log) = (hub(), Log::default());
    let cache = CacheDir::new(hub.cache.path());
    let missing = resolve("org/name", &cache).unwrap_err();
    assert!(missing.to_string().starts_with("org/name is not in "), "{missing}");

    let got = download(&id("org/name"), &hub.config(), &mut log).unwrap();
    assert_eq!(fs::read(got.dir.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(got, resolve("org/name", &cache).unwrap());
    assert_eq!(got.commit.as_deref(), Some(COMMIT));
    let mut names: Vec<_> =
        fs::read_dir(&got.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "tokenizer.json"]);
    let total = 1_200_000 + 2 + 7;
    assert_eq!((log.0[0].as_str(), log.1), (format!("3 {total}").as_str(), total));
    assert_eq!(log.0[5], format!("{WEIGHTS} 0/1200000"));

    let listed = catalogue(&cache).unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str()), (1, "org/name"));
    assert_eq!((listed[0].size_bytes, listed[0].complete), (total, true));
    assert_eq!(listed[0].revisions, ["main"]);

    hub.seen();
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(hub.seen().len(), 1, "the second time, only the listing is fetched");
}

#[test]
fn the_layout_is_huggingface_hubs() {
    let hub = hub();
    download(&id("org/name@v1"), &hub.config(), &mut ()).unwrap();
    let repo = hub.cache.path().join("models--org--name");
    assert_eq!(fs::read_to_string(repo.join("refs/v1")).unwrap(), COMMIT);
    assert!(!repo.join("refs/main").exists());
    assert!(repo.join("blobs").join(sha256(&weights())).is_file());
    let link = repo.join("snapshots").join(COMMIT).join(WEIGHTS);
    #[cfg(unix)]
    assert!(fs::read_link(&link).unwrap().starts_with("../../blobs"));
    let cache = CacheDir::new(hub.cache.path());
    for name in [format!("org/name@{COMMIT}"), "org/name@v1".to_owned()] {
        assert_eq!(resolve(&name, &cache).unwrap().dir, link.parent().unwrap());
    }
    assert!(matches!(resolve("org/name", &cache), Err(HubError::NotCached { .. })));
    // hf-hub, which other programs use, finds it as well.
    let repo = hf_hub::Repo::with_revision("org/name".into(), hf_hub::RepoType::Model, "v1".into());
    assert!(hf_hub::Cache::new(hub.cache.path().into()).repo(repo).get(WEIGHTS).is_some());
}

#[test]
fn an_interrupted_file_goes_on_where_it_stopped() {
    for cut in [Fault::Cut(700_000), Fault::Short(700_000)] {
        let hub = hub();
        hub.faults(WEIGHTS, &[cut]);
        let error = fails(&hub, &hub.config(), "org/name");
        assert!(matches!(error, HubError::Network { .. } | HubError::WrongSize { .. }), "{error}");
        assert!(matches!(
            resolve(&format!("org/name@{COMMIT}"), &CacheDir::new(hub.cache.path())),
            Err(HubError::Incomplete { missing, .. }) if missing == WEIGHTS
        ));
        assert_eq!(hub.sent(WEIGHTS), [700_000]);
        let mut log = Log::default();
        let got = download(&id("org/name"), &hub.config(), &mut log).unwrap();
        assert_eq!(hub.sent(WEIGHTS), [500_000], "only the rest is transferred");
        assert!(log.0.contains(&format!("{WEIGHTS} 700000/1200000")), "{:?}", log.0);
        assert_eq!(fs::read(got.dir.join(WEIGHTS)).unwrap(), weights());
    }
}

#[test]
fn broken_connections_are_retried_as_long_as_bytes_arrive() {
    let hub = hub();
    let config = HubConfig { retries: 1, ..hub.config() };
    hub.faults(WEIGHTS, &[Fault::Cut(300_000); 3]);
    hub.faults("api", &[Fault::Refuse(503, "", "")]);
    download(&id("org/name"), &config, &mut ()).unwrap();
    assert_eq!(hub.sent(WEIGHTS), [300_000; 4]);

    let config = HubConfig { cache: CacheDir::new(hub.cache.path().join("other")), ..config };
    hub.faults(WEIGHTS, &[Fault::Refuse(503, "", ""); 3]);
    let error = download(&id("org/name"), &config, &mut ()).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 503, .. }), "{error}");
}

#[test]
fn a_server_that_ignores_the_range_starts_anew() {
    let hub = hub();
    hub.faults(WEIGHTS, &[Fault::Cut(100), Fault::IgnoreRange]);
    fails(&hub, &hub.config(), "org/name");
    let got = download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(fs::read(got.dir.join(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_part_that_is_whole_or_too_long_is_no_trouble() {
    let hub = hub();
    let blobs = hub.cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.part", sha256(&weights())));
    fs::write(&part, weights()).unwrap();
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(hub.sent(WEIGHTS), [0; 0]);
    fs::remove_file(blobs.join(sha256(&weights()))).unwrap();
    fs::write(&part, [weights(), weights()].concat()).unwrap();
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(hub.sent(WEIGHTS), [1_200_000]);
}

#[test]
fn two_processes_do_not_write_one_file() {
    let hub = hub();
    let blobs = hub.cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = fs::File::create(blobs.join(format!("{}.part", sha256(&weights())))).unwrap();
    part.lock().unwrap();
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(matches!(error, HubError::Busy { .. }), "{error}");
    drop(part);
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
}

#[test]
fn damage_is_noticed_and_thrown_away() {
    let hub = hub();
    hub.faults(WEIGHTS, &[Fault::Damage]);
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();

    let hub = self::hub();
    hub.claim_size(WEIGHTS, 1_000_000);
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(
        matches!(error, HubError::WrongSize { expected_bytes: 1_000_000, got_bytes, .. } if got_bytes > 1_000_000)
    );
}

#[test]
fn files_of_git_are_verified_too() {
    // Known to Git as this: the empty file.
    assert_eq!(git_hash(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    let hub = hub();
    hub.faults("config.json", &[Fault::Damage]);
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(matches!(&error, HubError::WrongHash { file } if file == "config.json"), "{error}");
    let got = download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    // A blob of the right length and other bytes is fetched again.
    let config = got.dir.join("config.json");
    let (blob, text) = (fs::canonicalize(&config).unwrap(), fs::read(&config).unwrap());
    fs::write(&blob, vec![b'x'; text.len()]).unwrap();
    hub.seen();
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(fs::read(&config).unwrap(), text);
    assert_eq!(hub.sent("config.json"), [text.len()]);
}

#[test]
fn a_model_too_large_for_the_disk_is_not_begun() {
    let hub = hub();
    hub.claim_size(WEIGHTS, 1 << 60);
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(matches!(error, HubError::NoSpace { needed_bytes, .. } if needed_bytes > 1 << 59));
    assert_eq!(hub.seen().len(), 1, "nothing but the listing was fetched");
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |at: &str, name: &str, status, code, message| {
        let hub = hub();
        hub.faults(at, &[Fault::Refuse(status, code, message)]);
        let error = fails(&hub, &hub.config(), name);
        (error.to_string(), error)
    };
    let (text, e) = refused(WEIGHTS, "org/name", 401, "GatedRepo", "Access is restricted");
    assert!(matches!(e, HubError::Gated { .. }) && text.contains("accept the licence at http://"));
    let (_, e) = refused(WEIGHTS, "org/name", 403, "", "");
    assert!(matches!(e, HubError::Gated { .. }));
    let (text, e) = refused("x", "org/unknown", 0, "", "");
    assert!(matches!(e, HubError::NotFound { .. }) && text.contains("check the name"));
    let (_, e) = refused("api", "org/name", 404, "RepoNotFound", "");
    assert!(matches!(e, HubError::NotFound { .. }));
    let (text, e) = refused("x", "org/name@v9", 0, "", "");
    assert!(matches!(e, HubError::NoRevision { .. }) && text.contains("\"v9\""), "{text}");
    let (text, e) =
        refused("api", "org/name", 401, "", "Invalid credentials in Authorization header");
    assert!(matches!(e, HubError::TokenRefused { .. }) && text.contains("HF_TOKEN"));
    let (_, e) = refused("api", "org/name", 500, "", "");
    assert!(matches!(e, HubError::Status { status: 500, .. }));
}

#[test]
fn no_network_and_offline() {
    let hub = hub();
    let mut config = hub.config();
    config.endpoint = "http://127.0.0.1:1".into();
    let error = fails(&hub, &config, "org/name");
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    config.offline = true;
    assert!(matches!(fails(&hub, &config, "org/name"), HubError::Offline { .. }));
}

#[test]
fn the_token_stays_with_the_hub() {
    let hub = hub();
    let config = HubConfig { token: Token::new("hf_secret"), ..hub.config() };
    hub.names_only();
    download(&id("org/name"), &config, &mut ()).unwrap();
    let seen = hub.seen();
    assert!(seen.iter().any(|s| s.storage));
    for request in seen {
        let expected = (!request.storage).then_some("Bearer hf_secret");
        assert_eq!(request.token.as_deref(), expected, "{request:?}");
    }
}

#[test]
fn a_listing_of_names_is_enough() {
    let hub = hub();
    hub.names_only();
    let got = download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    assert_eq!(fs::read(got.dir.join(WEIGHTS)).unwrap(), weights());
    let blob = hub.cache.path().join("models--org--name/blobs").join(sha256(&weights()));
    assert!(blob.is_file(), "the blob is named by the linked ETag");
}

#[test]
fn other_formats_are_refused_before_they_are_fetched() {
    let hub = StandIn::new(&[("config.json", b"{}"), ("pytorch_model.bin", b"x")]);
    let error = fails(&hub, &hub.config(), "org/name");
    assert!(matches!(error, HubError::NoWeights { .. }), "{error}");
    assert!(error.to_string().contains("safetensors"));
    assert_eq!(hub.seen().len(), 1);
}

#[test]
fn directories_win_and_must_be_models() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CacheDir::new(dir.path().join("none"));
    let model = dir.path().join("model");
    let name = model.to_str().unwrap();
    for path in [name, "./nope", "~/nope", "nope", "nope/", "a/b/c", ""] {
        let error = resolve(path, &cache).unwrap_err();
        assert!(matches!(error, HubError::NoDirectory { .. }), "{path}: {error}");
        assert!(error.to_string().contains(&format!("no directory {path}")), "{error}");
    }
    assert!(matches!(resolve("a/b?c", &cache), Err(HubError::BadName { .. })));
    fs::write(&model, "").unwrap();
    let error = resolve(name, &cache).unwrap_err();
    assert!(matches!(error, HubError::NotADirectory { .. }), "{error}");
    fs::remove_file(&model).unwrap();
    fs::create_dir(&model).unwrap();
    assert!(matches!(resolve(name, &cache), Err(HubError::NotAModel { .. })));
    fs::write(model.join("config.json"), "{}").unwrap();
    fs::write(model.join(WEIGHTS), "").unwrap();
    let got = resolve(name, &cache).unwrap();
    assert_eq!((got.dir, got.id, got.commit), (model, None, None));
    assert!(catalogue(&cache).unwrap().is_empty());
}

/// Wants no more after so many bytes.
struct Impatient(u64, u64);

impl Progress for Impatient {
    fn advanced(&mut self, bytes: u64) {
        self.0 += bytes;
    }
    fn is_cancelled(&self) -> bool {
        self.0 >= self.1
    }
}

#[test]
fn a_cancelled_download_goes_on_where_it_stopped() {
    let hub = hub();
    let error = download(&id("org/name"), &hub.config(), &mut Impatient(0, 500_000)).unwrap_err();
    assert!(matches!(error, HubError::Cancelled), "{error}");
    assert!(resolve("org/name", &CacheDir::new(hub.cache.path())).is_err());
    hub.seen();
    download(&id("org/name"), &hub.config(), &mut ()).unwrap();
    let ranges: Vec<_> = hub.seen().into_iter().filter_map(|seen| seen.range).collect();
    assert!(!ranges.is_empty() && ranges.iter().all(|r| *r != "bytes=0-"), "{ranges:?}");
}

#[test]
fn a_download_is_deleted_but_not_while_it_runs() {
    let hub = hub();
    let config = hub.config();
    let id = id("org/name");
    assert!(matches!(remove(&id, &config.cache), Err(HubError::NotCached { .. })));
    download(&id, &config, &mut ()).unwrap();
    let bytes = stored_bytes(&id, &config.cache).unwrap();
    assert!(bytes > weights().len() as u64 && bytes < 2 * weights().len() as u64, "{bytes}");
    let main = id.with_revision("main").unwrap();
    assert!(matches!(remove(&main, &config.cache), Err(HubError::AllRevisions { .. })));
    let part = hub.cache.path().join("models--org--name/blobs/x.part");
    let running = fs::File::create(&part).unwrap();
    running.lock().unwrap();
    assert!(matches!(remove(&id, &config.cache), Err(HubError::Busy { .. })));
    drop(running);
    remove(&id, &config.cache).unwrap();
    assert_eq!(fs::read_dir(hub.cache.path()).unwrap().count(), 0);
}

#[test]
fn a_search_goes_from_page_to_page_and_stays_on_the_hub() {
    let hub = hub();
    let mut config = hub.config();
    config.token = Token::new("hf_x");
    let page = |name: &str| format!(r#"[{{"id":"{name}","config":{{"model_type":"llama"}}}}]"#);
    hub.finds(&[&page("a/a"), &page("b/b"), &page("c/c")]);
    let names = |config: &HubConfig, limit| {
        let found = search("x y", config, limit, |name| name == "llama").unwrap();
        found.into_iter().map(|model| model.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&config, 2), ["a/a", "b/b"]);
    let seen = hub.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.token.as_deref() == Some("Bearer hf_x")));
    assert_eq!(names(&config, 9), ["a/a", "b/b", "c/c"]);
    assert_eq!(search("x", &config, 9, |_| false).unwrap(), []);
    hub.finds(&["{}"]);
    let odd = search("x", &config, 9, |_| true);
    assert!(matches!(odd, Err(HubError::BadReply { .. })));
    config.offline = true;
    assert!(matches!(search("x", &config, 9, |_| true), Err(HubError::OfflineSearch)));
}

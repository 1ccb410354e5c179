//! Against servers of this machine, which only these tests may fetch from.

use super::{super::address::is_public, *};
use std::{
    io::Write as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// 5,000 bytes in gzip.
const FIVE_THOUSAND: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x31\x01\x00\x00\x00\xc2\xa0\xac\xeb\x5f\xc2\x14\x7e\x40\x01\x00\x00\x00\x00\x6f\x03\x76\x59\xf4\x4c\x88\x13\x00\x00";

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A server that gives the same answer to everybody; how many connections it had is counted.
fn serve(answer: impl Into<Vec<u8>>) -> (u16, Arc<AtomicUsize>) {
    serve_with(answer, |_| {})
}

fn serve_with(
    answer: impl Into<Vec<u8>>,
    before: impl Fn(&TcpStream) + Send + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let (answer, counted) = (answer.into(), Arc::clone(&count));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            counted.fetch_add(1, Relaxed);
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            before(&stream);
            let _ = stream.write_all(&answer);
        }
    });
    (port, count)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
}

/// A fetcher for which each name has these addresses; of this machine's, it may use those of `local`.
fn fetcher(names: &[(&str, &[IpAddr])], local: bool) -> Fetcher {
    let limits = ImageLimits {
        allowed_media_domains: vec!["*".to_owned()],
        media_fetch_timeout: Duration::from_secs(10),
        ..ImageLimits::default()
    };
    let names: Vec<(String, Vec<IpAddr>)> =
        names.iter().map(|(name, all)| ((*name).to_owned(), all.to_vec())).collect();
    let lookup = move |host: &str, port: u16| {
        let found = names.iter().find(|(name, _)| name == host);
        let (_, all) = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(all.iter().map(|&address| SocketAddr::new(address, port)).collect())
    };
    Fetcher {
        lookup: Arc::new(lookup),
        allows: if local { |address| address == LOCAL || is_public(address) } else { is_public },
        ..Fetcher::new(&limits, 1000)
    }
}

fn said(fetcher: &Fetcher, url: &str) -> String {
    match fetcher.fetch(Url::parse(url).unwrap(), usize::MAX) {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(ApiError::Image { detail, .. }) => format!("! {detail}"),
        Err(other) => panic!("{url}: {other}"),
    }
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|address| address.parse().unwrap()).collect()
}

#[test]
fn an_image_comes_from_the_address_that_was_checked() {
    let (port, count) = serve(ok("an image"));
    // A second answer of the name server would lead elsewhere.
    let (asked, lookups) = (Arc::new(Mutex::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&lookups);
    let lookup = move |_: &str, port: u16| {
        counted.fetch_add(1, Relaxed);
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let address = if *asked == 1 { LOCAL } else { "169.254.169.254".parse().unwrap() };
        Ok(vec![SocketAddr::new(address, port)])
    };
    let fetcher = Fetcher { lookup: Arc::new(lookup), ..fetcher(&[], true) };
    assert_eq!(said(&fetcher, &format!("http://images.example:{port}/a.png")), "an image");
    assert_eq!((lookups.load(Relaxed), count.load(Relaxed)), (1, 1));
}

#[test]
fn names_of_addresses_that_are_not_public_are_refused() {
    let (port, count) = serve(ok("secret"));
    for address in [
        "127.0.0.1",
        "127.1.2.3",
        "0.0.0.0",
        "10.1.2.3",
        "172.20.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "64:ff9b::7f00:1",
    ] {
        let all = addresses(&[address]);
        let fetcher = fetcher(&[("images.example", &all)], false);
        let got = said(&fetcher, &format!("http://images.example:{port}/a.png"));
        assert_eq!(got, "! 'images.example' is not in the public Internet", "{address}");
        // Beside a public one it is no better.
        let all = addresses(&["1.1.1.1", address]);
        let fetcher = self::fetcher(&[("images.example", &all)], false);
        let got = said(&fetcher, &format!("http://images.example:{port}/a.png"));
        assert_eq!(got, "! 'images.example' is not in the public Internet", "{address}");
    }
    assert_eq!(count.load(Relaxed), 0);
}

#[test]
fn addresses_in_urls_are_checked_however_they_are_written() {
    let (port, count) = serve(ok("secret"));
    let fetcher = fetcher(&[], false);
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "169.254.169.254",
        "[fe80::1]",
        "[64:ff9b::127.0.0.1]",
        "①27.0.0.1",
    ] {
        let got = said(&fetcher, &format!("http://{host}:{port}/"));
        assert!(got.ends_with("is not in the public Internet"), "{host}: {got}");
    }
    assert_eq!(said(&fetcher, "http://localhost/"), "! there is no host 'localhost'");
    assert_eq!(count.load(Relaxed), 0);
}

#[test]
fn each_redirect_is_checked_again() {
    let names: [(&str, &[IpAddr]); 2] =
        [("a.example", &[LOCAL]), ("inside.example", &addresses(&["10.0.0.1"]))];
    let (secret, count) = serve(ok("secret"));
    let (image, _) = serve(ok("an image"));
    let fetcher = |domains: &[&str]| Fetcher {
        domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
        ..fetcher(&names, true)
    };
    let follow = |to: &str, domains: &[&str]| {
        let (port, _) = serve(redirect(to));
        said(&fetcher(domains), &format!("http://a.example:{port}/"))
    };
    assert_eq!(follow(&format!("http://a.example:{image}/b"), &["a.example"]), "an image");
    for (to, says) in [
        (format!("http://[::1]:{secret}/"), "is not in the public Internet"),
        ("http://inside.example/".to_owned(), "is not in the public Internet"),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "is not in the public Internet"),
        ("file:///etc/passwd".to_owned(), "URLs of 'file' are not fetched"),
        ("ftp://a.example/".to_owned(), "URLs of 'ftp' are not fetched"),
        ("http://user:secret@a.example/".to_owned(), "user name or a password"),
        ("http://".to_owned(), "redirects to nowhere"),
    ] {
        let got = follow(&to, &["*"]);
        assert!(got.starts_with('!') && got.contains(says), "{to}: {got}");
    }
    let other = follow(&format!("http://b.example:{image}/"), &["a.example"]);
    assert_eq!(other, "! this server fetches no images from 'b.example'");
    let (again, times) = serve(redirect("/again"));
    let got = said(&fetcher(&["*"]), &format!("http://a.example:{again}/"));
    assert_eq!(got, "! the image's URL redirects more than 3 times");
    assert_eq!((times.load(Relaxed), count.load(Relaxed)), (4, 0));
}

#[test]
fn only_allowed_hosts_are_asked() {
    let with = |domains: &[&str]| Fetcher {
        domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
        ..fetcher(&[], false)
    };
    let check = |domains: &[&str], url: &str| with(domains).check(&Url::parse(url).unwrap());
    assert!(check(&[], "https://a.example/").is_err());
    for url in ["https://a.example/", "https://A.EXAMPLE./b", "http://a.example:8080/"] {
        check(&["b.example", "A.example"], url).unwrap();
    }
    for url in ["https://b.a.example/", "https://xa.example/", "https://a.example.b/"] {
        assert!(check(&["a.example"], url).is_err(), "{url}");
    }
}

#[test]
fn what_comes_is_bounded() {
    let fetcher = fetcher(&[("a.example", &[LOCAL])], true);
    let at = |answer: String| {
        let (port, _) = serve(answer);
        said(&fetcher, &format!("http://a.example:{port}/"))
    };
    assert_eq!(at(ok(&"a".repeat(1000))).len(), 1000);
    assert_eq!(at(ok(&"a".repeat(1001))), "! the image is longer than 1000 bytes");
    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", "a".repeat(1001));
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    assert_eq!(at(format!("{chunked}{chunk}")), "! the image is longer than 1000 bytes");
    let untold = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    assert_eq!(
        at(format!("{untold}{}", "a".repeat(5000))),
        "! the image is longer than 1000 bytes"
    );
    // 5,000 times "a", whether or not the library inflates it.
    let head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n";
    let (port, _) = serve([head.as_bytes(), FIVE_THOUSAND].concat());
    let got = said(&fetcher, &format!("http://a.example:{port}/"));
    let expected = ["! the image is longer than 1000 bytes", "! the image comes compressed"];
    assert!(expected.contains(&got.as_str()), "{got}");
    let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    assert!(at(missing.to_owned()).starts_with("! the image's URL answers with status 404"));
    assert_eq!(at("nonsense\r\n\r\n".to_owned()), "! the image could not be fetched");
    let (port, _) = serve_with(ok("late"), |_| thread::sleep(Duration::from_secs(60)));
    let hasty = Fetcher { timeout: Duration::from_millis(200), ..fetcher };
    let got = said(&hasty, &format!("http://a.example:{port}/"));
    assert_eq!(got, "! the image did not come in time");
}

//! Which addresses are of the public Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Whether an image may come from an address: it is of the public Internet, and not one of this machine.
pub(super) fn may_fetch_from(address: IpAddr) -> bool {
    is_public(address) && !is_own(address)
}

/// Whether an address is one of this machine: what it sends there, it sends from there. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = |socket: UdpSocket| {
        socket.connect(SocketAddr::new(address, 80))?;
        socket.local_addr()
    };
    let own = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(from);
    own.is_ok_and(|own| own.ip() == address)
}

/// Whether an address is of the public Internet: not of this machine, a private network, a link, a group, a
/// documentation, or a way around that (RFC 6890, and IANA's registries of special-purpose addresses).
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127 | 224..=255, ..]
            | [100, 64..128, ..]
            | [169, 254, ..]
            // Azure's host, which tells machines their secrets.
            | [168, 63, 129, 16]
            | [172, 16..32, ..]
            | [192, 168, ..]
            | [192, 88, 99, _]
            | [192, 0, 0 | 2, _]
            | [198, 18..20, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

/// Of what is handed out to networks (2000::/3), what has no special purpose. Addresses of other networks than IPv6
/// that are written as one, as in `::ffff:127.0.0.1`, are not among it.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let special = match address.segments() {
        // Protocol assignments with Teredo, documentation, and 6to4.
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] => true,
        [0x3fff, 0..0x1000, ..] => true,
        [0x2000..0x4000, ..] => false,
        _ => true,
    };
    !special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(addresses: &[&str], public: bool) {
        for address in addresses {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        let public = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1"];
        all(&public, true);
        all(&["172.32.0.1", "192.0.1.1", "198.20.0.1", "223.255.255.255"], true);
        all(&["2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2001:4860:4860::8888"], true);
    }

    #[test]
    fn addresses_of_this_machine_are_its_own() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
        assert!(!may_fetch_from(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn others_are_not() {
        all(&["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "10.0.0.1"], false);
        all(&["172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"], false);
        all(&["100.64.0.1", "100.127.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1"], false);
        all(&["198.18.0.1", "198.19.0.1", "198.51.100.1", "203.0.113.1"], false);
        all(&["168.63.129.16"], false);
        all(&["224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"], false);
        all(&["::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1"], false);
        all(&["fc00::1", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1", "ff0e::1"], false);
        all(&["64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1"], false);
        all(&["2002:7f00:1::", "3fff::1", "4000::1", "2001:1ff::1"], false);
    }
}

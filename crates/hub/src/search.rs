//! Looks for models on the hub.

use crate::{
    HubConfig, HubError,
    client::{agent, header, network},
};
use serde::{Deserialize, Deserializer};
use ureq::http::StatusCode;

/// Models of a page, and most pages: a search whose words fit all models ends.
const PAGE: &str = "100";
const MAX_PAGES: usize = 10;

/// A model that the hub has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// Model id, `org/name`.
    pub name: String,
    /// `model_type` of its config.json.
    pub model_type: String,
    /// Elements of its tensors, where the hub knows them. Several weights may be packed into one.
    pub parameters: Option<u64>,
    /// Downloads of the last 30 days.
    pub downloads: u64,
    /// Users who like it.
    pub likes: u64,
    /// Whether a licence must be accepted first.
    pub gated: bool,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    config: Option<Config>,
    safetensors: Option<Safetensors>,
    #[serde(default)]
    downloads: u64,
    #[serde(default)]
    likes: u64,
    #[serde(default, deserialize_with = "not_false")]
    gated: bool,
}

#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
}

#[derive(Deserialize)]
struct Safetensors {
    total: Option<u64>,
}

/// `false`, or the name of a way to get access.
fn not_false<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(serde_json::Value::deserialize(value)? != serde_json::Value::Bool(false))
}

/// Models with safetensors that fit the words and whose `model_type` is wanted, those with the most downloads first;
/// at most `limit`, and of the first thousand that fit the words.
///
/// # Errors
/// The hub cannot be asked, or refuses.
pub fn search(
    words: &str,
    config: &HubConfig,
    limit: usize,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<FoundModel>, HubError> {
    if config.offline {
        return Err(HubError::OfflineSearch);
    }
    let agent = agent();
    let url = format!("{}/api/models", config.endpoint);
    let expanded = ["config", "safetensors", "downloads", "likes", "gated"];
    let request = agent.get(&url).query("search", words).query("filter", "safetensors");
    let request = request.query("sort", "downloads").query("direction", "-1").query("limit", PAGE);
    let request = request.query_pairs(expanded.map(|field| ("expand[]", field)));
    let mut page = read(request, &url, config)?;
    let mut found = Vec::new();
    for _ in 1..MAX_PAGES {
        found.extend(page.models.into_iter().filter_map(|entry| wanted(entry, &is_wanted)));
        // The token goes to no other host.
        let next = page.next.filter(|next| next.starts_with(&format!("{url}?")));
        let Some(next) = next.filter(|_| found.len() < limit) else { break };
        page = read(agent.get(&next), &next, config)?;
    }
    found.truncate(limit);
    Ok(found)
}

fn wanted(entry: Entry, is_wanted: impl Fn(&str) -> bool) -> Option<FoundModel> {
    let model_type = entry.config?.model_type.filter(|name| is_wanted(name))?;
    Some(FoundModel {
        name: entry.id,
        model_type,
        parameters: entry.safetensors.and_then(|of| of.total),
        downloads: entry.downloads,
        likes: entry.likes,
        gated: entry.gated,
    })
}

struct Page {
    models: Vec<Entry>,
    next: Option<String>,
}

fn read(
    request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
    url: &str,
    config: &HubConfig,
) -> Result<Page, HubError> {
    let request = match &config.token {
        Some(token) => request.header("Authorization", token.bearer()),
        None => request,
    };
    let mut response = request.call().map_err(network(url))?;
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            return Err(HubError::TokenRefused { endpoint: config.endpoint.clone() });
        }
        status if !status.is_success() => {
            return Err(HubError::Status { url: url.to_owned(), status: status.as_u16() });
        }
        _ => {}
    }
    let next = header(response.headers(), "link").and_then(next_page).map(str::to_owned);
    let text = response.body_mut().read_to_string().map_err(network(url))?;
    let models = serde_json::from_str(&text);
    let models = models
        .map_err(|error| HubError::BadReply { url: url.to_owned(), reason: error.to_string() })?;
    Ok(Page { models, next })
}

/// The address in `<URL>; rel="next"` (RFC 8288).
fn next_page(links: &str) -> Option<&str> {
    let is_next = |link: &&str| link.contains("rel=\"next\"");
    let link = links.split(',').find(is_next)?;
    link.trim().strip_prefix('<')?.split_once('>').map(|(url, _)| url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_named_in_a_header() {
        let links =
            "<http://h/api/models?a=1>; rel=\"prev\", <http://h/api/models?cursor=x>; rel=\"next\"";
        assert_eq!(next_page(links), Some("http://h/api/models?cursor=x"));
        assert_eq!(next_page("<http://h>; rel=\"prev\""), None);
    }
}

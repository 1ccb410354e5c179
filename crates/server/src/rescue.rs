//! What `taper serve --enable-longctx` puts behind conversations.

use crate::{
    longctx,
    longctx_args::{RescueArgs, Roots},
};
use anyhow::Result;
use std::sync::Arc;
use taper_longctx::{Library, SearchRequest, fence, mcp, random_word};
use taper_openai_server::{ContextSource, Mount, Retrieved, ServerConfig};

/// Results that are looked at.
const MOST_RESULTS: u32 = 8;

/// Opens the roots, and has a server search them.
pub(crate) fn apply(args: &RescueArgs, config: &mut ServerConfig) -> Result<()> {
    if !args.enable_longctx {
        return Ok(());
    }
    let roots = Roots {
        roots: args.longctx_root.clone(),
        index_dir: args.longctx_index_dir.clone(),
        no_index_dir: false,
    };
    let library = Arc::new(longctx::open(&[], &roots, true)?);
    let tools = mcp::Tools::new(Arc::clone(&library));
    config.mounts.push(Mount { path: "/mcp".to_owned(), service: mcp::service(&tools) });
    let (max_tokens, floor) = (args.longctx_max_tokens, args.longctx_score_floor);
    config.context = Some(Arc::new(Source { library, max_tokens, floor }));
    Ok(())
}

/// Searches for conversations.
#[derive(Debug)]
struct Source {
    library: Arc<Library>,
    max_tokens: u32,
    floor: f32,
}

impl ContextSource for Source {
    fn retrieve(
        &self,
        question: &str,
        max_tokens: u32,
        tokens: &dyn Fn(&str) -> usize,
        markers: &[String],
    ) -> Retrieved {
        let request = SearchRequest {
            max_tokens: self.max_tokens.min(max_tokens).max(1),
            max_results: MOST_RESULTS,
            ..SearchRequest::new(question)
        };
        let mut chunks = match self.library.search(&request) {
            Ok(answer) => answer.chunks,
            Err(error) => {
                tracing::debug!(%error, "nothing was searched for");
                return Retrieved { status: "error", ..Retrieved::default() };
            }
        };
        let confidence = chunks.first().map_or(0.0, |c| c.relevance_score);
        chunks.retain(|chunk| chunk.relevance_score >= self.floor);
        if chunks.is_empty() {
            return Retrieved { status: "empty", confidence, ..Retrieved::default() };
        }
        // A search counts bytes, and not those of the fence.
        let word = random_word();
        let texts = (1..=chunks.len()).rev().map(|n| (n, fence(&chunks[..n], &word, markers)));
        let mut fitting = texts.filter(|(_, text)| tokens(text) <= request.max_tokens as usize);
        let Some((n, text)) = fitting.next() else {
            return Retrieved { status: "no-room", confidence, ..Retrieved::default() };
        };
        let chunks = u32::try_from(n).unwrap_or(u32::MAX);
        Retrieved { text, chunks, confidence, status: "ready" }
    }
}

//! What each route takes and gives.

use super::schemas::{Part, Schemas};
use crate::wire::{
    ChatChunk, ChatRequest, ChatResponse, CompletionRequest, CompletionResponse, Conversation,
    DetokenizeRequest, DetokenizeResponse, Echo, EmbeddingRequest, EmbeddingResponse, InertFields,
    InertMessagesFields, InertResponsesFields, ItemList, LoadAdapterRequest, LoadModelRequest,
    MessageEvent, MessageOut, MessagesRequest, ModelCard, ModelDeleted, ModelList, NamedModel,
    OllamaChatRequest, OllamaDeleteRequest, OllamaEmbedRequest, OllamaEmbedResponse, OllamaFields,
    OllamaGenerateRequest, OllamaInertFields, OllamaModels, OllamaPullRequest, OllamaPullStatus,
    OllamaResponse, OllamaShow, OllamaShowRequest, RerankRequest, RerankResponse, ResponseDeleted,
    ResponseEvent, ResponseOut, ResponsesRequest, SamplingFields, ScoreRequest, ScoreResponse,
    Success, TokenCount, TokenizeRequest, TokenizeResponse, TranscriptEvent, TranscriptOut,
    TranscriptVerbose, TranscriptionForm, TranslationForm, UnloadAdapterRequest,
};
use schemars::JsonSchema;
use serde_json::{Value, json};

/// One method of a route.
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// As OpenAPI writes it.
    pub(super) path: &'static str,
    pub(super) id: String,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<Value>,
    pub(super) body_type: &'static str,
    /// Status, description and content of responses that are no errors.
    pub(super) answers: Vec<(u16, &'static str, Value)>,
    pub(super) errors: &'static [u16],
    /// Names, schemas and meanings of what a query may hold.
    pub(super) query: &'static [(&'static str, &'static str, &'static str)],
    pub(super) open: bool,
}

const JSON: &str = "application/json";

/// What can go wrong with every body.
const OF_BODIES: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503];

/// What can go wrong with changes of what is on the disk.
const OF_CHANGES: &[u16] = &[400, 401, 403, 404, 408, 409, 413, 415, 500, 503];

/// The query of a list that comes page by page.
const PAGES: &[(&str, &str, &str)] = &[
    (
        "limit",
        r#"{ "type": "integer", "minimum": 1, "maximum": 100 }"#,
        "Items of a page; 20 when absent.",
    ),
    ("order", r#"{ "type": "string", "enum": ["asc", "desc"] }"#, "Newest first when absent."),
    ("after", r#"{ "type": "string" }"#, "The id of the last item of the page before."),
];

const INERT: Part = InertFields::json_schema;
const SAMPLING: Part = SamplingFields::json_schema;

fn post(path: &'static str, tag: &'static str, summary: &'static str, body: Value) -> Operation {
    Operation {
        method: "post",
        path,
        id: id(path),
        tag,
        summary,
        body: Some(body),
        body_type: JSON,
        answers: Vec::new(),
        errors: OF_BODIES,
        query: &[],
        open: false,
    }
}

fn get(path: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    Operation {
        method: "get",
        path,
        id: id(path),
        tag,
        summary,
        body: None,
        body_type: JSON,
        answers: Vec::new(),
        errors: &[401, 403],
        query: &[],
        open: false,
    }
}

/// `/v1/chat/completions` is `v1_chat_completions`.
fn id(path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

impl Operation {
    fn gives(self, schema: &Value) -> Self {
        self.answers(200, "The response.", json!({ "application/json": { "schema": schema } }))
    }

    fn gives_text(self, kind: &str) -> Self {
        self.answers(200, "The response.", json!({ kind: { "schema": { "type": "string" } } }))
    }

    /// JSON, or a stream of events.
    fn streams(self, schema: &Value, events: &'static str) -> Self {
        let content = json!({
            "application/json": { "schema": schema },
            // The schema of each event: what is in its data is named by the description.
            "text/event-stream": { "schema": {
                "type": "object",
                "properties": { "data": { "type": "string" } },
                "required": ["data"],
            } },
        });
        self.answers(200, events, content)
    }

    fn answers(mut self, status: u16, description: &'static str, content: Value) -> Self {
        self.answers.push((status, description, content));
        self
    }

    fn at(self, path: &'static str) -> Self {
        Self { path, id: id(path), ..self }
    }

    fn open(self) -> Self {
        Self { open: true, errors: &[403], ..self }
    }
}

fn status(fields: &[&str]) -> Value {
    let properties: serde_json::Map<_, _> =
        fields.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    json!({ "application/json": {
        "schema": { "type": "object", "properties": properties, "required": fields },
    } })
}

/// Every route.
pub(super) fn operations(s: &mut Schemas) -> Vec<Operation> {
    let mut all = generation(s);
    all.extend(messages(s));
    all.extend(responses(s));
    all.extend(ollama(s));
    all.extend(texts(s));
    all.extend(speech(s));
    all.extend(models(s));
    all.extend(open());
    all
}

fn generation(s: &mut Schemas) -> Vec<Operation> {
    let chat = [ChatRequest::json_schema as Part, SAMPLING, INERT];
    let chat = s.request("ChatCompletionRequest", &chat);
    let text = [CompletionRequest::json_schema as Part, SAMPLING, INERT];
    let text = s.request("CompletionRequest", &text);
    // Chunks are no response of their own, and stand among the schemas.
    s.response::<ChatChunk<'_>>();
    vec![
        post("/v1/chat/completions", "Generation", "Answers a conversation.", chat).streams(
            &s.response::<ChatResponse<'_>>(),
            "The response; with `stream`, events whose data are each a ChatChunk, or an error that ends them, and \
             `[DONE]` at last.",
        ),
        post("/v1/completions", "Generation", "Continues texts, or fills in the middle.", text)
            .streams(
                &s.response::<CompletionResponse<'_>>(),
                "The response; with `stream`, events whose data are each a CompletionResponse, or an error that ends \
                 them, and `[DONE]` at last.",
            ),
    ]
}

fn messages(s: &mut Schemas) -> Vec<Operation> {
    const EVENTS: &str = "A message; with `stream`, events whose data are each a MessageEvent, or an AnthropicError \
                          that ends them. The event has the name of its `type`.";
    let inert = InertMessagesFields::json_schema as Part;
    let asks = [Conversation::json_schema as Part, MessagesRequest::json_schema, inert];
    let asks = s.request("MessagesRequest", &asks);
    let counts = s.request("CountTokensRequest", &[Conversation::json_schema, inert]);
    // Events are no response of their own, and stand among the schemas.
    s.response::<MessageEvent<'_>>();
    vec![
        post("/v1/messages", "Messages", "Answers a conversation, as Anthropic's API.", asks)
            .streams(&s.response::<MessageOut<'_>>(), EVENTS),
        post("/v1/messages/count_tokens", "Messages", "Counts a conversation's tokens.", counts)
            .gives(&s.response::<TokenCount>()),
    ]
}

fn responses(s: &mut Schemas) -> Vec<Operation> {
    const EVENTS: &str = "A response; with `stream`, events whose data are each a ResponseEvent. The event has the name \
                          of its `type`, and `response.failed` holds the error.";
    let inert = InertResponsesFields::json_schema as Part;
    // What is echoed is read twice; the second reading says more.
    let parts = [Echo::json_schema as Part, ResponsesRequest::json_schema, inert];
    let asks = s.request("ResponsesRequest", &parts);
    s.response::<ResponseEvent<'_>>();
    let response = s.response::<ResponseOut>();
    let one = |method, path, summary, gives: &Value| {
        let of = get(path, "Responses", summary);
        let id = format!("{method}_{}", of.id);
        Operation { method, id, errors: &[400, 401, 403, 404], ..of }.gives(gives)
    };
    const ID: &str = "/v1/responses/{id}";
    vec![
        post("/v1/responses", "Responses", "Answers, as OpenAI's Responses API.", asks)
            .streams(&response, EVENTS),
        one("get", ID, "A stored response.", &response),
        one("delete", ID, "Forgets a response.", &s.response::<ResponseDeleted>()),
        Operation {
            query: PAGES,
            ..one(
                "get",
                "/v1/responses/{id}/input_items",
                "What a stored response answered.",
                &s.response::<ItemList>(),
            )
        },
        one("post", "/v1/responses/{id}/cancel", "Ends a response in the background.", &response),
    ]
}

fn ollama(s: &mut Schemas) -> Vec<Operation> {
    const LINES: &str = "The response; a line of JSON for each part of it, or an OllamaError that ends them, unless \
                         `stream` is false.";
    let inert = OllamaInertFields::json_schema as Part;
    let shared = OllamaFields::json_schema as Part;
    let chat = [OllamaChatRequest::json_schema as Part, shared, inert];
    let chat = s.request("OllamaChatRequest", &chat);
    let generate = [OllamaGenerateRequest::json_schema as Part, shared, inert];
    let generate = s.request("OllamaGenerateRequest", &generate);
    let embed = s.request("OllamaEmbedRequest", &[OllamaEmbedRequest::json_schema, inert]);
    let show = s.request("OllamaShowRequest", &[OllamaShowRequest::json_schema]);
    let answer = s.response::<OllamaResponse<'_>>();
    let models = s.response::<OllamaModels>();
    let lines = |operation: Operation| {
        let json = json!({ "schema": answer });
        let lines = json!({ "schema": { "type": "string" } });
        let content = json!({ "application/json": json, "application/x-ndjson": lines });
        operation.answers(200, LINES, content)
    };
    let pull = s.request("OllamaPullRequest", &[OllamaPullRequest::json_schema]);
    let delete = s.request("OllamaDeleteRequest", &[OllamaDeleteRequest::json_schema]);
    let step = s.response::<OllamaPullStatus>();
    let pulls = post("/api/pull", "Ollama", "Downloads a model, where that is allowed.", pull)
        .answers(
            200,
            "A line of JSON for each part of it, or an OllamaError that ends them; the last alone if `stream` is false.",
            json!({
                "application/json": { "schema": step },
                "application/x-ndjson": { "schema": { "type": "string" } },
            }),
        );
    let deletes = post("/api/delete", "Ollama", "Deletes a model, where that is allowed.", delete);
    let deletes = Operation { method: "delete", errors: OF_CHANGES, ..deletes }.answers(
        200,
        "It is deleted.",
        json!({}),
    );
    vec![
        lines(post("/api/chat", "Ollama", "Answers a conversation, as Ollama's API.", chat)),
        lines(post("/api/generate", "Ollama", "Answers a prompt, as Ollama's API.", generate)),
        post("/api/embed", "Ollama", "Makes vectors of texts, as Ollama's API.", embed)
            .gives(&s.response::<OllamaEmbedResponse>()),
        post("/api/show", "Ollama", "Describes a model, as Ollama's API.", show)
            .gives(&s.response::<OllamaShow<'_>>()),
        get("/api/tags", "Ollama", "Lists the models, as Ollama's API.").gives(&models),
        get("/api/ps", "Ollama", "Lists the loaded models, as Ollama's API.").gives(&models),
        pulls,
        deletes,
        get("/api/version", "Ollama", "Says which version this is, as Ollama's API.").answers(
            200,
            "The version.",
            status(&["version"]),
        ),
    ]
}

fn texts(s: &mut Schemas) -> Vec<Operation> {
    let embedding = s.request("EmbeddingRequest", &[EmbeddingRequest::json_schema, INERT]);
    let rerank = s.request("RerankRequest", &[RerankRequest::json_schema, INERT]);
    let score = s.request("ScoreRequest", &[ScoreRequest::json_schema, INERT]);
    let tokenize = s.request("TokenizeRequest", &[TokenizeRequest::json_schema]);
    let detokenize = s.request("DetokenizeRequest", &[DetokenizeRequest::json_schema]);
    let rerank = || {
        post("/v1/rerank", "Texts", "Orders texts by how well they answer a query.", rerank.clone())
    };
    let score = || post("/v1/score", "Texts", "Scores pairs of texts.", score.clone());
    let (ranked, scored) = (s.response::<RerankResponse>(), s.response::<ScoreResponse>());
    vec![
        post("/v1/embeddings", "Texts", "Makes vectors of texts.", embedding)
            .gives(&s.response::<EmbeddingResponse>()),
        rerank().gives(&ranked),
        rerank().gives(&ranked).at("/rerank"),
        score().gives(&scored),
        score().gives(&scored).at("/score"),
        post("/tokenize", "Texts", "Makes tokens of a text or a conversation.", tokenize)
            .gives(&s.response::<TokenizeResponse>()),
        post("/detokenize", "Texts", "Makes a text of tokens.", detokenize)
            .gives(&s.response::<DetokenizeResponse>()),
    ]
}

fn speech(s: &mut Schemas) -> Vec<Operation> {
    const EVENTS: &str = "The transcript in the format asked for; with `stream`, events whose data are each a \
                          TranscriptEvent, or an error that ends them.";
    let transcribe = s.request("TranscriptionForm", &[TranscriptionForm::json_schema]);
    let translate = s.request("TranslationForm", &[TranslationForm::json_schema]);
    s.response::<TranscriptEvent>();
    let json = [s.response::<TranscriptOut>(), s.response::<TranscriptVerbose>()];
    let text = json!({ "schema": { "type": "string" } });
    let content = json!({
        "application/json": { "schema": { "anyOf": json } },
        "text/plain": text,
        "text/event-stream": text,
    });
    let form = |path, summary, body| {
        let operation = post(path, "Speech", summary, body);
        Operation { body_type: "multipart/form-data", ..operation }
    };
    vec![
        form("/v1/audio/transcriptions", "Writes down speech.", transcribe).answers(
            200,
            EVENTS,
            content.clone(),
        ),
        form("/v1/audio/translations", "Writes down speech in English.", translate)
            .answers(200, EVENTS, content),
    ]
}

fn models(s: &mut Schemas) -> Vec<Operation> {
    let load = s.request("LoadAdapterRequest", &[LoadAdapterRequest::json_schema]);
    let unload = s.request("UnloadAdapterRequest", &[UnloadAdapterRequest::json_schema]);
    let one = get("/v1/models/{id}", "Models", "Describes one model.");
    let named = s.request("NamedModel", &[NamedModel::json_schema]);
    let loads = s.request("LoadModelRequest", &[LoadModelRequest::json_schema]);
    let (list, success) = (s.response::<ModelList>(), s.response::<Success>());
    let delete = get("/v1/models/{id}", "Models", "Deletes a model, where that is allowed.");
    let delete = Operation {
        method: "delete",
        id: format!("delete_{}", delete.id),
        errors: OF_CHANGES,
        ..delete
    };
    vec![
        get("/v1/models", "Models", "Lists the models.").gives(&list),
        get("/models", "Models", "Lists the models.").gives(&list),
        Operation { errors: &[401, 403, 404], ..one }.gives(&s.response::<ModelCard>()),
        delete.gives(&s.response::<ModelDeleted>()),
        post("/models/load", "Models", "Loads one of several models.", loads).streams(
            &success,
            "It is loaded; with `stream`, events whose data say how far it is, and at last `loaded`, or an error.",
        ),
        post("/models/unload", "Models", "Unloads one of several models.", named).gives(&success),
        post("/v1/load_lora_adapter", "Models", "Loads an adapter, where that is allowed.", load)
            .gives_text("text/plain"),
        post("/v1/unload_lora_adapter", "Models", "Forgets an adapter.", unload)
            .gives_text("text/plain"),
    ]
}

fn open() -> Vec<Operation> {
    let both = |path, summary, fields: &[&str]| {
        let operation = get(path, "Server", summary).open();
        let operation = operation.answers(200, "Yes.", status(fields));
        operation.answers(503, "No.", status(fields))
    };
    vec![
        both("/health", "Says whether the engine lives.", &["status", "model"]),
        both("/ready", "Says whether requests are taken.", &["status"]),
        both("/livez", "Says whether the server should go on.", &["status"]),
        both("/readyz", "The same as /ready.", &["status"]),
        get("/version", "Server", "Says which version this is.").open().answers(
            200,
            "The version.",
            status(&["version"]),
        ),
        get("/metrics", "Server", "Counts and times, for Prometheus.")
            .open()
            .gives_text("text/plain"),
        get("/openapi.json", "Server", "This description.").open().answers(
            200,
            "The document.",
            json!({ "application/json": { "schema": { "type": "object" } } }),
        ),
        get("/docs", "Server", "This description as a page.").open().gives_text("text/html"),
    ]
}

//! The generations of one request: `n` choices of one or more prompts, each a request to the
//! engine, read as one sequence of steps.

use crate::{
    errors::ApiError,
    metrics::{Ended, Metrics},
    record::Record,
    sink::{Events, channel},
    state::{AppState, InFlight, Phase},
    wire::{CompletionDetails, PromptDetails, Usage},
};
use std::{
    future::{pending, poll_fn},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::{Duration, Instant},
};
use taper_base::{
    Backlog, Event, FinishReason, GenRequest, GeneratedToken, GenerationError, TokenLogprobs,
};
use taper_chat::{TextOptions, TextStream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time,
};

/// What happens to a choice next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Log probabilities of the prompt's tokens.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// A token, some text, the end, or several of them.
    Piece(Piece),
}

/// What a token, or the end, added to a choice.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Text that is safe to send; not always the token's own, as some is held back.
    pub(crate) text: String,
    /// The token.
    pub(crate) token: Option<GeneratedToken>,
    /// The choice is over.
    pub(crate) finish: Option<FinishReason>,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

/// Where the time of a choice went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) total: Duration,
    /// To the first token.
    pub(crate) prefill: Duration,
    /// From the first token to the last.
    pub(crate) decode: Duration,
}

/// All choices of one request. Dropping it cancels them: the engine sees its sinks closed.
#[derive(Debug)]
pub(crate) struct Generation {
    choices: Vec<Choice>,
    /// The choice that is asked first next time, so that none starves another.
    turn: usize,
    phases: watch::Receiver<Phase>,
    /// When it has taken too long.
    deadline: Option<time::Instant>,
    /// Choices of one prompt.
    n: usize,
    record: Arc<Record>,
    /// Tokens of the prompt that the server put there itself.
    pub(crate) retrieved_tokens: u64,
    /// Tokens of the prompt that stand for images.
    pub(crate) image_tokens: u64,
    /// What the request holds of memory for images.
    pub(crate) held: Vec<OwnedSemaphorePermit>,
    _in_flight: InFlight,
}

#[derive(Debug)]
struct Choice {
    state: AppState,
    /// `None` once the choice is over.
    events: Option<Events>,
    text: TextStream,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: u64,
    /// Of a request with a prediction: drafted tokens that were accepted, and others.
    predicted: Option<[u64; 2]>,
}

impl Generation {
    /// Queues every request; `n` says how many of them share a prompt.
    pub(crate) fn submit(
        state: &AppState,
        record: Arc<Record>,
        requests: impl Iterator<Item = GenRequest>,
        n: usize,
        text: &TextOptions,
        prompt_param: &'static str,
    ) -> Result<Self, ApiError> {
        let in_flight = InFlight::new(state);
        if state.0.phase() != Phase::Serving {
            return Err(ApiError::Draining);
        }
        let backlog = Arc::new(Backlog::default());
        let (mut choices, mut most_tokens) = (Vec::new(), None);
        // The queue is shared among keys, where there are several.
        let caller = record.caller().filter(|_| state.0.config.api_keys.all().len() > 1);
        for mut request in requests {
            if let Some(caller) = caller {
                request.client = Some(caller.client());
            }
            let (sink, events) = channel(&backlog);
            // Until the engine has taken it, nothing can be cancelled or counted.
            let mut choice = Choice {
                state: state.clone(),
                events: None,
                text: TextStream::new(&state.0.tokenizer, text, &request.prompt)?,
                arrived: Instant::now(),
                started: None,
                first_token: None,
                last_token: None,
                prompt_tokens: request.prompt.len() as u64,
                completion_tokens: 0,
                cached_tokens: 0,
                predicted: (!request.prediction.is_empty()).then_some([0; 2]),
            };
            let asked = request.stop.max_tokens;
            let submitted = state.0.engine.submit(request, Box::new(sink));
            submitted.map_err(|source| ApiError::Submit { source, prompt_param })?;
            choice.events = Some(events);
            most_tokens = most_tokens.max(asked);
            choices.push(choice);
        }
        let (phases, n) = (state.0.phases(), n.max(1));
        state.0.metrics.asked(n, most_tokens, state.0.engine.info().max_model_len);
        Ok(Self {
            choices,
            turn: 0,
            phases,
            deadline: state.0.config.request_timeout.map(|most| time::Instant::now() + most),
            n,
            record,
            retrieved_tokens: 0,
            image_tokens: 0,
            held: Vec::new(),
            _in_flight: in_flight,
        })
    }

    /// The next step of any choice; `None` when all are over. An error ends all of them.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Step), ApiError>> {
        loop {
            let next = match self.event().await {
                Ok(next) => next?,
                Err(error) => return Some(Err(self.fail(error))),
            };
            let (index, Some((at, event))) = next else {
                return Some(Err(self.fail(ApiError::EngineGone)));
            };
            let choice = self.choices.get_mut(index)?;
            match choice.take(at, event) {
                Ok(Some(step)) => return Some(Ok((index, step))),
                Ok(None) => {}
                Err(error) => return Some(Err(self.fail(error))),
            }
        }
    }

    /// The next event, unless the server has stopped or time is over.
    async fn event(&mut self) -> Result<Next, ApiError> {
        let Self { choices, turn, phases, deadline, .. } = self;
        let most = choices.first().and_then(|choice| choice.state.0.config.request_timeout);
        let late = async {
            match *deadline {
                Some(deadline) => time::sleep_until(deadline).await,
                None => pending().await,
            }
        };
        let stopped = async { phases.wait_for(|p| *p == Phase::Stopped).await.map(drop) };
        tokio::select! {
            biased;
            next = poll_fn(|cx| poll_any(choices, turn, cx)) => Ok(next),
            _ = stopped => Err(GenerationError::ShuttingDown.into()),
            () = late => {
                Err(ApiError::RequestTimeout { seconds: most.map_or(0, |most| most.as_secs()) })
            }
        }
    }

    /// Ends a choice from here: the engine stops working on it.
    pub(crate) fn finish(&mut self, choice: usize, reason: FinishReason) {
        if let Some(choice) = self.choices.get_mut(choice) {
            choice.end(Ended::Finished(reason));
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        for choice in &mut self.choices {
            choice.end(Ended::Failed);
        }
        error
    }

    /// A count of drafted tokens, of all choices; `None` without a prediction.
    fn predicted(&self, of: fn([u64; 2]) -> u64) -> Option<u64> {
        self.choices.iter().map(|choice| choice.predicted.map(of)).sum()
    }

    /// How long the first choice has taken.
    pub(crate) fn times(&self) -> Times {
        let Some(choice) = self.choices.first() else { return Times::default() };
        let (first, last) = (choice.first_token, choice.last_token);
        let between = |from, to: Option<Instant>| to.map(|to| to.duration_since(from));
        Times {
            total: choice.arrived.elapsed(),
            prefill: between(choice.arrived, first).unwrap_or_default(),
            decode: first.and_then(|first| between(first, last)).unwrap_or_default(),
        }
    }

    /// Counts so far. A prompt counts once, however many choices it has.
    pub(crate) fn usage(&self, reasoning_tokens: u64) -> Usage {
        let mut usage = Usage {
            completion_tokens_details: CompletionDetails {
                reasoning_tokens,
                accepted_prediction_tokens: self.predicted(|[accepted, _]| accepted),
                rejected_prediction_tokens: self.predicted(|[_, rejected]| rejected),
            },
            prompt_tokens_details: PromptDetails {
                retrieved_tokens: self.retrieved_tokens,
                image_tokens: self.image_tokens,
                ..PromptDetails::default()
            },
            ..Usage::default()
        };
        for choices in self.choices.chunks(self.n) {
            usage.prompt_tokens += choices.first().map_or(0, |c| c.prompt_tokens);
            // The later choices find the first one's prompt in the cache; what the client saved is
            // what the first one found.
            usage.prompt_tokens_details.cached_tokens +=
                choices.iter().map(|c| c.cached_tokens).min().unwrap_or(0);
            usage.completion_tokens += choices.iter().map(|c| c.completion_tokens).sum::<u64>();
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.record.count(&self.usage(0));
    }
}

type Next = Option<(usize, Option<(Instant, Event)>)>;

fn poll_any(choices: &mut [Choice], turn: &mut usize, cx: &mut Context<'_>) -> Poll<Next> {
    let count = choices.len();
    let mut live = false;
    for step in 0..count {
        let index = (*turn + step) % count;
        let Some(events) = choices.get_mut(index).and_then(|c| c.events.as_mut()) else { continue };
        live = true;
        if let Poll::Ready(event) = events.poll(cx) {
            *turn = index + 1;
            return Poll::Ready(Some((index, event)));
        }
    }
    if live { Poll::Pending } else { Poll::Ready(None) }
}

impl Choice {
    fn take(&mut self, at: Instant, event: Event) -> Result<Option<Step>, ApiError> {
        match event {
            Event::Started { cached_tokens } => {
                self.cached_tokens = u64::from(cached_tokens);
                self.started = Some(at);
                let metrics = self.metrics();
                metrics.queue.observe_time(at.duration_since(self.arrived));
                metrics.prefix_queries.fetch_add(self.prompt_tokens, Relaxed);
                metrics.prefix_hits.fetch_add(self.cached_tokens, Relaxed);
                Ok(None)
            }
            Event::Prompt(logprobs) => Ok(Some(Step::Prompt(logprobs))),
            Event::Token(token) => {
                self.count(at);
                let step = self.text.push(&token)?;
                let finish = step.stop.is_some().then_some(FinishReason::Stop);
                if let Some(reason) = finish {
                    self.end(Ended::Finished(reason));
                }
                let (text, stop) = (step.text, step.stop);
                Ok(Some(Step::Piece(Piece { text, token: Some(token), finish, stop })))
            }
            Event::Drafted { accepted, rejected } => {
                if let Some([right, wrong]) = &mut self.predicted {
                    *right += u64::from(accepted);
                    *wrong += u64::from(rejected);
                }
                Ok(None)
            }
            Event::Finished(reason) => {
                let step = self.text.finish()?;
                let reason = if step.stop.is_some() { FinishReason::Stop } else { reason };
                self.end(Ended::Finished(reason));
                let (text, stop) = (step.text, step.stop);
                Ok(Some(Step::Piece(Piece { text, token: None, finish: Some(reason), stop })))
            }
            Event::Failed(error) => Err(error.into()),
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.state.0.metrics
    }

    fn count(&mut self, at: Instant) {
        self.completion_tokens += 1;
        match self.last_token {
            None => {
                self.first_token = Some(at);
                self.metrics().ttft.observe_time(at.duration_since(self.arrived));
            }
            Some(last) => self.metrics().inter_token.observe_time(at.duration_since(last)),
        }
        self.last_token = Some(at);
    }

    /// Closes the sink and books the end; a second call does nothing.
    fn end(&mut self, how: Ended) {
        if self.events.take().is_none() {
            return;
        }
        let metrics = self.metrics();
        metrics.ended(how);
        if let Ended::Finished(_) = how {
            metrics.e2e.observe_time(self.arrived.elapsed());
            metrics.prompt_tokens.observe(self.prompt_tokens as f64);
            metrics.generation_tokens.observe(self.completion_tokens as f64);
            if let (Some(started), Some(first), Some(last)) =
                (self.started, self.first_token, self.last_token)
            {
                metrics.prefill.observe_time(first.duration_since(started));
                metrics.decode.observe_time(last.duration_since(first));
                metrics.inference.observe_time(last.duration_since(started));
            }
            if let (Some(first), Some(last), more @ 2..) =
                (self.first_token, self.last_token, self.completion_tokens)
            {
                let mean = last.duration_since(first).as_secs_f64() / (more - 1) as f64;
                metrics.per_output_token.observe(mean);
            }
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        self.end(Ended::Aborted);
    }
}

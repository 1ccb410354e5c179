//! Steps of the model that do not end.

use crate::state::AppState;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::time::interval;

/// Reports each step once that takes longer than it may, for as long as it is polled.
pub(crate) async fn watch(state: AppState) {
    let Some(most) = state.0.config.step_timeout else { return };
    let mut looks = interval((most / 4).clamp(Duration::from_millis(10), Duration::from_secs(1)));
    let mut reported = false;
    loop {
        looks.tick().await;
        let hung = state.0.is_hung();
        if hung && !reported {
            state.0.metrics.hung_steps.fetch_add(1, Relaxed);
            tracing::error!("a model step has taken more than {most:?}; /health says so");
        }
        if reported && !hung {
            tracing::warn!("the model step that took so long has ended");
        }
        reported = hung;
    }
}

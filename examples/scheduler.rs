//! taper-scheduler: the plans of three requests that do not quite fit, step by step.

use anyhow::Result;
use taper_base::SeqId;
use taper_scheduler::{Admission, CountingPool, Scheduler, SchedulerConfig, SeqOutcome};

fn main() -> Result<()> {
    // Ten blocks of four tokens, and eight tokens a step.
    let mut pool = CountingPool::new(10, 4);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_batched_tokens: 8,
        max_num_seqs: 4,
        ..SchedulerConfig::default()
    });
    for (id, prompt, max_new) in [(0, 4, 6), (1, 20, 4), (2, 6, 8)] {
        let (id, prompt) = (SeqId(id), vec![1; prompt]);
        scheduler.admit(
            Admission {
                id,
                prompt,
                max_new,
                all_logits: false,
                client: None,
                priority: 0,
                cut_tokens: 0,
                whole: Vec::new(),
            },
            &pool,
        )?;
    }

    let mut generated = [0; 3];
    for step in 0.. {
        let plan = scheduler.plan(&mut pool);
        let works = plan.works.iter().map(|w| {
            let sampled = if w.samples { ", samples" } else { "" };
            format!("{}: {}..{}{sampled}", w.id.0, w.start, w.end())
        });
        let works = works.collect::<Vec<_>>().join("; ");
        let preempted = plan.preempted.iter().map(|id| format!("  preempts {}", id.0));
        println!("step {step:>2}  [{works}]{}", preempted.collect::<String>());

        // What the model and the sampler would say.
        let sampled = plan.works.iter().filter(|w| w.samples);
        let outcomes = sampled.map(|w| {
            let n = &mut generated[w.id.0 as usize];
            *n += 1;
            SeqOutcome { id: w.id, new_token: Some(2), finished: *n == [6, 4, 8][w.id.0 as usize] }
        });
        scheduler.commit(&outcomes.collect::<Vec<_>>(), &mut pool);
        if scheduler.is_idle() {
            break;
        }
    }
    println!("generated {generated:?}");
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}

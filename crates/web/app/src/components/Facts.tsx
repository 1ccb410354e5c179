/** A card of names and values. */
export function Facts({ title, facts }: { title: string; facts: [string, string][] }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      <FactList facts={facts} />
    </section>
  );
}

/** Names and values. */
export function FactList({ facts }: { facts: [string, string][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

package percolator

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/internal/format"
)

// Cascades: what locks and notifications say of how their change came about. See "Cascades" in docs/architecture.md.

// defaultMaxHops is how many runs may follow from one another where nobody says otherwise.
const defaultMaxHops = 1000

// TrackCascades has the database say with each change how it came about, for good: how many runs of observers lie between a write from
// outside and the change (Txn.Hops), and, where spans are sampled, which transaction made it (WithTracing). From then on the limits of
// Observer.MaxHops count, also the default one, and the span of a run belongs to the trace of the commit that set it off.
//
// The first call waits for one catalog lease: then every process knows of it. Programs of versions that do not know of it get ErrFormat then, also those that have
// the data open. Later calls cost nothing. It costs a few bytes in the lock and in the notification of what a run writes to
// observed columns, and 25 more if it is sampled; what a transaction from outside writes stays as it is unless it is sampled. Errors: ErrClosed, ErrFormat, those of the
// context, of the oracle and of the store. It may be called concurrently.
func (db *DB) TrackCascades(ctx context.Context) error {
	if _, err := db.awaitFeature(ctx, cascades); err != nil {
		return fmt.Errorf("percolator: TrackCascades: %w", err)
	}
	return nil
}

// Hops returns how many runs of observers lie between a write from outside and the change that the transaction is the run for. It is 0 for
// a change from outside, in a transaction that is no run, and where cascades are not tracked (DB.TrackCascades).
//
// If several changes come as one, the newest counts. A timer that was due later than it was set begins anew at 0, and so
// do a replay, a parked run that is released, a periodic, and a run for data from before the observer was registered. So does a transaction of its own
// that a function makes, in place of writing by tx.
func (tx *Txn) Hops() int {
	if tx.run == nil {
		return 0
	}
	return int(tx.run.hops)
}

// origin is what locks and notifications of a commit carry. A nil one stands for nothing.
type origin struct{ cascade, strong, weak []byte }

func newOrigin(c format.Cascade) *origin {
	b := c.Encode()
	if b == nil {
		return nil
	}
	return &origin{b, format.EncodeNotification(format.NotifyStrong, b), format.EncodeNotification(format.NotifyWeak, b)}
}

// followed are those of runs that few others lie before, by their hops, and whose spans are not sampled. They are shared.
var followed = func() (all [32]*origin) {
	for hops := range all {
		all[hops] = newOrigin(format.Cascade{Hops: hops})
	}
	return all
}()

// originOf finds out what the commit says of itself. Nothing is said before everybody can read it.
func (c *committer) originOf() *origin {
	if c.view.CascadesFrom == 0 || c.start < c.view.CascadesFrom {
		return nil
	}
	said := format.Cascade{Span: c.tx.trace.context()}
	if r := c.tx.run; r != nil {
		said.Hops = int(r.hops) + 1
	}
	if said.Span == (format.Span{}) && said.Hops < len(followed) {
		return followed[said.Hops]
	}
	return newOrigin(said)
}

func (o *origin) encoded() []byte {
	if o == nil {
		return nil
	}
	return o.cascade
}

func (o *origin) notification(k format.NotifyKind) []byte {
	switch {
	case o == nil:
		return format.EncodeNotification(k, nil)
	case k == format.NotifyWeak:
		return o.weak
	}
	return o.strong
}

// notificationOf is what goes with the commit of a write, nil for nothing.
func (c *committer) notificationOf(i int) []byte {
	if !c.notify[i] {
		return nil
	}
	return c.origin.notification(format.NotifyStrong)
}

// cascade tells how the newest change came about, for a run of observer i. A notification says it that stands at the timestamp of the
// change. There is none for a timer that has waited, or if the observer is shown what others have seen before.
func (v *cellView) cascade(i int) (came format.Cascade) {
	if v.replayed(i) {
		return came
	}
	for j := range v.seen {
		if v.seen[j].TS == v.change {
			came, _ = format.CascadeOf(v.seen[j].Value) // the view has decoded it
			break
		}
	}
	return came
}

// mostLinks bounds how many commits the span of a run links to.
const mostLinks = 8

// setOffBy returns the spans of the commits that observer i has yet to see, and among them that of the newest change.
func (v *cellView) setOffBy(i int) (newest trace.SpanContext, links []trace.Link) {
	if v.replayed(i) {
		return newest, nil
	}
	for j := range v.seen {
		n := &v.seen[j]
		if n.TS <= v.coveredTo(i) || len(links) == mostLinks {
			break
		}
		came, err := format.CascadeOf(n.Value)
		if err != nil || came.Span == (format.Span{}) {
			continue
		}
		sc := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: came.Span.Trace, SpanID: came.Span.ID, TraceFlags: trace.TraceFlags(came.Span.Flags), Remote: true,
		})
		if n.TS == v.change {
			newest = sc
		}
		links = append(links, trace.Link{SpanContext: sc})
	}
	return newest, links
}

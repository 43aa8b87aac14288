package percolator

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// storedSettings are Settings in the catalog.
type storedSettings struct {
	MaxTxnAgeMs    int64 `json:"max_txn_age_ms"`
	RetentionMs    int64 `json:"retention_ms"`
	CatalogLeaseMs int64 `json:"catalog_lease_ms"`
}

func storeSettings(s Settings) storedSettings {
	return storedSettings{s.MaxTxnAge.Milliseconds(), s.Retention.Milliseconds(), s.CatalogLease.Milliseconds()}
}

func (s storedSettings) settings() Settings {
	return Settings{
		MaxTxnAge:    time.Duration(s.MaxTxnAgeMs) * time.Millisecond,
		Retention:    time.Duration(s.RetentionMs) * time.Millisecond,
		CatalogLease: time.Duration(s.CatalogLeaseMs) * time.Millisecond,
	}
}

// check finds what Configure would never have stored.
func (s storedSettings) check() error {
	const most = int64(1) << 43 // keeps milliseconds within a Duration
	if s.MaxTxnAgeMs > most || s.RetentionMs > most || s.CatalogLeaseMs > most {
		return fmt.Errorf("%w: catalog: settings out of range", ErrCorrupt)
	}
	if err := s.settings().check(); err != nil {
		return fmt.Errorf("%w: catalog: %w", ErrCorrupt, err)
	}
	return nil
}

// pastAge is a MaxTxnAge that was in force until a moment, and is less than those that
// followed it. It still binds the transactions that began before that moment.
type pastAge struct {
	MaxTxnAgeMs int64     `json:"max_txn_age_ms"`
	Until       Timestamp `json:"until"`
}

func (p pastAge) age() time.Duration { return time.Duration(p.MaxTxnAgeMs) * time.Millisecond }

// A change of the settings has two steps. First it is announced: Next is stored, with
// NextFrom 0. Then it is dated: NextFrom is more than a lease of Current above a
// timestamp that was drawn after the announcement could be read. A process that knows
// of the announcement uses the shorter of the two leases until NextFrom. A process that
// does not know of it no longer uses its view at NextFrom. So:
//
//   - a view of the catalog that was begun at f may be used for leaseAt(f);
//   - a process that must outwait the views that were begun before f waits for the
//     lease of outlasting(f). From NextFrom on that is Next's lease alone, even if that
//     is the shorter one.
//
// None of this depends on a clock but the oracle, and no step becomes wrong when the
// process that takes it is held up for hours in the middle.

// inForce tells whether Next is in force at ts.
func (c *catalog) inForce(ts Timestamp) bool {
	return c.Next != nil && c.NextFrom != 0 && ts >= c.NextFrom
}

// at returns the settings in force at ts.
func (c *catalog) at(ts Timestamp) Settings {
	if c.inForce(ts) {
		return c.Next.settings()
	}
	return c.Current.settings()
}

// leaseAt returns how long a view that was begun at f may be used.
func (c *catalog) leaseAt(f Timestamp) time.Duration {
	lease := c.at(f).CatalogLease
	if c.Next != nil && !c.inForce(f) {
		lease = min(lease, c.Next.settings().CatalogLease)
	}
	return lease
}

// outlasting returns the longest lease of a view that was begun before f and may be in
// use at f or later, and the longest MaxTxnAge that such a view grants.
func (c *catalog) outlasting(f Timestamp) (maxTxnAge, lease time.Duration) {
	s := c.at(f)
	if c.Next != nil && !c.inForce(f) {
		n := c.Next.settings()
		return max(s.MaxTxnAge, n.MaxTxnAge), max(s.CatalogLease, n.CatalogLease)
	}
	return s.MaxTxnAge, s.CatalogLease
}

// lastCommit returns the greatest commit timestamp that MaxTxnAge allows to a
// transaction that began at start. The least age that was in force at any time since
// then counts.
func (c *catalog) lastCommit(start Timestamp) Timestamp {
	last := start.Add(c.Current.settings().MaxTxnAge)
	if c.inForce(start) {
		return start.Add(c.Next.settings().MaxTxnAge)
	}
	for _, p := range c.Past {
		if start < p.Until {
			last = min(last, start.Add(p.age()))
		}
	}
	if c.Next != nil && c.NextFrom != 0 {
		// Before NextFrom it does not bind.
		last = min(last, max(c.NextFrom-1, start.Add(c.Next.settings().MaxTxnAge)))
	}
	return last
}

// makeCurrent turns Next, which is in force, into Current. Of the past ages it keeps
// those that may still bind a transaction at now.
func (c *catalog) makeCurrent(now Timestamp) {
	c.Past = append(slices.Clone(c.Past), pastAge{c.Current.MaxTxnAgeMs, c.NextFrom})
	c.Current, c.Next, c.NextFrom = *c.Next, nil, 0
	age := c.Current.settings().MaxTxnAge
	least := c.Current.MaxTxnAgeMs
	for i := len(c.Past) - 1; i >= 0; i-- {
		if p := c.Past[i]; p.MaxTxnAgeMs >= least || now > p.Until.Add(age) {
			c.Past = slices.Delete(c.Past, i, i+1)
		} else {
			least = p.MaxTxnAgeMs
		}
	}
}

// Settings returns the settings in force, as this process last read them.
func (db *DB) Settings() Settings {
	v := db.known()
	return v.at(v.f.Add(db.clock.Now().Sub(v.sentAt)))
}

// Configure changes the stored settings for every process. A field of 0 keeps its
// value. The change takes effect two of the present catalog leases after it was
// published, so that no process can still use the old settings then. A transaction is
// bound by the least MaxTxnAge that was in force at any time since it began.
//
// It returns an error that matches ErrInvalid when the settings do not fit together,
// and while another change has yet to take effect; call it again afterwards. Asking for
// that same change again is no error. After any other error the change may or may not
// take effect, or it may be published and wait until another call gives it its time;
// call Configure again.
func (db *DB) Configure(ctx context.Context, s Settings) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	if err := db.announce(ctx, s); err != nil {
		return fmt.Errorf("configuring: %w", err)
	}
	if err := db.date(ctx); err != nil {
		return fmt.Errorf("configuring: %w", err)
	}
	return nil
}

// announce publishes a change of the settings, without its time.
func (db *DB) announce(ctx context.Context, s Settings) error {
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		next := fill(s, v.at(v.f))
		if err := next.check(); err != nil {
			return false, err
		}
		stored := storeSettings(next)
		switch {
		case v.inForce(v.f):
			v.makeCurrent(v.f)
		case v.Next != nil && *v.Next == stored:
			return false, nil
		case v.Next != nil && v.NextFrom != 0:
			return false, fmt.Errorf("%w: another change of the settings takes effect at %v; wait until then", ErrInvalid, v.NextFrom)
		}
		if v.Next == nil && v.Current == stored {
			return false, nil
		}
		v.Next = &stored
		return true, nil
	})
	return err
}

// date gives an announced change its time.
func (db *DB) date(ctx context.Context) error {
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		if v.Next == nil || v.NextFrom != 0 {
			return false, nil
		}
		// Drawn after the announcement was seen: a view without it was begun before.
		now, err := db.draw(ctx)
		if err != nil {
			return false, err
		}
		v.NextFrom = now.Add(2*v.Current.settings().CatalogLease) + 1
		return true, nil
	})
	return err
}

func fill(s, from Settings) Settings {
	if s.MaxTxnAge == 0 {
		s.MaxTxnAge = from.MaxTxnAge
	}
	if s.Retention == 0 {
		s.Retention = from.Retention
	}
	if s.CatalogLease == 0 {
		s.CatalogLease = from.CatalogLease
	}
	return s
}
